# SPDX-License-Identifier: Apache-2.0
"""The library's C walk over a segment's bytes, without numpy, which a daemon has no use for."""

from __future__ import annotations

from typing import Any

from hmb_trace._core import ffi, lib


def begin_walk(offset: int = 0) -> Any:
    """A struct hmb_walk that stands at a record, `offset` bytes into the dump."""
    return ffi.new("struct hmb_walk *", {"offset": offset})


def walk_on(walk: Any, data: bytes) -> int:
    """Walk the whole records of the bytes at walk.offset; returns the bytes walked."""
    before = walk.offset
    lib.hmb_walk(walk, ffi.from_buffer(data), len(data), ffi.NULL, ffi.NULL, ffi.NULL)
    return int(walk.offset - before)

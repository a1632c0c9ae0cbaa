# SPDX-License-Identifier: Apache-2.0
"""FNV-1a, 64 bit: the checksum of .pccx payloads (seed 000, "FNV-1a"; SPEC P1)."""

from __future__ import annotations

import mmap
from typing import Any

from numpy.typing import NDArray

from hmb_trace._core import ffi, lib
from hmb_trace.errors import UsageError

BytesLike = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]

BASIS = int(lib.hmb_fnv1a_64_basis())
_U64 = 1 << 64


def as_bytes(buffer: BytesLike) -> memoryview:
    """The bytes of a contiguous buffer, one dimension, without a copy."""
    view = memoryview(buffer)  # type: ignore[arg-type] # numpy's stubs do not say so
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def fnv1a_64(buffer: BytesLike, state: int | None = None) -> int:
    """The 64-bit FNV-1a hash of a bytes-like object.

    Args:
        buffer: bytes, bytearray, memoryview, mmap or a C-contiguous numpy array; hashed
            as the bytes it holds, without a copy and without the GIL.
        state: the result of the call before, to hash a stream piece by piece; None begins.

    Returns:
        The hash, 0 <= h < 2**64; it is also the state to go on with.

    Raises:
        UsageError: state is not a 64-bit number.
    """
    start = BASIS if state is None else state
    if not 0 <= start < _U64:
        raise UsageError(f"state: found {start}, expected 0 <= state < 2**64")
    view = as_bytes(buffer)
    if not view:
        return start
    return int(lib.hmb_fnv1a_64(ffi.from_buffer(view), len(view), start))

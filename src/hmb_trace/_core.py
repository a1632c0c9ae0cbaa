# SPDX-License-Identifier: Apache-2.0
"""The only module that touches libhmbtrace: opens it, reads its interface, checks the layout."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from cffi import FFI

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
_PATH = Path(__file__).with_name(f"_libhmbtrace{_SUFFIX}")


def _api_text() -> str:
    """libhmbtrace/api/*.h as they were compiled into the library."""
    boot: Any = FFI()
    boot.cdef("extern const char hmb_api_text[];")
    text: bytes = boot.string(boot.dlopen(str(_PATH)).hmb_api_text)
    return text.decode()


def _open() -> tuple[Any, Any]:
    if not _PATH.exists():
        raise ImportError(f"{_PATH.name} is missing: build it with 'pip install .'")
    api = FFI()
    api.cdef(_api_text())
    return api, api.dlopen(str(_PATH))


ffi, lib = _open()


def layout() -> dict[str, tuple[int, int]]:
    """Offset and size, in bytes, of every field that the C compiler laid out."""
    entry = ffi.new("struct hmb_layout_entry *")
    found: dict[str, tuple[int, int]] = {}
    index = 0
    while lib.hmb_layout(index, entry) == 0:
        found[ffi.string(entry.name).decode()] = (entry.offset, entry.size)
        index += 1
    return found

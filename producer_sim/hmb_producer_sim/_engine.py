# SPDX-License-Identifier: Apache-2.0
"""The only module that touches libhmbsim: opens it and reads the interface it carries."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from cffi import FFI

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
_PATH = Path(__file__).with_name(f"_libhmbsim{_SUFFIX}")


def _api_text() -> str:
    """sim_api.h as it was compiled into the library."""
    boot: Any = FFI()
    boot.cdef("extern const char hmb_sim_api_text[];")
    text: bytes = boot.string(boot.dlopen(str(_PATH)).hmb_sim_api_text)
    return text.decode()


def _open() -> tuple[Any, Any]:
    if not _PATH.exists():
        raise ImportError(f"{_PATH.name} is missing: build it with 'pip install .'")
    api: Any = FFI()
    api.cdef(_api_text())
    library = api.dlopen(str(_PATH))
    size = api.sizeof("struct hmb_sim_config")
    if library.hmb_sim_sizeof_config() != size:
        raise ImportError(f"{_PATH.name}: struct hmb_sim_config is not {size} bytes in C")
    return api, library


ffi, lib = _open()

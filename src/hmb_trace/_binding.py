# SPDX-License-Identifier: Apache-2.0
"""Opens our C libraries through the interface text that each of them carries.

To parse that text takes longer than most commands run, so the build leaves the parsed form beside
the library (setup.py writes NAME_abi.py). It counts only if it was made of the very text that the
library carries: a file left over from another build is passed over and the text is parsed.
"""

from __future__ import annotations

import importlib
import sysconfig
from pathlib import Path
from typing import Any

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def library_path(module_file: str, name: str) -> Path:
    """Where the library `name` of a package lies: beside its modules."""
    return Path(module_file).with_name(f"{name}{_SUFFIX}")


def carried_text(path: Path, symbol: str) -> bytes:
    """The interface text inside a library."""
    from cffi import FFI  # noqa: PLC0415 - brings a C parser along, which most starts do without

    boot: Any = FFI()
    boot.cdef(f"extern const char {symbol}[];")
    text: bytes = boot.string(getattr(boot.dlopen(str(path)), symbol))
    return text


def _parsed_before(package: str, path: Path, symbol: str) -> tuple[Any, Any] | None:
    """The library through what the build parsed; None where that is missing or of another text."""
    try:
        made: Any = importlib.import_module(f"{package}.{path.name.partition('.')[0]}_abi")
        library = made.ffi.dlopen(str(path))
        same = made.ffi.string(getattr(library, symbol)) == made.INTERFACE
    except (ImportError, AttributeError):  # none, or made for another cffi or by another build
        return None
    return (made.ffi, library) if same else None


def open_library(package: str, path: Path, symbol: str) -> tuple[Any, Any]:
    """(ffi, lib) of a library whose interface text is its `symbol`.

    Raises:
        ImportError: it was not built.
    """
    if not path.exists():
        raise ImportError(f"{path.name} is missing: build it with 'pip install .'")
    if found := _parsed_before(package, path, symbol):
        return found
    from cffi import FFI  # noqa: PLC0415 - as above

    api: Any = FFI()
    api.cdef(carried_text(path, symbol).decode())
    return api, api.dlopen(str(path))

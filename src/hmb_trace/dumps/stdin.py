# SPDX-License-Identifier: Apache-2.0
"""Standard input that is a .pccx: kept in a file without a name, to be mapped and read twice."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from hmb_trace.errors import from_os_error

_PCCX_MAGIC = b"PCCX"
_COPY_SIZE = 4 << 20


class _Input:
    def __init__(self) -> None:
        self._stdin: BinaryIO | None = None
        self._spool: BinaryIO | None = None

    @property
    def _spooled(self) -> bool:
        return self._spool is not None and self._stdin is sys.stdin.buffer

    def is_package(self) -> bool:
        """Told by its first bytes, which stay to be read."""
        if self._spooled:
            return True
        peek = getattr(sys.stdin.buffer, "peek", None)
        head: bytes = peek(len(_PCCX_MAGIC)) if peek else b""
        return head.startswith(_PCCX_MAGIC)

    def path(self) -> Path:
        if not self._spooled:
            self._spool = tempfile.TemporaryFile(prefix="hmb-trace-")  # noqa: SIM115 - stays open
            self._stdin = sys.stdin.buffer
            try:
                shutil.copyfileobj(self._stdin, self._spool, _COPY_SIZE)
                self._spool.flush()
            except OSError as error:
                raise from_os_error(error, "cannot keep standard input") from error
        assert self._spool is not None
        return Path(f"/proc/self/fd/{self._spool.fileno()}")


_input = _Input()


def is_package() -> bool:
    """Whether a .pccx comes on standard input; may be asked again after it was read."""
    return _input.is_package()


def spooled_stdin() -> Path:
    """A path that opens all of standard input, as often as wanted; it is read once.

    Raises:
        HmbTraceError: it cannot be read, or there is no room for it.
    """
    return _input.path()

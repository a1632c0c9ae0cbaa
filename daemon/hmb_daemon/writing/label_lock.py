# SPDX-License-Identifier: Apache-2.0
"""One daemon a label and output directory, for as long as it lives.

Two that share a label would number their segments alike, and the retention of one would
delete those of the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

from hmb_daemon.errors_table import NOT_SUPPORTED
from hmb_trace.errors import BusyError, from_os_error
from hmb_trace.live.ring import lock_holder

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LabelLock:
    """Held from its making until close()."""

    def __init__(self, directory: Path, label: str, log: Any) -> None:
        """Take it.

        Raises:
            BusyError: another daemon writes segments of this label here.
            CannotCreateError, PermissionDeniedError: the lock cannot be made.
        """
        self.path = directory / f".{label}.lock"
        self._log = log
        self._fd = self._take()

    def _take(self) -> int:
        while True:
            try:
                fd = os.open(self.path, _FLAGS, 0o644)
            except OSError as error:
                raise from_os_error(error, f"cannot lock {self.path}", creating=True) from error
            self._lock(fd)
            if self._is_ours(fd):
                return fd
            os.close(fd)  # its last owner removed it meanwhile

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = lock_holder(fd)
            os.close(fd)
            who = f"pid {pid}" if pid else "another daemon"
            raise BusyError(
                f"{self.path.parent} is being written with this label by {who}; two captures in "
                "one directory need different names: give another --label"
            ) from error
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                os.close(fd)
                raise from_os_error(error, f"cannot lock {self.path}", creating=True) from error
            self._log.warning("not-supported", step="lock a file", error=error.strerror)

    def _is_ours(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.path.lstat())
        except OSError:
            return False

    def renew(self) -> None:
        """Once in a while: somebody may have removed the file, which then guards nothing."""
        if self._is_ours(self._fd):
            return
        with contextlib.suppress(Exception):  # the directory is away: the writer tells
            fd = self._take()
            os.close(self._fd)
            self._fd = fd

    def close(self) -> None:
        """Release it."""
        if self._is_ours(self._fd):
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self._fd)

# SPDX-License-Identifier: Apache-2.0
"""Who collects into a spool, and who writes from it: locks that belong to an open file."""

from __future__ import annotations

import fcntl
import os
import struct

from hmb_trace._core import lib

_OFD_GETLK, _OFD_SETLK = 36, 37
_LOCK = struct.Struct("hhqqi4x")
_UNLOCKED = fcntl.F_UNLCK


def _lock(fd: int, command: int, at: int) -> int:
    """What the kernel says of a one-byte lock that belongs to the open file."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    return int(_LOCK.unpack(fcntl.fcntl(fd, command, asked))[0])


def claim_writer(fd: int) -> None:
    """Show a collector that a daemon is there.

    Raises:
        OSError: another daemon is.
    """
    _lock(fd, _OFD_SETLK, int(lib.hmb_live_writer_lock()))


def is_collected(fd: int) -> bool:
    """Whether a collector runs on the open spool."""
    return _lock(fd, _OFD_GETLK, int(lib.hmb_live_collector_lock())) != _UNLOCKED

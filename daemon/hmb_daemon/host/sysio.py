# SPDX-License-Identifier: Apache-2.0
"""Linux calls that Python's os module does not have."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
from pathlib import Path

_KEEP_SIZE = 1
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_WAIT_ALL = 1 | 2 | 4  # wait before, write, wait after

# ctypes, not cffi: this one would parse three lines of C at every start of the daemon.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
REAL_TIME_PRIORITY = 10  # before threads of every other class, after the kernel's own


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def name_thread(name: str) -> None:
    """What top -H and perf call the calling thread; at most 15 characters."""
    with contextlib.suppress(OSError):  # cosmetics
        Path("/proc/thread-self/comm").write_text(name)


def prefer_thread(nice: int) -> None:
    """Give the calling thread another place in the queue, where we may."""
    with contextlib.suppress(OSError):  # without CAP_SYS_NICE it stays where it is
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def real_time_thread() -> None:
    """Make the calling thread real-time where the service may (LimitRTPRIO): this one alone."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if allowed > 0:
        with contextlib.suppress(OSError):  # a filter may keep it all the same
            priority = os.sched_param(min(allowed, REAL_TIME_PRIORITY))
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, priority)


def populate(address: int, length: int) -> bool:
    """Make the pages of a writable mapping present; False where the kernel cannot."""
    return not _libc.madvise(address, length, _POPULATE_WRITE)


def reserve(fd: int, offset: int, length: int) -> None:
    """Reserve disk blocks; the file's size stays as it is.

    Raises:
        OSError: ENOSPC, EDQUOT; EOPNOTSUPP where the file system cannot.
    """
    _check(_libc.fallocate(fd, _KEEP_SIZE, offset, length))


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Begin to write dirty pages of a range; returns at once."""
    _check(_libc.sync_file_range(fd, offset, length, _WRITE))


def wait_writeback(fd: int, offset: int, length: int) -> None:
    """Write dirty pages of a range and wait for them."""
    _check(_libc.sync_file_range(fd, offset, length, _WAIT_ALL))

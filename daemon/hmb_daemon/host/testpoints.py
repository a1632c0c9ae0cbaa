# SPDX-License-Identifier: Apache-2.0
"""Where tests end or hinder the daemon at a chosen step; idle unless the environment asks.

HMB_TRACE_TEST_KILL=STEP[:N]    SIGKILL at the N-th passing of a step (docs/durability.md);
                                steps of the collector need tests/native/testpoint.c preloaded
HMB_TRACE_TEST_WRITE=KIND:N     the N-th data write fails: eio, enospc, or short (half of it)
HMB_TRACE_TEST_HOLD=SECONDS     the writer sleeps once before its first data write
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

_step, _, _count = os.environ.get("HMB_TRACE_TEST_KILL", "").partition(":")
_left = int(_count or 1)


def point(step: str) -> None:
    """A step of writer or recovery that a test may want to be the last."""
    global _left  # noqa: PLW0603 - one count for the process, set once by the environment
    if step == _step:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def pwrite() -> Callable[[int, Any, int], int]:
    """os.pwrite, or one that fails as the environment says."""
    kind, _, count = os.environ.get("HMB_TRACE_TEST_WRITE", "").partition(":")
    hold = float(os.environ.get("HMB_TRACE_TEST_HOLD", "0"))
    if not kind and not hold:
        return os.pwrite
    left = [int(count or 1), hold]

    def faulty(fd: int, data: Any, offset: int) -> int:
        if left[1]:
            time.sleep(left[1])
            left[1] = 0
        left[0] -= 1
        if left[0] == 0 and kind == "short":
            return os.pwrite(fd, data[: len(data) // 2 & ~4095 or 1], offset)
        if left[0] == 0 and kind:
            code = {"eio": errno.EIO, "enospc": errno.ENOSPC}[kind]
            raise OSError(code, os.strerror(code))
        return os.pwrite(fd, data, offset)

    return faulty

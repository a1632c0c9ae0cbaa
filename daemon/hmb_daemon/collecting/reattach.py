# SPDX-License-Identifier: Apache-2.0
"""Waiting for a ring to come back: re-initialised in place, or as another region of its name."""

from __future__ import annotations

import enum
import os
import time
from pathlib import Path
from typing import Any

from hmb_trace.errors import AbiTooNewError, HmbTraceError, NoInputError
from hmb_trace.live.ring import SHM_SCHEME, Ring, attach

_INVALID_S = 0.1
_TOO_NEW_S = 0.5


def _place(path: str) -> Path:
    if path.startswith(SHM_SCHEME):
        return Path("/dev/shm") / path.removeprefix(SHM_SCHEME).lstrip("/")
    return Path(path)


class Finding(enum.Enum):
    """What a look shows."""

    NOTHING = enum.auto()  # the name leads nowhere
    NO_RING = enum.auto()  # something is there that R1 refuses, or that is gone itself
    TOO_NEW = enum.auto()  # ... for its version, which may be a write under way
    RING = enum.auto()


class Reconnector:
    """Looks at a ring from time to time; never blocks.

    Args:
        ring: as it was attached.
        gone: the region itself is gone: only a new one will do.
    """

    def __init__(self, ring: Ring, log: Any, *, gone: bool = False) -> None:
        self._ring = ring
        self._log = log
        self._gone = gone
        self._since = time.monotonic()
        self._said = ""
        self._too_new_since: float | None = None
        self.reason: HmbTraceError | None = None
        self.missing = False

    def replaced(self) -> bool:
        """Whether the name now leads to another region; `missing` when it leads nowhere."""
        mine = os.fstat(self._ring.fd)
        try:
            there = _place(self._ring.path).stat()
        except OSError:
            self.missing = True
            return False
        self.missing = False
        if self._gone:
            return True
        return (there.st_dev, there.st_ino, there.st_rdev) != (
            mine.st_dev,
            mine.st_ino,
            mine.st_rdev,
        )

    def look(self) -> tuple[Finding, Ring | None]:
        """What is there, and the ring to go on with, checked by R1."""
        try:
            if self.replaced():
                return Finding.RING, attach(self._ring.path)
            if self.missing and self._gone:
                return Finding.NOTHING, None
            if self._gone or self._ring.is_cut():
                return (Finding.NOTHING if self.missing else Finding.NO_RING), None
            self._ring.reattach()
        except NoInputError:
            self.missing = True
            return Finding.NOTHING, None
        except HmbTraceError as error:
            self._say(error)
            newer = isinstance(error, AbiTooNewError)
            self._too_new_since = (self._too_new_since or time.monotonic()) if newer else None
            if self.missing and not self.too_new_for_good():
                return Finding.NOTHING, None
            return (Finding.TOO_NEW if newer else Finding.NO_RING), None
        return Finding.RING, self._ring

    def _say(self, error: HmbTraceError) -> None:
        self.reason = error
        if str(error) != self._said:
            self._said = str(error)
            self._log.warning("ring-refused", error=self._said)

    def too_new_for_good(self) -> bool:
        """Whether the version has stood there for longer than a write takes."""
        since = self._too_new_since
        return since is not None and time.monotonic() - since >= _TOO_NEW_S

    def invalid_too_long(self) -> bool:
        """R2: cursors under a valid header had their 100 ms."""
        return time.monotonic() - self._since >= _INVALID_S

# SPDX-License-Identifier: Apache-2.0
"""Why a segment was sealed; the numbers stand in spools, so they only ever grow."""

from __future__ import annotations

import enum


class Cause(enum.IntEnum):
    """The sidecar's `cause` is the name in lower case, with hyphens."""

    NONE = 0
    ROTATE_SIZE = 1
    ROTATE_TIME = 2
    ROTATE_REQUEST = 3
    STOP = 4
    ONCE = 5
    FROZEN = 6
    REINITIALISED = 7
    INVALID_CURSORS = 8
    CORRUPT = 9
    HANGUP = 10
    DISK_FULL = 11
    JOURNAL = 12
    HOST_DIED = 13
    SNAPSHOT = 14
    DURATION = 15
    RESTART = 16
    DEVICE_ERROR = 17

    @property
    def text(self) -> str:
        """As the sidecar and the log spell it."""
        return self.name.lower().replace("_", "-")

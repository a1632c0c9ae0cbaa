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
    HOST_DIED = 13
    SNAPSHOT = 14
    DURATION = 15
    RESTART = 16
    DEVICE_ERROR = 17
    SPOOL_DAMAGED = 18
    FILE_TOO_LARGE = 19

    @property
    def text(self) -> str:
        """As the sidecar and the log spell it."""
        return self.name.lower().replace("_", "-")


class Note(enum.IntEnum):
    """What the daemon itself puts among a segment's events (HMB_EV_STATE, value a)."""

    RUNNING = 1
    FROZEN = 2
    WAITING = 3
    DISCONNECTED = 4
    DISK_FULL = 5
    DISK_ERROR = 6
    DISK_RESUMED = 7
    FSYNC_FAILED = 8
    SEGMENT_RESTORED = 9
    SEGMENT_VANISHED = 10
    SPOOL_SET_ASIDE = 11
    RESUMED = 12  # a start went on with the capture of an earlier daemon
    HOST_DIED = 13  # ... counts on from a segment that outlived its host
    SPOOL_VANISHED = 14
    DISK_FULL_DELETED = 15
    REJECTS_LIMITED = 16
    SEGMENT_MOVED = 17

    @property
    def text(self) -> str:
        """The id in the sidecar."""
        name = self.name.lower().replace("_", "-")
        return name if self > Note.DISCONNECTED else f"state-{name}"

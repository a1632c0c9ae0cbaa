# SPDX-License-Identifier: Apache-2.0
"""Trouble with the disk: told once, retried for as long as it takes, never a reason to lose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hmb_daemon.spool.causes import Note
from hmb_daemon.spool.file import is_no_space

_FIRST_S = 0.05
_MAX_S = 1.0
_Result = TypeVar("_Result")


class GiveUpError(Exception):
    """The disk does not take the data and we were asked to stop: the spool keeps it."""


class Patience:
    """Repeats what a disk refuses.

    Args:
        note: puts a note into the sidecar of the segment.
        make_room: asked when the disk is full; True: something was deleted, try again at once.
        changed: called when trouble begins or ends.
    """

    def __init__(
        self,
        log: Any,
        note: Callable[[Note], None],
        make_room: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.trouble: OSError | None = None
        self.since = 0.0  # time.monotonic() when it began
        self.full_episodes = 0
        self.give_up = threading.Event()
        self._log = log
        self._note = note
        self._make_room = make_room
        self._changed = changed

    def attempt(self, action: Callable[[], _Result]) -> _Result:
        """Do it until it works: full disks are emptied, others come back.

        Raises:
            GiveUpError: give_up was set.
            BrokenPipeError: there is nobody to wait for.
        """
        delay = _FIRST_S
        while True:
            try:
                result = action()
            except BrokenPipeError:
                raise
            except OSError as error:
                self._begin(error)
                if is_no_space(error) and self._make_room():
                    continue
                if self.give_up.wait(delay):
                    raise GiveUpError(str(error)) from error
                delay = min(delay * 2, _MAX_S)
            else:
                self._end()
                return result

    def _begin(self, error: OSError) -> None:
        if self.trouble is not None:
            return
        self.trouble, self.since = error, time.monotonic()
        full = is_no_space(error)
        self._note(Note.DISK_FULL if full else Note.DISK_ERROR)
        self.full_episodes += full
        self._log.error(
            "disk-full" if full else "disk-error",
            error=error.strerror,
            action="collecting into the spool; writing goes on by itself when the disk takes data",
        )
        self._changed()

    def _end(self) -> None:
        if self.trouble is None:
            return
        self._log.warning("disk-resumed", after_s=round(time.monotonic() - self.since, 3))
        self._note(Note.DISK_RESUMED)
        self.trouble = None
        self._changed()

# SPDX-License-Identifier: Apache-2.0
"""Doing what the system refuses, as errors_table.py says: told once, retried, looked at again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hmb_daemon.errors_table import Answer, Step, answer
from hmb_daemon.spool.causes import Note

_FIRST_S = 0.05
_MAX_S = 1.0
_LOOK_EVERY = 3  # tries between two looks at the situation
_Result = TypeVar("_Result")


class GiveUpError(Exception):
    """The disk does not take the data and we were asked to stop: the spool keeps it."""


class SegmentLostError(Exception):
    """The open segment cannot be continued: go on in another one."""


class FileTooLargeError(Exception):
    """The file may not grow any more: seal it, go on in another one."""


class Retrier:
    """Repeats what the disk refuses.

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
        self._done_without: set[Step] = set()

    def attempt(
        self,
        step: Step,
        action: Callable[[], _Result],
        *,
        look: Callable[[], None] = lambda: None,
    ) -> _Result:
        """Do it until it works.

        Args:
            look: looks at the situation again, every few tries; what it raises ends the attempt.

        Raises:
            GiveUpError: give_up was set.
            FileTooLargeError: the file has reached its largest size.
            SegmentLostError: from `look`.
            BrokenPipeError: nobody reads the stream.
        """
        delay, tries = _FIRST_S, 0
        while True:
            try:
                result = action()
            except OSError as error:
                if self._delete_something(step, error):
                    continue
                if self.give_up.wait(delay):
                    raise GiveUpError(str(error)) from error
            else:
                self._end()
                return result
            tries += 1
            delay = min(delay * 2, _MAX_S)
            if tries % _LOOK_EVERY == 0:
                self._look(look)

    def _look(self, look: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):  # the next try tells what is wrong
            look()

    def _delete_something(self, step: Step, error: OSError) -> bool:
        """Begin the trouble; whether room was made for another try at once."""
        what = answer(step, error.errno or 0)
        if what is Answer.END:
            raise error
        if what is Answer.NEXT_SEGMENT:
            raise FileTooLargeError(str(error)) from error
        self._begin(step, error, full=what is Answer.DISK_FULL)
        return what is Answer.DISK_FULL and self._make_room()

    def optional(self, step: Step, action: Callable[[], object]) -> None:
        """Do what not every file system can; without it there is one warning.

        Raises:
            OSError: any other failure.
        """
        try:
            action()
        except OSError as error:
            if answer(step, error.errno or 0) is not Answer.WITHOUT:
                raise
            self.warn_once(step, error)

    def warn_once(self, step: Step, error: OSError) -> None:
        """Say that a file system lacks something, the first time."""
        if step not in self._done_without:
            self._done_without.add(step)
            self._log.warning("not-supported", step=step.value, error=error.strerror)

    def _begin(self, step: Step, error: OSError, *, full: bool) -> None:
        if self.trouble is not None:
            return
        self.trouble, self.since = error, time.monotonic()
        self._note(Note.DISK_FULL if full else Note.DISK_ERROR)
        self.full_episodes += full
        self._log.error(
            "disk-full" if full else "disk-error",
            step=step.value,
            error=error.strerror or str(error),
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

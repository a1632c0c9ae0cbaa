# SPDX-License-Identifier: Apache-2.0
"""Which sealed segments are kept: a list in memory, so that a seal costs the same with 10,000.

Segments are ordered by their numbers, whatever any clock says, and the newest is never
deleted.  Ages are measured on a clock that nobody can set (CLOCK_BOOTTIME): of segments
found at the start, only what lies between their capture and that of the newest counts as age
then, so that a step of the wall clock deletes nothing.
"""

from __future__ import annotations

import calendar
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmb_daemon.spool.causes import Note
from hmb_daemon.writing import names
from hmb_daemon.writing.event_log import Remark
from hmb_trace.dumps import sidecar
from hmb_trace.errors import HmbTraceError

_SUFFIXES = (names.SIDECAR, names.REJECTS, names.ZST, names.BIN)  # the dump last
_S = 10**9
# Earlier than any capture: a clock that shows it was never set.
_NO_DATE_NS = calendar.timegm((2024, 1, 1, 0, 0, 0)) * _S


def boot_ns() -> int:
    """Nanoseconds since the boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Kept:
    """A sealed segment."""

    number: int
    name: str
    size: int  # of all its files
    sealed_ns: int  # on the boot clock; may lie before the boot


class Retention:
    """The sealed segments of a label in a directory; any thread may call.

    Args:
        now_ns: the clock that ages are measured by.
    """

    def __init__(
        self, directory: Path, label: str, log: Any, *, now_ns: Callable[[], int] = boot_ns
    ) -> None:
        self.max_total_size = 0
        self.max_age_ns = 0
        self.deleted = 0
        self._directory = directory
        self._label = label
        self._log = log
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._kept: deque[Kept] = deque()
        self._total = 0

    def scan(self) -> list[str]:
        """Learn what is there; names of the segments that are not compressed."""
        found = {}
        for one in names.scan(self._directory, self._label):
            if not one.suffix.endswith(names.PART) and names.is_plain(
                self._directory, one.name + one.suffix
            ):
                found[one.name] = one
        dates = {name: _date_ns(name) for name in found}
        newest = max((d for d in dates.values() if d >= _NO_DATE_NS), default=0)
        now = self._now_ns()
        with self._lock:
            for name, one in found.items():
                age = max(0, newest - dates[name]) if dates[name] >= _NO_DATE_NS else 0
                self._append(Kept(one.number, name, self._size(name), now - age))
        return [name for name, one in found.items() if one.suffix == names.BIN]

    def sealed(self, name: str, number: int) -> None:
        """A segment was sealed."""
        with self._lock:
            self._append(Kept(number, name, self._size(name), self._now_ns()))

    def _append(self, kept: Kept) -> None:
        later = [k for k in reversed(self._kept) if k.number > kept.number]
        for _ in later:  # recovered beside the capture: seldom, and never far from the end
            self._kept.pop()
        self._kept.append(kept)
        self._kept.extend(reversed(later))
        self._total += kept.size

    def replace(self, name: str, action: Callable[[], None]) -> bool:
        """Change a segment's files unless it was deleted meanwhile; whether that was done."""
        with self._lock:
            kept = next((k for k in self._kept if k.name == name), None)
            if kept is None:
                return False
            action()
            self._total -= kept.size
            kept.size = self._size(name)
            self._total += kept.size
            return True

    def _size(self, name: str) -> int:
        total = 0
        for suffix in _SUFFIXES:
            with contextlib.suppress(OSError):
                total += (self._directory / (name + suffix)).lstat().st_size
        return total

    def retain(self) -> None:
        """Delete the oldest segments beyond --max-total-size and --max-age.

        Raises:
            OSError: one cannot be deleted; the next call tries again.
        """
        with self._lock:
            while len(self._kept) > 1 and (why := self._too_much()):
                self._delete_oldest(why)

    def _too_much(self) -> str:
        if self.max_total_size and self._total > self.max_total_size:
            return "max-total-size"
        oldest = self._now_ns() - self._kept[0].sealed_ns
        return "max-age" if self.max_age_ns and oldest > self.max_age_ns else ""

    def _delete_oldest(self, why: str) -> Kept:
        kept = self._kept[0]
        for suffix in _SUFFIXES:
            (self._directory / (kept.name + suffix)).unlink(missing_ok=True)
        self._kept.popleft()
        self._total -= kept.size
        self.deleted += 1
        self._log.warning("segment-deleted", segment=kept.name, bytes=kept.size, why=why)
        return kept

    def make_room(self) -> Remark | None:
        """Delete the oldest segment, whatever the limits; what was in it. None: only the newest."""
        with self._lock:
            if len(self._kept) < 2:
                return None
            remark = self._remark_of(self._kept[0])
            try:
                self._delete_oldest("disk-full")
            except OSError as error:
                self._log.error("delete-failed", error=error.strerror)
                return None
            return remark

    def _remark_of(self, kept: Kept) -> Remark:
        try:
            side = sidecar.load(self._directory / (kept.name + names.SIDECAR))
        except HmbTraceError:
            return Remark(Note.DISK_FULL_DELETED, time.time_ns())
        first, last = side.first_seq, side.last_seq
        return Remark(
            Note.DISK_FULL_DELETED,
            time.time_ns(),
            count=side.records,
            seq_before=None if first is None else (first - 1) % (1 << 32),
            seq_after=None if last is None else (last + 1) % (1 << 32),
        )


def _date_ns(name: str) -> int:
    """The UTC start in a segment's name."""
    stamp = name.rsplit("-", 1)[-1]
    try:
        return calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) * _S
    except ValueError:
        return 0

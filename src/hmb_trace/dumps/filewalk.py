# SPDX-License-Identifier: Apache-2.0
"""A walk that keeps what it saw file by file: the first source of the account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi
from hmb_trace.dumps.walker import BREAK_DTYPE, Bytes, Tally, Walked, Walker, settled

CLOCK_JITTER_NS = 1_000_000
"""Cores write a little out of order: only a larger step back of ts_ns is one of the clock."""

_HALF_TIME = np.uint64(1 << 63)


def goes_back(before: npt.NDArray[np.uint64], after: npt.NDArray[np.uint64]) -> Any:
    """Where the clock went back (SPEC R16), also below zero: half of all times cannot pass."""
    return ((after < before) & (before - after > CLOCK_JITTER_NS)) | (
        (after > before) & (after - before >= _HALF_TIME)
    )


def went_back(before: int, after: int) -> bool:
    """The same for two times."""
    return after + CLOCK_JITTER_NS < before or after - before >= 1 << 63


NO_BREAKS = np.empty(0, BREAK_DTYPE)
_SUMS = frozenset(
    [
        "records",
        "wrap_markers",
        "payload_bytes",
        "truncated",
        "unknown_flags",
        "gaps",
        "lost",
        "duplicates",
        "sequence_resets",
        "clock_steps_back",
    ]
)
_FIRST = frozenset(("first_seq", "first_ts_ns"))
_LAST = frozenset(("last_record_seq", "last_ts_ns"))


@dataclass(frozen=True, slots=True)
class StepBack:
    """A record earlier than the one before it by more than CLOCK_JITTER_NS."""

    offset: int
    ts_before: int
    ts_after: int


@dataclass(slots=True)
class FileWalk:
    """What a walk over one file saw.

    Attributes:
        c: the C state at the file's end; its counts are the file's own.
        whole: from the file's begin to its end, or to the fault.
        fault: the DumpError that ended it.
    """

    segment: int
    c: Any
    breaks: npt.NDArray[Any] = field(default_factory=lambda: NO_BREAKS)
    steps: list[StepBack] = field(default_factory=list)
    whole: bool = False
    fault: Any = None


class FileWalker(Walker):
    """Walks file by file: no sequence goes on from one to the next, the account compares them.

    Its numbers (records, first_seq, max_ts_ns, ...) are still those of all files together.
    """

    def __init__(self, *, tally: Tally | None = None) -> None:
        self.files: list[FileWalk] = []
        self._pieces: list[npt.NDArray[Any]] = []
        self._open = False
        super().__init__(tally=tally, keep_breaks=True)

    def __getattr__(self, name: str) -> int:
        if name in ("c", "files"):
            raise AttributeError(name)
        used = [file.c for file in self.files if file.c.records]
        if name in _SUMS:
            return sum(int(getattr(file.c, name)) for file in self.files)
        if name in _FIRST and used:
            return int(getattr(used[0], name))
        if name in _LAST and used:
            return int(getattr(used[-1], name))
        if name == "min_ts_ns" and used:
            return min(int(c.min_ts_ns) for c in used)
        if name == "max_ts_ns" and used:
            return max(int(c.max_ts_ns) for c in used)
        return int(getattr(self.c, name))

    def begin_segment(self, segment: int, offset: int, *, continues: bool) -> None:
        if self._open:
            self.end_segment(whole=False, fault=None)  # the pass before was given up
        self.c = ffi.new("struct hmb_walk *")
        self.c.offset = offset
        self.segment = segment
        self._pieces = []
        self._open = True
        self.files.append(FileWalk(segment, self.c))
        self._continues = continues

    def end_segment(self, *, whole: bool, fault: Exception | None) -> None:
        file = self.files[-1]
        file.whole, file.fault = whole, fault
        if self._pieces:
            file.breaks = settled(np.concatenate(self._pieces))
        self._pieces = []
        self._open = False
        self._count_interval()

    def _count_interval(self) -> None:
        """The interval from the file before, which the tally has not seen."""
        if self.tally is None or not self._continues or len(self.files) < 2:
            return
        before, now = self.files[-2].c, self.files[-1].c
        if before.records and now.records and now.first_ts_ns >= before.last_ts_ns:
            self.tally.interval_log2[int(now.first_ts_ns - before.last_ts_ns).bit_length()] += 1

    def walk(self, data: Bytes, *, columns: bool = False, markers: bool = False) -> Walked:
        begin, last_ts = self.c.offset, self.c.last_ts_ns if self.c.records else None
        steps_before = self.c.clock_steps_back
        found = super().walk(data, columns=columns, markers=markers)
        if self.c.clock_steps_back != steps_before:
            seen = found.columns if columns and not markers else _columns(data, begin)
            self.files[-1].steps += _steps_back(seen, last_ts)
        return found

    def _take_breaks(self, breaks: Any) -> None:
        if breaks.len:
            self._pieces.append(self._items[: breaks.len].copy())
            breaks.len = 0


def _columns(data: Bytes, begin: int) -> dict[str, npt.NDArray[Any]]:
    walker = Walker()
    walker.begin_segment(0, begin, continues=False)
    return walker.walk(data, columns=True).columns


def _steps_back(columns: dict[str, npt.NDArray[Any]], last_ts: int | None) -> list[StepBack]:
    times = columns["ts_ns"]
    before = np.concatenate(
        [np.array([times[0] if last_ts is None else last_ts], "u8"), times[:-1]]
    )
    rows = np.flatnonzero(goes_back(before, times))
    return [
        StepBack(int(columns["offset"][row]), int(before[row]), int(times[row]))
        for row in rows.tolist()
    ]

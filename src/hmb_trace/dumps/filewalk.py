# SPDX-License-Identifier: Apache-2.0
"""A walk that keeps what it saw file by file: the first source of the account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi
from hmb_trace.dumps.steps_back import StepBack, columns_of, steps_back
from hmb_trace.dumps.walker import BREAK_DTYPE, BreakKind, Bytes, Tally, Walked, Walker, settled

NO_BREAKS = np.empty(0, BREAK_DTYPE)
BREAKS_KEPT = 1 << 18  # of a file; a hostile one may have a break at every record
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


class Beyond(NamedTuple):
    """Breaks of a file that are counted, but not kept."""

    gaps: int
    lost: int
    duplicates: int
    resets: int


@dataclass(slots=True)
class FileWalk:
    """What a walk over one file saw.

    Attributes:
        c: the C state at the file's end; its counts are the file's own.
        whole: from the file's begin to its end, or to the fault.
        fault: the DumpError that ended it.
        beyond: the breaks that were too many to keep; None: all were kept.
    """

    segment: int
    c: Any
    breaks: npt.NDArray[Any] = field(default_factory=lambda: NO_BREAKS)
    steps: list[StepBack] = field(default_factory=list)
    whole: bool = False
    fault: Any = None
    beyond: Beyond | None = None


class FileWalker(Walker):
    """Walks file by file: no sequence goes on from one to the next, the account compares them.

    Its numbers (records, first_seq, max_ts_ns, ...) are still those of all files together.
    """

    def __init__(self, *, tally: Tally | None = None) -> None:
        self.files: list[FileWalk] = []
        self._pieces: list[npt.NDArray[Any]] = []
        self._kept = 0
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

    def begin_segment(
        self, segment: int, offset: int, *, continues: bool, rejected_bytes: int = 0
    ) -> None:
        if self._open:
            self.end_segment(whole=False, fault=None)  # the pass before was given up
        self.c = ffi.new("struct hmb_walk *")
        self.c.offset = offset
        self.c.rejected_bytes = rejected_bytes
        self.segment = segment
        self._pieces, self._kept = [], 0
        self._open = True
        self.files.append(FileWalk(segment, self.c))
        self._continues = continues

    def end_segment(self, *, whole: bool, fault: Exception | None) -> None:
        file = self.files[-1]
        file.whole, file.fault = whole, fault
        if self._pieces:
            file.breaks = settled(np.concatenate(self._pieces))
        if self._kept >= BREAKS_KEPT:
            file.beyond = _beyond(file)
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
            seen = found.columns if columns and not markers else columns_of(data, begin)
            self.files[-1].steps += steps_back(seen, last_ts)
        return found

    def _take_breaks(self, breaks: Any) -> None:
        if breaks.len and self._kept < BREAKS_KEPT:
            self._pieces.append(self._items[: breaks.len].copy())
            self._kept += breaks.len
        breaks.len = 0


def _beyond(file: FileWalk) -> Beyond:
    """What the walk counted, less what was kept."""
    kinds, c = file.breaks["kind"], file.c
    kept = {kind: int(np.count_nonzero(kinds == int(kind))) for kind in BreakKind}
    return Beyond(
        gaps=max(0, int(c.gaps) - kept[BreakKind.GAP]),
        lost=max(0, int(c.lost) - int(file.breaks["lost"].sum())),
        duplicates=max(0, int(c.duplicates) - kept[BreakKind.DUPLICATE]),
        resets=max(0, int(c.sequence_resets) - kept[BreakKind.RESET]),
    )

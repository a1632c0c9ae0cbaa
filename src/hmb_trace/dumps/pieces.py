# SPDX-License-Identifier: Apache-2.0
"""Pieces of a dump: stretches without a gap, a new epoch or a step of the clock (SPEC R16).

Nothing is paired, subtracted or interpolated across the end of a piece. Batches carry the places
where pieces begin, so that whoever reads them needs no pass of his own to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.batch import ClockCut, RecordBatch
from hmb_trace.dumps.clocks import ClockFacts, clock_facts
from hmb_trace.dumps.seams import clock_step
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.steps_back import columns_of, steps_back, went_back
from hmb_trace.dumps.walker import NO_CUTS, Walker
from hmb_trace.layout import RECORD_HDR_SIZE

_SEQS = 1 << 32


class PieceFinder:
    """Marks the batches of one pass with the places where pieces begin."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._index = -1
        self._told = ClockFacts()  # what stands beside the file
        self._cuts: list[npt.NDArray[np.uint64]] = []  # at the seam, of the batch to come
        self._steps: list[ClockCut] = []
        self._last: tuple[int, int] | None = None  # seq and ts_ns of the record before
        self._before = -1  # index of the file that it stands in
        self._steps_back = 0
        self._fresh = False  # the next bytes do not follow those before
        self._continues = False

    def begin(self, index: int, offset: int, walker: Walker, *, continues: bool) -> None:
        """The next bytes are those at `offset` of file number `index`; the walker has begun it."""
        if index != self._index:
            self._told = clock_facts(self._segments[index]) or ClockFacts()
        self._index = index
        self._fresh, self._continues = True, continues and not offset
        self._steps_back = int(walker.c.clock_steps_back)

    def mark(self, batch: RecordBatch, walker: Walker) -> RecordBatch:
        """The batch with its cuts."""
        end = batch.base + len(batch.buffer)
        told = self._told
        steps = [step for step in told.steps or () if batch.base <= step.offset < end]
        cuts = NO_CUTS if told.selected else walker.cuts
        breaks = [at for at in told.breaks if batch.base <= at < end]
        if breaks:
            cuts = np.union1d(cuts, np.array(breaks, "u8"))
        if self._fresh:
            self._seam(batch)
        if walker.c.clock_steps_back != self._steps_back:
            known = {step.offset for step in (*steps, *self._steps)}
            steps += [s for s in self._back(batch) if s.offset not in known]
        self._steps_back = int(walker.c.clock_steps_back)
        if walker.c.records:
            self._last = int(walker.c.last_record_seq), int(walker.c.last_ts_ns)
            self._before = self._index
        if steps:
            cuts = np.union1d(cuts, np.array([step.offset for step in steps], "u8"))
        if not len(cuts) and not self._cuts:
            return batch
        return self._marked(batch, cuts, sorted(steps))

    def _marked(
        self, batch: RecordBatch, cuts: npt.NDArray[np.uint64], steps: list[ClockCut]
    ) -> RecordBatch:
        made = replace(
            batch, cuts=np.unique(np.concatenate([*self._cuts, cuts])), steps=(*self._steps, *steps)
        )
        self._cuts, self._steps = [], []
        return made

    def _seam(self, batch: RecordBatch) -> None:
        """The first record of a file, or of a part of one, against the last one read."""
        self._fresh = False
        columns = columns_of(batch.buffer[: 1 << 16], batch.base)
        if self._last is None or not len(columns["seq"]):
            return
        seq, ts_ns, at = (int(columns[name][0]) for name in ("seq", "ts_ns", "offset"))
        markers = (at - batch.base) // RECORD_HDR_SIZE  # they may have a seq of their own (R3.4)
        follows = 1 <= (seq - self._last[0]) % _SEQS <= 1 + markers
        epoch = _is_other_epoch(self._segments[self._before], self._segments[self._index])
        step = not epoch and self._steps_at_seam()
        if follows and self._continues and not epoch and not step:
            return
        self._cuts.append(np.array([at], "u8"))
        if epoch or step or went_back(self._last[1], ts_ns):
            self._steps.append(ClockCut(at, self._last[1], ts_ns, epoch))

    def _steps_at_seam(self) -> bool:
        """Whether the clock pairs on both sides show that the clock was set in between."""
        if self._before == self._index:
            return False
        before = clock_facts(self._segments[self._before])
        return bool(
            before
            and before.pairs
            and self._told.pairs
            and clock_step(before.pairs[-1], self._told.pairs[0]) is not None
        )

    def _back(self, batch: RecordBatch) -> list[ClockCut]:
        """Where the clock goes back by more than cores that write out of order explain."""
        columns: dict[str, npt.NDArray[Any]] = (
            {"offset": batch.offset, "ts_ns": batch.ts_ns}
            if len(batch)
            else columns_of(batch.buffer, batch.base)
        )
        found = steps_back(columns, self._last[1] if self._last else None)
        return [ClockCut(step.offset, step.ts_before, step.ts_after, False) for step in found]


def _is_other_epoch(before: Segment, after: Segment) -> bool:
    """Whether both sidecars know, and differ."""
    return len({one.known.epoch for one in (before, after) if one.known}) > 1


class Elapsed:
    """How much firmware time passed, summed over the pieces of one clock.

    Either step() for whole batches, with the walker's first and last time at the end, or add() for
    selected ones.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._begin: int | None = None  # of the piece, where steps alone are known
        self._stepped = False
        self._range: tuple[int, int] | None = None  # of the piece, of selected rows
        self._added = False

    def step(self, steps: Sequence[ClockCut]) -> None:
        """The clock steps of the next batch."""
        for step in steps:
            # Of the first piece the begin is known only at the end.
            self._sum += step.ts_before - (self._begin or 0)
            self._begin, self._stepped = step.ts_after, True

    def add(self, batch: RecordBatch) -> None:
        """The rows of a batch."""
        self._added = True
        edges = np.searchsorted(batch.offset, [step.offset for step in batch.steps]).tolist()
        begins = [0, *edges]
        for number, (begin, end) in enumerate(zip(begins, [*edges, len(batch)], strict=True)):
            if number:
                self._close()
            times = batch.ts_ns[begin:end]
            if len(times):
                low, high = int(times.min()), int(times.max())
                least, most = self._range or (low, high)
                self._range = min(low, least), max(high, most)

    def _close(self) -> None:
        if self._range:
            self._sum += self._range[1] - self._range[0]
        self._range = None

    def total(self, walker: Walker) -> int:
        """Nanoseconds."""
        if self._added:
            return self._sum + (self._range[1] - self._range[0] if self._range else 0)
        if not walker.records:
            return 0
        if not self._stepped:
            return walker.max_ts_ns - walker.min_ts_ns
        return max(0, self._sum - walker.first_ts_ns + walker.last_ts_ns - (self._begin or 0))

# SPDX-License-Identifier: Apache-2.0
"""The pieces of the firmware's clock in a CTF export: each gets a clock of its own (SPEC R16)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import sidecar_of
from hmb_trace.dumps.sidecar import ClockPair, Sidecar

_SLACK_NS = 2 * 10**9  # a pair may be taken that long before or after the records of its piece
LAST_MOMENT = (1 << 63) - 1  # CTF readers count nanoseconds since the origin in 64 bits, signed


@dataclass
class ClockPiece:
    """A stretch of records that one clock timed.

    Attributes:
        ranges: first and last time in each file that has a part of it, ns of the firmware clock.
        parts: how many pieces of the file come before it.
    """

    number: int
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)

    def see(self, batch: RecordBatch) -> None:
        """Records of this piece."""
        if not len(batch):
            return
        low, high = int(batch.ts_ns.min()), int(batch.ts_ns.max())
        least, most = self.ranges.get(batch.segment, (low, high))
        self.ranges[batch.segment] = min(low, least), max(high, most)

    def epoch(self, dump: Dump) -> int | None:
        """The epoch that its records belong to, where a sidecar knows it."""
        known = (sidecar_of(dump.segments[index]) for index in self.ranges)
        return next((one.epoch for one in known if one), None)

    def offset_ns(self, dump: Dump) -> int | None:
        """Host clock minus firmware clock, in the middle of the piece; None: not known."""
        pairs = [pair for index in self.ranges for pair in self._pairs(dump, index)]
        if not pairs:
            return None
        middle = sorted(pairs, key=lambda pair: pair.ts_ns)[len(pairs) // 2]
        return middle.host_ns - middle.ts_ns

    def _pairs(self, dump: Dump, index: int) -> list[ClockPair]:
        known = sidecar_of(dump.segments[index])
        if known is None:
            return []
        low, high = self.ranges[index]
        return [
            pair
            for pair in known.clock
            if low - _SLACK_NS <= pair.ts_ns <= high + _SLACK_NS
            and self.parts.get(index, 0) == _part_of(known, pair)
        ]


def _part_of(known: Sidecar, pair: ClockPair) -> int:
    """How many steps of the clock in its file were seen before the pair was taken."""
    steps = getattr(known, "clock_steps", ())
    return sum(1 for step in steps if step.host_ns <= pair.host_ns)


class ClockPieces:
    """Sorts batches into pieces."""

    def __init__(self) -> None:
        self.all: list[ClockPiece] = [ClockPiece(0)]
        self._file = -1
        self._steps_in_file = 0

    def split(self, batch: RecordBatch) -> list[tuple[ClockPiece, int, RecordBatch]]:
        """(piece, byte in the file where its part begins, its rows), in order."""
        if batch.segment != self._file:
            self._file, self._steps_in_file = batch.segment, 0
        rows = batch.offset_rows([step.offset for step in batch.steps])
        begins = [batch.base, *(step.offset for step in batch.steps)]
        edges = [0, *rows, len(batch)]
        found = []
        for number, begin in enumerate(begins):
            if number:
                self._next(begin)
            part = batch.select(np.arange(edges[number], edges[number + 1]))
            if number or len(part) or len(begins) == 1:
                found.append((self._seen(part), begin, part))
        return found

    def _next(self, begin: int) -> None:
        self._steps_in_file += begin > 0
        if self.all[-1].ranges:
            self.all.append(ClockPiece(len(self.all)))

    def _seen(self, part: RecordBatch) -> ClockPiece:
        piece = self.all[-1]
        piece.see(part)
        piece.parts.setdefault(part.segment, self._steps_in_file)
        return piece


def too_late(batch: RecordBatch) -> int:
    """Records whose time no CTF reader can hold."""
    return int(np.count_nonzero(batch.ts_ns > np.uint64(LAST_MOMENT)))

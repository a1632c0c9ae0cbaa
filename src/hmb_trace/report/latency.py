# SPDX-License-Identifier: Apache-2.0
"""Durations of paired events: quantiles, distribution over time, the slowest."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.batch import RecordBatch
from hmb_trace.report.loghist import LogHistogram
from hmb_trace.report.timegrid import TimeGrid

SLOWEST = 20
HEAT_COLUMNS = 128
HEAT_ROWS = 66  # of a layer: one for each power of two of nanoseconds, 0 included
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Slow:
    """One long duration."""

    duration: int  # ns
    ts_ns: int  # of the begin
    seq: int
    cpu: int
    key: str


class Pair:
    """All durations of one kind of pair."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layer = f"latency {name}"
        self.histogram = LogHistogram()
        self.unmatched_begins = 0
        self.unmatched_ends = 0
        self._slowest: list[tuple[int, int, Slow]] = []
        self._number = itertools.count()

    def add(
        self,
        duration: npt.NDArray[np.uint64],
        shown_ns: npt.NDArray[np.uint64],
        grid: TimeGrid,
    ) -> None:
        """Count durations (ns); shown_ns is where each ended, on the report's time axis."""
        if not len(duration):
            return
        self.histogram.add(duration)
        power = np.where(duration > 0, np.frexp(duration.astype(np.float64))[1], 0)
        grid.layer(self.layer, HEAT_ROWS)
        grid.add(self.layer, grid.index(shown_ns), power.astype(np.intp))

    def slow_limit(self) -> int:
        """Durations below this are not among the slowest so far."""
        return self._slowest[0][0] if len(self._slowest) == SLOWEST else -1

    def note_slow(self, slow: Slow) -> None:
        """A candidate for the list of the slowest."""
        heapq.heappush(self._slowest, (slow.duration, -next(self._number), slow))
        if len(self._slowest) > SLOWEST:
            heapq.heappop(self._slowest)

    def heat(self, grid: TimeGrid) -> dict[str, Any]:
        """What the script draws: cells (column, row, count), rows by their lower end in ns."""
        counts = grid.read(self.layer, HEAT_COLUMNS)
        used = np.flatnonzero(counts.sum(axis=1))
        first, last = int(used[0]), int(used[-1])
        part = counts[first : last + 1]
        row, column = np.nonzero(part)
        cells = zip(column.tolist(), row.tolist(), part[row, column].tolist(), strict=True)
        return {
            "rows": [0 if i == 0 else 1 << (i - 1) for i in range(first, last + 1)],
            "columns": counts.shape[1],
            "width_ns": grid.width_ns * grid.merge_factor(HEAT_COLUMNS),
            "cells": [list(cell) for cell in cells],
        }

    def words(self) -> dict[str, Any]:
        """What the template writes; values: min, mean, the quantiles, max, all in ns."""
        h = self.histogram
        return {
            "name": self.name,
            "count": h.count,
            "values": [h.minimum, round(h.mean), *map(h.quantile, QUANTILES), h.maximum],
            "unmatched_begins": self.unmatched_begins,
            "unmatched_ends": self.unmatched_ends,
            "slowest": [slow for *_, slow in sorted(self._slowest, reverse=True)],
        }


class Latencies:
    """Without a catalog nothing pairs."""

    def add(self, batch: RecordBatch, shown_ns: npt.NDArray[np.uint64], grid: TimeGrid) -> None:
        """Pair what a batch holds."""

    def pairs(self) -> list[Pair]:
        """All kinds of pairs, in the order of the catalog."""
        return []

    def forget_open(self) -> None:
        """A new epoch: begins still open will never end."""

# SPDX-License-Identifier: Apache-2.0
"""Durations of paired events: quantiles, distribution over time, the slowest."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.query.durations import DurationRule, duration_rules, pair_names
from hmb_trace.query.histogram import LogHistogram, quarter_start, quarters
from hmb_trace.query.pairing import Paired, Pairing
from hmb_trace.report.timegrid import TimeGrid

U64 = npt.NDArray[np.uint64]
SLOWEST = 20
HEAT_COLUMNS = 128
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Slow:
    """One long duration."""

    duration: int  # ns
    ts_ns: int  # of the begin
    seq: int  # of the record that ended it
    cpu: int  # of the begin
    key: str


class Pair:
    """All durations of one kind of pair."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layer = f"latency {name}"
        self.histogram = LogHistogram()
        self.unmatched_begins = 0
        self.unmatched_ends = 0
        self.uncertain = 0  # they enclose a gap, a new epoch or a clock step
        self.invalid = 0  # carried values that are no duration
        self._slowest: list[tuple[int, int, Slow]] = []
        self._number = itertools.count()

    def add(
        self,
        duration: U64,
        shown_ns: U64,
        grid: TimeGrid,
    ) -> None:
        """Count durations (ns); shown_ns is where each ended, on the report's time axis."""
        if not len(duration):
            return
        self.histogram.add(duration)
        grid.add(self.layer, grid.index(shown_ns), quarters(duration))

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
            "rows": [quarter_start(i) for i in range(first, last + 1)],
            "columns": counts.shape[1],
            "width_ns": grid.width_ns * grid.merge_factor(HEAT_COLUMNS),
            "cells": [list(cell) for cell in cells],
        }

    def words(self) -> dict[str, Any]:
        """What the template writes; spread: min, mean, the quantiles, max, all in ns."""
        h = self.histogram
        return {
            "name": self.name,
            "count": h.count,
            "spread": [h.minimum, round(h.mean), *map(h.quantile, QUANTILES), h.maximum],
            "unmatched_begins": self.unmatched_begins,
            "unmatched_ends": self.unmatched_ends,
            "uncertain": self.uncertain,
            "invalid": self.invalid,
            "slowest": [slow for *_, slow in sorted(self._slowest, reverse=True)],
        }


class Latencies:
    """Pairs begins with ends, and takes the durations that records carry themselves.

    Without a catalog nothing pairs.
    """

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._pairing = Pairing(catalog) if catalog else None
        self._fed = 0
        self._of: dict[int, Pair] = {}  # by opcode: begins and ends of a pair share theirs
        self._keys: dict[int, str] = {}
        self._names = pair_names(catalog) if catalog else {}
        self._complete = duration_rules(catalog)
        for event in catalog or ():
            self._learn(event, catalog)

    def pairs(self) -> list[Pair]:
        """All kinds of pairs, in the order of the catalog."""
        return list(dict.fromkeys(self._of.values()))

    def add(self, batch: RecordBatch, shown_ns: U64, grid: TimeGrid) -> None:
        """Take the durations that end in this batch; its times must fit the grid already."""
        if self._pairing is None or not len(batch):
            return
        paired = self._pairing.feed(batch)
        self._singles(paired)
        for opcode in paired.uncertain["end_opcode"].tolist():
            self._of[opcode].uncertain += 1
        for opcode in np.unique(paired.matches["end_opcode"]).tolist():
            chosen = paired.matches["end_opcode"] == opcode
            matches = paired.matches[chosen]
            ends = (matches["end_row"] - np.uint64(self._fed)).astype(np.intp)
            pair = self._of[opcode]
            durations = paired.durations_ns[chosen]
            pair.add(durations, shown_ns[ends], grid)
            for i in _largest(durations, pair.slow_limit()):
                pair.note_slow(self._slow(matches[i], int(durations[i]), int(batch.seq[ends[i]])))
        for rule in self._complete:
            self._carried(batch, shown_ns, grid, rule)
        self._fed += len(batch)

    def forget_open(self) -> None:
        """The stream ends, or a new epoch begins: begins still open never end."""
        if self._pairing is not None:
            self._singles(self._pairing.finish())

    def _learn(self, event: Event, catalog: Catalog | None) -> None:
        assert catalog is not None
        if event.kind == "begin" and event.pair in catalog.by_name:
            end = catalog.by_name[event.pair]
            self._of[event.opcode] = self._of[end.opcode] = Pair(self._names[event.opcode])
            self._keys[event.opcode] = event.key
        for rule in self._complete:
            if rule.event is event:
                self._of[event.opcode] = Pair(event.name)

    def _singles(self, paired: Paired) -> None:
        for single, count in zip(
            *np.unique(paired.singles[["opcode", "is_end"]], return_counts=True), strict=True
        ):
            pair = self._of[int(single["opcode"])]
            if single["is_end"]:
                pair.unmatched_ends += int(count)
            else:
                pair.unmatched_begins += int(count)

    def _slow(self, match: np.void, duration: int, seq: int) -> Slow:
        key = self._keys[int(match["begin_opcode"])]
        text = "" if key == "cpu" else f"{key}={match['key']}"
        return Slow(duration, int(match["begin_ts_ns"]), seq, int(match["begin_cpu"]), text)

    def _carried(
        self, batch: RecordBatch, shown_ns: U64, grid: TimeGrid, rule: DurationRule
    ) -> None:
        rows, durations, invalid = rule.of(batch)
        pair = self._of[rule.event.opcode]
        pair.invalid += invalid
        pair.add(durations, shown_ns[rows], grid)
        for i in _largest(durations, pair.slow_limit()):
            row = int(rows[i])
            where = (int(batch.ts_ns[row]), int(batch.seq[row]), int(batch.cpu[row]))
            pair.note_slow(Slow(int(durations[i]), *where, key=""))


def _largest(durations: U64, limit: int) -> list[int]:
    """Rows of the durations above limit, as many as the list of the slowest has room for."""
    rows = np.arange(len(durations))
    if limit >= 0:
        rows = np.flatnonzero(durations > np.uint64(limit))
    found: list[int] = rows[np.argsort(durations[rows], kind="stable")[::-1][:SLOWEST]].tolist()
    return found

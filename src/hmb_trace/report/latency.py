# SPDX-License-Identifier: Apache-2.0
"""Durations of paired events: quantiles, distribution over time, the slowest."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import DURATION_UNITS, Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.query.pairing import Paired, Pairing
from hmb_trace.report.loghist import LogHistogram, quarter_start, quarters
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
            "slowest": [slow for *_, slow in sorted(self._slowest, reverse=True)],
        }


@dataclass(frozen=True, slots=True)
class _Own:
    """A duration that records of one opcode carry: nanoseconds = value * mul / div."""

    opcode: int
    field: Field
    mul: int
    div: int

    def nanoseconds(self, values: npt.NDArray[Any]) -> U64:
        """Negative values are 0, those beyond 64 bits saturate."""
        if values.dtype.kind in "ui" and self.mul == self.div:
            whole: U64 = np.maximum(values, 0).astype(np.uint64)
            return whole
        scaled = np.nan_to_num(values.astype(np.float64)) * self.mul / self.div
        clipped: U64 = np.clip(scaled, 0, float(2**64 - 2048)).astype(np.uint64)
        return clipped


class Latencies:
    """Pairs begins with ends, and takes the durations that records carry themselves.

    Without a catalog nothing pairs.
    """

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._pairing = Pairing(catalog) if catalog else None
        self._fed = 0
        self._of: dict[int, Pair] = {}  # by opcode: begins and ends of a pair share theirs
        self._keys: dict[int, str] = {}
        self._complete: list[_Own] = []
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
        for opcode in np.unique(paired.matches["end_opcode"]).tolist():
            chosen = paired.matches["end_opcode"] == opcode
            matches = paired.matches[chosen]
            ends = (matches["end_row"] - np.uint64(self._fed)).astype(np.intp)
            pair = self._of[opcode]
            durations = paired.durations_ns[chosen]
            pair.add(durations, shown_ns[ends], grid)
            for i in _largest(durations, pair.slow_limit()):
                pair.note_slow(self._slow(matches[i], int(durations[i]), int(batch.seq[ends[i]])))
        for own in self._complete:
            self._carried(batch, shown_ns, grid, own)
        self._fed += len(batch)

    def forget_open(self) -> None:
        """The stream ends, or a new epoch begins: begins still open never end."""
        if self._pairing is not None:
            self._singles(self._pairing.finish())

    def _learn(self, event: Event, catalog: Catalog | None) -> None:
        assert catalog is not None
        if event.kind == "begin" and event.pair in catalog.by_name:
            end = catalog.by_name[event.pair]
            self._of[event.opcode] = self._of[end.opcode] = Pair(pair_name(event.name, end.name))
            self._keys[event.opcode] = event.key
        duration = event.field(event.duration) if event.kind == "complete" else None
        if duration is not None:
            unit = DURATION_UNITS[event.duration_unit]
            mul, div = (unit, 1) if unit else (1000, catalog.clock_mhz)
            self._of[event.opcode] = Pair(event.name)
            self._complete.append(_Own(event.opcode, duration, mul, div))

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

    def _carried(self, batch: RecordBatch, shown_ns: U64, grid: TimeGrid, own: _Own) -> None:
        enough = batch.payload_len >= own.field.offset + own.field.size
        rows = np.flatnonzero((batch.opcode == own.opcode) & enough)
        if not len(rows):
            return
        chosen = batch.select(rows)
        durations = own.nanoseconds(chosen.field(own.field.offset, own.field.dtype))
        pair = self._of[own.opcode]
        pair.add(durations, shown_ns[rows], grid)
        for i in _largest(durations, pair.slow_limit()):
            where = (int(chosen.ts_ns[i]), int(chosen.seq[i]), int(chosen.cpu[i]))
            pair.note_slow(Slow(int(durations[i]), *where, key=""))


def pair_name(begin: str, end: str) -> str:
    """What begin and end are both called: nand_read of nand_read_begin and nand_read_end."""
    equal = itertools.takewhile(lambda ab: ab[0] == ab[1], zip(begin, end, strict=False))
    same = sum(1 for _ in equal)
    common = begin[:same].rstrip("_-.: ")
    return common if len(common) >= 2 else f"{begin} to {end}"


def _largest(durations: U64, limit: int) -> list[int]:
    """Rows of the durations above limit, as many as the list of the slowest has room for."""
    rows = np.arange(len(durations))
    if limit >= 0:
        rows = np.flatnonzero(durations > np.uint64(limit))
    found: list[int] = rows[np.argsort(durations[rows], kind="stable")[::-1][:SLOWEST]].tolist()
    return found

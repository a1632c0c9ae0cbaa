# SPDX-License-Identifier: Apache-2.0
"""What one pass over the records collects for the findings; memory is bounded."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace.catalog.events import Event, Field
from hmb_trace.catalog.model import Catalog
from hmb_trace.compare.blocks import Blocked, Clockwork
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.query.durations import pair_names
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.query.pairing import Pairing
from hmb_trace.why.finding import Place

SLOWEST = 4  # kept of each pair
_LONGEST = 4  # silent intervals kept
_ERROR = re.compile(r"(?i)uncorrectable|error|fail|panic|assert|timeout|abort|fatal")
_WARNING = re.compile(r"(?i)retry|warn|corrected|degraded")


@dataclass
class Tally:
    """How often something happened, and where first."""

    count: int = 0
    place: Place = field(default_factory=Place)

    def add(self, batch: RecordBatch, rows: NDArray[np.intp]) -> None:
        """These rows of a batch."""
        if not self.count and len(rows):
            self.place = place_of(batch, int(rows[0]))
        self.count += len(rows)


@dataclass(order=True)
class Span:
    """A pair, or a silent interval; ordered by length."""

    ns: int
    begin_ns: int = field(compare=False)
    end_ns: int = field(compare=False)
    key: int = field(compare=False, default=0)
    core: int = field(compare=False, default=0)
    place: Place = field(compare=False, default_factory=Place)


class Longest:
    """The longest spans of many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[Span] = []

    def least(self) -> int:
        """A span must be longer than this to be kept."""
        return self._heap[0].ns if len(self._heap) == self._most else -1

    def add(self, span: Span) -> None:
        """Keep it if it is long enough."""
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, span)
        elif span.ns > self._heap[0].ns:
            heapq.heapreplace(self._heap, span)

    def ranked(self) -> list[Span]:
        """The longest first."""
        return sorted(self._heap, reverse=True)


def place_of(batch: RecordBatch, row: int) -> Place:
    """Where a row stands."""
    return Place(batch.path, int(batch.offset[row]), int(batch.seq[row]), int(batch.ts_ns[row]))


class Watch:
    """Give it every batch of a capture in turn, then finish().

    Attributes:
        severe: by severity and event name.
        bad_values: by (event, field, value).
        pairs: by name: durations. slowest: the same, the longest ones.
        unended: by name: begins whose end never came although nothing is missing between.
        intervals: between neighbouring records, ns. silent: the longest ones.
        rates: "all": records and ns by block. levels: by counter: count and sum by block.
    """

    def __init__(self, catalog: Catalog | None, expected: int) -> None:
        self.catalog = catalog
        self.severe: dict[tuple[str, str], Tally] = defaultdict(Tally)
        self.bad_values: dict[tuple[str, str, int], Tally] = defaultdict(Tally)
        self.pairs: dict[str, LogHistogram] = defaultdict(LogHistogram)
        self.slowest: dict[str, Longest] = defaultdict(lambda: Longest(SLOWEST))
        self.unended: dict[str, Tally] = defaultdict(Tally)
        self.intervals = LogHistogram()
        self.silent = Longest(_LONGEST)
        self.rates, self.levels = Blocked(2), Blocked(2, limit=256)
        self.clock = Clockwork.for_records(expected)
        for store in (self.rates, self.levels):
            self.clock.on_merge(store.merge)
        self._severities = _severities(catalog)
        self._names = pair_names(catalog) if catalog else {}
        self._pairing = Pairing(catalog) if catalog else None
        self._last: int | None = None  # ts_ns of the record before, in this piece
        self._rows = 0
        self._recent: list[tuple[int, RecordBatch]] = []  # begins are looked up in them

    # -- reading

    def add(self, batch: RecordBatch) -> None:
        """The next records."""
        if not len(batch):
            return
        self._events(batch)
        self._intervals(batch)
        self._blocks(batch)
        if self._pairing:
            self._pair(batch, self._pairing)
        self._rows += len(batch)

    def finish(self) -> None:
        """No more records."""
        if self._pairing:
            self._waiting(self._pairing.finish().singles)

    def _events(self, batch: RecordBatch) -> None:
        for opcode, (severity, name) in self._severities.items():
            rows = np.flatnonzero(batch.opcode == opcode)
            if len(rows):
                self.severe[severity, name].add(batch, rows)
        for event in self.catalog or ():
            for made in event.fields:
                if made.errors:
                    self._values(batch, event, made)

    def _values(self, batch: RecordBatch, event: Event, made: Field) -> None:
        rows = np.flatnonzero(
            (batch.opcode == event.opcode) & (batch.payload_len >= made.offset + made.size)
        )
        if not len(rows):
            return
        picked = replace(batch, offset=batch.offset[rows], payload_len=batch.payload_len[rows])
        values = picked.field(made.offset, made.dtype)
        for value in made.errors:
            hit = rows[values == value]
            if len(hit):
                self.bad_values[event.name, made.name, value].add(batch, hit)

    def _intervals(self, batch: RecordBatch) -> None:
        edges = batch.cut_rows().tolist()
        begin = 0
        for end in [*edges, len(batch)]:
            if end > begin:
                self._piece(batch, begin, end)
            if end in edges:
                self._last = None
            begin = end

    def _piece(self, batch: RecordBatch, begin: int, end: int) -> None:
        ts = batch.ts_ns[begin:end]
        times = ts if self._last is None else np.concatenate([np.array([self._last], "u8"), ts])
        self._last = int(ts[-1])
        steps = np.where(times[1:] > times[:-1], times[1:] - times[:-1], 0).astype("u8")
        self.intervals.add(steps)
        largest = np.argsort(steps)[-_LONGEST:]
        for i in largest[steps[largest] > max(self.silent.least(), 0)].tolist():
            row = begin + i + (len(ts) - len(steps))
            ends = int(batch.ts_ns[row])
            ns = int(steps[i])
            self.silent.add(Span(ns, ends - ns, ends, place=place_of(batch, row)))

    def _blocks(self, batch: RecordBatch) -> None:
        begin = 0
        while begin < len(batch):
            end = min(len(batch), begin + self.clock.room())
            part = batch.select(slice(begin, end))
            passed = max(int(part.ts_ns[-1]) - int(part.ts_ns[0]), 0)
            self.rates.add("all", self.clock.block, np.array([len(part), passed]))
            for event in self.catalog or ():
                if event.kind == "counter":
                    self._level(part, event)
            self.clock.advance(end - begin)
            begin = end

    def _level(self, part: RecordBatch, event: Event) -> None:
        made = event.field(event.value)
        if made is None:
            return
        rows = (part.opcode == event.opcode) & (part.payload_len >= made.offset + made.size)
        if rows.any():
            values = part.select(rows).field(made.offset, made.dtype).astype("f8")
            values = values[np.isfinite(values)]
            self.levels.add(event.name, self.clock.block, np.array([len(values), values.sum()]))

    # -- pairs

    def _pair(self, batch: RecordBatch, pairing: Pairing) -> None:
        paired = pairing.feed(batch)
        matches, spans = paired.matches, paired.durations_ns
        for opcode in np.unique(matches["begin_opcode"]).tolist():
            mine = np.flatnonzero(matches["begin_opcode"] == opcode)
            name = self._names.get(opcode, f"{opcode:#06x}")
            self.pairs[name].add(spans[mine])
            keep = self.slowest[name]
            for i in mine[np.argsort(spans[mine])[::-1][:SLOWEST]].tolist():
                if int(spans[i]) > keep.least():
                    keep.add(self._span(batch, matches[i], int(spans[i])))
        if not len(batch.cuts):
            self._waiting(paired.singles)

    def _span(self, batch: RecordBatch, match: Any, ns: int) -> Span:
        row = int(match["end_row"]) - self._rows
        return Span(
            ns,
            int(match["begin_ts_ns"]),
            int(match["end_ts_ns"]),
            int(match["key"]),
            int(match["begin_cpu"]),
            place_of(batch, row),
        )

    def _waiting(self, singles: NDArray[np.void]) -> None:
        """Begins that lost their end, if they have waited far longer than any other."""
        for single in singles[singles["is_end"] == 0]:
            name = self._names.get(int(single["opcode"]), f"{int(single['opcode']):#06x}")
            known = self.pairs.get(name)
            age = (self._last or 0) - int(single["ts_ns"])
            if known is None or known.count < 20 or age < 4 * known.maximum:
                continue
            tally = self.unended[name]
            if not tally.count:
                tally.place = Place(ts_ns=int(single["ts_ns"]))
            tally.count += 1


def _severities(catalog: Catalog | None) -> dict[int, tuple[str, str]]:
    """Severity and name of the events that are worth a finding."""
    events = list(catalog or ())
    if any(event.severity for event in events):
        found = {e.opcode: (e.severity, e.name) for e in events}
    else:  # a catalog that says nothing: what the names say
        found = {e.opcode: (_by_name(e.name), e.name) for e in events}
    return {opcode: one for opcode, one in found.items() if one[0] in ("error", "warning")}


def _by_name(name: str) -> str:
    if _ERROR.search(name) and not _WARNING.search(name):
        return "error"
    return "warning" if _WARNING.search(name) else ""

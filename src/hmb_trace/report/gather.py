# SPDX-License-Identifier: Apache-2.0
"""One streaming pass over the dumps: everything the report shows, in bounded memory."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.account import Account, Accountant
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.places import Place
from hmb_trace.dumps.sidecar import Damaged, Sidecar
from hmb_trace.dumps.walker import Walker
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.report.counters import Counters
from hmb_trace.report.latency import Latencies
from hmb_trace.report.sample import Sampler
from hmb_trace.report.timegrid import TimeGrid

GAPS_LISTED = 500
BREAKS_KEPT = 100_000
MARKS_DRAWN = 200
OPCODE_ROWS = 64  # opcodes with a history of their own; the rest share the last row
CPU_ROWS = 64
U64 = npt.NDArray[np.uint64]


class _Rows:
    """Gives each value that turns up a row of a layer, the late ones share the last."""

    def __init__(self, values: int, rows: int) -> None:
        self._row = np.full(values, -1, np.intp)
        self._rows = rows
        self.known: list[int] = []

    def of(self, values: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.intp]:
        row = self._row[values]
        if (row < 0).any():
            for value in np.unique(values[row < 0]).tolist():
                self._row[value] = min(len(self.known), self._rows)
                if len(self.known) < self._rows:
                    self.known.append(value)
            row = self._row[values]
        found: npt.NDArray[np.intp] = row
        return found


@dataclass
class FileFacts:
    """What is known about one file of the dump."""

    name: str
    records: int = 0
    bytes: int = 0
    lost: int = 0
    gaps: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    sidecar: Sidecar | None = None


@dataclass(frozen=True, slots=True)
class GapFacts:
    """A place where records are missing, and where it stands on the time axis."""

    place: Place
    shown_ns: int  # of the record after it
    before_ns: int  # of the record before it


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the time axis at which the firmware's clock is another."""

    shown_ns: int
    text: str


@dataclass
class Findings:
    """What the pass found. Times are nanoseconds, sizes bytes."""

    walker: Walker
    grid: TimeGrid
    latencies: Latencies
    counters: Counters
    files: list[FileFacts] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    gaps: list[GapFacts] = field(default_factory=list)  # the largest, in the order of the dump
    marks: list[Mark] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    opcode_bytes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(65536, np.int64))
    opcode_records: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(65536, np.int64))
    cpu_opcode: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    cpu_bytes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    opcode_payload: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(65536, np.int64))
    payload: LogHistogram = field(default_factory=LogHistogram)
    interval: LogHistogram = field(default_factory=LogHistogram)
    sampler: Sampler = field(default_factory=Sampler)
    opcodes: _Rows = field(default_factory=lambda: _Rows(65536, OPCODE_ROWS))
    cpus: _Rows = field(default_factory=lambda: _Rows(256, CPU_ROWS))
    bytes: int = 0
    backwards: int = 0  # records whose clock stands before that of the record before
    first_shown_ns: int | None = None  # on the report's time axis
    last_shown_ns: int = 0

    @property
    def elapsed_ns(self) -> int:
        """From the earliest to the latest record on the time axis."""
        return 0 if self.first_shown_ns is None else self.last_shown_ns - self.first_shown_ns


class Gatherer:
    """Runs the pass. Bounded memory, whatever the size of the dump."""

    def __init__(self, dump: Dump, catalog: Catalog | None = None, *, slots: int = 1024) -> None:
        self.dump = dump
        self._accountant = Accountant(dump)
        walker = self._accountant.walker
        self.found = Findings(walker, TimeGrid(slots), Latencies(catalog), Counters(catalog))
        self._file = -1
        self._shift = 0  # added to the clock of a piece so that pieces follow each other
        self._last_shown: int | None = None
        self._breaks: dict[tuple[int, int], tuple[int, int]] = {}  # times before and after it

    def run(self) -> Findings:
        """Read everything.

        Raises:
            HmbTraceError: a file cannot be read; damage is an alert, not an exception.
        """
        for batch in self.dump.batches(markers=False, partial=True, walker=self.found.walker):
            self._enter(batch)
            self._take(batch)
        self._skip_to(len(self.dump.segments))
        self.found.latencies.forget_open()
        self.found.alerts += [f"{p.path}: {p.reason}" for p in self.dump.problems]
        self.found.account = self._accountant.finish()
        self._losses()
        return self.found

    def _enter(self, batch: RecordBatch) -> None:
        if batch.segment != self._file:
            self._skip_to(batch.segment + 1)

    def _skip_to(self, end: int) -> None:
        for segment in self.dump.segments[self._file + 1 : end]:
            self.found.files.append(FileFacts(segment.name, sidecar=segment.known))
            if isinstance(segment.sidecar, Damaged):
                self.found.alerts.append(str(segment.sidecar.error))
        self._file = end - 1

    def _take(self, batch: RecordBatch) -> None:
        facts = self.found.files[-1]
        facts.bytes += len(batch.buffer)
        self.found.bytes += len(batch.buffer)
        if not len(batch):
            return
        facts.records += len(batch)
        if facts.first_seq is None:
            facts.first_seq = int(batch.seq[0])
        facts.last_seq = int(batch.seq[-1])
        shown, begins = self._shown(batch)
        self._count(batch, shown)
        self._intervals(shown, begins)
        gap_rows = self._note_breaks(batch, shown)
        self.found.sampler.add(batch, shown, gap_rows)
        self.found.latencies.add(batch, shown, self.found.grid)
        self._last_shown = int(shown[-1])

    def _shown(self, batch: RecordBatch) -> tuple[U64, list[int]]:
        """Times on the axis, where each piece of the clock goes on from the one before it (R16).

        Also the rows at which a piece begins.
        """
        rows = batch.offset_rows([step.offset for step in batch.steps])
        shown = np.empty(len(batch), np.uint64)
        edges = [0, *rows, len(batch)]
        last = self._last_shown
        for number, (begin, end) in enumerate(itertools.pairwise(edges)):
            step = batch.steps[number - 1] if number else None
            if step is not None and last is not None:
                self._shift = (last + 1 - step.ts_after) % (1 << 64)
                self._mark(last + 1, epoch=step.epoch)
            shown[begin:end] = batch.ts_ns[begin:end] + np.uint64(self._shift)
            if end > begin:
                last = int(shown[end - 1])
        return shown, [row for row in rows if row < len(batch)]

    def _mark(self, shown_ns: int, *, epoch: bool) -> None:
        if len(self.found.marks) < MARKS_DRAWN:
            self.found.marks.append(Mark(shown_ns, "new epoch" if epoch else "clock step"))

    def _count(self, batch: RecordBatch, shown: U64) -> None:
        found = self.found
        low, high = int(shown.min()), int(shown.max())
        first = found.first_shown_ns
        found.first_shown_ns = low if first is None else min(low, first)
        found.last_shown_ns = max(high, found.last_shown_ns)
        size = (RECORD_HDR_SIZE + ((batch.payload_len.astype(np.int64) + 7) & ~7)).astype(float)
        slot = found.grid.index(shown)
        found.grid.add("records", slot)
        found.grid.add("bytes", slot, weight=size)
        found.grid.add("opcode", slot, found.opcodes.of(batch.opcode))
        found.counters.add(batch, slot, found.grid)
        found.grid.add("cpu", slot, found.cpus.of(batch.cpu))
        found.opcode_records += np.bincount(batch.opcode, minlength=65536)
        found.opcode_payload += np.bincount(batch.opcode, batch.payload_len, 65536).astype(np.int64)
        found.opcode_bytes += np.bincount(batch.opcode, size, 65536).astype(np.int64)
        found.cpu_bytes += np.bincount(batch.cpu, size, 256).astype(np.int64)
        for cpu in np.flatnonzero(np.bincount(batch.cpu, minlength=256)).tolist():
            counts = np.bincount(batch.opcode[batch.cpu == cpu], minlength=65536)
            found.cpu_opcode[cpu] = found.cpu_opcode.get(cpu, 0) + counts
        found.payload.add(batch.payload_len.astype(np.uint64))

    def _intervals(self, shown: U64, begins: list[int]) -> None:
        """Times between neighbours of one piece."""
        first = shown[0] if self._last_shown is None else np.uint64(self._last_shown)
        before = np.append(first, shown[:-1])
        forward = shown >= before
        self.found.backwards += int(len(forward) - np.count_nonzero(forward))
        forward[begins] = False
        forward[0] &= self._last_shown is not None
        self.found.interval.add((shown - before)[forward])

    def _note_breaks(self, batch: RecordBatch, shown: U64) -> npt.NDArray[np.intp]:
        """Remember where the sequence breaks; the rows after each break."""
        offsets = batch.cuts.tolist()
        rows = [min(row, len(batch) - 1) for row in batch.offset_rows(offsets)]
        for row, offset in zip(rows, offsets, strict=True):
            if len(self._breaks) < BREAKS_KEPT:
                last = int(shown[0]) if self._last_shown is None else self._last_shown
                before = int(shown[row - 1]) if row else last
                self._breaks[batch.segment, offset] = before, int(shown[row])
        return np.array(sorted(set(rows)), np.intp)

    def _losses(self) -> None:
        """Put what the account says is missing on the time axis."""
        found = self.found
        gaps = []
        for place in found.account.places:
            if not place.is_loss or not (place.lost or place.rejected or place.lost is None):
                continue
            facts = found.files[place.segment]
            facts.gaps += bool(place.lost)
            facts.lost += place.lost or 0
            at = (
                self._breaks.get((place.segment, place.offset))
                if place.offset is not None
                else None
            )
            if at is not None:
                gaps.append(GapFacts(place, at[1], at[0]))
        if gaps:
            slot = found.grid.index(np.array([gap.shown_ns for gap in gaps], np.uint64))
            weight = np.array([float(gap.place.lost or 0) for gap in gaps])
            found.grid.add("lost", slot, weight=weight)
        largest = heapq.nlargest(GAPS_LISTED, gaps, key=lambda gap: gap.place.lost or 0)
        found.gaps = sorted(largest, key=lambda gap: gap.place.order)

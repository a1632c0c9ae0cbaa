# SPDX-License-Identifier: Apache-2.0
"""One streaming pass over the dumps: everything the report shows, in bounded memory."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps import sidecar as sidecars
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import known_losses
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import Gap, Sidecar
from hmb_trace.dumps.walker import BreakKind, SequenceBreak, Walker
from hmb_trace.errors import HmbTraceError
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.report.counters import Counters
from hmb_trace.report.latency import Latencies
from hmb_trace.report.sample import Sampler
from hmb_trace.report.timegrid import TimeGrid

GAPS_LISTED = 500
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


@dataclass(order=True)
class GapFacts:
    """One gap; ordered by how much it lost, then by how early it came."""

    lost: int
    order: int  # minus the number of the gap, so that of equals the first is the larger
    rejected: int = field(compare=False)
    found: SequenceBreak = field(compare=False)
    shown_ns: int = field(compare=False)  # of the record after it
    before_ns: int = field(compare=False)  # of the record before it
    cause: str = field(compare=False)


@dataclass
class Findings:
    """What the pass found. Times are nanoseconds, sizes bytes."""

    walker: Walker
    grid: TimeGrid
    latencies: Latencies
    counters: Counters
    files: list[FileFacts] = field(default_factory=list)
    gaps: list[GapFacts] = field(default_factory=list)  # a heap of the largest
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
    gaps_total: int = 0  # as `hmb-trace info` counts them: rejects subtracted
    lost: int = 0
    backwards: int = 0  # records whose clock stands before that of the record before
    epochs: int = 1
    first_shown_ns: int | None = None  # on the report's time axis
    last_shown_ns: int = 0

    @property
    def rejected(self) -> int:
        """Records that the sequence numbers miss but the rejects files hold."""
        return max(0, int(self.walker.lost) - self.lost)

    @property
    def elapsed_ns(self) -> int:
        """From the earliest to the latest record on the time axis."""
        return 0 if self.first_shown_ns is None else self.last_shown_ns - self.first_shown_ns

    @property
    def unknown_losses(self) -> int:
        """Overflow episodes of which nobody knows what they cost (R5)."""
        cars = [f.sidecar for f in self.files if f.sidecar]
        return sum(episode.lost is None for car in cars for episode in car.episodes)

    @property
    def complete(self) -> bool:
        """No truncated end, and every sidecar that there is says complete."""
        cars = [f.sidecar for f in self.files if f.sidecar]
        return not self.alerts and all(car.complete for car in cars)


class Gatherer:
    """Runs the pass. Bounded memory, whatever the size of the dump."""

    def __init__(self, dump: Dump, catalog: Catalog | None = None, *, slots: int = 1024) -> None:
        self.dump = dump
        walker = Walker(keep_breaks=True)
        self.found = Findings(walker, TimeGrid(slots), Latencies(catalog), Counters(catalog))
        self._gap_number = itertools.count(1)
        self._file = -1
        self._shift = 0  # added to the clock of an epoch so that epochs follow each other
        self._last_shown: int | None = None
        self._told: dict[tuple[int, int], Gap] = {}
        self._untold_rejected = False

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
        self.found.gaps_total, self.found.lost = known_losses(self.dump, self.found.walker)
        self.found.alerts += [f"{p.path}: {p.reason}" for p in self.dump.problems]
        return self.found

    def _enter(self, batch: RecordBatch) -> None:
        if batch.segment == self._file:
            return
        before = self.found.files[-1].sidecar if self.found.files else None
        self._skip_to(batch.segment + 1)
        now = self.found.files[-1].sidecar
        if before and now and before.epoch != now.epoch:
            self.found.epochs += 1
            self._new_epoch(batch)

    def _new_epoch(self, batch: RecordBatch) -> None:
        """A clock that started anew goes on where the epoch before it ended."""
        if self._last_shown is None or not len(batch):
            return
        first = int(batch.ts_ns[0])
        self._shift = max(0, self._last_shown + 1 - first)
        self.found.latencies.forget_open()

    def _skip_to(self, end: int) -> None:
        for segment in self.dump.segments[self._file + 1 : end]:
            self.found.files.append(FileFacts(segment.name, sidecar=self._sidecar(segment)))
        self._file = end - 1
        car = self.found.files[-1].sidecar if self.found.files else None
        self._told = {(g.seq_before, g.seq_after): g for g in car.gap_list} if car else {}
        # A gap that the collector did not see as one: it rejected those records (R10).
        self._untold_rejected = car is not None and not car.list_truncated

    def _sidecar(self, segment: Segment) -> Sidecar | None:
        if segment.path is None:
            return None
        try:
            return sidecars.find(segment.path)
        except HmbTraceError as error:
            self.found.alerts.append(str(error))
            return None

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
        shown: U64 = batch.ts_ns + np.uint64(self._shift) if self._shift else batch.ts_ns
        self._count(batch, shown)
        self._intervals(shown)
        gap_rows = self._gaps(batch, shown)
        self.found.sampler.add(batch, shown, gap_rows)
        self.found.latencies.add(batch, shown, self.found.grid)
        self._last_shown = int(shown[-1])

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

    def _intervals(self, shown: U64) -> None:
        times = shown
        if self._last_shown is not None:
            times = np.append(np.uint64(self._last_shown), shown)
        forward = times[1:] >= times[:-1]
        self.found.backwards += int(len(forward) - np.count_nonzero(forward))
        self.found.interval.add((times[1:] - times[:-1])[forward])

    def _gaps(self, batch: RecordBatch, shown: U64) -> npt.NDArray[np.intp]:
        breaks = [b for b in self.found.walker.breaks or () if b.kind is BreakKind.GAP]
        if self.found.walker.breaks:
            self.found.walker.breaks.clear()
        if not breaks:
            return np.empty(0, np.intp)
        offsets = np.array([b.offset for b in breaks], np.uint64)
        rows = np.minimum(np.searchsorted(batch.offset, offsets), len(batch) - 1)
        first = int(shown[0]) if self._last_shown is None else self._last_shown
        before = np.append(np.uint64(first), shown[:-1])
        lost = [
            self._one_gap(gap, int(shown[row]), int(before[row]))
            for gap, row in zip(breaks, rows.tolist(), strict=True)
        ]
        slot = self.found.grid.index(shown[rows])
        self.found.grid.add("lost", slot, weight=np.array(lost, float))
        return rows

    def _one_gap(self, gap: SequenceBreak, shown_ns: int, before_ns: int) -> int:
        """Note a gap; how many records it lost, those in the rejects not counted."""
        told = self._told.get((gap.seq_before, gap.seq_after))
        if told:
            lost, rejected, cause = told.lost, told.rejected, told.cause
        elif self._untold_rejected:
            lost, rejected, cause = 0, gap.lost, "rejected"
        else:
            lost, rejected, cause = gap.lost, 0, "gap"
        facts = self.found.files[-1]
        facts.gaps += lost > 0
        facts.lost += lost
        order = -next(self._gap_number)
        entry = GapFacts(lost, order, rejected, gap, shown_ns, before_ns, cause)
        heapq.heappush(self.found.gaps, entry)
        if len(self.found.gaps) > GAPS_LISTED:
            heapq.heappop(self.found.gaps)
        return lost

# SPDX-License-Identifier: Apache-2.0
"""What is counted of a capture, block by block: events, order, payloads, durations, intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace.catalog.events import Event, Field
from hmb_trace.catalog.model import Catalog
from hmb_trace.compare.blocks import BLOCKS, Blocked, Clockwork
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.query.durations import DurationRule
from hmb_trace.query.pairing import Pairing

# Log-linear histograms of unsigned values: 8 buckets an octave.
SUB = 3
BUCKETS = (65 - SUB) << SUB
COARSE = 1  # two buckets of these make one of a key's histogram
CATEGORIES = 64  # values below this are counted one by one
KEYS = 256  # of a pair: more are no dies or queues, and are taken together
SAMPLE = 2048  # rows of a chunk whose bits are looked at
GRAMS = 1 << 14
_WORDS = 4  # 64-bit words of a payload without a catalog


def bucket_of(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The log-linear bucket of each value."""
    # A double rounds up near 2^k for large values: at most one bucket off, on both sides alike.
    exponent = np.maximum(np.frexp(values.astype("f8"))[1].astype("i8") - 1 - SUB, 0)
    found: NDArray[np.int64] = (exponent << SUB) + (values >> exponent.astype("u8")).astype("i8")
    return found


def bucket_edge(bucket: int) -> int:
    """The smallest value of a bucket."""
    if bucket < 2 << SUB:
        return bucket
    exponent = (bucket >> SUB) - 1
    return ((bucket & ((1 << SUB) - 1)) + (1 << SUB)) << exponent


def _sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([len(values), values.sum(), values @ values, np.log2(1 + np.abs(values)).sum()])


class Numbers:
    """Values by key: count, sum and a histogram in each block."""

    def __init__(self, limit: int = 4096) -> None:
        self.sums = Blocked(4, limit=limit)  # count, sum, sum of squares, sum of log2(1 + |x|)
        self.histograms = Blocked(BUCKETS, limit=limit)

    def add(self, key: Any, block: int, values: NDArray[Any]) -> None:
        """Count the values (any number type) under the key."""
        floats = values.astype("f8")
        self.sums.add(key, block, _sums(floats))
        magnitudes = np.abs(floats).astype("u8") if values.dtype.kind != "u" else values
        counted = np.bincount(bucket_of(magnitudes.astype("u8")), minlength=BUCKETS)
        self.histograms.add(key, block, counted[:BUCKETS])


class KeyedNumbers:
    """Values by a key of few different values (die, queue, core), all keys at once."""

    def __init__(self) -> None:
        self.keys: dict[int, int] = {}  # key: column
        self.sums = np.zeros((BLOCKS, KEYS, 3))  # count, sum, sum of log2(1 + x)
        self.histograms = np.zeros((BLOCKS, KEYS, BUCKETS >> COARSE), "u4")
        self.too_many = False

    def add(self, block: int, keys: NDArray[Any], values: NDArray[np.uint64]) -> None:
        """Count values[i] under keys[i]."""
        names, places = np.unique(keys, return_inverse=True)
        if self.too_many or len(self.keys.keys() | set(names.tolist())) > KEYS:
            self.too_many = True
            return
        columns = np.array([self.keys.setdefault(n, len(self.keys)) for n in names.tolist()])
        column = columns[places]
        self.sums[block, :, 0] += np.bincount(column, minlength=KEYS)
        floats = values.astype("f8")
        self.sums[block, :, 1] += np.bincount(column, floats, KEYS)
        self.sums[block, :, 2] += np.bincount(column, np.log2(1 + floats), KEYS)
        width = self.histograms.shape[2]
        cells = np.bincount(column * width + (bucket_of(values) >> COARSE))
        self.histograms[block].reshape(-1)[: len(cells)] += cells.astype("u4")

    def merge(self) -> None:
        """Halve the number of blocks in use."""
        for array in (self.sums, self.histograms):
            array[: BLOCKS // 2] = array[0::2] + array[1::2]
            array[BLOCKS // 2 :] = 0


class Measurement:
    """One capture, or several that belong together, counted in blocks of its records.

    Args:
        expected: records that will come; None: not known.
    """

    def __init__(self, catalog: Catalog | None, expected: int | None = None) -> None:
        self.catalog = catalog
        self.clock = Clockwork.for_records(expected)
        self.blocks = Blocked(3)  # "all": records, nanoseconds, losses
        self.opcodes = Blocked()
        self.cores = Blocked()  # (cpu, opcode)
        self.grams = Blocked(limit=GRAMS)  # (opcode, next opcode on the same core)
        self.lengths = Numbers()  # opcode
        self.fields = Numbers()  # (opcode, field)
        self.bits = Blocked(65)  # (opcode, field): rows looked at, then rows with bit i set
        self.categories = Blocked(CATEGORIES + 1)  # (opcode, field): the last one is "larger"
        self.texts = Blocked(limit=4096)  # (opcode, field, text)
        self.spans = Numbers()  # opcode that begins the pair, or of a complete event: ns
        self.spans_by: dict[tuple[int, str], KeyedNumbers] = {}  # the same by "key" or "core"
        self.intervals = Numbers()  # opcode: ns since the one before
        self.first_ns: dict[int, int] = {}  # opcode: since the start of the capture
        self.samples: dict[int, list[int]] = {}  # opcode: seqs of the first few
        self.records = 0
        self.elapsed_ns = 0
        for store in self._stores():
            self.clock.on_merge(store.merge)
        self._capture: _Capture | None = None

    def _stores(self) -> Iterator[Blocked]:
        for value in vars(self).values():
            if isinstance(value, Blocked):
                yield value
            elif isinstance(value, Numbers):
                yield from (value.sums, value.histograms)

    def begin_capture(self) -> None:
        """What comes next has nothing to do with what came before."""
        self._capture = _Capture(self)

    def begin_piece(self) -> None:
        """A gap, an epoch or a clock step: nothing is computed across it (SPEC R16)."""
        assert self._capture is not None
        self._capture.new_piece()

    def mark_loss(self) -> None:
        """Records are missing in the current block."""
        self.blocks.add("all", self.clock.block, np.array([0, 0, 1]))

    def add(self, batch: RecordBatch) -> None:
        """Count the next records, of one piece."""
        assert self._capture is not None
        begin = 0
        while begin < len(batch):
            end = min(len(batch), begin + self.clock.room())
            chunk = batch.select(slice(begin, end)) if end - begin < len(batch) else batch
            self._capture.add(chunk, self.clock.block)
            self.clock.advance(end - begin)
            self.records += end - begin
            begin = end


class _Capture:
    """The state of one capture while it is read."""

    def __init__(self, into: Measurement) -> None:
        self._into = into
        self._pairing = Pairing(into.catalog) if into.catalog else None
        self._last_ts: int | None = None
        self._last_of: dict[int, int] = {}  # opcode: ts_ns of its last record
        self._last_on: dict[int, int] = {}  # cpu: its last opcode

    def new_piece(self) -> None:
        self._last_ts = None
        self._last_of.clear()
        self._last_on.clear()
        if self._pairing:
            self._pairing.finish()

    def add(self, chunk: RecordBatch, block: int) -> None:
        self._time(chunk, block)
        self._order(chunk, block)
        ts = chunk.ts_ns
        by_opcode = np.argsort(chunk.opcode, kind="stable")
        counts = np.bincount(chunk.opcode)
        ends = np.cumsum(counts)
        for opcode in np.flatnonzero(counts).tolist():
            rows = by_opcode[ends[opcode] - counts[opcode] : ends[opcode]]
            self._into.opcodes.add(opcode, block, float(counts[opcode]))
            self._interval(opcode, ts[rows], block)
            self._payloads(chunk, opcode, rows, block)
        if self._pairing:
            self._pairs(chunk, block)

    def _time(self, chunk: RecordBatch, block: int) -> None:
        ts = chunk.ts_ns
        begin = int(ts[0]) if self._last_ts is None else self._last_ts
        passed = max(int(ts[-1]) - begin, 0)
        self._last_ts = int(ts[-1])
        self._into.elapsed_ns += passed
        self._into.blocks.add("all", block, np.array([len(chunk), passed, 0]))

    def _order(self, chunk: RecordBatch, block: int) -> None:
        by_cpu = np.argsort(chunk.cpu, kind="stable")
        cpus, opcodes = chunk.cpu[by_cpu], chunk.opcode[by_cpu].astype("i8")
        starts = np.flatnonzero(np.concatenate([[True], cpus[1:] != cpus[:-1]]))
        for begin, end in zip(starts, [*starts[1:], len(cpus)], strict=True):
            cpu, mine = int(cpus[begin]), opcodes[begin:end]
            before = self._last_on.get(cpu)
            self._last_on[cpu] = int(mine[-1])
            _count(self._into.cores, block, mine, lambda op, cpu=cpu: (cpu, op))
            if before is not None:
                mine = np.concatenate([[before], mine])
            _count(
                self._into.grams,
                block,
                mine[:-1] << 16 | mine[1:],
                lambda gram: (gram >> 16, gram & 0xFFFF),
            )

    def _interval(self, opcode: int, ts: NDArray[np.uint64], block: int) -> None:
        into = self._into
        into.first_ns.setdefault(opcode, into.elapsed_ns)
        last = self._last_of.get(opcode)
        self._last_of[opcode] = int(ts[-1])
        times = ts if last is None else np.concatenate([np.array([last], "u8"), ts])
        steps = times[1:] - times[:-1]
        if len(steps):
            into.intervals.add(opcode, block, steps[steps < np.uint64(1 << 62)])

    # -- payloads

    def _payloads(
        self, chunk: RecordBatch, opcode: int, rows: NDArray[np.int64], block: int
    ) -> None:
        into = self._into
        picked = replace(chunk, offset=chunk.offset[rows], payload_len=chunk.payload_len[rows])
        into.lengths.add(opcode, block, picked.payload_len)
        seqs = into.samples.setdefault(opcode, [])
        if len(seqs) < 8:
            seqs.extend(chunk.seq[rows[: 8 - len(seqs)]].tolist())
        event = into.catalog.get(opcode) if into.catalog else None
        for made in event.fields if event else _words(picked):
            self._field(picked, opcode, made, event, block)

    def _field(
        self, picked: RecordBatch, opcode: int, made: Field, event: Event | None, block: int
    ) -> None:
        into = self._into
        there = picked.payload_len >= made.offset + made.size
        if not there.all():
            picked = replace(
                picked, offset=picked.offset[there], payload_len=picked.payload_len[there]
            )
        if not len(picked):
            return
        values = picked.field(made.offset, made.dtype)
        key = (opcode, made.name)
        if made.type.startswith("char"):
            for text, count in zip(*np.unique(values[:SAMPLE], return_counts=True), strict=True):
                into.texts.add((*key, bytes(text)), block, float(count))
            return
        if made.type.startswith("bytes"):
            return
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        if len(values):
            into.fields.add(key, block, values)
        if made.is_integer and len(values):
            self._integer(key, values, block)

    def _integer(self, key: tuple[int, str], values: NDArray[Any], block: int) -> None:
        small = np.minimum(values.astype("u8"), np.uint64(CATEGORIES)).astype("i8")
        counted = np.bincount(small, minlength=CATEGORIES + 1)
        self._into.categories.add(key, block, counted)
        sample = np.ascontiguousarray(values[:: max(1, len(values) // SAMPLE)])
        bits = np.unpackbits(
            sample.view("u1").reshape(len(sample), -1), axis=1, bitorder="little"
        ).sum(axis=0, dtype="f8")
        self._into.bits.add(
            key, block, np.concatenate([[len(sample)], bits, np.zeros(64 - len(bits))])
        )

    # -- pairs

    def _pairs(self, chunk: RecordBatch, block: int) -> None:
        assert self._pairing is not None and self._into.catalog is not None
        paired = self._pairing.feed(chunk)
        spans, matches = paired.durations_ns, paired.matches
        for opcode in np.unique(matches["begin_opcode"]).tolist():
            mine = matches["begin_opcode"] == opcode
            found = spans[mine]
            self._into.spans.add(opcode, block, found)
            self._by(opcode, "key", matches["key"][mine], found, block)
            self._by(opcode, "core", matches["begin_cpu"][mine], found, block)
        for event in self._into.catalog:
            if event.kind == "complete" and event.duration:
                self._complete(chunk, event, block)

    def _by(
        self, opcode: int, which: str, keys: NDArray[Any], spans: NDArray[np.uint64], block: int
    ) -> None:
        into = self._into
        store = into.spans_by.get((opcode, which))
        if store is None:
            store = into.spans_by[opcode, which] = KeyedNumbers()
            into.clock.on_merge(store.merge)
        store.add(block, keys, spans)

    def _complete(self, chunk: RecordBatch, event: Event, block: int) -> None:
        assert self._into.catalog is not None
        values = DurationRule(event, self._into.catalog.clock_mhz).of(chunk).ns
        if len(values):
            self._into.spans.add(event.opcode, block, values)


def _count(store: Blocked, block: int, codes: NDArray[np.int64], key_of: Any) -> None:
    if not len(codes):
        return
    found, counts = np.unique(codes, return_counts=True)
    for code, count in zip(found.tolist(), counts.tolist(), strict=True):
        store.add(key_of(code), block, float(count))


def _words(batch: RecordBatch) -> list[Field]:
    """Payloads of an unknown event as 64-bit words, as far as all of them reach."""
    shortest = int(batch.payload_len.min())
    return [Field(f"word{i}", "u64", 8 * i, 8) for i in range(min(_WORDS, shortest // 8))]

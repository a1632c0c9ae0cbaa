# SPDX-License-Identifier: Apache-2.0
"""Statistics of dumps: rates, opcodes, cpus, histograms, durations of paired events, losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import known_losses
from hmb_trace.dumps.pieces import Elapsed
from hmb_trace.dumps.walker import Tally, Walker
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.query import durations
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.query.pairing import Pairing
from hmb_trace.query.select import Selection

_POWERS = np.array([1 << i for i in range(64)], "u8")


def log2_bucket(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """0 for 0, else i for [2^(i-1), 2^i): the buckets of struct hmb_tally."""
    return np.searchsorted(_POWERS, values.astype("u8"), side="right")


@dataclass
class Latency:
    """Durations of one name.

    Attributes:
        uncertain: pairs that enclose a gap, a new epoch or a clock step; not in the histogram.
        invalid: carried values that are no duration; not in the histogram either.
    """

    histogram: LogHistogram = field(default_factory=LogHistogram)
    uncertain: int = 0
    invalid: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The histogram's numbers, and how many it lacks."""
        counts = {"uncertain": self.uncertain, "invalid": self.invalid}
        return durations.as_dict(self.histogram) | counts


@dataclass
class Statistics:
    """Everything that one pass counted; times in ns, sizes in bytes."""

    walker: Walker
    tally: Tally
    bytes: int = 0
    gaps: int = 0
    lost: int = 0
    durations: dict[str, Latency] = field(default_factory=dict)
    unmatched_begins: int = 0
    unmatched_ends: int = 0
    uncertain: int = 0
    elapsed: Elapsed = field(default_factory=Elapsed)

    @property
    def span_ns(self) -> int:
        """Firmware time that passed: the sum over the pieces that have one clock (R16)."""
        return self.elapsed.total(self.walker)

    def rate(self, count: int) -> float | None:
        """count per second of firmware time; None where no time passed."""
        return count * 1e9 / self.span_ns if self.span_ns else None

    def opcodes(self) -> Iterator[tuple[int, int, int]]:
        """(opcode, records, payload bytes), the most frequent first."""
        used = np.flatnonzero(self.tally.opcode_records)
        order = used[np.argsort(-self.tally.opcode_records[used].astype("i8"), kind="stable")]
        for opcode in order:
            records, size = self.tally.opcode_records[opcode], self.tally.opcode_bytes[opcode]
            yield int(opcode), int(records), int(size)

    def cpus(self) -> Iterator[tuple[int, int]]:
        """(cpu, records), in order."""
        for cpu in np.flatnonzero(self.tally.cpu_records):
            yield int(cpu), int(self.tally.cpu_records[cpu])


class _Pairs:
    """Durations by name: of matched begins and ends, and of complete events."""

    def __init__(self, catalog: Catalog, found: Statistics) -> None:
        self._found = found
        self._pairing = Pairing(catalog)
        self._names = durations.pair_names(catalog)
        self._rules = durations.duration_rules(catalog)

    @property
    def wanted(self) -> bool:
        return bool(self._names)

    def add(self, batch: RecordBatch) -> None:
        paired = self._pairing.feed(batch)
        spans = paired.durations_ns
        begins = paired.matches["begin_opcode"]
        for opcode in np.unique(begins).tolist():
            self._of(opcode).histogram.add(spans[begins == opcode])
        for opcode in paired.uncertain["begin_opcode"].tolist():
            self._of(opcode).uncertain += 1
        for rule in self._rules:
            carried = rule.of(batch)
            if len(carried.rows) or carried.invalid:
                latency = self._of(rule.event.opcode)
                latency.histogram.add(carried.ns)
                latency.invalid += carried.invalid

    def finish(self) -> None:
        self._pairing.finish()
        self._found.unmatched_begins = self._pairing.unmatched_begins
        self._found.unmatched_ends = self._pairing.unmatched_ends
        self._found.uncertain = self._pairing.uncertain

    def _of(self, opcode: int) -> Latency:
        name = self._names.get(opcode, f"{opcode:#06x}")
        return self._found.durations.setdefault(name, Latency())


def gather(
    dump: Dump,
    *,
    catalog: Catalog | None = None,
    selection: Selection | None = None,
    partial: bool = False,
) -> Statistics:
    """One pass. Without catalog and selection it runs in C alone.

    Losses are those of the whole dump, selected or not.

    Raises:
        DumpError: as Dump.batches.
    """
    chosen = selection or Selection()
    tally = Tally()
    found = Statistics(Walker(tally=tally if chosen.is_everything else None), tally)
    pairs = _Pairs(catalog, found) if catalog else None
    if chosen.is_everything and not (pairs and pairs.wanted):
        dump.scan(found.walker, partial=partial, on_batch=lambda piece: _add_bytes(found, piece))
    else:
        _gather_columns(dump, found, pairs, chosen, partial)
    if pairs:
        pairs.finish()
    found.gaps, found.lost = known_losses(dump, found.walker)
    return found


def _add_bytes(found: Statistics, piece: RecordBatch) -> None:
    found.bytes += len(piece.buffer)
    found.elapsed.step(piece.steps)


def _gather_columns(
    dump: Dump, found: Statistics, pairs: _Pairs | None, chosen: Selection, partial: bool
) -> None:
    picked = _Picked(found)
    for batch in chosen.batches(dump, partial=partial, walker=found.walker):
        found.bytes += len(batch.buffer) if chosen.is_everything else _dump_bytes(batch)
        if chosen.is_everything:
            found.elapsed.step(batch.steps)
        else:
            picked.add(batch)
            found.elapsed.add(batch)
        if pairs:
            pairs.add(batch)
    if not chosen.is_everything:
        picked.finish()


def _dump_bytes(batch: RecordBatch) -> int:
    padded = (batch.payload_len.astype("u8") + np.uint64(7)) & ~np.uint64(7)
    return int(padded.sum()) + RECORD_HDR_SIZE * len(batch)


class _Picked:
    """Counts selected records as the C walk counts all of them."""

    def __init__(self, found: Statistics) -> None:
        self._tally = found.tally
        self._walker = found.walker
        self._records = self._payload = self._truncated = 0
        self._last: int | None = None
        self._least: list[int] = []
        self._most: list[int] = []

    def add(self, batch: RecordBatch) -> None:
        lengths = batch.payload_len
        self._records += len(batch)
        self._payload += int(lengths.sum())
        self._truncated += int(np.count_nonzero(batch.flags & 2))
        self._least.append(int(batch.ts_ns.min()))
        self._most.append(int(batch.ts_ns.max()))
        tally = self._tally
        tally.opcode_records[:] += np.bincount(batch.opcode, minlength=65536).astype("u8")
        tally.opcode_bytes[:] += np.bincount(batch.opcode, lengths, 65536).astype("u8")
        tally.cpu_records[:] += np.bincount(batch.cpu, minlength=256).astype("u8")
        tally.payload_log2[:] += np.bincount(log2_bucket(lengths), minlength=65).astype("u8")
        tally.interval_log2[:] += np.bincount(self._intervals(batch), minlength=65).astype("u8")

    def _intervals(self, batch: RecordBatch) -> npt.NDArray[np.int64]:
        before = batch.ts_ns[:1] if self._last is None else np.array([self._last], "u8")
        times = np.concatenate([before, batch.ts_ns]) if self._last is not None else batch.ts_ns
        self._last = int(batch.ts_ns[-1])
        forward = times[1:] >= times[:-1]
        return log2_bucket((times[1:] - times[:-1])[forward])

    def finish(self) -> None:
        c = self._walker.c
        c.records, c.payload_bytes, c.truncated = self._records, self._payload, self._truncated
        c.min_ts_ns = min(self._least, default=0)
        c.max_ts_ns = max(self._most, default=0)


def as_json(found: Statistics, catalog: Catalog | None) -> dict[str, Any]:
    """The object that `stats --json` prints."""
    walker = found.walker
    name_of = catalog.name_of if catalog else lambda opcode: f"{opcode:#06x}"
    some = bool(walker.records)
    return {
        "records": walker.records,
        "wrap_markers": walker.wrap_markers,
        "truncated": walker.truncated,
        "bytes": found.bytes,
        "payload_bytes": walker.payload_bytes,
        "min_ts_ns": walker.min_ts_ns if some else None,
        "max_ts_ns": walker.max_ts_ns if some else None,
        "duration_ns": found.span_ns,
        "records_per_s": found.rate(walker.records),
        "bytes_per_s": found.rate(found.bytes),
        "gaps": found.gaps,
        "lost": found.lost,
        "duplicates": walker.duplicates,
        "sequence_resets": walker.sequence_resets,
        "clock_steps_back": walker.clock_steps_back,
        "unknown_flags": walker.unknown_flags,
        "opcodes": [
            {"opcode": o, "name": name_of(o), "records": n, "payload_bytes": b}
            for o, n, b in found.opcodes()
        ],
        "cpus": [{"cpu": cpu, "records": n} for cpu, n in found.cpus()],
        "payload_len_log2": _filled(found.tally.payload_log2),
        "interval_ns_log2": _filled(found.tally.interval_log2),
        "durations": {name: d.as_dict() for name, d in sorted(found.durations.items())},
        "unmatched_begins": found.unmatched_begins,
        "unmatched_ends": found.unmatched_ends,
        "uncertain": found.uncertain,
    }


def _filled(buckets: npt.NDArray[np.uint64]) -> list[dict[str, int]]:
    """Used buckets as {from, to, count}; both ends belong to them."""
    return [
        {"from": (1 << i) >> 1, "to": (1 << i) - 1, "count": int(buckets[i])}
        for i in np.flatnonzero(buckets).tolist()
    ]

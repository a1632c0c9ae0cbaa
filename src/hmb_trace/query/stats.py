# SPDX-License-Identifier: Apache-2.0
"""Statistics of dumps: rates, opcodes, cpus, histograms, durations of paired events, losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import DURATION_UNITS, Catalog, Event
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import known_losses
from hmb_trace.dumps.walker import Tally, Walker
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.query.pairing import Pairing
from hmb_trace.query.select import Selection

QUANTILES = (0.5, 0.99, 0.999)
_SUB_BUCKETS = 64  # per power of two: quantiles are at most 1.6 % too large
_LOG_SUB = 6
_POWERS = np.array([1 << i for i in range(64)], "u8")


class Durations:
    """A log-linear histogram of nanoseconds: bounded memory, quantiles within 1.6 %.

    Attributes:
        count, total, least, most: exact.
    """

    def __init__(self) -> None:
        self.buckets = np.zeros(64 * _SUB_BUCKETS + _SUB_BUCKETS, "u8")
        self.count = 0
        self.total = 0
        self.least = 0
        self.most = 0

    def add(self, values: npt.NDArray[np.uint64]) -> None:
        """Count values, ns."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        self.least = min(self.least, low) if self.count else low
        self.most = max(self.most, high)
        self.count += len(values)
        self.total += sum(int(part) for part in _exact_sums(values))
        found = np.bincount(_bucket_of(values), minlength=len(self.buckets))
        self.buckets += found.astype("u8")

    def quantile(self, q: float) -> int | None:
        """The least value that at least a share q of all is not above; None without values."""
        if not self.count:
            return None
        wanted = max(1, int(np.ceil(q * self.count)))
        bucket = int(np.searchsorted(np.cumsum(self.buckets), wanted))
        return min(_upper_edge(bucket), self.most)

    def as_dict(self) -> dict[str, Any]:
        """count, min, mean, p50, p99, p999, max (ns)."""
        mean = self.total / self.count if self.count else None
        quantiles = {f"p{str(q)[2:].ljust(2, '0')}_ns": self.quantile(q) for q in QUANTILES}
        return {
            "count": self.count,
            "min_ns": self.least if self.count else None,
            "mean_ns": mean,
            **quantiles,
            "max_ns": self.most if self.count else None,
        }


def _exact_sums(values: npt.NDArray[np.uint64]) -> tuple[Any, Any]:
    """The sum in two parts, neither of which can overflow."""
    high = (values >> np.uint64(32)).sum(dtype="u8")
    return int(high) << 32, (values & np.uint64(0xFFFFFFFF)).sum(dtype="u8")


def log2_bucket(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """0 for 0, else i for [2^(i-1), 2^i): the buckets of struct hmb_tally."""
    return np.searchsorted(_POWERS, values.astype("u8"), side="right")


def _bucket_of(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    exponent = np.maximum(log2_bucket(values) - 1 - _LOG_SUB, 0)
    sub = (values >> exponent.astype("u8")).astype("i8")  # below 2 * _SUB_BUCKETS
    buckets: npt.NDArray[np.int64] = exponent * _SUB_BUCKETS + sub
    return buckets


def _upper_edge(bucket: int) -> int:
    """The largest value that falls into a bucket."""
    if bucket < 2 * _SUB_BUCKETS:
        return bucket
    exponent, sub = bucket // _SUB_BUCKETS - 1, bucket % _SUB_BUCKETS + _SUB_BUCKETS
    return ((sub + 1) << exponent) - 1


@dataclass
class Statistics:
    """Everything that one pass counted; times in ns, sizes in bytes."""

    walker: Walker
    tally: Tally
    bytes: int = 0
    gaps: int = 0
    lost: int = 0
    durations: dict[str, Durations] = field(default_factory=dict)
    unmatched_begins: int = 0
    unmatched_ends: int = 0

    @property
    def span_ns(self) -> int:
        """From the earliest to the latest record."""
        return self.walker.max_ts_ns - self.walker.min_ts_ns if self.walker.records else 0

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
    """Durations by event: of matched begins and ends, and of complete events."""

    def __init__(self, catalog: Catalog, found: Statistics) -> None:
        self._catalog = catalog
        self._found = found
        self._pairing = Pairing(catalog)
        self._complete = [e for e in catalog if e.kind == "complete" and e.duration]

    @property
    def wanted(self) -> bool:
        return bool(self._complete) or any(event.pair for event in self._catalog)

    def add(self, batch: RecordBatch) -> None:
        paired = self._pairing.feed(batch)
        spans = paired.durations_ns
        begins = paired.matches["begin_opcode"]
        for opcode in np.unique(begins):
            self._of(self._catalog.name_of(int(opcode))).add(spans[begins == opcode])
        for event in self._complete:
            values = complete_durations(batch, event, self._catalog.clock_mhz)
            if len(values):
                self._of(event.name).add(values)

    def finish(self) -> None:
        self._pairing.finish()
        self._found.unmatched_begins = self._pairing.unmatched_begins
        self._found.unmatched_ends = self._pairing.unmatched_ends

    def _of(self, name: str) -> Durations:
        return self._found.durations.setdefault(name, Durations())


def complete_durations(batch: RecordBatch, event: Event, clock_mhz: int) -> npt.NDArray[np.uint64]:
    """Durations of a complete event's records in ns; records too short for the field left out."""
    made = event.field(event.duration)
    if made is None or not made.is_integer:
        return np.empty(0, "u8")
    rows = (batch.opcode == event.opcode) & (batch.payload_len >= made.offset + made.size)
    values = batch.select(rows).field(made.offset, made.dtype).astype("u8")
    if event.duration_unit == "cycles":
        return values * np.uint64(1000) // np.uint64(clock_mhz)
    return values * np.uint64(DURATION_UNITS[event.duration_unit])


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
        dump.scan(found.walker, partial=partial, on_bytes=lambda piece: _add_bytes(found, piece))
    else:
        _gather_columns(dump, found, pairs, chosen, partial)
    if pairs:
        pairs.finish()
    found.gaps, found.lost = known_losses(dump, found.walker)
    return found


def _add_bytes(found: Statistics, piece: memoryview) -> None:
    found.bytes += len(piece)


def _gather_columns(
    dump: Dump, found: Statistics, pairs: _Pairs | None, chosen: Selection, partial: bool
) -> None:
    picked = _Picked(found)
    for batch in chosen.batches(dump, partial=partial, walker=found.walker):
        found.bytes += len(batch.buffer) if chosen.is_everything else _dump_bytes(batch)
        if not chosen.is_everything:
            picked.add(batch)
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
    }


def _filled(buckets: npt.NDArray[np.uint64]) -> list[dict[str, int]]:
    """Used buckets as {from, to, count}; both ends belong to them."""
    return [
        {"from": (1 << i) >> 1, "to": (1 << i) - 1, "count": int(buckets[i])}
        for i in np.flatnonzero(buckets).tolist()
    ]

# SPDX-License-Identifier: Apache-2.0
"""Which records: by opcode, cpu, flags, sequence, time and expression; seeking by the index."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import DEFAULT_BATCH, Dump, Span
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.dumps.timeaxis import first_time, host_axis, parse_moment
from hmb_trace.dumps.walker import Walker
from hmb_trace.errors import UsageError
from hmb_trace.layout import RecordFlag
from hmb_trace.query.expression import Expression, Mask

_RANGE = re.compile(r"\s*(\w*)\s*(?:\.\.\s*(\w*))?\s*\Z")


@dataclass(frozen=True)
class Range:
    """Both ends belong to it; None: open."""

    first: int | None
    last: int | None


@dataclass
class Selection:
    """Conditions that a record must meet; None and empty: any.

    Attributes:
        time: of the firmware clock, nanoseconds.
        flags: all these bits set.
        seq: a range whose first is beyond its last runs over the wrap at 2^32.
    """

    opcodes: frozenset[int] | None = None
    cpus: frozenset[int] | None = None
    flags: int = 0
    seq: Range | None = None
    time: Range | None = None
    where: list[Expression] = field(default_factory=list)

    @property
    def is_everything(self) -> bool:
        """Whether it lets every record through."""
        return self == Selection()

    def mask(self, batch: RecordBatch) -> Mask:
        """Which rows of a batch meet all conditions."""
        found = np.ones(len(batch), bool)
        if self.opcodes is not None:
            found &= np.isin(batch.opcode, np.array(sorted(self.opcodes), "u2"))
        if self.cpus is not None:
            found &= np.isin(batch.cpu, np.array(sorted(self.cpus), "u1"))
        if self.flags:
            found &= (batch.flags & self.flags) == self.flags
        if self.seq is not None:
            found &= _within_seq(batch, self.seq)
        if self.time is not None:
            found &= _within_time(batch, self.time)
        for expression in self.where:
            found &= expression.mask(batch)
        return found

    def batches(
        self,
        dump: Dump,
        *,
        partial: bool = False,
        walker: Walker | None = None,
        max_bytes: int = DEFAULT_BATCH,
    ) -> Iterator[RecordBatch]:
        """The records of a dump that meet the conditions; parts outside the time range are
        not read where a sidecar's index allows it. Raises as Dump.batches."""
        spans = spans_of(dump, self.time) if self.time else None
        left_out: list[RecordBatch] = []
        for batch in dump.batches(max_bytes, partial=partial, walker=walker, spans=spans):
            if self.is_everything:
                yield batch
                continue
            mask = self.mask(batch)
            if mask.any():
                found = batch if mask.all() else batch.select(mask)
                yield found.after(left_out)
                left_out = []
            elif len(batch.cuts):
                left_out.append(batch)


def _within_seq(batch: RecordBatch, wanted: Range) -> Mask:
    first = 0 if wanted.first is None else wanted.first
    last = 0xFFFFFFFF if wanted.last is None else wanted.last
    span = np.uint32((last - first) & 0xFFFFFFFF)
    inside: Mask = (batch.seq - np.uint32(first & 0xFFFFFFFF)) <= span
    return inside


def _within_time(batch: RecordBatch, wanted: Range) -> Mask:
    found = np.ones(len(batch), bool)
    if wanted.first is not None:
        found &= batch.ts_ns >= np.uint64(max(wanted.first, 0))
    if wanted.last is not None:
        if wanted.last < 0:
            return np.zeros(len(batch), bool)
        found &= batch.ts_ns <= np.uint64(min(wanted.last, (1 << 64) - 1))
    return found


def spans_of(dump: Dump, wanted: Range) -> list[Span]:
    """The parts of a dump that can hold records of a time range, by the sidecars' sparse index.

    A file without an index is read whole. One index step is added on both sides: cores
    whose clocks differ a little may have written out of order, and an entry's time is that of
    the record before its offset.
    """
    found = []
    for index, segment in enumerate(dump.segments):
        known = segment.known
        if known is None or not known.index:
            found.append(Span(index))
        elif (span := _span_of(index, known, wanted)) is not None:
            found.append(span)
    return found


def _span_of(index: int, known: Sidecar, wanted: Range) -> Span | None:
    times = [entry.ts_ns for entry in known.index]
    offsets = [entry.offset for entry in known.index]
    if times != sorted(times):
        return Span(index)  # a clock that went back: the index tells nothing
    if known.last_ts_ns is not None and wanted.first is not None and _ends_before(known, wanted):
        return None
    first = 0 if wanted.first is None else bisect.bisect_left(times, wanted.first) - 2
    last = len(times) if wanted.last is None else bisect.bisect_right(times, wanted.last) + 1
    begin = offsets[first] if first > 0 else 0
    end = offsets[last] if last < len(times) else None
    if wanted.last is not None and known.first_ts_ns is not None and not begin:
        step = times[min(1, len(times) - 1)] - times[0]
        if known.first_ts_ns - step > wanted.last:
            return None
    return Span(index, begin, end)


def _ends_before(known: Sidecar, wanted: Range) -> bool:
    assert known.last_ts_ns is not None
    assert wanted.first is not None
    step = known.index[-1].ts_ns - known.index[-2].ts_ns if len(known.index) > 1 else 0
    latest = max(known.last_ts_ns, known.index[-1].ts_ns)
    return latest + step < wanted.first


# ---- from what people write ----


def parse_range(text: str, what: str) -> Range:
    """'5..9', '5..', '..9' or '5' (also 0x...). Raises UsageError."""
    match = _RANGE.match(text)
    try:
        if match is None or not (match[1] or match[2]):
            raise ValueError
        first = int(match[1], 0) if match[1] else None
        if match[2] is None:
            return Range(first, first)
        return Range(first, int(match[2], 0) if match[2] else None)
    except ValueError:
        raise UsageError(f"{what}: found {text!r}, expected 5..9, 5.., ..9 or 5") from None


def parse_numbers(texts: Sequence[str], what: str, limit: int) -> frozenset[int] | None:
    """Numbers and ranges, comma-separated; None for no text at all. Raises UsageError."""
    found: set[int] = set()
    for part in (part for text in texts for part in text.split(",")):
        wanted = parse_range(part, what)
        last = limit - 1 if wanted.last is None else wanted.last
        if not 0 <= (wanted.first or 0) < limit or not 0 <= last < limit:
            raise UsageError(f"{what}: found {part!r}, expected 0 to {limit - 1}")
        found.update(range(wanted.first or 0, last + 1))
    return frozenset(found) if texts else None


def parse_opcodes(texts: Sequence[str], catalog: Catalog | None) -> frozenset[int] | None:
    """Opcodes as numbers, ranges or catalog names (with * and ?). Raises UsageError."""
    import fnmatch  # noqa: PLC0415 - only here

    found: set[int] = set()
    for part in (part.strip() for text in texts for part in text.split(",")):
        if part[:1].isdigit() or part.startswith(".."):
            found |= parse_numbers([part], "opcode", 1 << 16) or frozenset()
            continue
        names = catalog.by_name if catalog else {}
        matching = [names[name].opcode for name in names if fnmatch.fnmatchcase(name, part)]
        if not matching:
            hint = f"it has {', '.join(names)}" if catalog else "names need a --catalog"
            raise UsageError(f"opcode: the catalog has no event {part!r}; {hint}")
        found.update(matching)
    return frozenset(found) if texts else None


def parse_flags(texts: Sequence[str]) -> int:
    """Flag names (truncated) or bits (0x02). Raises UsageError."""
    found = 0
    for part in (part.strip() for text in texts for part in text.split(",")):
        name = part.upper().replace("-", "_")
        if name in RecordFlag.__members__:
            found |= RecordFlag[name]
            continue
        try:
            found |= int(part, 0)
        except ValueError:
            names = ", ".join(RecordFlag.__members__).lower()
            raise UsageError(f"flags: found {part!r}, expected {names} or bits as 0x02") from None
    return found


def parse_time(dump: Dump, begin: str | None, end: str | None) -> Range | None:
    """--from and --to as a range of the firmware clock.

    Raises:
        UsageError: not a moment, or host time without clock pairs.
    """
    if begin is None and end is None:
        return None
    ends = [None if text is None else _firmware_time(dump, text) for text in (begin, end)]
    return Range(ends[0], ends[1])


def _firmware_time(dump: Dump, text: str) -> int:
    clock, value = parse_moment(text)
    if clock == "fw":
        return value
    if clock == "relative":
        return value + first_time(dump)
    return host_axis(dump).to_firmware(value)

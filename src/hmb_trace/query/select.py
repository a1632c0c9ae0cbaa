# SPDX-License-Identifier: Apache-2.0
"""Which records: by opcode, cpu, flags, sequence, time and expression; seeking by the index."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import DEFAULT_BATCH, Dump, Span
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.dumps.timeaxis import (
    ClockPieces,
    HostAxis,
    RelativeAxis,
    first_time,
    host_axis,
    parse_moment,
    relative_axis,
)
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


@dataclass(frozen=True)
class Window:
    """A range of times on another clock than the firmware's, ns; both ends belong to it."""

    axis: HostAxis | RelativeAxis
    range: Range


@dataclass
class Met:
    """What a pass met.

    Attributes:
        records: those looked at.
        selected: those that met the conditions.
        opcodes: of selected records, as long as the catalog knew none of them.
        fits: whether the catalog knows one of them.
    """

    records: int = 0
    selected: int = 0
    opcodes: set[int] = field(default_factory=set)
    fits: bool = False

    def add(self, records: int, batch: RecordBatch, catalog: Catalog | None) -> None:
        """Count a batch, as far as it was selected."""
        self.records += records
        self.selected += len(batch)
        if catalog is not None and not self.fits:
            self.see(np.flatnonzero(np.bincount(batch.opcode)).tolist(), catalog)

    def see(self, opcodes: list[int], catalog: Catalog) -> None:
        """Compare opcodes with a catalog."""
        self.opcodes.update(opcodes)
        self.fits |= any(opcode in catalog.events for opcode in opcodes)


@dataclass
class Selection:
    """Conditions that a record must meet; None and empty: any.

    Attributes:
        time: of the firmware clock, nanoseconds: in every epoch.
        catalog: what `met` compares opcodes with.
        windows: times since the first record or of the host's clock: of one epoch only.
        flags: all these bits set.
        seq: a range whose first is beyond its last runs over the wrap at 2^32.
    """

    opcodes: frozenset[int] | None = None
    cpus: frozenset[int] | None = None
    flags: int = 0
    seq: Range | None = None
    time: Range | None = None
    where: list[Expression] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    catalog: Catalog | None = field(default=None, compare=False)
    met: Met = field(default_factory=Met, compare=False)

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
        for window in self.windows:
            found &= _within(window.axis(batch), window.range)
        for expression in self.where:
            found &= expression.mask(batch)
        return found

    def spans(self, dump: Dump) -> list[Span] | None:
        """The parts of a dump that can hold such records; None: all of it."""
        if self.time is None and not any(isinstance(w.axis, HostAxis) for w in self.windows):
            return None
        return spans_of(dump, self.time, self.windows)

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
        spans = self.spans(dump)
        left_out: list[RecordBatch] = []
        everything = self.is_everything
        self.met = Met()
        for batch in dump.batches(max_bytes, partial=partial, walker=walker, spans=spans):
            if everything:
                self.met.add(len(batch), batch, self.catalog)
                yield batch
                continue
            mask = self.mask(batch)
            if mask.any():
                found = batch if mask.all() else batch.select(mask)
                self.met.add(len(batch), found, self.catalog)
                yield found.after(left_out)
                left_out = []
                continue
            self.met.records += len(batch)
            if len(batch.cuts):
                left_out.append(batch)


def _within_seq(batch: RecordBatch, wanted: Range) -> Mask:
    first = 0 if wanted.first is None else wanted.first
    last = 0xFFFFFFFF if wanted.last is None else wanted.last
    span = np.uint32((last - first) & 0xFFFFFFFF)
    inside: Mask = (batch.seq - np.uint32(first & 0xFFFFFFFF)) <= span
    return inside


def _within(times: npt.NDArray[np.int64], wanted: Range) -> Mask:
    found = np.ones(len(times), bool)
    if wanted.first is not None:
        found &= times >= wanted.first
    if wanted.last is not None:
        found &= times <= wanted.last
    return found


def _within_time(batch: RecordBatch, wanted: Range) -> Mask:
    found = np.ones(len(batch), bool)
    if wanted.first is not None:
        found &= batch.ts_ns >= np.uint64(max(wanted.first, 0))
    if wanted.last is not None:
        if wanted.last < 0:
            return np.zeros(len(batch), bool)
        found &= batch.ts_ns <= np.uint64(min(wanted.last, (1 << 64) - 1))
    return found


def spans_of(dump: Dump, wanted: Range | None, windows: Sequence[Window] = ()) -> list[Span]:
    """The parts of a dump that can hold records of a time range, by the sidecars' sparse index.

    A file without an index is read whole. One index step is added on both sides: cores
    whose clocks differ a little may have written out of order, and an entry's time is that of
    the record before its offset.
    """
    found = []
    for index, segment in enumerate(dump.segments):
        known = segment.known
        own = None if known is None else _on_own_clock(index, wanted, windows)
        if known is None or not known.index or own is None:
            found.append(Span(index))
        elif (span := _span_of(index, known, own)) is not None:
            found.append(span)
    return found


def _on_own_clock(index: int, wanted: Range | None, windows: Sequence[Window]) -> Range | None:
    """The range on a file's firmware clock; None: it cannot be told."""
    firsts = [] if wanted is None or wanted.first is None else [wanted.first]
    lasts = [] if wanted is None or wanted.last is None else [wanted.last]
    for window in windows:
        if not isinstance(window.axis, HostAxis):
            continue
        own = window.axis.firmware_range(index, window.range.first, window.range.last)
        if own is None:
            return None
        firsts += [] if own[0] is None else [own[0]]
        lasts += [] if own[1] is None else [own[1]]
    return Range(max(firsts, default=None), min(lasts, default=None))


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


def parse_range(text: str, what: str, limit: int = 1 << 32) -> Range:
    """'5..9', '5..', '..9' or '5' (also 0x...). Raises UsageError."""
    match = _RANGE.match(text)
    try:
        if match is None or not (match[1] or match[2]):
            raise ValueError
        first = int(match[1], 0) if match[1] else None
        if match[2] is None:
            return _in_limits(Range(first, first), text, what, limit)
        made = Range(first, int(match[2], 0) if match[2] else None)
    except ValueError:
        raise UsageError(f"{what}: found {text[:60]!r}, expected 5..9, 5.., ..9 or 5") from None
    return _in_limits(made, text, what, limit)


def _in_limits(made: Range, text: str, what: str, limit: int) -> Range:
    if any(end is not None and end >= limit for end in (made.first, made.last)):
        raise UsageError(f"{what}: found {text[:60]!r}, expected 0 to {limit - 1}")
    return made


def parse_numbers(texts: Sequence[str], what: str, limit: int) -> frozenset[int] | None:
    """Numbers and ranges, comma-separated; None for no text at all. Raises UsageError."""
    found: set[int] = set()
    for part in (part for text in texts for part in text.split(",")):
        wanted = parse_range(part, what, limit)
        last = limit - 1 if wanted.last is None else wanted.last
        if last < (wanted.first or 0):
            raise UsageError(f"{what}: found {part!r}, whose end lies before its begin")
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
        wanted = part.lower()
        matching = [e.opcode for n, e in names.items() if fnmatch.fnmatchcase(n.lower(), wanted)]
        if not matching:
            some = ", ".join([*names][:20]) + (", ..." if len(names) > 20 else "")
            hint = f"it has {some}" if catalog else "names need a --catalog"
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
            bits = int(part, 0)
            if not 0 <= bits < 256:
                raise ValueError
            found |= bits
        except ValueError:
            names = ", ".join(RecordFlag.__members__).lower()
            raise UsageError(f"flags: found {part!r}, expected {names} or bits as 0x02") from None
    return found


def parse_time(dump: Dump, begin: str | None, end: str | None) -> tuple[Range | None, list[Window]]:
    """--from and --to as a range of the firmware clock, and windows on other clocks.

    Raises:
        UsageError: not a moment, or host time without clock pairs.
    """
    fw, windows = Range(None, None), []
    axes: dict[str, HostAxis | RelativeAxis] = {}
    for side, text in (("first", begin), ("last", end)):
        if text is None:
            continue
        clock, value = parse_moment(text)
        if clock == "relative" and ClockPieces(dump).is_one:
            clock, value = "fw", value + first_time(dump)
        if clock == "fw":
            fw = replace(fw, **{side: value})
            continue
        if clock not in axes:
            axes[clock] = host_axis(dump) if clock == "host" else _relative(dump)
        windows.append(Window(axes[clock], replace(Range(None, None), **{side: value})))
    _check_order(fw, windows, begin, end)
    return (None if fw == Range(None, None) else fw), windows


def _relative(dump: Dump) -> RelativeAxis:
    first_time(dump)  # raises where the first record cannot be known before the others
    return relative_axis(dump)


def _check_order(fw: Range, windows: list[Window], begin: str | None, end: str | None) -> None:
    ranges = [window.range for window in windows]
    same = len(windows) == 2 and windows[0].axis is windows[1].axis
    first = ranges[0].first if same else fw.first
    last = ranges[1].last if same else fw.last
    if first is not None and last is not None and first > last:
        raise UsageError(f"--from {begin} lies after --to {end}")

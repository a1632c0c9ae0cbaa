# SPDX-License-Identifier: Apache-2.0
"""Time axes: the firmware's own clock, time since the first record, or the host's clock.

A dump can have several clocks: an epoch begins a new one, and firmware may set its own (SPEC R16).
Host times are worked out by the clock pairs of the piece that a record stands in, never by those
of another.
"""

from __future__ import annotations

import bisect
import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.clocks import ClockFacts, clock_facts
from hmb_trace.dumps.dump import Dump, Span
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.packaged import CLOCKS_KEY, Packaged
from hmb_trace.dumps.seams import clock_step
from hmb_trace.dumps.sidecar import ClockPair
from hmb_trace.errors import UsageError
from hmb_trace.units import parse_duration

CLOCKS = ("fw", "relative", "host")
Times = npt.NDArray[np.int64]
NO_VALUE = -(1 << 63)
_LATEST = (1 << 63) - 1  # ns, of every axis but the firmware's


class Axis(Protocol):
    """Turns firmware times of a batch into times of another clock, nanoseconds."""

    def __call__(self, batch: RecordBatch) -> Times:
        """One time per row."""


def firmware_axis(batch: RecordBatch) -> Times:
    """ts_ns as it is."""
    return batch.ts_ns.view("i8")


# ---- pieces of one clock ----


@dataclass
class ClockPiece:
    """A stretch of records with one clock, over any number of files.

    Attributes:
        pairs: in order of the firmware clock.
        first_ts_ns: of its first record; None: not known.
    """

    pairs: list[ClockPair] = field(default_factory=list)
    first_ts_ns: int | None = None

    def freeze(self) -> None:
        """No more pairs come."""
        self.pairs.sort(key=lambda pair: pair.ts_ns)
        at = np.array([p.ts_ns for p in self.pairs], "u8")
        self._at: Times = at.view("i8")
        # Times are signed here: a clock that went below zero stands near 2^64.
        offsets = np.array([(p.host_ns - p.ts_ns) % (1 << 64) for p in self.pairs], "u8")
        self._offset: Times = offsets.view("i8")

    def host(self, ts_ns: npt.NDArray[np.uint64]) -> Times:
        """Host times. Between two pairs the offset runs straight, outside it stands."""
        at, offset, ts = self._at, self._offset, ts_ns.view("i8")
        # Floats hold the small differences exactly enough; the large parts stay integers.
        drift = np.interp((ts - at[0]).astype("f8"), (at - at[0]).astype("f8"), offset - offset[0])
        moved: Times = ts + offset[0] + np.rint(drift).astype("i8")
        return moved

    def host_of(self, ts_ns: int) -> int:
        """The host time of one firmware time."""
        return int(self.host(np.array([ts_ns], "u8"))[0])

    def firmware(self, host_ns: int) -> int:
        """The firmware time of a host time; may lie before 0."""
        host = self._at + self._offset
        shift = np.interp(
            float(host_ns - int(host[0])),
            (host - host[0]).astype("f8"),
            (self._offset - self._offset[0]).astype("f8"),
        )
        return host_ns - int(self._offset[0]) - round(float(shift))


class Stretch(NamedTuple):
    """Where in a file a piece begins."""

    offset: int
    piece: ClockPiece


class ClockPieces:
    """The pieces of a dump, as its sidecars tell of them: epochs, clock steps, clock pairs.

    Attributes:
        of_segment: by file: where in it pieces begin; the first begins at 0.
        known: whether there are any clock pairs.
        is_one: whether all files are known to have one clock.
    """

    def __init__(self, dump: Dump) -> None:
        self.of_segment: list[list[Stretch]] = []
        self._pieces: list[ClockPiece] = []
        self._starts: dict[int, ClockPair] = {}  # by id of a piece
        epoch: int | None = None
        last: ClockPair | None = None
        facts = [clock_facts(segment) for segment in dump.segments]
        for index, told in enumerate(facts):
            other = told and None not in (epoch, told.epoch) and told.epoch != epoch
            if told and told.pairs and last and not other:
                other = clock_step(last, told.pairs[0]) is not None
            if not index or other:
                self._new(told.first_ts_ns if told else None)
            self.of_segment.append([Stretch(0, self._pieces[-1])])
            if told is not None:
                self._take(dump, index, told)
                last = told.pairs[-1] if told.pairs else last
                epoch = next((n for n in reversed(told.numbers) if n is not None), told.epoch)
        self.known = any(piece.pairs for piece in self._pieces)
        self.is_one = len(self._pieces) == 1 and all(facts)
        if self.known:
            self._complete()

    def _new(self, first_ts_ns: int | None) -> ClockPiece:
        self._pieces.append(ClockPiece(first_ts_ns=first_ts_ns))
        return self._pieces[-1]

    def _take(self, dump: Dump, index: int, told: ClockFacts) -> None:
        """Pairs and steps of one file."""
        package = dump.segments[index].packaged
        if package and package.encoding == "raw" and CLOCKS_KEY in package.about:
            self._take_packaged(package)
            return
        if told.steps is None and _goes_back(told.pairs):
            # An older daemon did not look for steps; its pairs show that there is one.
            spans = [Span(index)]
            found = (s for batch in dump.batches(partial=True, spans=spans) for s in batch.steps)
            told.steps = list(found)
            told.step_hosts = [None] * len(told.steps)
        steps = told.steps or []
        runs = _runs(told)
        self._pieces[-1].pairs += runs[0]
        for step, host, pairs in zip(steps, told.step_hosts, runs[1:], strict=True):
            piece = self._new(step.ts_after)
            piece.pairs += pairs
            if host and not pairs:  # the step itself says what it knows of the two clocks
                piece.pairs.append(ClockPair(ts_ns=step.ts_after, host_ns=host))
            self.of_segment[-1].append(Stretch(step.offset, piece))
        if not self._pieces[-1].pairs and told.started_ns and told.first_ts_ns is not None:
            # Without a pair the start of the segment is what is known of the host's clock.
            pair = ClockPair(ts_ns=told.first_ts_ns, host_ns=told.started_ns)
            self._starts.setdefault(id(self._pieces[-1]), pair)

    def _take_packaged(self, package: Packaged) -> None:
        """What the header of a .pccx says of the clocks in its payload."""
        for number, clock in enumerate(package.clocks()):
            piece = self._pieces[-1] if not number else self._new(clock.first_ts_ns)
            piece.pairs += clock.pairs
            if number:
                self.of_segment[-1].append(Stretch(clock.offset, piece))

    def _complete(self) -> None:
        """Every piece gets a pair: its segment's start, or else the piece before goes on."""
        last: ClockPair | None = None
        for piece in self._pieces:
            if not piece.pairs and id(piece) in self._starts:
                piece.pairs = [self._starts[id(piece)]]
            if not piece.pairs and last is not None:
                piece.pairs = [ClockPair(ts_ns=piece.first_ts_ns or 0, host_ns=last.host_ns)]
            if piece.pairs:
                piece.freeze()
                last = piece.pairs[-1]
        first = next(piece for piece in self._pieces if piece.pairs)
        for piece in self._pieces:
            if not piece.pairs:  # before the first that knows
                piece.pairs = [first.pairs[0]]
                piece.freeze()


def _goes_back(pairs: Sequence[ClockPair]) -> bool:
    times = [pair.ts_ns for pair in sorted(pairs, key=lambda pair: pair.host_ns)]
    return times != sorted(times)


def _runs(told: ClockFacts) -> list[list[ClockPair]]:
    """The clock pairs before, between and after the steps."""
    steps = told.steps or []
    runs: list[list[ClockPair]] = [[] for _ in range(len(steps) + 1)]
    hosts = [host for host in told.step_hosts if host is not None]
    number = 0
    latest: int | None = None
    for pair in sorted(told.pairs, key=lambda pair: pair.host_ns):
        if hosts and len(hosts) == len(steps):
            number = sum(host <= pair.host_ns for host in hosts)
        elif latest is not None and pair.ts_ns < latest:
            number = min(number + 1, len(steps))
        latest = pair.ts_ns
        runs[number].append(pair)
    return runs


class HostAxis:
    """Host time by the clock pairs of the piece that a record stands in.

    Raises:
        UsageError: no sidecar has clock pairs.
    """

    def __init__(self, pieces: ClockPieces) -> None:
        if not pieces.known:
            raise UsageError(
                "clock host: no clock pairs found; they stand in the sidecars (.json) that "
                "hmb-trace-daemon writes beside its dumps"
            )
        self._pieces = pieces

    def __call__(self, batch: RecordBatch) -> Times:
        stretches = self._pieces.of_segment[batch.segment]
        if len(stretches) == 1:
            return stretches[0].piece.host(batch.ts_ns)
        edges = np.searchsorted(batch.offset, [s.offset for s in stretches[1:]]).tolist()
        parts = [
            stretch.piece.host(batch.ts_ns[begin:end])
            for stretch, begin, end in zip(
                stretches, [0, *edges], [*edges, len(batch)], strict=True
            )
        ]
        return np.concatenate(parts)

    def firmware_range(
        self, segment: int, first: int | None, last: int | None
    ) -> tuple[int | None, int | None] | None:
        """What a range of host times is on a file's own clock; None: it has several."""
        stretches = self._pieces.of_segment[segment]
        if len(stretches) > 1:
            return None
        piece = stretches[0].piece
        return (
            None if first is None else piece.firmware(first) - _SLACK_NS,
            None if last is None else piece.firmware(last) + _SLACK_NS,
        )


_SLACK_NS = 1000  # of a time that went through floats


class RelativeAxis:
    """Nanoseconds since the first record, over epochs and clock steps.

    Where the host's clock is known, a later piece stands where the host saw it; else it goes on
    where the piece before ended.

    Args:
        origin: ts_ns of the first record; None: of the first record asked.
        pieces: what is known of the clocks.
    """

    def __init__(self, origin: int | None = None, pieces: ClockPieces | None = None) -> None:
        self._origin = origin
        self._places: list[tuple[int, int]] = []  # segment, offset: where a shift begins
        self._shifts: list[int] = []
        self._fixed = pieces is not None and pieces.known and origin is not None
        if self._fixed and pieces is not None:
            self._place(pieces)

    def _place(self, pieces: ClockPieces) -> None:
        """Shifts by the host's clock."""
        assert self._origin is not None
        first = pieces.of_segment[0][0].piece
        start = first.host_of(self._origin)
        for index, stretches in enumerate(pieces.of_segment):
            for stretch in stretches:
                piece, at = stretch.piece, stretch.piece.first_ts_ns
                shift = 0
                if piece is not first and at is not None:
                    shift = piece.host_of(at) - start - (at - self._origin)
                self._places.append((index, stretch.offset))
                self._shifts.append(shift)

    def learn(self, batch: RecordBatch) -> None:
        """Note the clock steps of a batch; batches come in file order, the first time."""
        if self._fixed:
            return
        for step in batch.steps:
            place = (batch.segment, step.offset)
            if self._places and place <= self._places[-1]:
                continue
            shift = (self._shifts[-1] if self._shifts else 0) + step.ts_before - step.ts_after
            self._places.append(place)
            self._shifts.append(shift)

    def __call__(self, batch: RecordBatch) -> Times:
        if self._origin is None and len(batch):
            self._origin = int(batch.ts_ns[0])
        self.learn(batch)
        times: Times = (batch.ts_ns - np.uint64(self._origin or 0)).view("i8")
        if not self._places or not len(batch):
            return times
        first = bisect.bisect_right(self._places, (batch.segment, int(batch.offset[0])))
        last = bisect.bisect_right(self._places, (batch.segment, int(batch.offset[-1])))
        shifts = np.array([0, *self._shifts], "i8")
        edges = [offset for _, offset in self._places[first:last]]
        rows = np.searchsorted(edges, batch.offset, side="right") if edges else 0
        shifted: Times = times + shifts[first + rows]
        return shifted


class Places:
    """The epoch and the host time of records, where they are known."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._told: dict[int, ClockFacts | None] = {}
        self._axis: HostAxis | None = None
        self._looked = False

    def epochs(self, batch: RecordBatch) -> Times:
        """Numbers as the capture counts them; NO_VALUE where it does not say."""
        index = batch.segment
        if index not in self._told:
            known = index < len(self._dump.segments)
            self._told[index] = clock_facts(self._dump.segments[index]) if known else None
        told = self._told[index]
        epoch = NO_VALUE if told is None or told.epoch is None else told.epoch
        found: Times = np.full(len(batch), epoch, "i8")
        for step, number in zip(told.steps or (), told.numbers, strict=True) if told else ():
            if number is not None:
                found[batch.offset >= np.uint64(step.offset)] = number
        return found

    def host_ns(self, batch: RecordBatch) -> Times:
        """Host times; NO_VALUE without clock pairs."""
        if not self._looked:
            self._looked = True
            pieces = ClockPieces(self._dump)
            self._axis = HostAxis(pieces) if pieces.known else None
        return np.full(len(batch), NO_VALUE, "i8") if self._axis is None else self._axis(batch)


def host_axis(dump: Dump) -> HostAxis:
    """The host axis that the sidecars of a dump give.

    Raises:
        UsageError: no sidecar has clock pairs.
    """
    return HostAxis(ClockPieces(dump))


def relative_axis(dump: Dump) -> RelativeAxis:
    """The axis that begins with the first record."""
    if not can_read_twice(dump):
        return RelativeAxis()
    return RelativeAxis(first_time(dump), ClockPieces(dump))


def axis_of(name: str, dump: Dump) -> Axis:
    """The axis of that name (see CLOCKS). Raises UsageError."""
    if name == "host":
        return host_axis(dump)
    return relative_axis(dump) if name == "relative" else firmware_axis


def can_read_twice(dump: Dump) -> bool:
    """Whether every part is a file, not a pipe."""
    return bool(dump.segments) and all(s.kind is not Kind.STREAM for s in dump.segments)


def first_time(dump: Dump) -> int:
    """ts_ns of the first record, 0 if there is none."""
    told = clock_facts(dump.segments[0]) if dump.segments else None
    if told and told.first_ts_ns is not None:
        return told.first_ts_ns
    if not can_read_twice(dump):
        raise UsageError("a time since the first record needs a file; a pipe cannot be read twice")
    for batch in dump.batches(1 << 16, partial=True):
        return int(batch.ts_ns[0]) if len(batch) else 0
    return 0


_ISO = re.compile(r"\d{4}-\d\d-\d\d")


class _TooLargeError(UsageError):
    """A moment that no clock reaches."""


def _bounded(text: str, value: int, most: int) -> int:
    if value > most:
        raise _TooLargeError(f"moment: found {text[:40]!r}, expected at most {most} ns")
    return value


def parse_moment(text: str) -> tuple[str, int]:
    """A moment as people write it.

    Returns:
        (clock, nanoseconds): "+1.5s" or "1.5s" is relative to the first record,
        "123456789" is firmware nanoseconds, "2026-01-31T12:00:00" (UTC unless it
        says otherwise) is host time.

    Raises:
        UsageError: none of these.
    """
    if re.fullmatch(r"[0-9]+", text):
        return "fw", _bounded(text, int(text[:30]), (1 << 64) - 1)
    if _ISO.match(text):
        return "host", _bounded(text, _parse_iso(text), _LATEST)
    try:
        return "relative", _bounded(text, parse_duration(text.removeprefix("+")), _LATEST)
    except _TooLargeError:
        raise
    except UsageError:
        raise UsageError(
            f"moment: found {text!r}, expected firmware nanoseconds (123456), a time since "
            "the first record (+1.5s) or a host time (2026-01-31T12:00:00)"
        ) from None


def _parse_iso(text: str) -> int:
    whole, _, fraction = text.partition(".")
    digits = re.match(r"\d*", fraction)
    decimals = digits[0] if digits else ""
    zone = fraction[len(decimals) :]
    try:
        moment = datetime.datetime.fromisoformat(whole + zone)
    except ValueError as error:
        raise UsageError(f"moment: {text!r}: {error}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    seconds = round(moment.timestamp())
    return seconds * 10**9 + int((decimals + "0" * 9)[:9])

# SPDX-License-Identifier: Apache-2.0
"""Files against each other: which form a stream, in what order, and what is missing between them.

SPEC R15 (seams), R16 (epochs). Sidecars tell what the collector saw before a file's first record.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmb_trace._core import ffi
from hmb_trace.dumps.facts import Facts, gaps_at_begin, is_at_begin, notes_of
from hmb_trace.dumps.places import DUPLICATE, RESET
from hmb_trace.dumps.sidecar import ClockPair
from hmb_trace.dumps.steps_back import CLOCK_JITTER_NS, went_back
from hmb_trace.dumps.told import Teller
from hmb_trace.dumps.walker import Walker
from hmb_trace.errors import HmbTraceError

_SEQ = 1 << 32
_HALF = 1 << 31
_GOES_ON = ("rotate-size", "rotate-time", "rotate-request", "snapshot", "restart", "disk-full", "")
_DRIFT_PPM = 500  # no two clocks run alike: so much is no step
_HEAD = 1 << 16


@dataclass
class Stream:
    """Files that follow each other.

    ordered: whether it is known in which order.
    """

    files: list[Facts]
    numbered: bool
    ordered: bool = True


def streams_of(facts: Sequence[Facts]) -> list[Stream]:
    """The files of a dump, sorted into streams."""
    sets: dict[str, list[dict[int, Facts]]] = {}
    loose: list[Facts] = []
    alone: list[Stream] = []
    for one in facts:
        if one.carried is not None:
            alone.append(Stream([one], numbered=False))
        elif one.series is None:
            loose.append(one)
        else:
            label, number = one.series
            copies = sets.setdefault(label, [])
            home = next((copy for copy in copies if number not in copy), None)
            if home is None:
                home = {}
                copies.append(home)
            home[number] = one
    made = [
        Stream([copy[number] for number in sorted(copy)], numbered=True)
        for copies in sets.values()
        for copy in copies
    ]
    loose = [one for one in loose if not _fits_into_hole(one, made)]
    return [*made, *_loose(loose), *alone]


def _fits_into_hole(one: Facts, streams: list[Stream]) -> bool:
    """Put a segment that lost its name where the numbers have a hole and the seqs fit."""
    mine, times = one.seq_range, one.ts_range
    if mine is None or times is None:
        return False
    for stream in streams:
        for at, (before, after) in enumerate(itertools.pairwise(stream.files)):
            left, right = before.seq_range, after.seq_range
            if not left or not right or _number(after) == _number(before) + 1:
                continue
            room = (right[0] - left[1]) % _SEQ
            if 0 < (mine[0] - left[1]) % _SEQ <= (mine[1] - left[1]) % _SEQ < room < _HALF:
                stream.files.insert(at + 1, one)
                return True
    return False


def _number(one: Facts) -> int:
    return one.series[1] if one.series else -1


def _loose(files: list[Facts]) -> list[Stream]:
    """Files without numbers: in the order of their seqs, where their times say the same."""
    if not files:
        return []
    full = [one for one in files if one.seq_range]
    empty = [one for one in files if not one.seq_range]
    full.sort(key=lambda one: one.ts_range or (0, 0))
    follows = all(_follows(a, b) for a, b in itertools.pairwise(full))
    return [Stream([*full, *empty], numbered=False, ordered=follows)]


def _follows(before: Facts, after: Facts) -> bool:
    left, right = before.seq_range, after.seq_range
    times, later = before.ts_range, after.ts_range
    assert left and right and times and later
    return 0 < (right[0] - left[1]) % _SEQ < _HALF and not went_back(times[1], later[0])


@dataclass(frozen=True)
class SeamStep:
    """The firmware clock moved between a file and the one before it."""

    file: Facts
    ts_before: int
    ts_after: int
    step_ns: int | None


class Seams:
    """Compares the files of one stream, in its order."""

    def __init__(self, stream: Stream, tellers: dict[int, Teller], steps: list[SeamStep]) -> None:
        self._stream = stream
        self._tellers = tellers
        self._steps = steps
        self._kept: list[Facts] = []  # stand-ins, alive for as long as their id is used

    def compare(self, next_piece: itertools.count[int]) -> None:
        """Tell what is missing between the files, and which begin a new epoch."""
        before: Facts | None = None
        piece = next(next_piece)
        for one in self._stream.files:
            if before is None:
                self._begin(one)
            elif not self._stream.ordered:
                piece = next(next_piece)
                self._begin(one)
            elif self._is_new_epoch(before, one):
                piece = next(next_piece)
                self._begin(one)
                if not self._holes(before, one, None) and None in (before.epoch, one.epoch):
                    self._reset(before, one)
            else:
                self._seam(before, one)
            one.piece = piece
            if one.seq_range or before is None or one.epoch != before.epoch:
                before = one
            elif self._stream.numbered:
                before = self._moved(before, one)

    def _moved(self, before: Facts, one: Facts) -> Facts:
        """Past a segment without records: the seqs of the one before it, the number of this."""
        found = Facts(before.index, one.segment, side=before.side, walk=before.walk)
        for name in ("records", "bytes", "first_seq", "last_seq", "first_ts", "last_ts", "absent"):
            setattr(found, name, getattr(before, name))
        self._tellers[id(found)] = self._tellers[id(before)]
        self._kept.append(found)
        return found

    def _begin(self, one: Facts) -> None:
        """What the sidecar says of a begin that there is nothing to compare with."""
        teller = self._tellers[id(one)]
        if one.side is None:
            return
        for gap in gaps_at_begin(one.side):
            teller.gap(gap, gap.lost, gap.rejected)
        for kind in (DUPLICATE, RESET):
            for note in notes_of(one.side, kind):
                if is_at_begin(one.side, note.offset, one.side.first_seq):
                    teller.place(kind, offset=note.offset, host_ns=note.host_ns)

    def _is_new_epoch(self, before: Facts, one: Facts) -> bool:
        if before.epoch is not None and one.epoch is not None and before.epoch != one.epoch:
            return True
        left, right = before.seq_range, one.seq_range
        if not left or not right:
            return False
        if _same_run(before, one) and before.epoch is not None and one.epoch is not None:
            return False
        times, later = before.ts_range, one.ts_range
        back = bool(times and later and went_back(times[1], later[0]))
        return (back and not _same_run(before, one)) or (right[0] - left[1]) % _SEQ >= _HALF

    def _holes(self, before: Facts, one: Facts, lost: int | None) -> bool:
        """Segments that the numbers show to be missing."""
        if not self._stream.numbered or not before.series or not one.series:
            return False
        first, last = before.series[1] + 1, one.series[1] - 1
        if last < first:
            return False
        named = f"segment {first}" if first == last else f"segments {first} to {last}"
        left, right = before.seq_range, one.seq_range
        self._tellers[id(one)].place(
            "missing-segment",
            offset=0,
            seq_before=left[1] if left else None,
            seq_after=right[0] if right else None,
            lost=lost,
            ts_ns=one.ts_range[0] if one.ts_range else None,
            text=f"{named} missing before {one.name}",
        )
        return True

    def _seam(self, before: Facts, one: Facts) -> None:
        left, right = before.seq_range, one.seq_range
        if not left or not right:
            self._holes(before, one, 0 if not left and not right else None)
            return
        self._clock(before, one)
        distance = (right[0] - left[1]) % _SEQ
        teller = self._tellers[id(one)]
        if distance == 0 or distance >= _HALF:
            if self._holes(before, one, None):
                return
            if distance:
                self._reset(before, one)
            else:
                teller.place(DUPLICATE, offset=0, seq_before=left[1], seq_after=right[0])
            return
        self._gap(before, one, distance - 1)

    def _reset(self, before: Facts, one: Facts) -> None:
        """The seqs start anew, and no sidecar says that this is another epoch."""
        left, right = before.seq_range, one.seq_range
        self._tellers[id(one)].place(
            RESET,
            offset=0,
            seq_before=left[1] if left else None,
            seq_after=right[0] if right else None,
        )

    def _gap(self, before: Facts, one: Facts, missing: int) -> None:
        teller = self._tellers[id(one)]
        told = gaps_at_begin(one.side) if one.side else []
        if missing and missing != sum(gap.lost + gap.rejected for gap in told):
            missing = _missing_by_markers(before, one, missing)
        rest = missing
        for gap in told:
            lost = min(gap.lost, rest)
            rejected = min(gap.rejected, rest - lost)
            rest -= lost + rejected
            teller.gap(gap, lost, rejected)
        if self._holes(before, one, rest) or not rest:
            return
        self._rest(before, one, rest)

    def _rest(self, before: Facts, one: Facts, rest: int) -> None:
        """Missing between two files, and the sidecar of the second tells nothing of it."""
        left, right, times = before.seq_range, one.seq_range, one.ts_range
        assert left and right
        where: dict[str, Any] = {
            "offset": 0,
            "seq_before": left[1],
            "seq_after": right[0],
            "ts_ns": times[0] if times else None,
        }
        teller = self._tellers[id(one)]
        covered = self._tellers[id(before)].rejects.cover(rest)
        covered += teller.rejects.cover(rest - covered)
        if covered:
            teller.place("rejects", lost=0, rejected=covered, **where)
        if rest == covered:
            return
        if before.cut and before.side is None:
            self._tellers[id(before)].place(
                "cut-segment",
                lost=rest - covered,
                text=_fault_text(before),
                **{**where, "offset": before.bytes},
            )
            return
        kind = "unexplained" if _same_run(before, one) else "daemon-down"
        teller.place(kind, lost=rest - covered, **where)

    def _clock(self, before: Facts, one: Facts) -> None:
        """A step of the firmware clock between two files of an epoch (R16)."""
        times, later = before.ts_range, one.ts_range
        assert times and later
        step = _step_between(before, one)
        if step is None and not went_back(times[1], later[0]):
            return
        if one.side and any(not s.offset for s in one.side.clock_steps or ()):
            return  # told by the sidecar itself
        self._steps.append(SeamStep(one, times[1], later[0], step))


def _fault_text(one: Facts) -> str:
    return one.walk.fault.reason if one.walk and one.walk.fault else "the file is cut"


def _same_run(before: Facts, one: Facts) -> bool:
    """Whether one daemon wrote both, as far as can be known."""
    return not before.side or not one.side or before.side.cause in _GOES_ON


def _step_between(before: Facts, one: Facts) -> int | None:
    """How far the offset of the clocks moved, by the clock pairs on both sides; None: not."""
    if not (before.side and one.side and before.side.clock and one.side.clock):
        return None
    last, first = before.side.clock[-1], one.side.clock[0]
    return clock_step(last, first)


def clock_step(last: ClockPair, first: ClockPair) -> int | None:
    """How far firmware's clock moved against the host's between two pairs; None: not at all."""
    moved = (first.ts_ns - last.ts_ns) - (first.host_ns - last.host_ns)
    drift = abs(first.host_ns - last.host_ns) * _DRIFT_PPM // 1_000_000
    bound = last.error_ns + first.error_ns + drift + CLOCK_JITTER_NS
    return moved if abs(moved) > bound else None


def _missing_by_markers(before: Facts, one: Facts, missing: int) -> int:
    """The same with the wrap markers around the seam taken into account (SPEC R3.4)."""
    state = before.walk.c if before.walk else _end_state(before)
    if state is None or one.segment.path is None or one.absent:
        return missing
    walker = Walker()
    walker.c = ffi.new("struct hmb_walk *", state[0])
    lost = walker.c.lost
    walker.c.offset = 0
    try:
        source = one.segment.open()
        try:
            view, _ = source.window(0, _HEAD)
            records = walker.c.records
            for end in range(32, min(len(view), _HEAD), 32):
                walker.walk(view[walker.c.offset : end])
                if walker.c.records > records:
                    break
        finally:
            source.close()
    except HmbTraceError:
        return missing
    found = int(walker.c.lost - lost) if walker.c.records > records else missing
    return min(found, missing)


def _end_state(one: Facts) -> Any:
    """The state of a walk at the end of a file that was not walked: from its last index entry."""
    side = one.side
    if side is None or one.segment.path is None or one.absent:
        return None
    begin = max((entry.offset for entry in side.index if entry.offset < side.bytes), default=0)
    walker = Walker()
    walker.c.offset = begin
    try:
        source = one.segment.open()
    except HmbTraceError:
        return None
    try:
        pos, last = begin, False
        while not last:
            view, last = source.window(pos, _HEAD * 16)
            used = walker.walk(view).used
            if not used:
                break
            pos += used
    except HmbTraceError:
        return None
    finally:
        source.close()
    return walker.c if walker.c.records else None

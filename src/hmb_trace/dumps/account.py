# SPDX-License-Identifier: Apache-2.0
"""The account: what a capture is missing, worked out once, told by every tool.

Four sources: the walk over the records, the sidecars, the rejects, and the seams between files
(SPEC R12, R15, R16). A sidecar speaks only for its own file; what a walk saw is never overruled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hmb_trace.dumps import facts as _facts
from hmb_trace.dumps import segment_names, sidecar
from hmb_trace.dumps.account_types import (
    Account,
    ClockStep,
    Epoch,
    Reason,
    Verdict,
    known_fields,
)
from hmb_trace.dumps.dump import Dump, Span
from hmb_trace.dumps.facts import Facts
from hmb_trace.dumps.filewalk import FileWalk, FileWalker
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.places import (
    DUPLICATE,
    OTHER_KINDS,
    RESET,
    UNVERIFIED_KINDS,
    Ledger,
    Place,
)
from hmb_trace.dumps.seams import Seams, SeamStep, Stream, streams_of
from hmb_trace.dumps.told import Teller
from hmb_trace.dumps.walker import Tally

ACCOUNT_KEY = "account"  # of Account.as_dict() in a .pccx header's own object and in sidecars
_CACHE = "_account"


# ---- working it out ----


class Accountant:
    """The account of a pass that a command makes anyway.

        accountant = Accountant(dump)
        for batch in dump.batches(walker=accountant.walker): ...
        found = accountant.finish()

    Files that the pass did not read whole are taken from their sidecars; where there is no good
    one they are read now, unless `read_on` is false (a listing that stops after ten records).
    """

    def __init__(self, dump: Dump, *, tally: Tally | None = None) -> None:
        self.dump = dump
        self.walker = FileWalker(tally=tally)

    def finish(self, *, read_on: bool = True) -> Account:
        """The account; see also account()."""
        walks = {walk.segment: walk for walk in self.walker.files if walk.whole}
        if read_on:
            unread = [i for i in range(len(self.dump.segments)) if i not in walks]
            walks |= _walk(self.dump, [i for i in unread if not _is_known(self.dump, i)])
        made = _Assembly(self.dump, walks).account()
        self.dump.__dict__[_CACHE] = made
        return made


def account(dump: Dump, *, partial: bool = True, deep: bool = False) -> Account:
    """The account of a dump, worked out once and kept with it.

    Files that a good sidecar describes (size and first record fit) are not read.

    Args:
        partial: damaged files are reasons; False: the first of them is raised.
        deep: read every file, whatever its sidecar says.

    Raises:
        DumpError: not partial, and a file is damaged. HmbTraceError: a file cannot be read.
    """
    made: Account | None = dump.__dict__.get(_CACHE)
    if made is None or deep:
        wanted = [i for i in range(len(dump.segments)) if deep or not _is_known(dump, i)]
        made = _Assembly(dump, _walk(dump, wanted)).account()
        dump.__dict__[_CACHE] = made
    if made.problems and not partial:
        raise made.problems[0]
    return made


def _is_known(dump: Dump, index: int) -> bool:
    return _facts.described(dump.segments[index])


def _walk(dump: Dump, indices: Iterable[int]) -> dict[int, FileWalk]:
    spans = [Span(index) for index in indices]
    if not spans:
        return {}
    walker = FileWalker()
    seen = dump.problems
    dump.scan(walker, partial=True, spans=spans)
    dump.problems = seen
    return {walk.segment: walk for walk in walker.files}


class _Assembly:
    """Puts facts, seams and rejects together."""

    def __init__(self, dump: Dump, walks: dict[int, FileWalk]) -> None:
        self._ledger = Ledger()
        self._directories = dump.directories
        self._seam_steps: list[SeamStep] = []
        self._facts = [
            _facts.of_file(index, segment, walks.get(index))
            for index, segment in enumerate(dump.segments)
        ]
        self._all = [*self._facts, *_absent(dump, self._facts)]
        self._tellers = {id(one): Teller(one, self._ledger) for one in self._all}
        self._streams = streams_of(self._all)

    def account(self) -> Account:
        pieces = itertools.count()
        for stream in self._streams:
            Seams(stream, self._tellers, self._seam_steps).compare(pieces)
        for one in self._all:
            if one.carried is None:
                self._tellers[id(one)].tell()
            self._file(one)
        self._ends()
        made = self._numbers()
        self._carried(made)
        made.verdict = self._verdict(made)
        made.lost_exact = made.verdict in (Verdict.WHOLE, Verdict.DAMAGED, Verdict.LOSSY)
        return made

    def _file(self, one: Facts) -> None:
        """What is wrong with a file as a whole."""
        place = self._tellers[id(one)].place
        gone = one.missing_records
        if one.absent:
            text = f"{one.name}: its sidecar is there, the segment is not"
            place("missing-segment", lost=gone, text=text)
        elif one.cut and one.side is not None:
            text = f"ends at byte {one.bytes}, its sidecar says {one.side.bytes}"
            place("cut-segment", offset=one.bytes, seq_before=one.last_seq, lost=gone, text=text)
        elif one.cut and not self._is_counted(one):
            assert one.walk is not None
            text = one.walk.fault.reason
            place("cut-segment", offset=one.bytes, seq_before=one.last_seq, lost=None, text=text)
        if one.doubt:
            place("bad-sidecar", lost=None, text=one.doubt)
        elif one.side is None and one.carried is None:
            place("no-sidecar", lost=None, text=f"{one.name}: no sidecar beside it")

    def _is_counted(self, one: Facts) -> bool:
        """Whether the file after it has said how much the cut took."""
        return any(p.kind == "cut-segment" and p.file == one.name for p in self._ledger.places)

    def _ends(self) -> None:
        """A segment is ended by its size only where more follows: it should be here."""
        for stream in self._streams:
            last = stream.files[-1]
            side, path = last.side, last.segment.path
            if not stream.numbered or side is None or path is None or last.absent:
                continue
            if side.cause == "rotate-size" and path.parent in self._directories:
                text = f"{last.name} was ended by its size, and what followed is not here"
                self._tellers[id(last)].place("missing-segment", lost=None, text=text)

    def _numbers(self) -> Account:
        ledger, found = self._ledger, self._facts
        full = [one for one in found if one.first_seq is not None]
        sides = [one.side for one in self._all if one.side and not one.absent]
        made = Account(
            lost=ledger.lost,
            gaps=ledger.gaps,
            rejected_records=sum(s.rejects.records for s in sides if s.rejects),
            rejected_bytes=sum(s.rejects.bytes for s in sides if s.rejects),
            duplicates=ledger.kinds[DUPLICATE],
            sequence_resets=ledger.kinds[RESET],
            glitches=sum(teller.glitches for teller in self._tellers.values()),
        )
        for name in ("records", "wrap_markers", "truncated", "bytes"):
            setattr(made, name, sum(getattr(one, name) for one in found))
        if full:
            made.first_seq, made.last_seq = full[0].first_seq, full[-1].last_seq
            made.first_ts_ns, made.last_ts_ns = full[0].first_ts, full[-1].last_ts
        made.files = [one.name for one in found]
        made.epochs = self._epochs()
        made.places = ledger.in_order()
        made.unlisted = sum(ledger.dropped.values())
        made.reasons = self._reasons(made.places)
        made.clock_steps = self._clock_steps()
        made.begins = self._begins()
        made.problems = [one.walk.fault for one in found if one.walk and one.walk.fault]
        made.boundaries = self._boundaries(made)
        return made

    def _reasons(self, places: list[Place]) -> list[Reason]:
        made = []
        for place in places:
            if place.is_loss:
                made.append(_reason(place))
            if place.lost and place.rejected and place.kind != "rejects":
                made.append(replace(made[-1], kind="rejects", count=place.rejected))
        for kind, count in self._ledger.dropped.items():
            if kind not in OTHER_KINDS:
                lost = self._ledger.dropped_lost[kind]
                made.append(Reason(kind, lost, text=f"{count} more, not listed one by one"))
        return made

    def _epochs(self) -> list[Epoch]:
        made: list[Epoch] = []
        last: Facts | None = None
        for one in self._facts:
            if one.carried and one.carried.get("epochs"):
                made += [
                    known_fields(Epoch, {**epoch, "segment": one.index})
                    for epoch in one.carried["epochs"]
                ]
            elif last is None or last.piece != one.piece or last.carried:
                made.append(_epoch(one))
            else:
                made[-1] = _longer(made[-1], one)
            last = one
        return made

    def _clock_steps(self) -> list[ClockStep]:
        made = [_seam_step(step) for step in self._seam_steps]
        for one in self._facts:
            if one.carried is not None:
                continue
            told = [] if one.side is None else one.side.clock_steps or []
            made += [
                ClockStep(
                    *(one.epoch, one.index, one.name, step.offset, step.ts_before),
                    *(step.ts_after, step.step_ns, step.host_ns),
                )
                for step in told
            ]
            known = {step.offset for step in told}
            made += [
                ClockStep(one.epoch, one.index, one.name, s.offset, s.ts_before, s.ts_after)
                for s in (one.walk.steps if one.walk else ())
                if s.offset not in known
            ]
        return sorted(made, key=lambda step: (step.segment, step.offset))

    def _begins(self) -> str | None:
        found = []
        for stream in self._streams:
            first = stream.files[0]
            if stream.numbered and first.series and first.series[1] > 1 and first.seq_range:
                found.append(f"begins at segment {first.series[1]}, seq {first.seq_range[0]}")
        return "; ".join(found) or None

    def _boundaries(self, made: Account) -> list[list[int]]:
        found: list[set[int]] = [set() for _ in self._facts]
        for place in made.places:
            sequence = place.is_loss and (place.lost or place.rejected)
            if place.offset is not None and (sequence or place.kind == RESET):
                found[place.segment].add(place.offset)
        for step in made.clock_steps:
            found[step.segment].add(step.offset)
        for epoch in made.epochs:
            found[epoch.segment].add(epoch.offset)
        for one, before in zip(self._facts[1:], self._facts, strict=False):
            if not self._adjoin(before, one):
                found[one.index].add(0)
        return [sorted(offsets) for offsets in found]

    def _adjoin(self, before: Facts, one: Facts) -> bool:
        """Whether a file is read right after the one that it follows."""
        for stream in self._streams:
            at = [file.index for file in stream.files if not file.absent]
            if one.index in at:
                place = at.index(one.index)
                return place > 0 and at[place - 1] == before.index and not before.cut
        return False

    def _carried(self, made: Account) -> None:
        """Add the accounts that files bring along."""
        for one in self._facts:
            if one.carried is None:
                continue
            theirs = Account.from_dict(one.carried)
            made.reasons += theirs.reasons
            made.places += [_place(one, reason) for reason in theirs.reasons]
            for name in ("lost", "gaps", "rejected_records", "rejected_bytes"):
                setattr(made, name, getattr(made, name) + getattr(theirs, name))
            for name in ("duplicates", "sequence_resets", "glitches"):
                setattr(made, name, getattr(made, name) + getattr(theirs, name))
            steps = [
                known_fields(ClockStep, {**s.as_dict(), "segment": one.index})
                for s in theirs.clock_steps
            ]
            made.clock_steps += steps
            made.begins = made.begins or theirs.begins
            offsets = {p.offset for p in (_place(one, r) for r in theirs.reasons) if p.offset}
            offsets |= {step.offset for step in steps} | set(made.boundaries[one.index])
            made.boundaries[one.index] = sorted(offsets)

    def _verdict(self, made: Account) -> Verdict:
        kinds = {reason.kind for reason in made.reasons}
        if any(r.count is None and r.kind not in UNVERIFIED_KINDS for r in made.reasons):
            return Verdict.INCOMPLETE
        if made.lost:
            return Verdict.LOSSY
        if kinds - UNVERIFIED_KINDS or made.rejected_records or made.rejected_bytes:
            return Verdict.DAMAGED
        unordered = any(not stream.ordered for stream in self._streams)
        return Verdict.UNVERIFIED if kinds or unordered else Verdict.WHOLE


def _reason(place: Place) -> Reason:
    count = place.rejected if place.kind == "rejects" and not place.lost else place.lost
    return Reason(
        *(place.kind, count, place.epoch, place.seq_before, place.seq_after, place.file),
        *(place.offset, place.ts_ns, place.host_ns, place.text),
    )


def _place(one: Facts, reason: Reason) -> Place:
    rejects = reason.kind == "rejects"
    return Place(
        reason.kind,
        one.index,
        one.name,
        offset=reason.offset,
        epoch=reason.epoch,
        seq_before=reason.seq_before,
        seq_after=reason.seq_after,
        lost=0 if rejects else reason.count,
        rejected=(reason.count or 0) if rejects else 0,
        ts_ns=reason.fw_ns,
        host_ns=reason.host_ns,
        text=reason.text,
    )


def _epoch(one: Facts) -> Epoch:
    return Epoch(
        *(one.epoch, one.index, 0, one.records),
        *(one.first_seq, one.last_seq, one.first_ts, one.last_ts),
    )


def _longer(epoch: Epoch, one: Facts) -> Epoch:
    first, last = epoch.first_seq is not None, one.last_seq is not None
    return Epoch(
        epoch.number if epoch.number is not None else one.epoch,
        *(epoch.segment, epoch.offset, epoch.records + one.records),
        epoch.first_seq if first else one.first_seq,
        one.last_seq if last else epoch.last_seq,
        epoch.first_ts_ns if first else one.first_ts,
        one.last_ts if last else epoch.last_ts_ns,
    )


def _seam_step(step: SeamStep) -> ClockStep:
    one = step.file
    return ClockStep(
        *(one.epoch, one.index, one.name, 0, step.ts_before, step.ts_after, step.step_ns)
    )


def _absent(dump: Dump, present: list[Facts]) -> list[Facts]:
    """Segments of a directory of which only the sidecars are left; not those before the first."""
    found: list[Facts] = []
    for directory in dump.directories:
        stems = {segment_names.stem_of(s.path.name) for s in dump.segments if s.path}
        lowest: dict[str, int] = {}
        for one in present:
            if one.series and one.segment.path and one.segment.path.parent == directory:
                label, number = one.series
                lowest[label] = min(number, lowest.get(label, number))
        for path in sorted(directory.glob("*" + segment_names.SIDECAR)):
            if segment_names.stem_of(path.name) in stems:
                continue
            side = sidecar.look(path.with_name(segment_names.stem_of(path.name) + ".bin"))
            if not isinstance(side, sidecar.Sidecar) or side.filtered:
                continue
            label = str(directory / side.label)
            if label in lowest and side.number > lowest[label]:
                found.append(_absent_facts(path, side, present, label))
    return found


def _absent_facts(path: Path, side: sidecar.Sidecar, present: list[Facts], label: str) -> Facts:
    """Listed with the file that would be read after it."""
    later = [
        one.index
        for one in present
        if one.series and one.series[0] == label and one.series[1] > side.number
    ]
    index = min(later, default=len(present) - 1)
    return _facts.of_absent(index, path.with_suffix(".bin"), side)


def clock_pairs(dump: Dump) -> list[sidecar.ClockPair]:
    """Firmware and host clock pairs of all sidecars, in order of the firmware clock."""
    pairs = [pair for segment in dump.segments if segment.known for pair in segment.known.clock]
    return sorted(pairs, key=lambda pair: pair.ts_ns)


def is_stream(dump: Dump) -> bool:
    """Whether a part of the dump can be read only once."""
    return any(segment.kind is Kind.STREAM for segment in dump.segments)


__all__ = [
    "ACCOUNT_KEY",
    "Account",
    "Accountant",
    "ClockStep",
    "Epoch",
    "Reason",
    "Stream",
    "Verdict",
    "account",
    "is_stream",
]

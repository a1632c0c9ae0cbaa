# SPDX-License-Identifier: Apache-2.0
"""The account: what a capture is missing, worked out once, told by every tool.

Four sources: the walk over the records, the sidecars, the rejects, and the seams between files
(SPEC R12, R15, R16). A sidecar speaks only for its own file; what a walk saw is never overruled.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hmb_trace.dumps import facts as _facts
from hmb_trace.dumps import segment_names, sidecar
from hmb_trace.dumps.dump import Dump, DumpError, Span
from hmb_trace.dumps.facts import Facts
from hmb_trace.dumps.filewalk import FileWalk, FileWalker
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.places import (
    CLOCK,
    DUPLICATE,
    EPOCH,
    OTHER_KINDS,
    RESET,
    UNVERIFIED_KINDS,
    Ledger,
    Place,
)
from hmb_trace.dumps.seams import Seams, SeamStep, Stream, streams_of
from hmb_trace.dumps.told import Teller
from hmb_trace.dumps.walker import Tally
from hmb_trace.errors import EXIT_DATA_PROBLEM, EXIT_OK

ACCOUNT_KEY = "account"  # of Account.as_dict() in a .pccx header's own object and in sidecars
_CACHE = "_account"


class Verdict(enum.StrEnum):
    """What can be said of a capture as a whole."""

    WHOLE = "whole"  # every file has a good sidecar, every seam fits, nothing missing or rejected
    DAMAGED = "damaged"  # nothing is missing, but bytes were no records: kept in the rejects
    LOSSY = "lossy"  # so many records are missing, and it is known where
    INCOMPLETE = "incomplete"  # something is missing, and its extent cannot be known
    UNVERIFIED = "unverified"  # no gap can be seen, but there is no sidecar to say more


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a verdict that is not `whole`.

    Attributes:
        kind: of places.LOSS_KINDS.
        count: records lost; for `rejects` those set aside; None: unknown.
        offset: of the record after it, bytes from the start of its file.
        fw_ns, host_ns: when, on the firmware's and the host's clock.
    """

    kind: str
    count: int | None = None
    epoch: int | None = None
    seq_before: int | None = None
    seq_after: int | None = None
    file: str | None = None
    offset: int | None = None
    fw_ns: int | None = None
    host_ns: int | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Its fields by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of the dump in which seq and ts_ns mean something, in reading order.

    Attributes:
        number: as the capture counts them; None where nothing says.
        segment, offset: where it begins.
    """

    number: int | None
    segment: int
    offset: int
    records: int
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Its fields by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The firmware clock moved against the host's, or went back: a new piece begins at offset."""

    epoch: int | None
    segment: int
    file: str
    offset: int
    ts_before: int
    ts_after: int
    step_ns: int | None = None  # against the host's clock; None where nothing says
    host_ns: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Its fields by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass
class Account:
    """What a dump holds and what it is missing.

    Attributes:
        lost: records, the known part; lost_exact: whether that is all.
        gaps: places with lost records.
        begins: "begins at segment N, seq M" where earlier ones are not there: no loss.
        places: everything that `hmb-trace gaps` lists, as the dump is read (see Place); at most
            places.PLACES_KEPT, `unlisted` says how many more.
        problems: a DumpError for each file that ends inside a record or is damaged.
    """

    verdict: Verdict = Verdict.WHOLE
    reasons: list[Reason] = field(default_factory=list)
    records: int = 0
    lost: int = 0
    lost_exact: bool = True
    gaps: int = 0
    rejected_records: int = 0
    rejected_bytes: int = 0
    duplicates: int = 0
    sequence_resets: int = 0
    glitches: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    clock_steps: list[ClockStep] = field(default_factory=list)
    begins: str | None = None
    wrap_markers: int = 0
    truncated: int = 0
    bytes: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    places: list[Place] = field(default_factory=list)
    unlisted: int = 0
    problems: list[DumpError] = field(default_factory=list)
    boundaries: list[list[int]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def rows(self) -> list[Place]:
        """What `hmb-trace gaps` lists: the places, and where epochs and clock pieces begin."""
        epochs = [
            Place(EPOCH, e.segment, self.files[e.segment], e.offset, e.number, ts_ns=e.first_ts_ns)
            for e in self.epochs[1:]
        ]
        steps = [
            Place(
                CLOCK,
                s.segment,
                s.file,
                s.offset,
                s.epoch,
                ts_ns=s.ts_after,
                host_ns=s.host_ns,
                text=f"from {s.ts_before} to {s.ts_after} ns",
            )
            for s in self.clock_steps
        ]
        listed = [place for place in self.places if place.kind != "no-sidecar"]
        return sorted([*epochs, *listed, *steps], key=lambda place: place.order)

    @property
    def exit_code(self) -> int:
        """For --strict."""
        good = (Verdict.WHOLE, Verdict.UNVERIFIED)
        return EXIT_OK if self.verdict in good else EXIT_DATA_PROBLEM

    def line(self) -> str:
        """The verdict in one line, as commands close with it."""
        return f"{self.verdict}: {_SAY[self.verdict](self)}"

    def as_dict(self) -> dict[str, Any]:
        """The same in JSON, wherever it is embedded (`account` in .pccx headers, for example)."""
        made = {name: getattr(self, name) for name in _PLAIN}
        made["verdict"] = str(self.verdict)
        for name in ("reasons", "epochs", "clock_steps"):
            made[name] = [one.as_dict() for one in getattr(self, name)]
        return made

    @classmethod
    def from_dict(cls, made: dict[str, Any]) -> Account:
        """The account that as_dict() made; keys that are absent or unknown do not matter."""
        found = cls(**{name: made[name] for name in _PLAIN if name in made})
        found.verdict = _verdict_of(made.get("verdict"))
        found.reasons = [_known(Reason, one) for one in made.get("reasons") or ()]
        found.epochs = [_known(Epoch, one) for one in made.get("epochs") or ()]
        found.clock_steps = [_known(ClockStep, one) for one in made.get("clock_steps") or ()]
        return found


_PLAIN = [
    "verdict",
    "reasons",
    "lost",
    "lost_exact",
    "gaps",
    "rejected_records",
    "rejected_bytes",
    "duplicates",
    "sequence_resets",
    "glitches",
    "epochs",
    "clock_steps",
    "begins",
    "records",
    "wrap_markers",
    "truncated",
    "bytes",
    "first_seq",
    "last_seq",
    "first_ts_ns",
    "last_ts_ns",
]


def _known(kind: Any, made: dict[str, Any]) -> Any:
    names = {one.name for one in fields(kind)}
    return kind(**{name: value for name, value in made.items() if name in names})


def _verdict_of(text: object) -> Verdict:
    return Verdict(str(text)) if text in list(Verdict) else Verdict.UNVERIFIED


# ---- the verdict in words ----


def _count(number: int, what: str, plural: str = "") -> str:
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def _kinds(account: Account, *, unknown: bool) -> str:
    kinds = dict.fromkeys(
        reason.kind
        for reason in account.reasons
        if reason.kind not in UNVERIFIED_KINDS
        and (reason.count is None if unknown else bool(reason.count) and reason.kind != "rejects")
    )
    return f" ({', '.join(kinds)})" if kinds else ""


def _say_lossy(account: Account) -> str:
    lost = _count(account.lost, "record")
    return f"{lost} lost in {_count(account.gaps, 'gap')}{_kinds(account, unknown=False)}"


def _say_incomplete(account: Account) -> str:
    unknown = sum(r.count is None and r.kind not in UNVERIFIED_KINDS for r in account.reasons)
    losses = _count(unknown, "loss", "losses")
    more = f"{losses} of unknown extent{_kinds(account, unknown=True)}"
    return f"at least {_say_lossy(account)}, and {more}" if account.lost else more


def _say_damaged(account: Account) -> str:
    if not account.rejected_records and not account.rejected_bytes:
        return "no record is missing, but a part of the set is"
    set_aside = f"{_count(account.rejected_records, 'record')}, {account.rejected_bytes:,} bytes"
    return f"nothing is missing, but bytes were no records; set aside in the rejects: {set_aside}"


def _say_unverified(account: Account) -> str:
    without = sum(reason.kind in UNVERIFIED_KINDS for reason in account.reasons)
    files = "a file" if without == 1 else f"{without:,} files"
    return f"no gap can be seen, but {files} without a good sidecar cannot say more"


_SAY = {
    Verdict.WHOLE: lambda account: "nothing is missing",
    Verdict.DAMAGED: _say_damaged,
    Verdict.LOSSY: _say_lossy,
    Verdict.INCOMPLETE: _say_incomplete,
    Verdict.UNVERIFIED: _say_unverified,
}


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
                    _known(Epoch, {**epoch, "segment": one.index})
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
                _known(ClockStep, {**s.as_dict(), "segment": one.index}) for s in theirs.clock_steps
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

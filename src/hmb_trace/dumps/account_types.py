# SPDX-License-Identifier: Apache-2.0
"""The account's shape: verdict, reasons, epochs, clock steps; as one line and as JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import Any

from hmb_trace.dumps.dump import DumpError
from hmb_trace.dumps.places import CLOCK, EPOCH, UNVERIFIED_KINDS, Place
from hmb_trace.errors import EXIT_DATA_PROBLEM, EXIT_OK


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
        found.reasons = [known_fields(Reason, one) for one in made.get("reasons") or ()]
        found.epochs = [known_fields(Epoch, one) for one in made.get("epochs") or ()]
        found.clock_steps = [known_fields(ClockStep, one) for one in made.get("clock_steps") or ()]
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


def known_fields(kind: Any, made: dict[str, Any]) -> Any:
    """A dataclass from those keys of an object that it has."""
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

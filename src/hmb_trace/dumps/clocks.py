# SPDX-License-Identifier: Apache-2.0
"""What stands beside a file, or in it, about its clocks: pairs, steps, epochs (SPEC R16)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmb_trace.dumps.batch import ClockCut
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.packaged import Packaged
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import ClockPair, Sidecar
from hmb_trace.errors import HmbTraceError


@dataclass
class ClockFacts:
    """What is told of one file.

    Attributes:
        steps: where the clock is another, in order; None: it was not looked for.
        step_hosts: host time of each step, where it is known.
        numbers: the epoch that each step begins, where one does and has a number.
        breaks: offsets where records are missing, for reasons that no seq shows.
        selected: the file holds a selection: what its seqs skip was left out on purpose.
    """

    epoch: int | None = None
    first_ts_ns: int | None = None
    started_ns: int = 0
    pairs: list[ClockPair] = field(default_factory=list)
    steps: list[ClockCut] | None = None
    step_hosts: list[int | None] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    selected: bool = False


def clock_facts(segment: Segment) -> ClockFacts | None:
    """What is told of a file; None: nothing."""
    if segment.kind is Kind.PCCX:
        return _of_package(segment)
    return _of_sidecar(segment.known) if segment.known else None


def _of_sidecar(known: Sidecar) -> ClockFacts:
    found = ClockFacts(known.epoch, known.first_ts_ns, known.started_ns, list(known.clock))
    found.selected = known.filtered is not None
    found.breaks = [r.offset for r in known.reasons or () if r.offset is not None and r.count]
    if known.clock_steps is not None:
        _add_steps(
            found, [(s.offset, s.ts_before, s.ts_after, s.host_ns) for s in known.clock_steps]
        )
    if known.account:
        _add_account(found, known.account)
    return found


def _of_package(segment: Segment) -> ClockFacts | None:
    try:
        package = segment.packaged
    except HmbTraceError:
        return None  # who reads the records says what is wrong with it
    if package is None:
        return None
    if package.encoding != "raw":
        return _of_events(package)
    about = package.about
    found = ClockFacts(pairs=[pair for part in package.clocks() for pair in part.pairs])
    made = about.get("account")
    if isinstance(made, Mapping):
        found.epoch = _epochs(made)[0].get("number") if _epochs(made) else None
        found.first_ts_ns = _number(made.get("first_ts_ns"))
        _add_account(found, made)
    return found


def _of_events(package: Packaged) -> ClockFacts:
    """Offsets in the header are those of the dump, and a flatbuf is sorted by time.

    So where one clock ends and the next begins is not known, and pairs of several say nothing.
    """
    clocks = package.clocks()
    found = ClockFacts(pairs=list(clocks[0].pairs) if len(clocks) == 1 else [], steps=[])
    found.step_hosts, found.numbers = [], []
    made = package.about.get("account")
    epochs = _epochs(made) if isinstance(made, Mapping) else []
    if len(epochs) == 1:
        found.epoch = _number(epochs[0].get("number"))
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _rows(made: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = [one for one in made.get(key) or () if isinstance(one, Mapping)]
    return [one for one in found if not one.get("segment")]  # offsets of other files mean nothing


def _epochs(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _rows(made, "epochs")


def _add_steps(
    found: ClockFacts, told: Sequence[tuple[int, int, int, int | None]], *, epoch: bool = False
) -> None:
    """Steps that are not there yet, kept in order."""
    steps = found.steps or []
    known = {step.offset for step in steps}
    rows = list(zip(steps, found.step_hosts, found.numbers, strict=True))
    for offset, before, after, host in told:
        if offset not in known:
            rows.append((ClockCut(offset, before, after, epoch), host, None))
    rows.sort(key=lambda row: row[0].offset)
    found.steps = [row[0] for row in rows]
    found.step_hosts = [row[1] for row in rows]
    found.numbers = [row[2] for row in rows]


def _add_account(found: ClockFacts, made: Mapping[str, Any]) -> None:
    """Epochs, steps and losses of an account whose offsets are those of this file."""
    steps = [
        (one["offset"], one["ts_before"], one["ts_after"], _number(one.get("host_ns")))
        for one in _rows(made, "clock_steps")
        if all(isinstance(one.get(key), int) for key in ("offset", "ts_before", "ts_after"))
    ]
    epochs = _epochs(made)
    begins = [
        (one["offset"], before["last_ts_ns"], one["first_ts_ns"], None)
        for before, one in itertools.pairwise(epochs)
        if isinstance(one.get("offset"), int)
        and isinstance(before.get("last_ts_ns"), int)
        and isinstance(one.get("first_ts_ns"), int)
    ]
    _add_steps(found, begins, epoch=True)
    numbers = {one.get("offset"): _number(one.get("number")) for one in epochs[1:]}
    found.numbers = [numbers.get(step.offset) for step in found.steps or ()]
    _add_steps(found, steps)
    if found.selected:
        offsets = [_number(one.get("offset")) for one in _rows(made, "reasons")]
        found.breaks += [offset for offset in offsets if offset is not None]

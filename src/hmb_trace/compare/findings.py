# SPDX-License-Identifier: Apache-2.0
"""From tests to statements: what changed, by how much, how sure, and where to look."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hmb_trace.catalog.model import Catalog
from hmb_trace.compare.measure import bucket_edge
from hmb_trace.compare.metrics import Metric, Sides
from hmb_trace.compare.significance import adjusted_p

ALPHA = 0.01  # of all statements of one comparison together
LEAST_BLOCKS = 8  # of a side: with fewer nothing can be told from chance
_RARE = 20  # records of an event: with fewer its absence may be chance
_LEAST_RATIO = 0.005  # of a mean or a rate
_LEAST_POINTS = 0.002  # of a share


@dataclass(frozen=True)
class Finding:
    """One difference between base and new.

    Attributes:
        kind: new, gone, loss, rate, share, core, order, length, field, bit, value, text, duration,
            jitter, first.
        subject: what it is about, in words of the catalog.
        text: the statement, without the subject.
        base, new: the numbers compared; None where there is none.
        unit: of both.
        effect: log2 of new / base; infinite for what only one side has.
        p: adjusted for all tests; 0: certain, nothing was estimated.
        opcodes: of the records concerned.
        seqs: of some of them, on the side that has them.
        also: other measures of the same thing that changed too.
        series: the number in every block of base and of new (NaN: nothing there), for a picture.
    """

    kind: str
    subject: str
    text: str
    base: float | None
    new: float | None
    unit: str
    effect: float
    p: float
    opcodes: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    series: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())

    def as_dict(self) -> dict[str, Any]:
        """JSON: infinite effects as null, without the series."""
        shown = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "series"
        }
        shown["effect"] = self.effect if math.isfinite(self.effect) else None
        return shown


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        findings: the strongest first.
        unsure: statements that cannot be made, and why.
        tests: comparisons made.
        blocks: usable ones of base and of new.
    """

    findings: list[Finding] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    tests: int = 0
    blocks: tuple[int, int] = (0, 0)

    @property
    def verdict(self) -> str:
        """ "same", "changed" or "cannot say"."""
        if self.findings:
            return "changed"
        return "cannot say" if self.unsure else "same"

    @property
    def exit_code(self) -> int:
        """0 the same, 1 changed, 2 cannot say."""
        return ("same", "changed", "cannot say").index(self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """The object of `diff --json`."""
        return {
            "kind": "diff",
            "verdict": self.verdict,
            "tests": self.tests,
            "blocks": list(self.blocks),
            "findings": [finding.as_dict() for finding in self.findings],
            "unsure": self.unsure,
        }


@dataclass(frozen=True)
class Losses:
    """What is missing on a side: records, and whether that is all (SPEC R12, the account)."""

    lost: int = 0
    exact: bool = True

    def could_hide(self, expected: float) -> bool:
        """Whether so many records could all be among the lost ones."""
        # Three standard deviations below what was expected, at the least.
        return not self.exact or self.lost >= expected - 3 * math.sqrt(expected) - 1

    @property
    def any(self) -> bool:
        return bool(self.lost) or not self.exact


def compare(
    sides: Sides, catalog: Catalog | None, lost: tuple[Losses, Losses] = (Losses(), Losses())
) -> Comparison:
    """Everything that differs between the two sides by more than chance."""
    found = Comparison(blocks=sides.blocks)
    names = Names(catalog)
    vocabulary = _Vocabulary(sides, names, lost, found)
    found.findings += vocabulary.findings()
    found.findings += _losses(lost)
    if min(found.blocks) < LEAST_BLOCKS:
        found.unsure.append(
            f"{min(found.blocks)} blocks of records without a loss on one side, at least "
            f"{LEAST_BLOCKS} are needed: rates, shares, durations and payloads were not compared"
        )
    else:
        found.findings += _tested(sides, names, vocabulary.said, found)
        found.findings += _first_occurrences(sides, names)
    found.findings.sort(key=_rank)
    return found


_ORDER = (
    *("loss", "new", "gone", "rate", "duration", "bit", "value", "text", "share", "first"),
    *("field", "order", "length", "core", "jitter"),
)


def _rank(finding: Finding) -> tuple[float, int, float]:
    certain = finding.kind in ("loss", "new", "gone")
    return (0 if certain else 1, _ORDER.index(finding.kind), -abs(finding.effect))


class Names:
    """Subjects in the words of the catalog."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._catalog = catalog

    def event(self, opcode: int) -> str:
        """The event's name, or the opcode."""
        return self._catalog.name_of(opcode) if self._catalog else f"{opcode:#06x}"

    def knows_all(self, opcodes: Iterable[int]) -> bool:
        """Whether the catalog has all of these."""
        return self._catalog is not None and all(self._catalog.get(o) for o in opcodes)

    def label(self, opcode: int, name: str, value: int) -> str:
        """A payload value, by its label where there is one."""
        event = self._catalog.get(opcode) if self._catalog else None
        made = event.field(name) if event else None
        return str(made.label(value)) if made else str(value)

    def key(self, opcode: int, which: str, value: int) -> str:
        """A pair's key: "die 3", "core 1"."""
        event = self._catalog.get(opcode) if self._catalog else None
        name = "core" if which == "core" or event is None else event.key
        return f"{'core' if name == 'cpu' else name} {value}"


# ---- what only one side has


class _Vocabulary:
    """Events, values and texts that one side never had."""

    def __init__(
        self, sides: Sides, names: Names, lost: tuple[Losses, Losses], into: Comparison
    ) -> None:
        self._sides, self._names, self._lost, self._into = sides, names, lost, into
        self.said: set[tuple[Any, ...]] = set()  # subjects that need no further statement

    def findings(self) -> Iterator[Finding]:
        sides = self._sides
        counts = sides.totals("opcodes")
        for opcode, (base, new) in counts.items():
            yield from self._event(opcode, base, new, counts.values())
        for (opcode, name), table in sides.value_totals().items():
            closed = _closed(table.values())
            for value, (base, new) in table.items():
                if closed and len(table) <= 16 and (opcode,) not in self.said:
                    yield from self._value(opcode, name, value, base, new)

    def _event(
        self, opcode: int, base: float, new: float, all_counts: Iterable[tuple[float, float]]
    ) -> Iterator[Finding]:
        if base and new:
            return
        q = self._sides.records[1] / sum(self._sides.records)
        chance = (q if new else 1 - q) ** (base or new)
        rare = sum(1 for pair in all_counts if sum(pair) < _RARE)
        if min(1.0, rare * chance) > ALPHA and not (new and self._closed(opcode, all_counts)):
            return
        side = "new" if new else "base"
        name = self._names.event(opcode)
        self.said.add((opcode,))
        missing_on = 0 if new else 1
        expected = (
            (base or new) * self._sides.records[missing_on] / self._sides.records[1 - missing_on]
        )
        if self._lost[missing_on].could_hide(expected) and self._lost[missing_on].any:
            self._into.unsure.append(
                f"{name}: {int(base or new)} records on the {side} side, none on the other, which "
                "lost enough records to hide as many"
            )
            return
        seqs = self._sides.samples(opcode, 1 if new else 0)
        text = (
            f"never in the base, {int(new)} records now"
            if new
            else f"{int(base)} records in the base, none now"
        )
        kind = "new" if new else "gone"
        effect = math.inf if new else -math.inf
        yield Finding(kind, name, text, base, new, "records", effect, 0.0, (opcode,), seqs)

    def _closed(self, opcode: int, all_counts: Iterable[tuple[float, float]]) -> bool:
        """Whether the base had all the events there are: then one record of a new one is news."""
        if self._names.knows_all(
            op for op, (base, _) in self._sides.totals("opcodes").items() if base
        ):
            return not self._names.knows_all([opcode]) or _closed(all_counts)
        return _closed(all_counts)

    def _value(
        self, opcode: int, name: str, value: int, base: float, new: float
    ) -> Iterator[Finding]:
        if base or not new or new < 2 or self._lost[0].any:
            return
        self.said.add((opcode, name, value))
        subject = f"{self._names.event(opcode)}.{name}"
        label = self._names.label(opcode, name, value)
        text = f"value {label} never in the base, {int(new)} records now"
        seqs = self._sides.samples(opcode, 1)
        yield Finding("new", subject, text, 0, new, "records", math.inf, 0.0, (opcode,), seqs)


def _closed(counts: Iterable[tuple[float, float]]) -> bool:
    """Whether everything in the base is frequent: then what it lacks was not missed by chance."""
    return all(base >= _RARE for base, _ in counts if base)


def _losses(lost: tuple[Losses, Losses]) -> Iterator[Finding]:
    base, new = lost
    if not base.any and new.any:
        least = "" if new.exact else "at least "
        text = f"nothing was missing in the base, {least}{new.lost:,} records are lost now"
        yield Finding("loss", "capture", text, 0, new.lost, "records", math.inf, 0.0)


# ---- what was tested


def _tested(
    sides: Sides, names: Names, said: set[tuple[Any, ...]], into: Comparison
) -> Iterator[Finding]:
    metrics = list(sides.metrics())
    into.tests = len(metrics)
    if not metrics:
        return
    rows = [np.array([m.rows[side] for m in metrics]) for side in (0, 1)]
    _, p = adjusted_p(rows[0], rows[1])
    drift, displaced = _common_drift(metrics), _displaced(metrics, said)
    groups: dict[tuple[Any, ...], list[tuple[Metric, float]]] = defaultdict(list)
    for metric, chance in zip(metrics, p.tolist(), strict=True):
        if chance <= ALPHA and _large(metric, drift) and not _told(metric, said, displaced):
            groups[_group(metric)].append((metric, chance))
    groups = _without_consequences(groups, _moves(metrics))
    for group in groups.values():
        yield _statement(group, names, sides)


def _told(metric: Metric, said: set[tuple[Any, ...]], displaced: dict[int, float]) -> bool:
    """Whether it only repeats that an event is new or gone, directly or by what it displaced."""
    if metric.kind == "order":
        moved = abs(metric.new - metric.base)
        if (metric.subject[0],) in said or moved <= 1.5 * displaced.get(metric.subject[0], 0.0):
            return True
    return any(metric.subject[: len(known)] == known for known in said)


def _displaced(metrics: list[Metric], said: set[tuple[Any, ...]]) -> dict[int, float]:
    """By event: how often it is followed by one that only one side has."""
    found: dict[int, float] = defaultdict(float)
    for metric in metrics:
        if metric.kind == "order" and metric.subject[1:] in said:
            found[metric.subject[0]] += abs(metric.new - metric.base)
    return found


def _common_drift(metrics: list[Metric]) -> float:
    """Where the share of most events went: one event's loss is a gain for all the others."""
    moved = [(_log(m), m.base_count) for m in metrics if m.kind == "share" and m.base and m.new]
    if not moved:
        return 0.0
    moved.sort()
    half, passed = sum(weight for _, weight in moved) / 2, 0.0
    for value, weight in moved:
        passed += weight
        if passed >= half:
            return value
    return 0.0


def _log(metric: Metric) -> float:
    if metric.subject[-1:] == ("level",):  # is a mean of logarithms already
        return metric.new - metric.base
    if metric.base <= 0 or metric.new <= 0:
        return math.inf if metric.new > metric.base else -math.inf
    return math.log2(metric.new / metric.base)


def _large(metric: Metric, drift: float) -> bool:
    """Whether anybody would care: a difference may be certain and tiny."""
    moved = _log(metric)
    if metric.kind == "share":
        return abs(moved - drift) > _LEAST_RATIO
    if metric.kind in ("rate", "jitter") or metric.subject[-1] in ("mean", "level"):
        return abs(moved) > _LEAST_RATIO * math.log2(math.e)
    return abs(metric.new - metric.base) > _LEAST_POINTS or abs(moved) > 1


def _group(metric: Metric) -> tuple[Any, ...]:
    """Metrics of one thing make one finding."""
    kind, subject = metric.kind, metric.subject
    if kind == "duration":
        return (kind, *subject[: 3 if subject[1] in ("key", "core") else 1])
    if kind in ("field", "bit", "value"):
        return ("payload", subject[0], subject[1])
    if kind in ("order", "core", "text"):
        return (kind, subject[0])
    return (kind, *subject[:1])


def _moves(metrics: list[Metric]) -> dict[tuple[Any, ...], float]:
    """How far the mean of every pair, and of each of its keys, moved: log2 of the ratio."""
    means = [m for m in metrics if m.kind == "duration" and m.subject[-1] == "mean"]
    return {_group(metric): _log(metric) for metric in means}


def _without_consequences(
    groups: dict[tuple[Any, ...], list[tuple[Metric, float]]], moves: dict[tuple[Any, ...], float]
) -> dict[tuple[Any, ...], list[tuple[Metric, float]]]:
    """A pair's mean moves because one key's does: the key is told, or the pair where all moved."""
    kept = dict(groups)
    for opcode in {group[1] for group in groups if group[0] == "duration"}:
        whole = ("duration", opcode)
        keys = [g for g in groups if g[:2] == whole and len(g) == 4]
        tested = sum(1 for g in moves if g[:2] == whole and len(g) == 4)
        for dropped in _explained(keys, whole, tested, moves):
            kept.pop(dropped, None)
    return kept


def _explained(
    keys: list[tuple[Any, ...]],
    whole: tuple[Any, ...],
    tested: int,
    moves: dict[tuple[Any, ...], float],
) -> Iterator[tuple[Any, ...]]:
    """Which of a pair's groups say nothing of their own."""
    many = 2 * len(keys) >= tested
    common = moves.get(whole, 0.0) if many else 0.0
    own = {group: abs(moves[group] - common) for group in keys}
    strongest = max(own.values(), default=0.0)
    # Where all keys moved, one is news only if it stands out of the spread of the others.
    spread = 6 * float(np.median(list(own.values()))) if keys and many else 0.0
    for group in keys:
        if own[group] < strongest / 2 or (many and own[group] <= max(abs(common), spread)):
            yield group
    if keys and not many and strongest > 2 * abs(moves.get(whole, 0.0)):
        yield whole


def _statement(group: list[tuple[Metric, float]], names: Names, sides: Sides) -> Finding:
    group = sorted(group, key=_plainness)
    metric, chance = group[0]
    told = [_words(m, names) for m, _ in group]
    opcodes = tuple(v for v in metric.subject[:1] if isinstance(v, int))
    seqs = sides.samples(opcodes[0], 1) or sides.samples(opcodes[0], 0) if opcodes else ()
    subject, text, unit, scale = told[0]
    series = tuple(tuple((side * scale).tolist()) for side in metric.series)
    return Finding(
        kind=metric.kind,
        subject=subject,
        text=text,
        base=metric.base * scale,
        new=metric.new * scale,
        unit=unit,
        effect=_log(metric),
        p=chance,
        opcodes=opcodes,
        seqs=seqs,
        also=tuple(
            dict.fromkeys(f"{s}: {t}" for s, t, _, _ in told[1:] if (s, t) != (subject, text))
        )[:8],
        series=(series[0], series[1]),
    )


_PLAIN = {"bit": 0, "value": 1, "field": 2}


def _plainness(entry: tuple[Metric, float]) -> tuple[int, float]:
    """What is said first: a stuck bit before a shifted mean, a mean before a tail."""
    metric, _ = entry
    if metric.kind == "bit" and metric.new not in (0.0, 1.0):
        return (3, -abs(metric.new - metric.base))
    mean_first = 0 if metric.subject[-1:] == ("mean",) else 1
    kind = _PLAIN.get(metric.kind, 2)
    return (kind + (mean_first if kind == 2 else 0), -abs(metric.new - metric.base))


def _words(metric: Metric, names: Names) -> tuple[str, str, str, float]:
    """Subject, statement, unit and the factor that brings the numbers into it."""
    kind, subject = metric.kind, metric.subject
    if kind == "rate":
        return "all records", _moved(metric, "rate", 1e9, "/s"), "records/s", 1e9
    event = names.event(subject[0])
    if kind == "share":
        return event, _points(metric, "share of all records"), "share", 1
    if kind == "core":
        return event, _points(metric, f"share on core {subject[1]}"), "share", 1
    if kind == "order":
        return (
            event,
            _points(metric, f"next on the same core is {names.event(subject[1])}"),
            "share",
            1,
        )
    if kind == "text":
        text = subject[2].rstrip(b"\0").decode("utf-8", "replace")
        return f"{event}.{subject[1]}", _points(metric, f"text {text!r}"), "share", 1
    if kind == "jitter":
        return event, _moved(metric, "irregularity of its intervals (E[x²]/E[x]²)", 1, ""), "", 1
    if kind == "bit":
        state = {0.0: "never set now", 1.0: "always set now"}.get(metric.new)
        text = f"bit {subject[2]} {state}" if state else f"bit {subject[2]} set"
        return f"{event}.{subject[1]}", _points(metric, text), "share", 1
    if kind == "value":
        label = names.label(subject[0], subject[1], subject[2])
        return f"{event}.{subject[1]}", _points(metric, f"value {label}"), "share", 1
    return _number_words(metric, names, event)


def _number_words(metric: Metric, names: Names, event: str) -> tuple[str, str, str, float]:
    kind, subject = metric.kind, metric.subject
    unit = "ns" if kind == "duration" else "bytes" if kind == "length" else ""
    rest = subject[1:]
    if kind == "field":
        event, rest = f"{event}.{subject[1]}", subject[2:]
    elif kind == "duration" and rest[0] in ("key", "core"):
        event, rest = f"{event} {names.key(subject[0], rest[0], rest[1])}", rest[2:]
    what = {"duration": "duration", "length": "payload length"}.get(kind, "value")
    if rest[0] == "level":
        base, new = 2**metric.base - 1, 2**metric.new - 1
        text = f"typical {what} {base:,.4g} -> {new:,.4g}{' ' + unit if unit else ''}"
        return event, f"{text} ({2 ** (metric.new - metric.base) - 1:+.1%})", "log2", 1
    if rest[0] == "mean":
        return event, _moved(metric, f"mean {what}", 1, f" {unit}" if unit else ""), unit, 1
    edge = bucket_edge(rest[2] << rest[3] if len(rest) > 3 else rest[2])
    return (
        event,
        _points(metric, f"{what} from {edge:,}{' ' + unit if unit else ''} up"),
        "share",
        1,
    )


def _moved(metric: Metric, what: str, scale: float, unit: str) -> str:
    base, new = metric.base * scale, metric.new * scale
    percent = f" ({new / base - 1:+.1%})" if base else ""
    return f"{what} {base:,.4g}{unit} -> {new:,.4g}{unit}{percent}"


def _points(metric: Metric, what: str) -> str:
    return f"{what}: {metric.base:.3%} -> {metric.new:.3%}"


# ---- first occurrence


def _first_occurrences(sides: Sides, names: Names) -> Iterator[Finding]:
    for opcode, (base, new) in sides.totals("opcodes").items():
        if base < _RARE or new < _RARE:
            continue
        first = [side.first_ns[opcode] for side in (sides.base, sides.new)]
        rates = [
            count / max(1, side.elapsed_ns - begin)
            for count, side, begin in zip((base, new), (sides.base, sides.new), first, strict=True)
        ]
        late = abs(first[1] - first[0]) * min(rates)
        if late < 30 or abs(math.log2((first[1] + 1) / (first[0] + 1))) < 1:
            continue
        text = f"first seen after {first[0] / 1e6:,.3f} ms -> {first[1] / 1e6:,.3f} ms"
        effect = math.log2((first[1] + 1) / (first[0] + 1))
        yield Finding(
            *("first", names.event(opcode), text, first[0], first[1], "ns"),
            *(effect, math.exp(-min(late, 700)), (opcode,), sides.samples(opcode, 1)),
        )

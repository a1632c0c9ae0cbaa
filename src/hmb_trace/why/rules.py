# SPDX-License-Identifier: Apache-2.0
"""From what a pass saw to findings: no finding without numbers, none on a healthy capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from hmb_trace.dumps.account import Account, Reason
from hmb_trace.dumps.dump import Dump
from hmb_trace.units import format_duration
from hmb_trace.why.finding import Finding, Place
from hmb_trace.why.watch import Tally, Watch

_SILENT = 20  # times the 99.99 % quantile of the intervals
_SILENT_NS = 1_000_000
_SLOW = 10  # times the median, and
_SLOW_TAIL = 3  # times the 99.9 % quantile
_BURST = 5  # times the median rate
_ENOUGH = 200  # durations of a pair: before, a quantile means nothing
_NO_LOSS = ("rejects", "bad-sidecar", "no-sidecar")
# Notes of the daemon that tell of the ring rather than of the records.
_NOTES = {
    "frozen": "firmware froze the ring (FROZEN)",
    "unknown-ring-flags": "the ring header has flags that no version defines",
    "reserved-set": "reserved fields of the ring header are not zero",
    "overrun": "firmware wrote over records that were being read",
}


def findings(dump: Dump, account: Account, watch: Watch) -> list[Finding]:
    """All findings, the most important first."""
    found = [
        *_losses(account),
        *_damage(account),
        *_restarts(account),
        *_clocks(account),
        *_order(account),
        *_ring(dump),
        *_errors(watch),
        *_unended(watch),
        *_silence(watch),
        *_slow(watch),
        *_runaways(watch),
        *_bursts(watch),
    ]
    return sorted(found, key=lambda finding: finding.rank)


# ---- what the account knows


def _losses(account: Account) -> Iterator[Finding]:
    by_kind: dict[str, list[Reason]] = defaultdict(list)
    for reason in account.reasons:
        if reason.kind not in _NO_LOSS and reason.count != 0:
            by_kind[reason.kind].append(reason)
    for kind, reasons in by_kind.items():
        known = sum(reason.count or 0 for reason in reasons)
        exact = all(reason.count is not None for reason in reasons)
        largest = max(reasons, key=lambda reason: reason.count or 0)
        places = f"{len(reasons):,} place{'' if len(reasons) == 1 else 's'}"
        amount = f"{known:,} records" if exact else f"at least {max(known, 1):,} records"
        yield Finding(
            *("loss", kind, f"{amount} lost in {places}: {largest.text or kind}"),
            count=max(known, 1),
            place=Place(largest.file, largest.offset, largest.seq_after, largest.fw_ns),
            look="hmb-trace gaps",
        )


def _damage(account: Account) -> Iterator[Finding]:
    if account.rejected_bytes:
        reasons = [reason for reason in account.reasons if reason.kind == "rejects"]
        first = reasons[0] if reasons else None
        yield Finding(
            "damage",
            "rejects",
            f"{account.rejected_bytes:,} bytes ({account.rejected_records:,} records) were no "
            "valid records and lie in the rejects",
            count=account.rejected_records or 1,
            place=Place(first.file, first.offset) if first else Place(),
            look="hmb-trace info *.rejects",
        )


def _restarts(account: Account) -> Iterator[Finding]:
    numbers = [epoch for epoch in account.epochs if epoch.records]
    if len(numbers) > 1:
        times = len(numbers) - 1
        yield Finding(
            "restart",
            "epochs",
            f"the ring was re-initialised {times} time{'' if times == 1 else 's'} (a controller "
            "reset, or firmware restarted)",
            count=times,
            place=Place(seq=numbers[1].first_seq, ts_ns=numbers[1].first_ts_ns),
        )
    if account.sequence_resets:
        text = f"seq went back {account.sequence_resets:,} times: firmware began to count anew"
        yield Finding("restart", "seq", text, account.sequence_resets, look="hmb-trace gaps")


def _clocks(account: Account) -> Iterator[Finding]:
    if account.clock_steps:
        largest = max(account.clock_steps, key=lambda step: abs(step.ts_after - step.ts_before))
        moved = largest.ts_after - largest.ts_before
        sign = "-" if moved < 0 else "+"
        times = len(account.clock_steps)
        yield Finding(
            "clock",
            "ts_ns",
            f"the firmware clock jumped {times} time{'' if times == 1 else 's'}, at most by "
            f"{sign}{format_duration(abs(moved))}",
            count=times,
            place=Place(largest.file, largest.offset, ts_ns=largest.ts_after),
        )


def _order(account: Account) -> Iterator[Finding]:
    for count, subject, text in (
        (account.duplicates, "duplicates", "records carry the seq of the record before"),
        (account.glitches, "glitches", "records carry a wrong seq amid right ones"),
    ):
        if count:
            yield Finding("order", subject, f"{count:,} {text}", count, look="hmb-trace gaps")


def _ring(dump: Dump) -> Iterator[Finding]:
    seen: dict[str, Tally] = defaultdict(Tally)
    for segment in dump.segments:
        for note in segment.known.events if segment.known else ():
            if note.id in _NOTES:
                tally = seen[note.id]
                if not tally.count:
                    tally.place = Place(segment.name, note.offset)
                tally.count += 1
    for name, tally in seen.items():
        times = f", {tally.count:,} times" if tally.count > 1 else ""
        yield Finding("ring", name, _NOTES[name] + times, tally.count, tally.place)


# ---- what the records say


def _errors(watch: Watch) -> Iterator[Finding]:
    for severity in ("error", "warning"):
        parts = {name: t for (kind, name), t in watch.severe.items() if kind == severity}
        if severity == "error":
            parts |= {_value(watch, key): tally for key, tally in watch.bad_values.items()}
        if not parts:
            continue
        ranked = sorted(parts.items(), key=lambda part: -part[1].count)
        total = sum(tally.count for tally in parts.values())
        names = ", ".join(f"{name} {tally.count:,}" for name, tally in ranked[:4])
        first = min((t.place for t in parts.values()), key=lambda place: place.ts_ns or 0)
        yield Finding(
            severity,
            ranked[0][0],
            f"{total:,} records report {'an' if severity == 'error' else 'a'} {severity}: {names}",
            count=total,
            place=first,
            look=f"hmb-trace decode --opcode {ranked[0][0].partition('.')[0]}",
        )


def _value(watch: Watch, key: tuple[str, str, int]) -> str:
    event_name, field, value = key
    event = watch.catalog.by_name.get(event_name) if watch.catalog else None
    made = event.field(field) if event else None
    return f"{event_name}.{field}={made.label(value) if made else value}"


def _unended(watch: Watch) -> Iterator[Finding]:
    for name, tally in watch.unended.items():
        longest = watch.pairs[name].maximum
        text = (
            f"{tally.count:,} begun and never ended; none that ended took longer than "
            f"{format_duration(longest)}"
        )
        yield Finding("unended", name, text, tally.count, tally.place)


def _silence(watch: Watch) -> Iterator[Finding]:
    # Of a short capture the quantile must leave out more than the interval that is looked for.
    usual = watch.intervals.quantile(min(0.9999, 1 - 8 / max(watch.intervals.count, 9)))
    found = [
        span
        for span in watch.silent.ranked()
        if span.ns >= max(_SILENT * usual, _SILENT_NS) and watch.intervals.count >= _ENOUGH
    ]
    if found:
        longest = found[0]
        more = f", and {len(found) - 1} more such" if len(found) > 1 else ""
        yield Finding(
            "silence",
            "all records",
            f"nothing for {format_duration(longest.ns)}{more}; nearly all intervals are below "
            f"{format_duration(usual)}",
            count=len(found),
            place=longest.place,
        )


def _slow(watch: Watch) -> Iterator[Finding]:
    for name, durations in watch.pairs.items():
        if durations.count < _ENOUGH:
            continue
        median, tail = durations.quantile(0.5), durations.quantile(0.999)
        slow = [
            span
            for span in watch.slowest[name].ranked()
            if span.ns >= max(_SLOW * median, _SLOW_TAIL * tail)
        ]
        if not slow:
            continue
        worst = slow[0]
        yield Finding(
            "slow",
            name,
            f"slowest took {format_duration(worst.ns)}, {worst.ns / max(median, 1):,.0f} times the "
            f"median of {format_duration(median)} (99.9 %: {format_duration(tail)})",
            count=len(slow),
            place=worst.place,
            also=tuple(_overlaps(watch, name, worst.begin_ns, worst.end_ns)),
        )


def _overlaps(watch: Watch, name: str, begin: int, end: int) -> Iterator[str]:
    """Other slow pairs that ran meanwhile."""
    for other, kept in watch.slowest.items():
        for span in kept.ranked():
            common = min(end, span.end_ns) - max(begin, span.begin_ns)
            if other != name and 2 * common > span.ns:
                yield f"meanwhile {other} took {format_duration(span.ns)} (core {span.core})"
                break


def _runaways(watch: Watch) -> Iterator[Finding]:
    for name in sorted(map(str, watch.levels.keys())):
        sums = watch.levels.get(name)
        used = sums[:, 0] > 0
        levels = sums[used, 1] / sums[used, 0]
        if len(levels) < 8:
            continue
        steps = np.diff(levels)
        first, last = float(levels[0]), float(levels[-1])
        rising = float(np.mean(steps >= 0))
        if rising >= 0.95 and last > 3 * max(abs(first), 1):
            text = f"rose steadily from {first:,.4g} to {last:,.4g}"
            yield Finding("runaway", name, text, count=int(last))


def _bursts(watch: Watch) -> Iterator[Finding]:
    blocks = watch.rates.get("all")
    whole = blocks[: watch.clock.whole]
    rates = np.divide(
        whole[:, 0] * 1e9, whole[:, 1], out=np.zeros(len(whole)), where=whole[:, 1] > 0
    )
    rates = rates[rates > 0]
    if len(rates) < 8:
        return
    usual, peak = float(np.median(rates)), float(rates.max())
    if peak > _BURST * usual:
        text = f"up to {peak:,.4g} records/s, the median is {usual:,.4g}"
        yield Finding("burst", "all records", text, count=int((rates > _BURST * usual).sum()))

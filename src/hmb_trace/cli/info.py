# SPDX-License-Identifier: Apache-2.0
"""hmb-trace info."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from hmb_trace.cli._shared import FILES, JSON, STRICT, notes_to_stderr, print_json, say, table
from hmb_trace.dumps import sidecar
from hmb_trace.dumps.account import Account
from hmb_trace.dumps.dump import Dump, open_dump
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.summary import summarise
from hmb_trace.errors import EXIT_OK, HmbTraceError
from hmb_trace.units import format_duration, format_size

_MOST_REJECTS = 20


@click.command()
@FILES
@JSON
@click.option("--checksum", is_flag=True, help="Hash every record byte too (FNV-1a-64).")
@click.option("--deep", is_flag=True, help="Read every record, whatever the sidecars say.")
@STRICT
def command(files: tuple[str, ...], as_json: bool, checksum: bool, deep: bool, strict: bool) -> int:
    """Say what FILES are, what is in them and what they are missing.

    A FILE is a dump (.bin, .bin.zst, .part), a dump-set directory, a .pccx, a rejects file, a
    ring (device, file in /dev/shm, shm:/NAME; only looked at), or - for a dump on standard input.

    \b
    Examples:
      hmb-trace info capture/
      hmb-trace info --json --checksum x.bin | jq .lost
      hmb-trace info /dev/nvme0-hmbtrace
    """
    notes_to_stderr()
    problem: HmbTraceError | None = None
    code = EXIT_OK
    for name in files:
        found = _inspect(name, checksum, deep)
        if as_json:
            print_json(found.made)
        else:
            _print(name, found, heading=len(files) > 1)
        problem = found.problem or problem
        if found.account and strict:
            code = max(code, found.account.exit_code)
    if problem:
        raise problem
    return code


@dataclass(frozen=True)
class _Found:
    made: dict[str, Any]
    problem: HmbTraceError | None = None
    dump: Dump | None = None
    account: Account | None = None


def _inspect(name: str, checksum: bool, deep: bool) -> _Found:
    kind = kind_of(name)
    if kind is Kind.REJECTS:
        return _Found(_rejects(name))
    if kind is Kind.RING:
        return _Found(_ring(name))
    if kind is Kind.PCCX:
        from hmb_trace import pccx  # noqa: PLC0415 - only for .pccx

        return _Found(pccx.inspect(name))
    dump = open_dump(name)
    summary = summarise(dump, checksum=checksum, deep=deep)
    return _Found(summary.as_json(), summary.problem, dump, summary.account)


def _ring(name: str) -> dict[str, Any]:
    from hmb_trace.live import ring  # noqa: PLC0415 - only for rings

    with ring.attach(name, exclusive=False) as attached:
        view = attached.view()
        holder = ring.lock_holder(attached.fd)
    return {
        "kind": "ring",
        "version": view.version,
        "ring_size": view.ring_size,
        "head": view.head,
        "tail": view.tail,
        "unread": view.unread,
        "flags": view.flag_names,
        "consumer": holder,
    }


def _rejects(name: str) -> dict[str, Any]:
    from hmb_trace.dumps import reject_listing  # noqa: PLC0415 - only for rejects

    listed = list(reject_listing.entries(name))
    return {"kind": "rejects", "count": len(listed), "entries": listed}


def _print(name: str, found: _Found, *, heading: bool) -> None:
    made = found.made
    if heading:
        say(f"{name}:")
    rows = [[f"{key}:", _text(key, value)] for key, value in _flat(made) if key != "entries"]
    if found.account:
        rows = [row for row in rows if row[0] not in _TOLD_BY_VERDICT]
        rows.append(["time span:", format_duration(_span(found.account))])
        rows.append(["verdict:", found.account.line()])
    click.echo(table(rows))
    if found.account:
        _print_reasons(found.account)
    _print_rejects(made.get("entries", []))
    if found.dump and len(found.dump.segments) == 1:
        _print_sidecar(found.dump.segments[0])


_TOLD_BY_VERDICT = ("reasons:", "lost_exact:", "verdict:")
_MOST_REASONS = 10


def _span(account: Account) -> int:
    """Firmware time of all pieces (SPEC R16): what the clock was moved by did not pass."""
    ends = [(one.first_ts_ns, one.last_ts_ns) for one in account.epochs]
    span = sum(last - first for first, last in ends if first is not None and last is not None)
    return max(0, span - sum(step.ts_after - step.ts_before for step in account.clock_steps))


def _print_reasons(account: Account) -> None:
    """Why the verdict is what it is."""
    for reason in account.reasons[:_MOST_REASONS]:
        count = "?" if reason.count is None else f"{reason.count:,}"
        where = f" at byte {reason.offset} of {reason.file}" if reason.offset is not None else ""
        say(f"  {reason.kind}: {count}{where}{'; ' * bool(reason.text)}{reason.text}")
    if len(account.reasons) > _MOST_REASONS:
        say(f"  ... and {len(account.reasons) - _MOST_REASONS} more (hmb-trace gaps lists all)")


def _flat(found: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Key paths and values for people; long lists (rejects, a catalog's events) by their count."""
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{path}{key}", f"{len(value)}"
        else:
            yield f"{path}{key}", value


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in ("bytes", "ring_size", "unread"):
        return f"{value} ({format_size(value)})"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)


def _print_rejects(entries: list[dict[str, Any]]) -> None:
    from hmb_trace.dumps import reject_listing  # noqa: PLC0415 - only for rejects

    for entry in entries[:_MOST_REJECTS]:
        for line in reject_listing.lines(entry):
            say(line)
    if len(entries) > _MOST_REJECTS:
        say(f"... and {len(entries) - _MOST_REJECTS} more (--json lists all)")


def _print_sidecar(segment: Segment) -> None:
    """What only the sidecar knows, in short."""
    known = segment.known
    if known is None or segment.path is None:
        return
    device = " ".join(filter(None, (known.device.model, known.device.serial)))
    rows = [
        ["device:", f"{known.device.path} {device}".strip()],
        ["sealed:", known.cause or "?"],
    ]
    if known.filtered:
        rows.append(["filtered:", f"{known.filtered.expression} of {known.filtered.source}"])
    if known.catalog:
        rows.append(["catalog:", f"{known.catalog.name} {known.catalog.firmware_build}".strip()])
    if known.rejects:
        r = known.rejects
        beside = sidecar.rejects_path(segment.path)
        counts = f"{r.entries} entries, {r.records} records, {r.bytes} bytes"
        rows.append(["rejects:", f"{counts}; see hmb-trace info {beside}"])
    click.echo(table(rows))

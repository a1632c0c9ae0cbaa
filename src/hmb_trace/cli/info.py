# SPDX-License-Identifier: Apache-2.0
"""hmb-trace info."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hmb_trace.cli._shared import FILES, JSON, notes_to_stderr, print_json, say, table
from hmb_trace.dumps import rejects, sidecar
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.summary import summarise
from hmb_trace.errors import HmbTraceError
from hmb_trace.units import format_duration, format_size

_MOST_REJECTS = 20


@click.command()
@FILES
@JSON
@click.option("--checksum", is_flag=True, help="Hash every record byte too (FNV-1a-64).")
def command(files: tuple[str, ...], as_json: bool, checksum: bool) -> None:
    """Say what FILES are and what is in them.

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
    for name in files:
        found, fault = _inspect(name, checksum)
        if as_json:
            print_json(found)
        else:
            _print(name, found, heading=len(files) > 1)
        problem = fault or problem
    if problem:
        raise problem


def _inspect(name: str, checksum: bool) -> tuple[dict[str, Any], HmbTraceError | None]:
    kind = kind_of(name)
    if kind is Kind.REJECTS:
        return _rejects(name), None
    if kind is Kind.RING:
        return _ring(name), None
    if kind is Kind.PCCX:
        from hmb_trace import pccx  # noqa: PLC0415 - only for .pccx

        return pccx.inspect(name), None
    summary = summarise(open_dump(name), checksum=checksum)
    return summary.as_json(), summary.problem


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
    entries = list(rejects.read(name))
    listed = [
        {
            "reason": e.reason,
            "epoch": e.epoch,
            "cursor": e.cursor,
            "host_ns": e.host_ns,
            "length": len(e.data),
        }
        for e in entries
    ]
    return {"kind": "rejects", "count": len(entries), "entries": listed}


def _print(name: str, found: dict[str, Any], *, heading: bool) -> None:
    if heading:
        say(f"{name}:")
    rows = [[f"{key}:", _text(key, value)] for key, value in _flat(found) if key != "entries"]
    if found["kind"] == "dump" and found["records"]:
        span = found["last_ts_ns"] - found["first_ts_ns"]
        rows.append(["time span:", format_duration(span)])
    click.echo(table(rows))
    _print_rejects(found.get("entries", []))
    if found["kind"] == "dump" and name != "-":
        _print_sidecar(Path(name))


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
    rows = [["reason", "epoch", "cursor", "bytes"]]
    for entry in entries[:_MOST_REJECTS]:
        rows.append([entry["reason"], *(str(entry[k]) for k in ("epoch", "cursor", "length"))])
    if entries:
        click.echo(table(rows, right=(1, 2, 3)))
    if len(entries) > _MOST_REJECTS:
        click.echo(f"... and {len(entries) - _MOST_REJECTS} more (--json lists all)")


def _print_sidecar(path: Path) -> None:
    """What only the sidecar knows, in short."""
    if not path.is_file() or not (beside := sidecar.sidecar_path(path)).is_file():
        return
    known = sidecar.load(beside)
    device = " ".join(filter(None, (known.device.model, known.device.serial)))
    rows = [
        ["device:", f"{known.device.path} {device}".strip()],
        [
            "sealed:",
            f"{known.cause or '?'}, capture {'complete' if known.complete else 'NOT complete'}",
        ],
    ]
    if known.rejects:
        r = known.rejects
        rows.append(["rejects:", f"{r.entries} entries, {r.records} records, {r.bytes} bytes"])
    click.echo(table(rows))
    if known.rejects:
        _print_rejects(_rejects(str(sidecar.rejects_path(path)))["entries"])

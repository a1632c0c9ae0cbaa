# SPDX-License-Identifier: Apache-2.0
"""hmb-trace stats."""

from __future__ import annotations

from typing import Any

import click

from hmb_trace.cli._events import event_file, print_event_statistics
from hmb_trace.cli._options import (
    CATALOG,
    load_catalog,
    make_selection,
    note_if_nothing,
    selection_options,
)
from hmb_trace.cli._shared import (
    FILES,
    JSON,
    PARTIAL,
    QUIET,
    STRICT,
    close,
    notes_to_stderr,
    print_json,
    raise_problems,
    table,
)
from hmb_trace.dumps.dump import open_dumps
from hmb_trace.errors import EXIT_OK
from hmb_trace.query.stats import as_json as statistics_json
from hmb_trace.query.stats import gather
from hmb_trace.units import format_duration, format_size

_BAR = 40  # characters


@click.command()
@FILES
@JSON
@CATALOG
@selection_options
@click.option("--top", default=20, show_default=True, help="Opcodes listed; 0 lists all.")
@PARTIAL
@STRICT
@QUIET
def command(
    *,
    files: tuple[str, ...],
    as_json: bool,
    catalog_path: str | None,
    top: int,
    partial: bool,
    strict: bool,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Count: rates, opcodes, cores, payload sizes, intervals, durations, losses.

    Durations of paired events need a --catalog. Losses are those of the whole dump,
    also when only some records are selected. A .pccx of flatbuf or bincode events is
    counted by event type and core.

    \b
    Examples:
      hmb-trace stats capture/
      hmb-trace stats capture/ --catalog ftl.toml --from +10s --to +20s
      hmb-trace stats --json x.bin | jq '.opcodes[0]'
    """
    notes_to_stderr()
    events = event_file(files)
    if events:
        print_event_statistics(events, as_json=as_json)
        return EXIT_OK
    dump = open_dumps(files)
    catalog = load_catalog(catalog_path, files, dump)
    selection = make_selection(dump, catalog, chosen)
    found = gather(dump, catalog=catalog, selection=selection, partial=partial)
    made = statistics_json(found, catalog)
    if as_json:
        print_json(made)
    else:
        _print(made, top)
    selection.met.selected = found.counts.records
    if catalog:
        selection.met.see([opcode for opcode, *_ in found.opcodes()], catalog)
    note_if_nothing(dump, selection)
    code = close(found.account, strict=strict, quiet=quiet)
    raise_problems(dump)
    return code


def _print(made: dict[str, Any], top: int) -> None:
    click.echo(table(_overview(made)))
    _section("opcodes", _opcodes(made, top), right=(1, 2, 3, 4))
    _section("cores", _cpus(made), right=(1, 2))
    _section("payload bytes", _histogram(made["payload_len_log2"], str), right=(1,))
    intervals = _histogram(made["interval_ns_log2"], format_duration)
    _section("interval to the record before", intervals, right=(1,))
    _section("durations", _durations(made), right=tuple(range(1, 8)))
    if made["unmatched_begins"] or made["unmatched_ends"]:
        click.echo(f"unmatched: {made['unmatched_begins']} begins, {made['unmatched_ends']} ends")
    if made["uncertain"]:
        click.echo(
            f"uncertain: {made['uncertain']:,} pairs enclose a gap, a new epoch or a clock step "
            "(not in the durations)"
        )
    invalid = sum(one["invalid"] for one in made["durations"].values())
    if invalid:
        click.echo(f"invalid: {invalid:,} durations are negative, all ones or too large (left out)")


def _section(title: str, rows: list[list[str]], right: tuple[int, ...]) -> None:
    if len(rows) > 1:
        click.echo(f"\n{title}")
        click.echo(table(rows, right=right))


def _rate(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.0f} {unit}/s"


def _overview(made: dict[str, Any]) -> list[list[str]]:
    size_rate = made["bytes_per_s"]
    return [
        ["records:", f"{made['records']:,}  ({_rate(made['records_per_s'], 'records')})"],
        ["bytes:", f"{made['bytes']:,}  ({format_size(size_rate or 0)}/s)"],
        ["time span:", format_duration(made["duration_ns"])],
        ["wrap markers:", f"{made['wrap_markers']:,}"],
        ["truncated:", f"{made['truncated']:,}"],
        ["lost:", _lost(made)],
        ["duplicates:", f"{made['duplicates']:,}"],
        ["sequence resets:", f"{made['sequence_resets']:,}"],
        ["clock steps back:", f"{made['clock_steps_back']:,}"],
    ]


def _lost(made: dict[str, Any]) -> str:
    """Of the whole dump, whatever was selected."""
    least = "" if made["lost_exact"] or not made["lost"] else "at least "
    return f"{least}{made['lost']:,} records in {made['gaps']:,} gaps ({made['verdict']})"


def _opcodes(made: dict[str, Any], top: int) -> list[list[str]]:
    rows = [["name", "opcode", "records", "share", "mean payload"]]
    listed = made["opcodes"][: top or None]
    for one in listed:
        share = one["records"] / made["records"]
        mean = one["payload_bytes"] / one["records"]
        counts = [f"{one['records']:,}", f"{share:.1%}", f"{mean:.1f}"]
        rows.append([one["name"], f"{one['opcode']:#06x}", *counts])
    rest = len(made["opcodes"]) - len(listed)
    if rest:
        rows.append([f"... {rest} more (--top 0)", "", "", "", ""])
    return rows


def _cpus(made: dict[str, Any]) -> list[list[str]]:
    rows = [["core", "records", "share"]]
    for one in made["cpus"]:
        share = f"{one['records'] / made['records']:.1%}"
        rows.append([str(one["cpu"]), f"{one['records']:,}", share])
    return rows


def _histogram(buckets: list[dict[str, int]], show: Any) -> list[list[str]]:
    most = max((one["count"] for one in buckets), default=1)
    rows = [["up to", "records", ""]]
    for one in buckets:
        bar = "#" * max(1, round(_BAR * one["count"] / most))
        rows.append([show(one["to"]), f"{one['count']:,}", bar])
    return rows


def _durations(made: dict[str, Any]) -> list[list[str]]:
    rows = [["event", "count", "min", "mean", "p50", "p99", "p99.9", "max"]]
    for name, one in made["durations"].items():
        keys = ("min_ns", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns")
        shown = ["-" if one[key] is None else format_duration(one[key]) for key in keys]
        rows.append([name, f"{one['count']:,}", *shown])
    return rows

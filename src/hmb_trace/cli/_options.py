# SPDX-License-Identifier: Apache-2.0
"""Options that decode, filter, convert, stats and sql have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from hmb_trace.catalog.lookup import remembered, warn_if_other_build
from hmb_trace.catalog.model import Catalog
from hmb_trace.cli._shared import note
from hmb_trace.dumps.dump import Dump, open_dumps
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.timeaxis import CLOCKS
from hmb_trace.errors import HmbTraceError
from hmb_trace.query.coverage import covers, total_records
from hmb_trace.query.expression import Expression
from hmb_trace.query.select import (
    Selection,
    parse_flags,
    parse_numbers,
    parse_opcodes,
    parse_range,
    parse_time,
)

F = TypeVar("F", bound=Callable[..., Any])

_SELECTION = [
    click.option(
        "--opcode",
        "opcodes",
        multiple=True,
        metavar="LIST",
        help="Opcodes, ranges or catalog names: 3,0x10..0x1f,nand_*.",
    ),
    click.option("--cpu", "cpus", multiple=True, metavar="LIST", help="Firmware cores: 0,2..3."),
    click.option("--flags", "flags", multiple=True, metavar="LIST", help="Flags: truncated, 0x04."),
    click.option("--seq", metavar="A..B", help="Sequence numbers; A > B runs over the wrap."),
    click.option(
        "--from",
        "begin",
        metavar="TIME",
        help="First moment: firmware ns (123), since the start (+1.5s) or host time (ISO).",
    ),
    click.option("--to", "--until", "end", metavar="TIME", help="Last moment, as --from."),
    click.option(
        "--where",
        multiple=True,
        metavar="EXPR",
        help="Condition on fields: 'lba >= 4096 and name == \"nand_read\"'.",
    ),
]
CATALOG = click.option(
    "-c",
    "--catalog",
    "catalog_path",
    metavar="FILE",
    envvar="HMB_TRACE_CATALOG",
    help="Opcode catalog (TOML).  [default: the one that the capture was made with]",
)
CSV_SAFE = click.option(
    "--csv-safe",
    is_flag=True,
    help="CSV: an apostrophe before text that a spreadsheet would take for a formula.",
)
CLOCK = click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    default="fw",
    show_default=True,
    help="Time axis: the firmware's, since the first record, or the host's (UTC).",
)


def selection_options(function: F) -> F:
    """Adds --opcode, --cpu, --flags, --seq, --from, --to (or --until) and --where."""
    return _with(_SELECTION, function)


def selection_options_without_to(function: F) -> F:
    """The same where --to means something else: the last moment is --until alone."""
    until = click.option("--until", "end", metavar="TIME", help="Last moment, as --from.")
    return _with([*_SELECTION[:5], until, *_SELECTION[6:]], function)


def _with(options: Sequence[Callable[[F], F]], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def given(*paths: str | None) -> tuple[str, ...]:
    """Those that were named: with the inputs, what an output must not replace."""
    return tuple(path for path in paths if path)


def load_catalog(
    path: str | None, files: Sequence[str] = (), dump: Dump | None = None
) -> Catalog | None:
    """The catalog that was named (by option or environment), else the one the capture remembers.

    A .pccx of events has its own: its opcodes are event types, of which no other catalog knows.

    Args:
        dump: what `files` hold, where it is open already.

    Raises:
        CatalogError: it is wrong; HmbTraceError: it cannot be read.
    """
    for name in files:
        if kind_of(name) is Kind.PCCX and (events := _events_of(name)):
            return events
    segments = dump.segments if dump else _segments(files)
    if not path:
        return remembered(segments)
    catalog = Catalog.load(path)
    warn_if_other_build(catalog, segments)
    return catalog


def _segments(files: Sequence[str]) -> list[Segment]:
    try:
        return open_dumps([name for name in files if name != "-"]).segments
    except HmbTraceError:
        return []  # the command itself says what is wrong with them


def _events_of(name: str) -> Catalog | None:
    from hmb_trace.pccx.as_records import event_catalog  # noqa: PLC0415 - only for .pccx

    return event_catalog(name)


def open_files(files: Sequence[str]) -> Dump:
    """The records of dumps, or the events of one .pccx as rows. Raises HmbTraceError."""
    if any(kind_of(name) is Kind.PCCX for name in files):
        from hmb_trace.pccx.as_records import open_inputs  # noqa: PLC0415 - only for .pccx

        return open_inputs(files)
    return open_dumps(files)


def make_selection(dump: Dump, catalog: Catalog | None, chosen: dict[str, Any]) -> Selection:
    """What the selection options ask for. Raises UsageError."""
    time, windows = parse_time(dump, chosen["begin"], chosen["end"])
    return Selection(
        opcodes=parse_opcodes(chosen["opcodes"], catalog),
        cpus=parse_numbers(chosen["cpus"], "cpu", 256),
        flags=parse_flags(chosen["flags"]),
        seq=parse_range(chosen["seq"], "seq") if chosen["seq"] else None,
        time=time,
        windows=windows,
        where=[Expression(text, catalog) for text in chosen["where"]],
        catalog=catalog,
    )


def note_if_nothing(dump: Dump, selection: Selection) -> None:
    """Say on stderr that no record was selected, or that the catalog knows no opcode of them."""
    met, catalog = selection.met, selection.catalog
    if not met.selected:
        if not selection.is_everything:
            note(f"0 of {total_records(dump, met.records):,} records{covers(dump)}")
    elif catalog is not None and met.opcodes and not met.fits:
        note(
            f"catalog {catalog.name} fits 0 of {len(met.opcodes)} opcodes; is it for another "
            "firmware?"
        )

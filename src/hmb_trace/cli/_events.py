# SPDX-License-Identifier: Apache-2.0
"""Statistics of .pccx files that hold events (flatbuf, bincode) instead of records."""

from __future__ import annotations

from typing import Any

import click

from hmb_trace.cli._shared import print_json, table
from hmb_trace.errors import UsageError


def event_file(files: tuple[str, ...]) -> str | None:
    """The one .pccx with events among the files; None if all of them hold records.

    Raises:
        UsageError: such a file together with others: cycles and records do not add up.
    """
    from hmb_trace import pccx  # noqa: PLC0415 - dumps do not need it
    from hmb_trace.pccx.writing import is_pccx  # noqa: PLC0415 - dumps do not need it

    for name in files:
        if is_pccx(name):
            with pccx.read(name) as file:
                encoding = file.header.payload.encoding
            if encoding in ("flatbuf", "bincode"):
                if len(files) > 1:
                    raise UsageError(f"{name}: holds {encoding} events, give it alone")
                return name
    return None


def print_event_statistics(name: str, *, as_json: bool) -> None:
    """Counts over the events of one file, as a table or JSON."""
    from hmb_trace import pccx  # noqa: PLC0415 - dumps do not need it

    made = pccx.statistics(name)
    if as_json:
        print_json(made)
        return
    click.echo(table(_overview(made)))
    for title, column in (("types", "by_type"), ("cores", "by_core")):
        rows = [[str(key), f"{count:,}"] for key, count in made[column].items()]
        if rows:
            click.echo(f"\n{title}\n{table(rows, right=(1,))}")


def _overview(made: dict[str, Any]) -> list[list[str]]:
    if not made["events"]:
        return [["events:", "0"]]
    return [
        ["events:", f"{made['events']:,}"],
        ["cycles:", f"{made['first_cycle']:,} to {made['last_cycle']:,}"],
        ["sum of durations:", f"{made['busy_cycles']:,} cycles"],
        ["api names:", f"{made['api_names']:,}"],
    ]

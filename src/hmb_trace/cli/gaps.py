# SPDX-License-Identifier: Apache-2.0
"""hmb-trace gaps."""

from __future__ import annotations

import csv
import sys

import click

from hmb_trace.cli._options import open_files
from hmb_trace.cli._shared import (
    FILES,
    JSON,
    PARTIAL,
    STRICT,
    close,
    notes_to_stderr,
    print_json,
    raise_problems,
    say,
)
from hmb_trace.cli._shared import table as aligned
from hmb_trace.dumps.account import Account, Accountant
from hmb_trace.dumps.places import Place


@click.command()
@FILES
@JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@STRICT
@PARTIAL
def command(
    files: tuple[str, ...], as_json: bool, as_csv: bool, strict: bool, partial: bool
) -> int:
    """List every place where records are missing: seq, time, count, and why.

    Duplicates, sequence resets, new epochs and clock steps are listed too. Records that lie in the
    rejects file are not lost (`hmb-trace info X.rejects` shows them). The last line is the verdict.

    \b
    Examples:
      hmb-trace gaps capture/
      hmb-trace gaps --strict x.bin || echo records are missing
    """
    notes_to_stderr()
    dump = open_files(files)
    accountant = Accountant(dump)
    dump.scan(accountant.walker, partial=partial)
    found = accountant.finish()
    if as_json:
        for place in found.rows():
            print_json(place.as_dict())
    elif as_csv:
        _print_csv(found)
    else:
        _print_text(found)
    code = close(found, strict=strict, quiet=not (as_json or as_csv))
    raise_problems(dump)
    return code


def _print_csv(found: Account) -> None:
    writer = csv.DictWriter(sys.stdout, Place.COLUMNS, lineterminator="\n")
    writer.writeheader()
    for place in found.rows():
        writer.writerow(place.as_dict())


def _print_text(found: Account) -> None:
    rows = [["file", "offset", "time", "kind", "seq before", "seq after", "lost", "rejected", ""]]
    rows += [_row(place) for place in found.rows()]
    if len(rows) > 1:
        click.echo(aligned(rows, right=(1, 2, 4, 5, 6, 7)))
    if found.unlisted:
        click.echo(f"... and {found.unlisted:,} more places")
    if found.begins:
        say(f"{found.begins}: earlier segments are not here")
    say(found.line())


def _seconds(ts_ns: int) -> str:
    """Exact: a float has no nanoseconds left after two months of uptime."""
    return f"{ts_ns // 10**9}.{ts_ns % 10**9:09d}"


def _row(place: Place) -> list[str]:
    def number(value: int | None) -> str:
        return "-" if value is None else str(value)

    return [
        place.file,
        number(place.offset),
        "-" if place.ts_ns is None else _seconds(place.ts_ns),
        place.kind,
        number(place.seq_before),
        number(place.seq_after),
        ">=1" if place.lost is None else str(place.lost) if place.is_loss else "-",
        str(place.rejected),
        place.text,
    ]

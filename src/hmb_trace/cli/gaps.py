# SPDX-License-Identifier: Apache-2.0
"""hmb-trace gaps."""

from __future__ import annotations

import csv
import sys

import click

from hmb_trace.cli._shared import FILES, JSON, PARTIAL, notes_to_stderr, print_json, raise_problems
from hmb_trace.cli._shared import table as aligned
from hmb_trace.dumps.dump import open_dumps
from hmb_trace.dumps.knowledge import Loss, losses
from hmb_trace.errors import EXIT_DATA_PROBLEM, EXIT_OK


@click.command()
@FILES
@JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there is any.")
@PARTIAL
def command(
    files: tuple[str, ...], as_json: bool, as_csv: bool, strict: bool, partial: bool
) -> int:
    """List every place where records are missing: seq, time, count, and the cause if known.

    Duplicates and sequence resets are listed too. Records that lie in the rejects file
    are not lost; the sidecar beside a dump tells them apart and knows causes.

    \b
    Examples:
      hmb-trace gaps capture/
      hmb-trace gaps --strict x.bin || echo incomplete
    """
    notes_to_stderr()
    dump = open_dumps(files)
    found = losses(dump, partial=partial)
    if as_json:
        for loss in found:
            print_json(loss.as_dict())
    elif as_csv:
        _print_csv(found)
    else:
        _print_text(found)
    raise_problems(dump)
    return EXIT_DATA_PROBLEM if strict and found else EXIT_OK


def _print_csv(found: list[Loss]) -> None:
    writer = csv.DictWriter(sys.stdout, Loss.__slots__, lineterminator="\n")
    writer.writeheader()
    for loss in found:
        writer.writerow(loss.as_dict())


def _print_text(found: list[Loss]) -> None:
    if not found:
        click.echo("no gaps: nothing is missing between the first and the last record")
        return
    rows = [
        ["file", "offset", "time", "kind", "seq before", "seq after", "lost", "rejected", "cause"]
    ]
    rows += [_row(loss) for loss in found]
    click.echo(aligned(rows, right=(1, 2, 4, 5, 6, 7)))
    lost = sum(loss.lost or 0 for loss in found)
    unknown = sum(loss.lost is None for loss in found)
    more = f", and {unknown} of unknown extent" if unknown else ""
    places = sum(loss.kind == "gap" and bool(loss.lost) for loss in found)
    click.echo(f"{lost} records lost in {places} gaps{more}")


def _seconds(ts_ns: int) -> str:
    """Exact: a float has no nanoseconds left after two months of uptime."""
    return f"{ts_ns // 10**9}.{ts_ns % 10**9:09d}"


def _row(loss: Loss) -> list[str]:
    return [
        loss.file,
        str(loss.offset),
        "-" if loss.ts_ns is None else _seconds(loss.ts_ns),
        loss.kind,
        "-" if loss.seq_before is None else str(loss.seq_before),
        "-" if loss.seq_after is None else str(loss.seq_after),
        ">=1" if loss.lost is None else str(loss.lost),
        str(loss.rejected),
        loss.cause or "-",
    ]

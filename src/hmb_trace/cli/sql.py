# SPDX-License-Identifier: Apache-2.0
"""hmb-trace sql."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import sys
from typing import Any

import click

from hmb_trace.cli._options import (
    CATALOG,
    load_catalog,
    make_selection,
    open_files,
    selection_options,
)
from hmb_trace.cli._shared import PARTIAL, notes_to_stderr, raise_problems, table
from hmb_trace.query.sql import Session

_MOST_ROWS = 10_000  # of an aligned table; CSV and JSON have no bound


@click.command()
@click.argument("query")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object a line.")
@CATALOG
@selection_options
@PARTIAL
def command(
    *,
    query: str,
    files: tuple[str, ...],
    form: str | None,
    catalog_path: str | None,
    partial: bool,
    **chosen: Any,
) -> None:
    """Ask a question in SQL (DuckDB) straight over dumps.

    Tables: trace (seq, ts_ns, opcode, cpu, flags, payload_len, name, payload and, with a
    --catalog, every payload field), gaps, and one table for each event of the catalog.

    \b
    Examples:
      hmb-trace sql "select name, count(*) n from trace group by 1 order by n desc" capture/
      hmb-trace sql "select die, max(busy_ns) from NAND_READ_DONE group by 1" x --catalog ftl.toml
      hmb-trace sql "select * from gaps" capture/ --csv
    """
    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    dump = open_files(files)
    selection = make_selection(dump, catalog, chosen)
    with Session(dump, catalog=catalog, selection=selection, partial=partial) as session:
        result = session.execute(query)
        names = [column[0] for column in result.description or ()]
        {"csv": _print_csv, "json": _print_json}.get(form or "", _print_table)(
            names, session, result
        )
    raise_problems(dump)


def _print_csv(names: list[str], session: Session, result: Any) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for rows in session.fetch(result):
        writer.writerows([_plain(value) for value in row] for row in rows)


def _print_json(names: list[str], session: Session, result: Any) -> None:
    for rows in session.fetch(result):
        for row in rows:
            pairs = zip(names, map(_plain, row), strict=True)
            print(json.dumps(dict(pairs), ensure_ascii=False, default=str))


def _print_table(names: list[str], session: Session, result: Any) -> None:
    shown: list[list[str]] = [names]
    numeric = set(range(len(names)))
    for rows in session.fetch(result):
        for row in rows:
            numeric -= {i for i, v in enumerate(row) if not _is_number(v)}
            shown.append(["NULL" if value is None else str(_plain(value)) for value in row])
        if len(shown) > _MOST_ROWS:
            break
    click.echo(table(shown[: _MOST_ROWS + 1], right=tuple(numeric)))
    if len(shown) > _MOST_ROWS:
        click.echo(f"... more than {_MOST_ROWS} rows: --csv and --json print them all")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, decimal.Decimal))


def _plain(value: Any) -> Any:
    """Bytes as hex, times as ISO text; anything else as it is."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    return value

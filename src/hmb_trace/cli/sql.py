# SPDX-License-Identifier: Apache-2.0
"""hmb-trace sql."""

from __future__ import annotations

import csv
import datetime
import decimal
import math
import sys
from typing import Any

import click

from hmb_trace.cli._options import (
    CATALOG,
    CSV_SAFE,
    load_catalog,
    make_selection,
    open_files,
    selection_options,
)
from hmb_trace.cli._shared import PARTIAL, json_line, notes_to_stderr, raise_problems, table
from hmb_trace.commandline import SIZE
from hmb_trace.escapes import printable
from hmb_trace.query.sql import Session

_MOST_ROWS = 10_000  # of an aligned table; CSV and JSON have no bound
_FORMULA = ("=", "+", "-", "@")


@click.command()
@click.argument("query")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object a line.")
@CATALOG
@selection_options
@PARTIAL
@CSV_SAFE
@click.option(
    "--memory",
    type=SIZE,
    help="What DuckDB may use; beyond it, it writes under TMPDIR.  [default: a quarter of RAM]",
)
@click.option(
    "--allow-files",
    is_flag=True,
    help="Let the query read and write files and load extensions. Not for queries of others.",
)
def command(
    *,
    query: str,
    files: tuple[str, ...],
    form: str | None,
    catalog_path: str | None,
    partial: bool,
    csv_safe: bool,
    memory: int | None,
    allow_files: bool,
    **chosen: Any,
) -> None:
    """Ask a question in SQL (DuckDB) straight over dumps.

    Tables: trace (seq, ts_ns, opcode, cpu, flags, payload_len, name, with a catalog every payload
    field and FIELD_label where it has labels, payload, epoch, host_ns, file, offset), gaps, and
    one table for each event of the catalog. 'show tables' and 'describe trace' list them.

    \b
    Examples:
      hmb-trace sql "select name, count(*) n from trace group by 1 order by n desc" capture/
      hmb-trace sql "select die, max(busy_ns) from NAND_READ_DONE group by 1" x --catalog ftl.toml
      hmb-trace sql "select quantile_cont(busy_ns, 0.99) from NAND_READ_DONE" x --memory 4GiB
      hmb-trace sql "select * from gaps" capture/ --csv
    """
    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    dump = open_files(files)
    selection = make_selection(dump, catalog, chosen)
    with Session(
        dump,
        catalog=catalog,
        selection=selection,
        partial=partial,
        memory=memory,
        allow_files=allow_files,
    ) as session:
        result = session.execute(query)
        names = _unique([column[0] for column in result.description or ()])
        if form == "csv":
            _print_csv(names, session, result, safe=csv_safe)
        else:
            (_print_json if form == "json" else _print_table)(names, session, result)
    raise_problems(session.dump)


def _unique(names: list[str]) -> list[str]:
    """Column names, the second of a name with _1 behind it: no object has a key twice."""
    made: list[str] = []
    for name in names:
        number, one = 0, name
        while one in made:
            number += 1
            one = f"{name}_{number}"
        made.append(one)
    return made


def _print_csv(names: list[str], session: Session, result: Any, *, safe: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([printable(name) for name in names])
    for rows in session.fetch(result):
        writer.writerows([_csv_cell(value, safe=safe) for value in row] for row in rows)


def _csv_cell(value: Any, *, safe: bool) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"hex:{bytes(value).hex()}"
    made = _plain(value)
    if isinstance(made, str):
        made = printable(made)
        return f"'{made}" if safe and made.startswith(_FORMULA) else made
    return made


def _print_json(names: list[str], session: Session, result: Any) -> None:
    for rows in session.fetch(result):
        for row in rows:
            print(json_line(dict(zip(names, map(_json_value, row), strict=True))))


def _json_value(value: Any) -> Any:
    """What JSON has a value for: no NaN and no infinity, numbers as numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return _json_value(int(value) if value == value.to_integral_value() else float(value))
    if isinstance(value, dict):
        return {str(_plain(key)): _json_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(one) for one in value]
    made = _plain(value)
    return made if made is None or isinstance(made, (str, int, bool)) else str(made)


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

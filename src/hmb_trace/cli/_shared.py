# SPDX-License-Identifier: Apache-2.0
"""What several subcommands share: arguments, output, notes on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence

import click

from hmb_trace.dumps.account import Account, Verdict
from hmb_trace.dumps.dump import Dump
from hmb_trace.errors import EXIT_OK
from hmb_trace.escapes import printable, printable_json

FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...")
PARTIAL = click.option(
    "--partial", is_flag=True, help="Read a damaged or torn dump up to the fault, then go on."
)
STRICT = click.option(
    "--strict", is_flag=True, help="Exit with 1 if records are missing or were rejected."
)
QUIET = click.option("-q", "--quiet", is_flag=True, help="No closing line about what is missing.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def notes_to_stderr() -> None:
    """Send warnings of the library to stderr, once."""
    logger = logging.getLogger("hmb_trace")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())
        logger.propagate = False


def note(message: str) -> None:
    """One line on stderr that is no error; nothing in it is obeyed by a terminal."""
    print(f"hmb-trace: {printable(message)}", file=sys.stderr)


def say(line: str) -> None:
    """One line on stdout, fit for a terminal: names of files may hold anything."""
    click.echo(printable(line))


def print_json(value: object) -> None:
    """One JSON value on a line of its own."""
    print(json_line(value))


def json_line(value: object) -> str:
    """A value as JSON that any reader takes and no terminal obeys."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return printable_json(json.dumps(value, ensure_ascii=not plain, allow_nan=False))


def inputs_of(files: Sequence[str], dump: Dump | None = None, *more: str | None) -> list[str]:
    """Everything that a command reads, which its output must not be: for files.output_file.

    more: a catalog, for example; None: not given.
    """
    paths = dump.files() if dump else []
    return [*files, *paths, *(name for name in more if name)]


def close(found: Account, *, strict: bool = False, quiet: bool = False) -> int:
    """The closing line of a command whose data went to stdout, and its exit code.

    On stderr, unless nothing is missing. strict: the verdict decides the exit code.
    """
    sys.stdout.flush()  # the data comes first, and an error of its own before any verdict
    if not quiet and found.verdict is not Verdict.WHOLE:
        note(found.line())
    return found.exit_code if strict else EXIT_OK


def raise_problems(dump: Dump) -> None:
    """After a partial pass: every fault on stderr but the last, which becomes the exit code."""
    for problem in dump.problems[:-1]:
        note(str(problem))
    if dump.problems:
        raise dump.problems[-1]


def table(rows: list[list[str]], *, right: tuple[int, ...] = ()) -> str:
    """Rows as aligned columns, fit for a terminal; the columns in `right` are right-aligned."""
    if not rows:
        return ""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

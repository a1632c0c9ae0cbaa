# SPDX-License-Identifier: Apache-2.0
"""hmb-trace report: one self-contained HTML file about any number of dumps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hmb_trace.errors import CannotCreateError, from_os_error


@click.command(
    "report",
    epilog="""\b
Examples:
  hmb-trace report captures/ -o report.html
  hmb-trace report a.bin b.bin.zst --catalog ftl.toml --title "Run 7" -o run7.html
  hmb-trace report - -o report.html < a.bin""",
)
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Where the page goes; - for standard output.",
)
@click.option(
    "--catalog",
    type=click.Path(),
    metavar="FILE",
    help="Opcode catalog: names, messages, latencies of paired events.",
)
@click.option("--title", help="Heading of the page.  [default: the name of the first file]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all is well.")
def command(
    files: tuple[str, ...], output: str, catalog: str | None, title: str | None, quiet: bool
) -> None:
    """Write one self-contained HTML page about dumps.

    FILES are dumps (.bin, .bin.zst, .part), dump-set directories, raw .pccx files or - for
    standard input; several are read as one stream. The page shows rates over time with the
    losses marked, latencies of paired events, tables by opcode and CPU, every gap and a
    sample of the records that can be searched. It loads nothing from the network, and stays
    small whatever the size of the dumps.
    """
    from hmb_trace.dumps.dump import open_dumps  # noqa: PLC0415 - numpy and the rest only when it runs
    from hmb_trace.report import build  # noqa: PLC0415 - the same

    page = build(open_dumps(files), catalog=catalog, title=title or _title(files))
    # A file's name need not be UTF-8.
    page = page.encode(errors="backslashreplace").decode()
    _write(output, page)
    if not quiet and output != "-":
        click.echo(f"{output}: {len(page.encode()) / 1024:.0f} KiB, open it in a browser", err=True)


def _title(files: tuple[str, ...]) -> str:
    first = "standard input" if files[0] == "-" else Path(files[0]).resolve().name
    return first if len(files) == 1 else f"{first} and {len(files) - 1} more"


def _write(output: str, page: str) -> None:
    """All or nothing: a page half written never stands under its name."""
    if output == "-":
        sys.stdout.write(page)
        return
    target = Path(output)
    if target.is_dir():
        raise CannotCreateError(f"cannot create {output}: it is a directory; name a file in it")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise from_os_error(error, f"cannot create {output}", creating=True) from error

# SPDX-License-Identifier: Apache-2.0
"""hmb-trace report: one self-contained HTML file about any number of dumps."""

from __future__ import annotations

from pathlib import Path

import click

from hmb_trace.cli._options import CATALOG, given, load_catalog, open_files
from hmb_trace.cli._shared import note, notes_to_stderr
from hmb_trace.files import output_file


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
@CATALOG
@click.option("--title", help="Heading of the page.  [default: the name of the first file]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all is well.")
def command(
    files: tuple[str, ...], output: str, catalog_path: str | None, title: str | None, quiet: bool
) -> None:
    """Write one self-contained HTML page about dumps.

    FILES are dumps (.bin, .bin.zst, .part), dump-set directories, raw .pccx files or - for
    standard input; several are read as one stream. The page shows rates over time with the
    losses marked, latencies of paired events, tables by opcode and CPU, every gap and a
    sample of the records that can be searched. It loads nothing from the network, and stays
    small whatever the size of the dumps.
    """
    from hmb_trace.report import build  # noqa: PLC0415 - numpy and the rest only when it runs

    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    dump = open_files(files)
    inputs = (*files, *(s.name for s in dump.segments), *given(catalog_path))
    with output_file(output, inputs=inputs) as out:
        page = build(dump, catalog=catalog, title=title or _title(files))
        # A file's name need not be UTF-8.
        data = page.encode(errors="backslashreplace")
        out.write(data)
    if not quiet and output != "-":
        note(f"{output}: {len(data) / 1024:.0f} KiB, open it in a browser")


def _title(files: tuple[str, ...]) -> str:
    first = "standard input" if files[0] == "-" else Path(files[0]).resolve().name
    return first if len(files) == 1 else f"{first} and {len(files) - 1} more"

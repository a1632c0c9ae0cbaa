# SPDX-License-Identifier: Apache-2.0
"""hmb-trace pack."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hmb_trace.cli._options import CATALOG, given, load_catalog
from hmb_trace.cli._progress import input_bytes, progress_bar
from hmb_trace.cli._shared import close, note, notes_to_stderr
from hmb_trace.dumps.sidecar import stem
from hmb_trace.errors import UsageError
from hmb_trace.escapes import printable
from hmb_trace.pccx import PackOptions, PackResult, pack
from hmb_trace.pccx.packing import CHECKSUMS, ENCODINGS


def _default_output(inputs: tuple[str, ...]) -> str:
    if len(inputs) != 1 or inputs[0] == "-":
        raise UsageError("--output is missing: it has a default only for one input file")
    path = Path(inputs[0])
    base = path.resolve() if path.is_dir() else stem(path)
    return str(base.with_name(base.name + ".pccx"))


def _report(result: PackResult, output: str, quiet: bool) -> None:
    for line in result.warnings:
        note(f"warning: {line}")
    if quiet:
        return
    payload = result.header.payload
    events = f", {result.events.events} events" if result.events else ""
    print(
        f"{printable(output)}: {payload.encoding}, {result.records} records{events}, "
        f"{payload.byte_length} bytes",
        file=sys.stderr,
    )
    close(result.account)


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-o", "--output", metavar="FILE", help="Default: INPUT with .pccx; - for a pipe.")
@click.option("-e", "--encoding", type=click.Choice(ENCODINGS), default="raw", show_default=True)
@CATALOG
@click.option(
    "--clock-mhz",
    type=click.IntRange(1, 2**32 - 1),
    help="Clock of the cycle counts. Default: the catalog's, or 1000.",
)
@click.option(
    "--checksum",
    type=click.Choice(CHECKSUMS),
    default="number",
    show_default=True,
    help="FNV-1a-64 of the payload; the pccx-lab application reads only numbers.",
)
@click.option("--api-names", is_flag=True, help="bincode: the catalog's event name as api_name.")
@click.option("--partial", is_flag=True, help="Take what comes before a damaged end.")
@click.option("-q", "--quiet", is_flag=True, help="Warnings and errors only.")
def command(
    *,
    inputs: tuple[str, ...],
    output: str | None,
    encoding: str,
    catalog_path: str | None,
    clock_mhz: int | None,
    checksum: str,
    api_names: bool,
    partial: bool,
    quiet: bool,
) -> None:
    """Pack dumps, segments and dump-set directories into one .pccx file.

    \b
    Which encoding is for what:
      raw      lossless: the dump's own bytes; `hmb-trace unpack` gives back the identical file
      bincode  what the pccx-lab application displays
      flatbuf  24-byte events sorted by time, for viewers that map the file

    flatbuf and bincode hold events: the catalog says which opcode is which event type, what
    its duration is, and which begin belongs to which end. Begins and ends without a partner
    are kept with duration 0 and counted. Opcodes that no catalog names become UNKNOWN.

    \b
    Examples:
      hmb-trace pack capture.bin
      hmb-trace pack /var/lib/hmb-trace/run1 -o run1.pccx
      hmb-trace pack -e bincode -c opcodes.toml capture.bin.zst -o view.pccx
      hmb-trace-daemon --device shm:/ring --output - | hmb-trace pack - -o live.pccx
    """
    target = output or _default_output(inputs)
    notes_to_stderr()
    catalog = load_catalog(catalog_path, inputs)
    options = PackOptions(encoding, catalog, clock_mhz, checksum, partial, api_names)
    with progress_bar("packing", input_bytes(inputs), quiet=quiet) as progress:
        result = pack(inputs, target, options, progress=progress, keep=given(catalog_path))
    _report(result, target, quiet)

# SPDX-License-Identifier: Apache-2.0
"""hmb-trace unpack."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hmb_trace.cli._progress import input_bytes, progress_bar
from hmb_trace.cli._shared import note
from hmb_trace.errors import UsageError
from hmb_trace.escapes import printable
from hmb_trace.pccx import unpack


def _default_output(path: str) -> str:
    if path == "-":
        raise UsageError("--output is missing: it has a default only for an input file")
    source = Path(path)
    return str(source.with_suffix(".bin") if source.suffix == ".pccx" else f"{path}.bin")


@click.command()
@click.argument("path", metavar="FILE.pccx")
@click.option("-o", "--output", metavar="FILE", help="Default: FILE.bin; - for a pipe.")
@click.option("--strict", is_flag=True, help="A checksum mismatch is an error (exit 1).")
@click.option("-q", "--quiet", is_flag=True, help="Warnings and errors only.")
def command(path: str, output: str | None, strict: bool, quiet: bool) -> None:
    """Take the dump out of a raw .pccx file, byte for byte.

    \b
    Examples:
      hmb-trace unpack capture.pccx
      hmb-trace unpack capture.pccx -o - | hmb-trace decode -
    """
    target = output or _default_output(path)
    with progress_bar("unpacking", input_bytes([path]), quiet=quiet) as progress:
        warnings = unpack(path, target, strict=strict, progress=progress)
    for line in warnings:
        note(f"warning: {line}")
    if not quiet:
        print(f"{printable(str(target))}: unpacked", file=sys.stderr)

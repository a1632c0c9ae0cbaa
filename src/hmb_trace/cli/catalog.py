# SPDX-License-Identifier: Apache-2.0
"""hmb-trace catalog: check, init, import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hmb_trace.catalog import importer as catalog_import
from hmb_trace.catalog.model import Catalog, CatalogError
from hmb_trace.cli._shared import note, say
from hmb_trace.commandline import SuggestingGroup
from hmb_trace.dumps.dump import open_dump
from hmb_trace.errors import from_os_error
from hmb_trace.files import output_file

_OUTPUT = click.option("-o", "--output", metavar="FILE", help="Default: standard output.")


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Give meaning to opcodes: names, payload fields, begin/end pairs, .pccx event types.

    A catalog is a TOML file. Every command that shows records takes it by --catalog.

    \b
    Examples:
      hmb-trace catalog init capture.bin -o opcodes.toml
      hmb-trace catalog import firmware/trace_ids.h -o opcodes.toml
      hmb-trace catalog check opcodes.toml
    """


def _write(text: str, output: str | None, *inputs: str) -> None:
    with output_file(output, inputs=inputs) as stream:
        stream.write(text.encode())


def _summary(catalog: Catalog) -> str:
    kinds = [event.kind for event in catalog]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    fields = sum(len(event.fields) for event in catalog)
    return f"{catalog.name}: {len(catalog)} events ({counts or 'none'}), {fields} payload fields"


def _remarks(catalog: Catalog) -> list[str]:
    """What is no error, but hardly meant."""
    return [
        f"{event.name}: kind is {event.kind}, but it has no pair: it will never match"
        for event in catalog
        if event.kind in ("begin", "end") and not event.pair
    ]


@command.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(files: tuple[str, ...]) -> None:
    """Check catalogs; an error names the path of the wrong key (exit 78).

    \b
    Example:
      hmb-trace catalog check opcodes.toml
    """
    for name in files:
        catalog = Catalog.load(name)
        for remark in _remarks(catalog):
            note(f"warning: {name}: {remark}")
        say(f"{name}: ok: {_summary(catalog)}")


@command.command()
@click.argument("dump", metavar="DUMP")
@_OUTPUT
@click.option("--name", help="Name of the firmware. Default: the dump's name.")
def init(dump: str, output: str | None, name: str | None) -> None:
    """Write a skeleton with every opcode that a dump holds, to be edited.

    \b
    Example:
      hmb-trace catalog init capture/ -o opcodes.toml
    """
    with open_dump(dump) as opened:
        title = name or ("standard input" if dump == "-" else Path(dump).name)
        catalog, counts = catalog_import.from_dump(opened, title)
        read = [dump, *(segment.name for segment in opened.segments)]
    _write(catalog_import.to_toml(catalog, counts), output, *read)


@command.command("import")
@click.argument("file", metavar="FILE")
@_OUTPUT
@click.option("--name", help="Name of the firmware. Default: the file's name.")
def import_(file: str, output: str | None, name: str | None) -> None:
    """Make a catalog from a C header (enums, #defines) or a CSV file.

    CSV needs a header line with the columns opcode and name; others may be kind, format,
    pair, key, duration, duration_unit, value, track and pccx. In C, names that belong
    together (GC_BEGIN and GC_END) become a pair.

    \b
    Example:
      hmb-trace catalog import trace_ids.h -o opcodes.toml
    """
    text = _read(file)
    read = catalog_import.from_csv if file.lower().endswith(".csv") else catalog_import.from_c
    made = read(text, name or os.path.basename(file))  # noqa: PTH119 - "-" too
    _write(catalog_import.to_toml(made), output, file)


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise from_os_error(error, f"cannot read {file}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogError(
            f"{file}: byte {error.start} is not UTF-8, expected C or CSV text"
        ) from None

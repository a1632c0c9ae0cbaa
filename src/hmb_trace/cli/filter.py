# SPDX-License-Identifier: Apache-2.0
"""hmb-trace filter."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from hmb_trace.cli._options import (
    CATALOG,
    CLOCK,
    CSV_SAFE,
    load_catalog,
    make_selection,
    note_if_nothing,
    selection_options,
)
from hmb_trace.cli._shared import (
    FILES,
    PARTIAL,
    QUIET,
    STRICT,
    close,
    inputs_of,
    note,
    notes_to_stderr,
    raise_problems,
)
from hmb_trace.cli.decode import write_listing
from hmb_trace.dumps.account import Accountant
from hmb_trace.dumps.dump import open_dumps
from hmb_trace.dumps.filtered import FilterWriter, write_sidecar
from hmb_trace.dumps.sidecar import Filtered
from hmb_trace.dumps.timeaxis import axis_of
from hmb_trace.errors import UsageError
from hmb_trace.files import output_file
from hmb_trace.text.listing import FORMATS, Listing, Style


@click.command("filter")
@FILES
@click.option(
    "--format",
    "form",
    type=click.Choice(("dump", *FORMATS)),
    help="What comes out; default: dump with -o FILE, else text.",
)
@CATALOG
@CLOCK
@selection_options
@PARTIAL
@CSV_SAFE
@STRICT
@QUIET
@click.option("-o", "--output", metavar="FILE", help="Write there; - is standard output.")
def command(
    *,
    files: tuple[str, ...],
    form: str | None,
    catalog_path: str | None,
    clock: str,
    partial: bool,
    csv_safe: bool,
    strict: bool,
    quiet: bool,
    output: str | None,
    **chosen: Any,
) -> int:
    """Keep the records that meet every condition: as text, or as a new dump.

    Records go into the new dump byte for byte, wrap markers do not. Its sidecar says that it is a
    selection, what the source was missing, and how the clocks relate.

    \b
    Examples:
      hmb-trace filter x.bin --opcode nand_read --catalog ftl.toml
      hmb-trace filter capture/ --catalog ftl.toml --where 'die == 3 and us > 500' -o slow.bin
      hmb-trace filter capture/ --cpu 0 --from +10s --to +20s -o part.bin
    """
    notes_to_stderr()
    form = form or ("dump" if output else "text")
    if form == "dump" and output is None:
        raise UsageError("--format dump needs -o FILE (or -o - for standard output)")
    dump = open_dumps(files)
    catalog = load_catalog(catalog_path, files, dump)
    accountant = Accountant(dump)
    selection = make_selection(dump, catalog, chosen)
    batches = selection.batches(dump, partial=partial, walker=accountant.walker)
    writer: FilterWriter | None = None
    with output_file(output, inputs=inputs_of(files, dump, catalog_path)) as out:
        if form == "dump":
            writer = FilterWriter(out)
            for batch in batches:
                writer.write(batch)
            count = writer.records
        else:
            listing = Listing(Style(form, clock, csv_safe=csv_safe), catalog)
            count = write_listing(out, listing, batches, axis_of(clock, dump), dump)
    note_if_nothing(dump, selection)
    account = accountant.finish()
    if output and output != "-":
        note(f"{output}: {count} records")
        if writer and Path(output).is_file():
            filtered = Filtered(expression=_expression(chosen), source=", ".join(files))
            write_sidecar(Path(output), writer.sidecar(dump, account, Path(output), filtered))
    code = close(account, strict=strict, quiet=quiet)
    raise_problems(dump)
    return code


def _expression(chosen: dict[str, Any]) -> str:
    """The selection as it would be typed."""
    words: list[str] = []
    for option, name in _OPTIONS.items():
        values = chosen.get(name) or ()
        for value in (values,) if isinstance(values, str) else values:
            words += [option, shlex.quote(str(value))]
    return " ".join(words)


_OPTIONS = {
    "--opcode": "opcodes",
    "--cpu": "cpus",
    "--flags": "flags",
    "--seq": "seq",
    "--from": "begin",
    "--to": "end",
    "--where": "where",
}

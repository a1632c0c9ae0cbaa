# SPDX-License-Identifier: Apache-2.0
"""hmb-trace filter."""

from __future__ import annotations

from typing import Any

import click

from hmb_trace.cli._options import (
    CATALOG,
    CLOCK,
    CSV_SAFE,
    load_catalog,
    make_selection,
    selection_options,
)
from hmb_trace.cli._shared import FILES, PARTIAL, note, notes_to_stderr, raise_problems
from hmb_trace.cli.decode import write_listing
from hmb_trace.dumps.dump import open_dumps
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
@click.option("-o", "--output", metavar="FILE", help="Write there; - is standard output.")
def command(
    *,
    files: tuple[str, ...],
    form: str | None,
    catalog_path: str | None,
    clock: str,
    partial: bool,
    csv_safe: bool,
    output: str | None,
    **chosen: Any,
) -> None:
    """Keep the records that meet every condition: as text, or as a new dump.

    Records go into the new dump byte for byte, wrap markers do not. Its sequence numbers have
    gaps where records were left out.

    \b
    Examples:
      hmb-trace filter x.bin --opcode nand_read --catalog ftl.toml
      hmb-trace filter capture/ --catalog ftl.toml --where 'die == 3 and us > 500' -o slow.bin
      hmb-trace filter capture/ --cpu 0 --from +10s --to +20s -o part.bin
    """
    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    form = form or ("dump" if output else "text")
    if form == "dump" and output is None:
        raise UsageError("--format dump needs -o FILE (or -o - for standard output)")
    dump = open_dumps(files)
    batches = make_selection(dump, catalog, chosen).batches(dump, partial=partial)
    with output_file(output, inputs=files) as out:
        if form == "dump":
            count = 0
            for batch in batches:
                out.write(batch.to_bytes())
                count += len(batch)
        else:
            listing = Listing(Style(form, clock, csv_safe=csv_safe), catalog)
            count = write_listing(out, listing, batches, axis_of(clock, dump))
    if output and output != "-":
        note(f"{output}: {count} records")
    raise_problems(dump)

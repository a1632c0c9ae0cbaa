# SPDX-License-Identifier: Apache-2.0
"""hmb-trace decode."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from hmb_trace.cli._options import (
    CATALOG,
    CLOCK,
    CSV_SAFE,
    load_catalog,
    make_selection,
    note_if_nothing,
    open_files,
    selection_options,
)
from hmb_trace.cli._shared import (
    FILES,
    PARTIAL,
    QUIET,
    STRICT,
    close,
    inputs_of,
    notes_to_stderr,
    raise_problems,
)
from hmb_trace.dumps.account import Accountant
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, open_dump
from hmb_trace.dumps.follow import follow
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.timeaxis import Axis, Places, axis_of
from hmb_trace.errors import EXIT_OK, UsageError
from hmb_trace.files import output_file
from hmb_trace.text.listing import FORMATS, PAYLOADS, Listing, Style


@click.command()
@FILES
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--fields", metavar="LIST", help="Columns, comma-separated: seq,time,name,lba.")
@click.option(
    "--payload",
    type=click.Choice(PAYLOADS),
    default="auto",
    help="How payloads are shown; auto: the catalog's message (text) or fields (csv, jsonl).",
)
@CATALOG
@CLOCK
@selection_options
@click.option("-n", "--limit", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--follow", "following", is_flag=True, help="FILE is a live dump-set directory.")
@PARTIAL
@CSV_SAFE
@STRICT
@QUIET
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
def command(
    *,
    files: tuple[str, ...],
    form: str,
    fields: str | None,
    payload: str,
    catalog_path: str | None,
    clock: str,
    limit: int | None,
    following: bool,
    partial: bool,
    csv_safe: bool,
    strict: bool,
    quiet: bool,
    output: str | None,
    **chosen: Any,
) -> int:
    """List the records of dumps, one line each. Wrap markers are skipped.

    \b
    Examples:
      hmb-trace decode x.bin --catalog ftl.toml
      hmb-trace decode capture/ --from +10s --to +11s --opcode 'nand_*' --format csv
      hmb-trace decode --follow capture/ --fields time,cpu,message --catalog ftl.toml
      hmb-trace-daemon --device /dev/nvme0-hmbtrace --output - | hmb-trace decode -
    """
    notes_to_stderr()
    if any(is_rejects(name) for name in files):
        return decode_rejects(files, output)
    dump = None if following else open_files(files)
    catalog = load_catalog(catalog_path, files, dump)
    columns = [name.strip() for name in fields.split(",")] if fields else []
    listing = Listing(Style(form, clock, payload, columns, csv_safe), catalog)
    if dump is None:
        follow_set(_live_directory(files, clock), listing, chosen, limit=limit, output=output)
        return EXIT_OK
    selection = make_selection(dump, catalog, chosen)
    accountant = Accountant(dump)
    batches = selection.batches(dump, partial=partial, walker=accountant.walker)
    with output_file(output, inputs=inputs_of(files, dump, catalog_path)) as out:
        write_listing(out, listing, limited(batches, limit), axis_of(clock, dump), dump)
    note_if_nothing(dump, selection)
    account = accountant.finish(read_on=limit is None)
    code = close(account, strict=strict, quiet=quiet)
    raise_problems(dump)
    return code


def is_rejects(name: str) -> bool:
    """Whether a file holds rejected bytes."""
    return name != "-" and Path(name).is_file() and kind_of(name) is Kind.REJECTS


def decode_rejects(files: tuple[str, ...], output: str | None) -> int:
    """Rejected bytes as text: header fields, neighbours, hex."""
    from hmb_trace.dumps import reject_listing  # noqa: PLC0415 - only for rejects

    with output_file(output, inputs=inputs_of(files)) as out:
        for name in files:
            for entry in reject_listing.entries(name):
                for line in reject_listing.lines(entry):
                    out.write(line.encode() + b"\n")
    return EXIT_OK


def write_listing(
    out: BinaryIO, listing: Listing, batches: Iterable[RecordBatch], axis: Axis, dump: Dump
) -> int:
    """Write heading and lines; returns the records written. Flushes before an error passes."""
    count, places = 0, Places(dump)
    out.write(listing.heading())
    try:
        for batch in batches:
            for piece in listing.lines(batch, axis, places):
                out.write(piece)
            count += len(batch)
            if len(batch) < _LIVE:
                out.flush()  # a slow source: somebody is watching
    finally:
        out.flush()
    return count


_LIVE = 4096  # records; batches from files are larger


def limited(batches: Iterable[RecordBatch], limit: int | None) -> Iterable[RecordBatch]:
    """The first `limit` records; all of them for None."""
    if limit is None:
        yield from batches
        return
    for batch in batches:
        if limit <= 0:
            return
        yield batch if len(batch) <= limit else batch.select(slice(0, limit))
        limit -= len(batch)
        if limit <= 0:
            return


def _live_directory(files: tuple[str, ...], clock: str) -> Path:
    if len(files) != 1 or not Path(files[0]).is_dir():
        raise UsageError("--follow takes one dump-set directory (hmb-trace-daemon --output-dir)")
    if clock == "host":
        raise UsageError("--clock host needs sealed sidecars, --follow reads before they exist")
    return Path(files[0])


def follow_set(
    directory: Path,
    listing: Listing,
    chosen: dict[str, Any],
    *,
    limit: int | None = None,
    output: str | None = None,
) -> None:
    """Write the records of a live dump set as they come, until interrupted or `limit` is met."""
    dump = open_dump(directory) if chosen["begin"] or chosen["end"] else Dump([])
    selection = make_selection(dump, listing.catalog, chosen)
    masked = ((batch, selection.mask(batch)) for batch in follow(directory))
    batches = (batch.select(mask) for batch, mask in masked if mask.any())
    with output_file(output) as out:
        axis = axis_of(listing.style.clock, dump)
        write_listing(out, listing, limited(batches, limit), axis, dump)

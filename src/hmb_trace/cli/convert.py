# SPDX-License-Identifier: Apache-2.0
"""hmb-trace convert."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hmb_trace.catalog.model import Catalog
from hmb_trace.cli._options import (
    CATALOG,
    CLOCK,
    given,
    load_catalog,
    make_selection,
    open_files,
    selection_options_without_to,
)
from hmb_trace.cli._progress import input_bytes, progress_bar
from hmb_trace.cli._shared import (
    FILES,
    PARTIAL,
    close,
    inputs_of,
    note,
    notes_to_stderr,
    raise_problems,
)
from hmb_trace.cli.decode import write_listing
from hmb_trace.dumps.account import Account, Accountant, account, is_stream
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.timeaxis import ClockPieces, axis_of
from hmb_trace.errors import UsageError
from hmb_trace.files import output_file
from hmb_trace.query.select import Selection
from hmb_trace.text.listing import Listing, Style

TARGETS = ("ctf", "perfetto", "parquet", "arrow", "csv", "jsonl", "pccx")
_MOST_PAIRS = 256  # of a piece of the clock that a trace carries
_ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".pccx": "pccx",
}


@dataclass(frozen=True)
class _Job:
    """What is to be converted, and how."""

    dump: Dump
    inputs: tuple[str, ...]  # what the output must not replace
    output: str
    target: str
    catalog: Catalog | None
    clock: str
    selection: Selection
    partial: bool
    accountant: Accountant

    def epoch_of(self, segment: int) -> int | None:
        """The number of the epoch that a file belongs to, where its sidecar says it."""
        known = self.dump.segments[segment].known
        return known.epoch if known else None

    def clock_pairs(self) -> Iterator[list[tuple[int, int]]]:
        """(firmware, host) times of each piece of the clock, in their order."""
        pieces = ClockPieces(self.dump)
        if pieces.known:
            found = {id(s.piece): s.piece for stretches in pieces.of_segment for s in stretches}
            for piece in found.values():
                step = max(1, len(piece.pairs) // _MOST_PAIRS)
                yield [(pair.ts_ns, pair.host_ns) for pair in piece.pairs[::step]]

    def batches(self, advance: Callable[[int], None]) -> Iterator[RecordBatch]:
        found = self.selection.batches(
            self.dump, partial=self.partial, walker=self.accountant.walker
        )
        for batch in found:
            yield batch
            advance(len(batch.buffer))


@click.command()
@FILES
@click.option(
    "--to", "target", type=click.Choice(TARGETS), help="Format; default: by the output's name."
)
@click.option("-o", "--output", metavar="PATH", help="File, - or (CTF) a new directory.")
@CATALOG
@CLOCK
@selection_options_without_to
@click.option("--copy", is_flag=True, help="CTF: copy the segments instead of linking them.")
@click.option("--split-cpu", is_flag=True, help="CTF: a stream per core (skewed clocks).")
@click.option("--encoding", type=click.Choice(("raw", "flatbuf", "bincode")), help="pccx only.")
@PARTIAL
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no closing line.")
def command(
    *,
    files: tuple[str, ...],
    target: str | None,
    output: str | None,
    catalog_path: str | None,
    clock: str,
    copy: bool,
    split_cpu: bool,
    encoding: str | None,
    partial: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Convert dumps for other tools: CTF, Perfetto, Parquet, Arrow, CSV, JSONL, .pccx.

    CTF (babeltrace2, Trace Compass) links the segments, no byte is converted. A .pccx as
    input is converted to another .pccx encoding.

    \b
    Examples:
      hmb-trace convert --to ctf capture/ -o trace/ && babeltrace2 trace/
      hmb-trace convert capture/ -o x.parquet --catalog ftl.toml
      hmb-trace convert capture/ -o x.pftrace --catalog ftl.toml   # ui.perfetto.dev
      hmb-trace convert x.bin --to csv -o - | head
    """
    notes_to_stderr()
    target, output = _target(target, output)
    if target == "pccx":
        if any(chosen.values()):
            raise UsageError(
                "--to pccx takes whole files; select first: hmb-trace filter ... -o part.bin"
            )
        _to_pccx(files, output, encoding, catalog_path, quiet=quiet, partial=partial)
        return
    if encoding:
        raise UsageError("--encoding is for --to pccx")
    catalog = load_catalog(catalog_path, files)
    dump = open_files(files)
    selection = make_selection(dump, catalog, chosen)
    if target == "ctf":
        if not selection.is_everything:
            raise UsageError(
                "--to ctf takes whole files; select first: hmb-trace filter ... -o part.bin"
            )
        made = {"copy": copy, "split_cpu": split_cpu, "partial": partial}
        found = _to_ctf(dump, output, catalog, quiet=quiet, **made)
        close(found, quiet=quiet)
        raise_problems(dump)
        return
    if copy or split_cpu:
        raise UsageError("--copy and --split-cpu are for --to ctf")
    accountant = Accountant(dump)
    inputs = tuple(inputs_of(files, dump, catalog_path))
    job = _Job(dump, inputs, output, target, catalog, clock, selection, partial, accountant)
    with progress_bar(f"to {target}", _size(files), quiet=quiet) as advance:
        said = _run(job, job.batches(advance))
    if not quiet and output != "-":
        note(f"{output}: {said}")
    close(accountant.finish(), quiet=quiet)
    raise_problems(dump)


def _target(target: str | None, output: str | None) -> tuple[str, str]:
    if output is None:
        raise UsageError("--output is missing: name a file, or - for standard output")
    found = target or _ENDINGS.get(Path(output).suffix.lower())
    if found is None:
        raise UsageError(f"--to is missing: the name {output!r} tells none of {', '.join(TARGETS)}")
    return found, output


def _size(files: tuple[str, ...]) -> int | None:
    return None if "-" in files else input_bytes(files)


def _run(job: _Job, batches: Iterable[RecordBatch]) -> str:
    if job.target in ("csv", "jsonl"):
        listing = Listing(Style(job.target, job.clock), job.catalog)
        with output_file(job.output, inputs=job.inputs) as out:
            shown = axis_of(job.clock, job.dump)
            return f"{write_listing(out, listing, batches, shown, job.dump)} records"
    if job.target == "perfetto":
        return _to_perfetto(job, batches)
    return _to_arrow(job, batches)


def _to_arrow(job: _Job, batches: Iterable[RecordBatch]) -> str:
    from hmb_trace.exports import arrow  # noqa: PLC0415 - needs the analysis extra
    from hmb_trace.query.places import place_columns  # noqa: PLC0415 - the same

    maker = arrow.ArrowMaker(
        job.catalog,
        axis=None if job.clock == "fw" else axis_of(job.clock, job.dump),
        relative=job.clock == "relative",
        extra=place_columns(job.dump),
    )
    # A pipe passes once: what it is missing is known only when the schema has been written.
    known = None if is_stream(job.dump) else account(job.dump)
    write = arrow.write_parquet if job.target == "parquet" else arrow.write_ipc
    with output_file(job.output, inputs=job.inputs) as out:
        rows = write(out, maker, batches, known)
    return f"{rows} rows"


def _to_perfetto(job: _Job, batches: Iterable[RecordBatch]) -> str:
    from hmb_trace.exports.perfetto import PerfettoWriter  # noqa: PLC0415 - analysis extra

    axis = axis_of(job.clock, job.dump)
    with output_file(job.output, inputs=job.inputs) as out:
        writer = PerfettoWriter(
            out, job.catalog, axis, realtime=job.clock == "host", epoch_of=job.epoch_of
        )
        for batch in batches:
            writer.add(batch)
        for number, pairs in enumerate(job.clock_pairs()):
            writer.packets.clocks(number, pairs, primary=job.clock == "host")
        counts = writer.finish(job.accountant.finish())
    for line in counts.warnings():
        note(f"warning: {line}")
    return (
        f"{counts.slices} slices, {counts.instants} instants ({counts.unmatched} begins or ends "
        f"without a partner, {counts.uncertain} uncertain pairs), {counts.counters} counter values"
    )


def _to_ctf(
    dump: Dump, output: str, catalog: Catalog | None, *, quiet: bool, **how: bool
) -> Account:
    from hmb_trace.exports import ctf  # noqa: PLC0415 - only for CTF

    if output == "-":
        raise UsageError("--to ctf makes a directory; name a new one with -o")
    made = ctf.export(dump, output, catalog=catalog, **how)
    for line in made.warnings:
        note(f"warning: {line}")
    if quiet:
        return made.account
    clocks = f", {made.clocks} traces (a clock each)" if made.clocks > 1 else ""
    note(
        f"{output}: {made.records} records, {made.streams} streams, {made.linked} of them linked"
        f"{clocks}"
    )
    if made.untyped:
        note(f"payload lengths differ from the catalog, shown as bytes: {', '.join(made.untyped)}")
    return made.account


def _to_pccx(
    files: tuple[str, ...],
    output: str,
    encoding: str | None,
    catalog_path: str | None,
    *,
    quiet: bool,
    partial: bool,
) -> None:
    """.pccx to .pccx here; dumps go the way of hmb-trace pack."""
    from hmb_trace import pccx  # noqa: PLC0415 - only for .pccx

    catalog = Catalog.load(catalog_path) if catalog_path else None
    if any(kind_of(name) is Kind.PCCX for name in files):
        if len(files) > 1:
            raise UsageError("--to pccx takes one .pccx, or dumps")
        with progress_bar("to pccx", None, quiet=quiet) as advance:
            for line in pccx.convert(
                files[0],
                output,
                encoding or "raw",
                catalog=catalog,
                partial=partial,
                progress=advance,
                keep=given(catalog_path),
            ):
                note(f"warning: {line}")
        return
    catalog = load_catalog(catalog_path, files)
    options = pccx.PackOptions(encoding=encoding or "raw", catalog=catalog, partial=partial)
    with progress_bar("to pccx", _size(files), quiet=quiet) as advance:
        result = pccx.pack(files, output, options, progress=advance, keep=given(catalog_path))
    for line in result.warnings:
        note(f"warning: {line}")
    close(result.account, quiet=quiet)

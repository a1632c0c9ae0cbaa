# SPDX-License-Identifier: Apache-2.0
"""Dumps into one .pccx (SPEC P6, P7), and a raw .pccx back into its dump."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hmb_trace import __version__
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps import sidecar
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, open_dumps
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.walker import Tally, Walker
from hmb_trace.errors import UsageError
from hmb_trace.fnv import fnv1a_64
from hmb_trace.layout import ABI_VERSION
from hmb_trace.pccx import container
from hmb_trace.pccx.container import ChecksumError
from hmb_trace.pccx.header import EXTRA_KEY, Header
from hmb_trace.pccx.maker import EventMaker, MakerCounts
from hmb_trace.pccx.output import Output, PayloadWriter, open_output, widest_header, write_all
from hmb_trace.pccx.sorting import sorted_events

ENCODINGS = ("raw", "flatbuf", "bincode")
CHECKSUMS = ("number", "hex", "none")
_MOST_CLOCK_PAIRS = 1024
_MOST_SOURCES = 4096
_COUNTS_ROOM = 1024  # bytes of JSON for the numbers that are known last
_U64_MAX = 2**64 - 1

Progress = Callable[[int], object]


@dataclass
class PackOptions:
    """How to pack.

    Attributes:
        encoding: raw (lossless), flatbuf (mapped viewers) or bincode (what the pccx-lab
            application displays).
        catalog: event types, durations and pairing; goes into the header.
        clock_mhz: of the cycle counts; None: the catalog's, that of the .pccx which is written
            again, or 1000.
        checksum: number, hex or none (SPEC P1).
        partial: take what comes before a damaged end instead of refusing the dump.
        api_names: bincode: the catalog's event name as api_name.
    """

    encoding: str = "raw"
    catalog: Catalog | None = None
    clock_mhz: int | None = None
    checksum: str = "number"
    partial: bool = False
    api_names: bool = False

    def __post_init__(self) -> None:
        for value, known, name in (
            (self.encoding, ENCODINGS, "encoding"),
            (self.checksum, CHECKSUMS, "checksum"),
        ):
            if value not in known:
                raise UsageError(f"{name}: found {value!r}, expected one of {', '.join(known)}")

    def clock(self, base: Header | None = None) -> int:
        """Clock in MHz, resolved. base: the header of the .pccx that is written again."""
        if self.clock_mhz is not None:
            return self.clock_mhz
        if base and self._knows_no_more_than(base):
            return base.trace.clock_mhz
        return self.catalog.clock_mhz if self.catalog else 1000

    def _knows_no_more_than(self, base: Header) -> bool:
        return self.catalog is None or self.catalog.to_dict() == base.hmb_trace.get("catalog")


@dataclass
class PackResult:
    """What was packed.

    Attributes:
        header: as written.
        events: None for raw.
        warnings: one line each.
    """

    header: Header
    records: int
    wrap_markers: int
    events: MakerCounts | None = None
    warnings: list[str] = field(default_factory=list)


def cycles(ts_ns: int, clock_mhz: int) -> int:
    """ts_ns * clock_mhz / 1000, exact, cut at 2**64 - 1."""
    return min(ts_ns * clock_mhz // 1000, _U64_MAX)


def _sidecars(dump: Dump) -> list[sidecar.Sidecar]:
    found = (sidecar.find(segment.path) for segment in dump.segments if segment.path)
    return [one for one in found if one is not None]


def _thinned(pairs: list[list[int]]) -> list[list[int]]:
    """At most so many clock pairs, evenly picked, first and last among them."""
    if len(pairs) <= _MOST_CLOCK_PAIRS:
        return pairs
    last = len(pairs) - 1
    return [pairs[i * last // (_MOST_CLOCK_PAIRS - 1)] for i in range(_MOST_CLOCK_PAIRS)]


def _origin(dump: Dump, sidecars: list[sidecar.Sidecar]) -> dict[str, Any]:
    """What the sidecars know about where the records come from (SPEC P7)."""
    names = [segment.path.name if segment.path else "-" for segment in dump.segments]
    made: dict[str, Any] = {"version": __version__, "abi_version": ABI_VERSION}
    made["sources"] = names[:_MOST_SOURCES]
    if not sidecars:
        return made
    device = sidecars[0].device
    made["abi_version"] = sidecars[0].abi_version
    made["device"] = {
        name: getattr(device, name)
        for name in ("path", "kind", "identity", "serial", "model", "firmware")
    }
    made["epoch"] = sidecars[0].epoch
    made["epochs"] = sorted({one.epoch for one in sidecars})
    made["complete"] = all(one.complete for one in sidecars)
    pairs = [[p.ts_ns, p.host_ns, p.error_ns] for one in sidecars for p in one.clock]
    made["clock"] = _thinned(pairs)
    return made


def _losses(walker: Walker, sidecars: list[sidecar.Sidecar]) -> dict[str, Any]:
    """Counts of the records; those in the rejects are not lost (SPEC R12)."""
    rejected = sum(gap.rejected for one in sidecars for gap in one.gap_list)
    some = walker.records > 0
    return {
        "records": walker.records,
        "wrap_markers": walker.wrap_markers,
        "first_seq": walker.first_seq if some else None,
        "last_seq": walker.last_record_seq if some else None,
        "first_ts_ns": walker.first_ts_ns if some else None,
        "last_ts_ns": walker.last_ts_ns if some else None,
        "gaps": walker.gaps,
        "lost": max(0, walker.lost - rejected),
        "duplicates": walker.duplicates,
        "sequence_resets": walker.sequence_resets,
    }


class _Packer:
    """One packing: a dump, options, an output stream."""

    def __init__(
        self, dump: Dump, options: PackOptions, target: Output, base: Header | None
    ) -> None:
        self._dump = dump
        self._options = options
        self._base = base
        self._target = target
        self._sidecars = _sidecars(dump)
        self._tally = Tally() if options.encoding == "raw" else None
        self._walker = Walker(tally=self._tally)
        self._header = self._first_header()
        self._writer = self._new_writer(patched=self._patches())
        self._maker: EventMaker | None = None
        if options.encoding != "raw":
            self._maker = EventMaker(
                self._writer,
                options.encoding,
                options.catalog,
                self._header.trace.clock_mhz,
                api_names=options.api_names,
            )

    def _first_header(self) -> Header:
        origin = _origin(self._dump, self._sidecars)
        header = deepcopy(self._base) if self._base else Header(f"hmb-trace-{__version__}")
        # What an earlier packing knew of the capture, nobody knows any better now (P7).
        origin.update(header.hmb_trace)
        if self._options.catalog:
            origin["catalog"] = self._options.catalog.to_dict()
        header.extra[EXTRA_KEY] = origin
        header.trace.clock_mhz = self._options.clock(self._base)
        header.payload.encoding = self._options.encoding
        return header

    def _patches(self) -> bool:
        """Whether payload bytes change after they were written: late durations, bincode's head."""
        pairs = any(event.pair for event in self._options.catalog or ())
        return self._options.encoding == "bincode" or (self._options.encoding != "raw" and pairs)

    def _new_writer(self, *, patched: bool = False) -> PayloadWriter:
        checksum = self._options.checksum
        room = widest_header(self._header, checksum) + _COUNTS_ROOM
        return PayloadWriter(self._target, room, checksum, patched=patched)

    def run(self, progress: Progress) -> PackResult:
        maker = self._maker

        def on_batch(batch: RecordBatch) -> None:
            if maker is None:
                self._writer.write(batch.buffer)
            else:
                maker.feed(batch.buffer, batch.cuts - np.uint64(batch.base))
            progress(len(batch.buffer))

        self._dump.scan(self._walker, partial=self._options.partial, on_batch=on_batch)
        counts = self._maker.finish() if self._maker else None
        if self._options.encoding == "flatbuf" and self._maker and not self._maker.sorted:
            self._sort(counts.events if counts else 0)
        header = self._writer.finish(self._last_header(counts))
        warnings = [str(problem) for problem in self._dump.problems]
        warnings += counts.warnings() if counts else []
        walker = self._walker
        return PackResult(header, walker.records, walker.wrap_markers, counts, warnings)

    def _sort(self, events: int) -> None:
        unsorted = self._writer.payload_stream()
        self._writer = self._new_writer()
        for piece in sorted_events(unsorted, events, self._target.scratch):
            self._writer.write(piece.view("u1").data)

    def _last_header(self, counts: MakerCounts | None) -> Header:
        extra = self._header.extra[EXTRA_KEY]
        found = _losses(self._walker, self._sidecars)
        if self._base and extra.get("records") == found["records"]:
            found["lost"] = extra.get("lost", found["lost"])  # rejects were known then
        extra.update(found)
        trace = self._header.trace
        if counts and self._maker:
            extra["events"] = counts.events
            extra["pairs"] = counts.pairs
            extra["unmatched_begins"] = counts.unmatched_begins
            extra["unmatched_ends"] = counts.unmatched_ends
            trace.cycles, trace.cores = self._maker.c.cycles, self._maker.c.cores
        else:
            trace.cycles = cycles(self._walker.max_ts_ns, trace.clock_mhz)
            trace.cores = self._cores()
        return self._header

    def _cores(self) -> int:
        """Largest cpu + 1; 0 without records."""
        used = np.flatnonzero(self._tally.cpu_records) if self._tally else np.empty(0)
        return int(used[-1]) + 1 if len(used) else 0


def _no_progress(size: int) -> None:
    pass


def _files(dump: Dump, paths: Sequence[Path]) -> list[Path]:
    """Everything that is read: a capture exists once, nothing may be put in its place."""
    return [*paths, *(segment.path for segment in dump.segments if segment.path)]


def _header_to_keep(paths: Sequence[Path]) -> Header | None:
    """The header of the one .pccx that is written again, whose keys are kept (SPEC P3)."""
    if len(paths) != 1 or kind_of(str(paths[0])) is not Kind.PCCX:
        return None
    with container.read(paths[0]) as file:
        return file.header


def pack(
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    progress: Progress = _no_progress,
    keep: Sequence[str | os.PathLike[str]] = (),
) -> PackResult:
    """Pack dumps into one .pccx; the output appears only when it is whole.

    Args:
        paths: dumps, segments (.bin, .part, .bin.zst), dump-set directories, raw .pccx files,
            or `-`; their records follow each other in the order given. A .pccx alone keeps
            what its header says of the hardware and the capture, and keys of others.
        output: the file, or `-` for standard output.
        progress: called with the number of dump bytes taken.
        keep: other files that the output must not replace (the catalog).

    Raises:
        DumpError: an input is damaged (options.partial takes what comes before).
        UsageError: the output is one of the inputs.
        HmbTraceError: an input cannot be read or the output not written.
    """
    chosen = options or PackOptions()
    inputs = [Path(path) for path in paths]
    with open_dumps(inputs) as dump, open_output(output, [*_files(dump, inputs), *keep]) as target:
        return _Packer(dump, chosen, target, _header_to_keep(inputs)).run(progress)


def unpack(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    strict: bool = False,
    progress: Progress = _no_progress,
) -> list[str]:
    """The dump of a raw .pccx, byte for byte.

    Args:
        path: the .pccx, or `-`.
        output: the dump, or `-`.
        strict: a checksum mismatch is an error, and nothing is left behind.

    Returns:
        Warnings, one line each.

    Raises:
        PccxError: no .pccx, or an encoding that holds events instead of records.
        ChecksumError: strict, and the checksum does not fit.
    """
    with container.read(path) as file, open_output(output, [path]) as target:
        encoding = file.header.payload.encoding
        if encoding in ("flatbuf", "bincode"):
            raise container.PccxError(
                f"{file.name}: payload.encoding: found {encoding!r}, expected 'raw'; "
                "only raw holds the dump (use 'hmb-trace convert' for its events)"
            )
        state = None
        for start in range(0, len(file.payload), container.WINDOW):
            piece = file.payload[start : start + container.WINDOW]
            state = fnv1a_64(piece, state)
            write_all(target.stream, piece)
            file.drop_pages(start, start + len(piece))
            progress(len(piece))
        file.note_hash(fnv1a_64(b"") if state is None else state)
        problem = file.checksum_warning()
        if problem and strict:
            raise ChecksumError(f"{file.name}: {problem}")
        return file.warnings + ([problem] if problem else [])

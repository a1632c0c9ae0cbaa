# SPDX-License-Identifier: Apache-2.0
"""CTF 1.8 without conversion: a dump is a CTF stream as it is, a `metadata` file names its parts.

Every segment becomes a stream file of one packet, by hard link where that is possible. Times must
not go backwards within a stream, so a file whose clock does is split (and then copied).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.dumps.account import Account, Accountant
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, Span
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sources import StreamSource
from hmb_trace.dumps.timeaxis import ClockPieces as HostClocks
from hmb_trace.errors import CannotCreateError, InvalidDataError, UsageError, from_os_error
from hmb_trace.exports.ctf_clocks import ClockPiece, ClockPieces, too_late
from hmb_trace.exports.tsdl import (
    Declaration,
    about_account,
    about_dump,
    free_name,
    metadata_text,
)
from hmb_trace.layout import RecordFlag

MOST_SPLITS = 64  # streams that one file may be split into before --split-cpu is asked for
_OPCODES = 1 << 16
_PIECE = 1 << 20  # bytes copied at once


@dataclass
class _Opcodes:
    """What the scan learns of every opcode: payload lengths of records, and which are markers."""

    least: np.ndarray[tuple[int], np.dtype[np.int64]] = field(
        default_factory=lambda: np.full(_OPCODES, 1 << 16, "i8")
    )
    most: np.ndarray[tuple[int], np.dtype[np.int64]] = field(
        default_factory=lambda: np.full(_OPCODES, -1, "i8")
    )
    markers_of: set[int] = field(default_factory=set)
    others_of: set[int] = field(default_factory=set)
    last_of: dict[object, tuple[int, int]] = field(default_factory=dict)

    def note_last(self, stream: object, batch: RecordBatch, end: int) -> None:
        """The record that ends a stream, as far as is known by now: the last before row `end`."""
        real = np.flatnonzero((batch.flags[:end] & RecordFlag.WRAP_MARKER) == 0)
        if len(real):
            row = int(real[-1])
            self.last_of[stream] = (int(batch.opcode[row]), int(batch.payload_len[row]))

    def add(self, batch: RecordBatch) -> None:
        """Take a batch, wrap markers included."""
        marker = (batch.flags & RecordFlag.WRAP_MARKER) != 0
        self._add_lengths(batch.select(~marker) if marker.any() else batch)
        if marker.any():
            self._add_markers(batch.select(marker))
        self.others_of.update(np.flatnonzero(np.bincount(batch.opcode[~marker])).tolist())

    def _add_markers(self, markers: RecordBatch) -> None:
        found = np.unique(markers.opcode)
        self.markers_of.update(found.tolist())
        self.most[found] = np.maximum(self.most[found], 0)

    def _add_lengths(self, batch: RecordBatch) -> None:
        """Shortest and longest payload by opcode; fast where all of an opcode's are the same."""
        lengths = batch.payload_len.astype("f8")  # sums of squares stay exact: below 2^53
        count = np.bincount(batch.opcode)
        used = np.flatnonzero(count)
        total = np.bincount(batch.opcode, lengths)[used]
        squares = np.bincount(batch.opcode, lengths * lengths)[used]
        mean = np.rint(total / count[used])
        same = (mean * count[used] == total) & (mean * total == squares)
        alike = used[same]
        self.least[alike] = np.minimum(self.least[alike], mean[same].astype("i8"))
        self.most[alike] = np.maximum(self.most[alike], mean[same].astype("i8"))
        if not same.all():
            rows = np.isin(batch.opcode, used[~same])
            np.minimum.at(self.least, batch.opcode[rows], batch.payload_len[rows])
            np.maximum.at(self.most, batch.opcode[rows], batch.payload_len[rows])

    @property
    def ambiguous(self) -> bool:
        """Whether a wrap marker has the opcode of a record: CTF could not tell them apart."""
        return bool(self.markers_of & self.others_of)

    def declarations(self, catalog: Catalog | None) -> Iterator[Declaration]:
        padded = {opcode for opcode, length in self.last_of.values() if length % 8}
        taken = {event.name for event in catalog or ()}
        for opcode in np.flatnonzero(self.most >= 0).tolist():
            event = catalog.get(opcode) if catalog else None
            yield replace(self._declaration(opcode, event, taken), padded=opcode in padded)

    def _declaration(self, opcode: int, event: Event | None, taken: set[str]) -> Declaration:
        if opcode not in self.others_of:
            return Declaration(opcode, free_name("wrap_marker", taken), 0, ())
        name = event.name if event else free_name(f"0x{opcode:04x}", taken)
        least, most = int(self.least[opcode]), int(self.most[opcode])
        if event and event.fields and least == most == event.payload_size:
            return Declaration(opcode, name, least, event.fields)
        return Declaration(opcode, name, least if least == most == 0 else None, ())


@dataclass
class _Stream:
    """A stream file to be: bytes begin..end of a file of the dump."""

    segment: int
    piece: int
    begin: int = 0
    end: int = 0


@dataclass(frozen=True)
class CtfResult:
    """What was made.

    Attributes:
        streams: files in the trace.
        linked: of them, hard or symbolic links.
        untyped: names of catalog events whose payloads are bare bytes, since lengths differ.
        clocks: pieces of the firmware's clock; of more than one, each is a trace in a directory.
        account: what the capture is missing; in the environment of every trace.
        warnings: one line each.
    """

    streams: int
    linked: int
    records: int
    wrap_markers: int
    untyped: list[str]
    clocks: int
    account: Account
    warnings: list[str]


def export(
    dump: Dump,
    directory: str,
    *,
    catalog: Catalog | None = None,
    copy: bool = False,
    split_cpu: bool = False,
    partial: bool = False,
) -> CtfResult:
    """Make a CTF trace directory of a dump.

    Args:
        directory: made; must not exist, or be empty.
        copy: copy the bytes instead of linking.
        split_cpu: a stream per cpu, copied: for cores whose clocks are skewed.
        partial: take what comes before a fault.

    Raises:
        DumpError: damaged, without partial.
        UsageError: the clock goes back too often for a stream per step.
        CannotCreateError: the directory cannot be made.
    """
    with _new_directory(Path(directory)) as folder:
        plan = _Plan(dump, folder, copy=copy, split_cpu=split_cpu)
        plan.scan(partial)
        plan.place()
        declared = list(plan.opcodes.declarations(catalog))
        account = plan.accountant.finish()
        for piece in plan.pieces:
            env = plan.about(piece) | about_account(account)
            offset = piece.offset_ns(plan.host_clocks)
            text = metadata_text(declared, offset_ns=offset, env=env)
            (plan.folder_of(piece.number) / "metadata").write_text(text, encoding="utf-8")
        plan.flatten()
    events = catalog.events if catalog else {}
    untyped = [d.name for d in declared if _is_untyped(d, events.get(d.opcode))]
    return CtfResult(
        plan.made,
        plan.linked,
        plan.records,
        plan.markers,
        untyped,
        clocks=len(plan.pieces),
        account=account,
        warnings=plan.warnings(),
    )


def _is_untyped(declared: Declaration, event: Event | None) -> bool:
    return bool(event and event.fields and not declared.fields and declared.name == event.name)


@contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """A directory that appears only when it is whole."""
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise CannotCreateError(f"{target}: exists already; name a new or an empty directory")
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise from_os_error(error, f"cannot create {target}", creating=True) from error
    try:
        yield made
        made.chmod(0o755)
        if target.exists():
            target.rmdir()
        made.replace(target)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise from_os_error(error, f"cannot create {target}", creating=True) from error
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


class _Plan:
    """Decides which stream files there are, and makes them."""

    def __init__(self, dump: Dump, folder: Path, *, copy: bool, split_cpu: bool) -> None:
        self.dump = dump
        self.folder = folder
        self.copy = copy
        self.opcodes = _Opcodes()
        self.streams: list[_Stream] = []
        self.records = self.markers = self.made = self.linked = self.late = 0
        self._clocks = ClockPieces()
        self.host_clocks = HostClocks(dump)
        self.accountant = Accountant(dump)
        self._split_cpu = split_cpu
        self._by_cpu: _ByCpu | None = None
        self._by_cpu_piece = -1
        self._last: int | None = None  # time of the record before, in the same stream
        self._spools: dict[int, BinaryIO] = {}
        self._marked: set[int] = set()  # files that hold wrap markers

    @property
    def pieces(self) -> list[ClockPiece]:
        """Of the clock; each becomes a trace."""
        return self._clocks.all

    def scan(self, partial: bool) -> None:
        """The one pass: opcodes and lengths, and where the clock goes back or is another."""
        walker = self.accountant.walker
        for batch in self.dump.batches(markers=True, partial=partial, walker=walker):
            self.opcodes.add(batch)
            self._count(batch)
            parts = self._clocks.split(batch)
            ends = [*(begin for _, begin, _ in parts[1:]), batch.base + len(batch.buffer)]
            for (piece, begin, part), end in zip(parts, ends, strict=True):
                if self._split_cpu:
                    self._cpus(piece.number).add(part.without_markers())
                else:
                    self._split(piece.number, begin, part, end)
            if not self._split_cpu:
                self._spool(batch)
        self._end_cpus()

    def _count(self, batch: RecordBatch) -> None:
        marks = int(np.count_nonzero(batch.flags & RecordFlag.WRAP_MARKER))
        self.markers += marks
        self.records += len(batch) - marks
        self.late += too_late(batch)
        if marks:
            self._marked.add(batch.segment)

    def _cpus(self, piece: int) -> _ByCpu:
        if self._by_cpu is None or piece != self._by_cpu_piece:
            self._end_cpus()
            self._by_cpu_piece = piece
            self._by_cpu = _ByCpu(lambda name: self._free(piece, name).open("wb"), self.opcodes)
        return self._by_cpu

    def _end_cpus(self) -> None:
        if self._by_cpu is not None:
            self.made += self._by_cpu.finish()
        self._by_cpu = None

    def folder_of(self, piece: int) -> Path:
        """Where the trace of a piece is made."""
        folder = self.folder / f"clock-{piece + 1:03d}"
        folder.mkdir(exist_ok=True)
        return folder

    def flatten(self) -> None:
        """A dump of one clock is one trace: without a directory around it."""
        if len(self.pieces) > 1:
            return
        inner = self.folder_of(0)
        for path in inner.iterdir():
            path.rename(self.folder / path.name)
        inner.rmdir()

    def about(self, piece: ClockPiece) -> dict[str, str | int]:
        """The environment of a piece's trace."""
        found = about_dump(self.dump, list(piece.ranges))
        if (epoch := piece.epoch(self.dump)) is not None:
            found["epoch"] = epoch
        if len(self.pieces) > 1:
            found |= {"clock_piece": piece.number + 1, "clock_pieces": len(self.pieces)}
        return found

    def warnings(self) -> list[str]:
        """What a user must know, one line each."""
        found = []
        if self.late:
            found.append(
                f"{self.late} records have a time of 2^63 ns or more: CTF readers stop at the first"
            )
        known = [piece.offset_ns(self.host_clocks) is not None for piece in self.pieces]
        if len(known) > 1 and not all(known):
            found.append(
                f"{len(known)} clocks (epochs, clock steps), {known.count(False)} of them without "
                "a pair to the host's clock: their times cannot be compared, read them one by one"
            )
        return found

    def _split(self, piece: int, begin: int, part: RecordBatch, end: int) -> None:
        """Bytes begin..end of a file belong to streams in which no time goes back."""
        stream = self.streams[-1] if self.streams else None
        if stream is None or (stream.segment, stream.piece) != (part.segment, piece):
            self._open(part.segment, piece, begin)
        times = part.ts_ns
        back = (np.flatnonzero(times[1:] < times[:-1]) + 1).tolist()
        if self._last is not None and len(times) and int(times[0]) < self._last:
            back.insert(0, 0)
        for row in back:
            self.streams[-1].end = int(part.offset[row])
            self.opcodes.note_last(len(self.streams), part, row)
            self._open(part.segment, piece, int(part.offset[row]))
        self.streams[-1].end = end
        self.opcodes.note_last(len(self.streams), part, len(part))
        if len(times):
            self._last = int(times[-1])
        if len(self.streams) > MOST_SPLITS * len(self.dump.segments):
            raise UsageError(
                f"{part.path}: the clock goes back more than {MOST_SPLITS} times, and that of a "
                "CTF stream must not; use --split-cpu if the cores' clocks differ"
            )

    def _open(self, segment: int, piece: int, begin: int) -> None:
        self.streams.append(_Stream(segment, piece, begin, begin))
        self._last = None

    def _spool(self, batch: RecordBatch) -> None:
        """A pipe or compressed file is read once: its bytes are kept as they pass."""
        if not isinstance(self._kind(batch.segment), StreamSource):
            return
        if batch.segment not in self._spools:
            self._spools[batch.segment] = (self.folder / f".spool{batch.segment}").open("w+b")
        self._spools[batch.segment].write(batch.buffer)

    def _kind(self, index: int) -> object:
        segment = self.dump.segments[index]
        one_pass = segment.kind in (Kind.ZSTD, Kind.STREAM)
        return StreamSource(lambda _: b"", lambda: None) if one_pass else None

    def place(self) -> None:
        """Link or copy every stream of the plan."""
        for stream in self.streams:
            segment = self.dump.segments[stream.segment]
            if stream.end == stream.begin:
                continue
            self.made += 1
            if self._may_link(stream, segment):
                self.linked += 1
                _link(segment, self._name(stream, segment))
            else:
                self._copy(stream, segment)
        for index, spool in self._spools.items():
            spool.close()
            (self.folder / f".spool{index}").unlink()

    def _may_link(self, stream: _Stream, segment: Segment) -> bool:
        if self.copy or self._holds_markers_to_drop(stream):
            return False
        if segment.kind is not Kind.DUMP or segment.partial or segment.path is None:
            return False
        return stream.begin == 0 and stream.end == segment.path.stat().st_size

    def _holds_markers_to_drop(self, stream: _Stream) -> bool:
        return self.opcodes.ambiguous and stream.segment in self._marked

    def _name(self, stream: _Stream, segment: Segment) -> Path:
        base = segment.path.name if segment.path else "stream"
        for ending in (".part", ".zst", ".pccx"):
            base = base.removesuffix(ending)
        return self._free(stream.piece, base if base not in ("metadata", "") else f"{base}.bin")

    def _free(self, piece: int, name: str) -> Path:
        folder = self.folder_of(piece)
        path, number = folder / name, 1
        while path.exists():
            path = folder / f"{name}.{number}"
            number += 1
        return path

    def _copy(self, stream: _Stream, segment: Segment) -> None:
        spool = self._spools.get(stream.segment)
        with self._name(stream, segment).open("wb") as out:
            if spool is not None:
                spool.seek(0)
                segment = Segment(segment.name, None, Kind.STREAM, spool)
            if self.opcodes.ambiguous:
                _copy_records(segment, stream, out)
            else:
                _copy_bytes(segment, stream, out)


def _copy_bytes(segment: Segment, stream: _Stream, out: BinaryIO) -> None:
    source = segment.open()
    try:
        pos = stream.begin
        while pos < stream.end:
            view, _ = source.window(pos, min(_PIECE, stream.end - pos))
            view = view[: stream.end - pos]
            if not view:
                raise InvalidDataError(f"{segment.name}: has become shorter while it was read")
            out.write(view)
            pos += len(view)
    finally:
        source.close()


def _copy_records(segment: Segment, stream: _Stream, out: BinaryIO) -> None:
    """The same without wrap markers."""
    for batch in Dump([segment]).batches(spans=[Span(0, stream.begin, stream.end)]):
        out.write(batch.to_bytes())


def _link(segment: Segment, target: Path) -> None:
    assert segment.path is not None
    source = segment.path.resolve()
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(source)  # another file system, or one without hard links


class _ByCpu:
    """A stream per cpu; a new one where even a single core's clock goes back."""

    def __init__(self, new_file: Callable[[str], BinaryIO], opcodes: _Opcodes) -> None:
        self._new_file = new_file
        self._opcodes = opcodes
        self._open: dict[int, BinaryIO] = {}
        self._last: dict[int, int] = {}
        self._made = 0

    def add(self, batch: RecordBatch) -> None:
        for cpu in np.flatnonzero(np.bincount(batch.cpu)).tolist():
            mine = batch.select(batch.cpu == cpu)
            back = np.flatnonzero(mine.ts_ns[1:] < mine.ts_ns[:-1]) + 1
            if int(mine.ts_ns[0]) < self._last.get(cpu, 0):
                self._begin(cpu)
            for index, part in enumerate(np.split(np.arange(len(mine)), back)):
                if index:
                    self._begin(cpu)
                if len(part):
                    self._file(cpu).write(mine.select(part).to_bytes())
                    self._opcodes.note_last(self._file(cpu), mine, int(part[-1]) + 1)
            self._last[cpu] = int(mine.ts_ns[-1])

    def _file(self, cpu: int) -> BinaryIO:
        return self._open[cpu] if cpu in self._open else self._begin(cpu)

    def _begin(self, cpu: int) -> BinaryIO:
        if cpu in self._open:
            self._open[cpu].close()
        self._made += 1
        if self._made > 256 * MOST_SPLITS:
            raise UsageError("the clocks go back too often for CTF streams, even per cpu")
        self._open[cpu] = self._new_file(f"cpu{cpu:03d}.bin")
        return self._open[cpu]

    def finish(self) -> int:
        """Close all; returns the number of streams."""
        for file in self._open.values():
            file.close()
        return self._made

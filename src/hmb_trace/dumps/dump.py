# SPDX-License-Identifier: Apache-2.0
"""Reading dumps: record batches from files, dump sets, compressed segments and pipes.

What a dump is: seed 003 section 6.5; how it may end: SPEC R13, R14.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from hmb_trace.dumps import segments as _segments
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.kinds import Kind, describe_magic
from hmb_trace.dumps.pieces import PieceFinder
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import rejects_path, sidecar_path
from hmb_trace.dumps.sources import Source
from hmb_trace.dumps.walker import End, Walker
from hmb_trace.errors import InvalidDataError
from hmb_trace.layout import RECORD_HDR_SIZE, RECORD_MAGIC, RECORD_MAX_PAYLOAD

DEFAULT_BATCH = 4 << 20  # bytes
SMALLEST_BATCH = 2 * (RECORD_HDR_SIZE + RECORD_MAX_PAYLOAD)


class DumpError(InvalidDataError):
    """A dump ends inside a record, or holds something else than records.

    Attributes:
        path: the file.
        offset: of the first byte that is not part of a whole record, bytes.
        reason: without path and advice.
        segment: index of the file in its dump.
    """

    def __init__(self, path: str, offset: int, reason: str, segment: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.reason = reason
        self.segment = segment
        super().__init__(
            f"{path}: {reason}; what comes before is good (--partial shows it, "
            "'hmb-trace repair' cuts the file there)"
        )


def _reason(end: End, rest: memoryview, offset: int) -> str:
    """What is wrong at offset, where rest are the bytes from there on."""
    if end is End.SHORT_HEADER:
        return (
            f"truncated: ends inside a record header at byte {offset}: "
            f"found {len(rest)} bytes, expected {RECORD_HDR_SIZE}"
        )
    length = int.from_bytes(rest[20:22], "little")
    if end is End.SHORT_PAYLOAD:
        return (
            f"truncated: ends inside a payload; the record is at byte {offset}: "
            f"found {len(rest) - RECORD_HDR_SIZE} bytes, expected {(length + 7) & ~7}"
        )
    if end is End.BAD_MAGIC:
        return (
            f"no record at byte {offset}: magic: found {describe_magic(bytes(rest[:4]))}, "
            f"expected 0x{RECORD_MAGIC:08x} ('RECT')"
        )
    return (
        f"no valid record at byte {offset}: payload_len: found {length}, "
        f"expected at most {RECORD_MAX_PAYLOAD}"
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass over a dump is for."""

    walker: Walker
    max_bytes: int
    columns: bool
    markers: bool


class Span(NamedTuple):
    """A part of a dump: bytes begin..end of one file; both are record boundaries."""

    segment: int
    begin: int = 0
    end: int | None = None  # None: to the end of the file


class _SegmentReader:
    """Walks one file window by window."""

    def __init__(
        self, segment: Segment, source: Source, wanted: _Pass, pieces: PieceFinder
    ) -> None:
        self.segment = segment
        self.source = source
        self.wanted = wanted
        self.pieces = pieces

    def batches(self, span: Span) -> Iterator[RecordBatch]:
        """Raises DumpError after the last good batch."""
        wanted, pos = self.wanted, span.begin
        while span.end is None or pos < span.end:
            view, last = self._window(pos, span.end)
            end, used, arrays = wanted.walker.walk(
                view, columns=wanted.columns, markers=wanted.markers
            )
            if used:
                found = RecordBatch(view[:used], pos, span.segment, self.segment.name, **arrays)
                yield self.pieces.mark(found, wanted.walker)
            pos += used
            if last and (end is End.DONE or end.short):
                self._check_source(pos, span.segment)
            if end is End.DONE and last:
                return
            if end is not End.DONE and (last or not end.short):
                self._stop(end, view[used:], pos, span.segment)
                return

    def _window(self, pos: int, end: int | None) -> tuple[memoryview, bool]:
        size = self.wanted.max_bytes if end is None else min(self.wanted.max_bytes, end - pos)
        view, last = self.source.window(pos, size)
        # A stream gives more than was asked for when a window was not used up.
        return (view, last) if end is None else (view[: end - pos], last)

    def _check_source(self, pos: int, segment: int) -> None:
        """Bytes that end because their container is damaged (a torn .zst) end like a torn dump."""
        if self.source.fault:
            reason = f"{self.source.fault}; whole records end at byte {pos} of the dump"
            raise DumpError(self.segment.name, pos, reason, segment)

    def _stop(self, end: End, rest: memoryview, pos: int, segment: int) -> None:
        if self.segment.partial and not any(rest[:RECORD_HDR_SIZE]):
            return  # preallocated, not written (SPEC R14)
        raise DumpError(self.segment.name, pos, _reason(end, rest, pos), segment)


class Dump:
    """An open dump: one file, or several read as one stream.

    Attributes:
        segments: the files, in order.
        directories: the dump sets among what was opened.
        problems: what a pass with partial=True met, one DumpError for each bad file.
    """

    def __init__(self, segments: Sequence[Segment], directories: Sequence[Path] = ()) -> None:
        self.segments = list(segments)
        self.directories = list(directories)
        self.problems: list[DumpError] = []

    def batches(
        self,
        max_bytes: int = DEFAULT_BATCH,
        *,
        markers: bool = False,
        partial: bool = False,
        spans: Sequence[Span] | None = None,
        walker: Walker | None = None,
    ) -> Iterator[RecordBatch]:
        """The records in file order; a batch never spans two files.

        Args:
            max_bytes: of dump in one batch, roughly; bounds the memory used.
            markers: wrap markers get rows too (SPEC R13: listings skip them).
            partial: at a bad place go on with the next file (see `problems`) instead of raising.
            spans: the parts wanted, in file order; None: all.
            walker: counts what is read, sequence breaks included.

        Raises:
            DumpError: truncated or not a record, with the byte offset, after everything
                that comes before has been yielded.
            HmbTraceError: a file cannot be read.
        """
        wanted = _Pass(walker or Walker(), max(max_bytes, SMALLEST_BATCH), True, markers)
        return self._run(wanted, partial=partial, spans=spans)

    def scan(
        self,
        walker: Walker,
        *,
        partial: bool = False,
        on_bytes: Callable[[memoryview], object] | None = None,
        on_batch: Callable[[RecordBatch], object] | None = None,
        spans: Sequence[Span] | None = None,
    ) -> None:
        """Count everything into the walker without making columns (fastest).

        Args:
            on_bytes: called with the bytes of the records, piece by piece.
            on_batch: the same with a batch without rows, for its bytes and its cuts.
            spans: the parts wanted; None: all.

        Raises:
            DumpError, HmbTraceError: as batches.
        """
        wanted = _Pass(walker, DEFAULT_BATCH, False, False)
        for batch in self._run(wanted, partial=partial, spans=spans):
            if on_bytes:
                on_bytes(batch.buffer)
            if on_batch:
                on_batch(batch)

    def _run(
        self, wanted: _Pass, *, partial: bool, spans: Sequence[Span] | None = None
    ) -> Iterator[RecordBatch]:
        self.problems = []
        pieces = PieceFinder(self.segments)
        for span in self.whole() if spans is None else spans:
            try:
                yield from self._span(span, wanted, pieces)
            except DumpError as error:
                self.problems.append(error)
                if not partial:
                    raise

    def _span(self, span: Span, wanted: _Pass, pieces: PieceFinder) -> Iterator[RecordBatch]:
        index = span.segment
        segment = self.segments[index]
        continues = index > 0 and not span.begin and segment.continues(self.segments[index - 1])
        wanted.walker.begin_segment(
            index, span.begin, continues=continues, rejected_bytes=segment.rejected_bytes
        )
        pieces.begin(index, span.begin, wanted.walker, continues=continues)
        whole = not span.begin and span.end is None
        source = segment.open()
        try:
            yield from _SegmentReader(segment, source, wanted, pieces).batches(span)
        except DumpError as error:
            wanted.walker.end_segment(whole=whole, fault=error)
            raise
        else:
            wanted.walker.end_segment(whole=whole, fault=None)
        finally:
            source.close()

    def files(self) -> list[str]:
        """Everything that is read, and what belongs to it: no output may take its place."""
        paths = [segment.path for segment in self.segments if segment.path]
        beside = [p for path in paths for p in (sidecar_path(path), rejects_path(path))]
        return [str(path) for path in (*paths, *beside)]

    def whole(self) -> list[Span]:
        """Every file from begin to end."""
        return [Span(index) for index in range(len(self.segments))]

    def close(self) -> None:
        """Nothing is held between passes; here for symmetry with files."""

    def __enter__(self) -> Dump:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_dump(path: str | os.PathLike[str] | BinaryIO) -> Dump:
    """Open a dump for reading.

    Args:
        path: .bin, .part, .bin.zst, a raw .pccx, a dump-set directory (its segments in the
            order of their numbers as one stream), `-` for standard input, or a binary file object.

    Raises:
        InvalidDataError: none of these; the message names the magic found.
        NoInputError: nothing there.
    """
    if isinstance(path, (str, os.PathLike)):
        return open_dumps([os.fspath(path)])
    name = str(getattr(path, "name", "stream"))
    return Dump([Segment(name, None, Kind.STREAM, path)])


def open_dumps(paths: Sequence[str | os.PathLike[str]]) -> Dump:
    """Open several dumps as one stream, in the order given. Raises as open_dump."""
    directories = [Path(path) for path in paths if str(path) != "-" and Path(path).is_dir()]
    return Dump(_segments.of_paths([os.fspath(path) for path in paths]), directories)

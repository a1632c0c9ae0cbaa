# SPDX-License-Identifier: Apache-2.0
"""Following a dump set while the daemon writes it.

The active segment (.part) is preallocated and written in pages, so its bytes alone do not
say where the last whole record is: zeros begin somewhere, and a record that crosses into a page
not yet written looks whole. A record counts as written once the next one stands behind
it, or the file was sealed, or nothing changed for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import DEFAULT_BATCH, DumpError
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment, of_directory
from hmb_trace.dumps.walker import End, Walker
from hmb_trace.errors import NoInputError, from_os_error
from hmb_trace.layout import RECORD_HDR_SIZE, RECORD_MAGIC

POLL_SECONDS = 0.1
_QUIET_POLLS = 3  # unchanged for so long: the last record is whole
_MAGIC = RECORD_MAGIC.to_bytes(4, "little")


@dataclass
class _Place:
    """How far one segment was read."""

    segment: Segment
    fd: int
    pos: int = 0
    unconfirmed: bytes = b""
    quiet: int = 0


def follow(
    directory: Path,
    *,
    sleep: Callable[[float], object] = time.sleep,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[RecordBatch]:
    """Records of a dump set from its first segment on, as they are written; until stop().

    Args:
        sleep: called with POLL_SECONDS when there is nothing new.
        stop: asked when there is nothing new.

    Raises:
        DumpError: damage in a sealed segment. HmbTraceError: a file cannot be read.
    """
    done: set[str] = set()
    while True:
        segment = _next(directory, done)
        if segment is None:
            if stop():
                return
            sleep(POLL_SECONDS)
            continue
        yield from _segment(segment, len(done), sleep, stop)
        done.add(_stem(segment))
        if stop() and _next(directory, done) is None:
            return


def _stem(segment: Segment) -> str:
    name = Path(segment.name).name
    return name.removesuffix(".part").removesuffix(".zst").removesuffix(".bin")


def _next(directory: Path, done: set[str]) -> Segment | None:
    if not directory.is_dir():
        raise NoInputError(f"cannot read {directory}: No such directory")
    try:
        found = of_directory(directory)
    except NoInputError:
        return None  # nothing yet: that is what following is for
    return next((segment for segment in found if _stem(segment) not in done), None)


def _segment(
    segment: Segment, index: int, sleep: Callable[[float], object], stop: Callable[[], bool]
) -> Iterator[RecordBatch]:
    if segment.kind is not Kind.DUMP:
        from hmb_trace.dumps.dump import Dump  # noqa: PLC0415 - only sealed, compressed segments

        yield from Dump([segment]).batches()
        return
    try:
        fd = os.open(segment.name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # sealed or removed between listing and opening: the next listing knows
    except OSError as error:
        raise from_os_error(error, f"cannot read {segment.name}") from error
    place = _Place(segment, fd)
    try:
        yield from _read_on(place, index, sleep, stop)
    finally:
        os.close(fd)


def _read_on(
    place: _Place, index: int, sleep: Callable[[float], object], stop: Callable[[], bool]
) -> Iterator[RecordBatch]:
    while True:
        sealed = _is_sealed(place) or stop()
        batch, end, rest = _look(place, index, sealed)
        if batch is not None and len(batch.buffer):
            place.pos += len(batch.buffer)
            yield batch
            continue
        if sealed:
            _check_end(place, end, rest, index)
            return
        sleep(POLL_SECONDS)


def _is_sealed(place: _Place) -> bool:
    """Not written any more: it never was a .part, or its .part name is gone."""
    return not place.segment.partial or not Path(place.segment.name).exists()


def _look(place: _Place, index: int, sealed: bool) -> tuple[RecordBatch | None, End, bytes]:
    data = os.pread(place.fd, DEFAULT_BATCH, place.pos)
    walker = Walker()
    walker.begin_segment(index, place.pos, continues=False)
    end, used, columns = walker.walk(data, columns=True, markers=True)
    rest = data[used : used + RECORD_HDR_SIZE]
    if not used:
        return None, end, rest
    batch = RecordBatch(memoryview(data)[:used], place.pos, index, place.segment.name, **columns)
    confirmed = sealed or rest[:4] == _MAGIC or len(data) == DEFAULT_BATCH
    if not confirmed and not _is_quiet(place, batch):
        batch = _without_last(batch)
    return batch.without_markers() if len(batch) else batch, end, rest


def _is_quiet(place: _Place, batch: RecordBatch) -> bool:
    last = bytes(batch.record(len(batch) - 1))
    place.quiet = place.quiet + 1 if last == place.unconfirmed else 0
    place.unconfirmed = last
    return place.quiet >= _QUIET_POLLS


def _without_last(batch: RecordBatch) -> RecordBatch:
    cut = int(batch.offset[-1]) - batch.base
    shorter = batch.select(np.arange(len(batch) - 1))
    return RecordBatch(
        *(batch.buffer[:cut], batch.base, batch.segment, batch.path),
        *(shorter.offset, shorter.seq, shorter.ts_ns, shorter.opcode),
        *(shorter.cpu, shorter.flags, shorter.payload_len),
    )


def _check_end(place: _Place, end: End, rest: bytes, index: int) -> None:
    if end is End.DONE or not any(rest):
        return
    raise DumpError(place.segment.name, place.pos, f"no whole record at byte {place.pos}", index)

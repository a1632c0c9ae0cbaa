# SPDX-License-Identifier: Apache-2.0
"""What a file that outlived its host holds (SPEC R14): records, and bytes that are none.

Nothing here writes.  A stretch that is no record ends at the next header that is valid and
whose successor is valid, or which ends where the data ends (R9's scan on a file).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hmb_daemon.writing.walk import begin_walk, walk_on

_CHUNK = 4 << 20
_MAGIC = struct.pack("<I", 0x54434552)  # that a record begins with
_HEADER = 32
_ALIGN = 8
_LARGEST = 4096 + _HEADER
_TAIL = 1 << 20  # so much of a file's end is searched for its last record


def data_end(fd: int, size: int) -> int:
    """Where the last byte that is not zero ends, rounded up to 8: what follows was reserved."""
    end = size
    while end:
        start = max(0, end - _CHUNK)
        chunk = os.pread(fd, end - start, start)
        kept = len(chunk.rstrip(b"\0"))
        if kept:
            return min(size, (start + kept + _ALIGN - 1) & ~(_ALIGN - 1))
        end = start
    return 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [start, end) of a file: whole records, or none."""

    start: int
    end: int
    good: bool


def stretches(fd: int, size: int) -> Iterator[Stretch]:
    """The whole of a file's data, in order, and zeros at its end left out."""
    end = data_end(fd, size)
    offset = 0
    while offset < end:
        good = _records_end(fd, offset, size)
        if good > offset:
            yield Stretch(offset, good, good=True)
            offset = good
            continue
        following = _next_record(fd, offset + _ALIGN, end, size)
        yield Stretch(offset, following, good=False)
        offset = following


def _records_end(fd: int, offset: int, size: int) -> int:
    """Where the records that begin at an offset end."""
    walk = begin_walk(offset)
    while walk.offset < size:
        if not walk_on(walk, os.pread(fd, min(_CHUNK, size - walk.offset), walk.offset)):
            break
    return int(walk.offset)


def _next_record(fd: int, offset: int, end: int, size: int) -> int:
    while offset < end:
        chunk = os.pread(fd, min(_CHUNK, end - offset) + _LARGEST, offset)
        place = _find(chunk, min(_CHUNK, end - offset))
        while place is not None:
            if _is_chain(fd, offset + place, end, size):
                return offset + place
            place = _find(chunk, min(_CHUNK, end - offset), place + _ALIGN)
        offset += _CHUNK
    return end


def _find(chunk: bytes, limit: int, start: int = 0) -> int | None:
    """The next aligned record magic."""
    while 0 <= (place := chunk.find(_MAGIC, start)) < limit:
        if place % _ALIGN == 0:
            return place
        start = place + 1
    return None


def _is_chain(fd: int, offset: int, end: int, size: int) -> bool:
    """Whether a valid record stands there, followed by another one or by the data's end."""
    walk = begin_walk(offset)
    walk_on(walk, os.pread(fd, min(3 * _LARGEST, size - offset), offset))
    seen = int(walk.records + walk.wrap_markers)
    return seen > 1 or (seen == 1 and walk.offset >= end)


def last_walk(fd: int, size: int, boundaries: list[int]) -> Any | None:
    """A walk that ends at the last record, begun near the file's end; None: none is found there.

    Args:
        boundaries: offsets where records begin, ascending, as far as they are known.
    """
    end = data_end(fd, size)
    near = [offset for offset in boundaries if end - _TAIL <= offset < end]
    for start in near[:1] or [max(0, end - _TAIL) & ~(_ALIGN - 1)]:
        offset = start
        walk = None
        while offset < end:
            found = begin_walk(offset)
            while found.offset < size and walk_on(
                found, os.pread(fd, min(_CHUNK, size - found.offset), found.offset)
            ):
                pass
            if found.records:
                walk = found
            offset = _next_record(fd, int(found.offset) + _ALIGN, end, size)
        return walk
    return None

# SPDX-License-Identifier: Apache-2.0
"""The tail of the segment being written: which opcodes and cpus go by, and the last records.

The daemon's numbers say nothing about single records. This reads what was written since
the last look, and never more than LIMIT bytes of it: a fast trace is sampled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.walker import End, Walker
from hmb_trace.layout import RECORD_HDR_SIZE, RECORD_MAGIC

LIMIT = 2 << 20  # bytes for one look: some ms of CPU, and no disk notices it
LAST = 64  # records kept for display
_WINDOW = 8192  # any so many bytes of a dump hold a whole record header
_CHAIN = 3  # headers in a row that tell a record from a payload that looks like one


@dataclass
class Seen:
    """What one look found.

    Attributes:
        records: looked at, wrap markers not counted.
        opcodes: opcode to records.
        cpus: firmware core to records.
        new_bytes: written since the last look.
        skipped: those of them that were not looked at.
        last: the last records; None if there was nothing new.
    """

    records: int = 0
    opcodes: dict[int, int] = field(default_factory=dict)
    cpus: dict[int, int] = field(default_factory=dict)
    new_bytes: int = 0
    skipped: int = 0
    last: RecordBatch | None = None

    def add(self, batch: RecordBatch) -> None:
        """Count a batch without markers."""
        self.records += len(batch)
        _count(self.opcodes, batch.opcode)
        _count(self.cpus, batch.cpu)
        if len(batch):
            self.last = batch.select(slice(-LAST, None))


def _count(into: dict[int, int], column: npt.NDArray[np.unsignedinteger]) -> None:
    counts = np.bincount(column)
    for value in np.flatnonzero(counts).tolist():
        into[value] = into.get(value, 0) + int(counts[value])


class Tail:
    """Reads on in one segment after another, as they are written."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._path = ""
        self._fd = -1
        self._pos = 0
        self._aligned = True

    def look(self, path: str | None, end: int | None = None) -> Seen:
        """What is new up to `end` bytes of the segment (None: as far as its bytes go).

        A segment that cannot be read adds nothing: it may be sealed and gone by now.
        """
        seen = Seen()
        if path != self._path:
            self._finish(seen)
            self._open(path, end)
        if self._fd >= 0:
            self._read(seen, written_size(self._fd) if end is None else end)
        return seen

    def _finish(self, seen: Seen) -> None:
        """The rest of the segment before: sealing has cut it to its length."""
        if self._fd >= 0:
            self._read(seen, written_size(self._fd))
        self.close()

    def _open(self, path: str | None, end: int | None) -> None:
        first = not self._path
        self._path = path or ""
        if not path:
            return
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._path = ""  # try again at the next look
            return
        here = written_size(self._fd) if end is None else end
        # At first only the tail: what lies before is not new.
        self._pos = max(0, here - self._limit // 8 & ~7) if first else 0
        self._aligned = self._pos == 0

    def _read(self, seen: Seen, end: int) -> None:
        new = end - self._pos
        if new <= 0:
            return
        seen.new_bytes += new
        if new > self._limit:
            seen.skipped += new - self._limit
            self._pos, self._aligned = (end - self._limit) & ~7, False
        try:
            data = os.pread(self._fd, end - self._pos, self._pos)
        except OSError:
            return
        self._take(seen, data)

    def _take(self, seen: Seen, data: bytes) -> None:
        start = 0 if self._aligned else find_record(data)
        if start is None:
            self._pos += len(data) & ~7
            return
        walker = Walker()
        walker.begin_segment(0, self._pos + start, continues=False)
        end, used, columns = walker.walk(data[start:], columns=True)
        base = self._pos + start
        batch = RecordBatch(memoryview(data)[start : start + used], base, 0, self._path, **columns)
        rest = data[start + used : start + used + RECORD_HDR_SIZE]
        self._pos = base + used
        if rest and not any(rest) and len(batch):
            # It reaches into what is not written yet, maybe with its header: look again.
            self._pos = int(batch.offset[-1])
            batch = batch.select(slice(-1))
        seen.add(batch)
        # Zeros are not written yet; anything else that is no record: look for the next one.
        self._aligned = end in (End.DONE, End.SHORT_HEADER, End.SHORT_PAYLOAD) or not any(rest)
        if not self._aligned:
            self._pos += 8

    def close(self) -> None:
        """Close the segment; a later look begins anew."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def find_record(data: bytes) -> int | None:
    """Where the first record begins in bytes cut out of a dump; None: nowhere."""
    words = np.frombuffer(data, "<u4", len(data) // 8 * 2)[::2]
    for step in np.flatnonzero(words == RECORD_MAGIC).tolist():
        if _is_chain(data, step * 8):
            return int(step * 8)
    return None


def _is_chain(data: bytes, at: int) -> bool:
    walker = Walker()
    piece = data[at : at + _CHAIN * _WINDOW // 2]
    _, used, _ = walker.walk(piece)
    found = walker.records + walker.wrap_markers
    return found >= _CHAIN or (found > 0 and at + used == len(data))


def written_size(fd: int) -> int:
    """Bytes of a segment before its zeros: space is reserved ahead of what is written."""
    low, high = 0, os.fstat(fd).st_size
    while high - low > _WINDOW:
        middle = (low + high) // 2 & ~7
        if any(os.pread(fd, _WINDOW, middle)):
            low = middle
        else:
            high = middle
    piece = os.pread(fd, high - low + _WINDOW, low)
    return low + (len(piece.rstrip(b"\0")) + 7 & ~7)

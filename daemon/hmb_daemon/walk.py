# SPDX-License-Identifier: Apache-2.0
"""Walk dump bytes record by record: what a segment begins and ends with (SPEC R12, R14).

For the few records at a segment's ends, and for segments that outlived their host;
never on the way of a record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

RECORD = struct.Struct("<IIQHBBH")
RECORD_MAGIC = 0x54434552
HEADER_BYTES = 32
MAX_PAYLOAD = 4064
MAX_RECORD = HEADER_BYTES + MAX_PAYLOAD
MARKER = 1
TRUNCATED = 2
_HALF = 1 << 31
_MODULUS = 1 << 32


@dataclass(slots=True)
class Walk:
    """What was seen so far; `valid` is the offset where the records end."""

    valid: int = 0
    records: int = 0
    wrap_markers: int = 0
    truncated: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    gaps: int = 0
    lost: int = 0
    duplicates: int = 0
    sequence_resets: int = 0
    _previous: int | None = None  # last seq in the sense of R12, markers included
    _after_marker: bool = False

    def run(self, buffer: bytes | memoryview, base: int = 0) -> int:
        """Walk the whole records of a buffer; returns the bytes walked.

        Args:
            buffer: dump bytes that begin at a record.
            base: their offset in the dump.
        """
        offset, end, unpack = 0, len(buffer), RECORD.unpack_from
        while offset + HEADER_BYTES <= end:
            magic, seq, ts_ns, _, _, flags, payload = unpack(buffer, offset)
            if magic != RECORD_MAGIC or payload > MAX_PAYLOAD:
                break
            size = HEADER_BYTES + payload + -payload % 8
            if offset + size > end:
                break
            offset += size
            if flags & MARKER:
                self._marker(seq)
            else:
                self._record(seq, ts_ns, flags)
        self.valid = base + offset
        return offset

    def _marker(self, seq: int) -> None:
        self.wrap_markers += 1
        if self._previous is None:
            return
        ahead = (seq - self._previous) % _MODULUS
        if 0 < ahead < _HALF:
            self._lose(ahead - 1)
            self._previous, self._after_marker = seq, True

    def _record(self, seq: int, ts_ns: int, flags: int) -> None:
        self.records += 1
        self.truncated += flags & TRUNCATED and 1
        if self.first_seq is None:
            self.first_seq, self.first_ts_ns = seq, ts_ns
        self.last_seq, self.last_ts_ns = seq, ts_ns
        if self._previous is not None:
            self._account((seq - self._previous) % _MODULUS)
        self._previous, self._after_marker = seq, False

    def _account(self, ahead: int) -> None:
        if ahead == 0:
            self.duplicates += not self._after_marker
        elif ahead < _HALF:
            self._lose(ahead - 1)
        else:
            self.sequence_resets += 1

    def _lose(self, records: int) -> None:
        self.lost += records
        self.gaps += records > 0


def last_boundary(buffer: bytes | memoryview, limit: int) -> int:
    """The end of the last whole record that ends at or before `limit`, bytes."""
    offset, end = 0, min(limit, len(buffer))
    while offset + HEADER_BYTES <= end:
        magic, _, _, _, _, _, payload = RECORD.unpack_from(buffer, offset)
        size = HEADER_BYTES + payload + -payload % 8
        if magic != RECORD_MAGIC or offset + size > end:
            break
        offset += size
    return offset

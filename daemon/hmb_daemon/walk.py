# SPDX-License-Identifier: Apache-2.0
"""Walk the few records at a segment's ends; never on the way of a record."""

from __future__ import annotations

import struct
from dataclasses import dataclass

RECORD = struct.Struct("<IIQHBBH")
RECORD_MAGIC = 0x54434552
HEADER_BYTES = 32
MAX_PAYLOAD = 4064
MAX_RECORD = HEADER_BYTES + MAX_PAYLOAD
MARKER = 1


@dataclass(slots=True)
class Walk:
    """The real records seen so far; `valid` is the offset where the records end."""

    valid: int = 0
    records: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None

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
            if not flags & MARKER:
                self._record(seq, ts_ns)
        self.valid = base + offset
        return offset

    def _record(self, seq: int, ts_ns: int) -> None:
        if not self.records:
            self.first_seq, self.first_ts_ns = seq, ts_ns
        self.records += 1
        self.last_seq, self.last_ts_ns = seq, ts_ns

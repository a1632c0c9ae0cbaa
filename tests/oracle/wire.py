# SPDX-License-Identifier: Apache-2.0
"""Headers as bytes, and cursors as ring offsets (format.md: Ring, Records)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF
HEADER = 32
MAX_PAYLOAD = 4064
RECORD_MAGIC = 0x54434552
MARKER = 1
KNOWN_FLAGS = 3
RECORD = struct.Struct("<IIQHBBHHQ")
CHAIN = 4  # records in sequence that make a restart believable (R9)
FLAGS_AT = 19
LEN_AT = 20


class End(Enum):
    """A successor that has not been published yet."""

    AT_HEAD = "ends at head"


@dataclass(frozen=True)
class Header:
    """One record header, decoded."""

    magic: int
    seq: int
    ts_ns: int
    opcode: int
    cpu: int
    flags: int
    payload_len: int
    reserved0: int
    reserved1: int

    @property
    def is_marker(self) -> bool:
        return bool(self.flags & MARKER)

    @property
    def unknown_flags(self) -> int:
        return self.flags & ~KNOWN_FLAGS

    @property
    def span(self) -> int:
        """Bytes from this header to the next one; a marker has no payload."""
        return HEADER if self.is_marker else HEADER + align8(self.payload_len)


def align8(n: int) -> int:
    return (n + 7) // 8 * 8


def decode(data: bytes) -> Header:
    return Header(*RECORD.unpack(data))


class Window:
    """The unread bytes of a ring, [tail, head), addressed by cursor.

    Cursors are kept as unbounded integers from tail on: they do not wrap at
    2^64 here, and since 2^64 is a multiple of every ring size, offsets agree.
    """

    def __init__(self, area: bytes, tail: int, head: int) -> None:
        self.area = area
        self.ring_size = len(area)
        self.head = tail + ((head - tail) & M64)

    def left(self, at: int) -> int:
        """Bytes until the lap boundary."""
        return self.ring_size - at % self.ring_size

    def boundary(self, at: int) -> int:
        return at + self.left(at)

    def read(self, at: int, n: int) -> bytes:
        """n bytes from a cursor on, across the ring end if need be."""
        offset = at % self.ring_size
        first = self.area[offset : offset + n]
        return first + self.area[: n - len(first)]

    def header(self, at: int) -> Header | None:
        """The valid header at a cursor, or None (ruling 1)."""
        if self.left(at) < HEADER or at + HEADER > self.head:
            return None
        header = decode(self.read(at, HEADER))
        if header.magic != RECORD_MAGIC:
            return None
        if header.is_marker:
            return header
        if header.payload_len > MAX_PAYLOAD or at + header.span > self.head:
            return None
        return header

    def successor(self, at: int, header: Header) -> Header | End | None:
        """What follows a valid header: a valid one, the head, or nothing valid (ruling 2)."""
        follows = self.next(at, header)
        return End.AT_HEAD if follows >= self.head else self.header(follows)

    def next(self, at: int, header: Header) -> int:
        """Where the thing after a valid header begins."""
        follows = self.boundary(at) if header.is_marker else at + header.span
        if follows < self.head and self.left(follows) < HEADER:
            follows = self.boundary(follows)
        return follows

    def chain(self, at: int, header: Header) -> tuple[int, int, bool]:
        """Headers and records in sequence from here on, as far as it matters; do they end at head?

        Markers, and lap ends that may be one, may have consumed a number each.
        """
        links = records = skips = 0
        last: int | None = None
        while True:
            links += 1
            if header.is_marker:
                skips += 1
            elif last is not None and not 1 <= (header.seq - last) & M32 <= 1 + skips:
                return links - 1, records, False
            else:
                last, skips = header.seq, 0
                records += 1
            follows = self.next(at, header)
            if records == CHAIN or follows >= self.head:
                return links, records, follows >= self.head
            skips += not header.is_marker and follows != at + header.span
            found = self.header(follows)
            if found is None:
                return links, records, False
            at, header = follows, found

    def is_lying(self, at: int, record: Header) -> bool:
        """Does this record's length swallow the next record (R8, ruling 3)?"""
        end = at + record.span
        next_seq = (record.seq + 1) & M32
        follower = self.successor(at, record)
        straddles = end > self.boundary(at)
        if not straddles and isinstance(follower, Header) and follower.seq == next_seq:
            return False
        return any(self._stands(inside, next_seq) for inside in range(at + 8, end, 8))

    def _stands(self, at: int, seq: int) -> bool:
        header = self.header(at)
        return header is not None and header.seq == seq and self.confirmed(at, header)

    def confirmed(self, at: int, header: Header) -> bool:
        return self.successor(at, header) is not None

# SPDX-License-Identifier: Apache-2.0
"""Ring and dump builders for tests: of this project, and of firmware and tools around it.

Everything is bytes laid out by hand, good or bad on purpose; nothing is
checked unless a docstring says so. Layouts: docs/format.md (seed 003 sections 2 to 6.5).

    >>> ring = RingBuilder(4096)
    >>> ring.append(b"hello")
    0
    >>> ring.head
    40
    >>> len(ring.expected_dump)
    40
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Literal

from hmb_trace.errors import UsageError
from hmb_trace.layout import (
    ABI_VERSION,
    RECORD_AREA_OFF,
    RECORD_HDR_DTYPE,
    RECORD_HDR_SIZE,
    RECORD_MAGIC,
    RECORD_MAX_PAYLOAD,
    RING_MAGIC,
    RING_SIZE_MIN,
    RecordFlag,
    align8,
)

__all__ = ["RingBuilder", "WrapStyle", "dump", "marker", "record", "ring_header", "without_tail"]

WrapStyle = Literal["marker", "seq-marker", "straddle", "plain"]
"""What a producer does at the lap end (SPEC R3).

marker: the reference producer; the marker carries the seq of the next record.
seq-marker: the marker consumes a sequence number of its own.
straddle: only the header must fit; a payload may go on at offset 0.
plain: skips to the lap boundary without writing anything where less than a header fits,
else like marker.
"""

_RING_HDR = struct.Struct("<IIIIQQI I QQQ")
_RECORD_HDR = struct.Struct("<IIQHBBHHQ")
_TAIL_AT = 0x18
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF

assert _RECORD_HDR.size == RECORD_HDR_DTYPE.itemsize


def ring_header(
    ring_size: int,
    *,
    head: int = 0,
    tail: int = 0,
    flags: int = 0,
    magic: int = RING_MAGIC,
    version: int = ABI_VERSION,
    record_area_off: int = RECORD_AREA_OFF,
    reserved: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> bytes:
    """The 64 bytes of struct hmb_ring_hdr (seed 003 section 3).

    Args:
        ring_size: bytes of the record area, as the header states it.
        head: producer cursor, bytes, mod 2^64.
        tail: consumer cursor, bytes, mod 2^64.
        flags: RingFlag bits.
        magic: ring magic.
        version: ABI version.
        record_area_off: bytes from the base to the record area.
        reserved: reserved0 (u32) and reserved1..3 (u64).
    """
    return _RING_HDR.pack(
        magic, version, ring_size, record_area_off, head & _M64, tail & _M64, flags, *reserved
    )


def record(
    seq: int,
    payload: bytes = b"",
    *,
    ts_ns: int = 0,
    opcode: int = 0,
    cpu: int = 0,
    flags: int = 0,
    payload_len: int | None = None,
    magic: int = RECORD_MAGIC,
    reserved0: int = 0,
    reserved1: int = 0,
    padding: int = 0,
) -> bytes:
    """One record: header, payload, padding to 8 bytes (seed 003 section 4).

    Args:
        seq: sequence number; taken mod 2^32.
        payload: at most 65535 bytes unless payload_len says otherwise; legal are 4064.
        ts_ns: firmware clock, nanoseconds.
        opcode: event id.
        cpu: firmware core.
        flags: RecordFlag bits, or any others.
        payload_len: what the header states; None: the truth.
        magic: record magic.
        reserved0: u16 at 0x16.
        reserved1: u64 at 0x18.
        padding: the byte that fills up to 8; 0 is the only legal one (R11).
    """
    stated = len(payload) if payload_len is None else payload_len
    header = _RECORD_HDR.pack(
        magic, seq & _M32, ts_ns & _M64, opcode, cpu, flags, stated, reserved0, reserved1
    )
    return header + payload + bytes([padding]) * (align8(len(payload)) - len(payload))


def marker(seq: int, *, ts_ns: int = 0, **fields: int) -> bytes:
    """A whole wrap marker, 32 bytes (seed 003 section 5).

    Args:
        seq: of the record that follows (reference producer), or its own.
        ts_ns: of the record that follows.
        fields: any other argument of record(); flags are added to the marker bit.
    """
    flags = fields.pop("flags", 0) | RecordFlag.WRAP_MARKER
    return record(seq, ts_ns=ts_ns, flags=flags, **fields)  # type: ignore[arg-type] # no payload among them


def dump(records: Iterable[bytes]) -> bytes:
    """A dump file: records back to back and nothing else (seed 003 section 6.5)."""
    return b"".join(records)


def without_tail(region: bytes) -> bytes:
    """The region with `tail` zeroed: a consumer must leave all of the rest alone (R2)."""
    return bytes(region[:_TAIL_AT]) + bytes(8) + bytes(region[_TAIL_AT + 8 :])


class RingBuilder:
    """A ring region built record by record, as a producer would, or byte by byte.

    Appended bytes are published at once: `head` moves with every call.
    `expected_dump` grows with everything that a consumer must put into the
    dump; after raw() and other deliberate faults the test itself knows better.

    Attributes:
        ring_size: bytes of the record area.
        area: the record area, ring_size bytes, writable.
        head: producer cursor, mod 2^64.
        tail: consumer cursor, mod 2^64.
        seq: sequence number that the next append() uses.
        ts_ns: timestamp that the next append() uses, nanoseconds.
        flags: RingFlag bits of the ring header.
        expected_dump: bytes that a consumer must have written for what was appended.
        records: records appended, markers not counted.
        markers: whole and partial markers written.
    """

    def __init__(
        self,
        ring_size: int = 4096,
        *,
        cursor: int = 0,
        seq: int = 0,
        ts_ns: int = 0,
        ts_step: int = 1000,
        wrap: WrapStyle = "marker",
        flags: int = 0,
        fill: int = 0,
    ) -> None:
        """An empty ring.

        Args:
            ring_size: bytes, a power of two, at least 32.
            cursor: where head and tail start; a multiple of 8.
            seq: first sequence number.
            ts_ns: first timestamp, nanoseconds.
            ts_step: nanoseconds between records.
            wrap: what to do at the lap end.
            flags: RingFlag bits.
            fill: what the area holds before anything is written.

        Raises:
            UsageError: a ring_size or cursor that no ring can have.
        """
        if ring_size < RING_SIZE_MIN or ring_size & (ring_size - 1):
            raise UsageError(f"ring_size: found {ring_size}, expected a power of two >= 32")
        if cursor % 8:
            raise UsageError(f"cursor: found {cursor:#x}, expected a multiple of 8")
        self.ring_size = ring_size
        self.area = bytearray([fill]) * ring_size
        self.head = self.tail = cursor & _M64
        self.seq = seq & _M32
        self.ts_ns = ts_ns
        self.ts_step = ts_step
        self.wrap = wrap
        self.flags = flags
        self.expected_dump = bytearray()
        self.records = 0
        self.markers = 0
        self._last_ts_ns = 0

    @property
    def left(self) -> int:
        """Bytes until the lap boundary; never 0."""
        return self.ring_size - self.head % self.ring_size

    @property
    def free(self) -> int:
        """Bytes that may be written before the ring is full."""
        return self.ring_size - ((self.head - self.tail) & _M64)

    def fits(self, payload_len: int) -> bool:
        """Would append() of so many payload bytes succeed, its wrap included?"""
        return self._skip(_span(payload_len)) + _span(payload_len) <= self.free

    def append(
        self,
        payload: bytes = b"",
        *,
        opcode: int = 0,
        cpu: int = 0,
        flags: int = 0,
        padding: int = 0,
    ) -> int:
        """Write a good record with the next seq and ts_ns, wrapping first where it must.

        Args:
            payload: at most 4064 bytes.
            opcode: event id.
            cpu: firmware core.
            flags: RecordFlag bits.
            padding: byte that fills up to 8; the dump always has zeros.

        Returns:
            The cursor at which the record begins.

        Raises:
            UsageError: payload too long, or the ring is full (consume() makes room).
        """
        size = len(payload)
        if size > RECORD_MAX_PAYLOAD:
            raise UsageError(f"payload: found {size} bytes, expected at most {RECORD_MAX_PAYLOAD}")
        if not self.fits(size):
            raise UsageError(f"ring full: {self.free} bytes free, {_span(size)} and a wrap needed")
        self._wrap_for(_span(size))
        at = self.head
        fields = {"ts_ns": self.ts_ns, "opcode": opcode, "cpu": cpu, "flags": flags}
        self.raw(record(self.seq, payload, padding=padding, **fields))
        self.expected_dump += record(self.seq, payload, **fields)
        self.records += 1
        self.skip_seq(1)
        self._last_ts_ns = self.ts_ns
        self.ts_ns += self.ts_step
        return at

    def raw(self, data: bytes) -> int:
        """Write bytes at head, across the ring end if need be, and publish them.

        Head moves by len(data) rounded up to 8. May run over unread bytes: a fault to test.

        Returns:
            The cursor of the first byte.
        """
        at = self.head
        self.poke(at, data)
        self.head = (at + align8(len(data))) & _M64
        return at

    def poke(self, cursor: int, data: bytes) -> None:
        """Overwrite bytes at a cursor, publishing nothing."""
        for i, byte in enumerate(data):
            self.area[(cursor + i) % self.ring_size] = byte

    def skip_seq(self, count: int) -> None:
        """Let sequence numbers go by, as dropped records do; mod 2^32."""
        self.seq = (self.seq + count) & _M32

    def lap(self, *, seq: int | None = None, magic: int = RECORD_MAGIC) -> int:
        """Go to the lap boundary by a marker, whole or as much of it as fits.

        Args:
            seq: of the marker; None: as the wrap style has it.
            magic: record magic; any other makes the gap a plain one where it is partial.

        Returns:
            The cursor of the marker.
        """
        at, left = self.head, self.left
        whole = marker(self.seq if seq is None else seq, ts_ns=self.ts_ns, magic=magic)
        self.poke(at, whole[:left])
        self.expected_dump += self._as_dumped(whole, left)
        self.markers += 1
        if seq is None and self.wrap == "seq-marker":
            self.skip_seq(1)
        self.head = (at + left) & _M64
        return at

    def plain_gap(self, fill: bytes = b"") -> int:
        """Go to the lap boundary, writing at most `fill`; nothing of it belongs in a dump."""
        at = self.head
        self.poke(at, fill[: self.left])
        self.head = (at + self.left) & _M64
        return at

    def consume(self, count: int | None = None) -> None:
        """Move tail on by count bytes, or to head."""
        self.tail = self.head if count is None else (self.tail + count) & _M64

    def header(self) -> bytes:
        """The ring header as it stands."""
        return ring_header(self.ring_size, head=self.head, tail=self.tail, flags=self.flags)

    def region(self) -> bytearray:
        """Header and area, 64 + ring_size bytes: what a device maps."""
        return bytearray(self.header()) + self.area

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the region to a file, which every tool takes as a device.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path)
        target.write_bytes(self.region())
        return target

    def _skip(self, span: int) -> int:
        """Bytes that the wrap style gives up before a record of this span."""
        must_fit = RECORD_HDR_SIZE if self.wrap == "straddle" else span
        return self.left if self.left < must_fit else 0

    def _wrap_for(self, span: int) -> None:
        if not self._skip(span):
            return
        if self.wrap == "plain" and self.left < RECORD_HDR_SIZE:
            self.plain_gap()
        else:
            self.lap()

    def _as_dumped(self, whole: bytes, left: int) -> bytes:
        """R4: a partial marker is completed; the time is its own only if 16 bytes were left."""
        magic, seq, ts_ns = struct.unpack_from("<IIQ", whole)
        if left < RECORD_HDR_SIZE and magic != RECORD_MAGIC:
            return b""
        if left >= 16:
            self._last_ts_ns = ts_ns
        return whole if left >= RECORD_HDR_SIZE else marker(seq, ts_ns=self._last_ts_ns)


def _span(payload_len: int) -> int:
    return RECORD_HDR_SIZE + align8(payload_len)

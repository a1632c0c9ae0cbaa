# SPDX-License-Identifier: Apache-2.0
"""RecordBatch: consecutive records as a buffer and numpy columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi, lib
from hmb_trace.dumps.walker import COLUMNS, NO_CUTS, byte_pointer, pointer
from hmb_trace.layout import RECORD_HDR_SIZE, RecordFlag, align8


class ClockCut(NamedTuple):
    """A place where ts_ns does not go on: an epoch begins, or the clock was set (SPEC R16).

    Attributes:
        offset: of the first record of the new piece, in its file.
        ts_before: of the record before it.
        ts_after: of that record.
        epoch: a new epoch, and not only another time.
    """

    offset: int
    ts_before: int
    ts_after: int
    epoch: bool


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Records of one file, one row each, in file order.

    Attributes:
        buffer: the bytes that the rows point into; not copied.
        base: offset of buffer[0] in its file, bytes.
        segment: index of the file in its dump.
        path: the file's name, for messages.
        offset: of each record in its file, bytes (uint64).
        seq: sequence number, wraps at 2^32 (uint32).
        ts_ns: firmware clock, nanoseconds (uint64).
        opcode: event id (uint16).
        cpu: firmware core (uint8).
        flags: RecordFlag bits (uint8).
        payload_len: bytes, padding not counted (uint16).
        cuts: offsets in the file at which a new piece begins (SPEC R16): records are missing
            before it, or an epoch or a clock begins. Also of rows that were not selected.
        steps: those of the cuts at which the clock is another.
    """

    buffer: memoryview
    base: int
    segment: int
    path: str
    offset: npt.NDArray[np.uint64]
    seq: npt.NDArray[np.uint32]
    ts_ns: npt.NDArray[np.uint64]
    opcode: npt.NDArray[np.uint16]
    cpu: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    payload_len: npt.NDArray[np.uint16]
    cuts: npt.NDArray[np.uint64] = field(default_factory=lambda: NO_CUTS)
    steps: tuple[ClockCut, ...] = ()

    def __len__(self) -> int:
        return len(self.offset)

    def payload(self, row: int) -> memoryview:
        """The payload of one record, without its padding; a view, not a copy."""
        begin = int(self.offset[row]) - self.base + RECORD_HDR_SIZE
        return self.buffer[begin : begin + int(self.payload_len[row])]

    def record(self, row: int) -> memoryview:
        """Header, payload and padding of one record; a view, not a copy."""
        begin = int(self.offset[row]) - self.base
        return self.buffer[begin : begin + RECORD_HDR_SIZE + align8(int(self.payload_len[row]))]

    def payloads(self) -> Iterator[memoryview]:
        """Every row's payload in turn."""
        return (self.payload(row) for row in range(len(self)))

    def joined_payloads(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """All payloads back to back, and where each begins and ends: row i is
        [offsets[i], offsets[i + 1]). Less than 2 GiB in all, as batches are."""
        offsets = np.ascontiguousarray(self.offset)
        lengths = np.ascontiguousarray(self.payload_len)
        out = np.empty(int(lengths.sum(dtype="u8")), "u1")
        ends = np.zeros(len(self) + 1, "i4")
        lib.hmb_gather_payloads(
            *(byte_pointer(self.buffer), self.base, pointer(offsets), pointer(lengths)),
            *(len(self), pointer(out), ffi.cast("int32_t *", ends.ctypes.data + 4)),
        )
        return out, ends

    def field(self, at: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """One payload field of every row as an array.

        Args:
            at: byte offset in the payload.
            dtype: of the field, little-endian; any fixed size ("<u4", "V16", "S8").

        Raises:
            ValueError: a payload is too short to hold the field (select rows first).
        """
        kind = np.dtype(dtype)
        if len(self) and int(self.payload_len.min()) < at + kind.itemsize:
            raise ValueError(f"field at {at}+{kind.itemsize} lies beyond a payload of the batch")
        out = np.empty(len(self), kind)
        if len(self) and kind.itemsize:
            offsets = np.ascontiguousarray(self.offset)
            lib.hmb_gather(
                byte_pointer(self.buffer),
                self.base,
                pointer(offsets),
                len(self),
                RECORD_HDR_SIZE + at,
                kind.itemsize,
                pointer(out.view("u1")) if kind.itemsize else None,
            )
        return out

    def offset_rows(self, offsets: Sequence[int]) -> list[int]:
        """The first row at or behind each of some offsets in the file; len(self): none is."""
        found: list[int] = np.searchsorted(self.offset, np.array(offsets, "u8")).tolist()
        return found

    def cut_rows(self) -> npt.NDArray[np.uint64]:
        """Rows before which a new piece begins; len(self): after the last."""
        return np.searchsorted(self.offset, self.cuts).astype("u8")

    def after(self, earlier: Sequence[RecordBatch]) -> RecordBatch:
        """The batch with the cuts of batches before it, of which no row was selected.

        They come before the first row: where exactly, no row can tell any more.
        """
        if not any(len(one.cuts) for one in earlier):
            return self
        steps = [step._replace(offset=self.base) for one in earlier for step in one.steps]
        cuts = np.union1d(self.cuts, np.array([self.base], "u8"))
        return replace(self, cuts=cuts, steps=(*steps, *self.steps))

    def select(self, rows: npt.NDArray[Any] | slice) -> RecordBatch:
        """The rows that a boolean mask, an index array or a slice picks; the buffer is shared."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def without_markers(self) -> RecordBatch:
        """The batch without wrap markers."""
        marks = (self.flags & RecordFlag.WRAP_MARKER) != 0
        return self.select(~marks) if marks.any() else self

    def to_bytes(self) -> bytes:
        """The rows as dump bytes: whole records back to back."""
        marker = (self.flags & RecordFlag.WRAP_MARKER) != 0
        sizes = np.where(marker, 0, (self.payload_len.astype("u8") + 7) & ~np.uint64(7))
        out = np.empty(int(sizes.sum()) + RECORD_HDR_SIZE * len(self), "u1")
        offsets = np.ascontiguousarray(self.offset)
        if len(self):
            lib.hmb_copy_records(
                byte_pointer(self.buffer), self.base, pointer(offsets), len(self), pointer(out)
            )
        return out.tobytes()

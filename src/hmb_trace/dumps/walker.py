# SPDX-License-Identifier: Apache-2.0
"""The C walk over dump bytes: columns, sequence accounting, histograms (SPEC R8, R12, R13)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi, lib
from hmb_trace.layout import RECORD_HDR_SIZE

Bytes = bytes | bytearray | memoryview

COLUMNS = {
    "offset": np.dtype("u8"),
    "ts_ns": np.dtype("u8"),
    "seq": np.dtype("u4"),
    "opcode": np.dtype("u2"),
    "payload_len": np.dtype("u2"),
    "cpu": np.dtype("u1"),
    "flags": np.dtype("u1"),
}
_TALLIES = {
    "opcode_records": 65536,
    "opcode_bytes": 65536,
    "cpu_records": 256,
    "payload_log2": 65,
    "interval_log2": 65,
}
BREAK_DTYPE = np.dtype(
    [
        ("offset", "u8"),
        ("ts_ns", "u8"),
        ("lost", "u8"),
        ("seq_before", "u4"),
        ("seq_after", "u4"),
        ("kind", "u4"),
        ("pad", "u4"),
    ]
)
NO_COLUMNS = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()}
NO_CUTS = np.empty(0, np.uint64)
_BREAKS_AT_ONCE = 4096
_POINTERS = {1: "uint8_t *", 2: "uint16_t *", 4: "uint32_t *", 8: "uint64_t *"}

if ffi.sizeof("struct hmb_break") != BREAK_DTYPE.itemsize:
    raise ImportError("struct hmb_break: C and numpy disagree about its size")


class End(enum.IntEnum):
    """Why a walk ended (enum hmb_walk_end)."""

    DONE = lib.HMB_WALK_DONE
    FULL = lib.HMB_WALK_FULL
    SHORT_HEADER = lib.HMB_WALK_SHORT_HEADER
    SHORT_PAYLOAD = lib.HMB_WALK_SHORT_PAYLOAD
    BAD_MAGIC = lib.HMB_WALK_BAD_MAGIC
    BAD_LENGTH = lib.HMB_WALK_BAD_LENGTH

    @property
    def short(self) -> bool:
        """Whether more bytes could mend it."""
        return self in (End.SHORT_HEADER, End.SHORT_PAYLOAD)


class BreakKind(enum.IntEnum):
    """How a sequence breaks (SPEC R12)."""

    GAP = lib.HMB_EV_GAP
    DUPLICATE = lib.HMB_EV_DUPLICATE
    RESET = lib.HMB_EV_SEQ_RESET
    GLITCH = lib.HMB_EV_SEQ_GLITCH  # that record's seq alone was wrong


@dataclass(frozen=True, slots=True)
class SequenceBreak:
    """A place where seq does not go on by one.

    Attributes:
        offset: of the record after the break, bytes from the start of its file.
        lost: records missing; 0 unless kind is GAP.
        segment: index of the file in its dump.
    """

    kind: BreakKind
    offset: int
    ts_ns: int
    lost: int
    seq_before: int
    seq_after: int
    segment: int = 0


class Walked(NamedTuple):
    """One call's yield."""

    end: End
    used: int  # bytes
    columns: dict[str, Any]  # arrays; without rows unless asked for


def pointer(array: npt.NDArray[Any]) -> Any:
    """A C pointer to a contiguous array of unsigned integers; the array must outlive it."""
    return ffi.cast(_POINTERS[array.dtype.itemsize], array.ctypes.data)


def byte_pointer(data: Bytes) -> Any:
    """A C pointer to the bytes, without a copy; keep the result while C reads."""
    return ffi.from_buffer("uint8_t[]", data)


def settled(breaks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Breaks without those that turned out to be glitches (R12); the glitch itself stays."""
    glitches = breaks["kind"] == BreakKind.GLITCH
    if not glitches.any():
        return breaks
    taken_back = np.isin(breaks["offset"], breaks["offset"][glitches])
    found: npt.NDArray[Any] = breaks[glitches | ~taken_back]
    return found


def _cuts_of(breaks: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Where a piece begins: a duplicate ends none, nor does a damaged seq."""
    kept = settled(breaks)
    ends_none = np.isin(kept["kind"], (BreakKind.DUPLICATE, BreakKind.GLITCH))
    found: npt.NDArray[np.uint64] = kept["offset"][~ends_none]
    return found


class Tally:
    """Histograms that a walk adds to: numpy arrays of uint64 (see struct hmb_tally)."""

    def __init__(self) -> None:
        self.arrays = {name: np.zeros(size, "u8") for name, size in _TALLIES.items()}
        self.c = ffi.new("struct hmb_tally *", {n: pointer(a) for n, a in self.arrays.items()})

    def __getattr__(self, name: str) -> npt.NDArray[np.uint64]:
        try:
            found: npt.NDArray[np.uint64] = self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None
        return found


class Walker:
    """The state of one walk: feed it consecutive dump bytes.

    Attributes of the C state (records, lost, gaps, first_seq, ...) are read through this
    object: see struct hmb_walk.

    Args:
        tally: histograms to fill, or None.
        keep_breaks: collect every SequenceBreak in `breaks`.

    Attributes:
        cuts: offsets in the last bytes walked before which records are missing or begin anew.
    """

    def __init__(self, *, tally: Tally | None = None, keep_breaks: bool = False) -> None:
        self.c = ffi.new("struct hmb_walk *")
        self.tally = tally
        self.breaks: list[SequenceBreak] | None = [] if keep_breaks else None
        self.segment = 0
        self.marks: list[tuple[int, int, int]] = []  # segment, gaps and lost when it began
        self.cuts: npt.NDArray[np.uint64] = NO_CUTS
        self._items = np.empty(_BREAKS_AT_ONCE, BREAK_DTYPE)

    def __getattr__(self, name: str) -> int:
        if name == "c":
            raise AttributeError(name)
        value: int = getattr(self.c, name)
        return value

    def begin_segment(
        self, segment: int, offset: int, *, continues: bool, rejected_bytes: int = 0
    ) -> None:
        """The next bytes are those at `offset` of file number `segment`.

        continues: whether its sequence goes on from the file before.
        rejected_bytes: that were set aside from this file and may have been records (R12).
        """
        self.segment = segment
        self.c.rejected_bytes = rejected_bytes
        self.marks.append((segment, self.c.gaps, self.c.lost))
        self.c.offset = offset
        if not continues:
            self.c.have_seq = 0
            self.c.markers.seen = 0
            self.c.pending.kind = 0

    def end_segment(self, *, whole: bool, fault: Exception | None) -> None:
        """The file begun last was read as far as was asked; for walkers that keep accounts.

        whole: from its begin to its end, or to the fault.
        """

    def walk(self, data: Bytes, *, columns: bool = False, markers: bool = False) -> Walked:
        """Walk data from the current offset, as far as whole records go.

        Args:
            columns: return a row for each record (dtypes: COLUMNS).
            markers: wrap markers get rows too.
        """
        arrays, rows = self._new_columns(len(data), markers) if columns else (NO_COLUMNS, ffi.NULL)
        begin = self.c.offset
        tally = self.tally.c if self.tally else ffi.NULL
        with memoryview(data) as view:
            end = self._loop(view, rows, tally, begin)
        filled = {n: a[: rows.len] for n, a in arrays.items()} if columns else arrays
        return Walked(end, self.c.offset - begin, filled)

    def _loop(self, view: memoryview, rows: Any, tally: Any, begin: int) -> End:
        item = ffi.cast("struct hmb_break *", self._items.ctypes.data)
        breaks = ffi.new("struct hmb_breaks *", {"item": item, "cap": len(self._items)})
        cuts = [NO_CUTS]
        while True:
            rest = view[self.c.offset - begin :]
            end = End(lib.hmb_walk(self.c, byte_pointer(rest), len(rest), rows, breaks, tally))
            if breaks.len:
                cuts.append(_cuts_of(self._items[: breaks.len]))
                self._take_breaks(breaks)
            if end != End.FULL:
                self.cuts = np.concatenate(cuts) if len(cuts) > 1 else NO_CUTS
                return end

    @staticmethod
    def _new_columns(size: int, markers: bool) -> tuple[dict[str, npt.NDArray[Any]], Any]:
        capacity = size // RECORD_HDR_SIZE + 1
        arrays = {name: np.empty(capacity, dtype) for name, dtype in COLUMNS.items()}
        rows = ffi.new("struct hmb_columns *", {n: pointer(a) for n, a in arrays.items()})
        rows.cap = capacity
        rows.with_markers = markers
        return arrays, rows

    def _take_breaks(self, breaks: Any) -> None:
        if self.breaks is None:
            breaks.len = 0
            return
        for item in self._items[: breaks.len]:
            found = SequenceBreak(
                BreakKind(int(item["kind"])),
                int(item["offset"]),
                int(item["ts_ns"]),
                int(item["lost"]),
                int(item["seq_before"]),
                int(item["seq_after"]),
                self.segment,
            )
            if found.kind is BreakKind.GLITCH:
                found = self._taken_back(self.breaks, found)
            self.breaks.append(found)
        breaks.len = 0

    @staticmethod
    def _taken_back(breaks: list[SequenceBreak], glitch: SequenceBreak) -> SequenceBreak:
        """R12: a glitch takes the place of the break that it looked like until now."""
        if breaks and breaks[-1].offset == glitch.offset and breaks[-1].kind != BreakKind.GLITCH:
            return replace(glitch, segment=breaks.pop().segment)
        return glitch  # the walk itself had taken it back

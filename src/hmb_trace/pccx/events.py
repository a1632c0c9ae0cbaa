# SPDX-License-Identifier: Apache-2.0
"""Events of a .pccx payload: flatbuf as it lies in the file, bincode decoded batch by batch.

Layouts: seed 000, "flatbuf"; SPEC P5, P6.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace._core import ffi, lib
from hmb_trace.catalog.events import PCCX_TYPES
from hmb_trace.errors import InvalidDataError
from hmb_trace.pccx.container import PccxError, PccxFile

EVENT_DTYPE = np.dtype(
    [
        ("core_id", "<u4"),
        ("start_cycle", "<u8"),
        ("duration", "<u8"),
        ("event_type_id", "<u4"),
    ]
)
EVENT_TYPES = (*PCCX_TYPES, "API_CALL")  # a catalog cannot ask for the last: it carries a string
OTHER_TYPE = int(lib.hmb_event_type_other())
BATCH_EVENTS = 1 << 16
BINCODE_HEAD = struct.Struct("<QQ")  # total_cycles, number of events
BINCODE_EVENT_MIN = 29  # bytes: fixed fields, empty event_type, no api_name

_TRAILER_MAGIC = b"PCC2"
_TRAILER_WORD = int.from_bytes(_TRAILER_MAGIC, "little")
_TRAILER_HEAD = struct.Struct("<4sI")
_TRAILER_ENTRY = struct.Struct("<IH")
_SCAN_ROWS = 1 << 18
_MOST_CANDIDATES = 64  # a file full of look-alikes must not cost a parse for each of them
_NUMBERED = re.compile(r"EVENT_(0|[1-9]\d{0,9})\Z")
_STRINGS_DTYPE = np.dtype(
    [
        *((name, "<u8") for name in ("type_offset", "type_length", "api_offset", "api_length")),
        *((name, "<u4") for name in ("row", "has_api", "known_type", "pad")),
    ]
)

EventArray = NDArray[np.void]


def type_name(type_id: int) -> str:
    """The event type's name; ids beyond API_CALL keep their number: EVENT_7."""
    return EVENT_TYPES[type_id] if type_id < len(EVENT_TYPES) else f"EVENT_{type_id}"


def type_id(name: str) -> int | None:
    """The id of an event type's name, None for a free string."""
    if name in EVENT_TYPES:
        return EVENT_TYPES.index(name)
    match = _NUMBERED.match(name)
    number = int(match[1]) if match else 0
    return number if len(EVENT_TYPES) <= number < OTHER_TYPE else None


@dataclass
class EventBatch:
    """Consecutive events.

    Attributes:
        events: structured array, dtype EVENT_DTYPE; cycles, not nanoseconds.
        type_names: free event_type strings by row (bincode); there event_type_id is
            OTHER_TYPE.
        api_names: by row.
    """

    events: EventArray
    type_names: dict[int, str] = field(default_factory=dict)
    api_names: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)

    def type_name(self, row: int) -> str:
        """The event type of one event."""
        free = self.type_names.get(row)
        return type_name(int(self.events["event_type_id"][row])) if free is None else free


def _trailer_entry(data: memoryview, at: int, rows: int) -> tuple[int, str, int] | None:
    """One entry: event, name, where the next one begins; None if it is not one."""
    if len(data) - at < _TRAILER_ENTRY.size:
        return None
    row, length = _TRAILER_ENTRY.unpack_from(data, at)
    start = at + _TRAILER_ENTRY.size
    if row >= rows or len(data) - start < length:
        return None
    try:
        return row, bytes(data[start : start + length]).decode("utf-8"), start + length
    except UnicodeDecodeError:
        return None


def _trailer_after(payload: NDArray[np.uint8], rows: int) -> dict[int, str] | None:
    """api names by event, if after so many rows stands a trailer that ends with the payload."""
    data = payload[rows * EVENT_DTYPE.itemsize :].data
    if len(data) < _TRAILER_HEAD.size:
        return None
    magic, count = _TRAILER_HEAD.unpack_from(data)
    if magic != _TRAILER_MAGIC:
        return None
    names: dict[int, str] = {}
    at = _TRAILER_HEAD.size
    for _ in range(count):
        entry = _trailer_entry(data, at, rows)
        if entry is None:
            return None
        row, names[row], at = entry
    return names if at == len(data) else None


def _trailer_candidates(file: PccxFile) -> Iterator[int]:
    """Rows whose first four bytes are the trailer's magic; the rest after the last row too."""
    size = EVENT_DTYPE.itemsize
    whole = len(file.payload) // size
    first = ffi.cast("struct hmb_flat_event *", file.payload.ctypes.data)
    for start in range(0, whole, _SCAN_ROWS):
        row, end = start, min(start + _SCAN_ROWS, whole)
        while (row := lib.hmb_events_find_core(first, row, end, _TRAILER_WORD)) < end:
            yield row
            row += 1
        file.drop_pages(start * size, end * size)
    yield whole


def _find_trailer(file: PccxFile) -> tuple[int, dict[int, str]] | None:
    """Rows before the name trailer, and its names. A core_id that looks like it is none."""
    for row in itertools.islice(_trailer_candidates(file), _MOST_CANDIDATES):
        names = _trailer_after(file.payload, row)
        if names is not None:
            return row, names
    return None


def _own_event_count(file: PccxFile) -> int | None:
    """Files by hmb-trace say how many events they hold: no need to look for a trailer."""
    events = file.header.hmb_trace.get("events")
    size = len(file.payload)
    return events if type(events) is int and events * EVENT_DTYPE.itemsize == size else None


@dataclass(frozen=True)
class FlatPayload:
    """A flatbuf payload: events mapped (zero copy) and the names of its trailer."""

    events: EventArray
    api_names: dict[int, str]


def flat_payload(file: PccxFile) -> FlatPayload | None:
    """The events of a flatbuf file; None if the payload is neither 24*n nor has a trailer (P5)."""
    if "flat" not in file._cache:
        file._cache["flat"] = _flat_payload(file)
    found: FlatPayload | None = file._cache["flat"]
    return found


def _flat_payload(file: PccxFile) -> FlatPayload | None:
    size = EVENT_DTYPE.itemsize
    if _own_event_count(file) is not None:
        return FlatPayload(file.payload.view(EVENT_DTYPE), {})
    found = _find_trailer(file)
    if found is None:
        if len(file.payload) % size:
            return None
        return FlatPayload(file.payload.view(EVENT_DTYPE), {})
    rows, names = found
    return FlatPayload(file.payload[: rows * size].view(EVENT_DTYPE), names)


def flat_events(file: PccxFile) -> EventArray:
    """All events of a flatbuf file, mapped: no byte is copied or read before it is used.

    Returns:
        Structured array, dtype EVENT_DTYPE.

    Raises:
        PccxError: another encoding, or a payload that is not 24*n bytes.
    """
    if file.header.payload.encoding != "flatbuf":
        found = file.header.payload.encoding
        raise PccxError(f"{file.name}: payload.encoding: found {found!r}, expected 'flatbuf'")
    flat = flat_payload(file)
    if flat is None:
        raise PccxError(f"{file.name}: {flatbuf_size_problem(file)}")
    return flat.events


def flatbuf_size_problem(file: PccxFile) -> str:
    """What is wrong with a flatbuf payload that flat_payload() does not take."""
    return (
        f"payload.byte_length: found {len(file.payload)} for flatbuf, "
        f"expected a multiple of {EVENT_DTYPE.itemsize}"
    )


def _flat_batches(file: PccxFile, size: int) -> Iterator[EventBatch]:
    flat = flat_payload(file)
    if flat is None:
        raise PccxError(f"{file.name}: {flatbuf_size_problem(file)}")
    for start in range(0, len(flat.events), size):
        end = min(start + size, len(flat.events))
        names = {}
        if flat.api_names:
            names = {r - start: flat.api_names[r] for r in range(start, end) if r in flat.api_names}
        yield EventBatch(flat.events[start:end], {}, names)
        file.drop_pages(start * EVENT_DTYPE.itemsize, end * EVENT_DTYPE.itemsize)


class BincodeReader:
    """Decodes a bincode payload from front to end, in bounded memory.

    Attributes:
        total_cycles: as the payload says.
        count: number of events, checked against the payload's length.

    Raises:
        PccxError: torn, or a count that the payload cannot hold.
    """

    def __init__(self, file: PccxFile) -> None:
        self._file = file
        size = len(file.payload)
        if size < BINCODE_HEAD.size:
            raise PccxError(
                f"{file.name}: bincode: found {size} bytes, expected at least {BINCODE_HEAD.size}"
            )
        self.total_cycles, self.count = BINCODE_HEAD.unpack_from(file.payload.data)
        most = (size - BINCODE_HEAD.size) // BINCODE_EVENT_MIN
        if self.count > most:
            raise PccxError(
                f"{file.name}: bincode: count of events: found {self.count}, "
                f"but {size} bytes hold at most {most}"
            )
        self._c = ffi.new("struct hmb_bincode *")
        self._c.position, self._c.left = BINCODE_HEAD.size, self.count
        self._payload = ffi.cast("uint8_t *", file.payload.ctypes.data)

    @property
    def position(self) -> int:
        """Payload bytes decoded so far."""
        return int(self._c.position)

    def batches(self, size: int = BATCH_EVENTS, *, strings: bool = True) -> Iterator[EventBatch]:
        """The events. strings=False leaves names out (faster).

        The arrays of a batch are reused: copy what must outlive the next one.

        Raises:
            PccxError: torn, or a string, length or tag that lies; all events before it
                have been yielded.
        """
        # Whoever wrote the count may lie: memory follows the events that are really there.
        size = max(1, min(size, self.count))
        events = np.empty(size, EVENT_DTYPE)
        odd = np.empty(size if strings else 0, _STRINGS_DTYPE)
        done = ffi.new("uint64_t *")
        while self._c.left:
            start = self.position
            result = self._read(events, odd if strings else None, done)
            if done[0]:
                yield self._batch(events[: done[0]], odd)
                self._file.drop_pages(start, self.position)
            if result < 0:
                raise self._fault()

    def _read(self, events: EventArray, odd: NDArray[np.void] | None, done: Any) -> int:
        return int(
            lib.hmb_bincode_read(
                self._c,
                self._payload,
                len(self._file.payload),
                ffi.cast("struct hmb_flat_event *", events.ctypes.data),
                len(events),
                ffi.NULL
                if odd is None
                else ffi.cast("struct hmb_event_strings *", odd.ctypes.data),
                done,
            )
        )

    def _batch(self, events: EventArray, odd: NDArray[np.void]) -> EventBatch:
        batch = EventBatch(events)
        for entry in odd[: self._c.strings_len]:
            row = int(entry["row"])
            if not entry["known_type"]:
                self._name_type(batch, row, self._text(entry, "type"))
            if entry["has_api"]:
                batch.api_names[row] = self._text(entry, "api")
        return batch

    @staticmethod
    def _name_type(batch: EventBatch, row: int, name: str) -> None:
        known = type_id(name)
        if known is None:
            batch.type_names[row] = name
        else:
            batch.events["event_type_id"][row] = known

    def _text(self, entry: Any, what: str) -> str:
        start, length = int(entry[f"{what}_offset"]), int(entry[f"{what}_length"])
        return bytes(self._file.payload[start : start + length]).decode("utf-8")

    def _fault(self) -> PccxError:
        at, value = self._c.fault_offset, self._c.fault_value
        left = len(self._file.payload) - at
        event = self.count - self._c.left
        texts = {
            lib.HMB_FAULT_TORN: f"payload ends inside it: {left} bytes left, expected {value}",
            lib.HMB_FAULT_TYPE_LENGTH: f"event_type: length {value}, but {left - 8} bytes follow",
            lib.HMB_FAULT_API_LENGTH: f"api_name: length {value}, but {left - 8} bytes follow",
            lib.HMB_FAULT_TYPE_UTF8: "event_type: not UTF-8",
            lib.HMB_FAULT_API_UTF8: "api_name: not UTF-8",
            lib.HMB_FAULT_TAG: f"api_name: option tag {value}, expected 0 or 1",
        }
        text = texts.get(self._c.fault, "cannot be decoded")
        return PccxError(f"{self._file.name}: bincode: event {event} at byte {at}: {text}")


def event_batches(file: PccxFile, size: int = BATCH_EVENTS) -> Iterator[EventBatch]:
    """The events of a flatbuf or bincode file, batch by batch, in bounded memory.

    Args:
        file: an open .pccx.
        size: events in one batch, at most.

    Raises:
        PccxError: a raw payload has no events of its own; or torn or lying data, after
            everything before it has been yielded.
    """
    encoding = file.header.payload.encoding
    if encoding == "flatbuf":
        yield from _flat_batches(file, size)
    elif encoding == "bincode":
        yield from BincodeReader(file).batches(size)
    else:
        raise InvalidDataError(
            f"{file.name}: payload.encoding: found {encoding!r}, expected 'flatbuf' or 'bincode'"
        )

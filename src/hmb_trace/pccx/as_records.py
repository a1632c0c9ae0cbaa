# SPDX-License-Identifier: Apache-2.0
"""Events of a flatbuf or bincode payload as rows that every command can show (SPEC P6).

Such a file holds no records any more, but starts, durations, cores and types. Each event becomes
one row laid out like a record: time = start, opcode = type, cpu = core, and a payload that holds
the event's own numbers; a catalog made for the file names them. So decode, view, sql, report and
convert need no second way. Nothing is invented: seq is the event's place in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import PCCX_TYPES, Catalog
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment, of_paths
from hmb_trace.dumps.sources import Source, StreamSource
from hmb_trace.dumps.stdin import spooled_stdin
from hmb_trace.errors import UsageError
from hmb_trace.layout import RECORD_MAGIC
from hmb_trace.pccx import container
from hmb_trace.pccx.events import (
    EVENT_TYPES,
    OTHER_TYPE,
    EventBatch,
    event_batches,
    type_name,
)

EVENT_ENCODINGS = ("flatbuf", "bincode")
_U64_MAX = np.uint64(2**64 - 1)
_FIRST_FREE = 0x100  # opcodes of types that have no number below it
_MOST_TYPES = 4096
_OTHER_OPCODE = 0xFFFF
_NAME_MAX = 128  # bytes shown of an api name
_MOST_CPU = 255
_HEADER = [
    *(("magic", "<u4"), ("seq", "<u4"), ("ts_ns", "<u8"), ("opcode", "<u2")),
    *(("cpu", "u1"), ("flags", "u1"), ("payload_len", "<u2"), ("zero", "V10")),
]
_FIELDS = [
    *(("duration_ns", "<u8"), ("start_cycle", "<u8"), ("duration_cycles", "<u8")),
    *(("core", "<u4"), ("type_id", "<u4")),
]
_CATALOG_TYPES = {"<u8": "u64", "<u4": "u32"}


def cycles_to_ns(cycles: npt.NDArray[np.uint64], clock_mhz: int) -> npt.NDArray[np.uint64]:
    """cycles * 1000 / clock_mhz, exact, cut at 2**64 - 1."""
    if clock_mhz == 1000:
        return cycles
    clock, thousand = np.uint64(clock_mhz), np.uint64(1000)
    whole, rest = cycles // clock, cycles % clock
    found: npt.NDArray[np.uint64] = whole * thousand + rest * thousand // clock
    found[whole >= _U64_MAX // thousand] = _U64_MAX
    return found


@dataclass(frozen=True)
class _Shape:
    """What the rows of one file look like.

    Attributes:
        opcodes: of types that have no number, or a large one, by name.
        name_size: bytes kept for an api name in every row; 0: no event has one.
    """

    path: Path
    clock_mhz: int
    opcodes: dict[str, int]
    name_size: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """A row: header and payload."""
        name = [("api_name", f"S{self.name_size}")] if self.name_size else []
        return np.dtype([*_HEADER, *_FIELDS, *name])

    def catalog(self, name: str) -> Catalog:
        """Names for the rows."""
        types = [(i, text) for i, text in enumerate(EVENT_TYPES)]
        types += [(opcode, text) for text, opcode in self.opcodes.items()]
        types.append((_OTHER_OPCODE, "OTHER"))
        events = [
            self._event(opcode, text)
            for (opcode, _), text in zip(types, _names(types), strict=True)
        ]
        return Catalog.from_dict({"name": name, "clock_mhz": self.clock_mhz, "event": events})

    def _event(self, opcode: int, name: str) -> dict[str, Any]:
        fields = [{"name": n, "type": _CATALOG_TYPES[t]} for n, t in _FIELDS]
        text = "core {core} start {start_cycle} duration {duration_cycles}"
        if self.name_size:
            fields.append({"name": "api_name", "type": f"char[{self.name_size}]"})
            text += " {api_name}"
        return {
            "opcode": opcode,
            "name": name,
            "kind": "complete",
            "duration": "duration_ns",
            "duration_unit": "ns",
            "pccx": name if name in PCCX_TYPES else "UNKNOWN",
            "format": text,
            "field": fields,
        }

    def rows(self, batch: EventBatch, first: int) -> npt.NDArray[np.void]:
        """The rows of consecutive events, of which the first is number `first` of the file."""
        events = batch.events
        made = np.zeros(len(batch), self.dtype)
        made["magic"] = RECORD_MAGIC
        made["seq"] = np.arange(first, first + len(batch), dtype=np.uint64)
        made["ts_ns"] = cycles_to_ns(events["start_cycle"], self.clock_mhz)
        made["opcode"] = self._opcodes(batch)
        made["cpu"] = np.minimum(events["core_id"], _MOST_CPU)
        made["payload_len"] = made.dtype.itemsize - 32
        made["duration_ns"] = cycles_to_ns(events["duration"], self.clock_mhz)
        made["start_cycle"], made["duration_cycles"] = events["start_cycle"], events["duration"]
        made["core"], made["type_id"] = events["core_id"], events["event_type_id"]
        for row, text in batch.api_names.items():
            made["api_name"][row] = _cut(text)
        return made

    def _opcodes(self, batch: EventBatch) -> npt.NDArray[np.uint16]:
        ids = batch.events["event_type_id"]
        found: npt.NDArray[np.uint16] = np.minimum(ids, _OTHER_OPCODE).astype("u2")
        for number in np.unique(ids[ids >= len(EVENT_TYPES)]).tolist():
            found[ids == number] = self.opcodes.get(type_name(number), _OTHER_OPCODE)
        for row, text in batch.type_names.items():
            found[row] = self.opcodes.get(text, _OTHER_OPCODE)
        return found


def _names(types: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The types' names as a catalog can hold them, each once."""
    taken: set[str] = set()
    for _, text in types:
        name = re.sub(r"\W", "_", text, flags=re.ASCII)
        name = name if name[:1].isalpha() else f"_{name}"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name


def _cut(text: str) -> bytes:
    return text.encode()[:_NAME_MAX].decode("utf-8", "ignore").encode()


@dataclass(frozen=True)
class EventSegment(Segment):
    """A .pccx of events, read as rows."""

    @property
    def shape(self) -> _Shape:
        """Worked out by a first pass over the types, once for a file."""
        assert self.path is not None
        found = self.path.stat()
        return _shape(self.path, found.st_ino, found.st_mtime_ns, found.st_size)

    def catalog(self) -> Catalog:
        """What the opcodes and payloads of the rows mean."""
        return self.shape.catalog(self.name)

    def open(self) -> Source:
        return _EventSource(self.shape)


class _EventSource(StreamSource):
    """Bytes of the rows."""

    def __init__(self, shape: _Shape) -> None:
        self._file = container.read(shape.path)
        self._pieces = self._encoded(shape)
        super().__init__(lambda _: next(self._pieces, b""), self._file.close)

    def _encoded(self, shape: _Shape) -> Iterator[bytes]:
        first = 0
        for batch in event_batches(self._file):
            yield shape.rows(batch, first).tobytes()
            first += len(batch)


@lru_cache(maxsize=8)
def _shape(path: Path, _inode: int, _changed_ns: int, _size: int) -> _Shape:
    opcodes: dict[str, int] = {}
    longest = 0
    with container.read(path) as file:
        for batch in event_batches(file):
            for text in _free_types(batch):
                if text not in opcodes and len(opcodes) < _MOST_TYPES:
                    opcodes[text] = _FIRST_FREE + len(opcodes)
            longest = max(longest, *(len(_cut(n)) for n in batch.api_names.values()), 0)
        clock = file.header.trace.clock_mhz or 1000
    return _Shape(path, clock, opcodes, (longest + 7) & ~7)


def _free_types(batch: EventBatch) -> Iterator[str]:
    ids = batch.events["event_type_id"]
    if len(ids) and int(ids.max()) >= len(EVENT_TYPES):
        numbers = np.unique(ids[(ids >= len(EVENT_TYPES)) & (ids != OTHER_TYPE)])
        yield from (type_name(number) for number in numbers.tolist())
    yield from batch.type_names.values()


def holds_events(segment: Segment) -> bool:
    """Whether a file is a .pccx of events. Raises HmbTraceError."""
    if segment.kind is not Kind.PCCX or segment.path is None:
        return False
    with container.read(segment.path) as file:
        return file.header.payload.encoding in EVENT_ENCODINGS


def open_inputs(paths: Iterable[str | os.PathLike[str]]) -> Dump:
    """As open_dumps(), and .pccx files of events as rows.

    Raises:
        UsageError: a .pccx of events beside another file. HmbTraceError: as open_dumps().
    """
    segments = [
        EventSegment(s.name, s.path, s.kind) if holds_events(s) else s
        for s in of_paths([os.fspath(path) for path in paths])
    ]
    if len(segments) > 1 and any(isinstance(segment, EventSegment) for segment in segments):
        raise UsageError("a .pccx of events is read alone: its types are numbered by itself")
    return Dump(segments)


def event_catalog(path: str | os.PathLike[str]) -> Catalog | None:
    """The catalog of a .pccx of events; None for any other file. Raises HmbTraceError."""
    name = os.fspath(path)
    place = spooled_stdin() if name == "-" else Path(name)
    segment = Segment(name, place, Kind.PCCX)
    return EventSegment(name, place, Kind.PCCX).catalog() if holds_events(segment) else None

# SPDX-License-Identifier: Apache-2.0
"""Writing payloads and events, and conversion from one encoding to another (SPEC P3, P6)."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Protocol

import numpy as np

from hmb_trace import __version__
from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import Catalog
from hmb_trace.errors import UsageError
from hmb_trace.fnv import BytesLike
from hmb_trace.pccx.container import WINDOW, PccxError, PccxFile, read
from hmb_trace.pccx.events import (
    BATCH_EVENTS,
    BINCODE_HEAD,
    EVENT_DTYPE,
    OTHER_TYPE,
    EventArray,
    EventBatch,
    event_batches,
)
from hmb_trace.pccx.header import EXTRA_KEY, Header
from hmb_trace.pccx.output import Output, PayloadWriter, open_output, widest_header
from hmb_trace.pccx.packing import (
    CHECKSUMS,
    ENCODINGS,
    PackOptions,
    Progress,
    _no_progress,
    pack,
)
from hmb_trace.pccx.sorting import sorted_events

_FIXED = struct.Struct("<IQQ")
_LENGTH = struct.Struct("<Q")
_U64_MAX = np.uint64(2**64 - 1)
_BUFFERS = (bytes, bytearray, memoryview, mmap.mmap, np.ndarray)
Path = str | os.PathLike[str]
Events = EventArray | EventBatch | Iterable[EventArray | EventBatch]


def _new_header() -> Header:
    return Header(f"hmb-trace-{__version__}")


def _check(value: str, known: Iterable[str], what: str) -> None:
    if value not in known:
        raise UsageError(f"{what}: found {value!r}, expected one of {', '.join(known)}")


def write(
    path: Path,
    payload: BytesLike | Iterable[BytesLike],
    header: Header | None = None,
    *,
    encoding: str | None = None,
    checksum: str = "number",
    inputs: Sequence[Path] = (),
) -> Header:
    """Write a .pccx around payload bytes that are encoded already.

    Args:
        path: the file, which appears when it is whole; or `-`.
        payload: bytes-like, or an iterable of them (streamed in bounded memory).
        header: its values; length and checksum are filled in. None: zeros.
        encoding: replaces header.payload.encoding; any string.
        checksum: number, hex or none (SPEC P1).
        inputs: files that the output must not replace.

    Returns:
        The header as written.

    Raises:
        HeaderError: a value that the header cannot hold.
        HmbTraceError: the output cannot be written.
    """
    _check(checksum, CHECKSUMS, "checksum")
    made = deepcopy(header) if header else _new_header()
    if encoding is not None:
        made.payload.encoding = encoding
    pieces = [payload] if isinstance(payload, _BUFFERS) else payload
    with open_output(path, inputs) as target:
        writer = PayloadWriter(target, widest_header(made, checksum), checksum)
        for piece in pieces:
            writer.write(piece)
        return writer.finish(made)


class _Sink(Protocol):
    """Takes events and leaves a payload."""

    warnings: list[str]

    def add(self, batch: EventBatch) -> None: ...

    def finish(self, header: Header) -> PayloadWriter: ...


class _Extent:
    """Largest end and core of the events, for the header and bincode's total_cycles."""

    def __init__(self) -> None:
        self.cycles = 0
        self.cores = 0
        self.events = 0

    def see(self, events: EventArray) -> None:
        if not len(events):
            return
        starts, spans = events["start_cycle"], events["duration"]
        ends = starts + np.minimum(spans, _U64_MAX - starts)
        self.cycles = max(self.cycles, int(ends.max()))
        self.cores = max(self.cores, min(int(events["core_id"].max()) + 1, 2**32 - 1))
        self.events += len(events)

    def complete(self, header: Header) -> None:
        """Fill in what the header does not say."""
        header.trace.cycles = header.trace.cycles or self.cycles
        header.trace.cores = header.trace.cores or self.cores


class _FlatSink:
    """flatbuf: sorted by start_cycle; has no place for names."""

    def __init__(self, target: Output, room: int, checksum: str) -> None:
        self._target = target
        self._room = room
        self._checksum = checksum
        self._writer = PayloadWriter(target, room, checksum)
        self._last = 0
        self._sorted = True
        self._extent = _Extent()
        self._api_names = self._free_types = 0
        self.warnings: list[str] = []

    def add(self, batch: EventBatch) -> None:
        events = batch.events
        if batch.type_names:
            events = events.copy()
            events["event_type_id"][events["event_type_id"] == OTHER_TYPE] = 0
        self._note_order(events)
        self._extent.see(events)
        self._writer.write(np.ascontiguousarray(events).view(np.uint8))
        self._api_names += len(batch.api_names)
        self._free_types += len(batch.type_names)

    def _note_order(self, events: EventArray) -> None:
        if not len(events):
            return
        pointer = ffi.cast("struct hmb_flat_event *", events.ctypes.data)
        inside = lib.hmb_events_sorted(pointer, len(events)) == len(events)
        self._sorted &= inside and int(events["start_cycle"][0]) >= self._last
        self._last = int(events["start_cycle"][-1])

    def finish(self, header: Header) -> PayloadWriter:
        self._extent.complete(header)
        if not self._sorted:
            self._sort()
        for count, text in (
            (self._api_names, "api names have no place in flatbuf and were left out"),
            (self._free_types, "event types without an id became UNKNOWN"),
        ):
            if count:
                self.warnings.append(f"{count} {text}")
        return self._writer

    def _sort(self) -> None:
        unsorted = self._writer.payload_stream()
        self._writer = PayloadWriter(self._target, self._room, self._checksum)
        for piece in sorted_events(unsorted, self._extent.events, self._target.scratch):
            self._writer.write(piece.view(np.uint8))


class _BincodeSink:
    """bincode v1, in the order of the events."""

    def __init__(self, target: Output, room: int, checksum: str) -> None:
        self._writer = PayloadWriter(target, room, checksum, patched=True)
        self._writer.write(BINCODE_HEAD.pack(0, 0))
        self._extent = _Extent()
        self._out = np.empty(BATCH_EVENTS * int(lib.hmb_bincode_most()), np.uint8)
        self.warnings: list[str] = []

    def add(self, batch: EventBatch) -> None:
        self._extent.see(batch.events)
        start = 0
        for row in sorted(batch.type_names.keys() | batch.api_names.keys()):
            self._plain(batch.events[start:row])
            self._named(batch, row)
            start = row + 1
        self._plain(batch.events[start:])

    def _plain(self, events: EventArray) -> None:
        for start in range(0, len(events), BATCH_EVENTS):
            part = np.ascontiguousarray(events[start : start + BATCH_EVENTS])
            pointer = ffi.cast("struct hmb_flat_event *", part.ctypes.data)
            out = ffi.cast("uint8_t *", self._out.ctypes.data)
            size = lib.hmb_bincode_write(pointer, len(part), out)
            self._writer.write(self._out[:size])

    def _named(self, batch: EventBatch, row: int) -> None:
        event = batch.events[row]
        fixed = _FIXED.pack(*(int(event[n]) for n in ("core_id", "start_cycle", "duration")))
        api = batch.api_names.get(row)
        tail = b"\0" if api is None else b"\1" + _string(api)
        self._writer.write(fixed + _string(batch.type_name(row)) + tail)

    def finish(self, header: Header) -> PayloadWriter:
        self._extent.complete(header)
        self._writer.patch(0, BINCODE_HEAD.pack(header.trace.cycles, self._extent.events))
        return self._writer


def _string(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _batches(events: Events) -> Iterable[EventBatch]:
    if isinstance(events, EventBatch):
        return [events]
    if isinstance(events, np.ndarray):
        return [EventBatch(events)]
    return (one if isinstance(one, EventBatch) else EventBatch(one) for one in events)


def write_events(
    path: Path,
    events: Events,
    encoding: str,
    header: Header | None = None,
    *,
    checksum: str = "number",
    inputs: Sequence[Path] = (),
) -> tuple[Header, list[str]]:
    """Write events as flatbuf (sorted by start_cycle here) or bincode (in their order).

    Args:
        path: the file, which appears when it is whole; or `-`.
        events: structured arrays of dtype EVENT_DTYPE, or EventBatches, one or many.
        encoding: flatbuf or bincode.
        header: cycles and cores are filled in where they are 0.
        checksum: number, hex or none (SPEC P1).
        inputs: files that the output must not replace.

    Returns:
        The header as written, and warnings: what the encoding has no place for.

    Raises:
        UsageError: another encoding, or arrays of another dtype.
        HmbTraceError: the output cannot be written.
    """
    _check(encoding, ("flatbuf", "bincode"), "encoding")
    _check(checksum, CHECKSUMS, "checksum")
    made = deepcopy(header) if header else _new_header()
    made.payload.encoding = encoding
    with open_output(path, inputs) as target:
        room = widest_header(made, checksum)
        sink: _Sink = (_FlatSink if encoding == "flatbuf" else _BincodeSink)(target, room, checksum)
        for batch in _batches(events):
            if batch.events.dtype != EVENT_DTYPE:
                raise UsageError(f"events: found dtype {batch.events.dtype}, expected EVENT_DTYPE")
            sink.add(batch)
        return sink.finish(made).finish(made), sink.warnings


def _copy(file: PccxFile, output: Path, checksum: str, inputs: Sequence[Path]) -> None:
    def pieces() -> Iterable[BytesLike]:
        for start in range(0, len(file.payload), WINDOW):
            yield file.payload[start : start + WINDOW]
            file.drop_pages(start, start + WINDOW)

    write(output, pieces(), file.header, checksum=checksum, inputs=inputs)


def _without_own_counts(header: Header) -> Header:
    """A header whose `hmb_trace` object does not speak of the payload's layout."""
    made = deepcopy(header)
    if isinstance(made.extra.get(EXTRA_KEY), dict):
        made.extra[EXTRA_KEY].pop("events", None)
    return made


def convert(
    path: Path,
    output: Path,
    encoding: str,
    *,
    catalog: Catalog | None = None,
    clock_mhz: int | None = None,
    checksum: str = "number",
    api_names: bool = False,
    partial: bool = False,
    progress: Progress = _no_progress,
    keep: Sequence[Path] = (),
) -> list[str]:
    """Write a .pccx (or a dump) again in another encoding.

    Args:
        path: a .pccx, or any dump that pack() takes.
        output: the new .pccx, or `-`.
        encoding: raw, flatbuf or bincode.
        catalog: for raw inputs; None: the one in the file's header, if there is one.
        clock_mhz: for raw inputs; None: the catalog's, or the file's.
        checksum: number, hex or none.
        api_names: bincode from raw: the catalog's event name as api_name.
        partial: raw: take what comes before a damaged end.
        progress: called with the number of payload bytes taken.
        keep: other files that the output must not replace (the catalog).

    Returns:
        Warnings, one line each.

    Raises:
        PccxError: not a .pccx, or events to raw: the records are gone.
    """
    _check(encoding, ENCODINGS, "encoding")
    if not is_pccx(path):
        options = PackOptions(encoding, catalog, clock_mhz, checksum, partial, api_names)
        return pack([path], output, options, progress=progress, keep=keep).warnings
    inputs = [path, *keep]
    with read(path) as file:
        source = file.header.payload.encoding
        if source == encoding:
            _copy(file, output, checksum, inputs)
            return file.warnings
        if source in ("flatbuf", "bincode"):
            _refuse_raw(file, encoding)
            header = _without_own_counts(file.header)
            events = _counted(file, progress)
            _, warnings = write_events(
                output, events, encoding, header, checksum=checksum, inputs=inputs
            )
            return file.warnings + warnings
        if source != "raw":
            raise PccxError(f"{file.name}: payload.encoding: found {source!r}, expected 'raw'")
        catalog = catalog or embedded_catalog(file.header, file.name)
    options = PackOptions(encoding, catalog, clock_mhz, checksum, partial, api_names)
    return pack([path], output, options, progress=progress, keep=keep).warnings


def embedded_catalog(header: Header, name: str) -> Catalog | None:
    """The catalog that a file by hmb-trace carries, if it does. Raises CatalogError."""
    made = header.hmb_trace.get("catalog")
    return Catalog.from_dict(made, f"{name}: header {EXTRA_KEY}.catalog") if made else None


def is_pccx(path: Path) -> bool:
    """Whether a file begins like a .pccx; `-` and directories do not."""
    if os.fspath(path) == "-" or not os.path.isfile(path):  # noqa: PTH113 - str or PathLike
        return False
    with open(path, "rb") as stream:  # noqa: PTH123 - str or PathLike
        return stream.read(4) == b"PCCX"


def _counted(file: PccxFile, progress: Progress) -> Iterable[EventBatch]:
    for batch in event_batches(file):
        progress(batch.events.nbytes)
        yield batch


def _refuse_raw(file: PccxFile, encoding: str) -> None:
    if encoding == "raw":
        raise PccxError(
            f"{file.name}: payload.encoding: found {file.header.payload.encoding!r}; "
            "events cannot become raw records again, pack the dump instead"
        )

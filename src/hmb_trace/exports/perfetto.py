# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces by the official protobuf classes, written packet by packet.

Tracks: one per cpu, and one per value of an event's `track` field (die 3, queue 7). Paired begins
and ends, and complete events, are slices; counters are counter tracks; all else are instants.
Slices that overlap on a track go to further lanes of the same name, which the viewer groups.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.timeaxis import Axis, firmware_axis
from hmb_trace.dumps.walker import BreakKind, SequenceBreak
from hmb_trace.errors import MissingExtraError
from hmb_trace.query.durations import duration_rules, pair_names
from hmb_trace.query.pairing import Pairing

_SEQUENCE = 1
_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_FLUSH = 1 << 20  # bytes
_I64 = 1 << 63
_CODES = {
    **{f"u{8 << i}": code for i, code in enumerate("BHIQ")},
    **{f"i{8 << i}": code for i, code in enumerate("bhiq")},
    "f32": "f",
    "f64": "d",
}


def _classes() -> Any:
    """The module of the official message classes. Raises MissingExtraError."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(
            "perfetto is not installed: pip install 'hmb-trace[analysis]'"
        ) from None
    return perfetto_trace_pb2


@dataclass
class _Track:
    """A track and the lanes that overlapping slices need."""

    name: str
    lanes: list[int] = field(default_factory=list)  # uuids
    ends: list[int] = field(default_factory=list)  # when the last slice of a lane ended


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is shown of a record."""

    event: Event | None
    opcode: int
    cpu: int
    payload: bytes


class _Decoder:
    """Reads all fields of an event's payload by one unpack."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._texts = [i for i, f in enumerate(event.fields) if f.type.startswith("char")]
        self._struct = _struct_of(event)

    def values(self, payload: bytes) -> Sequence[Any]:
        """One value per field, in the catalog's order; None where the payload is too short."""
        if self._struct is None or len(payload) < self._struct.size:
            return list(self._event.values(payload).values())
        found = list(self._struct.unpack_from(payload))
        for index in self._texts:
            found[index] = found[index].split(b"\0", 1)[0].decode("utf-8", "replace")
        return found


def _struct_of(event: Event) -> struct.Struct | None:
    """The layout of a payload; None if fields overlap or do not come in order."""
    text, at = "<", 0
    for one in event.fields:
        if one.offset < at:
            return None
        text += f"{one.offset - at}x" if one.offset > at else ""
        plain = one.type[0] in "cb"
        text += f"{one.size}s" if plain else _CODES[one.type]
        at = one.offset + one.size
    return struct.Struct(text)


@dataclass
class PerfettoCounts:
    """What was written."""

    slices: int = 0
    instants: int = 0
    counters: int = 0
    uncertain: int = 0  # pairs over a gap, a new epoch or a clock step; written as instants
    unmatched: int = 0  # begins and ends without a partner; written as instants


class PerfettoWriter:
    """Writes one trace.

    Args:
        out: gets whole packets; nothing is kept but track names and waiting begins.
        catalog: names, kinds, pairs, tracks; None: every record is an instant of its cpu.
        axis: the time axis, nanoseconds.

    Raises:
        MissingExtraError: the perfetto package is not installed.
    """

    def __init__(
        self, out: BinaryIO, catalog: Catalog | None = None, axis: Axis = firmware_axis
    ) -> None:
        self._pb = _classes()
        self._out = out
        self._catalog = catalog
        self._axis = axis
        self._buffer = bytearray()
        self._uuids = itertools.count(1)
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._counter_tracks: dict[tuple[str, str], int] = {}
        self._iids: dict[tuple[str, str], int] = {}
        self._pairing = Pairing(catalog) if catalog else None
        self._names = pair_names(catalog) if catalog else {}
        self._rules = {rule.event.opcode: rule for rule in duration_rules(catalog)}
        self._waiting: dict[int, _Seen] = {}
        self._decoders: dict[int, _Decoder] = {}
        self._row = 0
        self._moved = 0  # what the axis adds to the firmware clock, of late
        self.counts = PerfettoCounts()
        self._start()

    # ---- packets ----

    def _start(self) -> None:
        packet = self._new()
        packet.sequence_flags = _CLEARED
        packet.first_packet_on_sequence = True
        self._put(packet)

    def _new(self) -> Any:
        # A cleared message keeps its arena, which only grows: a new one each time.
        packet = self._pb.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _put(self, packet: Any) -> None:
        data = packet.SerializeToString()
        self._buffer.append(0x0A)  # Trace.packet, length-delimited
        size = len(data)
        while size >= 0x80:
            self._buffer.append(size & 0x7F | 0x80)
            size >>= 7
        self._buffer.append(size)
        self._buffer += data
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._out.write(self._buffer)
        self._buffer.clear()

    def _event(self, ts: int, kind: int, track: int) -> Any:
        packet = self._new()
        packet.timestamp = max(ts, 0)
        packet.sequence_flags = _NEEDS_STATE
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return packet

    def _iid(self, packet: Any, table: str, name: str) -> int:
        """The number that stands for a name from here on."""
        known = self._iids.get((table, name))
        if known is not None:
            return known
        iid = len(self._iids) + 1
        self._iids[table, name] = iid
        getattr(packet.interned_data, table).add(iid=iid, name=name)
        return iid

    # ---- tracks ----

    def _describe(self, name: str, *, counter_unit: str | None = None) -> int:
        uuid = next(self._uuids)
        packet = self._new()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if counter_unit is not None:
            packet.track_descriptor.counter.unit_name = counter_unit
        self._put(packet)
        return uuid

    def _track(self, label: str, value: int) -> _Track:
        track = self._tracks.get((label, value))
        if track is None:
            track = self._tracks[label, value] = _Track(f"{label} {value}")
            track.lanes.append(self._describe(track.name))
            track.ends.append(0)
        return track

    def _track_of(self, seen: _Seen) -> _Track:
        event = seen.event
        if event is not None and event.track:
            made = event.field(event.track)
            value = made.value(seen.payload) if made else None
            if isinstance(value, int):
                return self._track(event.track, value)
        return self._track("cpu", seen.cpu)

    def _lane(self, track: _Track, begin: int, end: int) -> int:
        """A lane whose last slice is over; slices come in the order of their ends."""
        for index, over in enumerate(track.ends):
            if over <= begin:
                track.ends[index] = end
                return track.lanes[index]
        track.lanes.append(self._describe(track.name))
        track.ends.append(end)
        return track.lanes[-1]

    # ---- records ----

    def add(self, batch: RecordBatch) -> None:
        """Write the records of a batch; batches come in file order."""
        times = self._axis(batch).tolist()
        opcodes, cpus = batch.opcode.tolist(), batch.cpu.tolist()
        events = self._catalog.events if self._catalog else {}
        paired = self._pairing.feed(batch) if self._pairing else None
        for row, (opcode, cpu) in enumerate(zip(opcodes, cpus, strict=True)):
            seen = _Seen(events.get(opcode), opcode, cpu, bytes(batch.payload(row)))
            if not self._is_half(seen.event):
                self._record(seen, times[row])
            elif seen.event and seen.event.kind == "begin":
                self._waiting[self._row + row] = seen
        if len(batch):
            self._moved = times[0] - int(batch.ts_ns[0])
        if paired is not None:
            self._matches(paired.matches)
            self._uncertain(paired.uncertain)
            self._singles(paired.singles)
        self._row += len(batch)

    @staticmethod
    def _is_half(event: Event | None) -> bool:
        """Whether the record is shown as part of a slice, once its partner is known."""
        return event is not None and event.kind in ("begin", "end") and bool(event.pair)

    def _record(self, seen: _Seen, ts: int) -> None:
        event = seen.event
        if event is not None and event.kind == "counter" and self._counter(event, seen, ts):
            return
        if event is not None and event.kind == "complete" and event.duration:
            made = event.field(event.duration)
            span = made.value(seen.payload) if made else None
            ns = self._rules[seen.opcode].of_value(span) if isinstance(span, int) else None
            if ns is not None:
                self._slice(seen, ts, ts + ns)
                return
        self._instant(seen, ts)

    def _counter(self, event: Event, seen: _Seen, ts: int) -> bool:
        made = event.field(event.value)
        value = made.value(seen.payload) if made else None
        if made is None or not isinstance(value, (int, float)):
            return False
        base = self._track_of(seen).name if event.track else ""
        key = (event.name, base)
        if key not in self._counter_tracks:
            name = f"{event.name} {base}".strip()
            self._counter_tracks[key] = self._describe(name, counter_unit=made.unit)
        packet = self._event(ts, self._pb.TrackEvent.TYPE_COUNTER, self._counter_tracks[key])
        if isinstance(value, int) and -_I64 <= value < _I64:
            packet.track_event.counter_value = value
        else:
            packet.track_event.double_counter_value = float(value)
        self._put(packet)
        self.counts.counters += 1
        return True

    def _instant(self, seen: _Seen, ts: int, note: str = "") -> None:
        track = self._track_of(seen)
        packet = self._event(ts, self._pb.TrackEvent.TYPE_INSTANT, track.lanes[0])
        name = (seen.event.name if seen.event else f"{seen.opcode:#06x}") + note
        packet.track_event.name_iid = self._iid(packet, "event_names", name)
        self._annotate(packet, seen)
        self._put(packet)
        self.counts.instants += 1

    def _slice(self, seen: _Seen, begin: int, end: int) -> None:
        assert seen.event is not None
        lane = self._lane(self._track_of(seen), begin, end)
        packet = self._event(begin, self._pb.TrackEvent.TYPE_SLICE_BEGIN, lane)
        name = self._names.get(seen.opcode, seen.event.name)
        packet.track_event.name_iid = self._iid(packet, "event_names", name)
        self._annotate(packet, seen)
        self._put(packet)
        self._put(self._event(end, self._pb.TrackEvent.TYPE_SLICE_END, lane))
        self.counts.slices += 1

    def _annotate(self, packet: Any, seen: _Seen) -> None:
        if seen.event is None or not seen.event.fields:
            if seen.payload:
                self._note(packet, "payload").string_value = seen.payload.hex()
            return
        values = self._decoder(seen.event).values(seen.payload)
        for made, value in zip(seen.event.fields, values, strict=True):
            if value is not None:
                self._annotate_field(packet, made, value)

    def _annotate_field(self, packet: Any, made: Field, value: Any) -> None:
        note = self._note(packet, made.name)
        kind = made.type[0]
        if made.enum and value in made.enum:
            note.string_value = made.enum[value]
        elif kind == "u":
            note.uint_value = value
        elif kind == "i":
            note.int_value = value
        elif kind == "f":
            note.double_value = value
        else:
            note.string_value = value.hex() if kind == "b" else value

    def _note(self, packet: Any, name: str) -> Any:
        note = packet.track_event.debug_annotations.add()
        note.name_iid = self._iid(packet, "debug_annotation_names", name)
        return note

    def _decoder(self, event: Event) -> _Decoder:
        known = self._decoders.get(event.opcode)
        if known is None:
            known = self._decoders[event.opcode] = _Decoder(event)
        return known

    # ---- pairs ----

    def _matches(self, matches: np.ndarray[Any, Any]) -> None:
        moved = self._moved
        rows = zip(
            matches["begin_row"].tolist(),
            matches["begin_ts_ns"].tolist(),
            matches["end_ts_ns"].tolist(),
            strict=True,
        )
        for row, begin, end in rows:
            self._slice(self._waiting.pop(row), begin + moved, end + moved)

    def _uncertain(self, matches: np.ndarray[Any, Any]) -> None:
        """Begin and end with a gap, a new epoch or a clock step between: two instants."""
        assert self._catalog is not None
        for match in matches:
            begin = self._waiting.pop(int(match["begin_row"]))
            opcode = int(match["end_opcode"])
            end = _Seen(self._catalog.get(opcode), opcode, int(match["end_cpu"]), b"")
            self._instant(begin, int(match["begin_ts_ns"]) + self._moved, " (uncertain)")
            self._instant(end, int(match["end_ts_ns"]) + self._moved, " (uncertain)")
            self.counts.uncertain += 1

    def _singles(self, singles: np.ndarray[Any, Any]) -> None:
        assert self._catalog is not None
        for single in singles:
            opcode = int(single["opcode"])
            unknown = _Seen(self._catalog.get(opcode), opcode, int(single["cpu"]), b"")
            seen = self._waiting.pop(int(single["row"]), unknown)
            note = " (no begin)" if single["is_end"] else " (no end)"
            self._instant(seen, int(single["ts_ns"]) + self._moved, note)
            self.counts.unmatched += 1

    def finish(self, breaks: Iterable[SequenceBreak] = ()) -> PerfettoCounts:
        """Write what still waits, and the places where records are missing; flush."""
        if self._pairing is not None:
            self._singles(self._pairing.finish().singles)
        self._losses([one for one in breaks if one.kind is BreakKind.GAP])
        self._flush()
        return self.counts

    def _losses(self, gaps: list[SequenceBreak]) -> None:
        if not gaps:
            return
        track = self._describe("lost records")
        for gap in gaps:
            packet = self._event(gap.ts_ns + self._moved, self._pb.TrackEvent.TYPE_INSTANT, track)
            packet.track_event.name = f"{gap.lost} lost"
            for name in ("seq_before", "seq_after", "lost"):
                self._note(packet, name).uint_value = getattr(gap, name)
            self._put(packet)

# SPDX-License-Identifier: Apache-2.0
"""Packets of a Perfetto trace by the official protobuf classes, written one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from hmb_trace.errors import MissingExtraError

SEQUENCE = 1
REALTIME = 1  # BuiltinClock: the host's CLOCK_REALTIME
FIRMWARE = 128  # ids of our own begin here: one for each piece of the firmware's clock
_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_FLUSH = 1 << 20  # bytes
_LAST_MOMENT = (1 << 63) - 1  # Perfetto's times are signed


def classes() -> Any:
    """The module of the official message classes. Raises MissingExtraError."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(
            "perfetto is not installed: pip install 'hmb-trace[analysis]'"
        ) from None
    return perfetto_trace_pb2


class Packets:
    """Writes whole packets; keeps nothing but the names that have a number.

    Args:
        clock_id: of every timestamp; None: the trace's own.
    """

    def __init__(self, out: BinaryIO, clock_id: int | None = None) -> None:
        self.pb = classes()
        self._out = out
        self._clock_id = clock_id
        self._buffer = bytearray()
        self._uuids = itertools.count(1)
        self._iids: dict[tuple[str, str], int] = {}
        packet = self.new()
        packet.sequence_flags = _CLEARED
        packet.first_packet_on_sequence = True
        self.put(packet)

    def new(self) -> Any:
        """An empty packet."""
        # A cleared message keeps its arena, which only grows: a new one each time.
        packet = self.pb.TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def put(self, packet: Any) -> None:
        """Write it."""
        data = packet.SerializeToString()
        self._buffer.append(0x0A)  # Trace.packet, length-delimited
        size = len(data)
        while size >= 0x80:
            self._buffer.append(size & 0x7F | 0x80)
            size >>= 7
        self._buffer.append(size)
        self._buffer += data
        if len(self._buffer) >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Hand on what was put."""
        self._out.write(self._buffer)
        self._buffer.clear()

    def event(self, ts: int, kind: int, track: int) -> Any:
        """A track event at a moment; kind: TrackEvent.Type."""
        packet = self.new()
        packet.timestamp = min(max(ts, 0), _LAST_MOMENT)
        if self._clock_id is not None:
            packet.timestamp_clock_id = self._clock_id
        packet.sequence_flags = _NEEDS_STATE
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return packet

    def name(self, packet: Any, name: str) -> None:
        """Name the event of a packet."""
        packet.track_event.name_iid = self._iid(packet, "event_names", name)

    def note(self, packet: Any, name: str) -> Any:
        """A new argument of the event of a packet."""
        note = packet.track_event.debug_annotations.add()
        note.name_iid = self._iid(packet, "debug_annotation_names", name)
        return note

    def _iid(self, packet: Any, table: str, name: str) -> int:
        """The number that stands for a name from here on."""
        known = self._iids.get((table, name))
        if known is not None:
            return known
        iid = len(self._iids) + 1
        self._iids[table, name] = iid
        getattr(packet.interned_data, table).add(iid=iid, name=name)
        return iid

    def track(self, name: str, *, counter_unit: str | None = None) -> int:
        """Describe a track; returns its uuid."""
        uuid = next(self._uuids)
        packet = self.new()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if counter_unit is not None:
            packet.track_descriptor.counter.unit_name = counter_unit
        self.put(packet)
        return uuid

    def clocks(self, piece: int, pairs: Iterable[tuple[int, int]], *, primary: bool) -> None:
        """(firmware, host) times of one piece, so that a host's trace can be merged."""
        for firmware_ns, host_ns in pairs:
            packet = self.new()
            snapshot = packet.clock_snapshot
            snapshot.clocks.add(clock_id=FIRMWARE + piece, timestamp=firmware_ns)
            snapshot.clocks.add(clock_id=REALTIME, timestamp=host_ns)
            if primary:
                snapshot.primary_trace_clock = REALTIME
            self.put(packet)

    def metadata(self, values: Mapping[str, str | int | bool]) -> None:
        """Name and value pairs about the whole trace."""
        packet = self.new()
        for name, value in values.items():
            entry = packet.chrome_events.metadata.add(name=name)
            if isinstance(value, bool):
                entry.bool_value = value
            elif isinstance(value, int):
                entry.int_value = value
            else:
                entry.string_value = value
        self.put(packet)

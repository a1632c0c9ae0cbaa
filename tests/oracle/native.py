# SPDX-License-Identifier: Apache-2.0
"""libhmbtrace behind the oracle's interface, so that one test drives both."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from hmb_trace._core import ffi, lib
from tests.oracle.collect import COUNTERS, InvalidCursorsError, Reject
from tests.oracle.sequence import Gap
from tests.oracle.wire import M64

EVENT = struct.Struct("<IHHIIQQQQQQQQQQ")
HEAD_AT = 0x10
TAIL_AT = 0x18
FLAGS_AT = 0x20
AREA_AT = 0x40
REASONS = {
    1: "damaged",
    2: "lying-length",
    3: "unknown-flags",
    4: "marker",
    5: "overrun",
}


@dataclass(frozen=True)
class Event:
    """struct hmb_event and the bytes after it."""

    kind: int
    reason: int
    pos: int
    cursor: int
    seq: int
    a: int
    b: int
    c: int
    d: int
    data: bytes


def decode_events(raw: bytes) -> list[Event]:
    events = []
    at = 0
    while at < len(raw):
        magic, kind, reason, length, _, pos, cursor, _, _, seq, a, b, c, d, _ = EVENT.unpack_from(
            raw, at
        )
        assert magic == lib.hmb_event_magic(), f"event magic {magic:#x} at {at}"
        start = at + EVENT.size
        events.append(
            Event(kind, reason, pos, cursor, seq, a, b, c, d, raw[start : start + length])
        )
        at = start + (length + 7) // 8 * 8
    return events


class NativeConsumer:
    """One capture by hmb_collect() of a region held in this process."""

    def __init__(
        self,
        region: bytearray,
        *,
        keep_unknown_flags: bool = False,
        data_room: int = 0,
        event_room: int = 0,
    ) -> None:
        self.region = region
        self._base = ffi.from_buffer(region)
        self.ring: Any = ffi.new("struct hmb_ring *")
        refusal = ffi.new("struct hmb_refusal *")
        assert lib.hmb_ring_attach(self.ring, self._base, len(region), refusal) == 0
        self.state: Any = ffi.new("struct hmb_state *")
        if lib.hmb_state_begin(self.state, self.ring) != 0:
            raise InvalidCursorsError
        self.options = ffi.new("struct hmb_options *", {"keep_unknown_flags": keep_unknown_flags})
        self._data_room = lib.hmb_collect_min_data() + data_room
        self._event_room = lib.hmb_collect_min_events() + event_room
        self.dump = bytearray()
        self.events: list[Event] = []

    def publish(self, head: int, ring_flags: int = 0) -> None:
        """What firmware does: head and flags appear in the header."""
        struct.pack_into("<Q", self.region, HEAD_AT, head & M64)
        struct.pack_into("<I", self.region, FLAGS_AT, ring_flags)

    def collect(self) -> None:
        """Pass after pass until nothing moves, each with a fresh sink."""
        while self._pass() > 0:
            pass

    def take_the_rest(self) -> None:
        """Nothing more will come: what only waits for more is taken as it is."""
        while lib.hmb_collect_release(self.state):
            self.collect()

    def finish(self) -> None:
        sink, _, events = self._sink()
        assert lib.hmb_collect_finish(self.state, sink) == 0
        self.events += decode_events(bytes(ffi.buffer(events, sink.events_len)))

    def _sink(self) -> tuple[Any, Any, Any]:
        data = ffi.new("uint8_t[]", self._data_room)
        events = ffi.new("uint8_t[]", self._event_room)
        sink = ffi.new(
            "struct hmb_sink *",
            {
                "data": data,
                "data_cap": self._data_room,
                "events": events,
                "events_cap": self._event_room,
            },
        )
        return sink, data, events

    def _pass(self) -> int:
        sink, data, events = self._sink()
        before = self.state.tail
        taken: int = lib.hmb_collect(self.ring, self.state, self.options, sink, ffi.NULL)
        if taken < 0:
            raise OSError(-taken, "hmb_collect")
        self.dump += ffi.buffer(data, sink.data_len)
        self.events += decode_events(bytes(ffi.buffer(events, sink.events_len)))
        assert (self.state.tail - before) & M64 == taken
        if taken:
            assert lib.hmb_ring_store_tail(self.ring, before, self.state.tail) == 0
        return taken

    @property
    def tail(self) -> int:
        (tail,) = struct.unpack_from("<Q", self.region, TAIL_AT)
        return int(tail)

    def totals(self) -> dict[str, int]:
        return {name: getattr(self.state.counters, name) for name in COUNTERS}

    @property
    def rejects(self) -> list[Reject]:
        return [
            Reject(event.cursor, REASONS[event.reason], event.data)
            for event in self.events
            if event.kind == lib.HMB_EV_REJECT
        ]

    @property
    def gap_places(self) -> list[tuple[int, int]]:
        return [(e.pos, e.cursor) for e in self.events if e.kind == lib.HMB_EV_GAP]

    @property
    def gaps(self) -> list[Gap]:
        unconfirmed = lib.HMB_UNCONFIRMED
        return [
            Gap(e.a, e.b, e.c, e.d, not e.reason & unconfirmed)
            for e in self.events
            if e.kind == lib.HMB_EV_GAP
        ]

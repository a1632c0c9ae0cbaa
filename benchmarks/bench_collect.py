# SPDX-License-Identifier: Apache-2.0
"""Collect alone against memcpy of the same bytes, by ring size and record size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from measure import Sample, alternate, heading, median, ratio, row, timed

from hmb_trace import layout
from hmb_trace._core import ffi, lib

RINGS = (64 << 10, 2 << 20, 16 << 20, 64 << 20)
RECORDS = (48, 96, 0)  # 0: of mixed lengths
SPOOL = 256 << 20
BATCH = 256 << 10  # what the daemon takes in one pass


def _sizes(ring_size: int, record: int) -> np.ndarray:
    """Bytes of the records that fill a ring; `record` 0: drawn from 40 to 160."""
    if record:
        return np.full(ring_size // record, record)
    drawn = np.random.default_rng(1).integers(5, 21, ring_size // 40) * 8
    return drawn[: np.searchsorted(np.cumsum(drawn), ring_size, side="right")]


def full_ring(ring_size: int, record: int) -> np.ndarray:
    """A region whose ring is full of good records; a gap too small for one more ends the lap."""
    sizes = _sizes(ring_size, record)
    count, ends = len(sizes), np.cumsum(sizes)
    region = np.zeros(layout.RECORD_AREA_OFF + ring_size, "u1")
    head = region[: layout.RECORD_AREA_OFF].view(layout.RING_HDR_DTYPE)
    head["magic"], head["version"] = layout.RING_MAGIC, layout.ABI_VERSION
    head["ring_size"], head["record_area_off"] = ring_size, layout.RECORD_AREA_OFF
    header = np.zeros(count, layout.RECORD_HDR_DTYPE)
    header["magic"], header["seq"] = layout.RECORD_MAGIC, np.arange(count)
    header["ts_ns"], header["opcode"] = np.arange(count) * 100, np.arange(count) % 30
    header["payload_len"] = sizes - layout.RECORD_HDR_DTYPE.itemsize
    words = region[layout.RECORD_AREA_OFF :].view("<u8")
    places = ((ends - sizes) // 8)[:, None] + np.arange(4)
    words[places] = header.view("<u8").reshape(count, 4)
    head["head"] = ends[-1]
    return region


class Setup:
    """A full ring and buffers to collect it into, again and again."""

    def __init__(self, ring_size: int, record: int, room: int) -> None:
        self.region = full_ring(ring_size, record)
        self.size = int(self.region[:64].view(layout.RING_HDR_DTYPE)["head"][0])
        self.records = len(_sizes(ring_size, record))
        self.base = ffi.from_buffer("uint8_t[]", self.region)
        self.room = max(room, ring_size)
        self.out = np.ones(self.room + ring_size + int(lib.hmb_collect_min_data()), "u1")
        self.events = np.ones(1 << 20, "u1")
        self.tail = ffi.cast("uint64_t *", self.base + 24)
        self.ring, refusal = ffi.new("struct hmb_ring *"), ffi.new("struct hmb_refusal *")
        if lib.hmb_ring_attach(self.ring, self.base, len(self.region), refusal):
            raise RuntimeError("the benchmark's own ring was refused")
        self.rounds = max(1, (256 << 20) // ring_size)

    def collect(self) -> None:
        state, options = ffi.new("struct hmb_state *"), ffi.new("struct hmb_options *")
        sink = ffi.new("struct hmb_sink *")
        to = ffi.cast("uint8_t *", self.out.ctypes.data)
        sink.data_cap = BATCH + int(lib.hmb_collect_min_data())
        sink.events = ffi.cast("uint8_t *", self.events.ctypes.data)
        sink.events_cap = len(self.events)
        for number in range(self.rounds):
            self.tail[0] = 0
            start = to + number * self.size % self.room
            sink.data, sink.data_len, sink.events_len = start, 0, 0
            lib.hmb_state_begin(state, self.ring)
            before = 0
            while lib.hmb_collect(self.ring, state, options, sink, ffi.NULL) > 0:
                lib.hmb_ring_store_tail(self.ring, before, state.tail)
                before = state.tail
                sink.data, sink.data_len = start + state.pos, 0
            if state.counters.records != self.records:
                raise RuntimeError(f"collected {state.counters.records} of {self.records}")

    def copy(self) -> None:
        to = ffi.cast("uint8_t *", self.out.ctypes.data)
        for number in range(self.rounds):
            ffi.memmove(
                to + number * self.size % self.room, self.base + layout.RECORD_AREA_OFF, self.size
            )

    def ways(self) -> dict[str, Callable[[], Sample]]:
        """Both ways to move the same bytes."""
        size, records = self.size * self.rounds, self.records * self.rounds
        return {
            "collect": lambda: timed(self.collect, size, records),
            "memcpy": lambda: timed(self.copy, size, records),
        }


def _compare(ring_size: int, record: int, room: int, rounds: int) -> None:
    found = alternate(Setup(ring_size, record, room).ways(), rounds)
    mine = found["collect"]
    row(
        f"{ring_size >> 10} KiB, {f'{record} B' if record else '40..160 B'}",
        f"{median(mine, lambda x: x.rate):.2f} GB/s",
        f"{median(found['memcpy'], lambda x: x.rate):.2f} GB/s",
        f"{ratio(found, 'collect', 'memcpy'):.2f}",
        f"{median(mine, lambda x: x.records / x.seconds / 1e6):.0f}",
        f"{median(mine, lambda x: x.cpu / x.bytes * 1e9):.3f}",
    )


def run(quick: bool) -> None:
    """Print the tables."""
    for where, room in (("one buffer, in the cache with the ring", 0), ("a spool", SPOOL)):
        heading(f"collect alone into {where}, against memcpy of the same bytes (aim: >= 0.3)")
        row("ring, record", "collect", "memcpy", "ratio", "M records/s", "CPU s/GB")
        for ring_size in RINGS:
            for record in RECORDS:
                _compare(ring_size, record, room, 3 if quick else 9)

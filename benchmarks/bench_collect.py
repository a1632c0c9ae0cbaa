# SPDX-License-Identifier: Apache-2.0
"""Collect alone against memcpy of the same bytes, by ring size and record size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from measure import Sample, alternate, heading, median, ratio, row, timed

from hmb_trace import layout
from hmb_trace._core import ffi, lib

RINGS = (64 << 10, 2 << 20, 16 << 20, 64 << 20)
RECORDS = (48, 96)
BATCH = 256 << 10  # what the daemon takes in one pass


def full_ring(ring_size: int, record: int) -> np.ndarray:
    """A region whose ring is full of good records of one size; a gap of less ends the lap."""
    count = ring_size // record
    region = np.zeros(layout.RECORD_AREA_OFF + ring_size, "u1")
    head = region[: layout.RECORD_AREA_OFF].view(layout.RING_HDR_DTYPE)
    head["magic"], head["version"] = layout.RING_MAGIC, layout.ABI_VERSION
    head["ring_size"], head["record_area_off"] = ring_size, layout.RECORD_AREA_OFF
    rows = np.zeros(count, [("header", layout.RECORD_HDR_DTYPE), ("payload", f"V{record - 32}")])
    header = rows["header"]
    header["magic"], header["seq"] = layout.RECORD_MAGIC, np.arange(count)
    header["ts_ns"], header["opcode"] = np.arange(count) * 100, np.arange(count) % 30
    header["payload_len"] = record - 32
    area = region[layout.RECORD_AREA_OFF :]
    area[: count * record] = rows.view("u1")
    head["head"] = count * record
    return region


class Setup:
    """A full ring and buffers to collect it into, again and again."""

    def __init__(self, ring_size: int, record: int) -> None:
        self.region = full_ring(ring_size, record)
        self.header = self.region[:64].view(layout.RING_HDR_DTYPE)
        self.size = int(self.header["head"][0])
        self.records = self.size // record
        self.base = ffi.from_buffer("uint8_t[]", self.region)
        room = ring_size + int(lib.hmb_collect_min_data())
        self.out = np.ones(room, "u1")
        self.events = np.ones(1 << 20, "u1")
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
        for _ in range(self.rounds):
            self.header["tail"] = 0
            sink.data, sink.data_len, sink.events_len = to, 0, 0
            lib.hmb_state_begin(state, self.ring)
            before = 0
            while lib.hmb_collect(self.ring, state, options, sink, ffi.NULL) > 0:
                lib.hmb_ring_store_tail(self.ring, before, state.tail)
                before = state.tail
                sink.data, sink.data_len = to + state.pos, 0
            if state.counters.records != self.records:
                raise RuntimeError(f"collected {state.counters.records} of {self.records}")

    def copy(self) -> None:
        to = ffi.cast("uint8_t *", self.out.ctypes.data)
        for _ in range(self.rounds):
            ffi.memmove(to, self.base + layout.RECORD_AREA_OFF, self.size)

    def ways(self) -> dict[str, Callable[[], Sample]]:
        """Both ways to move the same bytes."""
        size, records = self.size * self.rounds, self.records * self.rounds
        return {
            "collect": lambda: timed(self.collect, size, records),
            "memcpy": lambda: timed(self.copy, size, records),
        }


def run(quick: bool) -> None:
    """Print the table."""
    heading("collect alone, against memcpy of the same bytes (aim: ratio >= 0.3)")
    row("ring, record", "collect", "memcpy", "ratio", "M records/s", "CPU s/GB")
    for ring_size in RINGS:
        for record in RECORDS:
            s = Setup(ring_size, record)
            found = alternate(s.ways(), 3 if quick else 9)
            mine = found["collect"]
            row(
                f"{ring_size >> 10} KiB, {record} B",
                f"{median(mine, lambda x: x.rate):.2f} GB/s",
                f"{median(found['memcpy'], lambda x: x.rate):.2f} GB/s",
                f"{ratio(found, 'collect', 'memcpy'):.2f}",
                f"{median(mine, lambda x: x.records / x.seconds / 1e6):.0f}",
                f"{median(mine, lambda x: x.cpu / x.bytes * 1e9):.3f}",
            )

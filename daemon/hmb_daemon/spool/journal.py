# SPDX-License-Identifier: Apache-2.0
"""The journal's events and the collector's counters, as bytes (libhmbtrace/api/journal.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from hmb_trace._core import ffi, lib

HEADER = struct.Struct("<IHHII10Q")
MAGIC: int = lib.hmb_event_magic()
COUNTER_NAMES: tuple[str, ...] = tuple(name for name, _ in ffi.typeof("struct hmb_counters").fields)
COUNTERS = struct.Struct(f"<{len(COUNTER_NAMES)}Q")
NO_COUNTERS = bytes(COUNTERS.size)

# Stable ids, as they appear in the log and in the sidecar.
IDS: dict[int, str] = {
    lib.HMB_EV_INDEX: "index",
    lib.HMB_EV_GAP: "gap",
    lib.HMB_EV_DUPLICATE: "duplicate",
    lib.HMB_EV_SEQ_RESET: "sequence-reset",
    lib.HMB_EV_REJECT: "reject",
    lib.HMB_EV_OVERFLOW: "overflow-begin",
    lib.HMB_EV_OVERFLOW_END: "overflow-end",
    lib.HMB_EV_LOSS_BEFORE: "loss-before-attach",
    lib.HMB_EV_LOSS_UNKNOWN: "loss-unknown",
    lib.HMB_EV_OVERRUN: "overrun",
    lib.HMB_EV_FROZEN: "frozen",
    lib.HMB_EV_UNFROZEN: "unfrozen",
    lib.HMB_EV_EPOCH: "epoch",
    lib.HMB_EV_UNKNOWN_RING_FLAGS: "unknown-ring-flags",
    lib.HMB_EV_RESERVED_SET: "reserved-set",
    lib.HMB_EV_CLOCK: "clock",
    lib.HMB_EV_STATE: "state",
    lib.HMB_EV_SEQ_GLITCH: "seq-glitch",
    lib.HMB_EV_CLOCK_STEP: "clock-step",
}

# What the four values of an event mean, by kind; the rest carries none.
VALUE_NAMES: dict[int, tuple[str, ...]] = {
    lib.HMB_EV_GAP: ("seq_before", "seq_after", "lost", "rejected"),
    lib.HMB_EV_DUPLICATE: ("seq",),
    lib.HMB_EV_SEQ_RESET: ("seq_before", "seq_after"),
    lib.HMB_EV_OVERFLOW: ("last_seq_before", "have_seq"),
    lib.HMB_EV_OVERFLOW_END: ("last_seq_before", "first_seq_after", "lost"),
    lib.HMB_EV_LOSS_UNKNOWN: ("old_tail", "new_tail"),
    lib.HMB_EV_OVERRUN: ("head", "records"),
    lib.HMB_EV_FROZEN: ("head",),
    lib.HMB_EV_UNFROZEN: ("head",),
    lib.HMB_EV_EPOCH: ("tail", "head", "previous_tail"),
    lib.HMB_EV_UNKNOWN_RING_FLAGS: ("bits",),
    lib.HMB_EV_RESERVED_SET: ("field", "value"),
    lib.HMB_EV_STATE: ("state", "cause"),
    lib.HMB_EV_SEQ_GLITCH: ("seq_before", "seq"),
    lib.HMB_EV_CLOCK_STEP: ("ts_before", "reserved", "step_ns", "error_ns"),
}
_SIGNED = frozenset({"step_ns"})  # a clock may step back


def signed(value: int) -> int:
    """A 64-bit value of an event that stands for a number below zero too."""
    return value - (1 << 64) if value >> 63 else value


class Event(NamedTuple):
    """One event; `start` and `end` are journal positions, `pos` a dump stream position."""

    start: int
    end: int
    kind: int
    reason: int
    epoch: int
    pos: int
    cursor: int
    host_ns: int
    ts_ns: int
    seq: int
    values: tuple[int, int, int, int]
    body: bytes

    @property
    def id(self) -> str:
        """The stable id of its kind."""
        return IDS.get(self.kind, f"event-{self.kind}")

    @property
    def detail(self) -> dict[str, int | str]:
        """Its values by name."""
        named = dict(zip(VALUE_NAMES.get(self.kind, ()), self.values, strict=False))
        return {name: signed(v) if name in _SIGNED else v for name, v in named.items()}


class TornEventError(Exception):
    """The bytes are no event, or end inside one."""


def parse(buffer: bytes | memoryview, start: int = 0) -> Iterator[Event]:
    """The events in a buffer; `start` is the journal position of its first byte.

    Raises:
        TornEventError: after the whole events before it.
    """
    offset = 0
    while offset < len(buffer):
        if offset + HEADER.size > len(buffer):
            raise TornEventError(f"event header ends early at byte {offset}")
        magic, kind, reason, length, epoch, *rest = HEADER.unpack_from(buffer, offset)
        body = offset + HEADER.size
        end = body + length + -length % 8
        if magic != MAGIC or end > len(buffer):
            raise TornEventError(f"no whole event at byte {offset}")
        pos, cursor, host_ns, ts_ns, seq, a, b, c, d, _ = rest
        data = bytes(buffer[body : body + length])
        values = (a, b, c, d)
        yield Event(
            start + offset, start + end, kind, reason, epoch, pos, cursor, host_ns, ts_ns, seq,
            values, data,
        )  # fmt: skip
        offset = end


def counters_bytes(counters: Any) -> bytes:
    """A struct hmb_counters as 8-byte little-endian numbers."""
    return bytes(ffi.buffer(ffi.addressof(counters)))


def counters_delta(now: bytes, base: bytes) -> dict[str, int]:
    """What was counted between two snapshots of the counters."""
    pairs = zip(COUNTERS.unpack(now), COUNTERS.unpack(base), strict=True)
    return {
        name: after - before for name, (after, before) in zip(COUNTER_NAMES, pairs, strict=True)
    }

# SPDX-License-Identifier: Apache-2.0
"""A catalog as the tables that C works with: one rule for each opcode."""

from __future__ import annotations

import secrets
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import DURATION_UNITS, PCCX_TYPES, Catalog, Event

_KINDS = {
    "complete": lib.HMB_RULE_COMPLETE,
    "begin": lib.HMB_RULE_BEGIN,
    "end": lib.HMB_RULE_END,
}
_NS_PER_US = 1000
_LENGTH = struct.Struct("<Q")


def _string(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _bincode_text(event_type: str, api_name: str | None) -> bytes:
    """event_type and api_name as bincode has them, ready to copy."""
    return _string(event_type) + (b"\0" if api_name is None else b"\1" + _string(api_name))


def _cycles_ratio(unit: str, clock_mhz: int) -> tuple[int, int]:
    """(mul, div): cycles = value * mul / div."""
    nanoseconds = DURATION_UNITS[unit]
    if not nanoseconds:
        return 1, 1
    if nanoseconds < _NS_PER_US:
        return clock_mhz, _NS_PER_US
    return clock_mhz * (nanoseconds // _NS_PER_US), 1


def duration_ratio(unit: str, clock_mhz: int) -> tuple[int, int]:
    """(mul, div): nanoseconds = value * mul / div."""
    return (DURATION_UNITS[unit], 1) if DURATION_UNITS[unit] else (_NS_PER_US, clock_mhz)


class Rules:
    """struct hmb_rules, and the memory that it points to.

    Args:
        catalog: None knows no opcode: every record is an instant UNKNOWN.
        clock_mhz: for durations in cycles.
        api_names: bincode events carry the catalog's event name as api_name.
    """

    def __init__(
        self, catalog: Catalog | None, clock_mhz: int = _NS_PER_US, *, api_names: bool = False
    ) -> None:
        events = list(catalog) if catalog else []
        self._clock_mhz = clock_mhz
        self._index = np.zeros(1 << 16, np.uint32)
        self._rules = ffi.new("struct hmb_rule[]", len(events) + 1)
        self._texts = bytearray()
        self._pairs: dict[str, int] = {}
        self._set_text(self._rules[0], "UNKNOWN", None)
        for number, event in enumerate(events, 1):
            self._index[event.opcode] = number
            self._fill(self._rules[number], event)
            self._set_text(self._rules[number], event.pccx, event.name if api_names else None)
        self._text_memory = ffi.from_buffer(self._texts)
        self.c = ffi.new(
            "struct hmb_rules *",
            {
                "index": ffi.cast("uint32_t *", self._index.ctypes.data),
                "rules": self._rules,
                "texts": ffi.cast("uint8_t *", self._text_memory),
            },
        )
        self.longest_event = 20 + max(int(rule.text_length) for rule in self._rules)

    def _set_text(self, rule: Any, event_type: str, api_name: str | None) -> None:
        text = _bincode_text(event_type, api_name)
        rule.text_offset, rule.text_length = len(self._texts), len(text)
        self._texts += text

    def _fill(self, rule: Any, event: Event) -> None:
        rule.kind = _KINDS.get(event.kind, lib.HMB_RULE_INSTANT)
        rule.event_type = PCCX_TYPES.index(event.pccx)
        rule.pair = self._pair_number(event)
        rule.cycles_mul, rule.cycles_div = _cycles_ratio(event.duration_unit, self._clock_mhz)
        rule.ns_mul, rule.ns_div = duration_ratio(event.duration_unit, self._clock_mhz)
        if event.key != "cpu":
            self._place(rule.key, event, event.key)
        if event.duration:
            self._place(rule.duration, event, event.duration)

    def _pair_number(self, event: Event) -> int:
        """Begin and end share it; one without a partner has its own and never matches."""
        first = event.name if event.kind == "begin" or not event.pair else event.pair
        return self._pairs.setdefault(first, len(self._pairs))

    @staticmethod
    def _place(to: Any, event: Event, name: str) -> None:
        field = event.field(name)
        if field is not None:
            to.offset, to.size, to.is_signed = field.offset, field.size, field.is_signed


class OpenTable:
    """struct hmb_open_table: begins that wait for their ends, bounded.

    When it is full to the limit, the older half gives up waiting (see make_room).
    """

    _DTYPE = np.dtype(
        [
            ("key", "<u8"),
            ("ts_ns", "<u8"),
            ("ref", "<u8"),
            ("pair", "<u4"),
            ("opcode", "<u2"),
            ("cpu", "u1"),
            ("reserved", "u1"),
            ("piece", "<u8"),
        ]
    )

    def __init__(self, size: int = 1 << 12, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._slots = np.zeros(size, self._DTYPE)
        self.c = ffi.new("struct hmb_open_table *")
        self.c.seed = secrets.randbits(64)
        self._point(self.c, self._slots)

    @staticmethod
    def _point(table: Any, slots: NDArray[np.void]) -> None:
        table.slots = ffi.cast("struct hmb_open *", slots.ctypes.data)
        table.size, table.used = len(slots), 0

    def waiting(self) -> NDArray[np.void]:
        """The begins without an end so far, oldest first."""
        found: NDArray[np.void] = self._slots[self._slots["pair"] != 0]
        found.sort(order="ref")
        return found

    def make_room(self, table: Any | None = None) -> NDArray[np.void]:
        """Grow; at the limit drop the older half instead and return it.

        Args:
            table: the struct in use, where C keeps a copy of it.
        """
        table = self.c if table is None else table
        waiting = self.waiting()
        grow = len(self._slots) < self._limit
        dropped = waiting[: 0 if grow else len(waiting) // 2]
        least = int(waiting["ref"][len(dropped)])
        slots = np.zeros(len(self._slots) * (2 if grow else 1), self._DTYPE)
        old = ffi.new("struct hmb_open_table *", {"slots": table.slots, "size": table.size})
        self._point(table, slots)
        lib.hmb_open_rehash(old, table, least)
        self._slots = slots
        return dropped

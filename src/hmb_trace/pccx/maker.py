# SPDX-License-Identifier: Apache-2.0
"""Dump records to the events of flatbuf and bincode payloads (SPEC P6), streaming.

A begin's event is written where the begin stands; when its end comes, the duration is put
there. So events keep the order of the records, and memory does not grow with a dump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.walker import NO_CUTS
from hmb_trace.errors import InvalidDataError
from hmb_trace.pccx.events import BINCODE_HEAD, EVENT_DTYPE
from hmb_trace.pccx.output import PayloadWriter
from hmb_trace.pccx.rules import OpenTable, Rules
from hmb_trace.pccx.sorting import event_pointer, is_sorted

_OUT_EVENTS = 1 << 19  # in memory
_PATCHES = 1 << 16
_PATCH_DTYPE = np.dtype([("position", "<u8"), ("duration", "<u8")])
_ENCODINGS = {"flatbuf": lib.HMB_ENCODING_FLATBUF, "bincode": lib.HMB_ENCODING_BINCODE}


@dataclass(frozen=True)
class MakerCounts:
    """What became of the records. Every record is an event, or the end of a pair."""

    records: int
    events: int
    pairs: int
    unmatched_begins: int
    unmatched_ends: int
    uncertain: int
    short_payloads: int
    saturated: int
    invalid: int

    def warnings(self) -> list[str]:
        """What a user must know, one line each."""
        texts = {
            "unmatched_begins": "begins without an end are kept with duration 0",
            "unmatched_ends": "ends without a begin are kept with duration 0",
            "short_payloads": "payloads are too short for the field that the catalog names",
            "uncertain": "ends have their begin before a gap, a new epoch or a clock step: "
            "both are kept with duration 0",
            "saturated": "times beyond 64 bits of cycles were cut to the limit",
            "invalid": "durations are none (negative, all ones, too large): kept as 0",
        }
        return [f"{getattr(self, k)} {text}" for k, text in texts.items() if getattr(self, k)]


class EventMaker:
    """Turns dump bytes into events and appends them to a payload.

    Args:
        writer: takes the payload; must be empty.
        encoding: flatbuf or bincode.
        catalog: None makes every record an UNKNOWN event.
        clock_mhz: start_cycle = ts_ns * clock_mhz / 1000, exact.
        api_names: bincode events carry the catalog's event name as api_name.

    Attributes:
        sorted: flatbuf: whether what was written is in order of start_cycle. A quarter of the
            buffer is held back, so only events that come later than that spoil it.
    """

    def __init__(
        self,
        writer: PayloadWriter,
        encoding: str,
        catalog: Catalog | None,
        clock_mhz: int,
        *,
        api_names: bool = False,
    ) -> None:
        self._writer = writer
        self._bincode = encoding == "bincode"
        self._rules = Rules(catalog, clock_mhz, api_names=api_names)
        self._open = OpenTable()
        self._out = np.empty(_OUT_EVENTS * EVENT_DTYPE.itemsize, np.uint8)
        self._carry = 0 if self._bincode else _OUT_EVENTS // 4 * EVENT_DTYPE.itemsize
        self._patches = np.empty(_PATCHES, _PATCH_DTYPE)
        self._step = self._new_step()
        self._written_to = 0
        self.sorted = True
        self.c = ffi.new("struct hmb_event_maker *")
        self.c.rules, self.c.open = self._rules.c[0], self._open.c[0]
        self.c.clock_mhz, self.c.encoding = clock_mhz, _ENCODINGS[encoding]
        self._given_up = 0
        if self._bincode:
            writer.write(BINCODE_HEAD.pack(0, 0))
            self.c.position = BINCODE_HEAD.size

    def feed(self, data: memoryview, cuts: NDArray[np.uint64] = NO_CUTS) -> None:
        """Take whole records.

        Args:
            cuts: where in data a new piece begins: no pair reaches over it.

        Raises:
            InvalidDataError: they are not.
        """
        step = self._step
        step.input = ffi.cast("uint8_t *", ffi.from_buffer(data))
        step.input_len, step.consumed = len(data), 0
        cuts = np.ascontiguousarray(cuts, "<u8")
        step.cuts, step.cuts_len = ffi.cast("uint64_t *", cuts.ctypes.data), len(cuts)
        step.cuts_done = 0
        while True:
            end = lib.hmb_make_events(self.c, step)
            if end == lib.HMB_STEP_TABLE:
                self._given_up += len(self._open.make_room(ffi.addressof(self.c, "open")))
                continue
            self._apply_patches()
            if end != lib.HMB_STEP_OUTPUT:
                break
            if step.out_cap - step.out_len < self._rules.longest_event:
                self._flush(self._carry)
        if step.consumed != len(data):
            raise InvalidDataError(f"no whole record at byte {step.consumed} of a batch")

    def _new_step(self) -> Any:
        step = ffi.new("struct hmb_step *")
        step.out, step.out_cap = ffi.cast("uint8_t *", self._out.ctypes.data), len(self._out)
        step.patches = ffi.cast("struct hmb_patch *", self._patches.ctypes.data)
        step.patches_cap = len(self._patches)
        return step

    def _apply_patches(self) -> None:
        """Durations of events that have left the buffer."""
        for position, duration in self._patches[: self._step.patches_len].tolist():
            self._writer.patch(position, duration.to_bytes(8, "little"))
        self._step.patches_len = 0

    def _flush(self, keep: int) -> None:
        """Write what the buffer holds, all but the last `keep` bytes."""
        filled = int(self._step.out_len)
        if not self._bincode:
            self._settle(filled)
        done = max(0, filled - keep)
        if done:
            self._writer.write(self._out[:done])
        self._out[: filled - done] = self._out[done:filled].copy()
        self._step.out_len = filled - done

    def _settle(self, filled: int) -> None:
        """Sort the buffer. What is kept lets later events that start earlier find their place."""
        events = self._out[:filled].view(EVENT_DTYPE)
        if len(events) == 0:
            return
        if not is_sorted(events):
            opened = ffi.addressof(self.c, "open")
            scratch = np.empty(len(events) // 2 + 1, EVENT_DTYPE)
            places = ffi.new("struct hmb_place[]", int(opened.used) + 1)
            base = self.c.position - filled
            lib.hmb_events_settle(
                opened, base, event_pointer(events), len(events), event_pointer(scratch), places
            )
        starts = events["start_cycle"]
        self.sorted &= int(starts[0]) >= self._written_to
        last = max(0, len(events) - self._carry // EVENT_DTYPE.itemsize - 1)
        self._written_to = max(self._written_to, int(starts[last]))

    def finish(self) -> MakerCounts:
        """No more records: fill in bincode's head, count the begins that still wait."""
        self._flush(0)
        if self._bincode:
            self._writer.patch(0, BINCODE_HEAD.pack(self.c.cycles, self.c.events))
        waiting = self._given_up + int(self.c.open.used)
        return MakerCounts(
            records=self.c.records,
            events=self.c.events,
            pairs=self.c.pairs,
            unmatched_begins=self.c.unmatched_begins + waiting,
            unmatched_ends=self.c.unmatched_ends,
            uncertain=self.c.uncertain,
            short_payloads=self.c.short_payloads,
            saturated=self.c.saturated,
            invalid=self.c.invalid,
        )

# SPDX-License-Identifier: Apache-2.0
"""Events in order of start_cycle, whatever their number: sorted runs on disk, then one merge.

Traces are nearly sorted, so runs hardly overlap and the merge is mostly a copy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hmb_trace._core import ffi, lib
from hmb_trace.fnv import as_bytes
from hmb_trace.pccx.events import EVENT_DTYPE, EventArray
from hmb_trace.pccx.output import write_all

RUN_EVENTS = 1 << 20
_MERGE_EVENTS = 1 << 21  # in memory, shared by all runs
_MERGE_LEAST = 1 << 10  # of one run
_OUT_EVENTS = 1 << 17


def event_pointer(events: EventArray) -> Any:
    """The events for C; the array must outlive it."""
    return ffi.cast("struct hmb_flat_event *", events.ctypes.data)


def is_sorted(events: EventArray) -> bool:
    """Whether no event starts before its predecessor."""
    return bool(lib.hmb_events_sorted(event_pointer(events), len(events)) == len(events))


def sort_in_place(events: EventArray, scratch: EventArray) -> None:
    """Sort by start_cycle; events that start together keep their order.

    Args:
        events: contiguous and writable.
        scratch: room for half of them.
    """
    if not is_sorted(events):
        lib.hmb_events_sort(event_pointer(events), len(events), event_pointer(scratch))


def _read_events(stream: BinaryIO, into: EventArray) -> None:
    view = as_bytes(into)
    while view:
        got = stream.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise EOFError("events end early")
        view = view[got:]


def _write_runs(stream: BinaryIO, count: int, scratch: BinaryIO, run: int) -> None:
    buffer = np.empty(min(run, count), EVENT_DTYPE)
    room = np.empty(len(buffer) // 2 + 1, EVENT_DTYPE)
    for start in range(0, count, run):
        events = buffer[: min(run, count - start)]
        _read_events(stream, events)
        sort_in_place(events, room)
        write_all(scratch, events)


class _Run:
    """One sorted run in the scratch file, and the part of it that is in memory."""

    def __init__(self, start: int, count: int, room: int, c: Any) -> None:
        self._at = start * EVENT_DTYPE.itemsize
        self._buffer = np.empty(min(room, count), EVENT_DTYPE)
        self._c = c
        c.more = count

    def refill(self, scratch: BinaryIO) -> None:
        events = self._buffer[: min(len(self._buffer), self._c.more)]
        scratch.seek(self._at)
        _read_events(scratch, events)
        self._at += events.nbytes
        self._c.more -= len(events)
        self._c.next = event_pointer(events)
        self._c.end = self._c.next + len(events)


def _merge(scratch: BinaryIO, count: int, run: int) -> Iterator[EventArray]:
    total = -(-count // run)
    room = max(_MERGE_LEAST, _MERGE_EVENTS // total)
    c_runs, order = ffi.new("struct hmb_run[]", total), ffi.new("uint64_t[]", total)
    runs = [_Run(i * run, min(run, count - i * run), room, c_runs[i]) for i in range(total)]
    for one in runs:
        one.refill(scratch)
    out, refill = np.empty(min(_OUT_EVENTS, count), EVENT_DTYPE), ffi.new("uint64_t *")
    done = 0
    while done < count:
        made = lib.hmb_events_merge(c_runs, total, order, event_pointer(out), len(out), refill)
        if made:
            yield out[:made]
        done += made
        if refill[0] < total:
            runs[refill[0]].refill(scratch)


def sorted_events(
    stream: BinaryIO, count: int, directory: Path | None, *, run: int | None = None
) -> Iterator[EventArray]:
    """Read events from a stream and yield them sorted by start_cycle, in bounded memory.

    The stream has been read to its last event before the first array comes out: its file
    may be overwritten from then on. Arrays are reused: take what you need before the next.

    Args:
        stream: at the first event.
        count: events to read.
        directory: for the scratch file; None: the system's.
        run: events sorted in memory at once; None: RUN_EVENTS.
    """
    run = RUN_EVENTS if run is None else run
    if count <= run:
        events = np.empty(count, EVENT_DTYPE)
        _read_events(stream, events)
        sort_in_place(events, np.empty(count // 2 + 1, EVENT_DTYPE))
        yield events
        return
    with tempfile.TemporaryFile(dir=directory, prefix=".hmb-trace-sort-") as scratch:
        _write_runs(stream, count, scratch, run)
        yield from _merge(scratch, count, run)

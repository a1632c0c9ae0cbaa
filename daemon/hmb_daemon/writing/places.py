# SPDX-License-Identifier: Apache-2.0
"""The places between the writer's commit and what was collected, in order."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import overload

from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import counters_in
from hmb_daemon.spool.journal import Event
from hmb_daemon.writing.planner import Plan
from hmb_trace._core import lib

# Without records, these alone are worth a segment; the others wait for the next one.
EVENTS_WORTH_A_SEGMENT = frozenset(
    {
        lib.HMB_EV_GAP,
        lib.HMB_EV_REJECT,
        lib.HMB_EV_OVERFLOW,
        lib.HMB_EV_OVERFLOW_END,
        lib.HMB_EV_LOSS_BEFORE,
        lib.HMB_EV_LOSS_UNKNOWN,
        lib.HMB_EV_OVERRUN,
    }
)
NOTES_WORTH_A_SEGMENT = frozenset(
    {Note.SEGMENT_VANISHED, Note.SPOOL_SET_ASIDE, Note.DISK_FULL_DELETED, Note.SPOOL_VANISHED}
)


class Places(Sequence[Plan]):
    """Index marks, epochs, and the ends of what was collected at a time."""

    def __init__(self) -> None:
        self._marks: deque[Plan] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Plan]: ...

    def __getitem__(self, index: int | slice) -> Plan | Sequence[Plan]:
        return list(self._marks)[index] if isinstance(index, slice) else self._marks[index]

    def __iter__(self) -> Iterator[Plan]:
        return iter(self._marks)

    def add_event(self, event: Event) -> None:
        """An event that carries counters is a place; an epoch also ends a segment."""
        if event.kind in (lib.HMB_EV_INDEX, lib.HMB_EV_EPOCH) and event.body:
            cause = Cause.REINITIALISED if event.kind == lib.HMB_EV_EPOCH else None
            mark = Plan(event.pos, event.start, counters_in(event.body), event.epoch, cause)
            self._marks.append(mark)

    def add_end(self, plan: Plan) -> None:
        """All that was collected by a moment ends at a place."""
        if not self._marks or self._marks[-1].key < plan.key:
            self._marks.append(plan._replace(cause=None))

    def pop_reached(self, pos: int, plan: Plan) -> Plan | None:
        """Drop the places at or before `pos`, inside the plan; the last. An epoch's mark stays."""
        reached = None
        while self._marks:
            mark = self._marks[0]
            inside = mark.key < plan.key or (mark.cause is None and mark.key == plan.key)
            if mark.pos > pos or not inside:
                break
            reached = self._marks.popleft()
        return reached

    def last_before(self, end: int) -> Plan | None:
        """The last place at or before a position, before an epoch."""
        places = itertools.takewhile(lambda m: m.cause is None and m.pos <= end, self._marks)
        return max(places, key=lambda mark: mark.key, default=None)

    def drop_through(self, plan: Plan) -> None:
        """Drop what lies at or before a place."""
        while self._marks and self._marks[0].key <= plan.key:
            self._marks.popleft()

    def drop_before(self, journal: int) -> None:
        """Drop what lies before a journal position."""
        while self._marks and self._marks[0].journal < journal:
            self._marks.popleft()

    def pop_epoch_at(self, journal: int) -> int | None:
        """The epoch that begins at a journal position, if one does."""
        if not self._marks or self._marks[0].journal != journal or self._marks[0].cause is None:
            return None
        return self._marks.popleft().epoch

    def pop_older(self, snapshot: Plan, keep: int, journal_keep: int) -> Plan | None:
        """Drop places until the rest lies within so many bytes; the last that was dropped."""
        cut = None
        while self._marks and (
            snapshot.pos - self._marks[0].pos > keep
            or snapshot.journal - self._marks[0].journal > journal_keep
        ):
            cut = self._marks.popleft()
        return cut

    def clear(self) -> None:
        """Forget all of them: what lies beyond the commit is looked at again."""
        self._marks.clear()

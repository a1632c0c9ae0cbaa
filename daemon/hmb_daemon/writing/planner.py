# SPDX-License-Identifier: Apache-2.0
"""Places in the stream up to which files may be brought, and where segments may be cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hmb_daemon.spool.causes import Cause
from hmb_daemon.spool.file import WriterState


class Plan(NamedTuple):
    """A place where data, journal and counters belong together; a cause cuts there."""

    pos: int
    journal: int
    counters: bytes
    epoch: int
    cause: Cause | None = None


def size_cut(state: WriterState, taken: int, marks: Iterable[Plan], limit: int, end: Plan) -> Plan:
    """The last place before the limit; a single record beyond it stays whole.

    Never before what is in the file already (`taken`): after a restart with a smaller limit
    the segment ends at the next place there is.
    """
    floor = max(taken, state.segment_pos + 1)
    places = [mark for mark in marks if floor <= mark.pos <= end.pos]
    if state.planned >= floor:
        here = Plan(state.planned, state.journal_tail, state.planned_counters, state.epoch)
        places.insert(0, here)
    inside = [place for place in places if place.pos <= limit]
    cut = inside[-1] if inside else next(iter(places), end)
    return cut._replace(cause=Cause.ROTATE_SIZE)

# SPDX-License-Identifier: Apache-2.0
"""What the writer does next, as pure functions of where it stands and what was collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hmb_daemon.spool.causes import Cause


class Plan(NamedTuple):
    """A place where data, journal and counters belong together; a cause cuts there."""

    pos: int  # of the dump stream
    journal: int
    counters: bytes
    epoch: int
    cause: Cause | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Orders places."""
        return self.journal, self.pos


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the writer stands."""

    here: Plan  # the last place that is in the files as a whole
    segment_pos: int  # where the open segment begins
    taken: int  # stream position that was taken from the spool
    bytes_beside: int  # of event log and rejects


@dataclass(frozen=True, slots=True)
class Wish:
    """What may end a segment."""

    rotate_size: int = 0
    requested: Cause | None = None
    interval_over: bool = False
    break_waits: bool = False  # R12: the next record says what the last one's break is worth


def next_plan(
    marks: Sequence[Plan], snapshot: Plan, standing: Standing, wish: Wish, *, whole: bool = False
) -> Plan:
    """Up to where the files are brought, and whether the segment ends there.

    Args:
        marks: places between the last one and the snapshot, in order.
        snapshot: all that is collected.
        whole: one file or a stream, which nothing cuts.
    """
    if whole:
        return snapshot._replace(cause=wish.requested)
    end = next((mark for mark in marks if mark.cause is not None), snapshot)
    if wish.rotate_size and weight(standing, end) > wish.rotate_size:
        cut = size_cut(marks, end, standing, wish.rotate_size)
        if cut is not None:
            return cut
    if end.cause is None and wish.requested is not None:
        return end._replace(cause=wish.requested)
    # What tells a break comes after its place: in the next file it would point before it.
    if end.cause is None and wish.interval_over and not wish.break_waits:
        return end._replace(cause=Cause.ROTATE_TIME)
    return end


def weight(standing: Standing, place: Plan) -> int:
    """About how many bytes the segment's files have once it ends at a place.

    A journal event becomes an entry of the event log, and what it holds one of the rejects.
    """
    log = standing.bytes_beside + place.journal - standing.here.journal
    return place.pos - standing.segment_pos + log


def size_cut(marks: Sequence[Plan], end: Plan, standing: Standing, limit: int) -> Plan | None:
    """The last place before the limit; a single record beyond it stays whole.

    Never before what is in the file already: after a restart with a smaller limit the segment
    ends at the next place there is.  None: the limit is below what one place brings.
    """
    inside: Plan | None = None
    for place in (standing.here, *marks, end):
        if place.pos < standing.taken or place.key > end.key or not _moves(standing, place):
            continue
        if weight(standing, place) > limit:
            cut = inside or place
            return cut._replace(cause=Cause.ROTATE_SIZE)
        inside = place
    return None


def _moves(standing: Standing, place: Plan) -> bool:
    """Whether a segment that ends there would hold anything."""
    return (
        place.pos > standing.segment_pos
        or place.journal > standing.here.journal
        or (place.key == standing.here.key and standing.bytes_beside > 0)
    )

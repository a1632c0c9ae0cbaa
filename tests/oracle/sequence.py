# SPDX-License-Identifier: Apache-2.0
"""Sequence accounting, the same for the collector and for readers of dumps (R12, R3.4, rule 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.oracle.wire import HEADER, M32

HALF = 1 << 31
Place = tuple[int, int]


def ahead(before: int, after: int) -> bool:
    """Is `after` further on than `before`, by less than half of all numbers?"""
    return 1 <= (after - before) & M32 < HALF


@dataclass(frozen=True)
class Gap:
    """Missing records between two sequence numbers."""

    seq_before: int
    seq_after: int
    lost: int
    rejected: int
    confirmed: bool = True


@dataclass
class Break:
    """A record A whose seq does not follow from the record P before it; B will tell why."""

    before: int  # P
    seq: int  # A
    place: Place  # of A: dump offset, cursor
    markers: list[int]  # between P and A
    rejected: int  # records that the bytes rejected between P and A may have held
    in_episode: bool  # R5: an overflow episode was open at A
    told: bool = False  # accounted for although B had not come

    @property
    def is_explained(self) -> bool:
        """What is missing before A may lie in the rejects before A."""
        return ahead(self.before, self.seq) and (
            missing(self.before, self.markers, self.seq) <= self.rejected
        )


def missing(last: int, markers: list[int], seq: int) -> int:
    """Records between two records: all numbers, less those that markers consumed (R3.4)."""
    forward = []  # markers that go forward from the record, one after the other
    at = last
    for marker in markers:
        if ahead(at, marker) and (marker - last) & M32 < HALF:
            forward.append(marker)
            at = marker
    between = (seq - last - 1) & M32
    if (at - last) & M32 > (seq - last) & M32:
        return between  # they lead past the record: not to be believed
    return between - sum(marker != seq for marker in forward)


@dataclass
class Sequence:
    """Feeds on the seq of every record and marker, in order.

    `known_rejects`: bytes that the rejects of a dump hold, for readers that do not know where.
    """

    known_rejects: int = 0
    last: int | None = None  # of the last record
    markers: list[int] = field(default_factory=list)  # seqs of the markers since then
    gaps: list[Gap] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)  # of the records after the gaps
    lost: int = 0
    duplicates: int = 0
    resets: int = 0
    glitches: int = 0
    rejected_bytes: int = 0  # damage since the last good record
    rejected: int = 0  # missing in seq, but in the rejects
    pending: Break | None = None
    episode_is_open: Callable[[], bool] = lambda: False
    on_loss_in_episode: Callable[[Gap], None] = lambda _gap: None

    def record(self, seq: int, place: Place = (0, 0)) -> None:
        """Account for a record."""
        question, self.pending = self.pending, None
        if question is not None and self._is_glitch(question, seq):
            self._glitch(question, seq, place)
        else:
            if question is not None and not question.told:
                self._tell(question, confirmed=not self._fits(question, seq))
            self._compare(seq, place)
        self.last = seq
        self.markers = []
        self.rejected_bytes = 0

    def marker(self, seq: int) -> None:
        """A marker: what its seq means shows with the next record."""
        self.markers.append(seq)

    def settle(self) -> None:
        """Nothing more comes, or not in time: the break stands, unconfirmed."""
        if self.pending is not None and not self.pending.told:
            self._tell(self.pending, confirmed=False)
            self.pending.told = True

    @property
    def measured_from(self) -> int | None:
        """The last seq that is beyond doubt (R9)."""
        return self.last if self.pending is None else self.pending.before

    @property
    def waits(self) -> bool:
        """Is there a break that nobody has accounted for yet?"""
        return self.pending is not None and not self.pending.told

    def _compare(self, seq: int, place: Place) -> None:
        last = self.last
        if last is None or (ahead(last, seq) and missing(last, self.markers, seq) == 0):
            return
        self.pending = Break(
            *(last, seq, place, self.markers),
            rejected=self.rejected_bytes // HEADER,
            in_episode=self.episode_is_open(),
        )

    def _beyond(self, question: Break, seq: int) -> int | None:
        """Numbers missing between P and B if A took one of them; None: A cannot have."""
        if not ahead(question.before, seq):
            return None
        count = missing(question.before, question.markers + self.markers, seq) - 1
        return count if count >= 0 else None

    def _fits(self, question: Break, seq: int) -> bool:
        """B is where P leads to, if A is one of the records between."""
        beyond = self._beyond(question, seq)
        room = self.rejected_bytes // HEADER
        if not question.is_explained:
            room += question.rejected
        if beyond is None or beyond <= room:
            return beyond is not None
        between = (question.seq - question.before) & M32 < (seq - question.before) & M32
        return not between and beyond <= self.known_rejects // HEADER

    def _is_glitch(self, question: Break, seq: int) -> bool:
        """B follows from P, and does not follow from A: A's seq alone is wrong."""
        follows = ahead(question.seq, seq) and (
            missing(question.seq, self.markers, seq) <= self.rejected_bytes // HEADER
        )
        return self._fits(question, seq) and not follows

    def _glitch(self, question: Break, seq: int, place: Place) -> None:
        self.glitches += 1
        beyond = self._beyond(question, seq)
        if beyond and not question.told:
            rejected = 0 if self.known_rejects else beyond
            self._gap(Gap(question.before, seq, beyond - rejected, rejected), place)

    def _tell(self, question: Break, *, confirmed: bool) -> None:
        if question.seq == question.before:
            self.duplicates += 1
        elif not ahead(question.before, question.seq):
            self.resets += 1
        else:
            count = missing(question.before, question.markers, question.seq)
            rejected = min(count, question.rejected)
            gap = Gap(question.before, question.seq, count - rejected, rejected, confirmed)
            self._gap(gap, question.place)
            if gap.lost and question.in_episode:
                self.on_loss_in_episode(gap)

    def _gap(self, gap: Gap, place: Place) -> None:
        self.gaps.append(gap)
        self.places.append(place)
        self.lost += gap.lost
        self.rejected += gap.rejected

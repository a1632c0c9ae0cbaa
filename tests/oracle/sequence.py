# SPDX-License-Identifier: Apache-2.0
"""Sequence accounting, the same for the collector and for readers of dumps (R12, R3.4, rule 5)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.wire import M32

HALF = 1 << 31


@dataclass(frozen=True)
class Gap:
    """Missing records between two sequence numbers."""

    seq_before: int
    seq_after: int
    lost: int
    rejected: int


class Sequence:
    """Feeds on the seq of every record and marker, in order."""

    def __init__(self) -> None:
        self.last: int | None = None  # of the last record
        self.markers: list[int] = []  # seqs of the markers since then
        self.gaps: list[Gap] = []
        self.lost = 0
        self.duplicates = 0
        self.resets = 0
        self.rejected_bytes = 0  # damage since the last good record
        self.rejected = 0  # missing in seq, but in the rejects

    def record(self, seq: int) -> Gap | None:
        """Account for a record; the gap before it, if there is one."""
        gap = None
        if self.last is not None:
            ahead = (seq - self.last) & M32
            if ahead == 0:
                self.duplicates += 1
            elif ahead >= HALF:
                self.resets += 1
            else:
                gap = self._gap(self.last, seq)
        self.last = seq
        self.markers = []
        self.rejected_bytes = 0
        return gap

    def marker(self, seq: int) -> None:
        """A marker: what its seq means shows with the next record."""
        self.markers.append(seq)

    def is_ahead(self, seq: int) -> bool:
        """May a header with this seq follow damage (R9)? Bytes of an earlier lap may not."""
        return self.last is None or 1 <= (seq - self.last) & M32 < HALF

    def _gap(self, last: int, seq: int) -> Gap | None:
        missing = self._missing(last, seq)
        if missing == 0:
            return None
        rejected = min(missing, self.rejected_bytes // 32)
        gap = Gap(last, seq, missing - rejected, rejected)
        self.gaps.append(gap)
        self.lost += gap.lost
        self.rejected += rejected
        return gap

    def _missing(self, last: int, seq: int) -> int:
        """Records between two records: all numbers, less those that markers consumed (R3.4)."""
        forward = []  # markers that go forward from the record, one after the other
        at = last
        for marker in self.markers:
            if 1 <= (marker - at) & M32 < HALF and (marker - last) & M32 < HALF:
                forward.append(marker)
                at = marker
        between = (seq - last - 1) & M32
        if (at - last) & M32 > (seq - last) & M32:
            return between  # they lead past the record: not to be believed
        return between - sum(marker != seq for marker in forward)

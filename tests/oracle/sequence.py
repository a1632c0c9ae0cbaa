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
        self.last: int | None = None
        self.after_marker = False
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
            if ahead == 0 and not self.after_marker:
                self.duplicates += 1
            elif ahead >= HALF:
                self.resets += 1
            elif ahead > 1:
                gap = self._missing(self.last, seq, ahead - 1)
        self._now_at(seq, after_marker=False)
        return gap

    def marker(self, seq: int) -> Gap | None:
        """Account for a marker: it may be ahead, or else says nothing."""
        if self.last is None:
            return None
        ahead = (seq - self.last) & M32
        if ahead == 0 or ahead >= HALF:
            return None
        gap = self._missing(self.last, seq, ahead - 1) if ahead > 1 else None
        self._now_at(seq, after_marker=True)
        return gap

    def is_ahead(self, seq: int) -> bool:
        """May a header with this seq follow damage (R9)? Bytes of an earlier lap may not."""
        if self.last is None:
            return True
        nearest = 0 if self.after_marker else 1
        return nearest <= (seq - self.last) & M32 < HALF

    def _missing(self, before: int, after: int, missing: int) -> Gap:
        rejected = min(missing, self.rejected_bytes // 32)
        gap = Gap(before, after, missing - rejected, rejected)
        self.gaps.append(gap)
        self.lost += gap.lost
        self.rejected += rejected
        return gap

    def _now_at(self, seq: int, *, after_marker: bool) -> None:
        self.last = seq
        self.after_marker = after_marker
        self.rejected_bytes = 0

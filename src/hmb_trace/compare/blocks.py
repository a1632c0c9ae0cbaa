# SPDX-License-Identifier: Apache-2.0
"""Counts of a capture in blocks of equally many records: one pass, bounded memory.

Records are autocorrelated, so single records prove nothing. What is compared later are blocks: each
holds the same number of records, and there are 32 to 64 of them whatever the length of the capture.
When 64 are full, neighbours are merged and a block holds twice as many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BLOCKS = 64  # at most; 32 at least, but for short captures
_AIM = 48  # blocks, where the number of records is known before
_FIRST_ROWS = 4096  # where it is not
_LEAST_ROWS = 64


class Blocked:
    """Additive counts: an array of shape (BLOCKS, width) for each key, float64.

    Args:
        width: numbers of a key and block.
        limit: keys at most; what comes later is counted in `refused` and kept nowhere.
    """

    def __init__(self, width: int = 1, *, limit: int = 1 << 16) -> None:
        self.width = width
        self.refused = 0
        self._limit = limit
        self._rows: dict[Hashable, NDArray[np.float64]] = {}

    def of(self, key: Hashable) -> NDArray[np.float64] | None:
        """The array of a key, made when first asked for; None beyond the limit."""
        found = self._rows.get(key)
        if found is None:
            if len(self._rows) >= self._limit:
                self.refused += 1
                return None
            found = self._rows[key] = np.zeros((BLOCKS, self.width))
        return found

    def add(self, key: Hashable, block: int, values: NDArray[np.generic] | float) -> None:
        """Add to a key's counts in a block."""
        row = self.of(key)
        if row is not None:
            row[block] += values

    def get(self, key: Hashable) -> NDArray[np.float64]:
        """The counts of a key, zeros where it was never seen."""
        found = self._rows.get(key)
        return np.zeros((BLOCKS, self.width)) if found is None else found

    def keys(self) -> set[Hashable]:
        """Every key that was counted."""
        return set(self._rows)

    def merge(self) -> None:
        """Halve the number of blocks in use."""
        for row in self._rows.values():
            row[: BLOCKS // 2] = row[0::2] + row[1::2]
            row[BLOCKS // 2 :] = 0


@dataclass
class Clockwork:
    """Which block the next record belongs to.

    Attributes:
        block: the current one.
        rows: records that a block holds now.
        filled: records in the current block.
    """

    rows: int = _FIRST_ROWS
    block: int = 0
    filled: int = 0
    _merges: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def for_records(cls, expected: int | None) -> Clockwork:
        """For a capture of so many records; None: not known."""
        if expected is None:
            return cls()
        return cls(rows=max(_LEAST_ROWS, -(-expected // _AIM)))

    def on_merge(self, merge: Callable[[], None]) -> None:
        """Call this whenever blocks are merged."""
        self._merges.append(merge)

    def room(self) -> int:
        """Records that still go into the current block, at least 1."""
        if self.filled == self.rows:
            self._next()
        return self.rows - self.filled

    def advance(self, rows: int) -> None:
        """So many records went into the current block."""
        self.filled += rows

    def _next(self) -> None:
        self.filled = 0
        self.block += 1
        if self.block == BLOCKS:
            for merge in self._merges:
                merge()
            self.block //= 2
            self.rows *= 2

    @property
    def whole(self) -> int:
        """Blocks that are full."""
        return self.block + (self.filled == self.rows)

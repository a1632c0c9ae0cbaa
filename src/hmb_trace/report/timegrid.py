# SPDX-License-Identifier: Apache-2.0
"""Counts over time in bounded memory, for a stream whose end nobody knows yet.

A grid has a fixed number of slots. When a time falls outside, neighbouring slots are
merged in pairs, and the slots become twice as wide, until it fits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class TimeGrid:
    """Layers of counts that share one time axis.

    A layer is an array of shape (rows, slots). Times are nanoseconds (u64).
    """

    def __init__(self, slots: int = 1024, width_ns: int = 1000) -> None:
        self.slots = slots
        self.width_ns = width_ns
        self.layers: dict[str, I64] = {}
        self._base = 0  # number of the first slot: its time is _base * width_ns
        self._used = 0  # slots from _base on that hold something; 0: nothing was added yet

    @property
    def start_ns(self) -> int:
        """Time at which the first slot begins."""
        return self._base * self.width_ns

    @property
    def used(self) -> int:
        """Slots, counted from the first, that may hold something."""
        return self._used

    def layer(self, name: str, rows: int = 1) -> I64:
        """The counts of a layer, made on first use, grown when more rows are asked for."""
        have = self.layers.get(name)
        if have is None or have.shape[0] < rows:
            grown = np.zeros((rows, self.slots), np.int64)
            if have is not None:
                grown[: have.shape[0]] = have
            self.layers[name] = have = grown
        return have

    def fit(self, first_ns: int, last_ns: int) -> None:
        """Make room for times from first_ns to last_ns (both included)."""
        if not self._used:
            self._base = first_ns // self.width_ns
        while True:
            low = min(first_ns // self.width_ns, self._base)
            high = max(last_ns // self.width_ns + 1, self._base + self._used)
            if high - low <= self.slots:
                break
            self._halve()
        self._shift(self._base - low)
        self._base, self._used = low, high - low

    def index(self, ts_ns: U64) -> npt.NDArray[np.intp]:
        """The slot of each time; makes room first."""
        self.fit(int(ts_ns.min()), int(ts_ns.max()))
        slot = ts_ns // np.uint64(self.width_ns) - np.uint64(self._base)
        return slot.astype(np.intp)

    def add(
        self,
        name: str,
        slot: npt.NDArray[np.intp],
        row: npt.NDArray[np.intp] | None = None,
        weight: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Count (or sum the weights) at slots that index() gave; row picks the layer's row."""
        if row is None:
            self.layer(name)[0] += _count(slot, self.slots, weight)
            return
        rows = int(row.max()) + 1
        flat = _count(row * self.slots + slot, rows * self.slots, weight)
        self.layer(name, rows)[:rows] += flat.reshape(rows, self.slots)

    def read(self, name: str, slots: int | None = None) -> I64:
        """A layer's used part, shape (rows, used), merged down to at most `slots` columns."""
        counts = self.layer(name)[:, : self._used]
        step = self.merge_factor(slots)
        if step == 1:
            return counts
        padded = np.zeros((counts.shape[0], -(-self._used // step) * step), np.int64)
        padded[:, : self._used] = counts
        merged: I64 = padded.reshape(counts.shape[0], -1, step).sum(axis=2)
        return merged

    def merge_factor(self, slots: int | None) -> int:
        """How many slots read(…, slots) merges into one."""
        return 1 if slots is None else max(1, -(-self._used // slots))

    def _halve(self) -> None:
        odd = self._base & 1
        half = self.slots // 2
        for name, counts in self.layers.items():
            padded = np.zeros((counts.shape[0], self.slots + 2), np.int64)
            padded[:, odd : odd + self.slots] = counts
            merged = np.zeros_like(counts)
            merged[:, : half + 1] = padded.reshape(counts.shape[0], -1, 2).sum(axis=2)
            self.layers[name] = merged
        self._used = (self._used + odd + 1) // 2
        self._base //= 2
        self.width_ns *= 2

    def _shift(self, by: int) -> None:
        if by == 0 or not self._used:
            return
        for name, counts in self.layers.items():
            moved = np.zeros_like(counts)
            moved[:, by : by + self._used] = counts[:, : self._used]
            self.layers[name] = moved


def _count(
    at: npt.NDArray[np.intp], length: int, weight: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.int64]:
    counts = np.bincount(at, weight, length)
    return counts.astype(np.int64)

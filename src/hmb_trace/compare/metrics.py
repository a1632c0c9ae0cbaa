# SPDX-License-Identifier: Apache-2.0
"""From the counts of two sides to tests: one row of block values each, 0 in the mean if alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace.compare.measure import CATEGORIES, COARSE, Measurement

Column = NDArray[np.float64]
TAILS = (0.5, 0.9, 0.99)
_LEAST_COUNT = 8  # of both sides together: below that a test can say nothing


@dataclass(frozen=True)
class Metric:
    """A ratio of two counts, in the blocks of both sides.

    Attributes:
        kind: what is compared: rate, share, core, order, length, field, bit, value, text, duration,
            tail, jitter.
        subject: what it is about: (opcode, ...), (pair opcode, "key", die) and so on.
        base, new: the ratio on each side, NaN where the denominator is 0.
        base_count, new_count: the numerators' totals.
        rows: block values of base, then of new.
        series: the ratio in each block of base and of new, for pictures.
    """

    kind: str
    subject: tuple[Any, ...]
    base: float
    new: float
    base_count: float
    new_count: float
    rows: tuple[Column, Column]
    series: tuple[Column, Column]


class Sides:
    """Base and new; makes metrics of what both have counted."""

    def __init__(self, base: Measurement, new: Measurement) -> None:
        self.base, self.new = base, new
        self._whole = [_usable(base), _usable(new)]

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of base and of new that are full and hold no loss."""
        return len(self._whole[0]), len(self._whole[1])

    @property
    def records(self) -> tuple[int, int]:
        """Records of base and of new."""
        return self.base.records, self.new.records

    def totals(self, family: str) -> dict[Any, tuple[float, float]]:
        """Counts of base and of new by key."""
        return {
            key: tuple(float(c.sum()) for c in self._counts(family, key))  # type: ignore[misc] # two
            for key in self._keys(family)
        }

    def value_totals(self) -> dict[tuple[int, str], dict[int, tuple[float, float]]]:
        """Counts of small payload values, by (opcode, field), where none is large."""
        found = {}
        for key in self._keys("categories"):
            base, new = (side.categories.get(key).sum(axis=0) for side in (self.base, self.new))
            if not base[-1] and not new[-1] and base.any():
                used = np.flatnonzero(base + new).tolist()
                found[key] = {value: (float(base[value]), float(new[value])) for value in used}
        return found

    def samples(self, opcode: int, side: int) -> tuple[int, ...]:
        """Sequence numbers of some records of an opcode on a side (0 base, 1 new)."""
        return tuple((self.base, self.new)[side].samples.get(opcode, ()))

    def metrics(self) -> Iterator[Metric]:
        """Every comparison that can say something."""
        yield from self._rate()
        yield from self._shares()
        yield from self._order()
        yield from self._numbers("length", "lengths")
        yield from self._numbers("field", "fields")
        yield from self._numbers("duration", "spans")
        yield from self._keyed()
        yield from self._columns("bit", "bits")
        yield from self._columns("value", "categories")
        yield from self._texts()
        yield from self._jitter()

    # -- families

    def _rate(self) -> Iterator[Metric]:
        base, new = (side.blocks.get("all") for side in (self.base, self.new))
        yield from self._ratio("rate", (), (base[:, 0], new[:, 0]), (base[:, 1], new[:, 1]))

    def _shares(self) -> Iterator[Metric]:
        records = self._records()
        for opcode in self._keys("opcodes"):
            yield from self._ratio("share", (opcode,), self._counts("opcodes", opcode), records)
        for key in self._keys("cores"):
            cpu, opcode = key
            yield from self._ratio(
                "core",
                (opcode, cpu),
                self._counts("cores", key),
                self._counts("opcodes", opcode),
            )

    def _order(self) -> Iterator[Metric]:
        for key in self._keys("grams"):
            of = self._counts("opcodes", key[0])
            yield from self._ratio("order", key, self._counts("grams", key), of)

    def _numbers(self, kind: str, family: str) -> Iterator[Metric]:
        base, new = getattr(self.base, family), getattr(self.new, family)
        for key in _sorted(base.sums.keys() | new.sums.keys()):
            subject = key if isinstance(key, tuple) else (key,)
            sums = (base.sums.get(key), new.sums.get(key))
            counts = (sums[0][:, 0], sums[1][:, 0])
            yield from self._ratio(kind, (*subject, "mean"), (sums[0][:, 1], sums[1][:, 1]), counts)
            yield from self._ratio(
                kind, (*subject, "level"), (sums[0][:, 3], sums[1][:, 3]), counts
            )
            histograms = (base.histograms.get(key), new.histograms.get(key))
            yield from self._tails(kind, subject, histograms, counts)

    def _tails(
        self,
        kind: str,
        subject: tuple[Any, ...],
        histograms: tuple[NDArray[Any], NDArray[Any]],
        counts: tuple[Column, Column],
        coarse: int = 0,
    ) -> Iterator[Metric]:
        mine, theirs = histograms
        pooled = np.cumsum(mine.sum(axis=0) + theirs.sum(axis=0))
        if not pooled[-1]:
            return
        for tail in TAILS:
            edge = int(np.searchsorted(pooled, tail * pooled[-1])) + 1
            above = (mine[:, edge:].sum(axis=1), theirs[:, edge:].sum(axis=1))
            yield from self._ratio(kind, (*subject, "above", tail, edge, coarse), above, counts)

    def _keyed(self) -> Iterator[Metric]:
        for family in _sorted(self.base.spans_by.keys() & self.new.spans_by.keys()):
            base, new = self.base.spans_by[family], self.new.spans_by[family]
            if base.too_many or new.too_many or len(base.keys.keys() | new.keys.keys()) < 2:
                continue
            for key in sorted(base.keys.keys() & new.keys.keys()):
                mine, theirs = base.keys[key], new.keys[key]
                subject = (*family, key)
                counts = (base.sums[:, mine, 0], new.sums[:, theirs, 0])
                sums = (base.sums[:, mine, 1], new.sums[:, theirs, 1])
                yield from self._ratio("duration", (*subject, "mean"), sums, counts)
                levels = (base.sums[:, mine, 2], new.sums[:, theirs, 2])
                yield from self._ratio("duration", (*subject, "level"), levels, counts)
                histograms = (base.histograms[:, mine], new.histograms[:, theirs])
                yield from self._tails("duration", subject, histograms, counts, COARSE)

    def _columns(self, kind: str, family: str) -> Iterator[Metric]:
        for key in self._keys(family):
            base, new = getattr(self.base, family).get(key), getattr(self.new, family).get(key)
            if kind == "bit":
                looked, first = (base[:, 0], new[:, 0]), 1
            else:
                looked, first = (base.sum(axis=1), new.sum(axis=1)), 0
            width = 64 if kind == "bit" else CATEGORIES
            for i in range(width):
                column = (base[:, first + i], new[:, first + i])
                yield from self._ratio(kind, (*key, i), column, looked)

    def _texts(self) -> Iterator[Metric]:
        for key in self._keys("texts"):
            of = self._counts("opcodes", key[0])
            yield from self._ratio("text", key, self._counts("texts", key), of)

    def _jitter(self) -> Iterator[Metric]:
        for key in self._keys("intervals", "sums"):
            sides = [side.intervals.sums.get(key) for side in (self.base, self.new)]
            with np.errstate(divide="ignore", invalid="ignore"):
                values = [s[:, 2] * s[:, 0] / s[:, 1] ** 2 for s in sides]
            counted = tuple(
                np.where(np.isfinite(v), 1.0, 0.0) * (s[:, 0] > 7)
                for v, s in zip(values, sides, strict=True)
            )
            weighed = tuple(
                np.nan_to_num(v, posinf=0) * c for v, c in zip(values, counted, strict=True)
            )
            yield from self._ratio("jitter", (key,), weighed, counted, least=4)

    # -- parts

    def _keys(self, family: str, inner: str = "") -> list[Any]:
        stores = [getattr(side, family) for side in (self.base, self.new)]
        stores = [getattr(store, inner) if inner else store for store in stores]
        return _sorted(stores[0].keys() | stores[1].keys())

    def _counts(self, family: str, key: Hashable) -> tuple[Column, Column]:
        base, new = getattr(self.base, family), getattr(self.new, family)
        return base.get(key)[:, 0], new.get(key)[:, 0]

    def _records(self) -> tuple[Column, Column]:
        return self.base.blocks.get("all")[:, 0], self.new.blocks.get("all")[:, 0]

    def _ratio(
        self,
        kind: str,
        subject: tuple[Any, ...],
        parts: tuple[Column, ...],
        wholes: tuple[Column, ...],
        *,
        least: float = _LEAST_COUNT,
    ) -> Iterator[Metric]:
        parts = tuple(p[u] for p, u in zip(parts, self._whole, strict=True))
        wholes = tuple(w[u] for w, u in zip(wholes, self._whole, strict=True))
        counts, totals = [p.sum() for p in parts], [w.sum() for w in wholes]
        if abs(counts[0]) + abs(counts[1]) < least or not totals[0] or not totals[1]:
            return
        pooled = sum(counts) / sum(totals)
        rows = tuple(
            (p - pooled * w) / (w.sum() / len(w)) for p, w in zip(parts, wholes, strict=True)
        )
        if not rows[0].any() and not rows[1].any():
            return
        base, new = (c / t for c, t in zip(counts, totals, strict=True))
        series = tuple(
            np.divide(p, w, out=np.full(len(p), np.nan), where=w > 0)
            for p, w in zip(parts, wholes, strict=True)
        )
        yield Metric(kind, subject, base, new, counts[0], counts[1], rows, series)


def _usable(side: Measurement) -> NDArray[np.int64]:
    """The blocks that are full and hold no loss."""
    blocks = side.blocks.get("all")
    whole = np.zeros(len(blocks), bool)
    whole[: side.clock.whole] = True
    return np.flatnonzero(whole & (blocks[:, 2] == 0))


def _sorted(keys: set[Any]) -> list[Any]:
    return sorted(keys, key=repr)

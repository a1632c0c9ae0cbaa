# SPDX-License-Identifier: Apache-2.0
"""Counters of the catalog (queue depth, temperature): their mean over time, and extremes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.report.timegrid import TimeGrid

F64 = npt.NDArray[np.float64]
SLOTS = 256  # points drawn
FLOAT_SCALE = 1000  # the grid adds integers: floats are kept to a thousandth
SUM_LIMIT = float(2**52)  # of one value, so that sums over a slot stay exact enough


@dataclass
class Counter:
    """One event of kind counter."""

    opcode: int
    name: str
    field: Field
    count: int = 0
    total: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0

    @property
    def scale(self) -> int:
        """What a value is multiplied with in the grid."""
        return 1 if self.field.is_integer else FLOAT_SCALE

    def add(
        self, values: npt.NDArray[np.float64], slot: npt.NDArray[np.intp], grid: TimeGrid
    ) -> None:
        """Take values and where they stand in the grid."""
        low, high = float(values.min()), float(values.max())
        self.minimum = min(low, self.minimum) if self.count else low
        self.maximum = max(high, self.maximum) if self.count else high
        self.count += len(values)
        self.total += float(values.sum())
        weight = np.clip(values * self.scale, -SUM_LIMIT, SUM_LIMIT)
        grid.add(f"counter {self.opcode} sum", slot, weight=weight)
        grid.add(f"counter {self.opcode} count", slot)

    def drawn(self, grid: TimeGrid) -> dict[str, Any]:
        """Mean by slot (None where there was no value), for the script."""
        sums = grid.read(f"counter {self.opcode} sum", SLOTS)[0]
        counts = grid.read(f"counter {self.opcode} count", SLOTS)[0]
        mean = (sums / np.maximum(counts, 1) / self.scale).round(4).tolist()
        return {
            "name": self.name,
            "unit": self.field.unit,
            "width_ns": grid.width_ns * grid.merge_factor(SLOTS),
            "mean": [m if n else None for m, n in zip(mean, counts, strict=True)],
        }


class Counters:
    """All counters of a catalog; none without one."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        fields = ((e, e.field(e.value)) for e in catalog or () if e.kind == "counter" and e.value)
        self._all = [Counter(e.opcode, e.name, field) for e, field in fields if field is not None]

    def seen(self) -> list[Counter]:
        """Those that had a value."""
        return [counter for counter in self._all if counter.count]

    def add(self, batch: RecordBatch, slot: npt.NDArray[np.intp], grid: TimeGrid) -> None:
        """Take the values of a batch; slot is that of each row."""
        for counter in self._all:
            enough = batch.payload_len >= counter.field.offset + counter.field.size
            rows = np.flatnonzero((batch.opcode == counter.opcode) & enough)
            if not len(rows):
                continue
            values = batch.select(rows).field(counter.field.offset, counter.field.dtype)
            numbers = values.astype(np.float64)
            finite = np.isfinite(numbers)
            if finite.any():
                counter.add(numbers[finite], slot[rows][finite], grid)

# SPDX-License-Identifier: Apache-2.0
"""Where the firmware's clock goes back, as the records alone show it (R16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.walker import Bytes, Walker

CLOCK_JITTER_NS = 1_000_000
"""Cores write a little out of order: only a larger step back of ts_ns is one of the clock."""


_HALF_TIME = np.uint64(1 << 63)


def goes_back(before: npt.NDArray[np.uint64], after: npt.NDArray[np.uint64]) -> Any:
    """Where the clock went back (SPEC R16), also below zero: half of all times cannot pass."""
    return ((after < before) & (before - after > CLOCK_JITTER_NS)) | (
        (after > before) & (after - before >= _HALF_TIME)
    )


def went_back(before: int, after: int) -> bool:
    """The same for two times."""
    return after + CLOCK_JITTER_NS < before or after - before >= 1 << 63


@dataclass(frozen=True, slots=True)
class StepBack:
    """A record earlier than the one before it by more than CLOCK_JITTER_NS."""

    offset: int
    ts_before: int
    ts_after: int


def columns_of(data: Bytes, begin: int) -> dict[str, npt.NDArray[Any]]:
    """The records of bytes that stand at `begin` of a dump, for a walk that made no columns."""
    walker = Walker()
    walker.begin_segment(0, begin, continues=False)
    return walker.walk(data, columns=True).columns


def steps_back(columns: dict[str, npt.NDArray[Any]], last_ts: int | None) -> list[StepBack]:
    """The steps in these rows; last_ts: ts_ns of the record before them, where there is one."""
    times = columns["ts_ns"]
    if not len(times):
        return []
    first = times[:1] if last_ts is None else np.array([last_ts], "u8")
    before = np.concatenate([first, times[:-1]])
    rows = np.flatnonzero(goes_back(before, times))
    return [
        StepBack(int(columns["offset"][row]), int(before[row]), int(times[row]))
        for row in rows.tolist()
    ]

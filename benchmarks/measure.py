# SPDX-License-Identifier: Apache-2.0
"""Measuring that can be trusted on a shared machine: alternate, take medians, quote ratios."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One run of something."""

    seconds: float
    cpu: float = 0.0  # seconds, user and system
    bytes: int = 0
    records: int = 0

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.bytes / self.seconds / 1e9


def timed(work: Callable[[], object], size: int = 0, records: int = 0) -> Sample:
    """Run work once, in this process."""
    cpu, begun = time.process_time(), time.perf_counter()
    work()
    return Sample(time.perf_counter() - begun, time.process_time() - cpu, size, records)


def alternate(ways: dict[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """A B A B ...: whatever drifts on the machine hits all ways alike. The first round warms up."""
    found: dict[str, list[Sample]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            sample = run()
            if number:
                found[name].append(sample)
    return found


def median(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """The median of one property."""
    return statistics.median(of(s) for s in samples)


def ratio(found: dict[str, list[Sample]], mine: str, limit: str) -> float:
    """Median of rate(mine) / rate(limit), pair by pair."""
    pairs = zip(found[mine], found[limit], strict=True)
    return statistics.median(a.rate / b.rate for a, b in pairs)


def row(*cells: object, widths: Sequence[int] = (30, 12, 12, 12, 12, 12)) -> None:
    """One line of a table: the first cell to the left, numbers to the right."""
    text = [f"{cells[0]!s:<{widths[0]}}"]
    for cell, width in zip(cells[1:], widths[1:], strict=False):
        text.append(f"{f'{cell:.3g}' if isinstance(cell, float) else cell!s:>{width}}")
    print("".join(text).rstrip(), flush=True)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def load() -> str:
    """How busy the machine is, so that a reader can judge the figures."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"

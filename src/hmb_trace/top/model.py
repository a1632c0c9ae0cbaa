# SPDX-License-Identifier: Apache-2.0
"""What the samples say over time: rates, histories, shares of opcodes and cpus, a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.top.sources import Sample

HISTORY = 120  # samples
_LOG = 64
_SMOOTH = 0.5  # weight of the newest sample in the rates of opcodes and cpus
_QUIET = frozenset({"attached", "segment-open"})  # not worth a line
_NOT_SHOWN = ("timestamp", "level", "event", "cursor", "epoch")


class Shares:
    """Rates by key, smoothed; keys that fall silent fade away."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}
        self.history: dict[int, deque[float]] = {}

    def add(self, counts: Mapping[int, int], scale: float) -> None:
        """counts times scale are events per second."""
        for key in {*self.rates, *counts}:
            now = counts.get(key, 0) * scale
            before = self.rates.get(key, now)
            self.rates[key] = before + _SMOOTH * (now - before)
            self.history.setdefault(key, deque(maxlen=HISTORY)).append(now)

    @property
    def total(self) -> float:
        return sum(self.rates.values())

    def by_rate(self) -> list[tuple[int, float]]:
        """Busiest first."""
        return sorted(self.rates.items(), key=lambda item: (-item[1], item[0]))


class Model:
    """Feed it samples; it keeps what a frame shows."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.gone = ""
        self.record_rate: float | None = None
        self.byte_rate: float | None = None
        self.loss_rate = 0.0
        self.record_history: deque[float] = deque(maxlen=HISTORY)
        self.byte_history: deque[float] = deque(maxlen=HISTORY)
        self.opcodes = Shares()
        self.cpus = Shares()
        self.sampled = False
        self.last: list[RecordBatch] = []
        self.log: deque[tuple[str, str, str]] = deque(maxlen=_LOG)
        self._told: deque[tuple[Any, ...]] = deque(maxlen=4 * _LOG)

    def push(self, sample: Sample) -> None:
        """Take the next sample."""
        before, self.sample = self.sample, sample
        if self.gone:
            self.gone = ""
            self._say("info", "it is back")
            before = None if before is None or before.pid != sample.pid else before
        self._rates(before, sample)
        self._tail(before, sample)
        self._events(before, sample)

    def lost_source(self, problem: str) -> None:
        """There was nothing to sample."""
        if not self.gone:
            self._say("error", problem.rpartition(": ")[2])  # the path stands above
        self.gone = problem
        self.record_rate = self.byte_rate = None
        self.record_history.append(0.0)
        self.byte_history.append(0.0)

    def _rates(self, before: Sample | None, now: Sample) -> None:
        self.record_rate = _rate(before, now, "records")
        self.byte_rate = _rate(before, now, "bytes")
        self.loss_rate = _rate(before, now, "lost") or 0.0
        if before is not None:
            self.record_history.append(self.record_rate or 0.0)
            self.byte_history.append(self.byte_rate or 0.0)

    def _tail(self, before: Sample | None, now: Sample) -> None:
        seen = now.seen
        seconds = now.at - before.at if before else 0.0
        self.sampled = seen.skipped > 0
        if seen.last is not None:
            self.last = [seen.last]
        if seconds <= 0:
            return
        # What was looked at stands for all that was written meanwhile.
        looked_at = max(seen.new_bytes - seen.skipped, 1)
        scale = seen.new_bytes / looked_at / seconds
        self.opcodes.add(seen.opcodes, scale)
        self.cpus.add(seen.cpus, scale)
        if self.record_rate is None and now.records is None and seen.new_bytes:
            self.record_rate = seen.records * scale

    def _events(self, before: Sample | None, now: Sample) -> None:
        if now.log:
            for entry in now.log:
                self._daemon_said(entry)
        elif (
            before is not None
            and before.state != now.state
            and "frozen" in (before.state, now.state)
        ):
            self._say("info", f"state {now.state}, before {before.state}")
        if before is not None and _restarted(before, now):
            self._say("warning", "the ring was initialised again")

    def _daemon_said(self, entry: dict[str, Any]) -> None:
        mark = (entry["timestamp"], entry["event"])
        if mark in self._told or entry["event"] in _QUIET:
            return
        self._told.append(mark)
        details = " ".join(f"{k}={v}" for k, v in entry.items() if k not in _NOT_SHOWN)
        clock = entry["timestamp"][11:19]
        self.log.append((clock, entry["level"], f"{entry['event']} {details}".rstrip()))

    def _say(self, level: str, text: str) -> None:
        self.log.append((time.strftime("%H:%M:%S", time.gmtime()), level, text))


def _rate(before: Sample | None, now: Sample, name: str) -> float | None:
    first: int | None = getattr(before, name) if before else None
    second: int | None = getattr(now, name)
    if before is None or first is None or second is None or now.at <= before.at:
        return None
    return max(0.0, (second - first) / (now.at - before.at))


def _restarted(before: Sample, now: Sample) -> bool:
    """Without a daemon only the cursors tell; a daemon says it itself, in its log."""
    if now.log or before.head is None or now.head is None:
        return False
    return now.head < before.head

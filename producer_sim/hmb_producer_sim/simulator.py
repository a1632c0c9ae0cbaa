# SPDX-License-Identifier: Apache-2.0
"""A run of the simulator: workload, faults, ledger, freeze, drain."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hmb_producer_sim import engine as engines
from hmb_producer_sim import ledger as ledgers
from hmb_producer_sim.engine import Engine
from hmb_producer_sim.faults import Fault, Injector
from hmb_trace.layout import RingFlag

SLICE_NS = 50_000_000  # how late a signal may be noticed
DRAIN_POLL_S = 0.002
STOPPED_LINGER_NS = 10_000_000_000  # after a signal a consumer gets so long


@dataclass(frozen=True)
class Plan:
    """What a run does. Times in nanoseconds; None is without end."""

    count: int | None = None
    duration_ns: int | None = None
    freeze_at_end: bool = False
    linger_ns: int | None = 0
    ledger: Path | None = None
    hashed: bool = True
    faults: tuple[Fault, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


class Stop:
    """Set by TERM and INT; counts, so that a second one means now."""

    def __init__(self) -> None:
        self.signals = 0

    @contextmanager
    def handled(self, on_signal: Callable[[], None]) -> Iterator[None]:
        """Route TERM and INT here while the block runs."""

        def handler(number: int, frame: FrameType | None) -> None:
            self.signals += 1
            on_signal()

        before = {
            number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


class Simulator:
    """Runs an engine by a plan. `report` is called now and then with the engine's stats."""

    def __init__(
        self, engine: Engine, plan: Plan, stop: Stop, report: Callable[[dict[str, int]], None]
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._stop = stop
        self._report = report
        self._injector = Injector(engine, plan.faults, plan.count, self._wait)
        self._deadline: int | None = None
        self.elapsed_s = 0.0

    def run(self) -> dict[str, Any]:
        """The workload, then the ledger (written if asked for), then FROZEN."""
        started = time.monotonic()
        if self._plan.duration_ns is not None:
            self._deadline = time.monotonic_ns() + self._plan.duration_ns
        self._workload()
        self.elapsed_s = time.monotonic() - started
        ledger = self.ledger()
        if self._plan.ledger is not None:
            ledgers.write(self._plan.ledger, ledger)
        if self._plan.freeze_at_end:
            self._engine.set_flags(RingFlag.FROZEN)
        return ledger

    def _over(self) -> bool:
        past = self._deadline is not None and time.monotonic_ns() >= self._deadline
        return past or self._stop.signals > 0 or self._injector.ended

    def _slice_ns(self) -> int:
        if self._deadline is None:
            return SLICE_NS
        return max(1, min(SLICE_NS, self._deadline - time.monotonic_ns()))

    def _workload(self) -> None:
        limit = engines.UNLIMITED if self._plan.count is None else self._plan.count
        while not self._over():
            until = min(limit, self._injector.next_stop())
            reason = self._engine.run(until, self._slice_ns())
            stats = self._engine.stats()
            self._report(stats)
            if reason == engines.END or stats["produced"] >= limit:
                break
            if reason == engines.REACHED:
                self._injector.inject(stats["produced"])
        self._injector.finish()

    def _wait(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait until the condition holds; False when time or patience is over."""
        end = time.monotonic() + patience_s
        while not condition():
            if self._over() or time.monotonic() >= end:
                return False
            time.sleep(DRAIN_POLL_S)
        return True

    def drain(self) -> bool:
        """Wait until the consumer has read everything, as long as --linger says.

        A signal that ended the workload leaves the consumer ten seconds; one more ends the wait.
        """
        before, linger = self._stop.signals, self._plan.linger_ns
        if before:
            linger = STOPPED_LINGER_NS if linger is None else min(linger, STOPPED_LINGER_NS)
        started = time.monotonic_ns()
        while not self._engine.is_drained():
            if linger is not None and time.monotonic_ns() - started >= linger:
                return False
            if self._stop.signals > before:
                return False
            time.sleep(DRAIN_POLL_S)
        return True

    def next_epoch(self) -> None:
        """The ring is about to begin anew: keep the counts of what was in it."""
        self._engine.close_epoch()
        self._injector.epochs.append(self._engine.epoch())

    def became_inexact(self) -> None:
        """Records went that a consumer may have read, or may not."""
        self._injector.exact = False

    def ledger(self) -> dict[str, Any]:
        """The account as it stands."""
        self._engine.close_epoch()
        stats = self._engine.stats()
        more = {
            "produced": stats["produced"],
            "cursor": stats["head"],
            "next_seq": stats["seq"],
            "elapsed_s": round(self.elapsed_s, 6),
            "blocked_s": round(stats["blocked_ns"] / 1e9, 6),
            **self._plan.about,
        }
        return ledgers.build(
            self._engine.total(),
            [*self._injector.epochs, self._engine.epoch()],
            hashed=self._plan.hashed,
            exact=self._injector.exact,
            faults=self._injector.log,
            more=more,
        )

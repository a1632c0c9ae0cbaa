# SPDX-License-Identifier: Apache-2.0
"""The drive's firmware: the simulator's workload, written into the slice while that is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hmb_producer_sim import engine as engines
from hmb_producer_sim import ledger as ledgers
from hmb_producer_sim.engine import Engine, Settings
from hmb_producer_sim.simulator import Plan, Simulator, Stop
from hmb_producer_sim.workload import Workload
from hmb_trace.layout import RECORD_AREA_OFF, RingFlag

TURN_NS = 5_000_000  # how long a pause may have to wait
_START_RING = 4096  # where firmware stands before the first buffer


class GatedEngine(Engine):
    """An engine that runs only while its gate is open; one access to the ring at a time."""

    def __init__(self, settings: Settings, workload: Workload, replay: memoryview | None) -> None:
        self._lock = threading.RLock()
        self._open = threading.Event()
        self.is_over = False  # the drive is gone: wait for nothing
        settings = replace(settings, ring_size=_START_RING)
        super().__init__(bytearray(RECORD_AREA_OFF + _START_RING), settings, workload, replay)

    def set_gate(self, is_open: bool) -> None:
        """After set_gate(False) the ring is not touched any more."""
        if is_open:
            self._open.set()
            return
        self._open.clear()
        with self._lock:
            pass

    def run(self, until: int, slice_ns: int) -> int:
        if not self._open.wait(slice_ns / 1e9):
            return engines.SLICE
        with self._lock:
            if not self._open.is_set():
                return engines.SLICE
            return super().run(until, min(slice_ns, TURN_NS))

    def stats(self) -> dict[str, int]:
        with self._lock:
            return super().stats()

    def set_flags(self, set_bits: int, clear_bits: int = 0) -> None:
        """Waits until the ring may be touched."""
        while not self.is_over:
            self._open.wait(0.05)
            with self._lock:
                if self._open.is_set():
                    super().set_flags(set_bits, clear_bits)
                    return

    def freeze(self) -> None:
        """FROZEN, by the thread that holds the gate closed: the last word before it leaves."""
        with self._lock:
            super().set_flags(RingFlag.FROZEN)


@dataclass(frozen=True)
class Work:
    """What firmware traces. The ring's size is replaced by what the slices have."""

    settings: Settings
    workload: Workload
    replay: memoryview | None
    plan: Plan


class Tracer:
    """Runs a plan of the simulator in a thread of its own.

    Args:
        work: what is traced.
        say: takes a line for the user.
    """

    def __init__(self, work: Work, stop: Stop, say: Callable[[str], None]) -> None:
        self._say = say
        self._plan = work.plan
        self._stop = stop
        self._engine = GatedEngine(work.settings, work.workload, work.replay)
        self._simulator = Simulator(self._engine, work.plan, stop, lambda _: None)
        self._thread: threading.Thread | None = None
        self._is_settled = False
        self.lost = 0  # records that the host had not read when the buffer went
        self.failure: BaseException | None = None
        self.ledger: dict[str, Any] | None = None

    def _work(self) -> None:
        try:
            self.ledger = self._simulator.run()
            self._say(f"workload finished: {self.ledger['records']:,} records")
        except BaseException as error:  # told by the main thread, as any error of the program
            self.failure = error

    def begin(self, memory: memoryview, ring_size: int, *, restart: bool) -> None:
        """An empty ring in the slice: magic first gone, last there again.

        Args:
            restart: firmware has started anew: its sequence numbers do too.
        """
        stats = self._engine.stats()
        if stats["published"]:
            self._simulator.next_epoch()
        seq = 0 if restart else stats["seq"]
        self._engine.settle(memory, bytearray(len(memory)), ring_size, seq)
        self._plan.about["ring_size"] = ring_size
        self._is_settled = True
        if self.ledger is not None and self._plan.freeze_at_end:
            self._engine.freeze()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="firmware", daemon=True)
            self._thread.start()

    def allow(self, is_open: bool) -> None:
        """May firmware touch the ring? Once this returned for False, it does not."""
        self._engine.set_gate(is_open and self._is_settled)

    def is_drained(self) -> bool:
        return not self._is_settled or self._engine.is_drained()

    def freeze(self) -> None:
        """FROZEN while the gate is closed already."""
        if self._is_settled:
            self._engine.freeze()

    def foreign_write(self) -> int | None:
        """Where the host wrote in the ring, tail not counted."""
        return self._engine.foreign_write() if self._is_settled else None

    def leave(self) -> None:
        """The slice is the host's again; what it had not read is lost to it."""
        if not self._is_settled:
            return
        self._engine.set_gate(False)
        self._engine.park()
        self._is_settled = False
        if not self._engine.is_drained():
            lost = self._engine.discard_unread()
            self.lost += lost
            self._simulator.became_inexact()
            self._say(f"{lost:,} records were unread when the buffer went")

    def finish(self) -> dict[str, Any] | None:
        """End the workload; the ledger, or None where firmware never traced.

        Raises:
            HmbTraceError: the ledger cannot be written.
        """
        self._stop.signals += 1
        self._engine.is_over = True
        self._engine.stop()
        self._engine.set_gate(False)
        if self._thread is not None:
            self._thread.join()
        if self.failure is not None:
            raise self.failure
        if self.ledger is not None:
            self.ledger = self._simulator.ledger()
            if self._plan.ledger is not None:
                ledgers.write(self._plan.ledger, self.ledger)
        self._engine.close()
        return self.ledger

# SPDX-License-Identifier: Apache-2.0
"""Firmware that does it wrong, on request (producer_sim/README.md: what each fault does)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hmb_producer_sim import engine as engines
from hmb_producer_sim.engine import Engine


@dataclass(frozen=True)
class Fault:
    """One --fault: kind, its argument (None: the kind's own default), and the record number."""

    kind: str
    argument: int | None = None
    at: int | None = None


class Injector:
    """Injects faults at their record numbers, and remembers what it did."""

    def __init__(
        self,
        engine: Engine,
        faults: Sequence[Fault],
        count: int | None,
        wait: Callable[..., bool],
    ) -> None:
        self._engine = engine
        self.log: list[dict[str, Any]] = []
        self.epochs: list[dict[str, int]] = []
        self.exact = True
        self.ended = False

    def next_stop(self) -> int:
        """Produce up to this record number, then call inject()."""
        return engines.UNLIMITED

    def inject(self, produced: int) -> None:
        """Inject what is due."""

    def finish(self) -> None:
        """Note what did not come to pass."""

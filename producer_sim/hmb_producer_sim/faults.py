# SPDX-License-Identifier: Apache-2.0
"""Firmware that does it wrong, on request. producer_sim/README.md says what each fault does
to the ring, to seq and to the ledger.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hmb_producer_sim import engine as engines
from hmb_producer_sim._engine import lib
from hmb_producer_sim.engine import Engine
from hmb_trace.errors import UsageError
from hmb_trace.layout import ABI_VERSION, RingFlag

PATIENCE_S = 30.0  # how long a fault waits for its moment
STILL_S = 0.3  # a tail that stands still so long, with bytes unread: the consumer is down
TRANSIENT_S = 0.02  # well under the 100 ms of R2
SHORT_NS = 5_000_000
DEFAULT_AT = 1000  # without --count; else in its middle
APART = 8  # records between two faults: each must be seen by itself
STEP = 16  # records between two looks at a fault that waits for its place
UNKNOWN_RING_BITS = 1 << 31 | 1 << 7

# kind -> what the engine does to the next record that stands in a plain place
TWISTS = {
    "corrupt-magic": lib.HMB_SIM_CORRUPT_MAGIC,
    "oversize-length": lib.HMB_SIM_OVERSIZE_LENGTH,
    "lying-length": lib.HMB_SIM_LYING_LENGTH,
    "torn-record": lib.HMB_SIM_TORN_RECORD,
    "unknown-flags": lib.HMB_SIM_UNKNOWN_FLAGS,
    "duplicate-seq": lib.HMB_SIM_DUPLICATE_SEQ,
    "backward-seq": lib.HMB_SIM_BACKWARD_SEQ,
    "damaged-marker": lib.HMB_SIM_DAMAGED_MARKER,
    "dirty-marker": lib.HMB_SIM_DIRTY_MARKER,
}
# kind -> its argument where none is given (None: it takes none)
ARGUMENTS: dict[str, int | None] = {
    **dict.fromkeys(TWISTS, None),
    "backward-seq": 1000,  # records
    "garbage": 256,  # bytes
    "overflow-burst": 100,  # records
    "frozen": 200,  # milliseconds
    "frozen-reset": 200,  # milliseconds
    "reset": None,
    "reset-now": None,
    "reset-while-down": None,
    "reset-at-tail": None,
    "unknown-ring-flags": None,
    "cursor-regress": 4096,  # bytes
    "cursor-regress-transient": 4096,  # bytes
    "cursor-jump": 4,  # rings
    "cursor-jump-transient": 4,  # rings
    "overrun": 4096,  # bytes over a whole ring
    "time-jump": 3600,  # seconds
    "time-jump-back": 3600,  # seconds
    "version-bump": 2,  # the version
}


@dataclass(frozen=True)
class Fault:
    """One --fault: kind, its argument, and the number of the record before which it happens."""

    kind: str
    argument: int = 0
    at: int | None = None


def _number(text: str, what: str, spec: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--fault {spec}: {what} found {text!r}, expected a whole number")
    return int(text)


def parse(spec: str) -> Fault:
    """'KIND[:ARGUMENT][@N]' -> Fault.

    Raises:
        UsageError: no such kind, or not a number.
    """
    name, _, at = spec.partition("@")
    kind, _, argument = name.partition(":")
    if kind not in ARGUMENTS:
        near = difflib.get_close_matches(kind, ARGUMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(ARGUMENTS)}"
        raise UsageError(f"--fault {spec}: no such kind; {hint}")
    default = ARGUMENTS[kind]
    if argument and default is None:
        raise UsageError(f"--fault {spec}: {kind} takes no argument")
    value = _number(argument, "argument", spec) if argument else default or 0
    if kind in ("garbage", "cursor-regress", "cursor-regress-transient", "overrun") and value % 8:
        raise UsageError(f"--fault {spec}: found {value} bytes, expected a multiple of 8")
    return Fault(kind, value, _number(at, "record", spec) if "@" in spec else None)


def _asked(fault: Fault) -> int:
    assert fault.at is not None
    return fault.at


class Injector:
    """Injects faults at their record numbers, and remembers what it did.

    Attributes:
        log: what was injected, for the ledger.
        epochs: counts of the epochs that are over.
        exact: False once a fault left open what a consumer could save.
        ended: True once a fault ended the workload.
    """

    def __init__(
        self,
        engine: Engine,
        faults: Sequence[Fault],
        count: int | None,
        wait: Callable[[Callable[[], bool], float], bool],
    ) -> None:
        self._count = count if count is not None else engines.UNLIMITED
        default = count // 2 if count is not None else DEFAULT_AT
        placed = [fault if fault.at is not None else replace(fault, at=default) for fault in faults]
        self._due = sorted(placed, key=_asked)
        self._engine = engine
        self._wait = wait
        self._waiting: Fault | None = None  # for its place
        self._earliest = 0
        self._begun_at = 0  # the record number at which the present fault's turn came
        self.log: list[dict[str, Any]] = []
        self.epochs: list[dict[str, int]] = []
        self.exact = True
        self.ended = False

    def next_stop(self) -> int:
        """Produce up to this record number, then call inject()."""
        if self._waiting is not None:
            return self._earliest
        if not self._due:
            return engines.UNLIMITED
        return max(_asked(self._due[0]), self._earliest)

    def inject(self, produced: int) -> None:
        """Inject what is due before record number `produced`."""
        if self._waiting is not None:
            self._look_again(self._waiting, produced)
        elif self._due and produced >= self.next_stop():
            self._begin(self._due.pop(0), produced)

    def finish(self) -> None:
        """Note what did not come to pass."""
        if self._waiting is not None:
            self._note(self._waiting, injected=False, reason="found no place for it")
            self._engine.twist(lib.HMB_SIM_NO_TWIST)
        for fault in self._due:
            self._note(fault, injected=False, reason="the workload ended before")
        self._waiting, self._due = None, []

    def _note(self, fault: Fault, *, injected: bool = True, **more: Any) -> None:
        entry = {"kind": fault.kind, "argument": fault.argument, "injected": injected}
        entry |= {"asked": fault.at, "at": self._begun_at if injected else None, **more}
        if injected and entry["at"] != fault.at:
            late = self._begun_at != fault.at
            entry["moved"] = (
                f"{APART} records from the fault before" if late else "to its next place"
            )
        if "cursor" not in entry:
            stats = self._engine.stats()
            entry |= {"cursor": stats["head"], "seq": stats["seq"], "bytes": 0}
        self.log.append(entry | {"produced": self._engine.stats()["produced"]})

    def _begin(self, fault: Fault, produced: int) -> None:
        self._earliest = produced + APART
        self._begun_at = produced
        if fault.kind in TWISTS:
            self._engine.twist(TWISTS[fault.kind], fault.argument)
            self._waiting = fault
            self._earliest = produced + 1
        elif fault.kind == "garbage":
            self._waiting = fault
            self._look_again(fault, produced)
        else:
            getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    def _look_again(self, fault: Fault, produced: int) -> None:
        """A twist happens inside the engine; garbage goes out between two records."""
        if fault.kind == "garbage":
            happened, where = self._engine.garbage(fault.argument), {"at": produced}
        else:
            happened, where = not self._engine.twist_pending(), {}
        self._earliest = produced + (1 if fault.kind == "garbage" else STEP)
        if happened:
            self._note(fault, **self._engine.last_fault() | where)
            self._waiting = None
            self._earliest = produced + APART

    def _wait_drained(self, fault: Fault) -> bool:
        if self._wait(self._engine.is_drained, PATIENCE_S):
            return True
        self._note(fault, injected=False, reason="the ring was not drained")
        return False

    def _new_epoch(self, step: Callable[[], None]) -> None:
        self._engine.close_epoch()
        self.epochs.append(self._engine.epoch())
        step()

    # ---- flags ----

    def _overflow_burst(self, fault: Fault) -> None:
        self._engine.drop(fault.argument)
        self._note(fault)

    def _unknown_ring_flags(self, fault: Fault) -> None:
        self._engine.set_flags(UNKNOWN_RING_BITS)
        self._note(fault, bits=UNKNOWN_RING_BITS)

    def _freeze(self, fault: Fault) -> bool:
        self._engine.set_flags(RingFlag.FROZEN)
        drained = self._wait_drained(fault)
        if drained:
            time.sleep(fault.argument / 1000)
        return drained

    def _frozen(self, fault: Fault) -> None:
        if self._freeze(fault):
            self._note(fault)
        self._engine.set_flags(0, RingFlag.FROZEN)

    # ---- re-initialisation ----

    def _frozen_reset(self, fault: Fault) -> None:
        if self._freeze(fault):
            self._reset_now(fault)
        else:
            self._engine.set_flags(0, RingFlag.FROZEN)

    def _reset(self, fault: Fault) -> None:
        if self._wait_drained(fault):
            self._reset_now(fault)

    def _reset_now(self, fault: Fault) -> None:
        before = self._engine.stats()
        discarded = self._engine.discard_unread() if before["head"] != before["tail"] else 0
        if discarded and fault.kind != "reset-while-down":
            self.exact = False  # a consumer may have been reading it
        self._new_epoch(self._engine.reset)
        self._note(
            fault,
            at=before["produced"],
            cursor=before["head"],
            seq=before["seq"],
            bytes=before["head"] - before["tail"] & engines.UNLIMITED,
            discarded_records=discarded,
        )

    def _reset_while_down(self, fault: Fault) -> None:
        tail, since = self._engine.stats()["tail"], time.monotonic()

        def is_down() -> bool:
            nonlocal tail, since
            stats = self._engine.stats()
            if stats["tail"] != tail:
                tail, since = stats["tail"], time.monotonic()
            if stats["head"] == stats["tail"] and stats["produced"] < self._count:
                self._engine.run(stats["produced"] + 1, SHORT_NS)  # something to leave unread
                since = time.monotonic()
            return time.monotonic() - since >= STILL_S

        if self._wait(is_down, PATIENCE_S):
            self._reset_now(fault)
        else:
            self._note(fault, injected=False, reason="the consumer was not down")

    def _reset_at_tail(self, fault: Fault) -> None:
        tail = self._engine.stats()["tail"]
        if self._wait(lambda: self._engine.stats()["tail"] != tail, PATIENCE_S):
            self._reset_now(fault)
        else:
            self._note(fault, injected=False, reason="the consumer took nothing")

    def _version_bump(self, fault: Fault) -> None:
        if not self._wait_drained(fault):
            return
        self._new_epoch(lambda: self._engine.reset(fault.argument or ABI_VERSION + 1))
        self._note(fault)
        self.ended = True

    # ---- cursors ----

    def _move(self, fault: Fault, by: int) -> None:
        """Invalid until the consumer gives up and follows (R2); firmware then goes on there."""
        if not self._wait_drained(fault):
            return
        self._new_epoch(lambda: self._engine.move_head(by, go_on=True))
        followed = self._wait(self._engine.is_drained, PATIENCE_S)
        self._note(fault, followed=followed)

    def _move_for_a_moment(self, fault: Fault, by: int) -> None:
        if not self._wait_drained(fault):
            return
        self._engine.move_head(by, go_on=False)
        time.sleep(TRANSIENT_S)
        self._engine.move_head(0, go_on=False)
        self._note(fault)

    def _cursor_regress(self, fault: Fault) -> None:
        self._move(fault, -fault.argument)

    def _cursor_regress_transient(self, fault: Fault) -> None:
        self._move_for_a_moment(fault, -fault.argument)

    def _cursor_jump(self, fault: Fault) -> None:
        self._move(fault, fault.argument * self._engine.ring_size)

    def _cursor_jump_transient(self, fault: Fault) -> None:
        self._move_for_a_moment(fault, fault.argument * self._engine.ring_size)

    def _overrun(self, fault: Fault) -> None:
        before = self._engine.stats()
        records = self._engine.overrun(self._engine.ring_size + fault.argument)
        self.exact = False
        self._note(fault, cursor=before["head"], seq=before["seq"], bytes=0, records=records)

    # ---- time ----

    def _time_jump(self, fault: Fault) -> None:
        self._engine.shift_clock(fault.argument * 10**9)
        self._note(fault)

    def _time_jump_back(self, fault: Fault) -> None:
        self._engine.shift_clock(-fault.argument * 10**9)
        self._note(fault)

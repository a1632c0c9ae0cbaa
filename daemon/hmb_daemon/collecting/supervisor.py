# SPDX-License-Identifier: Apache-2.0
"""The ring's life as one table: in this state, at this event, under this policy, do that.

The actions are short; what they need of ring and collector is behind reattach.py and
collector.py.  Whatever the supervisor wants of the rest of the daemon it asks of its Host.
"""

from __future__ import annotations

import enum
import errno
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from hmb_daemon.collecting.collector import CannotStartError, Collector
from hmb_daemon.collecting.reattach import Finding, Reconnector
from hmb_daemon.settings import OnFrozen, Settings
from hmb_daemon.spool.causes import Cause, Note
from hmb_trace._core import lib
from hmb_trace.errors import HmbTraceError, InputOutputError, InvalidDataError
from hmb_trace.live.ring import Ring, invalid_cursors

_LOOK_S = 1.0  # between looks whether the ring is still what we attached to
_LOST = frozenset({errno.ENODEV, errno.ENXIO, errno.EIO})


class State(enum.StrEnum):
    """What the capture is doing."""

    ATTACHING = "attaching"
    RUNNING = "running"
    FROZEN = "frozen"  # drained, and watched for a change
    WAITING = "waiting"  # for a re-initialisation
    DISCONNECTED = "disconnected"  # no ring there
    STOPPING = "stopping"


class Event(enum.StrEnum):
    """What happened to the ring, or what somebody wants."""

    STARTED = "started"
    DRAINED = "drained"
    FROZEN = "frozen"
    THAWED = "thawed"
    REINITIALISED = "reinitialised"
    CURSORS_INVALID = "cursors-invalid"
    CORRUPT = "corrupt"
    GONE = "gone"  # the region, while it was being drained
    TAIL_REFUSED = "tail-refused"
    REPLACED = "replaced"  # the name leads to another region
    MISSING = "missing"  # the name leads nowhere
    THERE = "there"  # something is there again, and no ring yet
    TOO_NEW = "too-new"  # ... a ring of a version that we do not know
    BACK = "back"  # ... a ring
    STOP = "stop"


class When(enum.StrEnum):
    """Policies that choose between two answers."""

    ALWAYS = "always"
    ONCE = "once"
    EXIT_ON_FROZEN = "exit-on-frozen"
    ENDS_WITH_RING = "ends-with-ring"  # --once, or --on-frozen exit


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `action` is a method of Supervisor, `then` the state after it."""

    state: State | None  # None: any but STOPPING
    event: Event
    when: When
    action: str
    then: State | None = None  # None: the action decides, or nothing changes


S, E, W = State, Event, When
# The first row that fits is taken; what no row fits is ignored.
TABLE: tuple[Row, ...] = (
    Row(S.ATTACHING, E.STARTED, W.ALWAYS, "collect", S.RUNNING),
    # what the collector came back with
    Row(None, E.DRAINED, W.ALWAYS, "end_drained", S.STOPPING),
    Row(None, E.FROZEN, W.EXIT_ON_FROZEN, "end_frozen", S.STOPPING),
    Row(None, E.FROZEN, W.ALWAYS, "watch_frozen", S.FROZEN),
    Row(None, E.REINITIALISED, W.ONCE, "reattach_once"),
    Row(None, E.REINITIALISED, W.ALWAYS, "await_ring", S.WAITING),
    Row(None, E.CURSORS_INVALID, W.ONCE, "end_invalid", S.STOPPING),
    Row(None, E.CURSORS_INVALID, W.ALWAYS, "give_up_cursors"),
    Row(None, E.CORRUPT, W.ALWAYS, "end_corrupt", S.STOPPING),
    Row(None, E.GONE, W.ENDS_WITH_RING, "end_gone", S.STOPPING),
    Row(None, E.GONE, W.ALWAYS, "await_another_ring", S.DISCONNECTED),
    Row(None, E.TAIL_REFUSED, W.ALWAYS, "end_refused", S.STOPPING),
    Row(S.STOPPING, E.TAIL_REFUSED, W.ALWAYS, "keep_refusal"),
    # what a look at the name, or at a frozen ring, shows
    Row(S.RUNNING, E.REPLACED, W.ALWAYS, "drain_then_leave"),
    Row(S.FROZEN, E.THAWED, W.ALWAYS, "go_on", S.RUNNING),
    Row(S.DISCONNECTED, E.THAWED, W.ALWAYS, "go_on", S.RUNNING),
    Row(S.FROZEN, E.MISSING, W.ALWAYS, "nothing", S.DISCONNECTED),
    Row(S.WAITING, E.MISSING, W.ALWAYS, "nothing", S.DISCONNECTED),
    Row(S.DISCONNECTED, E.THERE, W.ALWAYS, "nothing", S.WAITING),
    Row(None, E.TOO_NEW, W.ALWAYS, "bear_too_new", S.WAITING),
    Row(S.FROZEN, E.BACK, W.ALWAYS, "begin_epoch"),
    Row(S.WAITING, E.BACK, W.ALWAYS, "begin_epoch"),
    Row(S.DISCONNECTED, E.BACK, W.ALWAYS, "begin_epoch"),
    # what people want
    Row(None, E.STOP, W.ALWAYS, "drain", S.STOPPING),
)
del S, E, W

_OF_STOP = {
    lib.HMB_STOP_DRAINED: Event.DRAINED,
    lib.HMB_STOP_FROZEN: Event.FROZEN,
    lib.HMB_STOP_REINIT: Event.REINITIALISED,
    lib.HMB_STOP_INVALID: Event.CURSORS_INVALID,
    lib.HMB_STOP_CORRUPT: Event.CORRUPT,
    lib.HMB_STOP_HANGUP: Event.GONE,
}
NOTED = {
    State.RUNNING: Note.RUNNING,
    State.FROZEN: Note.FROZEN,
    State.WAITING: Note.WAITING,
    State.DISCONNECTED: Note.DISCONNECTED,
}


def find_row(state: State, event: Event, holds: frozenset[When]) -> Row | None:
    """The table's answer.

    Args:
        holds: the policies that are in force.
    """
    for row in TABLE:
        fits = row.state is state or (row.state is None and state is not State.STOPPING)
        if fits and row.event is event and (row.when is When.ALWAYS or row.when in holds):
            return row
    return None


class Host(Protocol):
    """What the supervisor asks of the rest of the daemon."""

    log: Any

    def seal(self, cause: Cause) -> None:
        """Seal the open segment."""

    def stopping(self, cause: Cause, error: HmbTraceError | None) -> None:
        """The capture ends."""

    def state_changed(self, before: State, state: State, fields: dict[str, Any]) -> None:
        """For the log, the sidecar and whoever watches."""

    def ring_taken_over(self, ring: Ring, epoch: int) -> tuple[int, int]:
        """A new epoch has begun, maybe in another ring; the waits for it (active, idle)."""


class Supervisor:
    """Decides at every event. All of it runs on the main thread."""

    def __init__(self, host: Host, settings: Settings, ring: Ring, collector: Collector) -> None:
        self._host = host
        self.settings = settings
        self.ring = ring
        self.collector = collector
        self.state = State.ATTACHING
        self.ended: deque[int] = deque()  # stop codes that nobody has looked at yet
        self.must_start = False  # the collector could not be started; tick() tries again
        self._reconnector: Reconnector | None = None
        self._leaving = False  # draining a region whose name leads elsewhere
        self._lost = False  # the region is gone under the collector's feet
        self._looked_at = 0.0

    # -- the table

    def handle(self, event: Event, **about: Any) -> None:
        """Do what the table says."""
        row = find_row(self.state, event, self._policies())
        if row is None:
            return
        getattr(self, f"_{row.action}")(**about)
        if row.then is not None and self.state is not State.STOPPING:
            self._set_state(row.then)

    def _policies(self) -> frozenset[When]:
        exits = self.settings.on_frozen is OnFrozen.EXIT
        holds = {When.ONCE} if self.settings.once else set()
        holds |= {When.EXIT_ON_FROZEN} if exits else set()
        holds |= {When.ENDS_WITH_RING} if exits or self.settings.once else set()
        return frozenset(holds)

    def _set_state(self, state: State, about: dict[str, Any] | None = None) -> None:
        if state is not self.state:
            before, self.state = self.state, state
            self._host.state_changed(before, state, about or {})

    # -- looking

    @property
    def waits_for_ring(self) -> bool:
        """Whether it looks often."""
        return self._reconnector is not None or self.must_start

    @property
    def stopped(self) -> bool:
        """Whether the capture ends and nothing collects any more."""
        return self.state is State.STOPPING and not self.collector.running and not self.ended

    def tick(self) -> None:
        """Look at what happened since the last."""
        while self.ended:
            self._on_stop(self.ended.popleft())
        if self.must_start:
            self._start()
        if self._reconnector is not None:
            self._look_for_ring(self._reconnector)
        elif self.state is State.RUNNING and time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            self._watch_ring()

    def _watch_ring(self) -> None:
        """Once a second: is it still the ring that we attached to?

        A producer that died may have left its ring, and begun another one.  What the old
        region still holds is drained first.  A file that was cut short is gone.
        """
        if self.ring.is_cut():
            self._lost = True
            self.collector.stop()
        elif not self.ring.header_is_valid():
            self.collector.stop()
            self.collector.join()
            self.collector.allow()
            self.ended.clear()
            self.handle(Event.REINITIALISED)
        elif Reconnector(self.ring, self._host.log).replaced():
            self.handle(Event.REPLACED)

    def _on_stop(self, code: int) -> None:
        self.collector.join()
        if (self._leaving or self._lost) and self.state is not State.STOPPING:
            self._leaving = self._lost = False
            self.collector.allow()
            self.handle(Event.GONE)
            return
        if code == lib.HMB_STOP_DEVICE:
            lost = self.collector.error in _LOST and self.state is not State.STOPPING
            self.handle(Event.GONE if lost else Event.TAIL_REFUSED)
        elif code in _OF_STOP:
            self.handle(_OF_STOP[code])

    def _look_for_ring(self, looking: Reconnector) -> None:
        """Whether the ring is there again: the same region, or another under its name."""
        if self.collector.running:  # frozen, and the collector still watches this region
            if self.collector.thawed:
                self.handle(Event.THAWED)
                return
            if not looking.replaced():
                if looking.missing:
                    self.handle(Event.MISSING)
                return
            self.collector.stop()
            self.collector.join()
            self.ended.clear()
            self.collector.allow()
        found, ring = looking.look()
        self.handle(_OF_FINDING[found], **({"ring": ring} if ring is not None else {}))

    # -- actions: going on

    def _nothing(self) -> None:
        """The state alone changes."""

    def _collect(self) -> None:
        self._start()

    def _start(self) -> None:
        try:
            self.collector.start()
            self.must_start = False
        except CannotStartError as error:
            if self.state is State.ATTACHING:
                raise
            if not self.must_start:
                self._host.log.error("thread-failed", thread="collector", error=str(error))
            self.must_start = True

    def _watch_frozen(self) -> None:
        self._host.seal(Cause.FROZEN)
        self._reconnector = Reconnector(self.ring, self._host.log)
        self.collector.keep_frozen(True)
        self._start()

    def _go_on(self) -> None:
        self._reconnector = None

    def _await_ring(self) -> None:
        self._reconnector = Reconnector(self.ring, self._host.log)

    def _await_another_ring(self) -> None:
        self._host.log.warning("device-gone", device=self.settings.device)
        self._host.seal(Cause.HANGUP)
        self._reconnector = Reconnector(self.ring, self._host.log, gone=True)

    def _drain_then_leave(self) -> None:
        self._leaving = True
        self.collector.drain()

    def _give_up_cursors(self) -> None:
        view = self.ring.view()
        self._host.log.error("cursors-invalid", head=view.head, tail=view.tail)
        self._new_epoch(give_up=True)

    def _begin_epoch(self, ring: Ring) -> None:
        if ring is not self.ring:
            self.ring.close()
            self.ring = ring
        self.collector.use_ring(ring.c[0], fd=ring.fd)
        self._new_epoch(give_up=False)

    def _new_epoch(self, *, give_up: bool) -> None:
        """Go on in a new epoch, or keep waiting for one."""
        result = self.collector.new_epoch(give_up=give_up)
        looking = self._reconnector
        if result == 0:
            self._epoch_begun(give_up=give_up)
        elif result == -errno.EILSEQ and looking is not None:
            if looking.invalid_too_long() and not self.settings.once:
                self._new_epoch(give_up=True)
        elif result == -int(lib.HMB_STOP_DEVICE):
            lost = self.collector.error in _LOST
            self.handle(Event.GONE if lost else Event.TAIL_REFUSED)
        elif looking is None:
            self._await_ring()

    def _epoch_begun(self, *, give_up: bool) -> None:
        self._reconnector = None
        self.collector.keep_frozen(False)
        epoch = self.collector.epoch
        waits = self._host.ring_taken_over(self.ring, epoch)
        self.collector.use_ring(self.ring.c[0], waits, fd=self.ring.fd)
        self._host.log.warning(
            "epoch",
            epoch=epoch,
            tail=self.collector.tail,
            loss="unknown" if give_up else "none known",
        )
        self._set_state(State.RUNNING)
        self._start()

    def _bear_too_new(self) -> None:
        """A version that is only being written ends in a moment; another firmware's stays."""
        looking = self._reconnector
        if looking is not None and looking.too_new_for_good():
            self._end(Cause.REINITIALISED, looking.reason)

    # -- actions: the end

    def _end(self, cause: Cause, error: HmbTraceError | None = None) -> None:
        self._set_state(State.STOPPING, {"cause": cause.text})
        self._reconnector = None
        self.must_start = False
        self.collector.drain()
        self._host.stopping(cause, error)

    def _drain(self, cause: Cause = Cause.STOP, error: HmbTraceError | None = None) -> None:
        self._end(cause, error)

    def _end_drained(self) -> None:
        self._end(Cause.ONCE)

    def _end_frozen(self) -> None:
        self._end(Cause.FROZEN)

    def _end_invalid(self) -> None:
        self._end(Cause.INVALID_CURSORS, self._invalid_cursors())

    def _invalid_cursors(self) -> HmbTraceError:
        return invalid_cursors(self.settings.device, self.ring.view())

    def _reattach_once(self) -> None:
        """--once does not wait: the ring is there again now, or the capture ends."""
        looking = self._reconnector = Reconnector(self.ring, self._host.log)
        found, ring = looking.look()
        if found is Finding.RING and ring is not None:
            self._begin_epoch(ring)
        if self._reconnector is not None and self.state is not State.STOPPING:
            self._end(Cause.REINITIALISED, looking.reason or self._invalid_cursors())

    def _end_corrupt(self) -> None:
        self._end(
            Cause.CORRUPT,
            InvalidDataError(
                f"{self.settings.device}: no valid record at cursor {self.collector.tail}; stopped "
                "by --on-corrupt stop, tail is untouched"
            ),
        )

    def _end_gone(self) -> None:
        self._host.log.warning("device-gone", device=self.settings.device)
        self._end(Cause.HANGUP)

    def _refusal(self) -> HmbTraceError:
        code = self.collector.error
        text = os.strerror(code) if code > 0 else "unknown error"
        return InputOutputError(f"{self.settings.device}: cannot store tail: {text}")

    def _end_refused(self) -> None:
        self._end(Cause.DEVICE_ERROR, self._refusal())

    def _keep_refusal(self) -> None:
        self._host.stopping(Cause.DEVICE_ERROR, self._refusal())


_OF_FINDING = {
    Finding.NOTHING: Event.MISSING,
    Finding.NO_RING: Event.THERE,
    Finding.TOO_NEW: Event.TOO_NEW,
    Finding.RING: Event.BACK,
}

# SPDX-License-Identifier: Apache-2.0
"""The supervisor's table: every state meets every event, and each row does what it says."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from hmb_daemon.collecting import supervisor as subject
from hmb_daemon.collecting.collector import CannotStartError
from hmb_daemon.collecting.reattach import Finding
from hmb_daemon.collecting.supervisor import TABLE, Event, State, Supervisor, When, find_row
from hmb_daemon.settings import OnFrozen, Settings
from hmb_daemon.spool.causes import Cause

from hmb_trace._core import lib

IGNORED = {
    (State.ATTACHING, event)
    for event in (Event.REPLACED, Event.THAWED, Event.MISSING, Event.THERE, Event.BACK)
} | {
    *((state, Event.STARTED) for state in State if state is not State.ATTACHING),
    *((State.STOPPING, event) for event in Event if event is not Event.TAIL_REFUSED),
    *((State.RUNNING, e) for e in (Event.THAWED, Event.MISSING, Event.THERE, Event.BACK)),
    *((State.FROZEN, e) for e in (Event.REPLACED, Event.THERE)),
    *((State.WAITING, e) for e in (Event.REPLACED, Event.THERE, Event.THAWED)),
    *((State.DISCONNECTED, e) for e in (Event.REPLACED, Event.MISSING)),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_event_has_an_answer_or_is_ignored_on_purpose(state: State, event: Event) -> None:
    row = find_row(state, event, frozenset())
    assert (row is None) is ((state, event) in IGNORED)


def test_every_action_exists_and_every_row_can_be_reached() -> None:
    for number, row in enumerate(TABLE):
        assert callable(getattr(Supervisor, f"_{row.action}"))
        earlier = TABLE[:number]
        assert not any(
            e.event is row.event
            and e.when is When.ALWAYS
            and (e.state is row.state or (e.state is None and row.state is not State.STOPPING))
            for e in earlier
        ), row


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda event, **fields: self.said.append(event)


class Host:
    def __init__(self) -> None:
        self.log = Log()
        self.sealed: list[Cause] = []
        self.ended: list[tuple[Cause, Any]] = []
        self.states: list[State] = []

    def seal(self, cause: Cause) -> None:
        self.sealed.append(cause)

    def stopping(self, cause: Cause, error: Any) -> None:
        self.ended.append((cause, error))

    def state_changed(self, before: State, state: State, fields: dict[str, Any]) -> None:
        self.states.append(state)

    def ring_taken_over(self, ring: Any, epoch: int) -> tuple[int, int]:
        return 1, 2


class FakeCollector:
    """Runs when started; new_epoch() answers what a test put there."""

    def __init__(self) -> None:
        self.running = False
        self.asked = "nothing"
        self.thawed = False
        self.error = 0
        self.epoch = self.tail = 0
        self.answers: list[int] = []
        self.no_thread = 0
        self.frozen = False

    def start(self) -> None:
        if self.no_thread:
            self.no_thread -= 1
            raise CannotStartError("no thread")
        self.running = True

    def drain(self) -> None:
        self.asked = "drain"

    def stop(self) -> None:
        self.asked = "stop"

    def allow(self) -> None:
        self.asked = "nothing"

    def join(self) -> None:
        self.running = False

    def use_ring(self, ring: Any, waits: Any = None, *, fd: int) -> None:
        self.ring, self.fd = ring, fd

    def keep_frozen(self, keep: bool) -> None:
        self.frozen = keep

    def new_epoch(self, *, give_up: bool) -> int:
        result = self.answers.pop(0)
        self.epoch += result == 0
        return result


class FakeRing:
    def __init__(self, fd: int = 7) -> None:
        self.c = [object()]
        self.fd = fd
        self.cut = False
        self.valid = True
        self.closed = False

    def is_cut(self) -> bool:
        return self.cut

    def header_is_valid(self) -> bool:
        return self.valid

    def view(self) -> Any:
        return SimpleNamespace(head=1, tail=2, ring_size=64)

    def close(self) -> None:
        self.closed = True


class FakeReconnector:
    """What a look finds is set by the test."""

    finding: tuple[Finding, Any] = (Finding.NO_RING, None)
    elsewhere = False
    for_good = False
    too_long = False

    def __init__(self, ring: Any, log: Any, *, gone: bool = False) -> None:
        self.missing = False
        self.reason = None

    def replaced(self) -> bool:
        return type(self).elsewhere

    def look(self) -> tuple[Finding, Any]:
        return type(self).finding

    def too_new_for_good(self) -> bool:
        return type(self).for_good

    def invalid_too_long(self) -> bool:
        return type(self).too_long


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> type[FakeReconnector]:
    kind = type("Looking", (FakeReconnector,), {})
    monkeypatch.setattr(subject, "Reconnector", kind)
    return kind


def running(**settings: Any) -> tuple[Supervisor, Host, FakeCollector, FakeRing]:
    host, collector, ring = Host(), FakeCollector(), FakeRing()
    made: Any = Supervisor(host, Settings(device="x", **settings), ring, collector)  # type: ignore[arg-type]
    made.handle(Event.STARTED)
    assert made.state is State.RUNNING and collector.running
    return made, host, collector, ring


def test_once_ends_when_drained(looking: Any) -> None:
    supervisor, host, _, _ = running(once=True)
    supervisor.ended.append(lib.HMB_STOP_DRAINED)
    supervisor.tick()
    assert supervisor.state is State.STOPPING and supervisor.stopped
    assert [cause for cause, _ in host.ended] == [Cause.ONCE]


def test_frozen_is_watched_and_thaws_r5(looking: Any) -> None:
    supervisor, host, collector, _ = running()
    supervisor.ended.append(lib.HMB_STOP_FROZEN)
    supervisor.tick()
    assert (supervisor.state, host.sealed) == (State.FROZEN, [Cause.FROZEN])
    assert collector.running and collector.frozen
    collector.thawed = True
    supervisor.tick()
    assert supervisor.state is State.RUNNING and not supervisor.waits_for_ring


def test_frozen_ends_where_asked(looking: Any) -> None:
    supervisor, host, _, _ = running(on_frozen=OnFrozen.EXIT)
    supervisor.ended.append(lib.HMB_STOP_FROZEN)
    supervisor.tick()
    assert [cause for cause, _ in host.ended] == [Cause.FROZEN]


def test_reinitialised_ring_begins_an_epoch_r6(looking: Any) -> None:
    supervisor, _, collector, ring = running()
    supervisor.ended.append(lib.HMB_STOP_REINIT)
    supervisor.tick()
    assert supervisor.state is State.WAITING
    looking.finding, collector.answers = (Finding.RING, ring), [0]
    supervisor.tick()
    assert (supervisor.state, collector.epoch) == (State.RUNNING, 1)
    assert not ring.closed


def test_another_region_takes_the_place_of_one_that_is_gone_r6(looking: Any) -> None:
    supervisor, host, collector, ring = running()
    ring.cut = True
    looking.finding = (Finding.NOTHING, None)
    supervisor.tick()
    assert collector.asked == "stop"
    supervisor.ended.append(lib.HMB_STOP_ASKED)
    supervisor.tick()
    assert (supervisor.state, host.sealed) == (State.DISCONNECTED, [Cause.HANGUP])
    other = FakeRing(fd=8)
    looking.finding, collector.answers = (Finding.RING, other), [0]
    supervisor.tick()
    assert supervisor.ring is other and ring.closed and supervisor.state is State.RUNNING
    assert (collector.ring, collector.fd) == (other.c[0], 8)


def test_a_name_that_leads_elsewhere_is_left_after_draining(looking: Any) -> None:
    supervisor, _, collector, _ = running()
    looking.elsewhere = True
    supervisor._looked_at = 0
    supervisor.tick()
    assert collector.asked == "drain"
    looking.finding = (Finding.NOTHING, None)
    supervisor.ended.append(lib.HMB_STOP_ASKED)
    supervisor.tick()
    assert supervisor.state is State.DISCONNECTED


def test_header_rewritten_in_place_is_a_reinitialisation_r6(looking: Any) -> None:
    supervisor, _, _, ring = running()
    ring.valid = False
    supervisor._looked_at = 0
    supervisor.tick()
    assert supervisor.state is State.WAITING


def test_a_newer_version_that_stays_ends_it_and_one_that_passes_does_not(looking: Any) -> None:
    supervisor, host, _, _ = running()
    supervisor.ended.append(lib.HMB_STOP_REINIT)
    looking.finding = (Finding.TOO_NEW, None)
    supervisor.tick()
    assert supervisor.state is State.WAITING
    looking.for_good = True
    supervisor.tick()
    assert supervisor.state is State.STOPPING and len(host.ended) == 1


def test_invalid_cursors_r2(looking: Any) -> None:
    supervisor, host, collector, _ = running()
    collector.answers = [0]
    supervisor.ended.append(lib.HMB_STOP_INVALID)
    supervisor.tick()
    assert supervisor.state is State.RUNNING and collector.epoch == 1
    once, host, _, _ = running(once=True)
    once.ended.append(lib.HMB_STOP_INVALID)
    once.tick()
    ((cause, error),) = host.ended
    assert cause is Cause.INVALID_CURSORS and error is not None


@pytest.mark.parametrize(
    ("code", "state"), [(errno.ENODEV, "disconnected"), (errno.EPERM, "stopping")]
)
def test_refused_tail(looking: Any, code: int, state: str) -> None:
    supervisor, _, collector, _ = running()
    collector.error = code
    looking.finding = (Finding.NOTHING, None)
    supervisor.ended.append(lib.HMB_STOP_DEVICE)
    supervisor.tick()
    assert supervisor.state == state


def test_no_thread_in_mid_capture_is_tried_again(looking: Any) -> None:
    supervisor, host, collector, ring = running()
    supervisor.ended.append(lib.HMB_STOP_REINIT)
    supervisor.tick()
    looking.finding, collector.answers, collector.no_thread = (Finding.RING, ring), [0], 2
    supervisor.tick()
    assert not collector.running and supervisor.waits_for_ring
    supervisor.tick()
    supervisor.tick()
    assert collector.running and not supervisor.must_start
    assert host.log.said.count("thread-failed") == 1

# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any instant: the records reach the dump set exactly once all the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tests.conftest import Programs, Running, wait_until
from tests.integration.daemonlib import Rig, assert_equals_ledger, logged, summary

SEED = int(os.environ.get("HMB_TRACE_TORTURE_SEED", "20"))
LOAD = ("--rate", "max", "--on-full", "block", "--freeze-at-end", "--payload", "0..200")


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def written(rig: Rig) -> int:
    """Bytes in the dump set so far, open segment included."""
    size = 0
    for path in rig.out.glob("*.bin*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            size += path.stat().st_size
    return size


def finish(rig: Rig, simulator: Running) -> Running:
    daemon = rig.daemon("--on-frozen", "exit", *ROTATE).expect(0, timeout=600)  # a soak is long
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    assert list((rig.folder / "spool").iterdir()) == []
    return daemon


ROTATE = ("--rotate-size", "3MiB", "--fsync", "never")


def torture(rig: Rig, kills: int, records: int) -> None:
    """Kill at random moments, each time only after the dump set grew."""
    chance = random.Random(SEED)
    simulator = rig.simulate(*LOAD, "--ring-size", "256KiB", "--count", str(records))
    for _ in range(kills):
        before = written(rig)
        daemon = rig.daemon("--on-frozen", "exit", *ROTATE)
        goal = before + chance.randrange(1, 1 << 20)
        wait_until(
            lambda goal=goal, daemon=daemon: (
                written(rig) >= goal or daemon.process.poll() is not None
            ),
            "the dump set to grow",
        )
        if daemon.process.poll() is not None:
            pytest.fail(f"the load ended before all kills were done: {daemon.stderr[-500:]}")
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
    finish(rig, simulator)


def test_twenty_kills_exactly_once(rig: Rig) -> None:
    torture(rig, kills=20, records=2_000_000)


@pytest.mark.soak
def test_five_hundred_kills_exactly_once(rig: Rig) -> None:
    torture(rig, kills=500, records=60_000_000)


COLLECTOR_STEPS = (
    *("collector-before-copy:7", "collector-before-commit:7", "collector-inside-commit:7"),
    *(
        "collector-after-commit:7",
        "collector-after-tail:7",
        "collector-after-commit:1",
        "collector-after-commit:4",
    ),
    *("recover-before-tail", "collector-after-tail:1"),
)
WRITER_STEPS = (
    *("segment-named", "segment-opened", "recovered", "data-written:3", "data-committed:3"),
    *("events-written:2", "journal-committed:2", "seal-committed", "recovered", "seal-data"),
    *("seal-sidecar", "seal-rejects", "seal-renamed", "seal-synced", "seal-events", "seal-done:2"),
)


@pytest.mark.parametrize("steps", [COLLECTOR_STEPS, WRITER_STEPS], ids=["collector", "writer"])
def test_killed_between_every_two_steps_exactly_once(rig: Rig, steps: tuple[str, ...]) -> None:
    """One load, one daemon after the other, each killed at its step; some while recovering."""
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "1200000")
    for step in steps:
        daemon = rig.daemon("--on-frozen", "exit", *ROTATE, env={"HMB_TRACE_TEST_KILL": step})
        assert daemon.wait() == -signal.SIGKILL, f"{step}: {daemon.stderr}"
    finish(rig, simulator)


def test_killed_between_commit_and_tail_while_recovering(rig: Rig) -> None:
    """The ring still holds what the spool has: taken once, though `tail` was never stored."""
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "50000")
    args = ("--on-frozen", "exit", *ROTATE)
    first = rig.daemon(*args, env={"HMB_TRACE_TEST_KILL": "collector-after-commit:3"})
    assert first.wait() == -signal.SIGKILL, first.stderr
    again = rig.daemon(*args, env={"HMB_TRACE_TEST_KILL": "recover-before-tail"})
    assert again.wait() == -signal.SIGKILL, again.stderr
    daemon = finish(rig, simulator)
    assert logged(daemon, "spool-resumed")
    assert summary(daemon)["lost"] == 0

# SPDX-License-Identifier: Apache-2.0
"""Every fault of the simulator against the daemon as users run it: the ledger foretells it."""

from __future__ import annotations

import signal
import struct
from pathlib import Path

import pytest

from tests.conftest import Programs, wait_until
from tests.integration.daemonlib import Rig, assert_equals_ledger, logged, sidecars

COUNT = "6000"
FAST = (
    *("--ring-size", "32KiB", "--payload", "0..200", "--rate", "max"),
    *("--count", COUNT, "--on-full", "block"),
)
COUNTED = {
    "duplicates": "duplicates",
    "sequence_resets": "sequence_resets",
    "rejected_bytes": "rejected_bytes",
    "resyncs": "resyncs",
    "lying_lengths": "lying_lengths",
    "unknown_flags": "unknown_flags",
    "markers_cleaned": "markers_cleaned",
    "lost": "dropped",
    "gaps": "drop_gaps",
}
DAMAGE = [
    *("corrupt-magic@300", "oversize-length@600", "lying-length@900", "torn-record@1200"),
    *("unknown-flags@1500", "damaged-marker@1600", "dirty-marker@2600", "garbage@4200"),
    *("garbage:8@4500", "garbage:16000@4800", "duplicate-seq@5100", "overflow-burst@5400"),
    "backward-seq@5700",
]
HARMLESS = [
    *("unknown-ring-flags@500", "time-jump@1500", "frozen:20@2000", "time-jump-back@2500"),
    *("cursor-regress-transient@3000", "cursor-jump-transient@4000"),
]
NEW_EPOCHS = ["reset@1000", "cursor-regress@2000", "frozen-reset:20@3000", "cursor-jump@4000"]


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def run_pair(rig: Rig, *faults: str) -> None:
    """The workload with faults, drained by a daemon until firmware freezes for good."""
    given = [word for fault in faults for word in ("--fault", fault)]
    simulator = rig.simulate(*FAST, *given, "--linger", "20s")
    daemon = rig.daemon("--on-frozen", "wait")
    simulator.expect(0)
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)


def cursors(rig: Rig) -> tuple[int, int]:
    """head and tail."""
    with rig.ring_file.open("rb") as ring:
        return struct.unpack_from("<QQ", ring.read(32), 16)


def assert_counted(rig: Rig) -> None:
    ledger = rig.ledger
    assert all(fault["injected"] for fault in ledger["faults"])
    assert_equals_ledger(rig.out, ledger)
    sides = sidecars(rig.out)
    found = {name: sum(side.counters[name] for side in sides) for name in COUNTED}
    assert found == {name: ledger[key] for name, key in COUNTED.items()}


@pytest.mark.parametrize("faults", [DAMAGE, HARMLESS], ids=["damage", "harmless"])
def test_faults_are_counted_and_the_rest_kept_r8_r9(rig: Rig, faults: list[str]) -> None:
    run_pair(rig, *faults)
    assert_counted(rig)
    assert {side.epoch for side in sidecars(rig.out)} == {0}


def test_faults_begin_new_epochs_r6(rig: Rig) -> None:
    run_pair(rig, *NEW_EPOCHS)
    assert_counted(rig)
    sides, epochs = sidecars(rig.out), rig.ledger["epochs"]
    assert [side.epoch for side in sides] == list(range(5))
    for side, epoch in zip(sides, epochs, strict=True):
        assert (side.records, side.bytes) == (epoch["records"], epoch["bytes"])
        assert (side.first_seq, side.last_seq) == (epoch["first_seq"], epoch["last_seq"])


def test_reset_while_the_consumer_is_down_r6(rig: Rig) -> None:
    """What nobody had read is gone; the new epoch is whole; the old one's tail stays away."""
    simulator = rig.simulate(*FAST, "--fault", "reset-while-down@3000", "--linger", "20s")
    first = rig.daemon("--on-frozen", "wait")
    wait_until(lambda: list(rig.out.glob("*.part")), "the first segment")
    first.signal(signal.SIGTERM)
    first.expect(0)
    # Firmware notices that nobody reads, and starts again; its ring fills until we are back.
    wait_until(lambda: cursors(rig)[0] > 0 and cursors(rig)[1] == 0, "the reset")
    second = rig.daemon("--on-frozen", "wait")
    simulator.expect(0)
    second.signal(signal.SIGTERM)
    second.expect(0)
    assert len(rig.ledger["epochs"]) == 2
    assert rig.ledger["exact"]
    assert_equals_ledger(rig.out, rig.ledger)


def test_version_bump_r1_is_refused(rig: Rig) -> None:
    simulator = rig.simulate(*FAST, "--fault", "version-bump@3000")
    daemon = rig.daemon("--on-frozen", "wait").expect(76)
    simulator.expect(0)
    assert "version" in daemon.stderr
    assert_equals_ledger(rig.out, rig.ledger)


def test_overrun_r7_never_passes_silently(rig: Rig) -> None:
    """Kept, rejected or lost: every record is one of these, and nothing hangs."""
    simulator = rig.simulate(*FAST, "--fault", "overrun@3000", "--linger", "20s")
    daemon = rig.daemon("--on-frozen", "wait")
    simulator.expect(0)
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    assert not rig.ledger["exact"]
    sides = sidecars(rig.out)
    kept = sum(side.records for side in sides)
    told = sum(
        side.counters[name]
        for side in sides
        for name in ("overruns", "unknown_losses", "lost", "rejected_bytes", "resyncs")
    )
    assert kept <= rig.ledger["records"]
    assert told > 0 or kept == rig.ledger["records"] or len(sides) > 1
    assert not logged(daemon, "traceback")

# SPDX-License-Identifier: Apache-2.0
"""Firmware that does it wrong: every good record is kept, every fault is counted as it was made."""

from __future__ import annotations

import signal
import struct
from pathlib import Path

import pytest

from hmb_trace.dumps import rejects
from tests.conftest import Programs, wait_until
from tests.integration.daemonlib import (
    Rig,
    assert_equals_ledger,
    log,
    segments,
    sidecars,
    summary,
    walk,
)

LOAD = ("--ring-size", "64KiB", "--payload", "0..120", "--rate", "max", "--count", "20000")
COUNTED = (
    *("duplicates", "sequence_resets", "rejected_records", "rejected_bytes"),
    *("resyncs", "lying_lengths", "unknown_flags", "markers_cleaned", "truncated", "straddled"),
)
IN_THE_STREAM = (
    *("corrupt-magic", "oversize-length", "lying-length", "torn-record", "unknown-flags"),
    *("duplicate-seq", "backward-seq", "damaged-marker", "dirty-marker", "garbage:8"),
    *("garbage:4096", "time-jump", "time-jump-back", "unknown-ring-flags"),
)
OF_THE_RING = (
    *("frozen", "frozen-reset", "reset", "reset-now", "cursor-regress", "cursor-regress-transient"),
    *("cursor-jump", "cursor-jump-transient"),
)

EPOCHS = {"frozen-reset": 1, "reset": 1, "reset-now": 1, "cursor-jump": 1}
EPOCHS["cursor-regress"] = 1
LOSING = ("cursor-jump", "cursor-regress")


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def rejected_bytes(rig: Rig) -> int:
    """Bytes in the rejects files."""
    return sum(
        len(entry.data)
        for path in segments(rig.out)
        if (beside := path.with_name(path.stem + ".rejects")).exists()
        for entry in rejects.read(beside)
    )


def run(rig: Rig, *args: object) -> dict[str, int]:
    """Simulator with faults and daemon, to the end; the daemon's counters over all segments."""
    simulator = rig.simulate(*LOAD, "--on-full", "block", "--freeze-at-end", *args)
    daemon = rig.daemon("--on-frozen", "exit").expect(0, timeout=40)
    simulator.expect(0)
    assert "Traceback" not in daemon.stderr
    assert summary(daemon)["stalls"] == 0
    total: dict[str, int] = {}
    for side in sidecars(rig.out):
        for name, value in side.counters.items():
            total[name] = total.get(name, 0) + value
    return total


def test_many_faults_in_one_stream(rig: Rig) -> None:
    faults = [
        arg
        for n, kind in enumerate(IN_THE_STREAM)
        for arg in ("--fault", f"{kind}@{n * 999 + 500}")
    ]
    total = run(rig, *faults)
    ledger = rig.ledger
    assert_equals_ledger(rig.out, ledger)
    assert {name: total[name] for name in COUNTED} == {name: ledger[name] for name in COUNTED}
    assert total["lost"] == ledger["dropped"]
    assert rejected_bytes(rig) == total["rejected_bytes"]


def test_rejects_survive_kills_r9(rig: Rig) -> None:
    """Every rejected byte is in a rejects file once, though the daemon dies around each."""
    faults = [arg for n in range(12) for arg in ("--fault", f"garbage:4096@{n * 2000 + 700}")]
    args = (*LOAD[:-1], "300000", "--on-full", "block", "--freeze-at-end", *faults)
    simulator = rig.simulate(*args)
    for step in ("rejects-written", "events-written:2", "journal-committed:2", "seal-rejects"):
        daemon = rig.daemon(
            *("--on-frozen", "exit", "--rotate-size", "512KiB"), env={"HMB_TRACE_TEST_KILL": step}
        )
        assert daemon.wait() == -signal.SIGKILL, f"{step}: {daemon.stderr}"
    rig.daemon("--on-frozen", "exit", "--rotate-size", "512KiB").expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    sides = sidecars(rig.out)
    assert rejected_bytes(rig) == rig.ledger["rejected_bytes"] == 12 * 4096
    assert sum(side.rejects.bytes for side in sides if side.rejects) == 12 * 4096
    assert sum(side.counters["rejected_bytes"] for side in sides) == 12 * 4096


@pytest.mark.parametrize("fault", OF_THE_RING)
def test_fault_of_the_ring_r2_r6_r7(rig: Rig, fault: str) -> None:
    """The daemon lives through it and goes on, in a new epoch where the ring is another."""
    simulator = rig.simulate(*LOAD, "--on-full", "block", "--fault", fault, "--keep")
    daemon = rig.daemon()
    simulator.expect(0)
    daemon.process.terminate()
    daemon.expect(0)
    ledger, sides = rig.ledger, sidecars(rig.out)
    found, fnv = walk(segments(rig.out))
    if ledger["exact"]:
        assert (found.records, found.offset) == (ledger["records"], ledger["bytes"])
        assert f"{fnv:#018x}" == ledger["fnv64"]
    else:
        assert found.records <= ledger["records"]
    epochs = EPOCHS.get(fault, 0)
    assert sides[-1].epoch == epochs
    assert summary(daemon)["epochs"] == epochs
    # A region given up, or overrun, lost what nobody can count; a clean reset lost nothing.
    assert all(side.complete for side in sides) is (fault not in LOSING)


def test_overrun_never_passes_silently_r7(rig: Rig) -> None:
    """Whether we were overtaken depends on the moment; that records are missing is always said."""
    simulator = rig.simulate(*LOAD, "--on-full", "block", "--fault", "overrun", "--keep")
    daemon = rig.daemon()
    simulator.expect(0)
    daemon.process.terminate()
    daemon.expect(0)
    found, _ = walk(segments(rig.out))
    told = summary(daemon)
    if found.records < rig.ledger["records"]:
        assert told["rejected_records"] or told["lost"]


def test_version_bump_ends_with_76_r6(rig: Rig) -> None:
    """What comes back speaks a newer version: there is nothing to wait for."""
    simulator = rig.simulate(*LOAD, "--on-full", "block", "--fault", "version-bump", "--keep")
    daemon = rig.daemon().expect(76)
    assert "version" in daemon.stderr.splitlines()[-1]
    simulator.kill()
    sides = sidecars(rig.out)
    assert sum(side.records for side in sides) > 0
    assert list(rig.out.glob("*.part")) == []


def test_new_region_under_the_same_name_is_a_new_epoch(rig: Rig) -> None:
    """The simulator ends, its memory goes, another one takes the name: disconnected, then on."""
    first = rig.simulate(*LOAD, "--on-full", "block", "--freeze-at-end")
    daemon = rig.daemon()
    first.expect(0)
    wait_until(lambda: any(line.get("state") == "disconnected" for line in log(daemon)), "the gap")
    one = rig.ledger
    second = rig.simulate(*LOAD, "--on-full", "block", "--freeze-at-end")
    second.expect(0)
    daemon.process.terminate()
    daemon.expect(0)
    two = rig.ledger
    sides = sidecars(rig.out)
    assert [side.epoch for side in sides] == [0, 1]
    assert [side.records for side in sides] == [one["records"], two["records"]]
    noted = [note.id for note in sides[1].events]
    assert "state-disconnected" in noted and "state-running" in noted


def test_reset_while_the_daemon_is_down_r6(rig: Rig) -> None:
    """A leftover spool does not continue a ring that was re-initialised meanwhile."""
    args = ("--on-full", "block", "--fault", "reset-while-down@1000", "--freeze-at-end")
    simulator = rig.simulate(*LOAD, *args)
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": "collector-after-tail:1"})
    assert first.wait() == -signal.SIGKILL
    wait_until(lambda: head_of(rig) < 1 << 16, "the reset")
    daemon = rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    sides = sidecars(rig.out)
    assert [side.cause for side in sides] == ["reinitialised", "frozen"]
    assert [side.epoch for side in sides] == [0, 1]
    assert sides[1].records == rig.ledger["epochs"][-1]["records"]
    assert summary(daemon)["records"] == sides[1].records


def head_of(rig: Rig) -> int:
    (head,) = struct.unpack_from("<Q", rig.ring_file.read_bytes(), 0x10)
    return int(head)

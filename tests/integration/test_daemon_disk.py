# SPDX-License-Identifier: Apache-2.0
"""Disks that stall, fail and fill; hosts that die: what is promised in docs/durability.md."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Programs, Running, program, require, wait_until
from tests.integration.daemonlib import (
    Rig,
    assert_equals_ledger,
    leftovers,
    logged,
    segments,
    sidecars,
    summary,
    walk,
)

LOAD = ("--rate", "max", "--on-full", "block", "--freeze-at-end", "--payload", "0..300")


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB of its own, of which a ballast leaves 8."""
    require(os.geteuid() == 0, "mounting a small tmpfs takes root")
    place = tmp_path / "out"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, check=False)
    require(done.returncode == 0, "mounting a small tmpfs is not allowed here")
    (place / "ballast").write_bytes(bytes(56 << 20))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    ("io", "fault"),
    [("direct", "eio:3"), ("direct", "short:1"), ("buffered", "enospc:2"), ("buffered", "short:4")],
)
def test_failing_writes_lose_nothing(rig: Rig, io: str, fault: str) -> None:
    simulator = rig.simulate(*LOAD, "--ring-size", "256KiB", "--count", "30000")
    daemon = rig.daemon(
        *("--on-frozen", "exit", "--rotate-size", "1MiB", "--io", io),
        env={"HMB_TRACE_TEST_WRITE": fault},
    ).expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    if not fault.startswith("short"):
        (resumed,) = logged(daemon, "disk-resumed")
        assert resumed["level"] == "warning"


def test_held_writer_is_absorbed_by_the_spool(rig: Rig) -> None:
    """Three seconds without a write at 200 MB/s: the ring keeps being drained."""
    free = os.statvfs("/dev/shm")
    require(free.f_bavail * free.f_frsize > 2 << 30, "needs 2 GiB of free shared memory")
    args = ("--rate", "2083333/s", "--payload", "64..64", "--count", "7500000", "--on-full", "drop")
    simulator = rig.simulate(
        *(*args, "--ring-size", "16MiB", "--freeze-at-end", "--await-consumer", "30s")
    )
    simulator.signal(signal.SIGSTOP)  # a spool of that size takes a moment
    shm = tempfile.mkdtemp(prefix="hmbtest-", dir="/dev/shm")
    try:
        daemon = rig.daemon(
            *("--on-frozen", "exit", "--spool-size", "1GiB", "--spool-dir", shm),
            env={"HMB_TRACE_TEST_HOLD": "3"},
        )
        wait_until(lambda: logged(daemon, "state"), "the daemon to run")
        simulator.signal(signal.SIGCONT)
        daemon.expect(0)
    finally:
        shutil.rmtree(shm)
    simulator.expect(0)
    assert rig.ledger["dropped"] + rig.ledger["dropped_unseen"] == 0
    assert summary(daemon)["stalls"] == 0
    assert_equals_ledger(rig.out, rig.ledger)


def test_stopped_daemon_goes_on(rig: Rig) -> None:
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "60000")
    daemon = rig.daemon("--on-frozen", "exit")
    for _ in range(5):
        daemon.signal(signal.SIGSTOP)
        daemon.signal(signal.SIGCONT)
    daemon.expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)


def test_full_disk_pauses_and_resumes_by_itself(rig: Rig, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(62 << 20))
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "30000")
    daemon = rig.daemon("--on-frozen", "exit", "--rotate-size", "1MiB")
    wait_until(lambda: logged(daemon, "disk-full"), "the disk to be full")
    wait_until(lambda: simulator.process.poll() is not None or rig.ledger_file.exists(), "the load")
    ballast.unlink()
    daemon.expect(0)
    simulator.expect(0)
    assert logged(daemon, "disk-resumed")
    assert_equals_ledger(rig.out, rig.ledger)
    noted = [note.id for side in sidecars(rig.out) for note in side.events]
    assert "disk-full" in noted and "disk-resumed" in noted


def test_full_disk_beyond_the_spool_loses_what_is_reported(rig: Rig, small_disk: Path) -> None:
    """Nobody empties the disk before spool and ring are full: what firmware drops then is told."""
    ballast = small_disk / "ballast"
    simulator = rig.simulate(
        *("--rate", "1M/s", "--on-full", "drop", "--payload", "64..64", "--count", "1500000"),
        *("--ring-size", "1MiB", "--freeze-at-end", "--linger", "60s"),
    )
    daemon = rig.daemon("--on-frozen", "exit", "--rotate-size", "1MiB")
    wait_until(lambda: logged(daemon, "disk-full"), "the disk to be full")
    wait_until(rig.ledger_file.exists, "the end of the load")
    ballast.unlink()
    simulator.expect(0)
    daemon.expect(0)
    # Drops after the last record leave no gap that could be counted.
    lost = f"{rig.ledger['dropped']}{' + unknown' * bool(rig.ledger['dropped_unseen'])}"
    assert rig.ledger["dropped"] > 0
    assert str(summary(daemon)["lost"]) == lost
    assert_equals_ledger(rig.out, rig.ledger)


def test_full_disk_does_not_hold_a_stop_for_ever(rig: Rig, small_disk: Path) -> None:
    """Exit 74; the spool keeps the rest, and the next start finishes it."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(63 << 20))
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "20000")
    daemon = rig.daemon("--on-frozen", "exit").expect(74)
    assert "spool" in daemon.stderr.splitlines()[-1]
    simulator.expect(0)
    ballast.unlink()
    # The ring went with its firmware meanwhile: that is said, and the records are sealed first.
    rig.daemon("--on-frozen", "exit").expect(66)
    assert_equals_ledger(rig.out, rig.ledger)


def test_full_disk_drops_the_oldest(rig: Rig, small_disk: Path) -> None:
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "120000")
    daemon = rig.daemon(
        *("--on-frozen", "exit", "--rotate-size", "1MiB", "--disk-full", "drop-oldest")
    ).expect(0)
    simulator.expect(0)
    deleted = logged(daemon, "segment-deleted")
    assert deleted and all(line["why"] == "disk-full" for line in deleted)
    sides = sidecars(rig.out)
    assert sides[0].number == len(deleted) + 1
    found, _ = walk(segments(rig.out))
    assert (found.lost, found.last_record_seq) == (0, rig.ledger["last_seq"])


def open_segments(rig: Rig) -> list[Path]:
    """Segments being written that hold something; one may be sealed while we look."""
    found = []
    for path in rig.out.glob("*.bin.part"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                found.append(path)
    return found


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def kill_with_open_segment(rig: Rig, daemon: Running) -> Path:
    """kill -9 at a moment at which a segment is open: hold the daemon still, look, go on if not."""
    while True:
        wait_until(lambda: open_segments(rig), "an open segment")
        os.kill(daemon.pid, signal.SIGSTOP)
        wait_until(lambda: stands_still(daemon.pid), "the daemon to stand still")
        found = open_segments(rig)
        os.kill(daemon.pid, signal.SIGKILL if found else signal.SIGCONT)
        if found:
            daemon.wait()
            return found[0]


def host_dies(rig: Rig, chance: random.Random, zeros: int) -> int:
    """kill -9, then take what a dead host would: the spool, and the end of the open segment."""
    rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "400000", "--keep", "--linger", "0")
    # Longer than the writer's buffer, or a segment would be there for no longer than its seal.
    daemon = rig.daemon("--rotate-size", "8MiB", "--fsync", "100ms")
    wait_until(lambda: len(list(rig.out.glob("*.bin"))) >= 1, "a sealed segment")
    part = kill_with_open_segment(rig, daemon)
    for path in (rig.folder / "spool").iterdir():
        path.unlink()
    kept = chance.randrange(part.stat().st_size)
    with part.open("r+b") as file:
        file.truncate(kept)
        file.truncate(kept + zeros)
    return kept


@pytest.mark.parametrize(("seed", "zeros"), [(1, 0), (2, 0), (3, 8192)])
def test_dead_host_r14(rig: Rig, seed: int, zeros: int) -> None:
    """Cut at the first invalid byte; zeros behind the data are no data."""
    kept = host_dies(rig, random.Random(seed), zeros)
    daemon = rig.drain()
    assert leftovers(rig.out) == []
    sides = sidecars(rig.out)
    (dead,) = [side for side in sides if side.cause == "host-died"]
    assert not dead.complete
    # Nobody can tell a payload's missing end from zeros: there the last record may be whole.
    assert kept - 4096 < dead.bytes <= kept + (4096 if zeros else 0)
    found, _ = walk(segments(rig.out))
    assert found.records == sum(side.records for side in sides)
    (recovered,) = logged(daemon, "segment-recovered")
    assert recovered["bytes"] == dead.bytes
    # The ring outlived the "host": counting goes on from the last record of the dead segment.
    after = sides[-1]
    if after.number > dead.number and dead.last_seq is not None:
        assert after.gap_list[0].seq_before == dead.last_seq
        assert after.gap_list[0].lost == after.first_seq - dead.last_seq - 1


def test_a_dead_host_s_segment_tells_its_own_ring_r14(rig: Rig) -> None:
    """After a boot the ring may have another size; what was captured before does not."""
    rig.fill("--ring-size", "64KiB", "--count", "500")
    kill = {"HMB_TRACE_TEST_KILL": "journal-committed"}
    rig.daemon("--once", env=kill).expect(-signal.SIGKILL)
    shutil.rmtree(rig.folder / "spool")
    rig.ring_file.unlink()
    rig.fill("--ring-size", "16KiB", "--count", "5")
    rig.drain()
    sides = sidecars(rig.out)
    assert [(side.cause, side.ring_size) for side in sides] == [
        ("host-died", 65536),
        ("once", 16384),
    ]


def test_another_output_directory_finishes_the_old_one_first(rig: Rig) -> None:
    """A leftover spool's records go where they belong; the ring goes on without a gap."""
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "30000")
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": "collector-after-tail:9"})
    assert first.wait() == -signal.SIGKILL
    other = rig.folder / "other"
    daemon = rig.programs.run(
        *("hmb-trace-daemon", "--device", rig.ring, "--output-dir", other),
        *("--spool-dir", rig.folder / "spool", "--spool-size", "16MiB", "--on-frozen", "exit"),
    )
    simulator.expect(0)
    old, new = sidecars(rig.out), sidecars(other)
    assert [side.cause for side in (*old, *new)] == ["restart", "frozen"]
    found, fnv = walk([*segments(rig.out), *segments(other)])
    assert f"{fnv:#018x}" == rig.ledger["fnv64"]
    assert new[0].first_seq == old[0].last_seq + 1 and new[0].lost == 0
    assert summary(daemon)["records"] == new[0].records
    assert found.records == rig.ledger["records"]


def test_sidecar_hash_is_that_of_the_file(rig: Rig) -> None:
    import xxhash  # noqa: PLC0415 - only here

    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "60000", "--keep")
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": "data-committed:2"})
    assert first.wait() == -signal.SIGKILL
    rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    for path, side in zip(segments(rig.out), sidecars(rig.out), strict=True):
        assert xxhash.xxh3_64_hexdigest(path.read_bytes()) == side.xxh3


@pytest.mark.parametrize("step", ["data-committed:3", "journal-committed:2"])
def test_smaller_limit_after_a_crash_cuts_at_records(rig: Rig, step: str) -> None:
    """The open segment is longer than the new --rotate-size: it ends at the next boundary."""
    simulator = rig.simulate(*LOAD, "--ring-size", "4MiB", "--count", "60000", "--keep")
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": step})
    assert first.wait() == -signal.SIGKILL
    rig.daemon("--on-frozen", "exit", "--rotate-size", "128KiB").expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    for path, side in zip(segments(rig.out), sidecars(rig.out), strict=True):
        alone, _ = walk([path])
        assert (alone.records, alone.offset) == (side.records, side.counters["bytes"])


def test_vanished_segment_does_not_stop_the_capture(rig: Rig) -> None:
    """Somebody deletes the open segment while the daemon is down."""
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "60000", "--keep")
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": "data-committed:3"})
    assert first.wait() == -signal.SIGKILL
    (part,) = rig.out.glob("*.bin.part")
    part.unlink()
    daemon = rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    (lost,) = logged(daemon, "segment-vanished")
    (side,) = sidecars(rig.out)
    found, _ = walk(segments(rig.out))
    assert lost["bytes"] + side.bytes == rig.ledger["bytes"]
    assert (found.lost, found.last_record_seq) == (0, rig.ledger["last_seq"])
    assert leftovers(rig.out) == []


def test_stream_goes_on_where_it_was(rig: Rig) -> None:
    """A stream has no commit of its own: killed right after one, nothing comes twice."""
    simulator = rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "60000")
    target = rig.folder / "stream"
    command = [program("hmb-trace-daemon"), "--device", rig.ring, "--output", "-"]
    options = ["--spool-dir", str(rig.folder / "spool"), "--spool-size", "16MiB"]
    for step, code in (("data-committed:5", -signal.SIGKILL), ("", 0)):
        with target.open("ab") as stream:
            done = subprocess.run(
                [*command, *options, "--on-frozen", "exit"],
                stdout=stream,
                env={**os.environ, "HMB_TRACE_TEST_KILL": step},
                check=False,
                timeout=60,
            )
        assert done.returncode == code
    simulator.expect(0)
    found, fnv = walk([target])
    assert (found.records, f"{fnv:#018x}") == (rig.ledger["records"], rig.ledger["fnv64"])


def test_manifest_stands_beside_the_spool(rig: Rig) -> None:
    rig.simulate(*LOAD, "--ring-size", "64KiB", "--count", "100", "--keep", "--linger", "0")
    daemon = rig.daemon()
    wait_until(lambda: logged(daemon, "attached"), "the daemon")
    (manifest,) = (rig.folder / "spool").glob("*.json")
    assert json.loads(manifest.read_text())["directory"] == str(rig.out)
    assert (rig.folder / "spool").stat().st_mode & 0o777 == 0o700
    daemon.process.terminate()
    daemon.expect(0)

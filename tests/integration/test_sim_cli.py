# SPDX-License-Identifier: Apache-2.0
"""hmb-firmware-sim as a user starts it."""

from __future__ import annotations

import json
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from hmb_producer_sim.cli import main

from hmb_trace.fnv import fnv1a_64
from hmb_trace.live.ring import attach
from tests.conftest import SHM, Programs, Running, wait_until

SIM = "hmb-firmware-sim"
MAGIC = 0x54424D48


def header(path: Path) -> dict[str, int]:
    names = ("magic", "version", "ring_size", "off", "head", "tail", "flags")
    with path.open("rb") as ring:
        return dict(zip(names, struct.unpack("<IIIIQQI", ring.read(36)), strict=True))


def consume(path: Path) -> None:
    """Take everything, as a consumer that trusts firmware."""
    with path.open("r+b") as ring:
        head = struct.unpack("<Q", ring.read(24)[16:])[0]
        ring.seek(24)
        ring.write(struct.pack("<Q", head))


def ledger(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def started(running: Running, path: Path) -> None:
    wait_until(lambda: path.exists() or running.process.poll() is not None, "the ring")
    assert path.exists(), running.stderr


def test_name_appears_with_a_whole_header_and_goes_when_read(
    programs: Programs, shm_name: str, tmp_path: Path
) -> None:
    ring, book = SHM / shm_name[1:], tmp_path / "l.json"
    running = programs.start(
        *(SIM, "--shm", shm_name, "--count", 100, "--freeze-at-end", "--ledger", book)
    )
    started(running, ring)
    assert header(ring)["magic"] == MAGIC
    wait_until(lambda: header(ring)["flags"] & 2, "FROZEN")
    assert ledger(book)["records"] == 100  # before FROZEN
    consume(ring)
    running.expect(0)
    assert not ring.exists()
    assert not list(SHM.glob(f".{shm_name[1:]}*"))


def test_second_simulator_on_the_name_is_told(programs: Programs, shm_name: str) -> None:
    first = programs.start(SIM, "--shm", shm_name, "--count", 10)
    started(first, SHM / shm_name[1:])
    second = programs.run(SIM, "--shm", shm_name, "--count", 10, code=69)
    assert "exists already" in second.stderr
    assert second.stderr.count("\n") == 1
    assert first.process.poll() is None
    first.signal(signal.SIGINT)  # while it waits for a consumer: it leaves at once
    first.expect(0, timeout=5)
    programs.run(*(SIM, "--shm", shm_name, "--count", 10, "--replace", "--linger", 0))


def test_await_consumer_starts_when_one_attaches(
    programs: Programs, shm_name: str, tmp_path: Path
) -> None:
    """At full speed with drops allowed, only a start before the consumer could drop unseen."""
    ring, book = SHM / shm_name[1:], tmp_path / "l.json"
    running = programs.start(
        *(SIM, "--shm", shm_name, "--count", 1000, "--ledger", book, "--await-consumer", "30s"),
        *("--linger", 0),
    )
    started(running, ring)
    assert header(ring)["head"] == 0
    with attach(f"shm:{shm_name}") as attached:
        running.expect(0)
        assert ledger(book)["records"] == 1000
        dump = b"".join(iter(lambda: attached.collect()[0], b""))
    assert len(dump) == ledger(book)["bytes"]
    late = programs.run(*(SIM, "--file", tmp_path / "r", "--count", 5, "--await-consumer", "10ms"))
    assert "no consumer came" in late.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_workload_in_order(
    programs: Programs, tmp_path: Path, number: signal.Signals
) -> None:
    ring, book = tmp_path / "ring.bin", tmp_path / "l.json"
    running = programs.start(
        *(SIM, "--file", ring, "--rate", "1k/s", "--freeze-at-end", "--ledger", book)
    )
    started(running, ring)
    wait_until(lambda: header(ring)["head"] > 0, "records")
    assert not book.exists()
    running.signal(number)
    running.expect(0, timeout=10)
    assert header(ring)["flags"] == 2
    found = ledger(book)
    assert found["bytes"] == header(ring)["head"]
    assert f"{fnv1a_64(ring.read_bytes()[64 : 64 + found['bytes']]):#018x}" == found["fnv64"]


def test_stop_while_the_ring_is_full(programs: Programs, tmp_path: Path) -> None:
    ring, book = tmp_path / "ring.bin", tmp_path / "l.json"
    running = programs.start(
        *(SIM, "--file", ring, "--ring-size", "4KiB", "--payload", 0),
        *("--on-full", "block", "--ledger", book),
    )
    started(running, ring)
    wait_until(lambda: header(ring)["head"] == 4096, "a full ring")
    running.signal(signal.SIGTERM)
    running.expect(0, timeout=10)
    found = ledger(book)
    assert (found["records"], found["dropped"], found["dropped_unseen"]) == (128, 0, 0)


def test_linger_bounds_the_wait_and_keep_leaves_the_ring(programs: Programs, shm_name: str) -> None:
    ring = SHM / shm_name[1:]
    running = programs.run(SIM, "--shm", shm_name, "--count", 5, "--linger", "50ms", timeout=20)
    assert "bytes unread" in running.stderr
    assert not ring.exists()
    programs.run(SIM, "--shm", shm_name, "--count", 5, "--keep", timeout=20)
    assert header(ring)["head"] > 0


def test_rate_and_duration(programs: Programs, tmp_path: Path) -> None:
    ring, book = tmp_path / "ring.bin", tmp_path / "l.json"
    programs.run(*(SIM, "--file", ring, "--rate", "2k/s", "--duration", "500ms", "--ledger", book))
    found = ledger(book)
    # How many is up to the machine; never more than asked for.
    assert 0 < found["produced"] <= 1002
    assert found["elapsed_s"] >= 0.5


def test_drops_without_a_consumer_are_unseen(programs: Programs, tmp_path: Path) -> None:
    ring, book = tmp_path / "ring.bin", tmp_path / "l.json"
    programs.run(
        *(SIM, "--file", ring, "--ring-size", "4KiB", "--payload", 0),
        *("--count", 1000, "--ledger", book, "--ledger-hash", "none"),
    )
    found = ledger(book)
    assert (found["records"], found["dropped"], found["dropped_unseen"]) == (128, 0, 872)
    assert found["fnv64"] is None
    assert header(ring)["flags"] == 1


def test_replay_writes_the_dump_again(programs: Programs, tmp_path: Path) -> None:
    ring, book, again = (tmp_path / name for name in ("ring.bin", "l.json", "again.json"))
    options = ("--ring-size", "1MiB", "--workload", "burst", "--rate", "max", "--start-seq", 50)
    programs.run(SIM, "--file", ring, *options, "--count", 3000, "--ledger", book)
    dump = tmp_path / "dump.bin"
    dump.write_bytes(ring.read_bytes()[64 : 64 + ledger(book)["bytes"]])
    for extra in ((), ("--on-full", "block")):
        programs.run(
            *(SIM, "--file", ring, "--replace", "--ring-size", "1MiB", "--replay", dump),
            *("--ledger", again, *extra),
        )
        same = ("records", "bytes", "fnv64", "first_seq", "last_seq", "dropped")
        assert {k: ledger(again)[k] for k in same} == {k: ledger(book)[k] for k in same}
    cut = dump.read_bytes()
    dump.write_bytes(cut[:19] + b"\x10" + cut[20:])  # as --unknown-flags keep leaves it (R10)
    programs.run(
        *(SIM, "--file", ring, "--replace", "--ring-size", "1MiB", "--replay", dump),
        *("--ledger", again),
    )
    assert (ledger(again)["records"], ledger(again)["unknown_flags"]) == (2999, 1)
    size = 32 + (struct.unpack_from("<H", cut, 20)[0] + 7) // 8 * 8
    second = 32 + (struct.unpack_from("<H", cut, size + 20)[0] + 7) // 8 * 8
    dump.write_bytes(cut[:size] + cut[size + second :])
    programs.run(
        *(SIM, "--file", ring, "--replace", "--ring-size", "1MiB", "--replay", dump),
        *("--ledger", again),
    )
    assert (ledger(again)["records"], ledger(again)["dropped"]) == (2999, 1)


def test_device_is_memory_that_exists(programs: Programs, tmp_path: Path) -> None:
    memory = tmp_path / "resource2"
    memory.write_bytes(b"\xff" * 100_000)
    programs.run(SIM, "--device", memory, "--count", 20)
    assert header(memory)["ring_size"] == 65536
    assert header(memory)["head"] > 0
    assert memory.stat().st_size == 100_000


def test_fault_that_did_not_happen_is_told(programs: Programs, tmp_path: Path) -> None:
    book = tmp_path / "l.json"
    running = programs.run(
        *(SIM, "--file", tmp_path / "r", "--count", 50, "--ledger", book),
        *("--fault", "corrupt-magic@10", "--fault", "garbage@60"),
    )
    assert "fault corrupt-magic at seq" in running.stderr
    assert "fault garbage did not happen: the workload ended before" in running.stderr
    assert [fault["injected"] for fault in ledger(book)["faults"]] == [True, False]


def test_fault_that_was_moved_is_told(programs: Programs, tmp_path: Path) -> None:
    book = tmp_path / "l.json"
    faults = ("--fault", "corrupt-magic@2", "--fault", "garbage@3", "--fault", "torn-record@100")
    place = (SIM, "--file", tmp_path / "r", "--ring-size", "64KiB", "--count", 200)
    running = programs.run(*place, *faults, "--ledger", book, "--payload", "8")
    told = [line for line in running.stderr.splitlines() if ": fault " in line]
    assert [line.partition(", record ")[2] for line in told] == [
        "2",
        "11 (asked 3; 8 records from the fault before)",
        "100",
    ]
    found = ledger(book)["faults"]
    assert [(fault["asked"], fault["at"]) for fault in found] == [(2, 2), (3, 11), (100, 100)]
    assert ["moved" in fault for fault in found] == [False, True, False]
    assert programs.run(*place, *faults, "--replace", "--quiet").stderr == ""


def test_fault_says_to_which_place_it_moved(programs: Programs, tmp_path: Path) -> None:
    """Record 0 has none before it that a consumer could tell it from."""
    running = programs.run(
        *(SIM, "--file", tmp_path / "r", "--count", 50, "--fault", "corrupt-magic@0")
    )
    assert ", record 1 (asked 0; to its next place)" in running.stderr


def test_print_catalog_is_a_workload(programs: Programs, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(programs.run(SIM, "--print-catalog", "burst").stdout)
    programs.run(SIM, "--file", tmp_path / "r", "--workload", own, "--count", 10)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), (2, "exactly one of --shm")),
        (("--shm", "/a", "--file", "b"), (2, "exactly one of --shm")),
        (("--shm", "/a/b"), (2, "without other slashes")),
        (("--file", "x", "--ring-size", "3000"), (2, "power of two")),
        (("--file", "x", "--ring-size", "8GiB"), (2, "power of two")),
        (("--file", "x", "--start-cursor", "12"), (2, "multiple of 8")),
        (("--file", "x", "--payload", "10..5"), (2, "MIN <= MAX")),
        (("--file", "x", "--payload", "0..4065"), (2, "4064")),
        (("--file", "x", "--start-seq", "4294967296"), (2, "from 0 to 4294967295")),
        (("--file", "x", "--fault", "rest"), (2, "did you mean reset")),
        (("--file", "x", "--workload", "none.toml"), (66, "none.toml")),
        (("--file", "no/where/x"), (73, "cannot create")),
        (("--device", "nothing"), (66, "cannot open")),
        (("--file", "x", "--replay", "nothing"), (66, "cannot open")),
        (("--file", "x", "--count", "1", "--ledger", "no/where"), (73, "cannot create ledger")),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    expected: tuple[int, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = expected
    assert main(["--quiet", *args]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1

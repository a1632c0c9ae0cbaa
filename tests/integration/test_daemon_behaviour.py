# SPDX-License-Identifier: Apache-2.0
"""What the daemon answers: refusals, a busy ring, signals, rotation, outputs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hmb_trace.testing import RingBuilder, record, without_tail
from tests.conftest import Programs, program, require_module, wait_until
from tests.integration.daemonlib import (
    Rig,
    assert_equals_ledger,
    leftovers,
    log,
    logged,
    segments,
    sidecars,
    summary,
    walk,
)


@pytest.fixture
def rig(programs: Programs, tmp_path: Path) -> Rig:
    return Rig(programs, tmp_path)


@pytest.fixture
def shm_rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def build(rig: Rig, size: int = 4096, records: int = 10, **kw: Any) -> RingBuilder:
    ring = RingBuilder(size, **kw)
    for number in range(records):
        ring.append(bytes([number & 255]) * 16)
    ring.write(rig.ring_file)
    return ring


def head_and_tail(rig: Rig) -> tuple[int, int]:
    head, tail = struct.unpack_from("<QQ", rig.ring_file.read_bytes(), 0x10)
    return head, tail


# ---- refusals ----

REFUSALS = {
    "magic": (0x00, 0xDEADBEEF, 65),
    "version": (0x04, 2, 76),
    "ring_size": (0x08, 24, 65),
    "record_area_off": (0x0C, 0x80, 65),
    "region": (0x08, 1 << 20, 65),
}


@pytest.mark.parametrize("field", REFUSALS)
def test_refusals_r1_one_line_and_ring_untouched(rig: Rig, field: str) -> None:
    offset, value, code = REFUSALS[field]
    build(rig)
    with rig.ring_file.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<I", value))
    before = rig.ring_file.read_bytes()
    refused = rig.drain(code=code)
    assert len(refused.stderr.splitlines()) == 1
    assert field in refused.stderr
    assert rig.ring_file.read_bytes() == before
    assert not rig.out.exists()


def test_missing_device_exits_66(rig: Rig) -> None:
    refused = rig.drain(code=66)
    assert len(refused.stderr.splitlines()) == 1


def test_missing_rights_are_no_usage_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system decides when a directory is opened (77), not a look at it beforehand (2)."""
    build(rig)
    rig.out.mkdir()
    (rig.folder / "d.toml").touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    rig.drain("--config", rig.folder / "d.toml")


def test_only_tail_is_ever_written_r2(rig: Rig) -> None:
    ring = build(rig)
    before = rig.ring_file.read_bytes()
    rig.drain()
    after = rig.ring_file.read_bytes()
    assert without_tail(before) == without_tail(after)
    assert head_and_tail(rig) == (ring.head, ring.head)


def test_invalid_cursors_once_exits_65_and_writes_nothing_r2(rig: Rig) -> None:
    build(rig)
    with rig.ring_file.open("r+b") as file:
        file.seek(0x10)
        file.write(struct.pack("<QQ", 1 << 20, 8))
    before = rig.ring_file.read_bytes()
    refused = rig.drain(code=65)
    assert len(refused.stderr.splitlines()) == 1
    assert "cursors" in refused.stderr
    assert rig.ring_file.read_bytes() == before
    assert segments(rig.out) == []


def test_invalid_cursors_become_a_new_epoch_r2(rig: Rig) -> None:
    """Without --once: after 100 ms tail := head & ~7, loss unknown."""
    build(rig)
    with rig.ring_file.open("r+b") as file:
        file.seek(0x10)
        file.write(struct.pack("<QQ", (1 << 20) + 4, 8))
    daemon = rig.daemon()
    wait_until(lambda: head_and_tail(rig)[1] == 1 << 20, "tail to follow head")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    (side,) = sidecars(rig.out)
    assert not side.complete
    assert [note.id for note in side.events].count("loss-unknown") == 1
    assert "unknown" in str(summary(daemon)["lost"])


def test_second_consumer_exits_69_naming_the_pid(rig: Rig) -> None:
    build(rig)
    first = rig.daemon()
    wait_until(lambda: logged(first, "attached"), "the first to attach")
    second = rig.drain(code=69)
    assert str(first.pid) in second.stderr
    assert len(second.stderr.splitlines()) == 1
    first.signal(signal.SIGTERM)
    first.expect(0)


def test_kill_after_another_ring_took_the_place_r6_r12_loses_nothing_silently(rig: Rig) -> None:
    """The spool knows which ring it goes on with, also when that is not the first one."""
    build(rig, flags=2)
    daemon = rig.daemon("--on-frozen", "wait")
    wait_until(lambda: logged(daemon, "segment-sealed"), "the end of the first ring")
    ring = RingBuilder(1024)
    ring.raw(b"".join(record(seq) for seq in range(100, 106)))
    ring.write(rig.folder / "other")
    (rig.folder / "other").rename(rig.ring_file)
    wait_until(lambda: head_and_tail(rig)[1] == 192, "the second ring to be drained")
    daemon.process.kill()
    daemon.process.wait()
    ring.consume()
    ring.raw(record(109))  # three were dropped meanwhile
    rig.ring_file.write_bytes(ring.region())
    rig.drain()
    sides = sidecars(rig.out)
    assert [(side.epoch, side.ring_size) for side in sides][:1] == [(0, 4096)]
    assert {(side.epoch, side.ring_size) for side in sides[1:]} == {(1, 1024)}
    assert (sides[-1].last_seq, sum(side.lost for side in sides)) == (109, 3)


@pytest.mark.parametrize("ring_is", ["there", "gone"])
def test_segment_open_at_a_kill_tells_its_own_ring_r6(rig: Rig, ring_is: str) -> None:
    """Another ring took the place of the first, whose segment was not sealed yet."""
    build(rig)
    first = rig.ring_file.stat().st_ino
    daemon = rig.daemon(env={"HMB_TRACE_TEST_HOLD": "30"})
    wait_until(lambda: len(set(head_and_tail(rig))) == 1, "the first ring to be drained")
    ring = RingBuilder(1024)
    ring.raw(b"".join(record(seq) for seq in range(100, 106)))
    ring.write(rig.folder / "other")
    (rig.folder / "other").rename(rig.ring_file)
    wait_until(lambda: head_and_tail(rig)[1] == 192, "the second ring to be drained")
    daemon.kill()
    if ring_is == "gone":
        rig.ring_file.unlink()
    rig.drain(code=0 if ring_is == "there" else 66)
    sides = sidecars(rig.out)
    assert [(side.epoch, side.ring_size) for side in sides] == [(0, 4096), (1, 1024)]
    assert [f":{first}" in side.device.identity for side in sides] == [True, False]


# ---- --once ----


def test_empty_ring_leaves_no_segment(rig: Rig) -> None:
    build(rig, records=0)
    daemon = rig.drain()
    assert summary(daemon)["records"] == 0
    assert summary(daemon)["segments"] == 0
    assert list(rig.out.iterdir()) == []


def test_earlier_loss_alone_is_worth_a_segment_r5(rig: Rig) -> None:
    build(rig, records=0, flags=1)
    rig.drain()
    (side,) = sidecars(rig.out)
    assert (side.records, side.bytes, side.complete) == (0, 0, False)
    assert [note.id for note in side.events] == ["loss-before-attach"]


def test_gap_r12_in_the_sidecar_tells_offset_and_time_of_the_record_after(rig: Rig) -> None:
    ring = RingBuilder(4096)
    ring.raw(record(1, ts_ns=10) + record(5, ts_ns=20))
    ring.write(rig.ring_file)
    rig.drain()
    (side,) = sidecars(rig.out)
    (gap,) = side.gap_list
    assert (gap.seq_before, gap.seq_after, gap.lost) == (1, 5, 3)
    assert (gap.offset, gap.ts_ns) == (32, 20)


def test_once_equals_what_was_there(rig: Rig) -> None:
    ring = build(rig, size=65536, records=500)
    rig.drain()
    (dump,) = segments(rig.out)
    assert dump.read_bytes() == ring.expected_dump
    (side,) = sidecars(rig.out)
    assert (side.records, side.cause, side.complete) == (500, "once", True)
    assert (side.first_seq, side.last_seq) == (0, 499)
    assert leftovers(rig.out) == []


@pytest.mark.parametrize("count", [1, 2000])
def test_once_on_a_frozen_ring_says_so_r5(rig: Rig, count: int) -> None:
    rig.fill("--ring-size", "1MiB", "--count", count, "--freeze-at-end")
    done = rig.drain()
    assert len(logged(done, "frozen")) == 1
    (side,) = sidecars(rig.out)
    assert (side.cause, side.records, side.complete) == ("once", count, True)
    assert [event.id for event in side.events] == ["frozen"]


def test_corrupt_stop_leaves_tail_r9(rig: Rig) -> None:
    ring = build(rig, records=5)
    bad = ring.head
    ring.raw(b"\xaa" * 64)
    ring.append(b"after")
    ring.write(rig.ring_file)
    stopped = rig.drain("--on-corrupt", "stop", code=65)
    assert str(bad) in stopped.stderr.splitlines()[-1]
    assert head_and_tail(rig)[1] == bad
    (side,) = sidecars(rig.out)
    assert (side.records, side.cause) == (5, "corrupt")


def test_damage_goes_to_the_rejects_r9(rig: Rig) -> None:
    from hmb_trace.dumps import rejects  # noqa: PLC0415 - only here

    ring = build(rig, records=5)
    bad = ring.head
    ring.raw(b"\xaa" * 64)
    ring.append(b"after")
    ring.write(rig.ring_file)
    rig.drain()
    (dump,) = segments(rig.out)
    (side,) = sidecars(rig.out)
    (entry,) = rejects.read(dump.with_name(dump.stem + ".rejects"))
    assert (entry.cursor, entry.data, entry.reason) == (bad, b"\xaa" * 64, "damaged")
    assert side.rejects is not None
    assert (side.rejects.entries, side.rejects.bytes) == (1, 64)
    assert side.records == 6


# ---- outputs ----


def test_single_file_output(rig: Rig) -> None:
    ring = build(rig)
    target = rig.folder / "one.bin"
    rig.drain("--output", target)
    assert target.read_bytes() == ring.expected_dump
    assert json.loads((rig.folder / "one.json").read_text())["records"] == 10
    again = rig.drain("--output", target, code=73)
    assert "exists" in again.stderr


def test_stdout_carries_records_only(rig: Rig) -> None:
    ring = build(rig)
    command = [program("hmb-trace-daemon"), "--device", rig.ring, "--once", "--output", "-"]
    spool = ["--spool-dir", str(rig.folder / "spool"), "--spool-size", "16MiB"]
    done = subprocess.run([*command, *spool], capture_output=True, timeout=30, check=True)
    assert done.stdout == ring.expected_dump


def test_closed_pipe_ends_in_order(rig: Rig) -> None:
    build(rig, size=1 << 20, records=5000)
    command = [program("hmb-trace-daemon"), "--device", rig.ring, "--once", "--output", "-"]
    spool = ["--spool-dir", str(rig.folder / "spool"), "--spool-size", "16MiB"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*command, *spool], stdout=write_end, stderr=subprocess.PIPE, timeout=30, check=False
    )
    os.close(write_end)
    assert done.returncode == 74
    assert b"Traceback" not in done.stderr
    assert list((rig.folder / "spool").iterdir()) == []


def test_second_signal_leaves_a_reader_that_hangs(rig: Rig) -> None:
    """Nobody reads the pipe and nobody closes it: the first signal waits, the second does not."""
    build(rig, size=1 << 20, records=10000)
    command = [program("hmb-trace-daemon"), "--device", rig.ring, "--output", "-"]
    spool = ["--spool-dir", str(rig.folder / "spool"), "--spool-size", "16MiB"]
    with subprocess.Popen(
        [*command, *spool], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as daemon:
        wait_until(lambda: head_and_tail(rig)[1] > 0, "the ring to be drained")
        daemon.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(0.5)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(20) == 74
        assert daemon.stderr is not None
        assert b"Traceback" not in daemon.stderr.read()


def test_output_that_cannot_be_made_exits_73(rig: Rig) -> None:
    build(rig)
    (rig.folder / "out").write_text("a file where a directory should be")
    refused = rig.drain(code=73)
    assert "out" in refused.stderr
    assert head_and_tail(rig)[1] == 0


# ---- signals, rotation ----


def feed(rig: Rig, *args: object) -> Any:
    return rig.simulate("--rate", "20k/s", "--payload", "0..64", "--ring-size", "1MiB", *args)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_term_and_int_drain_and_seal(shm_rig: Rig, number: int) -> None:
    simulator = feed(shm_rig, "--keep", "--linger", "0")
    daemon = shm_rig.daemon()
    wait_until(lambda: list(shm_rig.out.glob("*.part")), "a segment")
    simulator.signal(signal.SIGTERM)
    simulator.expect(0)
    daemon.signal(number)
    daemon.expect(0)
    assert_equals_ledger(shm_rig.out, shm_rig.ledger)
    assert sidecars(shm_rig.out)[-1].cause == "stop"


def test_usr1_rotates_and_usr2_snapshots(shm_rig: Rig) -> None:
    simulator = feed(shm_rig, "--freeze-at-end", "--duration", "2s")
    daemon = shm_rig.daemon("--on-frozen", "exit")
    for count, number in ((1, signal.SIGUSR1), (2, signal.SIGUSR2)):
        wait_until(lambda: list(shm_rig.out.glob("*.bin.part")), "an open segment")
        daemon.signal(number)
        wait_until(lambda count=count: len(segments(shm_rig.out)) >= count, "a sealed segment")
    daemon.expect(0)
    simulator.expect(0)
    assert_equals_ledger(shm_rig.out, shm_rig.ledger)
    causes = [side.cause for side in sidecars(shm_rig.out)]
    assert causes == ["rotate-request", "snapshot", "frozen"]


def test_rotation_by_size_cuts_at_records(shm_rig: Rig) -> None:
    limit = 128 << 10
    args = ("--rate", "max", "--on-full", "block", "--freeze-at-end", "--count", "20000")
    simulator = shm_rig.simulate(*args, "--payload", "0..300", "--ring-size", "256KiB")
    shm_rig.daemon("--on-frozen", "exit", "--rotate-size", "128KiB").expect(0)
    simulator.expect(0)
    assert_equals_ledger(shm_rig.out, shm_rig.ledger)
    sides = sidecars(shm_rig.out)
    assert len(sides) > 10
    for path, side in zip(segments(shm_rig.out), sides, strict=True):
        assert path.stat().st_size == side.bytes <= limit
        alone, _ = walk([path])
        assert (alone.records, alone.first_seq) == (side.records, side.first_seq)
        assert alone.last_record_seq == side.last_seq
        assert side.counters["bytes"] == side.bytes
    # Nearly full, all but the last: index marks stand close together.
    assert min(side.bytes for side in sides[:-1]) > limit * 3 // 4
    assert [side.number for side in sides] == list(range(1, len(sides) + 1))
    for before, after in itertools.pairwise(sides):
        assert after.first_seq == before.last_seq + 1


def test_rotation_by_time(shm_rig: Rig) -> None:
    args = ("--freeze-at-end", "--await-consumer", "60s")
    simulator = feed(shm_rig, "--duration", "3s", *args)
    shm_rig.daemon("--on-frozen", "exit", "--rotate-interval", "300ms").expect(0)
    simulator.expect(0)
    assert_equals_ledger(shm_rig.out, shm_rig.ledger)
    assert 3 <= len(segments(shm_rig.out)) <= 12


def test_duration_ends_by_itself(rig: Rig) -> None:
    build(rig)
    daemon = rig.daemon("--duration", "300ms").expect(0)
    assert summary(daemon)["cause"] == "duration"


def test_numbers_go_on_after_a_restart(rig: Rig) -> None:
    build(rig)
    rig.drain()
    ring = build(rig, records=3)
    rig.drain()
    assert [side.number for side in sidecars(rig.out)] == [1, 2]
    assert segments(rig.out)[1].read_bytes() == ring.expected_dump


# ---- control and metrics ----


def ask(path: Path, **request: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(str(path))
        link.sendall(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(link.makefile().readline())
    return answer


def test_control_socket(rig: Rig) -> None:
    build(rig)
    path = rig.folder / "ctl"
    daemon = rig.daemon("--control", path)
    wait_until(lambda: logged(daemon, "attached"), "the daemon")
    assert path.stat().st_mode & 0o777 == 0o600
    wait_until(lambda: ask(path, cmd="status")["status"]["counters"]["records"] == 10, "records")
    assert ask(path, cmd="rotate") == {"ok": True}
    wait_until(lambda: segments(rig.out), "the seal")
    assert ask(path, cmd="dance")["ok"] is False
    assert ask(path, cmd="stop") == {"ok": True}
    daemon.expect(0)
    assert not path.exists()


def test_metrics(rig: Rig) -> None:
    require_module("prometheus_client", "fleet")
    build(rig)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = rig.daemon("--metrics", f"127.0.0.1:{port}")
    wait_until(lambda: logged(daemon, "attached"), "the daemon")

    def records_seen() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return f'hmb_trace_records_total{{device="{rig.ring}"}} 10.0' in answer.read().decode()

    wait_until(records_seen, "ten records in the metrics")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)


def test_notifies_systemd(rig: Rig) -> None:
    build(rig)
    address = rig.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(20)
        env = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000"}
        daemon = rig.daemon(env=env)
        assert b"READY=1" in manager.recv(4096)
        assert manager.recv(4096) == b"WATCHDOG=1"
        daemon.signal(signal.SIGTERM)
        said = [manager.recv(4096)]
        while said[-1] != b"STOPPING=1":
            said.append(manager.recv(4096))
        daemon.expect(0)


# ---- configuration ----


def test_precedence_flag_environment_file(rig: Rig) -> None:
    file = rig.folder / "daemon.toml"
    file.write_text('label = "file"\nrotate-size = "2MiB"\nlatency = "5ms"\n')
    drop_ins = rig.folder / "daemon.d"
    drop_ins.mkdir()
    (drop_ins / "10-more.toml").write_text('latency = "7ms"\n')
    env = {"HMB_TRACE_ROTATE_SIZE": "3MiB", "HMB_TRACE_LABEL": "environment"}
    shown = rig.programs.run(
        "hmb-trace-daemon", "--config", file, "--label", "flag", "--print-config", env=env
    )
    assert 'label = "flag"' in shown.stdout
    assert 'rotate-size = "3MiB"' in shown.stdout
    assert 'latency = "7ms"' in shown.stdout


def test_printed_configuration_says_the_same_again(rig: Rig) -> None:
    """What nobody set is not in it: click has a placeholder for that, which is no file name."""
    given = ("--label", "x", "--once", "--fsync", "seal", "--compress", "zstd:5")
    shown = rig.programs.run("hmb-trace-daemon", *given, "--print-config").stdout
    assert {"device", "output", "spool-size", "control"}.isdisjoint(tomllib.loads(shown))
    file = rig.folder / "again.toml"
    file.write_text(shown)
    again = rig.programs.run("hmb-trace-daemon", "--config", file, "--print-config")
    assert again.stdout == shown


@pytest.mark.parametrize(
    "text",
    [
        *("colour = 1\n", "latency = 'soon'\n", "= nonsense", "once = 'yes'\n", "latency = [1]\n"),
        *("latency = " + "9" * 5000, "latency = " + "[" * 5000),
    ],
    ids=lambda text: text[:20],
)
def test_bad_configuration_exits_78(rig: Rig, text: str) -> None:
    file = rig.folder / "bad.toml"
    file.write_text(text)
    refused = rig.programs.run("hmb-trace-daemon", "--config", file, "--check-config", code=78)
    assert len(refused.stderr.splitlines()) == 1
    assert "bad.toml" in refused.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("ROTATE_SIZE", "1KiB"), ("LATENCY", "soon"), ("IO", "magic"), ("ONCE", "maybe")],
)
def test_bad_value_is_78_in_environment_and_file_and_2_on_the_command_line(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    build(rig)
    option = "--" + name.lower().replace("_", "-")
    if name != "ONCE":
        assert option in rig.drain(option, value, code=2).stderr
        (rig.folder / "daemon.toml").write_text(f'{option[2:]} = "{value}"\n')
        assert value in rig.drain("--config", rig.folder / "daemon.toml", code=78).stderr
    monkeypatch.setenv(f"HMB_TRACE_{name}", value)
    if name != "ONCE":
        (line,) = rig.drain(code=78).stderr.splitlines()
        assert f"HMB_TRACE_{name} in the environment: " in line
        assert value in line
    daemon = rig.daemon()
    daemon.expect(78)


def test_least_rotate_size_is_told(rig: Rig) -> None:
    assert "at least 64KiB" in rig.programs.run("hmb-trace-daemon", "--help").stdout
    build(rig)
    assert "at least 64KiB" in rig.drain("--rotate-size", "65535", code=2).stderr
    rig.drain("--rotate-size", "64KiB")


def test_good_configuration_is_said_so(rig: Rig) -> None:
    file = rig.folder / "good.toml"
    file.write_text('rotate-size = "64MiB"\nonce = true\nfsync = 2\n')
    rig.programs.run("hmb-trace-daemon", "--config", file, "--check-config")


def test_reload_takes_over_what_can_change(rig: Rig) -> None:
    build(rig)
    file = rig.folder / "daemon.toml"
    file.write_text('rotate-size = "64MiB"\n')
    daemon = rig.daemon("--config", file)
    wait_until(lambda: logged(daemon, "attached"), "the daemon")
    file.write_text('rotate-size = "32MiB"\nlabel = "later"\n')
    daemon.signal(signal.SIGHUP)
    (line,) = wait_until(lambda: logged(daemon, "reloaded"), "the reload")
    assert line["changed"] == ["label", "rotate_size"]
    assert line["need_restart"] == ["label"]
    file.write_text("nonsense")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: logged(daemon, "reload-failed"), "the refusal")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)


# ---- retention, compression, snapshot ----


def test_retention_keeps_the_newest(shm_rig: Rig) -> None:
    args = ("--rate", "max", "--on-full", "block", "--freeze-at-end", "--count", "20000")
    simulator = shm_rig.simulate(*args, "--payload", "64..64", "--ring-size", "256KiB")
    daemon = shm_rig.daemon(
        *("--on-frozen", "exit", "--rotate-size", "128KiB", "--max-total-size", "500KiB")
    ).expect(0)
    simulator.expect(0)
    kept = sidecars(shm_rig.out)
    total = sum(path.stat().st_size for path in shm_rig.out.iterdir())
    assert kept and total <= 500 << 10
    assert kept[-1].last_seq == shm_rig.ledger["last_seq"]
    assert len(logged(daemon, "segment-deleted")) == kept[0].number - 1


def test_compression_keeps_the_bytes(shm_rig: Rig) -> None:
    import zstandard  # noqa: PLC0415 - only here

    args = ("--rate", "max", "--on-full", "block", "--freeze-at-end", "--count", "20000")
    simulator = shm_rig.simulate(*args, "--payload", "64..64", "--ring-size", "256KiB")
    shm_rig.daemon(
        *("--on-frozen", "exit", "--rotate-size", "512KiB", "--compress", "zstd:1")
    ).expect(0)
    simulator.expect(0)
    assert segments(shm_rig.out) == [] and leftovers(shm_rig.out) == []
    packed = sorted(shm_rig.out.glob("*.bin.zst"))
    for path in packed:
        packed_bytes = path.read_bytes()
        with zstandard.ZstdDecompressor().stream_reader(packed_bytes, read_across_frames=True) as r:
            raw = r.read()
        path.with_name(path.name.removesuffix(".zst")).write_bytes(raw)
    assert_equals_ledger(shm_rig.out, shm_rig.ledger)


def test_snapshot_mode_keeps_the_last_records(shm_rig: Rig) -> None:
    """A flight recorder: nothing on disk until asked, then the newest of the spool."""
    args = ("--rate", "max", "--on-full", "block", "--keep", "--linger", "30s")
    simulator = shm_rig.simulate(*args, "--payload", "64..64", "--count", "600000")
    daemon = shm_rig.daemon("--mode", "snapshot")
    simulator.expect(0)
    assert segments(shm_rig.out) == []
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: segments(shm_rig.out), "the snapshot")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    (side,) = sidecars(shm_rig.out)
    assert side.cause == "snapshot"
    assert side.last_seq == shm_rig.ledger["last_seq"]
    assert 8 << 20 < side.bytes <= 16 << 20
    assert side.records == side.last_seq - side.first_seq + 1
    assert side.counters["records"] == side.records


def test_log_is_json_off_a_terminal(rig: Rig) -> None:
    build(rig)
    daemon = rig.drain()
    assert len(log(daemon)) == len(daemon.stderr.splitlines())

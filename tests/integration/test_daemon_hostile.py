# SPDX-License-Identifier: Apache-2.0
"""A nasty environment: logs that nobody reads, streams that nobody takes, files that vanish."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hmb_daemon.host import log
from hmb_daemon.recovery import damaged_spool as damaged
from hmb_daemon.spool.file import DamagedSpoolError, Spool
from hmb_daemon.writing.place import Place
from hmb_daemon.writing.segment import SegmentFiles

from hmb_trace._core import ffi
from tests.conftest import Programs, program, wait_until
from tests.integration.daemonlib import (
    SPOOL,
    Rig,
    assert_equals_ledger,
    leftovers,
    logged,
    segments,
    sidecars,
    walk,
)

FULL_LOAD = (
    "--ring-size",
    "256KiB",
    "--count",
    "20000",
    "--rate",
    "max",
    "--on-full",
    "block",
    "--freeze-at-end",
)


SMALL = ("--rotate-size", "64KiB")  # an index mark every 4 KiB
COMMIT_BYTES = ffi.sizeof("struct hmb_commit")


@pytest.fixture
def rig(programs: Programs, tmp_path: Path) -> Rig:
    return Rig(programs, tmp_path)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of a test; ended with it."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def command(rig: Rig, *args: object) -> list[str]:
    spool = ("--spool-dir", rig.folder / "spool", *SPOOL)
    words = (program("hmb-trace-daemon"), "--device", rig.ring, *spool, *args)
    return [str(word) for word in words]


def catches_term(pid: int) -> bool:
    """Whether a process has its handler for SIGTERM in place."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more; its reader does not read."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write_end, True)
    return read_end, write_end


def stderr_of(kind: str) -> int:
    """A stderr that cannot be written to."""
    if kind == "full disk":
        return os.open("/dev/full", os.O_WRONLY)
    if kind == "reader that hangs":
        return full_pipe()[1]
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


@pytest.mark.parametrize("kind", ["full disk", "reader that left", "reader that hangs"])
def test_a_log_that_cannot_be_written_does_not_end_a_capture(rig: Rig, kind: str) -> None:
    simulator = rig.simulate(*FULL_LOAD)
    fd = stderr_of(kind)
    args = command(rig, "--output-dir", rig.out, "--on-frozen", "exit", "--rotate-size", "64KiB")
    done = subprocess.run(args, stderr=fd, check=False, timeout=30)
    os.close(fd)
    assert done.returncode == 0
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)


def test_lost_log_lines_are_counted_and_told_later() -> None:
    read_end, write_end = full_pipe()
    with os.fdopen(write_end, "w") as file, os.fdopen(read_end, "rb", buffering=0) as reader:
        lines = log.Lines(file)
        lines.write("one\n")
        lines.write("two\n")
        assert lines.lost_total == 2
        os.set_blocking(reader.fileno(), False)
        while reader.read(1 << 16):
            pass
        lines.write("three\n")
        assert reader.read(1 << 16) == (
            b"hmb-trace-daemon: 2 log lines could not be written\nthree\n"
        )


def test_with_stderr_closed_a_stream_holds_records_only(rig: Rig) -> None:
    simulator = rig.simulate(*FULL_LOAD)
    stream = rig.folder / "stream.bin"
    shell = 'exec "$@" 2>&- >"$0"'
    args = command(rig, "--output", "-", "--on-frozen", "exit")
    done = subprocess.run(["bash", "-c", shell, str(stream), *args], check=False, timeout=30)
    assert done.returncode == 0
    simulator.expect(0)
    found, fnv = walk([stream])
    assert (found.records, f"{fnv:#018x}") == (rig.ledger["records"], rig.ledger["fnv64"])


def test_with_stdout_closed_a_capture_ends_in_order(rig: Rig) -> None:
    rig.fill("--count", "10")
    args = command(rig, "--output-dir", rig.out, "--once")
    done = subprocess.run(["bash", "-c", 'exec "$@" >&-', "-", *args], check=False, timeout=30)
    assert done.returncode == 0
    assert_equals_ledger(rig.out, rig.ledger)


def test_a_reader_that_never_reads_does_not_hold_a_stop(
    rig: Rig, started: list[subprocess.Popen[bytes]]
) -> None:
    simulator = rig.simulate(*FULL_LOAD)
    read_end, write_end = os.pipe()
    args = command(rig, "--output", "-", "--on-frozen", "wait")
    daemon = subprocess.Popen(args, stdout=write_end, stderr=subprocess.PIPE)
    started.append(daemon)
    simulator.expect(0)  # all of it is in the spool
    daemon.terminate()
    _, said = daemon.communicate(timeout=20)
    os.close(read_end)
    os.close(write_end)
    assert daemon.returncode == 74
    assert b"cannot write to -: the output takes no data; spool " in said.splitlines()[-1]
    rig.daemon("--on-frozen", "exit").expect(0)
    assert walk(sorted(rig.out.glob("*.bin")))[0].records > 0  # what the stream did not take


def test_waiting_for_a_fifo_s_reader_ends_at_term(
    rig: Rig, started: list[subprocess.Popen[bytes]]
) -> None:
    rig.fill("--count", "10")
    os.mkfifo(rig.folder / "fifo")
    daemon = subprocess.Popen(command(rig, "--output", rig.folder / "fifo"))
    started.append(daemon)
    wait_until(lambda: catches_term(daemon.pid))
    daemon.terminate()
    assert daemon.wait(10) == 130


@pytest.mark.parametrize("what", ["file", "directory"])
def test_an_open_segment_that_is_deleted_is_written_again(rig: Rig, what: str) -> None:
    load = ("--ring-size", "256KiB", "--count", "60000", "--rate", "40k/s", "--freeze-at-end")
    simulator = rig.simulate(*load, "--on-full", "block")
    daemon = rig.daemon("--on-frozen", "exit")
    part = wait_until(lambda: next(rig.out.glob("*.bin.part"), None))
    wait_until(lambda: part.stat().st_size > 100_000)
    if what == "file":
        part.unlink()
    else:
        shutil.rmtree(rig.out)
    daemon.expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    assert len(logged(daemon, "segment-restored")) == 1
    assert "segment-restored" in [event.id for event in sidecars(rig.out)[0].events]


def test_a_segment_that_vanished_with_its_daemon_is_counted_in_the_next(rig: Rig) -> None:
    load = ("--ring-size", "256KiB", "--count", "60000", "--rate", "40k/s", "--freeze-at-end")
    simulator = rig.simulate(*load, "--on-full", "block")
    daemon = rig.daemon()
    part = wait_until(lambda: next(rig.out.glob("*.bin.part"), None))
    wait_until(lambda: part.stat().st_size > 100_000)
    daemon.signal(signal.SIGSTOP)
    part.unlink()
    daemon.kill()
    rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    (side,) = sidecars(rig.out)
    (reason,) = side.reasons or []
    assert reason.kind == "segment-vanished"
    assert reason.count == rig.ledger["records"] - side.records > 0
    assert "segment-vanished" in [event.id for event in side.events]


def left_spool(rig: Rig) -> Path:
    """A spool with records that only it has."""
    rig.fill("--count", "3000")
    kill = {"HMB_TRACE_TEST_KILL": "data-written"}
    rig.daemon("--once", *SMALL, env=kill).expect(-signal.SIGKILL)
    return next((rig.folder / "spool").glob("*.spool"))


def noise(spool: Path) -> None:
    spool.write_bytes(bytes(range(256)) * 64)


def cut_short(spool: Path) -> None:
    os.truncate(spool, 100)


def empty(spool: Path) -> None:
    spool.write_bytes(b"")


def zero_header(spool: Path) -> None:
    with spool.open("r+b") as file:
        file.write(bytes(65536))


def flip_a_bit_of_a_commit(spool: Path) -> None:
    with spool.open("r+b") as file:
        head = os.pread(file.fileno(), 8, 8192)  # the low bit of its number chooses the slot
        at = 8192 + 48 + (head[0] & 1) * COMMIT_BYTES
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 64]), at)


def damage_journal(spool: Path) -> None:
    """It lies before the data, and both have the sizes that the superblock says."""
    with spool.open("r+b") as file:
        data, journal = struct.unpack("<QQ", os.pread(file.fileno(), 16, 24))
        os.pwrite(file.fileno(), bytes([0x5A]) * 4096, spool.stat().st_size - data - journal)


def swap_the_manifest(spool: Path) -> None:
    """Somebody's idea of where the records belong."""
    manifest = spool.with_name(spool.name + ".json")
    manifest.write_text(manifest.read_text().replace("/out", "/elsewhere"))


def lose_manifest(spool: Path) -> None:
    spool.with_name(spool.name + ".json").unlink()


DAMAGES = [noise, cut_short, zero_header, flip_a_bit_of_a_commit, damage_journal, lose_manifest]
DAMAGES += [empty, swap_the_manifest]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_spool_is_set_aside_and_told(rig: Rig, damage: Callable[[Path], None]) -> None:
    spool = left_spool(rig)
    damage(spool)
    before = spool.read_bytes()
    done = rig.drain(*SMALL)
    (kept,) = spool.parent.glob("*.spool.damaged-*Z")
    assert kept.read_bytes() == before
    assert sorted(path.name for path in spool.parent.iterdir()) == sorted(
        [kept.name, *([] if damage is lose_manifest else [kept.name + ".json"])]
    )
    assert [line["level"] for line in logged(done, "spool-set-aside")] == ["error", "warning"]
    sides = sidecars(rig.out)
    assert not any(side.complete for side in sides)
    assert [side.cause for side in sides] == ["spool-damaged", "once"]
    assert sides[-1].counters["unknown_losses"] == 1
    assert "spool-set-aside" in [event.id for event in sides[-1].events]
    assert leftovers(rig.out) == []
    rig.drain(*SMALL)
    assert len(sidecars(rig.out)) == len(sides)  # told once


def test_a_spool_set_aside_is_told_even_after_a_kill(rig: Rig) -> None:
    """Killed with the old spool gone and the new one silent: the loss is not forgotten."""
    spool = left_spool(rig)
    noise(spool)
    damaged.set_aside(spool.parent, spool.name, DamagedSpoolError("noise"), structlog.get_logger())
    rig.drain(*SMALL)
    side = sidecars(rig.out)[-1]
    assert (side.complete, side.counters["unknown_losses"]) == (False, 1)
    assert len(list(spool.parent.glob("*.spool.damaged-*Z"))) == 1


def test_a_spool_set_aside_is_told_even_after_a_start_that_failed(rig: Rig) -> None:
    spool = left_spool(rig)
    noise(spool)
    busy = rig.folder / "one.bin"
    busy.with_name("one.bin.part").touch()
    assert "is there already" in rig.drain("--output", busy, code=73).stderr
    rig.drain(*SMALL)
    sides = sidecars(rig.out)
    assert [side.cause for side in sides] == ["spool-damaged", "once"]
    assert (sides[-1].complete, sides[-1].counters["unknown_losses"]) == (False, 1)


def test_a_damaged_spool_waits_for_its_ring(rig: Rig) -> None:
    spool = left_spool(rig)
    noise(spool)
    rig.ring_file.unlink()
    done = rig.drain(code=66)
    assert len(logged(done, "spool-damaged")) == 1
    assert spool.exists()


def test_another_version_s_spool_is_set_aside_and_the_capture_goes_on(rig: Rig) -> None:
    spool = left_spool(rig)
    version_2 = struct.pack("<8sIIIIQQ", b"HMBSPOOL", 2, 424, 864, 0, 16 << 20, 4 << 20)
    with spool.open("r+b") as file:
        file.write(version_2 + b"a ring")
    before = spool.read_bytes()
    done = rig.drain(*SMALL)
    (line, _) = logged(done, "spool-set-aside")
    assert "another version" in line["found"]
    (kept,) = spool.parent.glob("*.spool.damaged-*Z")
    assert kept.read_bytes() == before


@pytest.mark.parametrize("of", ["spool", "manifest"])
@pytest.mark.parametrize("how", ["mode", "link"])
def test_a_leftover_that_others_may_have_written_is_refused(rig: Rig, of: str, how: str) -> None:
    spool = left_spool(rig)
    path = spool if of == "spool" else spool.with_name(spool.name + ".json")
    if how == "mode":
        path.chmod(0o666)
    else:
        os.link(path, rig.folder / "another name")
    said = rig.drain(*SMALL, code=77).stderr
    assert str(path) in said
    assert "expected a plain file of mode 0600" in said
    assert segments(rig.out) == []


def test_a_segment_s_name_is_no_way_out_of_the_directory(rig: Rig) -> None:
    """A forged spool: its segment is called ../../victim."""
    spool = left_spool(rig)
    opened = Spool.open_leftover(spool.parent, spool.name, os.open(spool.parent, os.O_RDONLY))
    assert opened is not None
    state = opened.read_writer()
    state.name = "../victim"
    opened.commit_writer(state)
    opened.close(remove=False)
    done = rig.drain(*SMALL)
    assert "no name of a file" in logged(done, "spool-set-aside")[0]["found"]
    assert not (rig.folder / "victim.bin").exists()


def test_two_daemons_do_not_share_a_label_in_a_directory(rig: Rig) -> None:
    rig.fill("--count", "100")
    other = Rig(rig.programs, rig.folder / "other")
    other.folder.mkdir()
    other.fill("--count", "100")
    first = rig.daemon()
    wait_until(lambda: any(rig.out.glob("*.bin.part")))
    args = command(other, "--output-dir", rig.out)
    second = subprocess.run(args, capture_output=True, text=True, check=False, timeout=30)
    assert second.returncode == 69
    assert second.stderr.count("\n") == 1
    assert "give another --label" in second.stderr
    first.signal(signal.SIGTERM)
    first.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)


@pytest.mark.parametrize("there", [".bin.part", ".bin", ".bin.zst"])
@pytest.mark.parametrize("direct", [True, False])
def test_a_new_segment_never_takes_a_name_in_use(tmp_path: Path, there: str, direct: bool) -> None:
    name = tmp_path / f"x{there}"
    name.write_bytes(b"somebody else's")
    with pytest.raises(FileExistsError):
        SegmentFiles(Place(tmp_path), "x", fresh=True, direct=direct)
    assert name.read_bytes() == b"somebody else's"
    assert [path.name for path in tmp_path.iterdir()] == [name.name]


def test_an_unfinished_output_file_is_not_overwritten(rig: Rig) -> None:
    rig.fill("--count", "100")
    part = rig.folder / "one.bin.part"
    part.write_bytes(b"an earlier capture")
    done = rig.drain("--output", rig.folder / "one.bin", code=73)
    assert f"{part} is there already" in done.stderr
    assert part.read_bytes() == b"an earlier capture"


def connect(path: Path) -> socket.socket:
    """A link to a control socket, once its backlog has room."""
    link = socket.socket(socket.AF_UNIX)
    wait_until(lambda: link.connect_ex(str(path)) == 0)
    link.settimeout(10)
    return link


def open_files(pid: int) -> list[str]:
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            names.append(fd.readlink().name)
    return names


def test_idle_and_absurd_control_clients_do_no_harm(rig: Rig) -> None:
    rig.fill("--count", "100")
    path = rig.folder / "ctl"
    daemon = rig.daemon("--control", path)
    wait_until(path.exists)
    idle = [connect(path) for _ in range(40)]
    with connect(path) as link:
        link.sendall(b"[" * 4000 + b"\n")
        assert link.recv(100) == b'{"ok": false, "error": "JSON is nested too deeply"}\n'
    assert sum(name.startswith("socket:") for name in open_files(daemon.pid)) < 20
    for link in idle:
        link.close()
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)


def test_another_ring_under_the_name_is_drained_too(rig: Rig) -> None:
    rig.fill("--count", "300")
    daemon = rig.daemon()
    wait_until(lambda: any(rig.out.glob("*.bin.part")))
    rig.ring_file.unlink()
    rig.simulate("--count", "500", "--start-seq", "1000", "--freeze-at-end")
    wait_until(lambda: logged(daemon, "epoch"))
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    assert [side.records for side in sidecars(rig.out)] == [300, 500]
    assert [side.epoch for side in sidecars(rig.out)] == [0, 1]


def test_names_that_are_not_utf8_are_captured_and_resumed(
    programs: Programs, tmp_path: Path
) -> None:
    rig = Rig(programs, tmp_path / os.fsdecode(b"\xff\xfe"))
    rig.folder.mkdir()
    rig.fill("--count", "100")
    kill = {"HMB_TRACE_TEST_KILL": "data-written"}
    rig.daemon("--once", env=kill).expect(-signal.SIGKILL)
    rig.drain()
    assert_equals_ledger(rig.out, rig.ledger)
    (side,) = sidecars(rig.out)
    assert (side.epoch, side.complete) == (0, True)
    assert "\\udcff" in side.device.path


def test_an_absurd_spool_size_is_one_line(rig: Rig) -> None:
    rig.fill("--count", "1")
    said = rig.drain("--spool-size", "9" * 25, code=73).stderr
    assert said.count("\n") == 1
    assert "give a smaller --spool-size" in said


def test_a_reload_refuses_what_a_start_refuses(rig: Rig) -> None:
    rig.fill("--count", "10")
    config = rig.folder / "daemon.toml"
    config.write_text('rotate-size = "1MiB"\n')
    daemon = rig.daemon("--config", config)
    wait_until(lambda: any(rig.out.glob("*.bin.part")))
    config.write_text('rotate-size = "1"\n')
    daemon.signal(signal.SIGHUP)
    (line,) = wait_until(lambda: logged(daemon, "reload-failed"))
    assert "expected 0 (never) or at least 64KiB" in line["error"]
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)

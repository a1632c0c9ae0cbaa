# SPDX-License-Identifier: Apache-2.0
"""What the world does to a capture: files taken away, limits, links, floods, odd signals."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hmb_trace.dumps import rejects
from hmb_trace.testing import RingBuilder, record, ring_header
from tests.conftest import Programs, program, require_module, wait_until
from tests.integration.daemonlib import Rig, leftovers, logged, segments, sidecars, summary, walk


@pytest.fixture
def rig(programs: Programs, tmp_path: Path) -> Rig:
    return Rig(programs, tmp_path)


def build(rig: Rig, size: int = 1 << 20, records: int = 500, payload: int = 200) -> RingBuilder:
    ring = RingBuilder(size)
    for number in range(records):
        ring.append(bytes([number & 255]) * payload)
    ring.write(rig.ring_file)
    return ring


def append(rig: Rig, ring: RingBuilder, records: int, payload: int = 200) -> None:
    """Publish more records in the ring file that a daemon drains."""
    tail = struct.unpack_from("<Q", rig.ring_file.read_bytes(), 0x18)[0]
    while ring.tail < tail:
        ring.consume()
    before = ring.head
    for number in range(records):
        ring.append(bytes([number & 255]) * payload)
    region = ring.region()
    with rig.ring_file.open("r+b") as file:
        file.seek(64)
        file.write(region[64:])
        file.seek(0x10)
        file.write(struct.pack("<Q", ring.head))
    assert ring.head > before


def committed(rig: Rig, daemon: Any, ring: RingBuilder) -> Path:
    """The open segment, once all of the ring is in it and the writer has committed that."""
    size = len(ring.expected_dump)
    (part,) = wait_until(
        lambda: [p for p in rig.out.glob("*.bin.part") if p.stat().st_size >= size], "the records"
    )
    time.sleep(0.2)  # the commit follows the data by microseconds, and no file shows it
    return part


def stop(daemon: Any, code: int = 0) -> None:
    daemon.signal(signal.SIGTERM)
    daemon.expect(code)


# ---- R14: a dead host's segment


def orphan(rig: Rig, data: bytes, name: str = "ring-000007-20260101T000000Z") -> Path:
    rig.out.mkdir(exist_ok=True)
    part = rig.out / f"{name}.bin.part"
    part.write_bytes(data)
    return part


def records_of(count: int, first: int = 0) -> list[bytes]:
    return [record(first + n, b"x" * 1000, ts_ns=n) for n in range(count)]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_nothing_but_zeros_is_deleted_r14(rig: Rig, place: str) -> None:
    """A damaged record goes to the rejects; what follows it stays in the dump."""
    whole = records_of(2000)
    at = {"first": 0, "middle": 1000, "last": 1999}[place]
    damaged = bytearray(b"".join(whole))
    damaged[at * len(whole[0])] ^= 1
    orphan(rig, bytes(damaged) + bytes(8192))
    build(rig, records=0)
    done = rig.drain("--label", "ring")
    (side,) = sidecars(rig.out)
    assert (side.records, side.cause, side.complete) == (1999, "host-died", False)
    assert [reason.kind for reason in side.reasons or []] == ["host-died"]
    (dump,) = segments(rig.out)
    assert dump.read_bytes() == b"".join(whole[:at] + whole[at + 1 :])
    bad = bytes(damaged)[at * len(whole[0]) : (at + 1) * len(whole[0])]
    kept = list(rejects.read(rig.out / "ring-000007-20260101T000000Z.rejects"))
    assert [(entry.reason, entry.data) for entry in kept] == [("host-died", bad)]
    assert logged(done, "segment-recovered")
    assert leftovers(rig.out) == []


def test_recovery_r14_does_not_hold_up_the_start(rig: Rig) -> None:
    """Counting goes on from the orphan's last record, and draining begins before it is sealed."""
    orphan(rig, b"".join(records_of(60000)))
    ring = RingBuilder(1 << 20)
    ring.raw(b"".join(record(n, b"y" * 100) for n in range(60003, 60103)))
    ring.write(rig.ring_file)
    daemon = rig.daemon("--label", "ring")
    wait_until(lambda: logged(daemon, "segment-recovered"), "the recovery")
    stop(daemon)
    events = [line["event"] for line in map(json.loads, daemon.stderr.splitlines())]
    assert events.index("attached") < events.index("segment-recovered")
    dead, alive = sidecars(rig.out)
    assert (dead.last_seq, alive.first_seq) == (59999, 60003)
    (gap,) = alive.gap_list
    assert (gap.cause, gap.lost) == ("host-died", 3)


# ---- names that others own


def test_links_in_a_shared_directory_are_not_followed(rig: Rig) -> None:
    victim = rig.folder / "victim"
    victim.write_bytes(b"mine" * 5000)
    rig.out.mkdir()
    (rig.out / "v-000001-20260101T000000Z.bin.part").symlink_to(victim)
    os.mkfifo(rig.out / "v-000002-20260101T000000Z.bin.part")
    build(rig)
    done = rig.drain("--label", "v")
    assert victim.read_bytes() == b"mine" * 5000
    assert len(logged(done, "foreign-file")) == 2
    (side,) = sidecars(rig.out)
    assert (side.number, side.records) == (3, 500)


@pytest.mark.parametrize("what", ["segment", "directory"])
def test_moved_is_not_deleted(rig: Rig, what: str) -> None:
    """No record twice: what was moved stays moved, and the capture goes on where it belongs."""
    ring = build(rig)
    daemon = rig.daemon()
    part = committed(rig, daemon, ring)
    away = rig.folder / "away"
    (rig.out if what == "directory" else part).rename(away)
    wait_until(lambda: logged(daemon, "segment-vanished"), "the daemon to notice")
    append(rig, ring, 100)
    stop(daemon)
    moved = away if what == "segment" else next(away.glob("*.bin.part"))
    first, _ = walk([moved])
    (side,) = sidecars(rig.out)
    assert (first.records, side.records, side.first_seq) == (500, 100, 500)
    (reason,) = side.reasons or []
    assert (reason.kind, reason.count) == ("segment-vanished", 500)


def test_deleted_segment_is_written_again(rig: Rig) -> None:
    ring = build(rig)
    daemon = rig.daemon()
    (part,) = wait_until(lambda: [p for p in rig.out.glob("*.bin.part") if p.stat().st_size], "it")
    part.unlink()
    wait_until(lambda: logged(daemon, "segment-restored"), "the daemon to notice")
    stop(daemon)
    (dump,) = segments(rig.out)
    assert dump.read_bytes() == ring.expected_dump


def test_ring_file_that_shrinks_is_gone_and_no_bus_error(rig: Rig) -> None:
    ring = build(rig)
    daemon = rig.daemon()
    committed(rig, daemon, ring)
    os.truncate(rig.ring_file, 0)
    wait_until(lambda: logged(daemon, "device-gone"), "the daemon to notice")
    another = RingBuilder(4096)
    another.append(b"another")
    another.write(rig.folder / "new")
    (rig.folder / "new").rename(rig.ring_file)
    wait_until(lambda: len(logged(daemon, "epoch")) == 1, "the new ring")
    stop(daemon)
    assert sum(side.records for side in sidecars(rig.out)) == 501


def test_a_vanished_segment_is_told_wherever_the_leftover_is_finished(rig: Rig) -> None:
    """Finished into another directory there is no segment to say it in but the next one."""
    ring = build(rig)
    daemon = rig.daemon()
    committed(rig, daemon, ring)
    daemon.kill()
    shutil.rmtree(rig.out)
    append(rig, ring, 50)
    rig.out.with_name("other").mkdir()
    rig.drain("--output", rig.folder / "other/one.bin")
    side = json.loads((rig.folder / "other/one.json").read_text())
    assert [(r["kind"], r["count"]) for r in side["reasons"]] == [("segment-vanished", 500)]


# ---- limits


def test_file_size_limit_seals_and_goes_on_and_deletes_nothing(rig: Rig) -> None:
    ring = build(rig, size=8 << 20, records=6000, payload=1000)
    rig.out.mkdir()
    old = rig.out / "ring.bin-000001-20260101T000000Z.bin"
    old.write_bytes(record(0, b"old"))
    args = rig._daemon_args(("--once", "--disk-full", "drop-oldest", "--spool-size", "16MiB"))
    limit = 4 << 20

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    # The spool is a file as well: it is made by a daemon without the limit.
    first = rig.daemon("--once", env={"HMB_TRACE_TEST_KILL": "segment-named"})
    assert first.wait() == -signal.SIGKILL
    done = subprocess.run(
        [program("hmb-trace-daemon"), *map(str, args)],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "file-too-large" in done.stderr and "segment-deleted" not in done.stderr
    assert old.exists()
    dump = b"".join(path.read_bytes() for path in segments(rig.out)[1:])
    assert dump == ring.expected_dump


def test_rejects_count_for_rotation_and_have_a_limit(rig: Rig) -> None:
    count, size = 32768, 1 << 23
    data = b"".join(record(n, bytes(224), ts_ns=n, flags=4) for n in range(count))
    rig.ring_file.write_bytes(ring_header(size, head=len(data)) + data.ljust(size, b"\0"))
    rig.drain("--rotate-size", "256KiB", "--max-rejects", "100KiB")
    sides = sidecars(rig.out)
    kept = [path.stat().st_size for path in rig.out.glob("*.rejects")]
    assert len(kept) == len(sides) and max(kept) <= 100 << 10
    assert sum(side.counters["rejected_records"] for side in sides) == count
    assert any(note.id == "rejects-limited" for side in sides for note in side.events)


def test_drop_oldest_tells_what_it_deleted(rig: Rig) -> None:
    from hmb_daemon.writing.retention import Retention  # noqa: PLC0415 - only here

    build(rig, records=500)
    rig.drain("--rotate-size", "64KiB")
    before = sidecars(rig.out)

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **fields: None

    retention = Retention(rig.out, "ring.bin", Silent())
    retention.scan()
    remark = retention.make_room()
    assert remark is not None
    assert (remark.count, remark.seq_after) == (before[0].records, before[1].first_seq)
    while retention.make_room():
        pass
    assert [side.number for side in sidecars(rig.out)] == [before[-1].number]


# ---- guards


def test_two_daemons_with_one_label_r15(rig: Rig) -> None:
    """The lock is held for the daemon's life, not only while a segment is open."""
    build(rig, records=0)
    first = rig.daemon("--label", "t")
    wait_until(lambda: logged(first, "attached"), "the first")
    other = Rig(rig.programs, rig.folder / "b")
    other.folder.mkdir()
    build(other, records=0)
    refused = other.drain("--output-dir", rig.out, "--label", "t", code=69)
    assert str(first.pid) in refused.stderr and "--label" in refused.stderr
    stop(first)
    assert leftovers(rig.out) == []


def test_signals_right_after_the_start_do_not_kill(rig: Rig) -> None:
    build(rig)
    daemon = rig.daemon()
    marker = Path(f"/proc/{daemon.pid}/status")

    def blocked() -> bool:
        line = next(x for x in marker.read_text().splitlines() if x.startswith("SigBlk"))
        return bool(int(line.split()[1], 16) & 1 << (signal.SIGHUP - 1))

    wait_until(blocked, "the entry point")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        daemon.signal(number)
    wait_until(lambda: logged(daemon, "reloaded"), "the signals to be answered")
    stop(daemon)


def test_full_stream_does_not_hold_a_stop(rig: Rig) -> None:
    """Anything but a reader that left: the spool keeps the records, within five seconds."""
    build(rig)
    begun = time.monotonic()
    done = rig.daemon("--output", "/dev/full", "--once").expect(74)
    assert time.monotonic() - begun < 9  # the start of the process included
    assert "spool" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", range(1, 6))
def test_a_thread_that_cannot_be_had_is_one_line_or_nothing(rig: Rig, number: int) -> None:
    ring = build(rig)
    from tests.conftest import native_build  # noqa: PLC0415 - only here

    case = {
        "fault": f"pthread_create:{errno.EAGAIN}:{number}:1",
        "args": [str(arg) for arg in rig._daemon_args(("--once",))],
        "stderr": str(rig.folder / "log"),
    }
    done = subprocess.run(
        [program("python"), "-m", "tests.integration.fault_server"],
        input=json.dumps(case),
        env={**os.environ, "LD_PRELOAD": str(native_build("faults.so"))},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (code,) = json.loads(done.stdout)
    said = (rig.folder / "log").read_text()
    assert code in (0, 74) and "Traceback" not in said
    if code:
        assert "limit on tasks" in said
        rig.drain()
    dump = b"".join(path.read_bytes() for path in segments(rig.out))
    assert dump == ring.expected_dump


# ---- endpoints


def test_metrics_take_few_links_and_never_end_a_capture(rig: Rig) -> None:
    require_module("prometheus_client", "fleet")
    build(rig)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = rig.daemon("--metrics", f"127.0.0.1:{port}")
        wait_until(lambda: logged(daemon, "metrics-unavailable"), "the refusal")
    wait_until(lambda: ask(port, "localhost")[:15] == b"HTTP/1.1 200 OK", "it to be tried again")
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    for link in held:
        link.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    assert b"hmb_trace_records_total" in ask(port, "localhost")
    assert ask(port, "evil.example").startswith(b"HTTP/1.1 403")
    assert ask(port, "localhost", "/").startswith(b"HTTP/1.1 404")
    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < 64
    assert len(list(Path(f"/proc/{daemon.pid}/task").iterdir())) < 12
    for link in held:
        link.close()
    stop(daemon)


def ask(port: int, host: str, path: str = "/metrics") -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as link:
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            link.settimeout(5)
            parts = []
            while part := link.recv(65536):
                parts.append(part)
            return b"".join(parts)
    except OSError:
        return b""


def test_a_control_socket_that_cannot_be_made_does_not_end_the_capture(rig: Rig) -> None:
    build(rig)
    place = rig.folder / "no"
    place.write_text("a file where a directory should be")
    daemon = rig.daemon("--control", place / "s")
    wait_until(lambda: logged(daemon, "control-unavailable"), "the refusal")
    stop(daemon)
    assert summary(daemon)["records"] == 500


def test_a_rotation_is_answered_with_the_segment_that_it_sealed(rig: Rig) -> None:
    build(rig)
    daemon = rig.daemon("--control", rig.folder / "s")
    wait_until(lambda: logged(daemon, "segment-open"), "a segment")
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(str(rig.folder / "s"))
        answers = link.makefile("rb")
        said = []
        for _ in range(2):
            link.sendall(b'{"cmd": "rotate", "wait": true}\n')
            said.append(json.loads(answers.readline()))
    (dump,) = segments(rig.out)
    assert said == [{"ok": True, "segment": dump.name}, {"ok": True, "segment": None}]
    stop(daemon)


def test_seventeen_links_do_not_end_the_daemon(rig: Rig) -> None:
    """The oldest link is dropped while its readiness is on the way."""
    build(rig)
    daemon = rig.daemon("--control", rig.folder / "s")
    wait_until((rig.folder / "s").exists, "the socket")
    links = [socket.socket(socket.AF_UNIX) for _ in range(17)]
    for link in links[:16]:
        link.connect(str(rig.folder / "s"))
        link.sendall(b'{"cmd": "status"}\n' * 3)
    links[16].connect(str(rig.folder / "s"))
    with contextlib.suppress(OSError):
        links[0].sendall(b'{"cmd": "status"}\n')
    links[16].sendall(b'{"cmd": "status"}\n')
    links[16].settimeout(20)
    assert json.loads(links[16].makefile("rb").readline())["ok"]
    for link in links:
        link.close()
    stop(daemon)


def test_catalog_goes_into_every_sidecar(rig: Rig) -> None:
    build(rig)
    catalog = rig.folder / "opcodes.toml"
    catalog.write_text('name = "x"\nfirmware_build = "b7"\n')
    rig.drain("--catalog", catalog, "--rotate-size", "64KiB")
    for side in sidecars(rig.out):
        assert side.catalog is not None
        assert (side.catalog.name, side.catalog.firmware_build) == ("opcodes.toml", "b7")
        assert side.catalog.text == catalog.read_text()
    catalog.write_text("= no")
    assert "opcodes.toml" in rig.drain("--catalog", catalog, code=65).stderr


def test_a_spool_deleted_under_the_daemon_is_told_and_costs_no_record(rig: Rig) -> None:
    ring = build(rig)
    daemon = rig.daemon()
    committed(rig, daemon, ring)
    (spool,) = (rig.folder / "spool").glob("*.spool")
    spool.unlink()
    (said,) = wait_until(lambda: logged(daemon, "spool-vanished"), "the line that tells it")
    assert said["spool"] == str(spool)
    spool.write_bytes(b"somebody else's")
    append(rig, ring, 100)
    stop(daemon)
    assert b"".join(path.read_bytes() for path in segments(rig.out)) == bytes(ring.expected_dump)
    assert spool.read_bytes() == b"somebody else's"


def test_a_manifest_deleted_under_the_daemon_is_made_again(rig: Rig) -> None:
    ring = build(rig)
    daemon = rig.daemon()
    committed(rig, daemon, ring)
    (manifest,) = (rig.folder / "spool").glob("*.spool.json")
    before = manifest.read_bytes()
    manifest.unlink()
    wait_until(manifest.exists, "the manifest")
    assert manifest.read_bytes() == before
    stop(daemon)

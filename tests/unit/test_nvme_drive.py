# SPDX-License-Identifier: Apache-2.0
"""hmb-firmware-sim --vfio-user without QEMU: a host in Python drives the controller."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hmb_producer_sim.nvme.settings import DriveSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Programs, wait_until
from tests.unit import vfiohost
from tests.unit.vfiohost import BASE, CACHE, CONFIG, DATA, EHM, HMNARE, MR, SLICE, SLICE_SIZE, Host

RING = 64 << 10
FLAGS, TAIL = SLICE + 0x20, SLICE + 0x18
QUICK = DriveSettings(drain_ns=50_000_000)


@contextlib.contextmanager
def a_host(drive: DriveSettings = QUICK, **plan: Any) -> Iterator[Host]:
    host = Host(drive, **plan)
    try:
        yield host
    finally:
        host.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """An enabled controller whose host keeps the rules."""
    with a_host() as one:
        one.attach()
        yield one
    assert one.violations == []


# ---- the controller ----


def identify(host: Host, kind: int = 1, nsid: int = 0) -> bytes:
    assert host.admin(0x06, kind, nsid=nsid).status == 0
    return host.get(DATA, 4096)


def test_identify_tells_what_the_options_say() -> None:
    drive = DriveSettings(
        serial="S1",
        model="M",
        firmware="F",
        hmb_size=32 << 20,
        hmb_min=1 << 20,
        hmb_min_descriptor=8192,
        hmb_max_descriptors=7,
    )
    with a_host(drive) as host:
        data = identify(host.attach())
        assert data[4:24] == b"S1".ljust(20)
        assert data[24:72].split() == [b"M", b"F"]
        assert struct.unpack_from("<II", data, 272) == (32 << 8, 1 << 8)
        assert struct.unpack_from("<IH", data, 332) == (2, 7)
        assert struct.unpack_from("<I", data, 96)[0] >> 17 & 1
    assert host.violations == []


def test_namespace_is_listed_and_holds_what_was_written(host: Host) -> None:
    assert struct.unpack_from("<II", identify(host, 2)) == (1, 0)
    assert struct.unpack_from("<Q", identify(host, 0, 1))[0] == 16 << 11
    host.make_io_queue()
    payload = os.urandom(3 * 4096)
    pages = [BASE + 0x8000 + 0x2000 * i for i in range(3)]  # apart from each other
    for i, page in enumerate(pages):
        host.put(page, payload[4096 * i : 4096 * (i + 1)])
    host.put(vfiohost.PRPS, struct.pack("<QQ", *pages[1:]))
    prps = (pages[0], vfiohost.PRPS)
    host.submit(0x01, 8, 0, 23, queue=1, nsid=1, prps=prps)
    assert host.completion(1).status == 0
    for page in pages:
        host.put(page, bytes(4096))
    host.submit(0x02, 8, 0, 23, queue=1, nsid=1, prps=prps)
    assert host.completion(1).status == 0
    assert b"".join(host.get(page, 4096) for page in pages) == payload


@pytest.mark.parametrize(
    ("opcode", "dwords", "status"),
    [
        (0xFF, (), 0x001),
        (0x06, (0x77,), 0x002),
        (0x01, (15 << 16 | 3, 1 | 9 << 16), 0x100),
        (0x05, (15 << 16 | 99, 3), 0x101),
        (0x05, (3, 3), 0x102),
        (0x05, (15 << 16 | 1, 3 | 99 << 16), 0x108),
        (0x00, (5,), 0x101),
        (0x02, (0x77 | 1 << 16,), 0x109),
        (0x09, (0x77,), 0x002),
        (0x09, (0x02, 31), 0x002),
        (0x0A, (0x77,), 0x002),
    ],
)
def test_bad_admin_commands_have_their_status(
    host: Host, opcode: int, dwords: tuple[int, ...], status: int
) -> None:
    assert host.admin(opcode, *dwords).status == status
    assert host.admin(0x0A, 0x07).status == 0  # and the next one is served


def test_number_of_queues_power_and_plain_features(host: Host) -> None:
    assert host.admin(0x09, 0x07, 0x003F003F).result == 0x00070007
    assert host.admin(0x09, 0x02, 1).status == 0
    assert host.admin(0x0A, 0x02).result == 1
    assert host.admin(0x09, 0x04, 300).status == 0
    assert host.admin(0x0A, 0x04).result == 300
    assert host.admin(0x0A, 0x104).result == 353  # the default


def test_event_requests_wait_and_can_be_aborted(host: Host) -> None:
    cid = host.submit(0x0C)
    assert host.admin(0x08, cid << 16 | 9).result == 1  # not of that queue
    host.submit(0x08, cid << 16)
    seen = {one.cid: one for one in (host.completion(), host.completion())}
    assert seen[cid].status == 7
    assert [one.result for one in seen.values() if one.cid != cid] == [0]


def test_a_full_completion_queue_holds_commands_back(host: Host) -> None:
    """More commands than completions fit: none is lost, none overwrites another."""
    host.make_io_queue()
    got = []
    for i in range(3 * vfiohost.ENTRIES):
        host.submit(0x00, queue=1, nsid=1)
        if i % 10 == 9:
            got += [host.completion(1).cid for _ in range(10)]
    assert got == [i % vfiohost.ENTRIES for i in range(len(got))]


def test_interrupts_are_raised_through_the_clients_descriptors(host: Host) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    set_irqs = struct.pack("<IIIII", 20, 4 | 32, 2, 0, 1)
    assert host.request(vfiohost.SET_IRQS, set_irqs, [fd])[0] == 0
    host.admin(0x0A, 0x07)
    assert wait_until(lambda: os.eventfd_read(fd)) >= 1
    assert host.request(vfiohost.SET_IRQS, set_irqs)[0] == 0  # no descriptor: disconnected
    host.admin(0x0A, 0x07)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)


# ---- the buffer and the handshake ----


def test_firmware_leaves_a_buffer_without_a_mark_alone(host: Host) -> None:
    host.put(SLICE, bytes(SLICE_SIZE))
    assert host.lend(mark=False).status == 0
    assert host.take_back().status == 0
    assert host.get(SLICE, 4) != b"HMBT"
    assert host.tracer.ledger is None


@pytest.mark.parametrize("at", [0, 4, 8, 16, 40, 60])
def test_a_mark_with_one_wrong_byte_is_no_mark(host: Host, at: int) -> None:
    mark = bytearray(vfiohost.make_slice_mark(SLICE_SIZE, SLICE))
    mark[at] ^= 1
    host.put(SLICE + SLICE_SIZE - 64, bytes(mark))
    assert host.lend(mark=False).status == 0
    host.take_back()
    assert host.get(SLICE, 4) != b"HMBT"


def take_all(host: Host, records: Callable[[], bool]) -> None:
    def done() -> bool:
        host.drain()
        return records()

    wait_until(done, "the workload's end")


def test_records_fill_the_slice_and_the_ledger_counts_them() -> None:
    with a_host(count=5000) as host:
        host.attach()
        assert host.lend().status == 0
        wait_until(lambda: host.get(SLICE, 4) == b"HMBT", "a ring")
        assert struct.unpack("<III", host.get(SLICE + 4, 12)) == (1, RING, 64)
        take_all(host, lambda: host.tracer.ledger is not None)
        host.drain()
        assert host.take_back().status == 0
    assert host.violations == []
    assert host.ledger and host.ledger["exact"]
    assert host.ledger["records"] == 5000
    assert host.ledger["ring_size"] == RING


def test_disable_waits_until_the_ring_is_read() -> None:
    drive = DriveSettings(drain_ns=20_000_000_000)
    with a_host(drive, count=100) as host:
        host.attach()
        host.lend()
        wait_until(lambda: host.tracer.ledger is not None, "100 records")
        host.submit(0x09, 0x0D, 0)
        assert host.read(0x1C) == 1  # it answers registers meanwhile
        assert host.get(vfiohost.ACQ + 16 + 14, 1) == b"\0"
        host.drain()
        assert host.completion().status == 0
    assert host.ledger and host.ledger["exact"] and host.ledger["records"] == 100


def test_unread_records_are_taken_out_of_the_ledger() -> None:
    """The buffer goes with records in it: a new ring, and seq tells how many are missing."""
    with a_host() as host:
        host.attach()
        host.lend()
        wait_until(lambda: host.word(SLICE + 0x10) > 1000, "records")
        host.disable()
        lost = host.tracer.lost
        assert lost > 10
        host.enable()
        host.lend(EHM | MR)
        wait_until(lambda: host.word(SLICE + 0x10) > 32, "records")
        first = int.from_bytes(host.get(SLICE + 64 + 4, 4), "little")
        assert first == lost
    assert host.violations == []


def test_function_reset_restarts_firmware_at_once(host: Host) -> None:
    host.lend()
    wait_until(lambda: host.word(SLICE + 0x10) > 100, "records")
    host.write(0x69, 0x80, 1, CONFIG)  # the reset bit of the device control register
    head = host.word(SLICE + 0x10)
    assert host.read(0x14) == host.read(0x1C) == 0
    assert host.word(SLICE + 0x10) == head
    host.write(4, 6, 2, CONFIG)
    host.enable()
    host.lend()
    wait_until(lambda: host.word(SLICE + 0x10) > 32, "records")
    assert host.get(SLICE + 64 + 4, 4) == bytes(4)  # seq from 0


def test_shutdown_freezes_the_ring(host: Host) -> None:
    host.lend()
    wait_until(lambda: host.word(SLICE + 0x10) > 100, "records")
    host.write(0x14, 0x460001 | 1 << 14)
    wait_until(lambda: host.read(0x1C) >> 2 & 3 == 2, "the shutdown")
    assert host.get(FLAGS, 1)[0] & 2


def is_still(host: Host) -> bool:
    """Firmware writes nothing, though there is room."""
    head = host.drain()
    for _ in range(40):
        host.read(0x1C)
        if host.word(SLICE + 0x10) != head:
            return False
    return True


def test_non_operational_state_restricts_when_asked(host: Host) -> None:
    host.lend(EHM | HMNARE)
    wait_until(lambda: host.word(SLICE + 0x10) > 100, "records")
    assert host.admin(0x0A, 0x0D).result == EHM | HMNARE
    host.admin(0x09, 0x02, 2)
    assert is_still(host)
    host.make_io_queue()
    assert is_still(host)
    host.submit(0x00, queue=1, nsid=1)  # an I/O command wakes the drive
    host.completion(1)
    assert host.admin(0x0A, 0x02).result == 0
    head = host.drain()
    wait_until(lambda: host.word(SLICE + 0x10) > head, "records again")


def test_non_operational_state_without_restriction_goes_on(host: Host) -> None:
    host.lend(EHM)
    host.admin(0x09, 0x02, 2)
    head = host.drain()
    wait_until(lambda: host.word(SLICE + 0x10) > head, "records")


def test_no_bus_master_no_trace(host: Host) -> None:
    host.lend()
    host.write(4, 2, 2, CONFIG)
    assert is_still(host)
    host.write(4, 6, 2, CONFIG)
    head = host.drain()
    wait_until(lambda: host.word(SLICE + 0x10) > head, "records")


# ---- the referee ----


def one_violation(break_it: Callable[[Host], object], drive: DriveSettings = QUICK) -> str:
    """The first violation of a host that does this to an enabled buffer."""
    with a_host(drive, rate=1000) as host:
        host.attach()
        host.lend()
        wait_until(lambda: host.word(SLICE + 0x10) > 0, "records")
        break_it(host)
        host.disable()
    assert host.violations, host.lines
    return host.violations[0]


@pytest.mark.parametrize("at", [0x00, 0x08, 0x20, 0x3F, 0x40, 0x41, RING - 1])
def test_host_that_writes_the_ring_is_found(at: int) -> None:
    def write(host: Host) -> None:
        host.put(SLICE + at, bytes((host.get(SLICE + at, 1)[0] ^ 0x80,)))

    assert f"byte {at:#x} of the ring" in one_violation(write)


def test_host_that_writes_behind_the_ring_is_found() -> None:
    assert "behind the ring" in one_violation(lambda h: h.put(SLICE + SLICE_SIZE - 100, b"x"))


def test_host_that_writes_the_drives_cache_is_found() -> None:
    assert "cache at" in one_violation(lambda h: h.put(CACHE + 0x3000, b"x"))


def test_host_may_write_tail(host: Host) -> None:
    host.lend()
    wait_until(lambda: host.word(SLICE + 0x10) > 1000, "records")
    host.drain()
    host.disable()


def test_firmware_that_touches_a_restricted_buffer_is_found() -> None:
    """The gate is held open behind the controller's back."""

    def misbehave(host: Host) -> None:
        host.disable()
        host.enable()
        host.lend(EHM | MR | HMNARE)
        host.tracer.allow = lambda is_open: None  # type: ignore[method-assign]  # the defect
        host.admin(0x09, 0x02, 2)
        head = host.word(SLICE + 0x10)
        wait_until(lambda: host.word(SLICE + 0x10) > head, "records")
        del host.tracer.allow
        host.tracer.allow(False)
        host.admin(0x09, 0x02, 0)

    assert "firmware touched the HMB in a restricted state" in one_violation(misbehave)


@pytest.mark.parametrize(
    ("pieces", "drive", "text"),
    [
        (((SLICE, SLICE_SIZE), (SLICE + 4096, SLICE_SIZE)), QUICK, "overlap"),
        (((SLICE + 8, SLICE_SIZE),), QUICK, "descriptor 0"),
        (((SLICE, SLICE_SIZE), (CACHE, 4096)), DriveSettings(hmb_max_descriptors=1), "HMMAXD"),
        (((SLICE, SLICE_SIZE),), DriveSettings(hmb_min_descriptor=1 << 20), "descriptor 0"),
        (((SLICE, SLICE_SIZE),), DriveSettings(hmb_min=1 << 20), "HMMIN"),
        (((1 << 40, SLICE_SIZE),), QUICK, "not mapped"),
    ],
)
def test_buffers_against_the_rules_are_refused(
    pieces: tuple[tuple[int, int], ...], drive: DriveSettings, text: str
) -> None:
    with a_host(drive) as host:
        host.attach()
        assert host.lend(pieces=pieces, mark=False).status != 0
        assert host.admin(0x0A, 0x0D).result == 0
    assert text in host.violations[0]


def test_completions_may_be_reaped_after_the_disable(host: Host) -> None:
    host.submit(0x0A, 0x07)
    host.disable()
    host.write(0x1004, 1)
    host.enable()
    assert host.admin(0x0A, 0x07).status == 0


def test_submission_after_the_disable_is_found() -> None:
    with a_host() as host:
        host.attach()
        host.disable()
        host.write(0x1000, 1)
    assert "does not exist" in host.violations[0]


def test_other_breaches_are_found() -> None:
    with a_host() as host:
        host.attach()
        host.submit(0x0C)
        host.write(0x1000 + 8 * 5, 1)  # no such queue
        assert host.completion().result & 0xFF == 0  # an error event
        host.write(0x1000, 999)
        host.lend()
        assert host.lend().status == 0x00C
        host.write(0x28, ASQ_ELSEWHERE, 8)
    assert len(host.violations) == 4


ASQ_ELSEWHERE = BASE + 0x10000


# ---- memory that goes, messages that are none ----


def test_memory_unmapped_under_use_stops_firmware_first(host: Host) -> None:
    host.lend()
    wait_until(lambda: host.word(SLICE + 0x10) > 0, "records")
    assert host.unmap() == 0
    head = host.word(SLICE + 0x10)
    assert host.read(0x1C) & 2  # fatal, until it is reset
    assert host.word(SLICE + 0x10) == head
    assert host.map() == 0
    assert host.request(vfiohost.RESET)[0] == 0
    host.write(4, 6, 2, CONFIG)
    host.enable()
    assert host.lend().status == 0
    assert any("unmapped" in line for line in host.lines)


def test_commands_outside_mapped_memory_fail_alone() -> None:
    with a_host() as host:
        host.attach()
        assert host.admin(0x06, 1, prps=(1 << 45, 0)).status == 4
        assert host.admin(0x06, 1).status == 0
    assert "not mapped" in host.violations[0]


@pytest.mark.parametrize(
    ("command", "payload", "error"),
    [
        (99, b"", errno.EOPNOTSUPP),
        (vfiohost.VERSION, b"", errno.EINVAL),
        (vfiohost.VERSION, struct.pack("<HH", 7, 0), errno.ENOTSUP),
        (vfiohost.DMA_MAP, b"short", errno.EINVAL),
        (vfiohost.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0x123, 4096), errno.EINVAL),
        (vfiohost.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, (1 << 64) - 4096, 8192), errno.EINVAL),
        (vfiohost.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, BASE, 4096), errno.EINVAL),  # twice
        (vfiohost.DMA_UNMAP, struct.pack("<IIQQ", 24, 0, 0, 4096), errno.ENOENT),
        (5, struct.pack("<IIIIQQ", 32, 0, 77, 0, 0, 0), errno.EINVAL),
        (7, struct.pack("<IIII", 16, 0, 77, 0), errno.EINVAL),
        (8, struct.pack("<IIIII", 20, 36, 2, 0xFFFFFFFF, 5), errno.EINVAL),
        (9, struct.pack("<QII", 0, 0, 0x7FFFFFFF), errno.EINVAL),
        (9, struct.pack("<QII", (1 << 64) - 1, 0, 4), errno.EINVAL),
        (10, struct.pack("<QII", 0x14, 0, 8) + b"1", errno.EINVAL),
    ],
)
def test_malformed_messages_get_an_error_and_one_line(
    host: Host, command: int, payload: bytes, error: int
) -> None:
    before = len(host.lines)
    assert host.request(command, payload)[0] == error
    assert len(host.lines) == before + 1
    assert host.read(0x1C) == 1  # and it goes on


@pytest.mark.parametrize("size", [0, 15, 1 << 31])
def test_lost_framing_ends_the_client_with_one_line(size: int) -> None:
    with a_host() as host:
        host.greet()
        host.socket.sendall(struct.pack("<HHIII", 1, 9, size, 0, 0))
        assert host.socket.recv(1) == b""
    assert [line for line in host.lines if "vfio-user" in line] == [
        f"vfio-user: command 9: found a size of {size} bytes, expected 16 to 1052672; "
        "the client is dropped"
    ]


@given(st.lists(st.tuples(st.integers(0, 16), st.binary(max_size=64)), max_size=12))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_messages_end_in_order(messages: list[tuple[int, bytes]]) -> None:
    with a_host() as host:
        host.attach()
        for command, payload in messages:
            host.request(command, payload)


@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=10))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_commands_leave_the_controller_alive(entries: list[bytes]) -> None:
    with a_host() as host:
        host.attach()
        for i, entry in enumerate(entries):
            host.put(vfiohost.ASQ + 64 * i, entry)
        host.write(0x1000, len(entries))
        host.disable()
        host.enable()
        assert host.admin(0x0A, 0x07).status == 0


def test_lines_of_one_kind_are_bounded(host: Host) -> None:
    for _ in range(200):
        host.request(99)
    assert sum("no such command" in line for line in host.lines) == 50


# ---- the program ----


def test_program_serves_one_client_and_writes_the_ledger(
    programs: Programs, tmp_path: Path
) -> None:
    path, ledger = tmp_path / "s", tmp_path / "ledger.json"
    run = programs.start("hmb-firmware-sim", "--vfio-user", path, "--count", 50, "--ledger", ledger)
    wait_until(path.exists, "the socket")
    host = Host()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        host.socket.close()
        host.socket = client
        host.attach()
        host.lend()
        wait_until(ledger.exists, "the ledger")
        host.drain()
        host.take_back()
    run.expect(0)
    host.close()
    assert json.loads(ledger.read_text())["records"] == 50
    assert not path.exists()


def test_program_fails_a_run_in_which_a_rule_was_broken(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "s"
    run = programs.start("hmb-firmware-sim", "--vfio-user", path, "--quiet")
    wait_until(path.exists, "the socket")
    host = Host()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        host.socket.close()
        host.socket = client
        host.attach()
        host.write(0x1000, 999)
    run.expect(1)
    host.close()
    last = run.stderr.splitlines()[-1]
    assert last == "hmb-firmware-sim: 1 violations; the first: doorbell of queue 0: 999, size 16"


def test_drive_can_restrict_itself() -> None:
    with a_host(DriveSettings(restrict_idle=True, drain_ns=0)) as host:
        host.attach()
        host.lend(EHM)
        host.admin(0x09, 0x02, 2)
        assert is_still(host)
    assert host.violations == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--shm", "/x"), 2, "--vfio-user"),
        (("--fault", "reset"), 2, "--fault"),
        (("--hmb-size", "5000"), 2, "multiple of 4096"),
        (("--hmb-min", "1GiB"), 2, "--hmb-min"),
        (("--ring-size", "100"), 2, "power of two"),
    ],
)
def test_program_refuses_what_makes_no_sense(
    programs: Programs, tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    run = programs.run("hmb-firmware-sim", "--vfio-user", tmp_path / "s", *arguments, code=code)
    assert text in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_program_does_not_take_a_socket_that_is_there(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    run = programs.run("hmb-firmware-sim", "--vfio-user", tmp_path / "s", code=69)
    assert "--replace" in run.stderr

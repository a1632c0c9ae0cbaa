# SPDX-License-Identifier: Apache-2.0
"""What the module must do, tried inside the guest against the real device nodes.

Runs as `python module_checks.py MODULE.ko FAKE_NVME.ko`; prints a JSON line per check.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / part) for part in ("kmod_shim", "src")]

import hmb_kmod_shim as shim  # noqa: E402 - the guest's Python knows the checkout only now

from hmb_trace.errors import (  # noqa: E402 - as above
    HmbTraceError,
    InvalidDataError,
    NoInputError,
)

KO, FAKE_KO = sys.argv[1:3]
PARAMETERS = Path("/sys/module/nvme_hmb_trace/parameters")
CLASS = Path("/sys/class/hmbtrace")
RING = 1 << 16
REGION = RING + mmap.PAGESIZE
PAGES, FIRMWARE = "/dev/nvme1-hmbtrace", "/dev/nvme1-hmbtrace-fw"
PCI = "/dev/nvme0-hmbtrace"  # probed first
HEAD, TAIL, FLAGS = 0x10, 0x18, 0x20
RW = mmap.PROT_READ | mmap.PROT_WRITE

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


# ---- tools ----


def insmod(*options: str) -> None:
    subprocess.run(["/sbin/insmod", KO, *options], check=True, capture_output=True, text=True)


def rmmod(name: str = "nvme_hmb_trace") -> int:
    command = ["/sbin/rmmod", name]
    return subprocess.run(command, check=False, capture_output=True).returncode


def load(*options: str) -> None:
    insmod("pci_regions=all", "pages_regions=2", f"pages_ring_size={RING}", *options)


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDWR) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def mapped(path: str, size: int = REGION, protection: int = RW) -> Iterator[mmap.mmap]:
    with opened(path) as fd:
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
        try:
            yield memory
        finally:
            memory.close()


def put(memory: mmap.mmap, offset: int, value: int, form: str = "<Q") -> None:
    struct.pack_into(form, memory, offset, value)


def get(memory: mmap.mmap, offset: int, form: str = "<Q") -> int:
    return int(struct.unpack_from(form, memory, offset)[0])


def fails(number: int, call: Callable[[], object]) -> None:
    try:
        call()
    except OSError as error:
        assert error.errno == number, f"errno {error.errno}, expected {number}"
        return
    raise AssertionError(f"succeeded, expected errno {number}")


def attribute(name: str, node: str = PAGES) -> str:
    return (CLASS / Path(node).name / name).read_text().strip()


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition never held"
        time.sleep(0.02)


def format_ring(memory: mmap.mmap, ring: int = RING, version: int = 1) -> None:
    memory[:64] = bytes(64)
    struct.pack_into("<IIII", memory, 0, 0x54424D48, version, ring, 64)


def pci_device() -> Path:
    return (CLASS / Path(PCI).name / "device").resolve()


def geometry(fd: int) -> tuple[int, ...]:
    info = shim.get_info(fd)
    return (info.abi_version, info.ring_size, info.record_area_off, info.total_mmap_size)


def timer_armed() -> bool:
    return "hmb_region_tick" in Path("/proc/timer_list").read_text()


# ---- loading ----


@check
def load_and_unload_20_times() -> None:
    for _ in range(20):
        load()
        assert Path(PAGES).exists()
        assert attribute("provider", PCI) == "pci"  # its BAR was released by the one before
        assert rmmod() == 0
        assert not CLASS.exists()


@check
def shared_memory_functions_are_taken_only_when_named() -> None:
    """Ivshmem is used for much else."""
    address = next(p.name for p in Path("/sys/bus/pci/devices").iterdir() if is_ivshmem(p))
    for options, there in (
        ((), False),
        (("pci_regions=0000:ff:00.0",), False),
        ((f"pci_regions=0000:ff:00.0,{address}",), True),
    ):
        insmod(*options)
        assert Path(PCI).exists() is there, options
        assert rmmod() == 0
    found = subprocess.run(["/sbin/modinfo", "-F", "alias", KO], capture_output=True, check=True)
    assert b"pci:" not in found.stdout, "loads by itself in every guest with an ivshmem"


def is_ivshmem(device: Path) -> bool:
    return (device / "device").read_text().strip() == "0x1110"


@check
def bad_parameters_are_refused() -> None:
    for bad in ("pages_ring_size=3000", "pages_ring_size=16", "pages_regions=17"):
        result = subprocess.run(
            ["/sbin/insmod", KO, "pages_regions=1", bad],
            check=False,
            capture_output=True,
            text=True,
        )
        assert result.returncode, bad
        assert "Invalid" in result.stderr, result.stderr


@check
def nodes_and_attributes() -> None:
    load()
    assert sorted(path.name for path in CLASS.iterdir()) == [
        *("nvme0-hmbtrace", "nvme1-hmbtrace", "nvme1-hmbtrace-fw"),
        *("nvme2-hmbtrace", "nvme2-hmbtrace-fw"),
    ]
    expected = {
        "abi_version": "1",
        "ring_size": str(RING),
        "region_size": str(REGION),
        "instance": "1",
        "fill": "0",
        "overflow_count": "0",
        "generation": "0",
        "consumer": "0",
        "mmap_policy": "rw",
        "provider": "pages",
        "origin": "",
    }
    for name, value in expected.items():
        assert attribute(name) == value, (name, attribute(name))
    assert attribute("origin", PCI) == pci_device().name


# ---- open, ioctl ----


@check
def second_consumer_gets_ebusy_and_finds_out_whom() -> None:
    with opened(PAGES):
        fails(errno.EBUSY, lambda: os.open(PAGES, os.O_RDWR))
        fails(errno.EBUSY, lambda: os.open(PAGES, os.O_WRONLY))
        assert shim.consumer_pid(PAGES) == os.getpid()
        with opened(PAGES, os.O_RDONLY) as observer:
            assert shim.get_info(observer).ring_size == RING
    assert shim.consumer_pid(PAGES) is None
    with opened(PAGES):
        pass


@check
def exclusive_open_survives_fork_and_dup() -> None:
    fd = os.open(PAGES, os.O_RDWR)
    copy = os.dup(fd)
    os.close(fd)
    fails(errno.EBUSY, lambda: os.open(PAGES, os.O_RDWR))
    os.close(copy)
    with opened(PAGES):
        pass


@check
def get_info_and_bad_ioctls() -> None:
    import fcntl  # noqa: PLC0415 - only here

    with opened(PAGES) as fd:
        assert geometry(fd) == (1, RING, 64, RING + 64)
        for request in (0, 0x4801, 0x80104801, shim.GET_INFO + 9, shim.ADVANCE_TAIL + 9, 0x5401):
            fails(errno.ENOTTY, lambda request=request: fcntl.ioctl(fd, request, bytearray(64)))
        libc = ctypes.CDLL(None, use_errno=True)
        for request in (shim.GET_INFO, shim.ADVANCE_TAIL):
            assert libc.ioctl(fd, ctypes.c_ulong(request), ctypes.c_void_p(8)) == -1
            assert ctypes.get_errno() == errno.EFAULT


@check
def the_abi_can_grow() -> None:
    """A caller with a later, longer structure; and one that asks for what is not known here."""
    import fcntl  # noqa: PLC0415 - only here

    def request(number: int, words: bytes) -> bytearray:
        answer = bytearray(words)
        longer = number & ~(0x3FFF << 16) | len(words) << 16
        fcntl.ioctl(fd, longer, answer)
        return answer

    with opened(PAGES) as fd:
        later = request(shim.GET_INFO, struct.pack("<I", 96) + bytes(92))
        assert struct.unpack_from("<III", later) == (64, 1, 1)
        for size, tail, number in (
            (96, b"\1", errno.E2BIG),
            (60, b"", errno.EINVAL),
            (0, b"", errno.EINVAL),
            (1 << 31, b"", errno.EINVAL),
        ):
            words = (struct.pack("<I", size) + bytes(96))[: 96 - len(tail)] + tail
            fails(number, lambda words=words: request(shim.GET_INFO, words))
        for offset in (4, 32, 63):  # flags, reserved
            words = bytearray(struct.pack("<I", 64) + bytes(60))
            words[offset] = 1
            fails(errno.EINVAL, lambda words=words: request(shim.GET_INFO, bytes(words)))
        for offset in (4, 24):
            words = bytearray(struct.pack("<I", 32) + bytes(28))
            words[offset] = 1
            fails(errno.EINVAL, lambda words=words: request(shim.ADVANCE_TAIL, bytes(words)))


@check
def get_info_r1_of_a_header_that_does_not_fit() -> None:
    with mapped(FIRMWARE) as firmware, opened(PAGES) as fd:
        for ring in (RING * 4, RING + 8, 0, 16):
            format_ring(firmware, ring)
            assert geometry(fd) == (1, RING, 64, RING + 64), ring
            assert shim.InfoFlag.RING not in shim.get_info(fd).flags
            try:
                shim.map_region(fd, shim.get_info(fd))
            except InvalidDataError as error:
                assert "ring_size" in str(error)
            else:
                raise AssertionError(f"ring_size {ring} was accepted")
        format_ring(firmware, version=7)
        assert shim.get_info(fd).abi_version == 7
        format_ring(firmware, RING // 2)
        assert shim.get_info(fd).total_mmap_size == RING // 2 + 64
        format_ring(firmware)


# ---- mmap ----


@check
def mmap_sizes_offsets_and_kinds() -> None:
    with opened(PAGES) as fd:
        for size in (64, mmap.PAGESIZE, RING + 64, REGION):
            mmap.mmap(fd, size, mmap.MAP_SHARED, RW).close()
        for size in (REGION + 1, REGION + mmap.PAGESIZE, 1 << 30):
            fails(errno.EINVAL, lambda size=size: mmap.mmap(fd, size, mmap.MAP_SHARED, RW))
        page = mmap.PAGESIZE
        fails(errno.EINVAL, lambda: mmap.mmap(fd, page, mmap.MAP_SHARED, RW, offset=page))
        fails(errno.EINVAL, lambda: mmap.mmap(fd, page, mmap.MAP_PRIVATE, RW))
        fails(
            errno.EACCES,
            lambda: mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC),
        )
    with opened(PAGES, os.O_RDONLY) as observer:
        mmap.mmap(observer, REGION, mmap.MAP_SHARED, mmap.PROT_READ).close()
        fails(errno.EACCES, lambda: mmap.mmap(observer, REGION, mmap.MAP_SHARED, RW))


@check
def firmware_and_consumer_see_one_memory() -> None:
    with mapped(FIRMWARE) as firmware, mapped(PAGES) as ring:
        for offset in (64, 5000, REGION - 1):
            firmware[offset] = offset % 251
            assert ring[offset] == offset % 251
        put(firmware, HEAD, 256)
        assert attribute("fill") == "256"
        put(ring, TAIL, 256)
        assert get(firmware, TAIL) == 256
        assert attribute("fill") == "0"


@check
def read_only_policy_refuses_prot_write_and_moves_tail_by_ioctl() -> None:
    (PARAMETERS / "mmap_readonly").write_text("1")
    try:
        assert attribute("mmap_policy") == "ro"
        with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
            fails(errno.EACCES, lambda: mmap.mmap(fd, REGION, mmap.MAP_SHARED, RW))
            memory, writable = shim.map_region(fd, shim.get_info(fd))
            assert not writable
            assert mprotect(memory) == errno.EACCES
            format_ring(firmware)
            put(firmware, HEAD, 1024)
            assert shim.advance_tail(fd, 0, 512)
            assert get(memory, TAIL) == 512
            memory.close()
    finally:
        (PARAMETERS / "mmap_readonly").write_text("0")


def mprotect(memory: mmap.mmap) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"^([0-9a-f]+)-[0-9a-f]+ r--s .*nvme1-hmbtrace$", maps, re.MULTILINE)
    assert found, maps
    result = libc.mprotect(ctypes.c_void_p(int(found[1], 16)), ctypes.c_size_t(mmap.PAGESIZE), 3)
    return ctypes.get_errno() if result else 0


@check
def advance_tail_r2_in_both_policies() -> None:
    with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        base = (1 << 64) - 64
        put(firmware, TAIL, base)
        put(firmware, HEAD, 64)  # beyond 2^64
        assert not shim.advance_tail(fd, 0, 8)
        assert shim.advance_tail(fd, base, 0)
        for wrong in (4, 72, base):
            if wrong == base:
                continue
            try:
                shim.advance_tail(fd, 0, wrong)
            except HmbTraceError:
                continue
            raise AssertionError(f"tail {wrong} was stored, head is 64")
        assert shim.advance_tail(fd, 0, 64)
        assert get(firmware, TAIL) == 64
        put(firmware, TAIL, 2048)
        put(firmware, HEAD, 4096)
        for wrong in (1024, 2040, 4096 - (1 << 40), 4104):
            try:
                shim.advance_tail(fd, 2048, wrong % (1 << 64))
            except HmbTraceError:
                continue
            raise AssertionError(f"tail {wrong} was stored: not between 2048 and 4096")
        put(firmware, TAIL, 64)
        put(firmware, HEAD, 64)
        with opened(PAGES, os.O_RDONLY) as observer:
            try:
                shim.advance_tail(observer, 64, 64)
            except HmbTraceError as error:
                assert "Bad file descriptor" in str(error)
            else:
                raise AssertionError("an observer moved tail")


# ---- poll ----


@check
def poll_wakes_up_when_head_moves_and_arms_the_timer_only_then() -> None:
    with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        assert waiter.poll(0) == []
        until(lambda: not timer_armed())
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.append(waiter.poll(20_000)))
        thread.start()
        until(timer_armed)
        assert not got
        put(firmware, HEAD, 64)
        thread.join()
        assert got == [[(fd, select.POLLIN)]]
        assert waiter.poll(0) == [(fd, select.POLLIN)]
        put(firmware, TAIL, 64)
        until(lambda: not timer_armed())
        before = time.monotonic()
        assert waiter.poll(300) == []
        assert time.monotonic() - before > 0.25
        until(lambda: not timer_armed())


@check
def edge_triggered_waiters_are_told_every_time() -> None:
    with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
        for how in (select.EPOLLET, 0, select.EPOLLEXCLUSIVE):
            format_ring(firmware)
            waiter = select.epoll()
            waiter.register(fd, select.EPOLLIN | how)
            waiter.poll(0)
            for step in range(1, 6):
                put(firmware, HEAD, step * 64)
                assert waiter.poll(5) == [(fd, select.EPOLLIN)], (how, step)
                if how != select.EPOLLET or step % 2:  # an edge comes with unread records too
                    put(firmware, TAIL, step * 64)
            if how == select.EPOLLET:
                put(firmware, HEAD, 6 * 64)
                assert waiter.poll(5) == [(fd, select.EPOLLIN)]
                waiter.poll(0)
                assert waiter.poll(0.3) == [], "told twice of one step"
            waiter.close()
        until(lambda: not timer_armed())


@check
def a_registration_without_a_waiter_does_not_keep_the_timer_running() -> None:
    with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        waiters = [select.epoll() for _ in range(3)]
        for waiter, how in zip(waiters, (0, select.EPOLLET, select.EPOLLONESHOT), strict=True):
            waiter.register(fd, select.EPOLLIN | how)
        until(lambda: not timer_armed(), 5)
        put(firmware, HEAD, 64)
        for waiter in waiters:  # and yet nothing is missed
            assert waiter.poll(5) == [(fd, select.EPOLLIN)]
            waiter.close()


@check
def a_region_without_a_ring_is_not_readable() -> None:
    with opened(PAGES) as fd, mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        put(firmware, 0, 0, "<I")
        put(firmware, HEAD, 0x5555555555555555)
        waiter = select.epoll()
        waiter.register(fd, select.EPOLLIN | select.EPOLLET)
        assert waiter.poll(0.3) == [], "garbage cursors woke a poller"
        put(firmware, TAIL, 0x5555555555555555 - 64)
        put(firmware, 0, 0x54424D48, "<I")
        assert waiter.poll(5) == [(fd, select.EPOLLIN)]
        waiter.close()
        format_ring(firmware)


@check
def many_pollers_at_once() -> None:
    """Somebody arms the timer while it fires for somebody else."""
    (PARAMETERS / "poll_interval_us").write_text("50")
    stop = time.monotonic() + 3

    def wait_again_and_again(fd: int) -> None:
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        while time.monotonic() < stop:
            assert waiter.poll(1) == []

    with mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        observers = [os.open(PAGES, os.O_RDONLY) for _ in range(4)]
        threads = [threading.Thread(target=wait_again_and_again, args=(fd,)) for fd in observers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for fd in observers:
            os.close(fd)
    (PARAMETERS / "poll_interval_us").write_text("1000")
    until(lambda: not timer_armed())


# ---- counters ----


@check
def overflow_count_and_generation() -> None:
    with mapped(FIRMWARE) as firmware:
        format_ring(firmware)
        put(firmware, HEAD, 4096)
        start = int(attribute("generation")), int(attribute("overflow_count"))
        put(firmware, FLAGS, 1, "<I")
        assert int(attribute("overflow_count")) == start[1] + 1
        assert int(attribute("overflow_count")) == start[1] + 1
        put(firmware, FLAGS, 0, "<I")
        attribute("fill")
        put(firmware, FLAGS, 3, "<I")
        assert int(attribute("overflow_count")) == start[1] + 2
        assert int(attribute("generation")) == start[0]
        put(firmware, HEAD, 0)
        assert int(attribute("generation")) == start[0] + 1
        put(firmware, 0, 0, "<I")
        assert attribute("ring_size") == "0"
        format_ring(firmware, RING // 2)
        assert int(attribute("generation")) == start[0] + 2
        format_ring(firmware)


# ---- PCI shared memory ----


@check
def pci_region_is_write_back() -> None:
    bar = (pci_device() / "resource").read_text().splitlines()[2].split()
    start = int(bar[0], 16)
    assert start >= 1 << 32, hex(start)
    listed = Path("/sys/kernel/debug/x86/pat_memtype_list").read_text()
    with mapped(PCI, mmap.PAGESIZE) as memory:
        assert memory[0] is not None
        found = re.findall(r"PAT: \[mem (0x[0-9a-f]+)-.*\] (\S+)", listed)
        types = {kind for low, kind in found if int(low, 16) == start}
        assert types == {"write-back"}, (hex(start), listed)


@check
def pci_region_is_the_hosts_memory() -> None:
    with mapped(PCI, mmap.PAGESIZE) as memory:
        assert memory[2048:2060] == b"from outside"
        memory[3072:3081] = b"from here"


@check
def revoked_region_hangs_up_and_reads_zero() -> None:
    device = pci_device()
    os.mknod("/tmp/other-path", 0o20600, Path(PCI).stat().st_rdev)
    fd = os.open(PCI, os.O_RDWR)
    other = os.open("/tmp/other-path", os.O_RDONLY)
    size = shim.get_info(fd).map_size
    memory = mmap.mmap(fd, size, mmap.MAP_SHARED, RW)
    seen = mmap.mmap(other, size, mmap.MAP_SHARED, mmap.PROT_READ)
    memory[4096:4100] = b"live"
    assert seen[4096:4100] == b"live"
    struct.pack_into("<QQ", memory, HEAD, 0, 0)
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(waiter.poll(20_000)))
    thread.start()
    time.sleep(0.2)
    (device / "remove").write_text("1")
    thread.join()
    assert got == [[(fd, select.POLLHUP)]], got
    assert memory[:] == bytes(size)
    assert seen[4096:4100] == bytes(4)
    memory[TAIL : TAIL + 8] = b"no fault"
    try:
        shim.get_info(fd)
    except NoInputError:
        pass
    else:
        raise AssertionError("GET_INFO of a region that is gone")
    fails(errno.ENODEV, lambda: mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, RW))
    assert not Path(PCI).exists()
    fails(errno.ENODEV, lambda: os.open("/tmp/other-path", os.O_RDONLY))
    assert rmmod() != 0, "unloaded under an open file"
    Path("/sys/bus/pci/rescan").write_text("1")
    until(Path(PCI).exists)  # under its old name, whoever still holds the old region
    memory.close()
    seen.close()
    os.close(fd)
    os.close(other)
    with mapped(PCI, mmap.PAGESIZE) as again:
        assert again[2048:2060] == b"from outside"


@check
def revoking_under_faults_polls_and_opens() -> None:
    stop = threading.Event()
    problems: list[str] = []

    def hammer() -> None:
        while not stop.is_set():
            try:
                with opened(PCI, os.O_RDONLY) as fd:
                    size = shim.get_info(fd).map_size
                    memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
                    for offset in range(0, size, mmap.PAGESIZE):
                        _ = memory[offset]
                    waiter = select.poll()
                    waiter.register(fd, select.POLLIN)
                    waiter.poll(5)
                    memory.close()
            except (OSError, HmbTraceError, ValueError):
                continue
            except BaseException as error:
                problems.append(repr(error))

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            until(Path(PCI).exists)
            time.sleep(0.1)
            (pci_device() / "remove").write_text("1")
            Path("/sys/bus/pci/rescan").write_text("1")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems, problems
    until(Path(PCI).exists)


@check
def unmounting_where_the_first_opener_was_h1() -> None:
    """A container's /dev, PrivateDevices=: that file system may go before the open file does."""
    place = Path("/run/elsewhere")
    place.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "tmpfs", place], check=True)
    os.mknod(place / "x", 0o20600, Path(PAGES).stat().st_rdev)
    with opened(str(place / "x"), os.O_RDONLY):
        fd = os.open(PAGES, os.O_RDWR)
    subprocess.run(["/bin/umount", place], check=True)
    place.rmdir()
    memory = mmap.mmap(fd, REGION, mmap.MAP_SHARED, RW)
    assert memory[64] is not None
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
    memory.close()
    os.close(fd)


# ---- lifetime ----


@check
def unload_is_refused_while_open() -> None:
    with mapped(PAGES):
        assert rmmod() != 0
        assert Path(PAGES).exists()
    assert rmmod() == 0
    assert not CLASS.exists()


# ---- slices of drives ----

SLICE = "/dev/nvme7-hmbtrace"


def is_open_to_all(node: str = SLICE) -> bool:
    """The node of the region that is there now: an old one of its name may be on its way out."""
    try:
        with opened(node, os.O_RDONLY):
            return True
    except OSError:
        return False


def drive(command: str) -> None:
    Path("/sys/module/fake_nvme/parameters/command").write_text(command)


@check
def slice_of_a_drive_appears_survives_reset_and_is_revoked() -> None:
    subprocess.run(["/sbin/insmod", FAKE_KO], check=True)
    drive("enable")
    insmod()
    assert attribute("provider", SLICE) == "nvme"
    assert attribute("origin", SLICE) == "fake_nvme"
    assert attribute("region_size", SLICE) == str(REGION)
    assert rmmod("fake_nvme") != 0, "the driver went away under its client"
    with opened(SLICE) as fd:
        memory = mmap.mmap(fd, REGION, mmap.MAP_SHARED, RW)
        format_ring(memory)
        assert geometry(fd) == (1, RING, 64, RING + 64)
        before = int(attribute("generation", SLICE))
        drive("enable")  # as after a controller reset: the same memory
        assert int(attribute("generation", SLICE)) == before + 1
        assert get(memory, 8, "<I") == RING
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        drive("free")
        assert waiter.poll(5000) == [(fd, select.POLLHUP)]
        assert memory[:] == bytes(REGION)
        memory.close()
    until(lambda: not Path(SLICE).exists())
    drive("enable")
    until(is_open_to_all)


@check
def slice_carries_the_mark_from_before_it_is_enabled_until_it_is_freed() -> None:
    drive("free")
    drive("enable")
    until(is_open_to_all)
    with mapped(SLICE) as memory:
        mark = bytes(memory[-64:])
        assert struct.unpack_from("<IIQ", mark) == (0x53424D48, 1, REGION)
        assert sum(struct.unpack("<16I", mark)) % (1 << 32) == 0
        memory[-64:] = bytes(64)
        drive("enable")  # as after a reset
        assert bytes(memory[-64:]) == mark
    drive("free")
    assert Path("/sys/module/fake_nvme/parameters/marked").read_text() == "N\n"
    drive("enable")
    until(is_open_to_all)


@check
def enabling_and_freeing_in_a_hurry() -> None:
    """Nodes are made and removed by a work: order and end are those of the calls."""
    for _ in range(30):
        drive("free")
        drive("enable")
    until(is_open_to_all)
    assert attribute("origin", SLICE) == "fake_nvme"


@check
def client_comes_and_goes_while_the_drive_stays() -> None:
    for _ in range(3):
        assert rmmod() == 0
        assert not Path(SLICE).exists()
        insmod()
        assert Path(SLICE).exists()  # at once: nodes of drives that are there come first
    assert rmmod() == 0
    assert rmmod("fake_nvme") == 0


@check
def slice_that_comes_after_the_client() -> None:
    subprocess.run(["/sbin/insmod", FAKE_KO, "ring_kb=2048"], check=True)
    insmod()
    assert not Path(SLICE).exists()
    drive("enable")
    until(is_open_to_all)
    assert attribute("region_size", SLICE) == str((2 << 20) + mmap.PAGESIZE)
    assert rmmod() == 0
    assert rmmod("fake_nvme") == 0


@check
def a_drive_whose_number_is_taken_gets_another() -> None:
    subprocess.run(["/sbin/insmod", FAKE_KO, "instance=1"], check=True)
    load()
    drive("enable")
    until(Path("/dev/nvme3-hmbtrace").exists)
    assert attribute("origin", "/dev/nvme3-hmbtrace") == "fake_nvme"
    assert rmmod() == 0
    assert rmmod("fake_nvme") == 0


def main() -> None:
    for function in CHECKS:
        started = time.monotonic()
        try:
            function()
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        seconds = round(time.monotonic() - started, 2)
        print(json.dumps({"check": function.__name__, "problem": problem, "seconds": seconds}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()

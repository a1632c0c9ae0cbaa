# SPDX-License-Identifier: Apache-2.0
"""The Python side of the device node, against a scripted stand-in for ioctl and mmap."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import struct
from pathlib import Path

import hmb_kmod_shim as shim
import pytest

from hmb_trace._core import ffi
from hmb_trace.errors import (
    BusyError,
    HmbTraceError,
    InputOutputError,
    InvalidDataError,
    NoInputError,
    PermissionDeniedError,
)
from hmb_trace.live import device, ring
from hmb_trace.testing import ring_header

RING = 4096
INFO = shim.Info(1, RING, 64, RING + 64)
HEADER = Path(__file__).parents[2] / "include/uapi/linux/hmb_trace.h"


class Device:
    """Answers ioctl like the module does, from a header kept in a bytearray."""

    def __init__(self) -> None:
        self.region = bytearray(2 * mmap.PAGESIZE)
        struct.pack_into("<IIII", self.region, 0, 0x54424D48, 1, RING, 64)
        self.info = INFO
        self.errors: dict[int, int] = {}
        self.maps: list[tuple[int, int]] = []
        self.map_errors: dict[int, int] = {}

    def ioctl(self, _fd: int, request: int, argument: bytearray | bytes) -> int:
        if request in self.errors:
            raise OSError(self.errors[request], os.strerror(self.errors[request]))
        if request == shim.GET_INFO:
            assert isinstance(argument, bytearray)
            info = self.info
            assert struct.unpack_from("=II", argument) == (64, 0)
            fields = (info.abi_version, info.ring_size, info.record_area_off, info.total_mmap_size)
            struct.pack_into("=IIIIIQ", argument, 4, info.flags, *fields, info.generation)
            return 0
        assert request == shim.ADVANCE_TAIL
        size, flags, expected, new, reserved = struct.unpack("=IIQQQ", argument)
        assert (size, flags, reserved) == (len(argument), 0, 0)
        if struct.unpack_from("<Q", self.region, 0x18)[0] != expected:
            raise OSError(errno.ESTALE, "stale")
        struct.pack_into("<Q", self.region, 0x18, new)
        return 0

    def mmap(self, _fd: int, size: int, protection: int) -> mmap.mmap:
        self.maps.append((size, protection))
        if protection in self.map_errors:
            raise OSError(self.map_errors[protection], "refused")
        memory = mmap.mmap(-1, size)
        memory[: len(self.region)] = bytes(self.region)[:size]
        return memory


READ, READ_WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Device:
    node = Device()
    monkeypatch.setattr(device.fcntl, "ioctl", node.ioctl)
    monkeypatch.setattr(device, "_mmap", node.mmap)
    return node


def test_ioctl_numbers_are_those_of_the_uapi_header() -> None:
    text = HEADER.read_text()
    sizes = {"_IOWR": (3, 64), "_IOW": (1, 32)}
    kind = re.search(r"NVME_HMB_TRACE_IOC (0x\w+)", text)
    assert kind
    for name, number in (("GET_INFO", shim.GET_INFO), ("ADVANCE_TAIL", shim.ADVANCE_TAIL)):
        match = re.search(rf"NVME_HMB_TRACE_{name} (_IO\w+)\(NVME_HMB_TRACE_IOC, (0x\d+)", text)
        assert match
        direction, size = sizes[match[1]]
        assert number == direction << 30 | size << 16 | int(kind[1], 16) << 8 | int(match[2], 16)


def test_get_info_unpacks_all_fields(node: Device) -> None:
    node.info = shim.Info(1, 2, 3, 4, shim.InfoFlag.READONLY, 1 << 40)
    assert shim.get_info(5) == node.info


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOTTY, NoInputError),
        (errno.ENODEV, NoInputError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EBUSY, BusyError),
        (errno.EIO, InputOutputError),
    ],
)
def test_get_info_errors_are_one_line(node: Device, number: int, kind: type[HmbTraceError]) -> None:
    node.errors[shim.GET_INFO] = number
    with pytest.raises(kind, match="/dev/x") as caught:
        shim.get_info(5, "/dev/x")
    assert "\n" not in str(caught.value)


def test_map_is_page_rounded_and_writable(node: Device) -> None:
    memory, writable = shim.map_region(5, INFO)
    assert writable
    assert node.maps == [(2 * mmap.PAGESIZE, READ_WRITE)]
    memory.close()


def test_map_falls_back_to_read_only_on_eacces(node: Device) -> None:
    node.map_errors[READ_WRITE] = errno.EACCES
    memory, writable = shim.map_region(5, INFO)
    assert not writable
    assert [protection for _, protection in node.maps] == [READ_WRITE, READ]
    memory.close()


def test_map_does_not_fall_back_on_other_errors(node: Device) -> None:
    node.map_errors[READ_WRITE] = errno.ENOMEM
    with pytest.raises(InputOutputError, match="cannot map"):
        shim.map_region(5, INFO)
    assert len(node.maps) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.EINVAL, InputOutputError), (errno.ENODEV, NoInputError), (errno.EACCES, HmbTraceError)],
)
def test_map_refused_read_only_too(node: Device, error: int, kind: type[HmbTraceError]) -> None:
    node.map_errors = {READ_WRITE: errno.EACCES, READ: error}
    with pytest.raises(kind):
        shim.map_region(5, INFO)


@pytest.mark.parametrize(
    ("field", "offset"), [("version", 4), ("ring_size", 8), ("record_area_off", 12)]
)
def test_attach_r1_get_info_disagrees_with_header(node: Device, field: str, offset: int) -> None:
    struct.pack_into("<I", node.region, offset, 77)
    with pytest.raises(InvalidDataError, match=rf"{field} is 77 in the ring header, expected \d+"):
        shim.map_region(5, INFO)


def test_attach_r1_missing_magic_is_left_to_the_ring_check(node: Device) -> None:
    node.region[:16] = bytes(16)
    memory, _ = shim.map_region(5, INFO)
    memory.close()


@pytest.mark.parametrize("total", [0, 63, RING + 63])
def test_attach_r1_region_too_short(node: Device, total: int) -> None:
    with pytest.raises(InvalidDataError, match=f"region is {total} bytes"):
        shim.map_region(5, shim.Info(1, RING, 64, total))
    assert node.maps == []


def test_advance_tail_r2_stores_and_refuses_stale(node: Device) -> None:
    assert shim.advance_tail(5, 0, 64)
    assert not shim.advance_tail(5, 0, 128)
    assert struct.unpack_from("<Q", node.region, 0x18)[0] == 64


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EINVAL, errno.EBADF])
def test_advance_tail_errors(node: Device, number: int) -> None:
    node.errors[shim.ADVANCE_TAIL] = number
    with pytest.raises(HmbTraceError):
        shim.advance_tail(5, 0, 8)


def test_real_ioctl_on_something_else_is_no_trace_device() -> None:
    with Path(os.devnull).open("rb") as other, pytest.raises(NoInputError, match="trace device"):
        shim.get_info(other.fileno(), os.devnull)


def test_consumer_pid_from_sysfs(
    node: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_SYSFS", tmp_path)
    assert shim.consumer_pid(os.devnull) is None
    (tmp_path / "1:3").mkdir()
    entry = (tmp_path / "1:3" / "consumer").write_text
    entry("123\n")
    assert shim.consumer_pid(os.devnull) == 123
    entry("0\n")
    assert shim.consumer_pid(os.devnull) is None


def test_provenance_is_of_the_regions_own_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N of the node does not tell: another provider's region beside nvme0 may be number 0."""
    monkeypatch.setattr(device, "_SYSFS", tmp_path / "dev")
    monkeypatch.setattr(device, "_NVME", tmp_path / "nvme")
    node = tmp_path / "dev/1:3"
    node.mkdir(parents=True)
    for name, address in (("nvme0", "0000:01:00.0"), ("nvme4", "0000:02:00.0")):
        (tmp_path / "nvme" / name).mkdir(parents=True)
        (tmp_path / "nvme" / name / "address").write_text(f"{address}\n")
    assert shim.controller(os.devnull) is None
    for provider, origin, drive in (
        ("nvme", "0000:02:00.0", "nvme4"),
        ("nvme", "0000:09:00.0", None),
        ("pages", "", None),
        ("pci", "0000:01:00.0", None),
    ):
        (node / "provider").write_text(f"{provider}\n")
        (node / "origin").write_text(f"{origin}\n")
        assert shim.controller(os.devnull) == drive, (provider, origin)


def test_reattach_r6_maps_a_ring_that_came_back_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = tmp_path / "region"
    region.write_bytes(ring_header(ring_size=4096) + bytes(1 << 17))
    sizes = {"ring": 4096}

    def get_info(_fd: int, _path: str) -> shim.Info:
        return shim.Info(1, sizes["ring"], 64, sizes["ring"] + 64)

    def map_region(fd: int, info: shim.Info, _path: str) -> tuple[mmap.mmap, bool]:
        return mmap.mmap(fd, info.map_size), info.ring_size == 4096

    monkeypatch.setattr(device, "get_info", get_info)
    monkeypatch.setattr(device, "map_region", map_region)
    monkeypatch.setattr(stat, "S_ISCHR", lambda _mode: True)
    with ring.attach(region) as attached:
        sizes["ring"] = 65536
        region.write_bytes(ring_header(ring_size=65536, head=64) + bytes(1 << 17))
        attached.restart()
        assert attached.view().ring_size == 65536
        assert attached.view().unread == 64
        assert attached.c.advance != ffi.NULL, "tail would be stored into a read-only mapping"

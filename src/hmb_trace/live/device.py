# SPDX-License-Identifier: Apache-2.0
"""GET_INFO, ADVANCE_TAIL and mmap of a trace device (seed 003 section 2; include/uapi).

Only the geometry is judged here, and only where the device and the ring header
disagree: everything else about the header is SPEC R1 in libhmbtrace.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from hmb_trace.errors import (
    HmbTraceError,
    InputOutputError,
    InvalidDataError,
    NoInputError,
    from_os_error,
)

_IOC_WRITE, _IOC_READ = 1, 2
# size, flags, the geometry, generation, reserved; size, flags, expected, new tail, reserved
_INFO = struct.Struct("=IIIIIIQ32x")
_ADVANCE = struct.Struct("=IIQQ8x")
_IOC_TYPE = 0xE7
_HEADER = struct.Struct("<IIII")
_RING_MAGIC = 0x54424D48
_SYSFS = Path("/sys/dev/char")


def _ioc(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _IOC_TYPE << 8 | number


GET_INFO = _ioc(_IOC_READ | _IOC_WRITE, 0x01, _INFO.size)
ADVANCE_TAIL = _ioc(_IOC_WRITE, 0x02, _ADVANCE.size)


class InfoFlag(enum.IntFlag):
    """What GET_INFO says about the region."""

    RING = 1  # a valid ring is there; without it, the geometry is of the largest that could be
    READONLY = 2  # mappings are read-only, `tail` moves by ADVANCE_TAIL


@dataclass(frozen=True, slots=True)
class Info:
    """Answer of GET_INFO; sizes in bytes."""

    abi_version: int
    ring_size: int
    record_area_off: int
    total_mmap_size: int
    flags: InfoFlag = InfoFlag.RING
    generation: int = 0

    @property
    def map_size(self) -> int:
        """total_mmap_size, rounded up to whole pages: what mmap takes."""
        return -(-self.total_mmap_size // mmap.PAGESIZE) * mmap.PAGESIZE


def get_info(fd: int, path: str = "device") -> Info:
    """Ask the device for its geometry.

    Raises:
        NoInputError: not a trace device, or its region is gone.
        HmbTraceError: as the system says.
    """
    buffer = bytearray(_INFO.pack(_INFO.size, 0, 0, 0, 0, 0, 0))
    try:
        fcntl.ioctl(fd, GET_INFO, buffer)
    except OSError as error:
        raise _ioctl_error(error, path, "GET_INFO") from error
    _, flags, *geometry, generation = _INFO.unpack(buffer)
    return Info(*geometry, flags=InfoFlag(flags), generation=generation)


def advance_tail(fd: int, expected: int, new: int, path: str = "device") -> bool:
    """Move `tail` from expected to new where the mapping is read-only.

    Returns:
        False when `tail` was not what the caller expected: the ring was
        re-initialised (SPEC R6). Nothing was stored then.

    Raises:
        NoInputError: the region is gone.
        HmbTraceError: as the system says.
    """
    try:
        fcntl.ioctl(fd, ADVANCE_TAIL, _ADVANCE.pack(_ADVANCE.size, 0, expected, new))
    except OSError as error:
        if error.errno == errno.ESTALE:
            return False
        raise _ioctl_error(error, path, "ADVANCE_TAIL") from error
    return True


def _ioctl_error(error: OSError, path: str, name: str) -> HmbTraceError:
    if error.errno in (errno.ENOTTY, errno.EINVAL) and name == "GET_INFO":
        return NoInputError(
            f"{path}: found a device without NVME_HMB_TRACE_GET_INFO, expected a trace device; "
            "give /dev/nvme<N>-hmbtrace"
        )
    if error.errno == errno.ENODEV:
        return NoInputError(f"{path}: the region is gone (device removed, or HMB turned off)")
    return from_os_error(error, f"{path}: {name}")


def map_region(fd: int, info: Info, path: str = "device") -> tuple[mmap.mmap, bool]:
    """Map the whole region at offset 0.

    A device whose policy keeps the mapping read-only answers PROT_WRITE with
    EACCES: then the mapping is read-only and `tail` moves by advance_tail().

    Returns:
        The mapping, and whether it is writable.

    Raises:
        InvalidDataError: GET_INFO and the ring header disagree (SPEC R1), or GET_INFO is absurd.
        HmbTraceError: the mapping was refused.
    """
    _check_info(info, path)
    memory, writable = _map(fd, info, path)
    try:
        check_header(memory, info, path)
    except HmbTraceError:
        memory.close()
        raise
    return memory, writable


def _check_info(info: Info, path: str) -> None:
    needed = info.record_area_off + info.ring_size
    if info.total_mmap_size < max(needed, 64):
        raise InvalidDataError(
            f"cannot attach {path}: region is {info.total_mmap_size} bytes by GET_INFO, "
            f"expected at least {max(needed, 64)}; module and firmware do not fit each other"
        )


def _map(fd: int, info: Info, path: str) -> tuple[mmap.mmap, bool]:
    try:
        return _mmap(fd, info.map_size, mmap.PROT_READ | mmap.PROT_WRITE), True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise _map_error(error, path, info) from error
    try:
        return _mmap(fd, info.map_size, mmap.PROT_READ), False
    except OSError as error:
        raise _map_error(error, path, info) from error


def _mmap(fd: int, size: int, protection: int) -> mmap.mmap:
    return mmap.mmap(fd, size, mmap.MAP_SHARED, protection)


def _map_error(error: OSError, path: str, info: Info) -> HmbTraceError:
    if error.errno == errno.EINVAL:
        return InputOutputError(
            f"cannot map {path}: the device refused {info.map_size} bytes at offset 0; "
            "the ring was re-initialised meanwhile, try again"
        )
    return from_os_error(error, f"cannot map {path}")


def check_header(memory: mmap.mmap | bytes, info: Info, path: str) -> None:
    """SPEC R1: GET_INFO must agree with the ring header.

    A header without the ring magic is left to the attach check, which names `magic`;
    so is a version that no reader here knows.

    Raises:
        InvalidDataError: naming the field, what the device said and what the header says.
    """
    magic, version, ring_size, record_area_off = _HEADER.unpack_from(memory)
    if magic != _RING_MAGIC:
        return
    fields = {
        "version": (version, info.abi_version),
        "ring_size": (ring_size, info.ring_size),
        "record_area_off": (record_area_off, info.record_area_off),
    }
    for field, (in_header, by_device) in fields.items():
        if in_header != by_device:
            raise InvalidDataError(
                f"cannot attach {path}: {field} is {in_header} in the ring header, expected "
                f"{by_device} as GET_INFO says; the header does not fit the region"
            )


def consumer_pid(device: str | int) -> int | None:
    """The pid that holds the device (path or open file) for consuming, or None."""
    try:
        number = os.stat(device).st_rdev  # noqa: PTH116 - takes file descriptors too
        text = (_SYSFS / f"{os.major(number)}:{os.minor(number)}" / "consumer").read_text()
        return int(text) or None
    except (OSError, ValueError):
        return None

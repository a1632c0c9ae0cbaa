# SPDX-License-Identifier: Apache-2.0
"""What an NVMe drive says of its Host Memory Buffer: Identify and Get Features, nothing written."""

from __future__ import annotations

import fcntl
import os
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

_UNIT = 4096  # of HMPRE, HMMIN, HMMINDS and HSIZE
_IDENTIFY, _GET_FEATURES = 0x06, 0x0A
_CNS_CONTROLLER = 1
_FEATURE_HMB = 0x0D
# struct nvme_passthru_cmd of linux/nvme_ioctl.h
_COMMAND = struct.Struct("=BBHIIIQQII6III")
_ADMIN_CMD = 3 << 30 | _COMMAND.size << 16 | ord("N") << 8 | 0x41
_RESULT_OFF = 68
_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A drive's wishes (Identify Controller) and what it was given (Get Features 0Dh); bytes."""

    preferred: int
    minimum: int
    smallest_descriptor: int
    most_descriptors: int  # 0: no limit
    enabled: bool
    granted: int
    descriptors: int


def _admin(fd: int, opcode: int, data: array[int], cdw10: int) -> int:
    """Send one admin command; its result (dword 0 of the completion)."""
    address, _ = data.buffer_info()
    head = (opcode, 0, 0, 0, 0, 0, 0, address, 0, len(data))
    command = bytearray(_COMMAND.pack(*head, cdw10, 0, 0, 0, 0, 0, _TIMEOUT_MS, 0))
    status = fcntl.ioctl(fd, _ADMIN_CMD, command)
    if status:
        raise OSError(f"NVMe status {status:#x}")
    return int(struct.unpack_from("=I", command, _RESULT_OFF)[0])


def host_memory(path: Path) -> HostMemory:
    """Ask the controller (/dev/nvme0).

    Raises:
        OSError: no such drive, not permitted (root is needed), or the drive refused.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        identity = array("B", bytes(4096))
        _admin(fd, _IDENTIFY, identity, _CNS_CONTROLLER)
        granted = array("B", bytes(4096))
        enabled = bool(struct.unpack_from("<I", identity, 272)[0])
        if enabled:
            enabled = bool(_admin(fd, _GET_FEATURES, granted, _FEATURE_HMB) & 1)
        return _parsed(identity.tobytes(), granted.tobytes(), enabled)
    finally:
        os.close(fd)


def _parsed(identity: bytes, granted: bytes, enabled: bool) -> HostMemory:
    preferred, minimum = struct.unpack_from("<II", identity, 272)
    smallest, most = struct.unpack_from("<IH", identity, 332)
    size, _, _, descriptors = struct.unpack_from("<IIII", granted)
    return HostMemory(
        preferred=preferred * _UNIT,
        minimum=minimum * _UNIT,
        smallest_descriptor=smallest * _UNIT,
        most_descriptors=most,
        enabled=enabled,
        granted=size * _UNIT if enabled else 0,
        descriptors=descriptors if enabled else 0,
    )

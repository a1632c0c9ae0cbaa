# SPDX-License-Identifier: Apache-2.0
"""Puts a drive into a non-operational power state, and out of it again.

Usage: power_states.py /dev/nvmeN /sys/class/hmbtrace/nvmeN-hmbtrace SECONDS

Prints how full the ring was seen: in the pause, once it was read, never but empty; and
afterwards. Linux does not let programs set HMNARE, so the drive must restrict itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD
SET, GET = 0x09, 0x0A
POWER = 0x02
IDLE_STATE = 2


class Passthrough(ctypes.Structure):
    """struct nvme_passthru_cmd."""

    _fields_ = (
        ("opcode", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16),
        ("nsid", ctypes.c_uint32),
        ("cdw2", ctypes.c_uint32),
        ("cdw3", ctypes.c_uint32),
        ("metadata", ctypes.c_uint64),
        ("addr", ctypes.c_uint64),
        ("metadata_len", ctypes.c_uint32),
        ("data_len", ctypes.c_uint32),
        ("dwords", ctypes.c_uint32 * 6),  # cdw10 to cdw15
        ("timeout_ms", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
    )


def admin(device: int, opcode: int, *dwords: int) -> int:
    """Send an admin command; its result."""
    command = Passthrough(opcode=opcode, dwords=(ctypes.c_uint32 * 6)(*dwords), timeout_ms=60000)
    status = fcntl.ioctl(device, ADMIN_COMMAND, command)
    if status:
        sys.exit(f"command {opcode:#x} {dwords}: status {status:#x}")
    return int(command.result)


def main(path: str, sysfs: str, seconds: str) -> None:
    """Everything in order."""

    def fill() -> int:
        return int((Path(sysfs) / "fill").read_text())

    def seen(seconds: float, *, until: Callable[[int], bool]) -> set[int]:
        """The values of fill for so long, or until one of them will do."""
        found, deadline = set(), time.monotonic() + seconds
        while time.monotonic() < deadline and not (found and until(max(found))):
            found.add(fill())
            time.sleep(0.001)
        return found

    with open(path, "rb") as device:  # noqa: PTH123 - only the descriptor is wanted
        fd = device.fileno()
        admin(fd, SET, POWER, IDLE_STATE)
        state = admin(fd, GET, POWER)
        while fill():
            time.sleep(0.01)
        idle = seen(float(seconds), until=lambda _: False)
        admin(fd, SET, POWER, 0)
        awake = seen(20, until=lambda most: most > 0)
    print(json.dumps({"state": state, "idle": max(idle), "awake": max(awake)}))


main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Identify data structures and log pages."""

from __future__ import annotations

import hashlib
import struct

from hmb_producer_sim.nvme.command import MDTS
from hmb_producer_sim.nvme.pci import VENDOR
from hmb_producer_sim.nvme.settings import HMB_UNIT, DriveSettings

VERSION = 0x0001_0400  # 1.4
BLOCK_SHIFT = 9
HMB_RESTRICT = 1 << 17  # CTRATT: honours HMNARE
# Milliwatts * 10, non-operational?, entry and exit latency in microseconds.
POWER_STATES = ((500, False, 0, 0), (300, False, 100, 100), (5, True, 500, 2000))
ABORT_LIMIT = 3
EVENT_LIMIT = 3


def _text(text: str, size: int) -> bytes:
    return text.encode("ascii", "replace")[:size].ljust(size)


def controller(settings: DriveSettings) -> bytes:
    """CNS 01h."""
    b = bytearray(4096)
    struct.pack_into("<HH", b, 0, VENDOR, VENDOR)
    b[4:72] = _text(settings.serial, 20) + _text(settings.model, 40) + _text(settings.firmware, 8)
    b[77] = MDTS
    struct.pack_into("<HI", b, 78, 1, VERSION)
    struct.pack_into("<I", b, 96, HMB_RESTRICT)
    b[111] = 1  # an I/O controller
    b[258], b[259], b[260] = ABORT_LIMIT, EVENT_LIMIT, 0x03  # one firmware slot, read-only
    b[262], b[263] = 0, len(POWER_STATES) - 1
    struct.pack_into("<HH", b, 266, 343, 353)  # warning and critical temperature, kelvin
    struct.pack_into("<II", b, 272, settings.hmb_size // HMB_UNIT, settings.hmb_min // HMB_UNIT)
    least = settings.hmb_min_descriptor // HMB_UNIT
    struct.pack_into("<IH", b, 332, least, settings.hmb_max_descriptors)
    b[512], b[513] = 0x66, 0x44
    struct.pack_into("<HIH", b, 514, 256, 1 if settings.namespace_size else 0, 0x0C)
    serial = settings.serial.strip().encode("ascii", "replace").decode()
    name = f"nqn.2014-08.org.nvmexpress:hmb-firmware-sim:{serial}".encode()
    b[768 : 768 + len(name)] = name
    for i, (power, idle, enter, leave) in enumerate(POWER_STATES):
        struct.pack_into("<HBBII", b, 2048 + 32 * i, power, 0, 2 if idle else 0, enter, leave)
    return bytes(b)


def namespace(settings: DriveSettings) -> bytes:
    """CNS 00h of namespace 1."""
    b = bytearray(4096)
    blocks = settings.namespace_size >> BLOCK_SHIFT
    struct.pack_into("<QQQ", b, 0, blocks, blocks, blocks)
    b[104:120] = _identity(settings)
    struct.pack_into("<HBB", b, 128, 0, BLOCK_SHIFT, 0)
    return bytes(b)


def _identity(settings: DriveSettings) -> bytes:
    return hashlib.sha256(settings.serial.encode()).digest()[:16]


def namespace_list(settings: DriveSettings, after: int) -> bytes:
    """CNS 02h: active namespaces above a number."""
    first = 1 if settings.namespace_size and after < 1 else 0
    return struct.pack("<I", first).ljust(4096, b"\0")


def namespace_identifiers(settings: DriveSettings) -> bytes:
    """CNS 03h."""
    return (struct.pack("<BBH", 2, 16, 0) + _identity(settings)).ljust(4096, b"\0")


def smart_log(reads: int, writes: int) -> bytes:
    """Log 02h: a healthy drive at 40 degrees Celsius."""
    b = bytearray(512)
    struct.pack_into("<BHBBB", b, 0, 0, 313, 100, 10, 0)
    struct.pack_into("<QQQQ", b, 64, reads, 0, writes, 0)
    return bytes(b)


def firmware_log(settings: DriveSettings) -> bytes:
    """Log 03h."""
    return (bytes((1,)) + bytes(7) + _text(settings.firmware, 8)).ljust(512, b"\0")

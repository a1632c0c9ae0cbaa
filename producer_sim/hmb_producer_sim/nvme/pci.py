# SPDX-License-Identifier: Apache-2.0
"""The PCI function's configuration space, and its MSI-X vectors."""

from __future__ import annotations

import contextlib
import os
import struct

VECTORS = 16
BAR_SIZE = 0x4000
MSIX_TABLE, MSIX_PENDING = 0x2000, 0x3000  # in BAR 0

CONFIG_SIZE = 256
COMMAND, BAR0 = 0x04, 0x10
MEMORY_SPACE, BUS_MASTER, NO_INTX = 2, 4, 0x400
_PM, _MSIX, _EXPRESS = 0x40, 0x50, 0x60
_PM_STATUS = _PM + 4
_DEVICE_CONTROL = _EXPRESS + 8
_FUNCTION_RESET = 1 << 15
VENDOR, DEVICE = 0x1234, 0x484D  # no real vendor's, and none that a driver has quirks for


class ConfigSpace:
    """256 bytes, of which the host may write what is writable."""

    def __init__(self) -> None:
        self._writable = bytearray(CONFIG_SIZE)
        self.reset()
        self._allow(COMMAND, "<H", MEMORY_SPACE | BUS_MASTER | NO_INTX)
        self._allow(BAR0, "<Q", (1 << 64) - BAR_SIZE)
        self._allow(0x3C, "<B", 0xFF)  # interrupt line
        self._allow(_PM_STATUS, "<H", 0x103)
        self._allow(_MSIX + 2, "<H", 0xC000)
        self._allow(_DEVICE_CONTROL, "<H", 0x7FFF)

    def _allow(self, at: int, form: str, mask: int) -> None:
        struct.pack_into(form, self._writable, at, mask)

    def reset(self) -> None:
        """As after power-on."""
        c = self._bytes = bytearray(CONFIG_SIZE)
        struct.pack_into("<HHHH", c, 0, VENDOR, DEVICE, 0, 0x10)
        c[8:12] = bytes((2, 0x02, 0x08, 0x01))  # revision; mass storage, NVM, NVM Express
        struct.pack_into("<I", c, BAR0, 0x4)  # 64-bit memory
        struct.pack_into("<HH", c, 0x2C, VENDOR, DEVICE)
        c[0x34] = _PM
        struct.pack_into("<BBHHH", c, _PM, 0x01, _MSIX, 0x0003, 0x0008, 0)
        msix = (0x11, _EXPRESS, VECTORS - 1, MSIX_TABLE, MSIX_PENDING)
        struct.pack_into("<BBHII", c, _MSIX, *msix)
        # An endpoint that can be reset as a function; payloads of 256 bytes; 8 GT/s, one lane.
        express = (0x10, 0x00, 0x0002, 0x1000_8001, 0x2010, 0, 0x0000_0413, 0, 0x1013)
        struct.pack_into("<BBHIHHIHH", c, _EXPRESS, *express)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self._bytes[at : at + size])

    def write(self, at: int, data: bytes) -> bool:
        """True where the host asks for a function-level reset."""
        for i, value in enumerate(data, at):
            mask = self._writable[i]
            self._bytes[i] = self._bytes[i] & ~mask | value & mask
        byte = _DEVICE_CONTROL + 1 - at
        return 0 <= byte < len(data) and bool(data[byte] & _FUNCTION_RESET >> 8)

    @property
    def is_bus_master(self) -> bool:
        return bool(self._bytes[COMMAND] & BUS_MASTER) and not self._bytes[_PM_STATUS] & 3


class Vectors:
    """The event file descriptors that raise MSI-X interrupts in the guest."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def assign(self, vector: int, fd: int | None) -> None:
        """Takes the descriptor; None disconnects the vector."""
        old = self._fds.pop(vector, None)
        if old is not None:
            os.close(old)
        if fd is not None:
            self._fds[vector] = fd

    def clear(self) -> None:
        for vector in list(self._fds):
            self.assign(vector, None)

    def raise_(self, vector: int) -> None:
        fd = self._fds.get(vector)
        if fd is not None:
            with contextlib.suppress(OSError):  # full or gone: the guest's own doing
                os.write(fd, struct.pack("=Q", 1))

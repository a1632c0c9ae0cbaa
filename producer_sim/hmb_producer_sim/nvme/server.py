# SPDX-License-Identifier: Apache-2.0
"""The vfio-user server: one client, one device, one thread."""

from __future__ import annotations

import errno
import json
import os
import select
import struct
from collections.abc import Callable

from hmb_producer_sim.nvme.device import MSIX, REGIONS, Device
from hmb_producer_sim.nvme.guest import BadAccess
from hmb_producer_sim.nvme.messages import (
    MAX_DATA,
    MAX_FDS,
    Connection,
    Message,
    ProtocolError,
)
from hmb_producer_sim.nvme.pci import VECTORS
from hmb_producer_sim.nvme.referee import Referee

MAJOR, MINOR = 0, 0
REGION_COUNT, IRQ_COUNT = 9, 5
POLL_S = 0.002  # while the device waits for the host to read the ring
IDLE_S = 0.2  # how late a signal may be noticed
_DEVICE_PCI, _DEVICE_RESET = 2, 1
_READ, _WRITE = 1, 2
_IRQ_EVENTFD = 1
_SET_NONE, _SET_EVENTFD, _SET_TRIGGER = 1, 4, 32
_DATA_KIND = 7
_UNMAP_ALL = 2

_MAP = struct.Struct("<IIQQQ")  # argsz, flags, offset, address, size
_UNMAP = struct.Struct("<IIQQ")  # argsz, flags, address, size
_INFO = struct.Struct("<IIII")
_REGION_INFO = struct.Struct("<IIIIQQ")
_SET_IRQS = struct.Struct("<IIIII")  # argsz, flags, index, start, count
_ACCESS = struct.Struct("<QII")  # offset, region, count


class BadMessage(Exception):  # noqa: N818 - becomes an error number and one line
    """A request that makes no sense."""

    def __init__(self, text: str, number: int = errno.EINVAL) -> None:
        super().__init__(text)
        self.number = number


def _fields(form: struct.Struct, message: Message) -> tuple[int, ...]:
    if len(message.payload) < form.size:
        raise BadMessage(f"found {len(message.payload)} bytes, expected at least {form.size}")
    return form.unpack_from(message.payload)


class Server:
    """Serves a client until it goes."""

    def __init__(self, device: Device, referee: Referee, is_stopped: Callable[[], bool]) -> None:
        self._device = device
        self._referee = referee
        self._is_stopped = is_stopped
        self._has_version = False
        self._commands: dict[int, tuple[str, Callable[[Message], bytes]]] = {
            1: ("VERSION", self._version),
            2: ("DMA_MAP", self._dma_map),
            3: ("DMA_UNMAP", self._dma_unmap),
            4: ("DEVICE_GET_INFO", self._device_info),
            5: ("DEVICE_GET_REGION_INFO", self._region_info),
            7: ("DEVICE_GET_IRQ_INFO", self._irq_info),
            8: ("DEVICE_SET_IRQS", self._set_irqs),
            9: ("REGION_READ", self._region_read),
            10: ("REGION_WRITE", self._region_write),
            13: ("DEVICE_RESET", self._reset),
        }

    def serve(self, connection: Connection) -> None:
        """Until the client goes, framing is lost, or we are told to stop."""
        try:
            while not self._is_stopped():
                timeout = POLL_S if self._device.controller.is_waiting else IDLE_S
                ready, _, _ = select.select([connection], [], [], timeout)
                self._device.controller.poll()
                if ready and not self._one(connection):
                    break
        except ProtocolError as error:
            self._referee.note("protocol", f"vfio-user: {error}; the client is dropped")
        finally:
            self._device.close()

    def _one(self, connection: Connection) -> bool:
        message = connection.receive()
        if message is None:
            return False
        try:
            self._answer(connection, message)
        finally:
            message.close()
        return True

    def _answer(self, connection: Connection, message: Message) -> None:
        name, handler = self._commands.get(message.command, (f"{message.command}", None))
        try:
            if handler is None:
                raise BadMessage("no such command", errno.EOPNOTSUPP)
            if not self._has_version and message.command != 1:
                raise BadMessage("found before VERSION")
            answer, number = handler(message), 0
        except BadMessage as error:
            self._referee.note("message", f"vfio-user {name}: {error}")
            answer, number = b"", error.number
        if message.wants_reply:
            connection.reply(message, answer, number)

    # ---- version ----

    def _version(self, message: Message) -> bytes:
        if len(message.payload) < 4:
            raise BadMessage(f"found {len(message.payload)} bytes, expected at least 4")
        major, _ = struct.unpack_from("<HH", message.payload)
        if major != MAJOR:
            raise BadMessage(f"found version {major}, expected {MAJOR}", errno.ENOTSUP)
        self._has_version = True
        limits = {"max_msg_fds": MAX_FDS, "max_data_xfer_size": MAX_DATA}
        text = json.dumps({"capabilities": limits}).encode() + b"\0"
        return struct.pack("<HH", MAJOR, MINOR) + text

    # ---- memory ----

    def _dma_map(self, message: Message) -> bytes:
        _, flags, offset, address, size = _fields(_MAP, message)
        fds = message.take_fds()
        for fd in fds[1:]:
            os.close(fd)
        try:
            self._device.guest.add(address, size, flags, fds[0] if fds else None, offset)
        except BadAccess as error:
            raise BadMessage(str(error)) from error
        return b""

    def _dma_unmap(self, message: Message) -> bytes:
        _, flags, address, size = _fields(_UNMAP, message)
        if flags & _UNMAP_ALL:
            address, size = 0, 1 << 64
        if not self._device.unmap(address, size) and not flags & _UNMAP_ALL:
            raise BadMessage(f"{address:#x} + {size:#x} is not mapped", errno.ENOENT)
        return message.payload[: _UNMAP.size]

    # ---- what there is ----

    def _device_info(self, message: Message) -> bytes:
        _fields(_INFO, message)
        return _INFO.pack(_INFO.size, _DEVICE_PCI | _DEVICE_RESET, REGION_COUNT, IRQ_COUNT)

    def _region_info(self, message: Message) -> bytes:
        index = _fields(_REGION_INFO, message)[2]
        if index >= REGION_COUNT:
            raise BadMessage(f"found region {index}, expected less than {REGION_COUNT}")
        size = REGIONS.get(index, 0)
        flags = _READ | _WRITE if size else 0
        return _REGION_INFO.pack(_REGION_INFO.size, flags, index, 0, size, 0)

    def _irq_info(self, message: Message) -> bytes:
        index = _fields(_INFO, message)[2]
        if index >= IRQ_COUNT:
            raise BadMessage(f"found interrupt {index}, expected less than {IRQ_COUNT}")
        is_msix = index == MSIX
        return _INFO.pack(_INFO.size, int(is_msix) * _IRQ_EVENTFD, index, VECTORS if is_msix else 0)

    # ---- interrupts ----

    def _set_irqs(self, message: Message) -> bytes:
        _, flags, index, start, count = _fields(_SET_IRQS, message)
        if index >= IRQ_COUNT or (count and start + count > VECTORS):
            raise BadMessage(f"found interrupt {index}, vectors {start} + {count}")
        if index != MSIX or not flags & _SET_TRIGGER:
            return b""  # masks are QEMU's own affair, other kinds we do not have
        if flags & _DATA_KIND == _SET_EVENTFD:
            fds = message.take_fds()
            if len(fds) > count:
                message.fds = fds
                raise BadMessage(f"found {len(fds)} file descriptors, expected {count}")
            for i in range(count):
                self._device.vectors.assign(start + i, fds[i] if i < len(fds) else None)
        elif flags & _DATA_KIND == _SET_NONE and not count:
            self._device.vectors.clear()
        return b""

    # ---- access ----

    @staticmethod
    def _checked(message: Message) -> tuple[int, int, int]:
        at, region, size = _fields(_ACCESS, message)
        if at + size > REGIONS.get(region, 0):
            raise BadMessage(f"found region {region}, {at:#x} + {size}: beyond its end")
        return at, region, size

    def _region_read(self, message: Message) -> bytes:
        at, region, size = self._checked(message)
        return message.payload[: _ACCESS.size] + self._device.read(region, at, size)

    def _region_write(self, message: Message) -> bytes:
        at, region, size = self._checked(message)
        data = message.payload[_ACCESS.size :]
        if len(data) != size:
            raise BadMessage(f"found {len(data)} bytes of data, expected {size}")
        self._device.write(region, at, data)
        return message.payload[: _ACCESS.size]

    def _reset(self, message: Message) -> bytes:
        self._device.reset("device reset")
        return b""

# SPDX-License-Identifier: Apache-2.0
"""The PCI function as vfio sees it: regions, interrupts, memory, reset."""

from __future__ import annotations

from hmb_producer_sim.nvme.controller import DOORBELLS, Controller
from hmb_producer_sim.nvme.guest import GuestMemory
from hmb_producer_sim.nvme.pci import (
    BAR_SIZE,
    CONFIG_SIZE,
    MSIX_PENDING,
    MSIX_TABLE,
    VECTORS,
    ConfigSpace,
    Vectors,
)
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.settings import DriveSettings
from hmb_producer_sim.nvme.tracer import Tracer

BAR, CONFIG = 0, 7  # vfio's region numbers
REGIONS = {BAR: BAR_SIZE, CONFIG: CONFIG_SIZE}
MSIX = 2  # vfio's interrupt number


class Device:
    """Answers the server."""

    def __init__(self, settings: DriveSettings, tracer: Tracer, referee: Referee) -> None:
        self.guest = GuestMemory()
        self.vectors = Vectors()
        self.controller = Controller(settings, self.guest, self.vectors, tracer, referee)
        self._config = ConfigSpace()
        self._table = bytearray(16 * VECTORS)

    def read(self, region: int, at: int, size: int) -> bytes:
        if region == CONFIG:
            return self._config.read(at, size)
        if at + size <= 64:
            return self.controller.read_registers()[at : at + size]
        if MSIX_TABLE <= at < MSIX_TABLE + len(self._table):
            at -= MSIX_TABLE
            return bytes(self._table[at : at + size]).ljust(size, b"\0")
        return bytes(size)

    def write(self, region: int, at: int, data: bytes) -> None:
        if region == CONFIG:
            self._write_config(at, data)
        elif at < DOORBELLS:
            self.controller.write_register(at, data)
        elif at < MSIX_TABLE:
            if len(data) == 4 and at % 4 == 0:
                value = int.from_bytes(data, "little") & 0xFFFF
                self.controller.ring_doorbell((at - DOORBELLS) // 4, value)
        elif at < MSIX_PENDING:
            at -= MSIX_TABLE
            data = data[: max(0, len(self._table) - at)]
            self._table[at : at + len(data)] = data

    def _write_config(self, at: int, data: bytes) -> None:
        if self._config.write(at, data):
            self.reset("function-level reset")
        if self.guest.is_bus_master != self._config.is_bus_master:
            self.guest.is_bus_master = self._config.is_bus_master
            self.controller.update_gate()

    def reset(self, why: str) -> None:
        """Everything as after power-on; the memory map is the client's and stays."""
        self.controller.function_reset(why)
        self._config.reset()
        self.guest.is_bus_master = False
        self._table = bytearray(16 * VECTORS)

    def unmap(self, start: int, size: int) -> int:
        """Unmap guest memory; firmware is out of it before it goes."""
        if self.controller.hmb.overlaps(start, size):
            self.controller.lose_memory()
        return self.guest.remove(start, size)

    def close(self) -> None:
        """The client has gone, and with it the host."""
        self.controller.function_reset("the client has gone")
        self.vectors.clear()
        self.guest.remove_all()

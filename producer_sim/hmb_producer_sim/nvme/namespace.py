# SPDX-License-Identifier: Apache-2.0
"""A namespace in memory, so that I/O queues are used for real."""

from __future__ import annotations

import struct

from hmb_producer_sim.nvme.command import Command, CommandError, Status, from_guest, to_guest
from hmb_producer_sim.nvme.guest import GuestMemory
from hmb_producer_sim.nvme.identify import BLOCK_SHIFT

FLUSH, WRITE, READ, WRITE_ZEROES, MANAGE = 0x00, 0x01, 0x02, 0x08, 0x09
_DEALLOCATE = 1 << 2


class Namespace:
    """Namespace 1: blocks of 512 bytes. `reads` and `writes` count commands."""

    def __init__(self, size: int, guest: GuestMemory) -> None:
        self._blocks = bytearray(size)
        self._guest = guest
        self.reads = self.writes = 0

    def execute(self, command: Command) -> None:
        """Raises CommandError, BadAccess."""
        if command.nsid != 1 and not (command.opcode == FLUSH and command.nsid == 0xFFFFFFFF):
            raise CommandError(Status.INVALID_NAMESPACE)
        if command.opcode == FLUSH:
            return
        if command.opcode == MANAGE:
            self._manage(command)
            return
        at, size = self._range(command.dw(10) | command.dw(11) << 32, (command.dw(12) & 0xFFFF) + 1)
        if command.opcode == READ:
            self.reads += 1
            with memoryview(self._blocks) as view:
                to_guest(command, self._guest, view[at : at + size])
        elif command.opcode == WRITE:
            self.writes += 1
            self._blocks[at : at + size] = from_guest(command, self._guest, size)
        elif command.opcode == WRITE_ZEROES:
            self._blocks[at : at + size] = bytes(size)
        else:
            raise CommandError(Status.INVALID_OPCODE)

    def _range(self, block: int, count: int) -> tuple[int, int]:
        if block + count > len(self._blocks) >> BLOCK_SHIFT:
            raise CommandError(Status.LBA_OUT_OF_RANGE)
        return block << BLOCK_SHIFT, count << BLOCK_SHIFT

    def _manage(self, command: Command) -> None:
        ranges = from_guest(command, self._guest, 16 * ((command.dw(10) & 0xFF) + 1))
        for _, count, block in struct.iter_unpack("<IIQ", ranges):
            at, size = self._range(block, count)
            if command.dw(11) & _DEALLOCATE:
                self._blocks[at : at + size] = bytes(size)

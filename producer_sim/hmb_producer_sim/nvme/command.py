# SPDX-License-Identifier: Apache-2.0
"""Commands, their status, and the guest memory that their PRPs name."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

from hmb_producer_sim.nvme.guest import GuestMemory

COMMAND_SIZE = 64
PAGE = 4096
MDTS = 5  # a power of two of pages
MAX_TRANSFER = PAGE << MDTS


class Status(enum.IntEnum):
    """Status code type in the upper byte, status code in the lower."""

    SUCCESS = 0x000
    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    DATA_TRANSFER_ERROR = 0x004
    INTERNAL_ERROR = 0x006
    ABORTED = 0x007
    INVALID_NAMESPACE = 0x00B
    SEQUENCE_ERROR = 0x00C
    INVALID_PRP_OFFSET = 0x013
    LBA_OUT_OF_RANGE = 0x080
    INVALID_CQ = 0x100
    INVALID_QID = 0x101
    INVALID_QUEUE_SIZE = 0x102
    TOO_MANY_EVENT_REQUESTS = 0x105
    INVALID_VECTOR = 0x108
    INVALID_LOG_PAGE = 0x109
    INVALID_QUEUE_DELETION = 0x10C
    FEATURE_NOT_CHANGEABLE = 0x10E


class CommandError(Exception):
    """Ends a command with a status other than success."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class Command:
    """A submission queue entry. `dw(10)` is its tenth double word."""

    def __init__(self, raw: bytes) -> None:
        self._words: tuple[int, ...] = struct.unpack("<16I", raw)
        self.opcode = self._words[0] & 0xFF
        self.cid = self._words[0] >> 16
        self.nsid = self._words[1]
        self.prp1 = self._words[6] | self._words[7] << 32
        self.prp2: int = self._words[8] | self._words[9] << 32

    def dw(self, number: int) -> int:
        return self._words[number]

    @property
    def uses_prps(self) -> bool:
        return not self._words[0] >> 14 & 3

    def segments(self, guest: GuestMemory, size: int) -> Iterator[tuple[int, int]]:
        """Address and length of each piece of the data buffer.

        Raises:
            CommandError: SGLs, too much, or an entry that is not page-aligned.
            BadAccess: the PRP list is not in mapped memory.
        """
        if not self.uses_prps or size > MAX_TRANSFER:
            raise CommandError(Status.INVALID_FIELD)
        first = min(size, PAGE - self.prp1 % PAGE)
        yield self.prp1, first
        left = size - first
        if 0 < left <= PAGE:
            yield _aligned(self.prp2), left
        elif left:
            yield from self._listed(guest, left)

    def _listed(self, guest: GuestMemory, left: int) -> Iterator[tuple[int, int]]:
        at = self.prp2
        while left:
            room = (PAGE - at % PAGE) // 8
            wanted = min(room, -(-left // PAGE))
            if at % 8 or not wanted:
                raise CommandError(Status.INVALID_PRP_OFFSET)
            entries = struct.unpack(f"<{wanted}Q", guest.read(at, 8 * wanted))
            chains = wanted * PAGE < left
            for entry in entries[:-1] if chains else entries:
                piece = min(left, PAGE)
                yield _aligned(entry), piece
                left -= piece
            at = int(entries[-1])


def _aligned(address: int) -> int:
    if address % PAGE:
        raise CommandError(Status.INVALID_PRP_OFFSET)
    return address


def to_guest(command: Command, guest: GuestMemory, data: bytes | memoryview) -> None:
    """Move data to the command's buffer."""
    at = 0
    for address, size in command.segments(guest, len(data)):
        guest.write(address, data[at : at + size])
        at += size


def from_guest(command: Command, guest: GuestMemory, size: int) -> bytes:
    """Move data from the command's buffer."""
    return b"".join(guest.read(a, n) for a, n in command.segments(guest, size))

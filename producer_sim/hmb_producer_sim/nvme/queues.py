# SPDX-License-Identifier: Apache-2.0
"""Submission and completion queues in guest memory."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from hmb_producer_sim.nvme.command import COMMAND_SIZE, Command, Status
from hmb_producer_sim.nvme.guest import GuestMemory

ENTRY_SIZE = 16


@dataclass
class CompletionQueue:
    """`head` is the host's, `tail` ours."""

    number: int
    base: int
    size: int
    vector: int | None
    head: int = 0
    tail: int = 0
    phase: int = 1
    # What found no room. Bounded: commands are fetched only while there is room.
    waiting: deque[bytes] = field(default_factory=deque)

    @property
    def has_room(self) -> bool:
        return not self.waiting and (self.tail + 1) % self.size != self.head

    def post(self, guest: GuestMemory, entry: bytes) -> bool:
        """Write an entry (its phase is set here); False: it waits for room."""
        if (self.tail + 1) % self.size == self.head:
            self.waiting.append(entry)
            return False
        word = struct.unpack_from("<I", entry, 12)[0] & ~(1 << 16) | self.phase << 16
        guest.write(self.base + ENTRY_SIZE * self.tail, entry[:12] + struct.pack("<I", word))
        self.tail += 1
        if self.tail == self.size:
            self.tail, self.phase = 0, self.phase ^ 1
        return True

    def flush(self, guest: GuestMemory) -> bool:
        """Post what waited; True if anything was."""
        posted = False
        while self.waiting and (self.tail + 1) % self.size != self.head:
            posted |= self.post(guest, self.waiting.popleft())
        return posted


@dataclass
class SubmissionQueue:
    """`tail` is the host's, `head` ours."""

    number: int
    base: int
    size: int
    completion: CompletionQueue
    head: int = 0
    tail: int = 0

    @property
    def is_empty(self) -> bool:
        return self.head == self.tail

    def fetch(self, guest: GuestMemory) -> Command:
        """Take the next command. Raises BadAccess."""
        command = Command(guest.read(self.base + COMMAND_SIZE * self.head, COMMAND_SIZE))
        self.head = (self.head + 1) % self.size
        return command

    def entry(self, command: Command, status: Status, result: int) -> bytes:
        """The completion queue entry for a command."""
        # Do Not Retry with every error: a retry would end the same way.
        field_ = (status | (0x4000 if status else 0)) << 1
        return struct.pack(
            "<IIHHHH", result & 0xFFFFFFFF, 0, self.head, self.number, command.cid, field_
        )

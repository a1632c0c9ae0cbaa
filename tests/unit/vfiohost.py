# SPDX-License-Identifier: Apache-2.0
"""A host in a few lines: speaks vfio-user to the simulated drive, and drives its controller."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hmb_producer_sim import workload as workloads
from hmb_producer_sim.engine import Settings, make_slice_mark
from hmb_producer_sim.nvme.device import Device
from hmb_producer_sim.nvme.messages import Connection
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.server import Server
from hmb_producer_sim.nvme.settings import DriveSettings
from hmb_producer_sim.nvme.tracer import Tracer, Work
from hmb_producer_sim.simulator import Plan, Stop

from tests.conftest import wait_until

VERSION, DMA_MAP, DMA_UNMAP, SET_IRQS, READ, WRITE, RESET = 1, 2, 3, 8, 9, 10, 13
CONFIG = 7
BASE = 0x1000_0000  # where the guest's memory begins
SIZE = 8 << 20
ASQ, ACQ, LIST, DATA, IOSQ, IOCQ, PRPS = (BASE + n * 0x1000 for n in range(7))
SLICE = BASE + (1 << 20)
SLICE_SIZE = 128 << 10
CACHE = BASE + (4 << 20)  # the second descriptor
CACHE_SIZE = 1 << 20
ENTRIES = 16
EHM, MR, HMNARE = 1, 2, 4


@dataclass
class Completion:
    status: int
    result: int
    cid: int


class Host:
    """QEMU, guest and driver in one. Ends the drive with close(); `violations` are its own."""

    def __init__(self, drive: DriveSettings | None = None, **plan: Any) -> None:
        self.lines: list[str] = []
        self.referee = Referee(self.lines.append)
        self.stop = Stop()
        settings = Settings(ring_size=4096, rate=plan.pop("rate", None), block=True, keep_log=True)
        work = Work(settings, workloads.load("uniform", (0, 64)), None, Plan(**plan))
        self.tracer = Tracer(work, self.stop, self.lines.append)
        self.device = Device(drive or DriveSettings(), self.tracer, self.referee)
        server = Server(self.device, self.referee, lambda: self.stop.signals > 0)
        ours, theirs = socket.socketpair()
        self.socket = ours
        self._connection = Connection(theirs)
        self._thread = threading.Thread(target=self._serve, args=(server,))
        self._thread.start()
        self._fd = os.memfd_create("guest")
        os.ftruncate(self._fd, SIZE)
        self.memory = mmap.mmap(self._fd, SIZE)
        self._number = 0
        self.ledger: dict[str, Any] | None = None

    def _serve(self, server: Server) -> None:
        server.serve(self._connection)
        self._connection.close()

    def close(self) -> None:
        self.socket.close()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.ledger = self.tracer.finish()
        self.memory.close()
        os.close(self._fd)

    @property
    def violations(self) -> list[str]:
        return self.referee.violations

    # ---- vfio-user ----

    def send(self, command: int, payload: bytes = b"", fds: Iterable[int] = ()) -> None:
        self._number = self._number + 1 & 0xFFFF
        head = struct.pack("<HHIII", self._number, command, 16 + len(payload), 0, 0)
        socket.send_fds(self.socket, [head + payload], list(fds))

    def answer(self) -> tuple[int, bytes]:
        """The error number and payload of the next reply."""
        head = self._exactly(16)
        number, _, size, flags, error = struct.unpack("<HHIII", head)
        assert (number, flags & 0xF) == (self._number, 1)
        return error, self._exactly(size - 16)

    def _exactly(self, size: int) -> bytes:
        self.socket.settimeout(20)
        got = b""
        while len(got) < size:
            data = self.socket.recv(size - len(got))
            assert data, "the drive hung up"
            got += data
        return got

    def request(
        self, command: int, payload: bytes = b"", fds: Iterable[int] = ()
    ) -> tuple[int, bytes]:
        self.send(command, payload, fds)
        return self.answer()

    def greet(self) -> None:
        assert self.request(VERSION, struct.pack("<HH", 0, 0) + b"{}\0")[0] == 0

    def map(self, address: int = BASE, size: int = SIZE, offset: int = 0) -> int:
        return self.request(
            DMA_MAP, struct.pack("<IIQQQ", 32, 3, offset, address, size), [self._fd]
        )[0]

    def unmap(self, address: int = BASE, size: int = SIZE) -> int:
        return self.request(DMA_UNMAP, struct.pack("<IIQQ", 24, 0, address, size))[0]

    def read(self, at: int, size: int = 4, region: int = 0) -> int:
        error, data = self.request(READ, struct.pack("<QII", at, region, size))
        assert not error
        return int.from_bytes(data[16:], "little")

    def write(self, at: int, value: int, size: int = 4, region: int = 0) -> None:
        payload = struct.pack("<QII", at, region, size) + value.to_bytes(size, "little")
        assert self.request(WRITE, payload)[0] == 0

    # ---- memory ----

    def put(self, address: int, data: bytes) -> None:
        self.memory[address - BASE : address - BASE + len(data)] = data

    def get(self, address: int, size: int) -> bytes:
        return self.memory[address - BASE : address - BASE + size]

    def word(self, address: int) -> int:
        return int.from_bytes(self.get(address, 8), "little")

    # ---- the controller ----

    def attach(self) -> Host:
        """Up to an enabled controller."""
        self.greet()
        assert self.map() == 0
        self.write(4, 6, 2, CONFIG)  # memory space, bus master
        self.enable()
        return self

    def enable(self) -> None:
        self.put(ASQ, bytes(0x2000))
        self.write(0x24, (ENTRIES - 1) << 16 | ENTRIES - 1)
        self.write(0x28, ASQ, 8)
        self.write(0x30, ACQ, 8)
        self._tails, self._heads, self._phases = {0: 0}, {0: 0}, {0: 1}
        self.write(0x14, 0x460001)
        wait_until(lambda: self.read(0x1C) & 1, "CSTS.RDY")

    def disable(self) -> None:
        self.write(0x14, 0x460000)
        wait_until(lambda: not self.read(0x1C) & 1, "CSTS.RDY = 0")

    def submit(
        self,
        opcode: int,
        *dwords: int,
        prps: tuple[int, int] = (DATA, 0),
        queue: int = 0,
        nsid: int = 0,
    ) -> int:
        """Ring the doorbell; dwords are 10 to 15. The command's id."""
        at = self._tails[queue]
        base = ASQ if queue == 0 else IOSQ
        words = (*dwords, *(0,) * (6 - len(dwords)))
        entry = struct.pack("<IIQQQQ6I", opcode | at << 16, nsid, 0, 0, *prps, *words)
        self.put(base + 64 * at, entry)
        self._tails[queue] = (at + 1) % ENTRIES
        self.write(0x1000 + 8 * queue, self._tails[queue])
        return at

    def completion(self, queue: int = 0, timeout: float = 20) -> Completion:
        base = (ACQ if queue == 0 else IOCQ) + 16 * self._heads[queue]

        def is_there() -> bool:
            return self.get(base + 14, 1)[0] & 1 == self._phases[queue]

        wait_until(is_there, "a completion", timeout)
        result, _, _, _, cid, status = struct.unpack("<IIHHHH", self.get(base, 16))
        self._heads[queue] += 1
        if self._heads[queue] == ENTRIES:
            self._heads[queue], self._phases[queue] = 0, self._phases[queue] ^ 1
        self.write(0x1004 + 8 * queue, self._heads[queue])
        return Completion(status >> 1 & 0x7FF, result, cid)

    def admin(self, opcode: int, *dwords: int, **more: Any) -> Completion:
        self.submit(opcode, *dwords, **more)
        return self.completion()

    def make_io_queue(self) -> None:
        self.put(IOSQ, bytes(0x2000))
        size = (ENTRIES - 1) << 16 | 1
        assert self.admin(0x05, size, 3 | 1 << 16, prps=(IOCQ, 0)).status == 0
        assert self.admin(0x01, size, 1 | 1 << 16, prps=(IOSQ, 0)).status == 0
        self._tails[1], self._heads[1], self._phases[1] = 0, 0, 1

    # ---- the buffer ----

    def lend(
        self,
        flags: int = EHM,
        *,
        mark: bool = True,
        pieces: tuple[tuple[int, int], ...] = ((SLICE, SLICE_SIZE), (CACHE, CACHE_SIZE)),
    ) -> Completion:
        """Set Features 0Dh with these pieces; the first is the slice."""
        if mark:
            address, size = pieces[0]
            self.put(address + size - 64, make_slice_mark(size, address))
        self.put(LIST, b"".join(struct.pack("<QII", a, n >> 12, 0) for a, n in pieces))
        total = sum(n for _, n in pieces) >> 12
        return self.admin(0x09, 0x0D, flags, total, LIST, 0, len(pieces))

    def take_back(self) -> Completion:
        return self.admin(0x09, 0x0D, 0)

    def drain(self) -> int:
        """What a consumer does, without looking: tail = head. The cursor."""
        head = self.word(SLICE + 0x10)
        self.put(SLICE + 0x18, head.to_bytes(8, "little"))
        return head

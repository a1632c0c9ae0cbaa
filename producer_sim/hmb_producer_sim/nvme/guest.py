# SPDX-License-Identifier: Apache-2.0
"""The guest's memory, as far as QEMU has mapped it for the device."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right, insort
from dataclasses import dataclass, field

MAX_MAPS = 4096  # QEMU has some tens; a client must not make us grow without end
READ, WRITE = 1, 2


class BadAccess(Exception):  # noqa: N818 - caught here and in the controller, never shown
    """Memory that is not mapped for the device, or not for this."""


@dataclass(order=True)
class _Map:
    start: int
    size: int = field(compare=False)
    flags: int = field(compare=False)
    memory: mmap.mmap | None = field(compare=False)  # None: no file descriptor came with it

    @property
    def end(self) -> int:
        return self.start + self.size


class GuestMemory:
    """Checked access by guest-physical (or I/O virtual) address."""

    def __init__(self) -> None:
        self._maps: list[_Map] = []
        self.is_bus_master = False

    def add(self, start: int, size: int, flags: int, fd: int | None, offset: int) -> None:
        """Map a range; takes the file descriptor.

        Raises:
            BadAccess: it overlaps another, is no range, or cannot be mapped.
        """
        try:
            self._check_new(start, size)
            memory = None if fd is None else self._mmap(fd, size, flags, offset)
        finally:
            if fd is not None:
                os.close(fd)
        insort(self._maps, _Map(start, size, flags, memory))

    def _check_new(self, start: int, size: int) -> None:
        if size <= 0 or start % mmap.PAGESIZE or size % mmap.PAGESIZE or start + size > 1 << 64:
            raise BadAccess(f"no range of pages: {start:#x} + {size:#x}")
        if len(self._maps) >= MAX_MAPS:
            raise BadAccess(f"more than {MAX_MAPS} mapped ranges")
        if self.overlapping(start, size):
            raise BadAccess(f"{start:#x} + {size:#x} is mapped already")

    @staticmethod
    def _mmap(fd: int, size: int, flags: int, offset: int) -> mmap.mmap:
        protection = (mmap.PROT_READ if flags & READ else 0) | (
            mmap.PROT_WRITE if flags & WRITE else 0
        )
        try:
            if os.fstat(fd).st_size < offset + size:
                raise BadAccess("the file is shorter than what is to be mapped")  # else SIGBUS
            return mmap.mmap(fd, size, mmap.MAP_SHARED, protection, offset=offset)
        except (OSError, ValueError, OverflowError) as error:
            raise BadAccess(f"cannot map: {error}") from error

    def overlapping(self, start: int, size: int) -> bool:
        """True if any of the range is mapped."""
        return any(one.start < start + size and start < one.end for one in self._maps)

    def remove(self, start: int, size: int) -> int:
        """Unmap what lies wholly within the range; bytes unmapped. No view may be left."""
        gone = [m for m in self._maps if start <= m.start and m.end <= start + size]
        self._maps = [m for m in self._maps if m not in gone]
        for one in gone:
            if one.memory is not None:
                one.memory.close()
        return sum(one.size for one in gone)

    def remove_all(self) -> int:
        return self.remove(0, 1 << 64)

    def _find(self, address: int, size: int, flags: int) -> tuple[mmap.mmap, int]:
        if not self.is_bus_master:
            raise BadAccess("bus mastering is off")
        at = bisect_right(self._maps, address, key=lambda one: one.start) - 1
        if at < 0 or address + size > self._maps[at].end:
            raise BadAccess(f"{address:#x} + {size:#x} is not mapped")
        found = self._maps[at]
        if found.flags & flags != flags or found.memory is None:
            raise BadAccess(f"{address:#x} + {size:#x} is not mapped for this access")
        return found.memory, address - found.start

    def read(self, address: int, size: int) -> bytes:
        memory, at = self._find(address, size, READ)
        return memory[at : at + size]

    def write(self, address: int, data: bytes | memoryview) -> None:
        memory, at = self._find(address, len(data), WRITE)
        memory[at : at + len(data)] = data

    def view(self, address: int, size: int) -> memoryview:
        """The memory itself; release it before it is unmapped."""
        memory, at = self._find(address, size, READ | WRITE)
        with memoryview(memory) as whole:
            return whole[at : at + size]

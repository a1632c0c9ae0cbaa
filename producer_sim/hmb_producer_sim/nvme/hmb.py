# SPDX-License-Identifier: Apache-2.0
"""The Host Memory Buffer: what the host lends, and whether firmware may touch it now.

Descriptor 0 is the trace slice where it carries the host's mark (hmb_slice.h). All other
memory plays the drive's cache: every page holds a stamp, which must still be there when the
host takes the buffer back.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hmb_producer_sim.engine import slice_ring_size
from hmb_producer_sim.nvme.guest import BadAccess, GuestMemory
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.settings import HMB_UNIT, DriveSettings
from hmb_trace.layout import RECORD_AREA_OFF

MARK_SIZE = 64
MAX_DESCRIPTORS = 65536  # what we are willing to read
_WORDS = HMB_UNIT // 8


@dataclass(frozen=True)
class Piece:
    """One descriptor."""

    address: int
    size: int


@dataclass(frozen=True)
class Request:
    """Set Features 0Dh: the double words of the command."""

    size: int  # bytes
    list_address: int
    entries: int
    is_return: bool  # MR: the host had lent this before
    restrict: bool  # HMNARE


class Refused(Exception):  # noqa: N818 - becomes a status
    """The host's request cannot be met; the message says why."""


class HostMemoryBuffer:
    """Lent memory, from enable() to release().

    Attributes:
        request: as enabled; None while there is none.
        pieces: its descriptors.
        slice_view, ring_size: the trace slice and its ring; None and 0 where there is no mark.
    """

    def __init__(self, settings: DriveSettings, guest: GuestMemory, referee: Referee) -> None:
        self._settings = settings
        self._guest = guest
        self._referee = referee
        self._generation = 0
        self._before: tuple[Piece, ...] = ()
        self._views: list[memoryview] = []
        self._rest = b""  # of the slice, behind the ring: neither side writes it
        self.request: Request | None = None
        self.pieces: tuple[Piece, ...] = ()
        self.slice_view: memoryview | None = None
        self.ring_size = 0

    @property
    def is_enabled(self) -> bool:
        return self.request is not None

    def enable(self, request: Request) -> None:
        """Take the memory.

        Raises:
            Refused: the descriptors break a rule.
            BadAccess: the list or the buffer is not in mapped memory.
        """
        pieces = self._read_list(request)
        self._check(pieces, request)
        if request.is_return and pieces != self._before:
            self._referee.violation("HMB: returned memory (MR=1) differs from what was lent before")
        try:
            self._views = [self._guest.view(one.address, one.size) for one in pieces]
        except BadAccess:
            self._drop()
            raise
        self.request, self.pieces, self._before = request, pieces, pieces
        self._generation += 1
        self._find_slice()
        self._stamp()

    def _read_list(self, request: Request) -> tuple[Piece, ...]:
        if not 0 < request.entries <= (self._settings.hmb_max_descriptors or MAX_DESCRIPTORS):
            raise Refused(f"{request.entries} descriptors, HMMAXD is not met")
        if request.list_address % 16:
            raise Refused(f"descriptor list at {request.list_address:#x}, not 16-byte aligned")
        raw = self._guest.read(request.list_address, 16 * request.entries)
        entries = struct.iter_unpack("<QII", raw)
        return tuple(Piece(address, size * HMB_UNIT) for address, size, _ in entries)

    def _check(self, pieces: tuple[Piece, ...], request: Request) -> None:
        for i, one in enumerate(pieces):
            if one.address % HMB_UNIT or one.size < max(self._settings.hmb_min_descriptor, 1):
                raise Refused(f"descriptor {i} is {one.address:#x} + {one.size} bytes")
        total = sum(one.size for one in pieces)
        if total < request.size:
            raise Refused(f"descriptors of {total} bytes, HSIZE says {request.size}")
        if request.size < self._settings.hmb_min:
            raise Refused(f"{request.size} bytes, HMMIN is {self._settings.hmb_min}")
        ordered = sorted(pieces, key=lambda one: one.address)
        for a, b in itertools.pairwise(ordered):
            if a.address + a.size > b.address:
                raise Refused(f"descriptors overlap at {b.address:#x}")

    def _find_slice(self) -> None:
        """The handshake: without a valid mark, descriptor 0 is memory like any other."""
        first, view = self.pieces[0], self._views[0]
        mark = bytes(view[-MARK_SIZE:])
        largest = slice_ring_size(mark, first.size, first.address)
        wanted = self._settings.ring_size or largest
        if not largest:
            self._referee.note("slice", "no slice mark in descriptor 0: not tracing")
        elif wanted > largest:
            text = f"a ring of {wanted} bytes does not fit a slice of {first.size}: not tracing"
            self._referee.note("slice", text)
        else:
            self.slice_view, self.ring_size = view, wanted
            self._rest = bytes(view[RECORD_AREA_OFF + wanted :])

    @property
    def ring_view(self) -> memoryview:
        """Header and record area."""
        assert self.slice_view is not None
        return self.slice_view[: RECORD_AREA_OFF + self.ring_size]

    def _cache(self) -> list[tuple[Piece, memoryview]]:
        skip = 0 if self.slice_view is None else 1
        return list(zip(self.pieces, self._views, strict=True))[skip:]

    def _stamps(self, piece: Piece) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        pages = np.arange(piece.size // HMB_UNIT, dtype=np.uint64) * np.uint64(HMB_UNIT)
        stamps: np.ndarray[tuple[int], np.dtype[np.uint64]] = pages + np.uint64(
            piece.address
        ) ^ np.uint64(self._generation << 48)
        return stamps

    def _stamp(self) -> None:
        for piece, view in self._cache():
            np.frombuffer(view, np.uint64)[::_WORDS] = self._stamps(piece)

    def audit(self, foreign_write: Callable[[], int | None]) -> None:
        """What did the host write, that lent this memory? Only `tail` is allowed.

        Args:
            foreign_write: offset of a byte of the ring that is not firmware's.
        """
        for piece, view in self._cache():
            wrong = np.frombuffer(view, np.uint64)[::_WORDS] != self._stamps(piece)
            if wrong.any():
                page = piece.address + int(wrong.argmax()) * HMB_UNIT
                self._referee.violation(f"HMB: the host wrote the drive's cache at {page:#x}")
        if self.slice_view is None:
            return
        at = foreign_write()
        if at is not None:
            self._referee.violation(
                f"HMB: the host wrote byte {at:#x} of the ring; only tail (0x18 to 0x1f) is its own"
            )
        if bytes(self.slice_view[RECORD_AREA_OFF + self.ring_size :]) != self._rest:
            self._referee.violation("HMB: the host wrote the slice behind the ring")

    def overlaps(self, start: int, size: int) -> bool:
        """True if any lent memory lies in the range."""
        return any(
            one.address < start + size and start < one.address + one.size for one in self.pieces
        )

    def release(self) -> None:
        """The memory is the host's again; no view is left."""
        self.request, self.pieces = None, ()
        self._drop()

    def _drop(self) -> None:
        for view in self._views:
            view.release()
        self._views, self.slice_view, self.ring_size, self._rest = [], None, 0, b""

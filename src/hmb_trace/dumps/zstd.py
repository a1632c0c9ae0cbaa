# SPDX-License-Identifier: Apache-2.0
"""Compressed dumps: independent frames of a few MiB and a seek table behind them.

The table is a skippable frame laid out as the zstd project's "seekable format": every zstd
decoder reads such a file. docs/format.md, "Compressed segments".
"""

from __future__ import annotations

import contextlib
import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from hmb_trace.errors import from_os_error

FRAME_SIZE = 4 << 20  # bytes of dump in a frame: what a seek decompresses in vain, at most
_PIECE = 1 << 20
_COMPRESSED_CHUNK = 1 << 12  # at most 128 MiB come of it: four bytes may stand for 128 KiB
_FILE_BUFFER = 1 << 16

_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_TAIL = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f
_FRAME_HEAD = 18  # the longest header of a frame, bytes

_TABLE_HEAD = struct.Struct("<II")  # skippable magic, bytes that follow
_TABLE_MAGIC = 0x184D2A5E
_ENTRY = struct.Struct("<II")  # compressed, decompressed bytes of a frame
_CHECKSUM = 4  # bytes more in every entry, where the descriptor says so
_FOOTER = struct.Struct("<IBI")  # frames, descriptor, magic
_FOOTER_MAGIC = 0x8F92EAB1
_HAS_CHECKSUMS, _RESERVED_BITS = 0x80, 0x7C
_MOST_FRAMES = 1 << 20  # 4 TiB of dump; a longer table is not believed


def is_zstd(head: bytes) -> bool:
    """Whether a file that begins so is zstd: a frame, or one that decoders skip."""
    skippable = head[1:4] == _SKIPPABLE_TAIL and 0x50 <= head[0] <= 0x5F
    return head[:4] == _MAGIC or skippable


# ---- writing ----


def compress_seekable(
    raw: BinaryIO,
    packed: BinaryIO,
    level: int,
    *,
    frame_size: int = FRAME_SIZE,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Compress all of `raw` into independent frames, each with its checksum, and a seek table.

    Args:
        stop: asked every MiB; True ends the work.

    Returns:
        Bytes written; 0 when it was stopped.
    """
    entries = bytearray()
    total = frames = 0
    while piece := raw.read(frame_size):
        size = _frame(piece, packed, level, stop)
        if not size:
            return 0
        entries += _ENTRY.pack(size, len(piece))
        total += size
        frames += 1
    table = _table(entries, frames)
    packed.write(table)
    return total + len(table)


def _frame(data: bytes, packed: BinaryIO, level: int, stop: Callable[[], bool]) -> int:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    frame = compressor.compressobj(size=len(data))
    size = 0
    for start in range(0, len(data), _PIECE):
        if stop():
            return 0
        size += packed.write(frame.compress(data[start : start + _PIECE]))
    return size + packed.write(frame.flush())


def _table(entries: bytearray, frames: int) -> bytes:
    head = _TABLE_HEAD.pack(_TABLE_MAGIC, len(entries) + _FOOTER.size)
    return head + bytes(entries) + _FOOTER.pack(frames, 0, _FOOTER_MAGIC)


# ---- reading ----


class Bytes(Protocol):
    """What compressed bytes are read from."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""

    def tell(self) -> int:
        """How many were read."""


class FrameReader:
    """Decompresses frame after frame.

    Attributes:
        fault: why it stopped before the end of the file, once it has; what came before was given
            out. None: nothing is wrong.
    """

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self._frame: Any = None
        self._frames = 0
        self.fault: str | None = None

    def read(self, size: int) -> bytes:
        """`size` bytes or some more; less only at the end or at a fault."""
        parts: list[bytes] = []
        have = 0
        while have < size and self.fault is None:
            chunk = self._file.read(_COMPRESSED_CHUNK)
            if not chunk:
                self._end()
                break
            for part in self._decompress(chunk):
                parts.append(part)
                have += len(part)
        return b"".join(parts)

    def _decompress(self, chunk: bytes) -> list[bytes]:
        parts: list[bytes] = []
        while chunk:
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                parts.append(self._frame.decompress(chunk))
            except zstandard.ZstdError as error:
                self.fault = f"compressed data is damaged before byte {self._at()} of it ({error})"
                break
            chunk = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
                self._frames += 1
        return parts

    def _end(self) -> None:
        if self._frame is not None:
            self.fault = f"truncated: ends inside a zstd frame, at byte {self._at()} of the file"

    def _at(self) -> int:
        return self._file.tell()


class SeekableFile:
    """A compressed file that can begin at any frame, where it has a seek table.

    The table is a hint: a frame is taken from it only if all frame headers up to there say the
    same as the table does. A file without one, or with one that lies, is read from its start.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("rb", buffering=_FILE_BUFFER)
        except OSError as error:
            raise from_os_error(error, f"cannot read {path}") from error
        self._frames = FrameReader(self._file)
        self._starts: tuple[list[int], list[int]] | None = None
        self.lies: str | None = None  # what is wrong with the table, if it was looked at

    @property
    def fault(self) -> str | None:
        """As FrameReader.fault."""
        return self._frames.fault

    def read(self, size: int) -> bytes:
        """As FrameReader.read."""
        return self._frames.read(size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def seek(self, pos: int, at: int) -> int | None:
        """Go on at the frame that holds byte `pos` of the dump, if that is beyond byte `at`.

        Returns:
            The position of that frame's first byte; None: nothing was done.
        """
        if self._starts is None:
            self._starts = self._look()
        dump, packed = self._starts
        index = bisect_right(dump, pos) - 1
        if index < 0 or dump[index] <= at:
            return None
        self._file.seek(packed[index])
        self._frames = FrameReader(self._file)
        return dump[index]

    def _look(self) -> tuple[list[int], list[int]]:
        """Where the frames begin, in the dump and in the file; empty if that is not known."""
        here = self._file.tell()
        descriptor = self._file.fileno()
        try:
            sizes = _read_table(descriptor)
            packed = list(accumulate((one for one, _ in sizes), initial=0))[:-1]
            dump = list(accumulate((one for _, one in sizes), initial=0))[:-1]
            for at, (_, size) in zip(packed, sizes, strict=True):
                if _content_size(os.pread(descriptor, _FRAME_HEAD, at)) != size:
                    self.lies = f"seek table: no frame of {size} bytes begins at byte {at}"
                    return [], []
        finally:
            self._file.seek(here)
        return dump, packed


def _read_table(descriptor: int) -> list[tuple[int, int]]:
    """(compressed, decompressed) size of every frame; none if there is no sound table."""
    end = os.fstat(descriptor).st_size
    foot = os.pread(descriptor, _FOOTER.size, max(0, end - _FOOTER.size))
    if len(foot) < _FOOTER.size:
        return []
    frames, bits, magic = _FOOTER.unpack(foot)
    if magic != _FOOTER_MAGIC or bits & _RESERVED_BITS or frames > _MOST_FRAMES:
        return []
    width = _ENTRY.size + (_CHECKSUM if bits & _HAS_CHECKSUMS else 0)
    inner = frames * width + _FOOTER.size
    begin = end - inner - _TABLE_HEAD.size
    if begin < 0:
        return []
    data = os.pread(descriptor, end - begin, begin)
    if data[: _TABLE_HEAD.size] != _TABLE_HEAD.pack(_TABLE_MAGIC, inner):
        return []
    sizes = [_ENTRY.unpack_from(data, _TABLE_HEAD.size + i * width) for i in range(frames)]
    return sizes if sum(one for one, _ in sizes) == begin else []


def _content_size(head: bytes) -> int | None:
    """Bytes that a frame becomes, as its header says; None where it does not, or is none."""
    if head[1:4] == _SKIPPABLE_TAIL:
        return 0
    with contextlib.suppress(zstandard.ZstdError):
        return int(zstandard.get_frame_parameters(head).content_size)
    return None


def content_size(path: Path) -> int | None:
    """Bytes that a compressed file becomes, by its seek table; None where it has none."""
    try:
        with path.open("rb") as file:
            sizes = _read_table(file.fileno())
    except OSError:
        return None
    return sum(size for _, size in sizes) if sizes else None

# SPDX-License-Identifier: Apache-2.0
"""Where dump bytes come from: mapped files, pipes, compressed files. Bounded memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from hmb_trace.errors import InputOutputError, InvalidDataError, from_os_error

_PAGE = mmap.PAGESIZE
_COMPRESSED_CHUNK = 1 << 12  # at most 128 MiB come of it: four bytes may stand for 128 KiB
_FILE_BUFFER = 1 << 16
_PIPE_SIZE = 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MADV_POPULATE_READ = 22  # Linux 5.14; older kernels refuse it and pages fault in one by one


class Source(Protocol):
    """Bytes by position; positions asked for never go back."""

    def window(self, pos: int, max_bytes: int) -> tuple[memoryview, bool]:
        """Bytes from pos on, and whether they reach the end.

        A window that does not reach the end holds more bytes each time it is asked for again.
        """

    def close(self) -> None:
        """Let go of the file."""


class MappedSource:
    """A part of a regular file, mapped; pages already walked over are given back."""

    def __init__(self, path: Path, begin: int = 0, size: int | None = None) -> None:
        self._map: mmap.mmap | None = None
        self._begin = begin
        self._dropped = 0
        try:
            with path.open("rb") as file:
                whole = os.fstat(file.fileno()).st_size
                if whole:
                    self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise from_os_error(error, f"cannot read {path}") from error
        self.size = max(0, min(whole - begin, whole if size is None else size))
        self._view = memoryview(self._map if self._map else b"")

    def window(self, pos: int, max_bytes: int) -> tuple[memoryview, bool]:
        end = min(pos + max_bytes, self.size)
        self._advise(pos, end)
        return self._view[self._begin + pos : self._begin + end], end == self.size

    def _advise(self, pos: int, end: int) -> None:
        if self._map is None or end <= pos:
            return
        first = (self._begin + pos) // _PAGE * _PAGE
        if first > self._dropped:
            self._map.madvise(mmap.MADV_DONTNEED, self._dropped, first - self._dropped)
            self._dropped = first
        try:
            self._map.madvise(MADV_POPULATE_READ, first, self._begin + end - first)
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Views handed out stay valid: the mapping goes with the last of them."""
        self._view = memoryview(b"")
        self._map = None


class StreamSource:
    """Bytes that come one after the other: a pipe, a file object, a decompressor."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None]) -> None:
        self._read = read
        self._close = close
        self._held = b""
        self._held_at = 0
        self._ended = False

    def window(self, pos: int, max_bytes: int) -> tuple[memoryview, bool]:
        while pos > self._held_at + len(self._held) and not self._ended:
            self._held_at += len(self._held)
            self._held = self._next(max_bytes)
        rest = self._held[pos - self._held_at :]
        if not self._ended:
            rest += self._next(max_bytes)
        self._held, self._held_at = rest, pos
        return memoryview(rest), self._ended

    def _next(self, size: int) -> bytes:
        chunk = self._read(size)
        self._ended = not chunk
        return chunk

    def close(self) -> None:
        self._close()


def from_file_object(file: BinaryIO, name: str) -> StreamSource:
    """A source that reads what is there: it does not wait for a full window.

    A zstd stream is decompressed, told by its first bytes.

    Raises (from window):
        InputOutputError: the file object's read failed.
    """
    _widen_pipe(file)
    stream = _Sniffed(file, name)
    if stream.head.startswith(_ZSTD_MAGIC):
        return StreamSource(_ZstdReader(stream, name).read, lambda: None)
    return StreamSource(stream.read, lambda: None)


class _Sniffed:
    """A stream whose first bytes have been looked at."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        self._name = name
        self._passed = 0
        self.head = b""
        while len(self.head) < len(_ZSTD_MAGIC) and (piece := self._more(_PIPE_SIZE)):
            self.head += piece
        self._left = self.head

    def read(self, size: int) -> bytes:
        found = self._left[:size] or self._more(size)
        self._left = self._left[len(found) :] if self._left else b""
        self._passed += len(found)
        return found

    def tell(self) -> int:
        return self._passed

    def _more(self, size: int) -> bytes:
        try:
            return self._read(size)
        except OSError as error:
            text = f"cannot read {self._name}: {error.strerror or error}"
            raise InputOutputError(text) from error


def _widen_pipe(file: BinaryIO) -> None:
    try:
        import fcntl  # noqa: PLC0415 - only pipes need it

        fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    except (OSError, ValueError, AttributeError):
        return  # not a pipe


class _ZstdReader:
    """Decompresses frame after frame, and knows when a frame was cut short."""

    def __init__(self, file: BinaryIO | _Sniffed, name: str) -> None:
        self._file = file
        self._name = name
        self._frame: Any = None

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        have = 0
        while have < size:
            chunk = self._file.read(_COMPRESSED_CHUNK)
            if not chunk:
                self._at_end(have)
                break
            for part in self._decompress(chunk):
                parts.append(part)
                have += len(part)
        return b"".join(parts)

    def _decompress(self, chunk: bytes) -> list[bytes]:
        parts = []
        while chunk:
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                parts.append(self._frame.decompress(chunk))
            except zstandard.ZstdError as error:
                raise InvalidDataError(f"{self._name}: zstd: {error}") from error
            chunk = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        return parts

    def _at_end(self, have: int) -> None:
        if self._frame is not None and not have:
            at = self._file.tell()
            raise InvalidDataError(
                f"{self._name}: compressed file ends inside a frame at byte {at}"
            )


def from_zstd(path: Path) -> StreamSource:
    """A source of the decompressed bytes of a .zst file.

    Raises (from window):
        InvalidDataError: damaged, or cut short.
    """
    try:
        file = path.open("rb", buffering=_FILE_BUFFER)
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    return StreamSource(_ZstdReader(file, str(path)).read, file.close)


def from_growing(path: Path) -> StreamSource:
    """A source that reads instead of mapping: the file may be cut while we look at it."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    return StreamSource(file.read1, file.close)

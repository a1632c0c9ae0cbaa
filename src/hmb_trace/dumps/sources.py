# SPDX-License-Identifier: Apache-2.0
"""Where dump bytes come from: mapped files, pipes, compressed files. Bounded memory."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from hmb_trace.dumps.zstd import FrameReader, SeekableFile, is_zstd
from hmb_trace.errors import InputOutputError, from_os_error

log = logging.getLogger("hmb_trace")

_PAGE = mmap.PAGESIZE
_PIPE_SIZE = 1 << 20
_MAGIC_SIZE = 4
MADV_POPULATE_READ = 22  # Linux 5.14; older kernels refuse it and pages fault in one by one


class Source(Protocol):
    """Bytes by position; positions asked for never go back."""

    @property
    def fault(self) -> str | None:
        """Why the bytes end before their end, once a window has reached it; None: they do not."""

    def window(self, pos: int, max_bytes: int) -> tuple[memoryview, bool]:
        """Bytes from pos on, and whether they reach the end.

        A window that does not reach the end holds more bytes each time it is asked for again.
        """

    def close(self) -> None:
        """Let go of the file."""


class MappedSource:
    """A part of a regular file, mapped; pages already walked over are given back."""

    fault: str | None = None

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

    @property
    def fault(self) -> str | None:
        """As Source.fault."""
        return None

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


class CompressedSource(StreamSource):
    """Decompressed bytes; whole frames before the place asked for are skipped where possible."""

    def __init__(
        self,
        frames: FrameReader | SeekableFile,
        name: str,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(frames.read, close)
        self._frames = frames
        self._name = name

    @property
    def fault(self) -> str | None:
        return self._frames.fault

    def window(self, pos: int, max_bytes: int) -> tuple[memoryview, bool]:
        if pos > self._held_at + len(self._held) and isinstance(self._frames, SeekableFile):
            self._jump(self._frames, pos)
        return super().window(pos, max_bytes)

    def _jump(self, file: SeekableFile, pos: int) -> None:
        begin = file.seek(pos, self._held_at + len(self._held))
        if begin is not None:
            self._held, self._held_at = b"", begin
        elif file.lies:
            log.warning("%s: %s; it is read from its start instead", self._name, file.lies)
            file.lies = None


def from_file_object(file: BinaryIO, name: str) -> StreamSource:
    """A source that reads what is there: it does not wait for a full window.

    A zstd stream is decompressed, told by its first bytes.

    Raises (from window):
        InputOutputError: the file object's read failed.
    """
    _widen_pipe(file)
    stream = _Sniffed(file, name)
    if is_zstd(stream.head):
        return CompressedSource(FrameReader(stream), name)
    return StreamSource(stream.read, lambda: None)


class _Sniffed:
    """A stream whose first bytes have been looked at."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        self._name = name
        self._passed = 0
        self.head = b""
        while len(self.head) < _MAGIC_SIZE and (piece := self._more(_PIPE_SIZE)):
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


def from_zstd(path: Path) -> StreamSource:
    """A source of the decompressed bytes of a .zst file; where they end too early: its `fault`."""
    file = SeekableFile(path)
    return CompressedSource(file, str(path), file.close)


def from_growing(path: Path) -> StreamSource:
    """A source that reads instead of mapping: the file may be cut while we look at it."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    return StreamSource(file.read1, file.close)

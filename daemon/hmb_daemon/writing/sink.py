# SPDX-License-Identifier: Apache-2.0
"""Bytes on their way from the spool into one file: bounce buffers, direct or buffered.

Direct I/O moves whole pages; what is left over waits in the buffer, goes out
padded when asked for, and is written again once its page fills.  Buffered
writing keeps the page cache of the machine under test small.  While one buffer
is written, a thread may fill the other.

A write may fail at any point: everything here can be called again and goes on
where it stood.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import xxhash

from hmb_daemon.host import sysio
from hmb_trace._core import ffi, lib

PAGE = 4096
_HUGE_PAGE = 2 << 20
BOUNCE = 2 << 20
PREFERRED_NICE = -10  # of who moves bytes out of the spool: soon, they are still in the cache
_PIPE_CHUNK = 64 << 10  # a slow reader shows its progress
_WINDOW = 8 << 20  # bytes that may be dirty in the page cache, twice
_RESERVE_MIN = 1 << 20
_RESERVE_MAX = 64 << 20

Write = Callable[[int, Any, int], int]


class _Buffer:
    """A bounce buffer in huge pages where there are any: one piece for the device, not hundreds."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._bytes = mmap.mmap(-1, size + _HUGE_PAGE, flags=flags)
        with contextlib.suppress(OSError):  # a kernel without them
            self._bytes.madvise(mmap.MADV_HUGEPAGE)
        whole = ffi.from_buffer(self._bytes)
        self._start = -int(ffi.cast("uintptr_t", whole)) % _HUGE_PAGE
        self._c = whole + self._start
        self._whole = whole  # what the pointer above points into
        self.view = memoryview(self._bytes)[self._start : self._start + size]

    def fill(self, spool: Any, pos: int, start: int, size: int, *, stream: bool) -> None:
        """Copy spool bytes to offset `start`; `stream`: a device reads them next, not this CPU."""
        copy = lib.hmb_spool_stream if stream else lib.hmb_spool_copy
        copy(spool, self._c + start, pos, size)

    def to_front(self, start: int, size: int) -> None:
        """Move bytes to the buffer's begin."""
        self._bytes.move(self._start, self._start + start, size)

    def close(self) -> None:
        self._c = self._whole = ffi.NULL
        self.view.release()
        with contextlib.suppress(BufferError):  # cffi may still hold a view
            self._bytes.close()


def _prefer() -> None:
    sysio.name_thread("hmb-fill")
    sysio.prefer_thread(PREFERRED_NICE)


class Sink:
    """The data of one segment file. Offsets are bytes into the file.

    Args:
        fd: the file, without O_DIRECT: go_direct() sets it where that is wanted and possible.
        offset: where it goes on; what lies before is in the file already.
        reserve: reserve disk blocks ahead, up to so many bytes; 0: never.
    """

    def __init__(
        self, fd: int, offset: int, *, direct: bool, pwrite: Write = os.pwrite, reserve: int = 0
    ) -> None:
        self.fd = fd
        self.direct = direct
        self.in_file = offset
        self.synced = offset  # what an fdatasync has confirmed
        self.hash = xxhash.xxh3_64()
        self.dirty = False
        self._pwrite = pwrite
        self._buffer = _Buffer(BOUNCE)
        self._spare: _Buffer | None = None
        self._filler: ThreadPoolExecutor | None = None
        self._ahead: Future[int] | None = None
        self._alone = False  # no second buffer
        self._base = offset & ~(PAGE - 1) if direct else offset
        self._fill = offset - self._base
        self._done = 0
        self._window = self._base
        self._reserved = offset
        self._reserve_limit = reserve

    def resume(self) -> None:
        """After a restart, before go_direct(): read the odd page back, and all into the hash.

        Raises:
            OSError: the file cannot be read, or holds less than it should.
        """
        self._hash_file(self.fd)
        if self._fill:
            self._buffer.view[: self._fill] = _read_exactly(self.fd, self._fill, self._base)

    def go_direct(self) -> None:
        """Switch to direct I/O, if that is wanted and the file system takes it."""
        if not self.direct:
            return
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError:
            self.direct = False

    def go_buffered(self) -> None:
        """Leave direct I/O: what is left in the buffer goes out as it is."""
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.direct = False

    def replace_file(self, fd: int) -> None:
        """Go on in another descriptor that holds the same bytes."""
        os.close(self.fd)
        self.fd, self.dirty, self.synced = fd, True, 0
        self.go_direct()

    def rewrite(self, start: int) -> None:
        """Write again, from what can be read back, what the disk did not confirm.

        Raises:
            OSError: it cannot be read, or not be written.
        """
        direct = self.direct
        if direct:
            self.go_buffered()
        try:
            for offset in range(start, self.in_file, BOUNCE):
                data = _read_exactly(self.fd, min(BOUNCE, self.in_file - offset), offset)
                _write_exactly(self.fd, data, offset)
        finally:
            self.direct = direct
            self.go_direct()

    def cut(self, size: int) -> str:
        """End the file at an earlier size; the XXH3 of what stays.

        Raises:
            OSError: as the system says; may be called again.
        """
        self.go_buffered()
        os.ftruncate(self.fd, size)
        self.in_file = size
        self.hash = xxhash.xxh3_64()
        self._hash_file(self.fd)
        return str(self.hash.hexdigest())

    def _hash_file(self, reader: int) -> None:
        offset = 0
        while offset < self.in_file:
            size = min(BOUNCE, self.in_file - offset)
            self.hash.update(_read_exactly(reader, size, offset))
            offset += size
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def taken(self) -> int:
        """File offset behind the last byte that was taken from the spool."""
        return self._base + self._fill

    @property
    def room(self) -> int:
        """Bytes that the buffer can still take."""
        return BOUNCE - self._fill

    def take(self, spool: Any, pos: int, size: int) -> None:
        """Copy `size` bytes (at most `room`) at spool position `pos` into the buffer."""
        self._move(self._buffer, spool, pos, self._fill, size)
        self._fill += size

    def take_ahead(self, spool: Any, pos: int, size: int) -> None:
        """Begin to copy what follows a full buffer into another, which the next flush brings in.

        Nothing where the system has no thread or no memory for it: the caller takes it later.
        """
        if self._alone:
            return
        try:
            if not self._filler or not self._spare:
                self._spare = _Buffer(BOUNCE)
                self._filler = ThreadPoolExecutor(1, initializer=_prefer)
            self._ahead = self._filler.submit(self._move, self._spare, spool, pos, 0, size)
        except (OSError, RuntimeError):  # a task that was queued may never run: no second try
            self._alone, self._filler = True, None

    def _move(self, buffer: _Buffer, spool: Any, pos: int, start: int, size: int) -> int:
        # Hashed where they come from: that brings them into the cache, streaming out does not.
        self.hash.update(ffi.buffer(spool.data + pos % spool.data_size, size))
        buffer.fill(spool, pos, start, size, stream=self.direct)
        return size

    def flush(self) -> None:
        """Write what can be written: all of it, or the whole pages where I/O is direct.

        Raises:
            OSError: as the write says; call again to go on.
        """
        end = self._fill & ~(PAGE - 1) if self.direct else self._fill
        if not end:
            return
        self._reserve_ahead(end)
        while self._done < end:
            self._done += self._progress(self._write(self._done, end))
            self.in_file = max(self.in_file, self._base + self._done)
        self._base, self._done = self._base + end, 0
        self._fill = self._bring_in_ahead() if self._ahead else self._keep_rest(end)
        self._bound_dirty()

    def _keep_rest(self, end: int) -> int:
        rest = self._fill - end
        if rest:
            self._buffer.to_front(end, rest)
        return rest

    def _bring_in_ahead(self) -> int:
        assert self._ahead and self._spare
        size = self._ahead.result()
        self._buffer, self._spare, self._ahead = self._spare, self._buffer, None
        return size

    def flush_odd(self) -> None:
        """Also write the page that is not full, padded; the seal cuts the padding off."""
        self.flush()
        if not self.direct or self.in_file == self.taken:
            return
        self._buffer.view[self._fill : PAGE] = bytes(PAGE - self._fill)
        while self._progress(self._write(0, PAGE)) < PAGE:
            pass
        self.in_file = self.taken

    def _progress(self, written: int) -> int:
        return written & ~(PAGE - 1) if self.direct else written

    def _write(self, start: int, end: int) -> int:
        self.dirty = True
        try:
            return self._pwrite(self.fd, self._buffer.view[start:end], self._base + start)
        except InterruptedError:
            return 0
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            # The file system took the flag but not the write: go on without it.
            self.go_buffered()
            return 0

    def _reserve_ahead(self, end: int) -> None:
        need = self._base + end
        if not self._reserve_limit or need <= self._reserved:
            return
        step = min(max(_RESERVE_MIN, self._base), _RESERVE_MAX)
        target = max(need, min(self._reserved + step, self._reserve_limit))
        try:
            sysio.reserve(self.fd, self._reserved, target - self._reserved)
            self._reserved = target
        except OSError:
            self._reserve_limit = 0  # not possible here, or nearly full: the write itself will tell

    def _bound_dirty(self) -> None:
        if self.direct or self._base - self._window < _WINDOW:
            return
        size = self._base - self._window
        try:
            sysio.start_writeback(self.fd, self._window, size)
            before = max(0, self._window - _WINDOW)
            if before < self._window:
                sysio.wait_writeback(self.fd, before, self._window - before)
                os.posix_fadvise(self.fd, before, self._window - before, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass  # advice only: errors of the data itself come back from fdatasync
        self._window = self._base

    def sync(self) -> None:
        """fdatasync, if something was written since the last."""
        if self.dirty:
            reached = self.in_file
            os.fdatasync(self.fd)
            self.dirty, self.synced = False, reached

    def close(self) -> None:
        """Release the buffers; the file descriptor is the caller's."""
        if self._filler:
            self._filler.shutdown()  # it may be reading the spool
        for buffer in (self._buffer, self._spare):
            if buffer:
                buffer.close()


def _write_exactly(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _read_exactly(fd: int, size: int, offset: int) -> bytes:
    parts = []
    while size:
        part = os.pread(fd, size, offset)
        if not part:
            raise OSError(errno.EIO, "segment file is shorter than what was written to it")
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


class PipeSink:
    """The data of a stream: records only, in order, nothing beside them.

    Args:
        offset: bytes that an earlier daemon has written to it.
    """

    def __init__(self, fd: int, offset: int) -> None:
        self.fd = fd
        self.direct = False
        self.in_file = offset
        self.hash = xxhash.xxh3_64()
        self._buffer = bytearray(BOUNCE)
        self._c = ffi.from_buffer(self._buffer)
        self._start = self._end = 0
        self.waiting_since: float | None = None  # since when its reader takes nothing

    @property
    def taken(self) -> int:
        """Bytes taken from the spool."""
        return self.in_file + self._end - self._start

    @property
    def room(self) -> int:
        """Bytes that the buffer can still take."""
        return BOUNCE - self._end

    def take(self, spool: Any, pos: int, size: int) -> None:
        """Copy `size` bytes at spool position `pos` into the buffer."""
        lib.hmb_spool_copy(spool, self._c + self._end, pos, size)
        self._end += size

    def take_ahead(self, spool: Any, pos: int, size: int) -> None:
        """Nothing: a stream is as fast as its reader."""

    def flush(self) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        with memoryview(self._buffer) as view:
            while self._start < self._end:
                end = min(self._end, self._start + _PIPE_CHUNK)
                self.waiting_since = time.monotonic()
                try:
                    written = os.write(self.fd, view[self._start : end])
                finally:
                    self.waiting_since = None
                self._start += written
                self.in_file += written
        self._start = self._end = 0

    flush_odd = flush

    def sync(self) -> None:
        """A stream has no disk."""

    def close(self) -> None:
        """The file descriptor is the caller's."""

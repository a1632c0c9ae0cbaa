# SPDX-License-Identifier: Apache-2.0
"""Writing in a thread of its own: conversion and disk do not wait for each other."""

from __future__ import annotations

import mmap
import os
import queue
import threading
from dataclasses import dataclass
from typing import BinaryIO

from hmb_trace._core import ffi

_IN_FLIGHT = 4  # pieces
_PIECE = 4 << 20  # bytes


@dataclass(slots=True)
class _Job:
    """Bytes to put at a file offset."""

    data: memoryview
    offset: int
    buffer: bytearray | None = None  # holds the data, and is used again
    patch: bool = False


class WriteBehind:
    """Appends to a file, in order; errors come out of the next call.

    What others may change is copied into buffers that are used again and again. What cannot
    change (bytes, a file mapped for reading) is written from where it is. Either way memory
    stays bounded when the disk is slow.
    """

    def __init__(self, stream: BinaryIO) -> None:
        stream.flush()
        self._fd = stream.fileno()
        self._end = stream.tell()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_IN_FLIGHT)
        self._free: list[bytearray] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pccx-write", daemon=True)
        self._thread.start()

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._room.acquire()
            self._check()
            self._jobs.put(self._lent(piece) if _cannot_change(piece) else self._copied(piece))
            self._end += len(piece)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes at a file offset, after everything before."""
        self._jobs.put(_Job(memoryview(data), offset, patch=True))

    def _lent(self, piece: memoryview) -> _Job:
        return _Job(piece, self._end)

    def _copied(self, piece: memoryview) -> _Job:
        buffer = self._free.pop() if self._free else bytearray(_PIECE)
        view = memoryview(buffer)[: len(piece)]
        view[:] = piece
        return _Job(view, self._end, buffer)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait until everything is written; then raise what went wrong, if something did."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        self._check()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    self._do(job)
            except BaseException as error:
                self._error = error
            if job.buffer is not None:
                self._free.append(job.buffer)
            if not job.patch:
                self._room.release()

    def _do(self, job: _Job) -> None:
        done = 0
        while done < len(job.data):
            done += os.pwrite(self._fd, job.data[done:], job.offset + done)
        if job.buffer is None:
            _give_back(job.data)


def _cannot_change(data: memoryview) -> bool:
    owner = data.obj
    return isinstance(owner, bytes) or (isinstance(owner, mmap.mmap) and memoryview(owner).readonly)


def _give_back(data: memoryview) -> None:
    """Memory of a mapped file: whoever mapped it may have given it back before we read it."""
    mapped = data.obj
    if not isinstance(mapped, mmap.mmap):
        return
    begin = int(ffi.cast("uintptr_t", ffi.from_buffer(data)))
    begin -= int(ffi.cast("uintptr_t", ffi.from_buffer(mapped)))
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, begin + len(data) - first)

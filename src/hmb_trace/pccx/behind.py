# SPDX-License-Identifier: Apache-2.0
"""Writing in a thread of its own: conversion and disk do not wait for each other."""

from __future__ import annotations

import os
import queue
import threading
from typing import BinaryIO

_BUFFERS = 4
_BUFFER_BYTES = 4 << 20

# A filled buffer and its length; bytes to put at a file offset; None: no more.
_Job = tuple[bytearray, int] | tuple[bytes, int, None] | None


class WriteBehind:
    """Appends to a stream, in order; errors come out of the next call.

    Bytes are copied into buffers that are used again and again, so the caller's memory is
    free at once, and memory stays bounded when the disk is slow.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._made = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pccx-write", daemon=True)
        self._thread.start()

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        for start in range(0, len(data), _BUFFER_BYTES):
            piece = data[start : start + _BUFFER_BYTES]
            buffer = self._buffer()
            buffer[: len(piece)] = piece
            self._jobs.put((buffer, len(piece)))

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes at a file offset, after everything before."""
        self._jobs.put((data, offset, None))

    def _buffer(self) -> bytearray:
        self._check()
        if self._made < _BUFFERS and self._free.empty():
            self._made += 1
            return bytearray(_BUFFER_BYTES)
        buffer = self._free.get()
        self._check()
        return buffer

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
            if len(job) == 2:
                self._free.put(job[0])
        try:
            self._stream.flush()
        except OSError as error:
            self._error = self._error or error

    def _do(self, job: tuple[bytearray, int] | tuple[bytes, int, None]) -> None:
        if len(job) == 2:
            view = memoryview(job[0])[: job[1]]
            while view:
                view = view[self._stream.write(view) :]
            return
        self._stream.flush()
        os.pwrite(self._stream.fileno(), job[0], job[1])

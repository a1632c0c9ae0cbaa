# SPDX-License-Identifier: Apache-2.0
"""Sealed segments become .bin.zst: whole or not at all, and tried again after a failure."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from hmb_daemon.writing import names
from hmb_daemon.writing.retention import Retention
from hmb_trace.dumps.zstd import compress_seekable

_PERIOD_S = 5.0


class Compressor:
    """Compresses what is offered to it, one segment after the other."""

    def __init__(self, directory: Path, retention: Retention, log: Any) -> None:
        self.level = 0
        self._directory = directory
        self._retention = retention
        self._log = log
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failed: list[str] = []
        self._hurry = threading.Event()

    def offer(self, name: str) -> None:
        """A segment that is sealed and not compressed."""
        self._queue.put(name)

    def finish(self) -> None:
        """End once everything offered is done."""
        self._queue.put(None)

    def hurry(self) -> None:
        """Leave what is not done to the next start."""
        self._hurry.set()

    def run(self) -> None:
        """Body of a worker."""
        while not self._hurry.is_set():
            try:
                name = self._queue.get(timeout=_PERIOD_S)
            except queue.Empty:
                self._offer_failed()
                continue
            if name is None:
                return
            if self.level:
                self._try(name)

    def _offer_failed(self) -> None:
        again, self._failed = self._failed, []
        for name in again:
            self._queue.put(name)

    def _try(self, name: str) -> None:
        try:
            self._compress(name)
        except (OSError, zstandard.ZstdError, MemoryError) as error:
            self._failed.append(name)
            self._log.error(
                "compression-failed",
                segment=name,
                error=getattr(error, "strerror", None) or str(error),
                action="the segment stays as it is; tried again later",
            )

    def _compress(self, name: str) -> None:
        source = self._directory / (name + names.BIN)
        target = source.with_name(name + names.ZST)
        temporary = target.with_name(target.name + ".tmp")
        if not names.is_plain(self._directory, source.name):
            return
        temporary.unlink(missing_ok=True)
        try:
            done = self._compress_to(source, temporary)
            if done and self._retention.replace(name, _replacing(source, temporary, target)):
                self._log.info("segment-compressed", segment=target.name, bytes=done)
        finally:
            temporary.unlink(missing_ok=True)

    def _compress_to(self, source: Path, temporary: Path) -> int:
        """Compressed bytes; 0 when told to hurry."""
        with source.open("rb") as raw, temporary.open("xb") as packed:
            size = compress_seekable(raw, packed, self.level, stop=self._hurry.is_set)
            packed.flush()
            os.fsync(packed.fileno())
            os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return size


def _replacing(source: Path, temporary: Path, target: Path) -> Callable[[], None]:
    def replace() -> None:
        temporary.replace(target)
        source.unlink()

    return replace

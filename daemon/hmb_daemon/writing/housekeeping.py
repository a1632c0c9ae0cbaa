# SPDX-License-Identifier: Apache-2.0
"""What happens to sealed segments: compression, and retention by size and age."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hmb_daemon.host import sysio
from hmb_daemon.writing import names
from hmb_daemon.writing.segment import sync_directory
from hmb_trace.dumps.zstd import compress_seekable

_NICE = 10
_PERIOD_S = 30.0


class Housekeeper:
    """Works behind the writer. Retention may also be called by the writer (disk full)."""

    def __init__(self, directory: Path, label: str, log: Any) -> None:
        self.max_total_size = 0
        self.max_age_ns = 0
        self.level = 0
        self.deleted = 0
        self._directory = directory
        self._label = label
        self._log = log
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begin with what an earlier run left uncompressed."""
        if self.level:
            for found in names.scan(self._directory, self._label):
                if found.suffix == names.BIN:
                    self._queue.put(found.name)
        self._thread.start()

    def sealed(self, name: str) -> None:
        """A segment was sealed."""
        self._queue.put(name)

    def stop(self, patience_s: float) -> None:
        """End the thread; a compression that takes longer is left to the next start."""
        self._queue.put(None)
        self._thread.join(patience_s)
        self._hurry.set()
        self._thread.join(5)

    def _run(self) -> None:
        sysio.name_thread("hmb-housekeep")
        sysio.prefer_thread(_NICE)
        while True:
            try:
                name = self._queue.get(timeout=_PERIOD_S)
            except queue.Empty:
                name = ""
            if name is None:
                return
            try:
                if name and self.level:
                    self._compress(name)
                self.retain()
            except OSError as error:
                self._log.error("housekeeping-failed", segment=name, error=error.strerror)

    # -- compression

    def _compress(self, name: str) -> None:
        source = self._directory / (name + names.BIN)
        target = self._directory / (name + names.ZST)
        temporary = target.with_name(target.name + ".tmp")
        if not source.exists():
            return
        try:
            done = self._compress_to(source, temporary)
            if done:
                temporary.replace(target)
                sync_directory(self._directory)
                source.unlink()
                self._log.info("segment-compressed", segment=target.name, bytes=done)
        finally:
            temporary.unlink(missing_ok=True)

    def _compress_to(self, source: Path, temporary: Path) -> int:
        """Compressed bytes; 0 when told to hurry."""
        with source.open("rb") as raw, temporary.open("wb") as packed:
            size = compress_seekable(raw, packed, self.level, stop=self._hurry.is_set)
            packed.flush()
            os.fsync(packed.fileno())
            os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return size

    # -- retention

    def _sealed(self) -> Iterator[names.Found]:
        """Each segment once: one killed while it was compressed may be there as .bin and .zst."""
        scanned = names.scan(self._directory, self._label)
        sealed = {one.name: one for one in scanned if not one.suffix.endswith(names.PART)}
        return iter(sealed.values())

    def _size(self, found: names.Found) -> int:
        total = 0
        for suffix in (names.BIN, names.ZST, names.SIDECAR, names.REJECTS):
            with contextlib.suppress(FileNotFoundError):
                total += (self._directory / (found.name + suffix)).stat().st_size
        return total

    def _delete(self, found: names.Found, why: str) -> None:
        size = self._size(found)
        # The dump last: a half-deleted segment is still a dump.
        for suffix in (names.SIDECAR, names.REJECTS, names.ZST, names.BIN):
            (self._directory / (found.name + suffix)).unlink(missing_ok=True)
        self.deleted += 1
        self._log.warning("segment-deleted", segment=found.name, bytes=size, why=why)

    def retain(self) -> None:
        """Delete the oldest sealed segments beyond --max-total-size and --max-age.

        The newest one stays even where it alone is larger: a limit set too small would
        otherwise delete the whole capture.
        """
        with self._lock:
            if self.max_age_ns:
                self._retain_age()
            if self.max_total_size:
                self._retain_size()

    def _retain_age(self) -> None:
        oldest = time.time_ns() - self.max_age_ns
        for found in list(self._sealed()):
            path = self._directory / (found.name + found.suffix)
            if path.exists() and path.stat().st_mtime_ns < oldest:
                self._delete(found, "max-age")

    def _retain_size(self) -> None:
        sizes = {found: self._size(found) for found in self._sealed()}
        total = sum(sizes.values())
        for found, size in list(sizes.items())[:-1]:
            if total <= self.max_total_size:
                return
            self._delete(found, "max-total-size")
            total -= size

    def make_room(self) -> bool:
        """Delete the oldest sealed segment, whatever the limits; False when there is none."""
        with self._lock:
            found = next(self._sealed(), None)
            if found is None:
                return False
            self._delete(found, "disk-full")
            return True

# SPDX-License-Identifier: Apache-2.0
"""What happens to sealed segments, beside the capture: retention and compression.

Two threads, since a slow compression must not keep a limit from being kept.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from hmb_daemon.host import sysio
from hmb_daemon.host.workers import Worker
from hmb_daemon.settings import Settings
from hmb_daemon.writing.compression import Compressor
from hmb_daemon.writing.event_log import Remark
from hmb_daemon.writing.retention import Retention

_NICE = 10
_PERIOD_S = 10.0


class Housekeeper:
    """Keeps the dump set within its limits. make_room() may be called by the writer."""

    def __init__(self, directory: Path, label: str, log: Any) -> None:
        self.retention = Retention(directory, label, log)
        self._compressor = Compressor(directory, self.retention, log)
        self._log = log
        self._look = threading.Event()
        self._ended = False
        self._workers = [
            Worker("retention", self._retain, log),
            Worker("compression", self._compress, log),
        ]

    def apply(self, settings: Settings) -> None:
        """Take limits and level over."""
        self.retention.max_total_size = settings.max_total_size
        self.retention.max_age_ns = settings.max_age
        self._compressor.level = settings.compress

    @property
    def deleted(self) -> int:
        """Segments deleted by this daemon."""
        return self.retention.deleted

    @property
    def restarts(self) -> int:
        """Times that a thread of it had to be started again."""
        return sum(worker.restarts for worker in self._workers)

    def start(self) -> None:
        """Begin with what an earlier run left."""
        for name in self.retention.scan():
            if self._compressor.level:
                self._compressor.offer(name)
        for worker in self._workers:
            worker.start()
        self._look.set()

    def sealed(self, name: str, number: int) -> None:
        """A segment was sealed."""
        self.retention.sealed(name, number)
        self._compressor.offer(name)
        self._look.set()

    def make_room(self) -> Remark | None:
        """The disk is full: delete the oldest segment and say so."""
        return self.retention.make_room()

    def watch(self) -> None:
        """Start again what has died."""
        for worker in self._workers:
            worker.watch()

    def stop(self, patience_s: float) -> None:
        """End; a compression that takes longer is left to the next start."""
        self._compressor.finish()
        self._workers[1].join(patience_s)
        self._compressor.hurry()
        self._ended = True
        self._look.set()
        for worker in self._workers:
            worker.join(5)
        try:
            self.retention.retain()
        except OSError as error:
            self._log.error("retention-failed", error=error.strerror)

    def _retain(self) -> None:
        sysio.name_thread("hmb-retention")
        while not self._ended:
            self._look.wait(_PERIOD_S)
            self._look.clear()
            try:
                self.retention.retain()
            except OSError as error:
                self._log.error("retention-failed", error=error.strerror)

    def _compress(self) -> None:
        sysio.name_thread("hmb-compress")
        sysio.prefer_thread(_NICE)
        self._compressor.run()

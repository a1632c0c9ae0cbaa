# SPDX-License-Identifier: Apache-2.0
"""Threads beside the capture: watched, and restarted when they die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_FIRST_S = 1.0
_MAX_S = 60.0


class Worker:
    """A thread that runs a body until it returns; one that dies is started again.

    Args:
        name: of the thread, for people.
        body: may be run again at any time; returns when the worker is to end.
    """

    def __init__(self, name: str, body: Callable[[], None], log: Any) -> None:
        self.name = name
        self.restarts = 0
        self._body = body
        self._log = log
        self._thread: threading.Thread | None = None
        self._ended = False
        self._failed_at = 0.0
        self._delay = _FIRST_S

    @property
    def alive(self) -> bool:
        """Whether it runs at this moment."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start it; where the system has no thread now, watch() tries again."""
        try:
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            thread.start()
        except (RuntimeError, OSError) as error:
            self._failed(error)
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            self._body()
            self._ended = True
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._failed_at = time.monotonic()
        self._delay = min(self._delay * 2, _MAX_S) if self.restarts else _FIRST_S
        self._log.error(
            "thread-failed",
            thread=self.name,
            error=str(error) or type(error).__name__,
            action=f"starting it again in {self._delay:.0f} s; the capture goes on",
        )

    def watch(self) -> None:
        """Start it again if it has died; called by the main thread now and then."""
        if self.alive or self._ended or time.monotonic() - self._failed_at < self._delay:
            return
        self.restarts += 1
        self.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

# SPDX-License-Identifier: Apache-2.0
"""Logging: structlog on stderr, for people on a terminal, as JSON lines otherwise.

The event names are stable ids; docs/durability.md and the sidecar use the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
from collections import deque
from types import ModuleType
from typing import Any, TextIO


def _import_structlog() -> ModuleType:
    """structlog without rich, which it would load for tracebacks that we never print.

    That is half of the daemon's start-up time and a third of its memory.
    """
    absent: Any = None
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = absent
    try:
        import structlog  # noqa: PLC0415 - has to happen while rich is hidden
    finally:
        if hidden:
            del sys.modules["rich"]
    return structlog


structlog: Any = _import_structlog()
_RECENT = 64
_recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)


def recent() -> list[dict[str, Any]]:
    """The last entries of the log, oldest first, JSON-ready."""
    return list(_recent)


def _remember(logger: Any, method: str, entry: dict[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    _recent.append({k: v if isinstance(v, plain) else str(v) for k, v in entry.items()})
    return entry


class Lines:
    """A log file that may fail or stall: the capture goes on, and the lines lost are counted.

    Whoever reads stderr may leave, stop reading or have a full disk. Threads that move records
    must neither end nor wait because of that.
    """

    _PATIENCE_MS = 100

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._fd = -1
        self._lock = threading.Lock()
        self._lost = 0
        self.lost_total = 0
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._fd = file.fileno() if file else -1

    def write(self, text: str) -> None:
        """One line, or none of it."""
        with self._lock:
            try:
                if self._lost:
                    self._put(f"hmb-trace-daemon: {self._lost} log lines could not be written\n")
                    self._lost = 0
                self._put(text)
            except (OSError, ValueError):  # ValueError: closed
                self._lost += 1
                self.lost_total += 1

    def _put(self, text: str) -> None:
        if self._fd < 0:
            if self._file is not None:
                self._file.write(text)
            return
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[self._write_some(data) :]

    def _write_some(self, data: bytes) -> int:
        """A pipe that is ready takes at least PIPE_BUF bytes without waiting."""
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        if not ready.poll(0 if self._lost else self._PATIENCE_MS):
            raise BlockingIOError
        return os.write(self._fd, data[: select.PIPE_BUF])

    def flush(self) -> None:
        """Nothing is kept back."""
        if self._fd < 0 and self._file is not None:
            self._file.flush()


def set_up(log_format: str, level: str) -> Any:
    """Configure structlog and return the daemon's logger.

    Args:
        log_format: "auto", "console" or "json".
        level: "debug", "info", "warning" or "error".
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    console = log_format == "console" or (log_format == "auto" and terminal)
    colours = terminal and "NO_COLOR" not in os.environ
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=24)
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _remember,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=Lines(sys.stderr)),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()

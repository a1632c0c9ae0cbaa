# SPDX-License-Identifier: Apache-2.0
"""Logging: structlog on stderr, for people on a terminal, as JSON lines otherwise.

The event names are stable ids; docs/durability.md and the sidecar use the same.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from types import ModuleType
from typing import Any


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


def set_up(log_format: str, level: str) -> Any:
    """Configure structlog and return the daemon's logger.

    Args:
        log_format: "auto", "console" or "json".
        level: "debug", "info", "warning" or "error".
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
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
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()

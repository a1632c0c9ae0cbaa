# SPDX-License-Identifier: Apache-2.0
"""Logging: structlog on stderr, for people on a terminal, as JSON lines otherwise.

The event names are stable ids; docs/durability.md and the sidecar use the same.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def set_up(log_format: str, level: str) -> Any:
    """Configure structlog and return the daemon's logger.

    Args:
        log_format: "auto", "console" or "json".
        level: "debug", "info", "warning" or "error".
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()

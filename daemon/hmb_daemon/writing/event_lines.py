# SPDX-License-Identifier: Apache-2.0
"""Journal events as log lines: stable ids, never more than a few a second of a kind."""

from __future__ import annotations

import time
from typing import Any

from hmb_daemon.spool.journal import Event
from hmb_trace._core import lib
from hmb_trace.dumps.rejects import REASONS

_PER_SECOND = 5
_QUIET = frozenset({lib.HMB_EV_INDEX, lib.HMB_EV_CLOCK, lib.HMB_EV_STATE, lib.HMB_EV_EPOCH})
_INFO = frozenset({lib.HMB_EV_FROZEN, lib.HMB_EV_UNFROZEN, lib.HMB_EV_RESERVED_SET})


class EventLogger:
    """Logs events; what a second has too many of is counted in the next line of its kind."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._second = 0
        self._logged: dict[int, int] = {}
        self._suppressed: dict[int, int] = {}

    def log(self, event: Event) -> None:
        """Log one event, if its kind is worth a line and not too frequent."""
        if event.kind in _QUIET:
            return
        self._turn_second()
        seen = self._logged[event.kind] = self._logged.get(event.kind, 0) + 1
        if seen > _PER_SECOND:
            self._suppressed[event.kind] = self._suppressed.get(event.kind, 0) + 1
            return
        fields: dict[str, Any] = {**event.detail, "epoch": event.epoch, "cursor": event.cursor}
        if event.kind == lib.HMB_EV_REJECT:
            fields.update(reason=REASONS.get(event.reason, event.reason), bytes=len(event.body))
        if event.kind == lib.HMB_EV_OVERFLOW_END and not fields["lost"]:
            fields["lost"] = "unknown (>= 1)"
        suppressed = self._suppressed.pop(event.kind, 0)
        if suppressed:
            fields["suppressed"] = suppressed
        write = self._log.info if event.kind in _INFO else self._log.warning
        write(event.id, **fields)

    def _turn_second(self) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._logged.clear()

# SPDX-License-Identifier: Apache-2.0
"""The collector as the daemon sees it: started, stopped, observed, and nothing else.

Today a thread around the C loop.  A process of its own can take its place behind the same
few calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from hmb_daemon.host import sysio
from hmb_trace._core import ffi, lib
from hmb_trace.errors import InputOutputError

COLLECTOR_NICE = -15
_DRAIN, _NOW = 1, 2
_MS = 10**6
INVALID_NS = 100 * _MS
BATCH_MAX = 256 << 10
_BATCH_MIN = 8 << 10
_INDEX_MAX = 512 << 10
_INDEX_MIN = 4 << 10


class CannotStartError(InputOutputError):
    """The system has no thread for us at this moment."""


class Collector:
    """Ring to spool. Each run ends with one enum hmb_stop, told by a callback.

    Args:
        c: struct hmb_collector, begun or resumed.
        ended: called from the collector's own thread.
    """

    def __init__(self, c: Any, ended: Callable[[int], None]) -> None:
        self.c = c
        self._ended = ended
        self._thread: threading.Thread | None = None

    # -- started and stopped

    @property
    def running(self) -> bool:
        """Whether it collects."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Collect until something is to be decided.

        Raises:
            CannotStartError: no thread is to be had; it may be tried again.
        """
        self.join()
        thread = threading.Thread(target=self._run, name="collector", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise CannotStartError(
                f"cannot start the collector's thread: {error}; raise the limit on tasks "
                "(ulimit -u, TasksMax=, pids.max)"
            ) from error
        self._thread = thread

    def _run(self) -> None:
        sysio.name_thread("hmb-collector")
        sysio.prefer_thread(COLLECTOR_NICE)  # firmware waits for nobody
        sysio.real_time_thread()
        self._ended(int(lib.hmb_collector_run(self.c)))

    def drain(self) -> None:
        """Ask it to end once the head of this moment is reached."""
        self.c.stop = max(int(self.c.stop), _DRAIN)

    def stop(self) -> None:
        """Ask it to end at once."""
        self.c.stop = _NOW

    def allow(self) -> None:
        """Take back what was asked: it may be started again."""
        self.c.stop = 0

    def join(self) -> None:
        """Wait for the end of a run."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """The capture ends, and the collector with it."""
        self.stop()
        self.join()

    @property
    def outlives_us(self) -> bool:
        """Whether it goes on when this daemon ends in order: a service of its own."""
        return False

    def about(self) -> dict[str, Any]:
        """For status and log: what it is."""
        return {"kind": "internal", "pid": os.getpid()}

    def replace(self) -> float:
        """Put a fresh one in its place; seconds without a reader.

        Raises:
            CannotStartError: the one that runs goes on.
        """
        raise CannotStartError("the collector is a thread of this daemon (--collector internal)")

    # -- while it does not run

    def use_ring(self, ring: Any, waits: tuple[int, int] | None = None, *, fd: int = -1) -> None:
        """Go on with another mapping of the ring, or another ring, open as `fd`."""
        self.c.ring = ring
        if waits is not None:
            self.c.latency_ns, self.c.idle_ns = waits

    def new_epoch(self, *, give_up: bool) -> int:
        """hmb_collector_new_epoch()."""
        return int(lib.hmb_collector_new_epoch(self.c, int(give_up)))

    def keep_frozen(self, keep: bool) -> None:
        """Whether FROZEN was told already: then it watches for a change."""
        self.c.keep_frozen = int(keep)

    def finish(self) -> bool:
        """The capture ends: close what is open. False: no room in the journal yet."""
        return not lib.hmb_collector_finish(self.c)

    # -- observed

    @property
    def state(self) -> Any:
        """struct hmb_state."""
        return self.c.state

    @property
    def epoch(self) -> int:
        """Of what is collected now."""
        return int(self.c.state.epoch)

    @property
    def tail(self) -> int:
        """Ring cursor up to which everything was taken."""
        return int(self.c.state.tail)

    @property
    def thawed(self) -> bool:
        """Firmware has cleared FROZEN while it was being watched."""
        return not self.c.state.frozen_seen and not self.c.keep_frozen

    @property
    def error(self) -> int:
        """errno of a store of tail that failed."""
        return -int(self.c.error)


def new_struct(
    ring: Any, spool: Any, *, rotate_size: int, keep_unknown_flags: bool, stop_on_corrupt: bool,
    waits: tuple[int, int], once: bool,
) -> Any:  # fmt: skip
    """A struct hmb_collector for ring and spool, not yet begun or resumed."""
    c = ffi.new("struct hmb_collector *")
    c.ring, c.spool = ring[0], spool[0]
    rotate = rotate_size or 1 << 62
    c.options.index_bytes = min(max(rotate // 16, _INDEX_MIN), _INDEX_MAX)
    c.options.keep_unknown_flags = keep_unknown_flags
    c.options.stop_on_corrupt = stop_on_corrupt
    c.latency_ns, c.idle_ns = waits
    c.invalid_ns = INVALID_NS
    c.batch_bytes = min(max(rotate // 8, _BATCH_MIN), BATCH_MAX)
    c.once = once
    return c

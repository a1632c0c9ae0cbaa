# SPDX-License-Identifier: Apache-2.0
"""Which collector a capture has: a thread, a process of its own, or one that runs already."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from hmb_daemon.collecting.collector import Collector
from hmb_daemon.collecting.process import CollectorProcess, Peer
from hmb_daemon.settings import CollectorKind, Settings
from hmb_daemon.spool import file as spool
from hmb_daemon.spool import locks
from hmb_daemon.spool.file import Spool
from hmb_trace._core import ffi, lib
from hmb_trace.errors import BusyError
from hmb_trace.live.ring import Ring, attach

_END_S = 5.0
_TRY_S = 1.0


@contextlib.contextmanager
def _found(settings: Settings) -> Iterator[Any]:
    """The live page of the collector that runs for this device, or None."""
    directory, _ = spool.place(settings)
    try:
        fd = os.open(
            directory / spool.file_name(settings.device), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:
        yield None
        return
    mapped = ffi.new("struct hmb_spool *")
    mode = lib.HMB_SPOOL_JOIN_COLLECTOR | lib.HMB_SPOOL_JOIN_WRITER
    try:
        size = os.fstat(fd).st_size
        there = locks.is_collected(fd)
        there = there and not lib.hmb_spool_map(mapped, fd, size, 0, 0, ffi.NULL, mode)
        yield lib.hmb_spool_live(mapped) if there else None
    finally:
        lib.hmb_spool_unmap(mapped)
        os.close(fd)


def attach_ring(settings: Settings, log: Any) -> Ring:
    """The ring, for us or for the collector that consumes it already.

    Raises:
        BusyError: somebody consumes it who is no collector of ours.
        HmbTraceError: as attach() says.
    """
    deadline = time.monotonic() + _TRY_S
    while True:
        try:
            return attach(settings.device)
        except BusyError:
            with _found(settings) as live:
                if live is not None and settings.collector is CollectorKind.PROCESS:
                    return attach(settings.device, exclusive=False)
                if live is not None:
                    log.warning(
                        "collector-found",
                        pid=int(live.pid),
                        action="asked to end: this daemon collects itself (--collector internal)",
                    )
                    end(live)
                elif time.monotonic() > deadline:
                    raise
        time.sleep(0.01)  # one that a killed daemon had just started shows itself soon


def end(live: Any) -> None:
    """End a collector: what it took is committed.

    Raises:
        BusyError: it does not end.
    """
    with contextlib.suppress(OSError):
        peer = Peer(int(live.pid), None)
        try:
            os.kill(peer.pid, signal.SIGTERM)
            if not peer.wait(_END_S):
                raise BusyError(
                    f"hmb-trace-collector (pid {peer.pid}) does not end; look at what it waits "
                    "for, then end it with kill -9: what it has committed is kept"
                )
        finally:
            peer.close()


def attach_anew(settings: Settings, opened: Spool) -> Ring:
    """The ring for ourselves, after the collector of this spool has ended.

    Raises:
        BusyError: it does not end.
    """
    end(lib.hmb_spool_live(opened.c))
    deadline = time.monotonic() + _TRY_S
    while True:  # a kernel that still closes what the process had open
        try:
            return attach(settings.device)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def make_collector(
    settings: Settings,
    struct: Any,
    ended: Callable[[int], None],
    *,
    opened: Spool,
    ring: Ring,
    log: Any,
) -> Collector:
    """As --collector says; an adopted one collects already."""
    if settings.collector is CollectorKind.INTERNAL:
        return Collector(struct, ended)
    process = CollectorProcess(
        struct,
        ended,
        spool=opened,
        device=settings.device,
        ring_fd=ring.fd if ring.exclusive else -1,
        log=log,
        more=["--orphan-linger", str(settings.orphan_linger)],
    )
    if opened.collected:
        process.adopt()
        log.info("collector-adopted", **process.about())
    return process

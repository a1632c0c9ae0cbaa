# SPDX-License-Identifier: Apache-2.0
"""The collector as a process of its own, behind the same calls as the thread (collector.py).

The two share the spool file and nothing else.  The daemon may die at any moment: the collector
goes on, and the next daemon finds it by the lock that it holds on the spool.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hmb_daemon.collecting.collector import CannotStartError, Collector
from hmb_trace._core import ffi, lib

PROGRAM = Path(__file__).parent.parent / "hmb-trace-collector"
_S = 10**9
_MS = 10**6
_ASK_NS = 5 * _S  # what it is asked for takes less than a pass
_START_S = 5.0
_END_S = 3.0
_LOOK_NS = 100 * _MS  # between looks whether the process is still there
_TRIES = 5  # restarts in a row of a collector that does not stay


class Peer:
    """The process behind a spool's live page: started by us, or found."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._child = child
        self._fd = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        if self._child is not None:
            return self._child.poll() is None
        return not select.select([self._fd], [], [], 0)[0]

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within the time."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout_s)
            return self._child.poll() is not None
        return bool(select.select([self._fd], [], [], timeout_s)[0])

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Forget it; it lives on if it does."""
        os.close(self._fd)


class CollectorProcess(Collector):
    """Ring to spool in another process.

    Args:
        c: struct hmb_collector with the options; begun or resumed in the spool's commits.
        ended: called with an enum hmb_stop, from a thread of its own.
        spool: mapped, with its `fd`.
        ring_fd: handed to the process; -1 where an adopted one holds the ring.
        more: further words of the command line.
    """

    def __init__(
        self,
        c: Any,
        ended: Callable[[int], None],
        *,
        spool: Any,
        device: str,
        ring_fd: int,
        log: Any,
        more: Sequence[str] = (),
    ) -> None:
        super().__init__(c, ended)
        self._options = c
        self._spool = spool
        self._device = device
        self._ring_fd = ring_fd
        self._log = log
        self._more = list(more)
        self._live = lib.hmb_spool_live(spool.c)
        self._peer: Peer | None = None
        self._watcher: threading.Thread | None = None
        self._closing = threading.Event()
        self._replacing = threading.Lock()  # no death is noticed while one takes over from another
        self._told = True  # the end of the last run was reported
        self.adopted = False
        self.restarts = 0

    # -- the process

    def adopt(self) -> bool:
        """Go on with the collector that runs on the spool already.

        Returns:
            False where it speaks another version: it has to make room first.
        """
        if self._live.layout != lib.hmb_live_layout():
            return False
        self._peer = Peer(int(self._live.pid), None)
        self.c = ffi.addressof(self._live.shown)
        self.adopted = True
        self._told = False
        return True

    def _command(self, *more: str) -> list[str]:
        o = self._options
        words = [
            *(str(PROGRAM), "--device", self._device),
            *("--spool-dir", str(self._spool.path.parent), "--spool-name", self._spool.name),
            *("--identity", self._spool.identity),
            *("--index-bytes", str(o.options.index_bytes), "--batch-bytes", str(o.batch_bytes)),
            *("--latency", str(o.latency_ns), "--idle", str(o.idle_ns)),
            *(["--keep-unknown-flags"] if o.options.keep_unknown_flags else []),
            *(["--stop-on-corrupt"] if o.options.stop_on_corrupt else []),
            *(["--once"] if o.once else []),
            *(["--ring-fd", str(self._ring_fd)] if self._ring_fd >= 0 else []),
        ]
        return [*words, *self._more, *more]

    def _spawn(self, *more: str) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command(*more),
                pass_fds=[self._ring_fd] if self._ring_fd >= 0 else [],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the daemon, which then asks it to end
            )
        except OSError as error:
            raise CannotStartError(f"cannot start {PROGRAM}: {error.strerror}") from error

    def _begin(self, *more: str) -> None:
        """Start a process and wait until it has mapped everything.

        Raises:
            CannotStartError: it ended at once; it has said why.
        """
        self._live.state = lib.HMB_LIVE_NOBODY
        child = self._spawn(*more)
        deadline = time.monotonic() + _START_S
        while self._live.state == lib.HMB_LIVE_NOBODY:
            lib.hmb_live_wait(self._state_word, lib.HMB_LIVE_NOBODY, 5 * _MS)
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                raise CannotStartError(
                    f"hmb-trace-collector did not start (exit {child.returncode}); see the line "
                    "before this one, or give --collector internal"
                )
        self._peer = Peer(child.pid, child)
        self.c = ffi.addressof(self._live.shown)

    @property
    def _state_word(self) -> Any:
        return ffi.addressof(self._live, "state")

    def _ask(self, request: int, argument: int = 0) -> int:
        if self._peer is None:
            return -errno.ESRCH
        return int(lib.hmb_live_ask(self._live, request, argument, _ASK_NS))

    # -- started and stopped

    @property
    def running(self) -> bool:
        """Whether it collects."""
        return self._peer is not None and not self._told

    def start(self) -> None:
        """Collect until something is to be decided.

        Raises:
            CannotStartError: no process is to be had; it may be tried again.
        """
        if self.adopted and self._live.state == lib.HMB_LIVE_RUNNING and not self._told:
            if bool(self._live.shown.once) == bool(self._options.once):
                self._watch()
                return
            self._told = True  # the end that comes now is ours
            self._ask(lib.HMB_LIVE_STOP)
            lib.hmb_live_wait(self._state_word, lib.HMB_LIVE_RUNNING, _ASK_NS)
        if self._peer is None:
            self._begin("--resume", "--paused")
        self._live.once, self._live.keep_frozen = self._options.once, self._options.keep_frozen
        self._live.latency_ns = self._options.latency_ns
        self._live.idle_ns = self._options.idle_ns
        self._told = False
        if result := self._ask(lib.HMB_LIVE_START):
            self._told = True
            raise CannotStartError(f"the collector does not start: {os.strerror(-result)}")
        self._watch()

    def drain(self) -> None:
        """Ask it to end once the head of this moment is reached."""
        if self.outlives_us:
            self._told = True
            return
        self._ask(lib.HMB_LIVE_DRAIN)

    def stop(self) -> None:
        """Ask it to end at once."""
        if self.outlives_us:
            return
        self._ask(lib.HMB_LIVE_STOP)

    @property
    def outlives_us(self) -> bool:
        """Whether it goes on when this daemon ends in order: a service of its own."""
        return self.adopted and not self._live.linger_ns

    def about(self) -> dict[str, Any]:
        """For status and log: what it is."""
        live = self._live
        heartbeat = time.monotonic_ns() - int(live.heartbeat_ns)
        return {
            "kind": "process",
            "pid": int(live.pid),
            "version": ffi.string(live.program).decode(errors="replace"),
            "adopted": self.adopted,
            "outlives_daemon": self.outlives_us,
            "started_ns": int(live.started_ns),
            "heartbeat_age_ms": round(heartbeat / _MS),
            "restarts": self.restarts,
        }

    def allow(self) -> None:
        """Nothing to take back: every start begins anew."""

    def join(self) -> None:
        """Wait for the end of a run."""
        while self.running and self._peer is not None and self._peer.alive:
            if self._live.state != lib.HMB_LIVE_RUNNING:
                self._told = True
                return
            lib.hmb_live_wait(self._state_word, lib.HMB_LIVE_RUNNING, _LOOK_NS)
        self._told = True

    def close(self) -> None:
        """End the process: what it took is committed."""
        stays = self.outlives_us
        self._closing.set()
        peer, self._peer = self._peer, None
        if peer is not None and not stays:
            lib.hmb_live_ask(self._live, lib.HMB_LIVE_EXIT, 0, _S)
            if not peer.wait(_END_S):
                peer.kill()
                peer.wait(_END_S)
            peer.close()
        self._fall_back()
        if self._watcher is not None:
            self._watcher.join()

    # -- watched

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._look_on, name="watch", daemon=True)
            self._watcher.start()

    def _look_on(self) -> None:
        while not self._closing.is_set():
            state = lib.hmb_live_wait(self._state_word, lib.HMB_LIVE_RUNNING, _LOOK_NS)
            with self._replacing:
                if self._closing.is_set():
                    return
                state = int(self._live.state)  # another process may have begun meanwhile
                if state == lib.HMB_LIVE_PAUSED and not self._told:
                    self._told = True
                    self._ended(int(self._live.code))
                elif self._peer is not None and not self._peer.alive:
                    self._replace_dead()
            if state != lib.HMB_LIVE_RUNNING:
                self._closing.wait(0.01)

    def _replace_dead(self) -> None:
        """It was killed: what it committed stands, and exactly once holds for the next one."""
        assert self._peer is not None
        self._peer.close()
        self._peer = None
        self._fall_back()
        if self._told and self._live.state != lib.HMB_LIVE_RUNNING:
            return  # nothing was being collected: the next start() starts one
        self.restarts += 1
        self._log.error("collector-died", restarts=self.restarts, action="started again")
        for attempt in range(_TRIES):
            try:
                self._begin()
            except CannotStartError as error:
                self._log.error("collector-not-started", error=str(error))
                if self._closing.wait(0.05 * 2**attempt):
                    return
            else:
                self._told = False
                return
        self.c.error = -errno.ECHILD
        self._told = True
        self._ended(int(lib.HMB_STOP_DEVICE))

    def replace(self) -> float:
        """Put a fresh process in the place of the one that runs; seconds without a reader.

        Raises:
            CannotStartError: the one that runs goes on.
        """
        with self._replacing:
            old = self._peer
            if old is None or self._live.state != lib.HMB_LIVE_RUNNING:
                raise CannotStartError("nothing is being collected at this moment")
            self._live.next_pid = 0
            child = self._spawn("--take-over")
            self._await_successor(child)
            if result := self._ask(lib.HMB_LIVE_HAND_OVER):
                child.kill()
                child.wait()
                raise CannotStartError(f"the collector does not make room: {os.strerror(-result)}")
            self._await_taken(child)
            old.wait(_END_S)
            old.close()
            self._peer = Peer(child.pid, child)
            self.adopted = False
            return max(0, int(self._live.taken_ns) - int(self._live.handed_ns)) / 1e9

    def _await_successor(self, child: subprocess.Popen[bytes]) -> None:
        word = ffi.addressof(self._live, "next_pid")
        deadline = time.monotonic() + _START_S
        while self._live.next_pid != child.pid:
            lib.hmb_live_wait(word, self._live.next_pid, 2 * _MS)
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                raise CannotStartError("the new collector did not start; the old one goes on")

    def _await_taken(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while not (self._live.pid == child.pid and self._live.state == lib.HMB_LIVE_RUNNING):
            if child.poll() is not None or time.monotonic() > deadline:
                break  # noticed as a death by the watcher
            time.sleep(0.0005)

    # -- while it does not run

    def use_ring(self, ring: Any, waits: tuple[int, int] | None = None, *, fd: int = -1) -> None:
        """Go on with another mapping of the ring; another ring needs another process."""
        if waits is not None:
            self._options.latency_ns, self._options.idle_ns = waits
        if ring.base != self._options.ring.base:
            self._leave()
            self._ring_fd = fd
        self._options.ring = ring

    def _leave(self) -> None:
        peer, self._peer = self._peer, None
        self._told = True
        if peer is None:
            return
        lib.hmb_live_ask(self._live, lib.HMB_LIVE_EXIT, 0, _S)
        if not peer.wait(_END_S):
            peer.kill()
            peer.wait(_END_S)
        peer.close()
        self._fall_back()

    def _fall_back(self) -> None:
        """No process shows its numbers: the last commit has them."""
        self._options.state = self._spool.read_commit().state
        self.c = self._options

    def new_epoch(self, *, give_up: bool) -> int:
        """hmb_collector_new_epoch(), over there."""
        if self._peer is None:
            self._begin("--resume", "--paused")
        if not give_up and self._ask(lib.HMB_LIVE_REATTACH):
            return -errno.EILSEQ
        return self._ask(lib.HMB_LIVE_NEW_EPOCH, int(give_up))

    def keep_frozen(self, keep: bool) -> None:
        """Whether FROZEN was told already: then it watches for a change."""
        self._options.keep_frozen = int(keep)

    def finish(self) -> bool:
        """The capture ends: close what is open. False: no room in the journal yet."""
        if self._peer is None or self.outlives_us:
            return True
        return self._ask(lib.HMB_LIVE_FINISH) != -errno.ENOSPC

    @property
    def thawed(self) -> bool:
        """Firmware has cleared FROZEN while it was being watched."""
        return not self.c.state.frozen_seen and not self.c.keep_frozen

# SPDX-License-Identifier: Apache-2.0
"""The main thread: attaches, decides at every change of state, ends in order.

States: attaching, running, frozen, waiting (for a re-initialisation),
disconnected (no device there), stopping.  An overflow episode is a condition
inside running.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hmb_daemon import capture, damaged, describe, failures, log, orphans, output, signals, waiting
from hmb_daemon.causes import Cause, Note
from hmb_daemon.config import LOG_LEVELS, RELOADABLE, Settings
from hmb_daemon.controlsocket import ControlSocket
from hmb_daemon.events import counters_bytes, counters_delta
from hmb_daemon.housekeeping import Housekeeper
from hmb_daemon.notify import Notifier
from hmb_daemon.orders import Request, WriterOptions
from hmb_daemon.patience import GiveUpError
from hmb_daemon.reconnect import Reconnector
from hmb_daemon.signals import Signals, Waker
from hmb_daemon.status import announcement, collector_status, summary, writer_status
from hmb_daemon.writer import Writer
from hmb_trace._core import lib
from hmb_trace.errors import (
    HmbTraceError,
    InputOutputError,
    InvalidDataError,
    NoInputError,
)
from hmb_trace.ring import Ring, attach, invalid_cursors

_TICK_S = 1.0
_WAITING_TICK_S = 0.02
_GRACE_S = 3.0  # a stop waits so long for a disk in trouble
_COMPRESS_PATIENCE_S = 30.0
_STUCK_S = 2.0  # after giving up, a writer that hangs in a write is left behind
_NOTED = {
    "running": Note.RUNNING,
    "frozen": Note.FROZEN,
    "waiting": Note.WAITING,
    "disconnected": Note.DISCONNECTED,
}


class Daemon:
    """One capture, from attach to summary.

    Args:
        settings: checked.
        reload: reads the configuration again (SIGHUP).
    """

    def __init__(self, settings: Settings, *, reload: Callable[[], Settings]) -> None:
        self._settings = settings
        self._reload = reload
        self.log = log.set_up(settings.log_format, settings.log_level)
        self._notifier = Notifier()
        self._selector = selectors.DefaultSelector()
        self._ended: deque[int] = deque()
        self._state = "attaching"
        self._cause = Cause.STOP
        self._error: HmbTraceError | None = None
        self._stopping = False
        self._replaced = False
        self._looked_at = 0.0
        self._stop_asked_at = 0.0
        self._gave_up_at: float | None = None
        self._started = time.monotonic()
        self._reconnector: Reconnector | None = None
        self._control: ControlSocket | None = None
        self._cleanup = contextlib.ExitStack()

    # -- life

    def run(self) -> int:
        """Capture until told to stop; the exit code.

        Raises:
            HmbTraceError: what kept it from starting, or ended it.
        """
        with contextlib.suppress(waiting.WaitEndedError), self._cleanup:
            self._waker = Waker(self._selector, self._cleanup)
            self._cleanup.callback(self._selector.close)
            self._signals = Signals(self._selector, self._on_signal, self._cleanup)
            self._attach()
            self._start()
            self._loop()
            self._finish()
        if self._error is not None:
            raise self._error
        return 0

    def _attach(self) -> None:
        settings = self._settings
        self._ring = self._attach_ring()
        self._cleanup.callback(self._close_ring)
        self._options = self._open_output()
        self._origin = self._describe_ring()
        opener = capture.Opener(settings, self._ring, self._options, self.log)
        self._spool, self._collector = opener.open()
        self._manifest_for = opener.manifest_for
        self._manifest = self._spool.manifest()
        # Until something was collected a fresh spool holds nothing that anybody would miss.
        self._spool_done = not opener.resumed
        self._cleanup.callback(self._close_spool)
        self._cleanup.callback(capture.Populator(self._spool).stop)
        self._counters_before = opener.counters_before
        self._recover_orphans(opener.resumed)

    def _describe_ring(self) -> describe.Origin:
        return describe.Origin(
            label=self._options.prefix,
            device=capture.device_of(self._ring),
            ring_size=int(self._ring.c.ring_size),
        )

    def _attach_ring(self) -> Ring:
        if self._settings.wait:
            looking = waiting.Waiting(self._signals, self._notifier, self.log)
            return looking.attach(self._settings.device, self._finish_without_ring)
        try:
            return attach(self._settings.device)
        except NoInputError:
            self._finish_without_ring()
            raise

    def _finish_without_ring(self) -> None:
        """Its records may still be in a spool: those are sealed before we say no."""
        capture.finish_without_ring(self._settings, self._open_output, self.log)

    def _open_output(self) -> WriterOptions:
        """A FIFO may wait for its reader here: a signal ends that, nothing was begun yet."""
        with self._signals.interrupting():
            return output.writer_options(self._settings)

    def _close_ring(self) -> None:
        self._ring.close()  # the ring of now: a reconnect may have replaced it

    def _close_spool(self) -> None:
        self._spool.close(remove=self._spool_done)

    def _recover_orphans(self, resumed: bool) -> None:
        options = self._options
        if options.single and not resumed:
            output.refuse_unfinished(options.directory / options.single)
        if options.pipe_fd >= 0 or options.single:
            return
        keep = self._spool.read_writer().name
        untold = damaged.is_untold(self._spool.path)
        last_seq = orphans.recover(
            options.directory,
            options.prefix,
            self._origin,
            self.log,
            keep=keep,
            cause=Cause.SPOOL_DAMAGED if untold else Cause.HOST_DIED,
        )
        if last_seq is not None and not resumed and not self._collector.state.have_seq:
            capture.continue_sequence(self._collector, self._spool, last_seq)

    def _start(self) -> None:
        settings = self._settings
        self._housekeeper = Housekeeper(self._options.directory, self._options.prefix, self.log)
        self._apply_housekeeping()
        self._has_set = self._options.pipe_fd < 0 and not self._options.single
        if self._has_set:
            self._housekeeper.start()
        self._writer = Writer(
            self._spool,
            self._options,
            capture.origins_of(self._manifest, self._origin),
            self.log,
            sealed=lambda name, side: self._housekeeper.sealed(name),
            make_room=self._housekeeper.make_room if self._has_set else lambda: False,
            changed=self._waker.wake,
        )
        self._thread = capture.CollectorThread(self._collector, self._collector_ended)
        if settings.control:
            self._control = ControlSocket(settings.control, self._selector, self._answer)
            self._cleanup.callback(self._control.close)
        if settings.metrics:
            from hmb_daemon.metrics import serve  # noqa: PLC0415 - only where asked for

            self._cleanup.callback(serve(settings.metrics, self.status, settings.device))
        self._spool_done = False
        damaged.tell(self._spool, self._collector, self.log)
        self._cleanup.callback(self._halt)
        self._writer.start()
        self._thread.start()
        self._announce()

    def _announce(self) -> None:
        said = announcement(self._collector, self._spool)
        self.log.info("attached", device=self._settings.device, **said)
        self._set_state("running")
        self._notifier.ready(f"draining {self._settings.device}")

    def _halt(self) -> None:
        """Before ring and spool are unmapped, however it ended: nobody may still use them."""
        self._collector.stop = 2
        self._writer.patience.give_up.set()
        self._thread.join()
        if self._writer.is_alive() and not self._stuck():
            self._writer.request(Request(self._cause, last=True))
            self._writer.join(_STUCK_S)
        if self._writer.is_alive():
            self._spool.abandon()

    def _set_state(self, state: str, **fields: Any) -> None:
        if state != self._state:
            self.log.info("state", state=state, before=self._state, **fields)
            if self._state != "attaching" and state in _NOTED:
                self._writer.note(_NOTED[state])
            self._state = state

    # -- the loop

    def _loop(self) -> None:
        deadline = None
        if self._settings.duration is not None:
            deadline = time.monotonic() + self._settings.duration / 1e9
        while True:
            for key, _ in self._selector.select(self._timeout(deadline)):
                key.data()
            while self._ended:
                self._on_stop(self._ended.popleft())
            if self._reconnector is not None:
                self._try_reconnect()
            else:
                self._watch_name()
            if deadline is not None and time.monotonic() >= deadline and not self._stopping:
                self._ask_stop(Cause.DURATION)
            if not self._writer.is_alive():
                self._writer_failed()
            if self._stopping and not self._thread.running and not self._ended:
                return
            self._check_grace()
            self._notifier.ping()

    def _timeout(self, deadline: float | None) -> float:
        timeout = _TICK_S if self._reconnector is None else _WAITING_TICK_S
        if self._stopping:
            timeout = min(timeout, 0.1)
        if self._notifier.watchdog_s:
            timeout = min(timeout, self._notifier.watchdog_s)
        if deadline is not None and not self._stopping:
            timeout = min(timeout, max(0.0, deadline - time.monotonic()))
        return timeout

    def _collector_ended(self, code: int) -> None:
        self._ended.append(code)
        self._waker.wake()

    # -- signals

    def _on_signal(self, number: int) -> None:
        self.log.info("signal", name=signal.Signals(number).name)
        if number in signals.ENDING:
            if self._stopping:
                self._give_up()
            self._ask_stop(Cause.STOP)
        elif number == signal.SIGUSR1:
            self._writer.request(Request(Cause.ROTATE_REQUEST))
        elif number == signal.SIGUSR2:
            self._writer.request(Request(Cause.SNAPSHOT))
        elif number == signal.SIGHUP:
            self._do_reload()

    def _do_reload(self) -> None:
        self._notifier.reloading()
        try:
            fresh = self._reload()
        except Exception as error:  # whatever is wrong with the files, the capture goes on
            self.log.error("reload-failed", error=str(error))
        else:
            self._take_over(fresh)
        self._notifier.ready(f"draining {self._settings.device}")

    def _take_over(self, fresh: Settings) -> None:
        changed = self._settings.take_over(fresh)
        if "log_level" in changed:
            self.log = log.set_up(self._settings.log_format, self._settings.log_level)
        if not self._options.single:
            output.apply(self._settings, self._options)
        self._apply_housekeeping()
        later = sorted(set(changed) - RELOADABLE)
        self.log.info("reloaded", changed=sorted(changed), need_restart=later)

    def _apply_housekeeping(self) -> None:
        keeper, settings = self._housekeeper, self._settings
        keeper.max_total_size = settings.max_total_size
        keeper.max_age_ns, keeper.level = settings.max_age, settings.compress

    # -- stopping

    def _ask_stop(self, cause: Cause, error: HmbTraceError | None = None) -> None:
        if self._stopping:
            return
        self._stopping, self._cause, self._error = True, cause, error
        self._stop_asked_at = time.monotonic()
        self._reconnector = None
        self._set_state("stopping", cause=cause.text)
        self._notifier.stopping()
        self._collector.stop = 1

    def _check_grace(self) -> None:
        """What takes no data does not hold a stop for ever: the spool keeps the records."""
        stuck_since = self._writer.stuck_since()
        if not self._stopping or stuck_since is None:
            return
        since = max(self._stop_asked_at, stuck_since)
        if time.monotonic() - since >= _GRACE_S:
            self._give_up()

    def _give_up(self) -> None:
        self._collector.stop = 2
        self._writer.patience.give_up.set()
        if self._gave_up_at is None:
            self._gave_up_at = time.monotonic()

    def _writer_failed(self) -> None:
        """The writer ended before it was asked to."""
        if not self._stopping:
            self._ask_stop(Cause.STOP)
        self._collector.stop = 2

    # -- what the collector came back with

    def _on_stop(self, code: int) -> None:
        self._thread.join()
        if self._replaced and not self._stopping:
            self._replaced, self._collector.stop = False, 0
            self._on_hangup()
            return
        handlers: dict[int, Callable[[], None]] = {
            lib.HMB_STOP_DRAINED: lambda: self._ask_stop(Cause.ONCE),
            lib.HMB_STOP_FROZEN: self._on_frozen,
            lib.HMB_STOP_REINIT: self._on_reinit,
            lib.HMB_STOP_INVALID: self._on_invalid,
            lib.HMB_STOP_CORRUPT: self._on_corrupt,
            lib.HMB_STOP_HANGUP: self._on_hangup,
            lib.HMB_STOP_DEVICE: self._on_device_error,
        }
        handler = handlers.get(code)
        if handler is not None and not (self._stopping and code != lib.HMB_STOP_DEVICE):
            handler()

    def _seal_and(self, cause: Cause, state: str) -> None:
        self._writer.request(Request(cause))
        self._set_state(state)

    def _on_frozen(self) -> None:
        if self._settings.on_frozen == "exit":
            self._ask_stop(Cause.FROZEN)
            return
        self._seal_and(Cause.FROZEN, "frozen")
        self._await_epoch()
        self._collector.keep_frozen = 1
        self._thread.start()

    def _on_reinit(self) -> None:
        if self._settings.once:
            self._await_epoch()
            self._try_reconnect()
            if self._reconnector is not None:
                reason = self._reconnector.reason or invalid_cursors(
                    self._settings.device, self._ring.view()
                )
                self._ask_stop(Cause.REINITIALISED, reason)
            return
        self._set_state("waiting")
        self._await_epoch()

    def _on_invalid(self) -> None:
        if self._settings.once:
            error = invalid_cursors(self._settings.device, self._ring.view())
            self._ask_stop(Cause.INVALID_CURSORS, error)
            return
        self.log.error("cursors-invalid", head=self._ring.view().head, tail=self._ring.view().tail)
        self._new_epoch(give_up=True)

    def _on_corrupt(self) -> None:
        tail = int(self._collector.state.tail)
        self._ask_stop(
            Cause.CORRUPT,
            InvalidDataError(
                f"{self._settings.device}: no valid record at cursor {tail}; stopped by "
                "--on-corrupt stop, tail is untouched"
            ),
        )

    def _on_hangup(self) -> None:
        self.log.warning("device-gone", device=self._settings.device)
        if self._settings.once or self._settings.on_frozen == "exit":
            self._ask_stop(Cause.HANGUP)
            return
        self._seal_and(Cause.HANGUP, "disconnected")
        self._await_epoch(gone=True)

    def _on_device_error(self) -> None:
        code = -int(self._collector.error)
        if code in (errno.ENODEV, errno.ENXIO, errno.EIO) and not self._stopping:
            self._on_hangup()
            return
        text = os.strerror(code) if code > 0 else "unknown error"
        error = InputOutputError(f"{self._settings.device}: cannot store tail: {text}")
        self._ask_stop(Cause.DEVICE_ERROR, error)

    # -- epochs

    def _watch_name(self) -> None:
        """Once a second: a producer that died may have left its ring, and begun another one.

        What the old region still holds is drained before _on_hangup() turns to the new one.
        """
        now = time.monotonic()
        if self._stopping or self._replaced or now - self._looked_at < _TICK_S:
            return
        self._looked_at = now
        if Reconnector(self._ring, self.log).replaced():
            self._replaced = True
            self._collector.stop = 1

    def _await_epoch(self, *, gone: bool = False) -> None:
        self._reconnector = Reconnector(self._ring, self.log, gone=gone)

    def _try_reconnect(self) -> None:
        """Look whether the ring is there again: the same region, or another under its name."""
        looking = self._reconnector
        assert looking is not None
        if self._thread.running:  # frozen, and the collector still watches this region
            if not self._collector.state.frozen_seen and not self._collector.keep_frozen:
                self._reconnector = None
                self._set_state("running")
                return
            replaced = looking.replaced()
            self._show_connection(looking)
            if not replaced:
                return
            self._collector.stop = 2
            self._thread.join()
            self._ended.clear()
            self._collector.stop = 0
        try:
            ring = looking.look()
        except HmbTraceError as error:
            self._ask_stop(Cause.REINITIALISED, error)
            return
        self._show_connection(looking)
        if ring is None:
            return
        if ring is not self._ring:
            self._ring.close()
            self._ring = ring
        self._collector.ring = ring.c[0]
        self._new_epoch(give_up=False)

    def _show_connection(self, looking: Reconnector) -> None:
        if looking.missing:
            self._set_state("disconnected")
        elif self._state == "disconnected":
            self._set_state("waiting")

    def _new_epoch(self, *, give_up: bool) -> None:
        """Go on in a new epoch, or keep waiting for one."""
        result = lib.hmb_collector_new_epoch(self._collector, int(give_up))
        if result == 0:
            self._reconnector = None
            self._collector.keep_frozen = 0
            self._take_over_ring()
            self.log.warning(
                "epoch",
                epoch=int(self._collector.state.epoch),
                tail=int(self._collector.state.tail),
                loss="unknown" if give_up else "none known",
            )
            self._set_state("running")
            self._thread.start()
        elif result == -errno.EILSEQ and self._reconnector is not None:
            if self._reconnector.invalid_too_long() and not self._settings.once:
                self._new_epoch(give_up=True)
        elif result == -int(lib.HMB_STOP_DEVICE):
            self._on_device_error()
        elif self._reconnector is None:
            self._await_epoch()

    def _take_over_ring(self) -> None:
        """The new epoch's ring may be another: a restart must know it, waits go by its size."""
        origin = self._describe_ring()
        origins = self._writer.origins
        origins.change(int(self._collector.state.epoch), origin)
        waits = capture.waits(self._settings, origin.ring_size)
        self._collector.latency_ns, self._collector.idle_ns = waits
        manifest = self._manifest_for(self._ring, origins.since(self._writer.state.epoch))
        if not manifest.fits(self._manifest):
            self._spool.rebind(manifest)
            self._manifest = manifest

    # -- the end

    def _finish(self) -> None:
        self._thread.join()
        while lib.hmb_collector_finish(self._collector) and self._writer.is_alive():
            time.sleep(0.01)
        last = self._writer.request(Request(self._cause, last=True))
        while self._writer.is_alive() and not last.done.wait(0.1):
            for key, _ in self._selector.select(0):
                key.data()
            self._check_grace()
            self._notifier.ping()
            if self._stuck():
                break
        failure = self._end_of_writer()
        self._spool_done = failure is None
        if self._has_set:
            self._housekeeper.stop(_COMPRESS_PATIENCE_S)
        self._summary()
        self._judge(failure)

    def _stuck(self) -> bool:
        """Whether the writer hangs in a write that not even giving up ends."""
        given_up = self._gave_up_at
        return given_up is not None and time.monotonic() - given_up > _STUCK_S

    def _end_of_writer(self) -> BaseException | None:
        if self._stuck() and self._writer.is_alive():
            self._spool.abandon()
            return GiveUpError("the output takes no data")
        self._writer.join()
        return self._writer.failure

    def _judge(self, failure: BaseException | None) -> None:
        if failure is None or (isinstance(failure, HmbTraceError) and self._error):
            return
        if isinstance(failure, BrokenPipeError):
            # Whoever reads a stream decides when it ends: the spool has nobody to keep it for.
            self._spool_done = True
        self._error = failures.of_writer(
            failure,
            target=self._settings.output or self._options.directory,
            spool=self._spool.path,
            undelivered=self._spool.data_head() - self._writer.state.data_tail,
        )

    def _summary(self) -> None:
        status = self.status()
        now = counters_bytes(self._collector.state.counters)
        counters = counters_delta(now, self._counters_before)
        seconds = time.monotonic() - self._started
        self.log.info("summary", **summary(status, counters, seconds), cause=self._cause.text)

    # -- what others may ask

    def status(self) -> dict[str, Any]:
        """One look, JSON-ready."""
        return {
            "state": self._state,
            "device": self._settings.device,
            "label": self._options.prefix,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "output": str(self._options.directory),
            "mode": self._settings.mode,
            **collector_status(self._collector),
            **writer_status(self._writer, self._spool),
            "segments_deleted": self._housekeeper.deleted,
        }

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        actions: dict[str, Callable[[], dict[str, Any] | object]] = {
            "status": lambda: {"status": self.status()},
            "events": lambda: {"events": log.recent()},
            "rotate": lambda: self._writer.request(Request(Cause.ROTATE_REQUEST)),
            "snapshot": lambda: self._writer.request(Request(Cause.SNAPSHOT)),
            "stop": lambda: self._ask_stop(Cause.STOP),
            "reload": self._do_reload,
            "log-level": lambda: self._set_log_level(request.get("level")),
        }
        command = request.get("cmd")
        if not isinstance(command, str) or command not in actions:
            raise ValueError(f"unknown cmd {command!r}, expected one of: {', '.join(actions)}")
        said = actions[command]()
        return {"ok": True, **(said if isinstance(said, dict) else {})}

    def _set_log_level(self, level: object) -> None:
        if level not in LOG_LEVELS:
            raise ValueError(f"level: found {level!r}, expected one of: {', '.join(LOG_LEVELS)}")
        self._settings.log_level = str(level)
        self.log = log.set_up(self._settings.log_format, self._settings.log_level)

# SPDX-License-Identifier: Apache-2.0
"""The main thread: puts the parts of a capture together, serves signals, ends in order.

What happens at a change of the ring is collecting/supervisor.py's, what is written
writing/writer.py's, what an earlier daemon or a dead host left recovery/'s.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hmb_daemon import failures
from hmb_daemon.collecting import choice, waiting
from hmb_daemon.collecting import start as capture
from hmb_daemon.collecting.supervisor import NOTED, Event, State, Supervisor
from hmb_daemon.host import log, signals
from hmb_daemon.host.control_socket import ControlSocket, LaterAnswer
from hmb_daemon.host.notify import Notifier
from hmb_daemon.host.signals import Signals, Waker
from hmb_daemon.host.workers import Worker
from hmb_daemon.recovery import damaged_spool as damaged
from hmb_daemon.recovery import leftover as leftovers
from hmb_daemon.recovery import orphans
from hmb_daemon.settings import RELOADABLE, CollectorKind, LogLevel, Settings
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import Spool
from hmb_daemon.spool.file import place as spool_place
from hmb_daemon.spool.guard import SpoolGuard
from hmb_daemon.spool.journal import counters_bytes, counters_delta
from hmb_daemon.status import announcement, collector_status, summary, writer_status
from hmb_daemon.writing import output
from hmb_daemon.writing.event_log import Remark
from hmb_daemon.writing.housekeeping import Housekeeper
from hmb_daemon.writing.label_lock import LabelLock
from hmb_daemon.writing.requests import Request
from hmb_daemon.writing.retry import GiveUpError
from hmb_daemon.writing.sidecar_builder import Origin
from hmb_daemon.writing.writer import Writer
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.errors import HmbTraceError, NoInputError, from_os_error
from hmb_trace.live.ring import Ring

_TICK_S = 1.0
_WAITING_TICK_S = 0.02
_STOPPING_TICK_S = 0.1
_GRACE_S = 3.0  # a stop waits so long for an output that takes nothing
_SLOW_BYTES = 192 << 10  # in that time; less is as good as nothing
_COMPRESS_PATIENCE_S = 30.0
_STUCK_S = 1.5  # after giving up, a writer that hangs in a write is left behind


class Stopping:
    """How long a stop waits: for an output that takes data as long as it does, else not."""

    def __init__(self) -> None:
        self.asked_at: float | None = None
        self.gave_up_at: float | None = None
        self._progress = (0.0, 0)  # when, and where the writer stood

    def begin(self, position: int) -> None:
        """A stop was asked for."""
        self.asked_at = time.monotonic()
        self._progress = (self.asked_at, position)

    def out_of_patience(self, position: int, stuck_since: float | None) -> bool:
        """Whether the output had its time; `position` grows with what it takes."""
        if self.asked_at is None or self.gave_up_at is not None:
            return False
        now = time.monotonic()
        if stuck_since is not None and now - max(self.asked_at, stuck_since) >= _GRACE_S:
            return True
        since, before = self._progress
        if now - since < _GRACE_S:
            return False
        self._progress = (now, position)
        return position - before < _SLOW_BYTES

    def give_up(self) -> None:
        """No more waiting."""
        if self.gave_up_at is None:
            self.gave_up_at = time.monotonic()

    def is_stuck(self) -> bool:
        """Whether giving up has not helped either."""
        return self.gave_up_at is not None and time.monotonic() - self.gave_up_at > _STUCK_S


class Daemon:
    """One capture, from attach to summary. Also the Host of its supervisor.

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
        self._cause = Cause.STOP
        self._error: HmbTraceError | None = None
        self._stopping = Stopping()
        self._ending_signals = 0
        self._left_in_ring = 0
        self._started = time.monotonic()
        self._control: ControlSocket | None = None
        self._waiting: list[tuple[Request, Callable[[dict[str, Any]], None]]] = []
        self._metrics: Any = None
        self._sealer: orphans.Sealer | None = None
        self._recovery: Worker | None = None
        self._recovery_end = threading.Event()
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
        self._catalog = capture.catalog_copy(self._settings.catalog)
        ring = self._attach_ring()
        self._ring_of_start: Ring | None = ring
        self._cleanup.callback(self._close_ring)
        self._output = self._open_output()
        if self._output.is_set:
            lock = LabelLock(self._output.directory, self._output.prefix, self.log)
            self._label_lock: LabelLock | None = lock
            self._cleanup.callback(lock.close)
        else:
            self._label_lock = None
        self._origin = self._describe_ring(ring)
        opener = capture.Opener(self._settings, ring, self._output, self.log)
        try:
            self._spool, struct = opener.open()
        except capture.CannotAdoptError as error:
            ring = self._ring_of_start = self._end_collector(ring, error.spool)
            opener = capture.Opener(self._settings, ring, self._output, self.log)
            self._spool, struct = opener.open()
        self._manifest_for = opener.manifest_for
        self._manifest = self._spool.manifest()
        # Until something was collected a fresh spool holds nothing that anybody would miss.
        self._spool_done = not opener.resumed
        self._cleanup.callback(self._close_spool)
        if self._settings.collector is CollectorKind.INTERNAL:
            self._cleanup.callback(capture.Populator(self._spool).stop)
        self._counters_before = opener.counters_before
        self._remarks = opener.remarks
        collector = choice.make_collector(
            *(self._settings, struct, self._collector_ended),
            opened=self._spool,
            ring=ring,
            log=self.log,
        )
        self._supervisor = Supervisor(self, self._settings, ring, collector)
        self._collector = collector
        self._adopt_orphans(opener.resumed)

    def _end_collector(self, ring: Ring, opened: Spool) -> Ring:
        """One that cannot be gone on with; what it took is finished like any leftover."""
        self.log.warning("collector-found", action="asked to end: other output, or other version")
        ring.close()
        self._ring_of_start = None
        found = choice.attach_anew(self._settings, opened)
        opened.close(remove=False)
        return found

    def _describe_ring(self, ring: Ring) -> Origin:
        return Origin(
            label=self._output.prefix,
            device=capture.device_of(ring),
            ring_size=int(ring.c.ring_size),
            catalog=self._catalog,
        )

    def _attach_ring(self) -> Ring:
        if self._settings.wait:
            looking = waiting.Waiting(self._signals, self._notifier, self.log)
            return looking.attach(self._attach_once, self._finish_without_ring)
        try:
            return self._attach_once()
        except NoInputError:
            self._finish_without_ring()
            raise

    def _attach_once(self) -> Ring:
        return choice.attach_ring(self._settings, self.log)

    def _finish_without_ring(self) -> None:
        """Its records may still be in a spool: those are sealed before we say no."""
        place = spool_place(self._settings)
        leftovers.finish_without_ring(self._settings, place, self._open_output, self.log)

    def _open_output(self) -> output.Output:
        """A FIFO may wait for its reader here: a signal ends that, nothing was begun yet."""
        with self._signals.interrupting():
            found = output.open_output(self._settings)
        given = self._settings.label
        if given and given != found.prefix:
            self.log.warning("label-changed", given=given, used=found.prefix)
        if not found.is_set:
            self._settings = replace(self._settings, rotate_size=0, rotate_interval=0)
        return found

    def _close_ring(self) -> None:
        supervisor = getattr(self, "_supervisor", None)
        ring = supervisor.ring if supervisor else self._ring_of_start
        if ring is not None:
            ring.close()  # the ring of now: a reconnect may have replaced it

    def _close_spool(self) -> None:
        self._spool.close(remove=self._spool_done)

    def _adopt_orphans(self, resumed: bool) -> None:
        """What a dead host left is locked now, counted on from, and sealed beside the capture."""
        if self._output.single and not resumed:
            output.refuse_unfinished(self._output.directory / self._output.single)
        if not self._output.is_set:
            return
        directory, prefix = self._output.directory, self._output.prefix
        keep = self._spool.read_writer().name
        untold = damaged.is_untold(self._spool.path)
        try:
            found = orphans.adopt(directory, prefix, self.log, keep=keep)
            orphans.sweep(directory, prefix, keep, self.log)
        except OSError as error:
            raise from_os_error(error, f"cannot recover {directory}", creating=True) from error
        cause = Cause.SPOOL_DAMAGED if untold else Cause.HOST_DIED
        self._sealer = orphans.Sealer(
            directory, found, self._origin, cause, self.log, sealed=self._orphan_sealed
        )
        self._cleanup.callback(self._sealer.close)
        if untold and found:
            capture.skip_known(self._collector.c, self._spool, found[-1].fd, found[-1].end)
        last_seq = next((o.last_seq for o in reversed(found) if o.last_seq is not None), None)
        if last_seq is not None and not resumed and not self._collector.state.have_seq:
            capture.continue_sequence(self._collector.c, self._spool, last_seq)
            note = Note.SPOOL_SET_ASIDE if untold else Note.HOST_DIED
            if not untold:
                self._remarks.append(Remark(note, time.time_ns()))

    def _orphan_sealed(self, name: str, number: int) -> None:
        self._housekeeper.sealed(name, number)

    def _start(self) -> None:
        settings = self._settings
        self._housekeeper = Housekeeper(self._output.directory, self._output.prefix, self.log)
        self._housekeeper.apply(settings)
        if self._output.is_set:
            self._housekeeper.start()
        self._writer = Writer(
            self._spool,
            self._output,
            settings,
            leftovers.origins_of(self._manifest, self._origin),
            self.log,
            remarks=self._remarks,
            sealed=self._sealed,
            make_room=self._housekeeper.make_room if self._output.is_set else lambda: None,
            changed=self._waker.wake,
        )
        if settings.control:
            self._control = ControlSocket(settings.control, self._selector, self._answer, self.log)
            self._cleanup.callback(self._control.close)
        if settings.metrics:
            from hmb_daemon.host.metrics import MetricsServer  # noqa: PLC0415 - optional package

            self._metrics = MetricsServer(settings.metrics, self.status, settings.device, self.log)
            self._cleanup.callback(self._metrics.close)
        self._spool_guard = SpoolGuard(self._spool, self.log)
        self._spool_done = False
        damaged.tell(self._spool, self._collector.c, self.log)
        self._cleanup.callback(self._halt)
        self._start_writer()
        self._supervisor.handle(Event.STARTED)
        self._announce()
        if self._sealer is not None and self._sealer.left:
            self._recovery = Worker("recovery", self._seal_orphans, self.log)
            self._recovery.start()

    def _start_writer(self) -> None:
        try:
            self._writer.start()
        except RuntimeError as error:
            raise failures.no_thread(error) from error

    def _seal_orphans(self) -> None:
        assert self._sealer is not None
        self._sealer.run(self._recovery_end.wait)

    def _sealed(self, name: str, side: Sidecar) -> None:
        if self._output.is_set:
            self._housekeeper.sealed(name, side.number)

    def _announce(self) -> None:
        said = announcement(self._collector.c, self._spool)
        self.log.info("attached", device=self._settings.device, **said)
        self._notifier.ready(f"draining {self._settings.device}")

    def _halt(self) -> None:
        """Before ring and spool are unmapped, however it ended: nobody may still use them."""
        self._collector.stop()
        self._writer.retrier.give_up.set()
        self._collector.join()
        self._collector.close()
        if self._writer.is_alive() and not self._stopping.is_stuck():
            self._writer.request(Request(self._cause, last=True))
            self._writer.join(_STUCK_S)
        if self._writer.is_alive():
            self._spool.abandon()
        self._end_recovery(0.0)

    def _end_recovery(self, patience_s: float) -> None:
        if self._recovery is None:
            return
        self._recovery.join(patience_s)
        self._recovery_end.set()
        self._recovery.join(_STUCK_S)

    # -- the supervisor's host

    def seal(self, cause: Cause) -> None:
        """Seal the open segment."""
        self._writer.request(Request(cause))

    def stopping(self, cause: Cause, error: HmbTraceError | None) -> None:
        """The capture ends."""
        self._cause = cause
        self._error = error or self._error
        if self._stopping.asked_at is None:
            self._stopping.begin(self._writer.taken)
            self._notifier.stopping()

    def state_changed(self, before: State, state: State, fields: dict[str, Any]) -> None:
        """For the log and the sidecar."""
        self.log.info("state", state=state.value, before=before.value, **fields)
        if before is not State.ATTACHING and state in NOTED:
            self._writer.note(NOTED[state])

    def ring_taken_over(self, ring: Ring, epoch: int) -> tuple[int, int]:
        """The new epoch's ring may be another: a restart must know it, waits go by its size."""
        origin = self._describe_ring(ring)
        origins = self._writer.origins
        origins.change(epoch, origin)
        manifest = self._manifest_for(ring, origins.since(self._writer.state.epoch))
        if not manifest.fits(self._manifest):
            try:
                self._spool.rebind(manifest)
            except OSError as error:
                # Its directory is away: a kill would lose what it holds, the capture does not.
                self.log.error("spool-vanished", spool=str(self._spool.path), error=error.strerror)
            self._manifest = manifest
        return capture.waits(self._settings, origin.ring_size)

    # -- the loop

    def _loop(self) -> None:
        deadline = None
        if self._settings.duration is not None:
            deadline = time.monotonic() + self._settings.duration / 1e9
        while True:
            for key, _ in self._selector.select(self._timeout(deadline)):
                key.data()
            self._supervisor.tick()
            if deadline is not None and time.monotonic() >= deadline:
                self._ask_stop(Cause.DURATION)
            if not self._writer.is_alive():
                self._writer_failed()
            if self._supervisor.stopped:
                return
            self._watch()
            self._notifier.ping()

    def _watch(self) -> None:
        """Helpers that died, guards that somebody removed, a stop that takes too long."""
        self._check_grace()
        self._answer_waiting()
        self._spool_guard.watch(self._manifest)
        if self._output.is_set and self._supervisor.state is not State.STOPPING:
            self._housekeeper.watch()
        for part in (self._control, self._metrics, self._recovery):
            if part is not None:
                part.watch()
        if self._label_lock is not None:
            self._label_lock.renew()

    def _timeout(self, deadline: float | None) -> float:
        stopping = self._supervisor.state is State.STOPPING
        timeout = _WAITING_TICK_S if self._supervisor.waits_for_ring else _TICK_S
        if stopping:
            timeout = min(timeout, _STOPPING_TICK_S)
        if self._notifier.watchdog_s:
            timeout = min(timeout, self._notifier.watchdog_s)
        if deadline is not None and not stopping:
            timeout = min(timeout, max(0.0, deadline - time.monotonic()))
        return timeout

    def _collector_ended(self, code: int) -> None:
        self._supervisor.ended.append(code)
        self._waker.wake()

    # -- signals

    def _on_signal(self, number: int) -> None:
        self.log.info("signal", name=signal.Signals(number).name)
        if number in signals.ENDING:
            self._on_ending_signal()
        elif number == signal.SIGUSR1:
            self._writer.request(Request(Cause.ROTATE_REQUEST))
        elif number == signal.SIGUSR2:
            self._writer.request(Request(Cause.SNAPSHOT))
        elif number == signal.SIGHUP:
            self._do_reload()

    def _on_ending_signal(self) -> None:
        """The first drains and seals; the second waits for no disk, the third for no ring."""
        self._ending_signals += 1
        if self._ending_signals > 1:
            self._give_up()
        if self._ending_signals > 2:
            self._leave_ring()
        self._ask_stop(Cause.STOP)

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
        changed = self._settings.changed(fresh)
        taken = {name: getattr(fresh, name) for name in changed if name in RELOADABLE}
        if not self._output.is_set:
            taken = {k: v for k, v in taken.items() if not k.startswith("rotate_")}
        self._use(replace(self._settings, **taken))
        later = sorted(set(changed) - RELOADABLE)
        self.log.info("reloaded", changed=sorted(changed), need_restart=later)

    def _use(self, settings: Settings) -> None:
        if settings.log_level is not self._settings.log_level:
            self.log = log.set_up(settings.log_format, settings.log_level)
        self._settings = settings
        self._supervisor.settings = self._writer.settings = settings
        self._housekeeper.apply(settings)

    # -- stopping

    def _ask_stop(self, cause: Cause) -> None:
        self._supervisor.handle(Event.STOP, cause=cause)

    def _check_grace(self) -> None:
        """What takes no data does not hold a stop for ever: the spool keeps the records."""
        where = self._writer.taken + self._writer.sealed_count * _SLOW_BYTES
        if self._stopping.out_of_patience(where, self._writer.stuck_since()):
            self._give_up()

    def _give_up(self) -> None:
        """Do not wait for the disk any more; a full spool cannot take the ring's rest either."""
        self._writer.retrier.give_up.set()
        self._stopping.give_up()
        if self._writer.stuck_since() is not None:
            self._leave_ring()

    def _leave_ring(self) -> None:
        self._collector.stop()

    def _writer_failed(self) -> None:
        """The writer ended before it was asked to."""
        self._ask_stop(Cause.STOP)
        self._leave_ring()

    # -- the end

    def _finish(self) -> None:
        self._collector.join()
        self._left_in_ring = self._unread()
        while not self._collector.finish() and self._writer.is_alive():
            time.sleep(0.01)
        last = self._writer.request(Request(self._cause, last=True))
        while self._writer.is_alive() and not last.done.wait(0.1):
            for key, _ in self._selector.select(0):
                key.data()
            self._check_grace()
            self._notifier.ping()
            if self._stopping.is_stuck():
                break
        failure = self._end_of_writer()
        self._spool_done = failure is None and not self._collector.outlives_us
        self._end_recovery(0.0 if self._ending_signals else _COMPRESS_PATIENCE_S)
        if self._output.is_set:
            self._housekeeper.stop(_COMPRESS_PATIENCE_S)
        self._summary()
        self._judge(failure)

    def _unread(self) -> int:
        view = self._supervisor.ring.view()
        return view.unread if view.valid else 0

    def _end_of_writer(self) -> BaseException | None:
        if self._stopping.is_stuck() and self._writer.is_alive():
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
            target=self._settings.output or self._output.directory,
            spool=self._spool.path if self._spool.has_its_name() else None,
            undelivered=self._spool.data_head() - self._writer.state.data_tail,
        )

    def _summary(self) -> None:
        status = self.status()
        now = counters_bytes(self._collector.state.counters)
        counters = counters_delta(now, self._counters_before)
        seconds = time.monotonic() - self._started
        said = summary(status, counters, seconds)
        if self._left_in_ring:
            said["left_in_ring"] = self._left_in_ring
        self.log.info("summary", **said, cause=self._cause.text)

    # -- what others may ask

    def status(self) -> dict[str, Any]:
        """One look, JSON-ready."""
        parts = (self._housekeeper, self._metrics)
        return {
            "state": self._supervisor.state.value,
            "device": self._settings.device,
            "label": self._output.prefix,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "output": str(self._output.directory),
            "mode": self._settings.mode.value,
            "collector": self._collector.about(),
            **collector_status(self._collector.c),
            **writer_status(self._writer, self._spool),
            "segments_deleted": self._housekeeper.deleted,
            "restarts": sum(part.restarts for part in parts if part is not None),
        }

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        actions: dict[str, Callable[[], dict[str, Any] | object]] = {
            "status": lambda: {"status": self.status()},
            "events": lambda: {"events": log.recent()},
            "rotate": lambda: self._seal_for(Cause.ROTATE_REQUEST, request),
            "snapshot": lambda: self._seal_for(Cause.SNAPSHOT, request),
            "stop": lambda: self._ask_stop(Cause.STOP),
            "reload": self._do_reload,
            "replace-collector": self._replace_collector,
            "log-level": lambda: self._set_log_level(request.get("level")),
        }
        command = request.get("cmd")
        if not isinstance(command, str) or command not in actions:
            raise ValueError(f"unknown cmd {command!r}, expected one of: {', '.join(actions)}")
        said = actions[command]()
        return {"ok": True, **(said if isinstance(said, dict) else {})}

    def _replace_collector(self) -> dict[str, Any]:
        unread_s = self._collector.replace()
        self.log.info("collector-replaced", unread_us=round(unread_s * 1e6))
        return {"unread_s": unread_s, "collector": self._collector.about()}

    def _seal_for(self, cause: Cause, request: dict[str, Any]) -> dict[str, Any]:
        """Seal what is open; with "wait": true the answer names what was sealed, once it is."""
        asked = self._writer.request(Request(cause))
        if request.get("wait") is True:
            raise LaterAnswer(lambda deliver: self._waiting.append((asked, deliver)))
        return {}

    def _answer_waiting(self) -> None:
        done = [waiting for waiting in self._waiting if waiting[0].done.is_set()]
        self._waiting = [waiting for waiting in self._waiting if waiting not in done]
        for asked, deliver in done:
            deliver({"ok": True, "segment": asked.segment or None})

    def _set_log_level(self, level: object) -> None:
        if level not in list(LogLevel):
            raise ValueError(f"level: found {level!r}, expected one of: {', '.join(LogLevel)}")
        self._use(replace(self._settings, log_level=LogLevel(str(level))))

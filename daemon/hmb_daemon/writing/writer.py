# SPDX-License-Identifier: Apache-2.0
"""The writer: from the spool into segments, by commits that survive the process.

Positions are those of the dump stream (spool data) and of the event journal.
A *plan* is a pair of both that belong together, with what had been counted
there: a place up to which the files may be brought, and where a segment may
be cut.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hmb_daemon.host import sysio
from hmb_daemon.host.testpoints import point
from hmb_daemon.recovery import recovery
from hmb_daemon.recovery.recovery import Left
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import Spool, counters_in
from hmb_daemon.spool.journal import Event, counters_bytes, parse
from hmb_daemon.writing import names
from hmb_daemon.writing import sidecar_builder as describe
from hmb_daemon.writing.event_log import EventLogger
from hmb_daemon.writing.options import FSYNC_ALWAYS, FSYNC_NEVER, Request, WriterOptions
from hmb_daemon.writing.planner import Plan, size_cut
from hmb_daemon.writing.retry import Patience
from hmb_daemon.writing.segment import Segment, publish
from hmb_daemon.writing.sidecar_builder import Beginning
from hmb_daemon.writing.sink import BOUNCE, PREFERRED_NICE, PipeSink
from hmb_trace._core import ffi, lib
from hmb_trace.dumps import rejects
from hmb_trace.dumps.sidecar import Sidecar

_MS = 10**6
_S = 10**9
_BATCH_NS = 60 * _MS
_ODD_NS = 100 * _MS
_IDLE_NS = _S
_LOOK_NS = _S  # between looks whether the open segment is still where it belongs

# Without records, these alone are worth a segment; the others wait for the next one.
_WORTH_A_SEGMENT = frozenset(
    {
        lib.HMB_EV_GAP,
        lib.HMB_EV_REJECT,
        lib.HMB_EV_OVERFLOW,
        lib.HMB_EV_OVERFLOW_END,
        lib.HMB_EV_LOSS_BEFORE,
        lib.HMB_EV_LOSS_UNKNOWN,
        lib.HMB_EV_OVERRUN,
    }
)


class Writer(threading.Thread):
    """Writes until a request that is the last. Only run_to_end() or start() use it.

    Args:
        spool: mapped and locked; its commits say where to go on.
        options: may be replaced while it runs; read anew for every segment.
        origins: what every sidecar says about device and label.
        sealed: called with name and sidecar after every seal.
        make_room: deletes the oldest sealed segment; False when there is none.
    """

    def __init__(
        self,
        spool: Spool,
        options: WriterOptions,
        origins: describe.Origins,
        log: Any,
        *,
        sealed: Callable[[str, Sidecar], None] = lambda name, side: None,
        make_room: Callable[[], bool] = lambda: False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self.spool = spool
        self.options = options
        self.origins = origins
        self.state = spool.read_writer()
        self.segment: Segment | None = None
        self.failure: BaseException | None = None
        self.sync_failures = 0
        self.sealed_count = 0
        self.discarded_bytes = 0
        self._log = log
        self._events = EventLogger(log)
        self._sealed = sealed
        self._changed = changed
        self.patience = Patience(
            log, self.note, lambda: self.options.drop_oldest and make_room(), changed
        )
        self._requests: deque[Request] = deque()
        self._notes: deque[tuple[Note, int]] = deque()
        self._wake = ffi.new("uint32_t *")
        self._scanned = self.state.journal_tail
        self._marks: deque[Plan] = deque()
        self._worth = False
        self._odd_since = 0
        self._arrived = 0  # when the bytes came that the last round took
        self._last_sync = time.monotonic_ns()
        self._last_look = 0
        self._opened_at = 0
        sent = self.state.data_tail - self.state.segment_pos
        self._pipe = PipeSink(options.pipe_fd, sent) if options.pipe_fd >= 0 else None

    # -- the control thread's side

    def request(self, request: Request) -> Request:
        """Ask for a seal; `request.done` is set once it has happened."""
        self._requests.append(request)
        self._wake[0] = 1
        return request

    def note(self, note: Note) -> None:
        """Put a note among the events of the segment that is open, or of the next one."""
        self._notes.append((note, time.time_ns()))

    def stuck_since(self) -> float | None:
        """Since when the output takes no data (time.monotonic()); None where it does."""
        if self._pipe:
            return self._pipe.waiting_since
        return self.patience.since if self.patience.trouble is not None else None

    @property
    def taken(self) -> int:
        """Stream position up to which the spool's bytes were taken."""
        sink = self._sink
        return self.state.segment_pos + sink.taken if sink else self.state.data_tail

    @property
    def _sink(self) -> Any:
        return self._pipe or (self.segment.sink if self.segment else None)

    # -- the thread

    def run(self) -> None:
        """Thread body; `failure` holds what ended it early."""
        sysio.name_thread("hmb-writer")
        sysio.prefer_thread(PREFERRED_NICE)
        try:
            self.run_to_end()
        except BaseException as error:
            self.failure = error
        finally:
            self._changed()

    def run_to_end(self) -> None:
        """Recover what a crash left, then write until the last request.

        Raises:
            GiveUpError: patience.give_up was set while the disk took nothing.
            OSError: the output is a stream and nobody reads it.
        """
        try:
            self._recover()
            while not self._work(self._next_request()):
                pass
        finally:
            self._close_files()  # the spool may be unmapped next: nobody copies from it any more

    def _next_request(self) -> Request | None:
        """What is asked for, at once; else None, after waiting for something to write."""
        if not self._requests:
            self._wait()
            self._wake[0] = 0
        return self._requests[0] if self._requests else None

    def _work(self, request: Request | None) -> bool:
        """One round; whether it was the last."""
        snapshot = self._snapshot()
        self._scan(snapshot.journal)
        if self.options.snapshot and request is None and not self.segment:
            self._forget_oldest(snapshot)
            return False
        plan = self._plan(snapshot, request)
        if self._something_for(plan):
            self._advance(plan)
        if plan.cause is not None and self.segment:
            self._seal(plan.cause)
        elif plan.cause is Cause.REINITIALISED:
            self._begin_at(plan)
        self._housekeep()
        if request is None or plan.pos != snapshot.pos or plan.journal != snapshot.journal:
            return False
        self._requests.popleft()
        request.done.set()
        self._changed()
        return request.last

    def _wait(self) -> None:
        want = self._sink.room if self._sink else BOUNCE
        spool, taken = self.spool.c, self.taken
        now = time.monotonic_ns()
        if not self._odd_since:
            timeout = max(1, min(_IDLE_NS, self._next_deadline() - now))
            if not lib.hmb_spool_wait(spool, taken, 1, self._scanned, timeout, self._wake):
                return
            self._arrived = time.monotonic_ns()
            timeout = _BATCH_NS
        else:
            timeout = max(1, self._odd_since + _ODD_NS - now)
        lib.hmb_spool_wait(spool, taken, want, self._scanned, timeout, self._wake)

    def _next_deadline(self) -> int:
        far = time.monotonic_ns() + _IDLE_NS
        if not self.segment:
            return far
        rotate = self.options.rotate_interval
        sync = self.options.fsync
        times = [far]
        if rotate:
            times.append(self._opened_at + rotate)
        if sync > 0 and self.segment.sink.dirty:
            times.append(self._last_sync + sync)
        return min(times)

    # -- planning

    def _snapshot(self) -> Plan:
        commit = self.spool.read_commit()
        counters = counters_bytes(commit.state.counters)
        return Plan(commit.data_head, commit.journal_head, counters, commit.state.epoch)

    def _scan(self, until: int) -> None:
        """Look at new journal events: where may be cut, what is worth a line in the log."""
        if until == self._scanned:
            return
        for event in parse(self.spool.journal(self._scanned, until), self._scanned):
            self._worth |= event.kind in _WORTH_A_SEGMENT
            self._events.log(event)
            if event.kind in (lib.HMB_EV_INDEX, lib.HMB_EV_EPOCH) and event.body:
                cause = Cause.REINITIALISED if event.kind == lib.HMB_EV_EPOCH else None
                mark = Plan(event.pos, event.start, counters_in(event.body), event.epoch, cause)
                self._marks.append(mark)
        self._scanned = until

    def _plan(self, snapshot: Plan, request: Request | None) -> Plan:
        if self.options.single or self._pipe:
            return snapshot._replace(cause=request.cause if request else None)
        epochs = (mark for mark in self._marks if mark.cause is not None)
        end = next(epochs, snapshot)
        limit = self.state.segment_pos + self.options.rotate_size
        if self.options.rotate_size and end.pos > limit:
            return size_cut(self.state, self.taken, self._marks, limit, end)
        if end.cause is None and request:
            return end._replace(cause=request.cause)
        if end.cause is None and self._interval_over():
            return end._replace(cause=Cause.ROTATE_TIME)
        return end

    def _interval_over(self) -> bool:
        interval = self.options.rotate_interval
        if not interval or not self.segment:
            return False
        return time.monotonic_ns() - self._opened_at >= interval

    def _something_for(self, plan: Plan) -> bool:
        waiting = plan.journal - self.state.journal_tail
        if self.segment or self._pipe:
            return plan.pos != self.taken or waiting != 0
        if plan.pos > self.state.data_tail:
            return True
        # Events without records wait for the records after them, as long as there is room.
        crowded = waiting > self.spool.c.journal_size // 4
        asked = plan.cause not in (None, Cause.REINITIALISED)
        return self._worth and waiting > 0 and (asked or crowded)

    # -- data and journal into files

    def _advance(self, plan: Plan) -> None:
        if not self.segment and not self._pipe:
            self._open_segment()
        whole = self._fill_and_flush(plan.pos)
        if self._may_wait(plan) and whole:
            self._odd_since = time.monotonic_ns()  # fresh: it may become a whole buffer as well
        else:
            self._flush_data()
            self._note_odd()
        self._flush_journal(plan)

    def _fill_and_flush(self, end: int) -> bool:
        """Take everything up to `end`, writing whole buffers; whether there was one."""
        sink, whole = self._sink, False
        while (left := end - self.taken) > 0:
            sink.take(self.spool.c, self.taken, min(left, sink.room))
            while not sink.room:
                ahead = min(end - self.taken, BOUNCE)
                if ahead:
                    sink.take_ahead(self.spool.c, self.taken, ahead)
                self._flush_data()
                whole = True
        return whole

    def _may_wait(self, plan: Plan) -> bool:
        """Whether what is in the buffer may stay there for a moment."""
        return plan.cause is None and not self._pipe and not self._requests

    def _note_odd(self) -> None:
        sink = self._sink
        if sink.in_file == sink.taken:
            self._odd_since = 0
        elif not self._odd_since:
            self._odd_since = self._arrived

    def _flush_data(self) -> None:
        self.patience.attempt(self._sink.flush)
        point("data-written")
        self._commit_data()

    def _commit_data(self) -> None:
        sink, state = self._sink, self.state
        if self.segment and self.options.fsync == FSYNC_ALWAYS:
            self._sync()
        state.file_offset = sink.in_file
        state.data_tail = state.segment_pos + sink.in_file
        self.spool.commit_writer(state)
        point("data-committed")

    def _flush_journal(self, plan: Plan) -> None:
        state = self.state
        if self.segment and (plan.journal != state.journal_tail or self._notes):
            found = list(parse(self.spool.journal(state.journal_tail, plan.journal)))
            self._append_log(self.segment, found)
        state.journal_tail = plan.journal
        state.planned, state.planned_counters = plan.pos, plan.counters
        while self._marks and self._marks[0].journal < plan.journal:
            self._marks.popleft()
        self.spool.commit_writer(state)
        point("journal-committed")

    def _append_log(self, segment: Segment, found: list[Event]) -> None:
        log = b"".join(describe.log_entry(event) for event in found) + self._take_notes()
        kept_out = b"".join(
            rejects.pack(event.reason, event.epoch, event.cursor, event.host_ns, event.body)
            for event in found
            if event.kind == lib.HMB_EV_REJECT
        )
        self.patience.attempt(lambda: segment.append_events(log))
        point("events-written")
        if kept_out:
            self.patience.attempt(lambda: segment.append_rejects(kept_out))
            point("rejects-written")
        self.state.events_offset = segment.events_offset
        self.state.rejects_offset = segment.rejects_offset

    def _take_notes(self) -> bytes:
        entries = []
        while self._notes:
            note, host_ns = self._notes.popleft()
            entries.append(describe.note_entry(note, self.taken, host_ns))
        return b"".join(entries)

    def _housekeep(self) -> None:
        """What time alone makes due: the odd page, fsync."""
        segment, now = self.segment, time.monotonic_ns()
        if not segment:
            return
        if self._odd_since and now - self._odd_since >= _ODD_NS:
            self.patience.attempt(segment.sink.flush_odd)
            self._odd_since = 0
            self._commit_data()
        if now - self._last_look >= _LOOK_NS:
            self._last_look = now
            self._restore(segment)
        if 0 < self.options.fsync <= now - self._last_sync and segment.sink.dirty:
            self._sync()

    def _restore(self, segment: Segment) -> None:
        """Somebody may have deleted the open segment, or the directory it lies in."""
        if self.patience.attempt(segment.restore):
            self.note(Note.SEGMENT_RESTORED)
            self._log.error(
                "segment-restored",
                segment=self.state.name,
                found="deleted while it was written",
                action="written again from what was still open; leave .part files alone",
            )

    def _sync(self) -> None:
        """fdatasync; a failure cannot be repaired, only told: the kernel dropped the pages."""
        try:
            if self.segment:
                self.segment.sync()
        except OSError as error:
            self.sync_failures += 1
            self.note(Note.FSYNC_FAILED)
            self._log.error("fsync-failed", error=error.strerror, segment=self.state.name)
        self._last_sync = time.monotonic_ns()

    # -- segments

    def _begin_at(self, plan: Plan) -> None:
        """No records since the last seal: the events that wait go into the new epoch's segment."""
        self.state.epoch = plan.epoch
        while self._marks and self._marks[0].journal <= plan.journal:
            self._marks.popleft()

    def _open_segment(self) -> None:
        state = self.state
        segment = None
        while segment is None:
            self._name_segment()
            segment = self._open_files(fresh=True)  # None: another daemon has this number
        ring_size = self.origins.of(state.epoch).ring_size
        begin = Beginning(state.segment_pos, state.epoch, state.started_ns, ring_size).pack()
        self.patience.attempt(lambda: segment.append_events(begin))
        state.events_offset = segment.events_offset
        self._log.info("segment-open", segment=state.name)

    def _name_segment(self) -> None:
        state = self.state
        state.segment += 1
        state.started_ns = time.time_ns()
        state.name = self._segment_name(state.segment, state.started_ns)
        state.segment_pos = state.planned = state.data_tail
        state.planned_counters = state.base_counters
        state.file_offset = state.events_offset = state.rejects_offset = 0
        state.phase, state.cause = lib.HMB_PHASE_WRITING, 0
        self.spool.commit_writer(state)
        point("segment-named")

    def _segment_name(self, number: int, started_ns: int) -> str:
        single = self.options.single
        if single:
            return single.removesuffix(names.BIN) or single
        return names.segment_name(self.options.prefix, number, started_ns)

    @property
    def suffix(self) -> str:
        """What the sealed file is called after its name: .bin, or the end of --output."""
        single = self.options.single
        return names.BIN if not single or single.endswith(names.BIN) else ""

    def _open_files(self, *, fresh: bool = False) -> Segment | None:
        state, options = self.state, self.options

        def step() -> Segment | None:
            try:
                return Segment(
                    options.directory,
                    state.name,
                    offset=state.file_offset,
                    events_offset=state.events_offset,
                    rejects_offset=state.rejects_offset,
                    direct=options.direct,
                    pwrite=options.pwrite,
                    reserve=options.rotate_size or 1 << 62,
                    suffix=self.suffix,
                    fresh=fresh and not options.single,
                )
            except FileExistsError:
                return None

        self.segment = self.patience.attempt(step)
        self._opened_at = self._last_sync = time.monotonic_ns()
        point("segment-opened")
        return self.segment

    def _seal(self, cause: Cause) -> None:
        segment, state = self.segment, self.state
        assert segment is not None
        self.patience.attempt(segment.sink.flush_odd)
        self._odd_since = 0
        self._restore(segment)
        if self._notes:
            self._append_log(segment, [])
        state.phase, state.cause = lib.HMB_PHASE_SEALING, int(cause)
        self._commit_data()
        point("seal-committed")
        if self.options.fsync != FSYNC_NEVER:
            self.patience.attempt(segment.finish_data)
        else:
            self.patience.attempt(lambda: os.ftruncate(segment.sink.fd, segment.sink.in_file))
        point("seal-data")
        side = describe.sidecar_of(
            state,
            self.suffix,
            self.origins.of(state.epoch),
            cause,
            data_fd=segment.sink.fd,
            events_fd=segment.events_fd,
            xxh3=segment.sink.hash.hexdigest(),
        )
        self._publish(side.encode())
        segment.close()
        self.segment = None
        self._after_seal(side)

    def _publish(self, side: bytes | None) -> None:
        state, directory = self.state, self.options.directory
        has_rejects = state.rejects_offset > 0
        suffix = self.suffix

        def step() -> None:
            if self.segment:
                self.segment.restore()
            publish(directory, state.name, side, rejects=has_rejects, suffix=suffix)

        self.patience.attempt(step)

    def _after_seal(self, side: Sidecar | None) -> None:
        state = self.state
        name = state.name
        state.phase, state.cause, state.name = lib.HMB_PHASE_IDLE, 0, ""
        state.segment_pos = state.data_tail
        state.file_offset = state.events_offset = state.rejects_offset = 0
        state.base_counters = state.planned_counters
        state.epoch = self._epoch_at_tail()
        self._worth = False
        self.spool.commit_writer(state)
        point("seal-done")
        self.sealed_count += 1
        if side is not None:
            self._log.info(
                "segment-sealed",
                segment=side.segment,
                cause=side.cause,
                records=side.records,
                bytes=side.bytes,
                lost=side.lost,
            )
            self._sealed(name, side)

    def _epoch_at_tail(self) -> int:
        """The epoch of what comes next: that of an EPOCH event which waits at the tail."""
        if self._marks and self._marks[0].journal == self.state.journal_tail:
            mark = self._marks[0]
            if mark.cause is not None:
                self._marks.popleft()
                return mark.epoch
        return self.state.epoch

    # -- recovery

    def _recover(self) -> None:
        if self._pipe:
            return
        state, directory = self.state, self.options.directory
        left = recovery.look(state, directory, self.suffix)
        if left is Left.RENAMED:
            self._publish(None)
            self._after_seal(None)
        elif left is Left.VANISHED:
            self._give_up_segment()
        elif left is Left.OPEN:
            self._log.info("segment-resumed", segment=state.name, bytes=state.file_offset)
            self._open_files()
            point("recovered")
            if state.phase == lib.HMB_PHASE_SEALING:
                self._seal(Cause(state.cause))

    def _give_up_segment(self) -> None:
        """Somebody took the open segment away: go on at the next record boundary."""
        state, snapshot = self.state, self._snapshot()
        self._scan(snapshot.journal)
        after = (mark for mark in self._marks if mark.pos >= state.data_tail)
        plan = next(after, snapshot)
        self.note(Note.SEGMENT_VANISHED)
        part = state.name + self.suffix + names.PART
        self._log.error("segment-vanished", segment=part, bytes=plan.pos - state.segment_pos)
        while self._marks and self._marks[0].journal < plan.journal:
            self._marks.popleft()
        recovery.skip(state, plan)
        recovery.drop_events(state, self.options.directory, self.suffix)
        self._after_seal(None)

    # -- flight recorder

    def _forget_oldest(self, snapshot: Plan) -> None:
        """Keep the newest three quarters of the spool; the rest was never asked for."""
        keep = self.spool.data_size * 3 // 4
        journal_keep = self.spool.c.journal_size // 2
        cut = None
        while self._marks and (
            snapshot.pos - self._marks[0].pos > keep
            or snapshot.journal - self._marks[0].journal > journal_keep
        ):
            cut = self._marks.popleft()
        if cut is None:
            return
        state = self.state
        self.discarded_bytes += cut.pos - state.data_tail
        recovery.skip(state, cut)
        state.base_counters = cut.counters
        self.spool.commit_writer(state)

    def _close_files(self) -> None:
        if self.segment:
            with contextlib.suppress(OSError):  # nothing is left to be written
                self.segment.close()
            self.segment = None

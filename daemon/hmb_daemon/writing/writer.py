# SPDX-License-Identifier: Apache-2.0
"""The writer: a thin loop from the spool into segments, by commits that survive the process.

What to do next is planner.py's decision, how it is done open_segment.py's.  This module
waits, looks at what was collected, and carries plans out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hmb_daemon.errors_table import Step
from hmb_daemon.host import sysio
from hmb_daemon.host.testpoints import point
from hmb_daemon.settings import FSYNC_ALWAYS, Mode, Settings
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import Spool
from hmb_daemon.spool.journal import Event, counters_bytes, counters_delta, parse
from hmb_daemon.writing import leftover_segment, segment
from hmb_daemon.writing.event_lines import EventLogger
from hmb_daemon.writing.event_log import Remark
from hmb_daemon.writing.leftover_segment import Left
from hmb_daemon.writing.open_segment import Desk, OpenSegment, fill
from hmb_daemon.writing.output import Output
from hmb_daemon.writing.place import Home
from hmb_daemon.writing.places import (
    EVENTS_WORTH_A_SEGMENT,
    NOTES_WORTH_A_SEGMENT,
    Places,
)
from hmb_daemon.writing.planner import Plan, Standing, Wish, next_plan
from hmb_daemon.writing.requests import Request
from hmb_daemon.writing.retry import FileTooLargeError, Retrier, SegmentLostError
from hmb_daemon.writing.sidecar_builder import Origins
from hmb_daemon.writing.sink import BOUNCE, PREFERRED_NICE, PipeSink
from hmb_trace._core import ffi, lib
from hmb_trace.dumps.sidecar import Sidecar

_MS = 10**6
_S = 10**9
_BATCH_NS = 60 * _MS
_ODD_NS = 100 * _MS
_IDLE_NS = _S
_LOOK_NS = _S  # between looks whether the open segment is still where it belongs
_FAR = 1 << 62


class Writer(threading.Thread):
    """Writes until a request that is the last. Only run_to_end() or start() use it.

    Args:
        spool: mapped and locked; its commits say where to go on.
        output: where the records go.
        settings: may be replaced while it runs.
        origins: what every sidecar says about device and label.
        remarks: what an earlier writer had no segment to say in.
        has_successor: another writer follows, which can say what this one has no segment for.
        sealed: called with name and sidecar after every seal.
        make_room: deletes the oldest sealed segment and says so; None when there is none.
        changed: called when something changed that the control thread looks at.
    """

    def __init__(
        self,
        spool: Spool,
        output: Output,
        settings: Settings,
        origins: Origins,
        log: Any,
        *,
        remarks: Sequence[Remark] = (),
        has_successor: bool = False,
        sealed: Callable[[str, Sidecar], None] = lambda name, side: None,
        make_room: Callable[[], Remark | None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self.spool = spool
        self.output = output
        self.state = spool.read_writer()
        self.segment: OpenSegment | None = None
        self.failure: BaseException | None = None
        self.sync_failures = 0
        self.sealed_count = 0
        self.discarded_bytes = 0
        self._log = log
        self._lines = EventLogger(log)
        self._sealed = sealed
        self._changed = changed
        self._make_room = make_room
        self.retrier = Retrier(log, self.note, self._try_to_make_room, changed)
        self._desk = Desk(
            spool=spool,
            state=self.state,
            output=output,
            home=Home(output.directory),
            settings=settings,
            origins=origins,
            retrier=self.retrier,
            note=self.note,
            log=log,
        )
        self._requests: deque[Request] = deque()
        self.remarks: list[Remark] = list(remarks)
        self._has_successor = has_successor
        self._wake = ffi.new("uint32_t *")
        self._scanned = self.state.journal_tail
        self._marks = Places()
        self._worth = False
        self._last_sealed = ("", "")  # segment, cause
        self._break_waits = False
        self._odd_since = 0
        self._arrived = 0  # when the bytes came that the last round took
        self._last_look = 0
        sent = self.state.data_tail - self.state.segment_pos
        self._pipe = PipeSink(output.pipe_fd, sent) if output.pipe_fd >= 0 else None

    # -- the control thread's side

    @property
    def origins(self) -> Origins:
        """Which ring an epoch came from."""
        return self._desk.origins

    @property
    def settings(self) -> Settings:
        """In force for the next step."""
        return self._desk.settings

    @settings.setter
    def settings(self, fresh: Settings) -> None:
        self._desk.settings = fresh

    def request(self, request: Request) -> Request:
        """Ask for a seal; `request.done` is set once it has happened."""
        self._requests.append(request)
        self._wake[0] = 1
        return request

    def note(self, note: Note) -> None:
        """Put a note among the events of the segment that is open, or of the next one."""
        self.sync_failures += note is Note.FSYNC_FAILED
        self.remark(Remark(note, time.time_ns()))

    def remark(self, remark: Remark) -> None:
        """The same, with what is known about records that are missing."""
        self.remarks.append(remark)

    def stuck_since(self) -> float | None:
        """Since when the output takes no data (time.monotonic()); None where it does."""
        since = [self.retrier.since] if self.retrier.trouble is not None else []
        if self._pipe and self._pipe.waiting_since is not None:
            since.append(self._pipe.waiting_since)
        return min(since, default=None)

    @property
    def taken(self) -> int:
        """Stream position up to which the spool's bytes were taken."""
        sink = self._sink
        return self.state.segment_pos + int(sink.taken) if sink else self.state.data_tail

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
            GiveUpError: retrier.give_up was set while the disk took nothing.
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
        if self.settings.mode is Mode.SNAPSHOT and request is None and not self.segment:
            self._forget_oldest(snapshot)
            return False
        plan = next_plan(
            self._marks, snapshot, self._standing(), self._wish(request), whole=self._is_whole()
        )
        try:
            self._carry_out(plan)
            self._housekeep()
        except FileTooLargeError as error:
            self._end_early(error)
            return False
        except SegmentLostError as error:
            self._lose_segment(str(error))
            return False
        if request is None or plan.pos != snapshot.pos or plan.journal != snapshot.journal:
            return False
        return self._answer(request)

    def _answer(self, request: Request) -> bool:
        self._requests.popleft()
        segment, cause = self._last_sealed
        request.segment = segment if cause == request.cause.text else ""
        self._last_sealed = ("", "")
        request.done.set()
        self._changed()
        return request.last

    def _carry_out(self, plan: Plan) -> None:
        if self._something_for(plan):
            self._advance(plan)
        if plan.cause is not None and self.segment:
            self._seal(plan, plan.cause)
        elif plan.cause is Cause.REINITIALISED:
            self._begin_at(plan)

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
        times = [time.monotonic_ns() + _IDLE_NS]
        if self.segment:
            settings = self.settings
            if settings.rotate_interval:
                times.append(self.segment.opened_at + settings.rotate_interval)
            if settings.fsync > 0 and self.segment.sink.dirty:
                times.append(self.segment.last_sync + settings.fsync)
        return min(times)

    # -- planning

    def _snapshot(self) -> Plan:
        commit = self.spool.read_commit()
        self._break_waits = commit.state.pending.state == lib.HMB_PENDING_WAITS
        counters = counters_bytes(commit.state.counters)
        return Plan(commit.data_head, commit.journal_head, counters, commit.state.epoch)

    def _scan(self, until: int) -> None:
        """Look at new journal events: where may be cut, what is worth a line in the log."""
        if until == self._scanned:
            return
        for event in parse(self.spool.journal(self._scanned, until), self._scanned):
            self._worth |= event.kind in EVENTS_WORTH_A_SEGMENT
            self._lines.log(event)
            self._marks.add_event(event)
        self._scanned = until

    def _is_whole(self) -> bool:
        return bool(self.output.single) or self._pipe is not None

    def _standing(self) -> Standing:
        state = self.state
        here = Plan(state.data_tail, state.journal_tail, state.planned_counters, state.epoch)
        beside = self.segment.bytes_beside if self.segment else 0
        return Standing(here, state.segment_pos, self.taken, beside)

    def _wish(self, request: Request | None) -> Wish:
        interval, over = self.settings.rotate_interval, False
        if interval and self.segment:
            over = time.monotonic_ns() - self.segment.opened_at >= interval
        return Wish(
            rotate_size=self.settings.rotate_size,
            requested=request.cause if request else None,
            interval_over=over,
            break_waits=self._break_waits,
        )

    def _something_for(self, plan: Plan) -> bool:
        waiting = plan.journal - self.state.journal_tail
        if self.segment or self._pipe:
            return plan.pos != self.taken or waiting != 0
        if plan.pos > self.state.data_tail:
            return True
        # Events without records wait for the records after them, as long as there is room.
        crowded = waiting > self._journal_patience()
        asked = plan.cause not in (None, Cause.REINITIALISED)
        told = any(remark.note in NOTES_WORTH_A_SEGMENT for remark in self.remarks)
        if told and asked and not self._has_successor:
            return True
        return self._worth and waiting > 0 and (asked or crowded)

    def _journal_patience(self) -> int:
        quarter = int(self.spool.c.journal_size) // 4
        rotate = self.settings.rotate_size
        return min(quarter, rotate) if rotate else quarter

    # -- data and journal into files

    def _advance(self, plan: Plan) -> None:
        if not self.segment and not self._pipe:
            self.segment = OpenSegment.create(self._desk)
        self._marks.add_end(plan)
        sink, base = self._sink, self.state.segment_pos

        def flush() -> None:
            self._flush(plan)

        whole = fill(sink, self.spool.c, lambda: base + int(sink.taken), plan.pos, flush)
        if self._may_wait(plan) and whole:
            self._odd_since = time.monotonic_ns()  # fresh: it may become a whole buffer as well
            self._settle(plan)
        else:
            flush()
            self._note_odd()

    def _flush(self, plan: Plan) -> None:
        if self._pipe:
            self.retrier.attempt(Step.STREAM, self._pipe.flush)
            point("data-written")
            self._commit_stream(plan)
            return
        assert self.segment is not None
        self.segment.flush()
        self._settle(plan)

    def _settle(self, plan: Plan) -> None:
        """Bring the journal, and the commit, to the last place that the data has reached."""
        if self._pipe or self.segment is None:
            return
        reached = self._pop_places(self.state.segment_pos + self.segment.sink.in_file, plan)
        if reached is not None:
            self._settle_at(reached)
        elif self.settings.fsync == FSYNC_ALWAYS:
            self.segment.sync()

    def _settle_at(self, place: Plan) -> None:
        assert self.segment is not None
        events: list[Event] = []
        start = self.state.journal_tail
        if place.journal != start:
            events = list(parse(self.spool.journal(start, place.journal)))
        self.segment.settle(place, events, self.remarks)

    def _pop_places(self, pos: int, plan: Plan) -> Plan | None:
        """The last place at or before `pos`, inside the plan; an epoch's own mark stays."""
        reached = self._marks.pop_reached(pos, plan)
        return plan if plan.pos <= pos and plan.key > self._standing().here.key else reached

    def _commit_stream(self, plan: Plan) -> None:
        """A stream has no places: what it took is gone, byte by byte."""
        assert self._pipe is not None
        state = self.state
        state.file_offset = self._pipe.in_file
        state.data_tail = state.segment_pos + self._pipe.in_file
        if state.data_tail == plan.pos:
            state.journal_tail, state.planned_counters = plan.journal, plan.counters
            state.planned = plan.pos
            self._pop_places(plan.pos, plan)
        self.spool.commit_writer(state)
        point("data-committed")

    def _may_wait(self, plan: Plan) -> bool:
        """Whether what is in the buffer may stay there for a moment."""
        return plan.cause is None and not self._pipe and not self._requests

    def _note_odd(self) -> None:
        sink = self._sink
        if sink.in_file == sink.taken:
            self._odd_since = 0
        elif not self._odd_since:
            self._odd_since = self._arrived

    def _housekeep(self) -> None:
        """What time alone makes due: the odd page, a look at the files, fsync."""
        open_segment, now = self.segment, time.monotonic_ns()
        if open_segment is None:
            return
        if self._odd_since and now - self._odd_since >= _ODD_NS:
            self._flush_odd(open_segment)
        if now - self._last_look >= _LOOK_NS:
            self._last_look = now
            self.retrier.attempt(Step.LOOK, open_segment.look)
        due = 0 < self.settings.fsync <= now - open_segment.last_sync
        if due and open_segment.sink.dirty:
            open_segment.sync()

    def _flush_odd(self, open_segment: OpenSegment) -> None:
        open_segment.flush_odd()
        self._odd_since = 0
        end = self.state.segment_pos + open_segment.sink.in_file
        last = self._marks.last_before(end)
        if last is not None:
            self._settle(last)

    def _try_to_make_room(self) -> bool:
        if self.settings.disk_full != "drop-oldest":
            return False
        deleted = self._make_room()
        if deleted is not None:
            self.remark(deleted)
        return deleted is not None

    # -- segments

    def _begin_at(self, plan: Plan) -> None:
        """No records since the last seal: the events that wait go into the new epoch's segment."""
        self.state.epoch = plan.epoch
        self._marks.drop_through(plan)

    def _seal(self, plan: Plan, cause: Cause) -> None:
        open_segment = self.segment
        assert open_segment is not None
        open_segment.flush_odd()
        self._odd_since = 0
        self._settle(plan)
        self._seal_at_commit(open_segment, cause)

    def _seal_at_commit(self, open_segment: OpenSegment, cause: Cause) -> None:
        """What lies beyond the commit goes into the next segment."""
        self.segment = open_segment
        side = open_segment.seal(cause, self.remarks)
        self.segment = None
        self._after_seal(side)

    def _end_early(self, error: FileTooLargeError) -> None:
        """The file may not grow any more: it ends at its last place."""
        open_segment, state = self.segment, self.state
        if open_segment is None or not state.file_offset:
            self._log.error("disk-error", error=str(error), action="not even one record fits")
            if self.retrier.give_up.wait(1.0):
                raise error
            self._drop_empty_segment()
            return
        self._log.warning("file-too-large", segment=state.name, error=str(error))
        self._odd_since = 0
        self._seal_at_commit(open_segment, Cause.FILE_TOO_LARGE)
        self._rescan()

    def _drop_empty_segment(self) -> None:
        """Nothing is in it: its files may go, and the next try takes the next number."""
        if self.segment is not None:
            self.segment.discard()
            self.segment = None
            self.state.segment -= 1
        self._reset_state()
        self._rescan()

    def _lose_segment(self, why: str) -> None:
        """Others took the open segment away: go on at the last place that was in it."""
        open_segment, state = self.segment, self.state
        assert open_segment is not None
        count = counters_delta(state.planned_counters, state.base_counters)["records"]
        if state.file_offset:
            self.remark(Remark(Note.SEGMENT_VANISHED, time.time_ns(), count=count))
        open_segment.let_go(why)
        self.segment = None
        self._odd_since = 0
        self._reset_state()
        self._rescan()

    def _rescan(self) -> None:
        """Places and events beyond the commit are looked at again."""
        self._marks.clear()
        self._scanned = self.state.journal_tail

    def _reset_state(self) -> None:
        state = self.state
        state.phase, state.cause, state.name = lib.HMB_PHASE_IDLE, 0, ""
        state.segment_pos = state.data_tail
        state.file_offset = state.events_offset = state.rejects_offset = 0
        state.base_counters = state.planned_counters
        self.spool.commit_writer(state)

    def _after_seal(self, side: Sidecar | None) -> None:
        name = self.state.name
        epoch = self._marks.pop_epoch_at(self.state.journal_tail)
        self.state.epoch = self.state.epoch if epoch is None else epoch
        self._worth = False
        self._reset_state()
        point("seal-done")
        self.sealed_count += 1
        if side is not None:
            self._last_sealed = (side.segment, side.cause)
            self._log.info(
                "segment-sealed",
                segment=side.segment,
                cause=side.cause,
                records=side.records,
                bytes=side.bytes,
                lost=side.lost,
            )
            self._sealed(name, side)

    # -- recovery

    def _recover(self) -> None:
        if self._pipe:
            return
        state, output = self.state, self.output
        left = leftover_segment.look(state, output.directory, output.suffix)
        if left is Left.RENAMED:
            self._publish_again()
        elif left is Left.VANISHED:
            self._give_up_segment()
        elif left is Left.OPEN:
            self._resume()

    def _resume(self) -> None:
        state = self.state
        self._log.info("segment-resumed", segment=state.name, bytes=state.file_offset)
        self.segment = OpenSegment.resume(self._desk)
        point("recovered")
        if state.phase == lib.HMB_PHASE_SEALING:
            self._scan(self._snapshot().journal)
            self._seal_at_commit(self.segment, Cause(state.cause))

    def _publish_again(self) -> None:
        """Sealed but for the steps after the rename."""
        state, retrier, output = self.state, self.retrier, self.output
        place = retrier.attempt(Step.OPEN, self._desk.home.open)

        def sync() -> None:
            retrier.optional(Step.SYNC_DIRECTORY, place.sync)

        rejects = state.rejects_offset > 0
        retrier.attempt(
            Step.RENAME,
            lambda: segment.publish(
                place, state.name, None, rejects=rejects, suffix=output.suffix, sync=sync
            ),
        )
        place.close()
        self._after_seal(None)

    def _give_up_segment(self) -> None:
        """Somebody took the open segment away: go on at the next record boundary."""
        state, snapshot = self.state, self._snapshot()
        self._scan(snapshot.journal)
        here = self._standing().here
        plan = here
        if state.planned != state.data_tail:  # a commit between two places
            plan = next((mark for mark in self._marks if mark.pos >= state.data_tail), snapshot)
        counted = counters_delta(plan.counters, state.base_counters)
        self.remark(Remark(Note.SEGMENT_VANISHED, time.time_ns(), count=counted["records"]))
        part = state.name + self.output.suffix + ".part"
        self._log.error("segment-vanished", segment=part, bytes=plan.pos - state.segment_pos)
        self._marks.drop_before(plan.journal)
        leftover_segment.skip(state, plan)
        leftover_segment.drop_events(state, self.output.directory, self.output.suffix)
        self._after_seal(None)

    # -- flight recorder

    def _forget_oldest(self, snapshot: Plan) -> None:
        """Keep the newest three quarters of the spool; the rest was never asked for."""
        keep = self.spool.data_size * 3 // 4
        journal_keep = self.spool.c.journal_size // 2
        cut = self._marks.pop_older(snapshot, keep, journal_keep)
        if cut is None:
            return
        state = self.state
        self.discarded_bytes += cut.pos - state.data_tail
        leftover_segment.skip(state, cut)
        state.base_counters = cut.counters
        self.spool.commit_writer(state)

    def _close_files(self) -> None:
        if self.segment:
            with contextlib.suppress(OSError):  # nothing is left to be written
                self.segment.close()
            self.segment = None

# SPDX-License-Identifier: Apache-2.0
"""The open segment: named, filled, looked after, sealed; each step follows the writer's commit.

The commit always stands at a place where a segment may end (planner.Plan): what lies beyond
it in the files is written again after a kill, and is still in the spool when the segment has to
end early, because its file may not grow or was taken away.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hmb_daemon.errors_table import Answer, Step, answer
from hmb_daemon.host.testpoints import point
from hmb_daemon.settings import FSYNC_ALWAYS, FSYNC_NEVER, Settings
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import Spool, WriterState
from hmb_daemon.spool.journal import Event, counters_delta
from hmb_daemon.writing import event_log, names
from hmb_daemon.writing.event_log import Beginning, Remark
from hmb_daemon.writing.output import Output
from hmb_daemon.writing.place import Home, Place
from hmb_daemon.writing.planner import Plan
from hmb_daemon.writing.retry import Retrier, SegmentLostError
from hmb_daemon.writing.segment import Condition, SegmentFiles, publish
from hmb_daemon.writing.sidecar_builder import Origins, SidecarBuilder, lists_of, walk_ends
from hmb_daemon.writing.sink import BOUNCE
from hmb_trace._core import lib
from hmb_trace.dumps import rejects
from hmb_trace.dumps.sidecar import Sidecar

_REJECT_HEADER = rejects.HEADER.size


@dataclass(slots=True)
class Desk:
    """What the writer and its segments work with."""

    spool: Spool
    state: WriterState
    output: Output
    home: Home
    settings: Settings
    origins: Origins
    retrier: Retrier
    note: Callable[[Note], None]
    log: Any


class OpenSegment:
    """One segment between its name and its seal. create() or resume() make it."""

    def __init__(self, desk: Desk, place: Place) -> None:
        self._desk = desk
        self._place = place
        self._files: SegmentFiles
        self.opened_at = self.last_sync = time.monotonic_ns()
        self._rejects_limited = False

    # -- making

    @classmethod
    def create(cls, desk: Desk) -> OpenSegment:
        """A new one, under the next number that is free.

        Raises:
            GiveUpError: asked to stop while that is not possible.
        """
        while True:
            place = desk.retrier.attempt(Step.OPEN, desk.home.open)
            _name_segment(desk)
            segment = cls(desk, place)
            if segment._open(fresh=not desk.output.single):
                break
            place.close()  # another daemon, or somebody else, has this name
        segment._begin_log()
        desk.log.info("segment-open", segment=desk.state.name)
        return segment

    @classmethod
    def resume(cls, desk: Desk) -> OpenSegment:
        """The one that a killed daemon had open."""
        segment = cls(desk, desk.retrier.attempt(Step.OPEN, desk.home.open))
        segment._open(fresh=False)
        return segment

    def _open(self, *, fresh: bool) -> bool:
        """Open the files; False where the name is taken."""
        desk, state = self._desk, self._desk.state

        def step() -> SegmentFiles | None:
            try:
                return SegmentFiles(
                    self._place,
                    state.name,
                    offset=state.file_offset,
                    events_size=state.events_offset,
                    rejects_size=state.rejects_offset,
                    direct=desk.output.direct,
                    pwrite=desk.output.pwrite,
                    reserve=desk.settings.rotate_size or 1 << 62,
                    suffix=desk.output.suffix,
                    fresh=fresh,
                    no_lock=lambda error: desk.retrier.warn_once(Step.LOCK, error),
                )
            except FileExistsError:
                return None

        files = desk.retrier.attempt(Step.OPEN, step, look=self._look_at_place)
        if files is not None:
            self._files = files
        point("segment-opened")
        return files is not None

    def _look_at_place(self) -> None:
        """The directory may have been replaced while files could not be made in it."""
        if not self._place.is_where_it_was():
            place = self._desk.home.open()
            self._place.close()
            self._place = place

    def _begin_log(self) -> None:
        state = self._desk.state
        ring_size = self._desk.origins.of(state.epoch).ring_size
        begin = Beginning(state.segment_pos, state.epoch, state.started_ns, ring_size).pack()
        self._attempt(Step.EVENT_LOG, lambda: self._files.events.append(begin))
        state.events_offset = self._files.events.size

    # -- filling

    @property
    def sink(self) -> Any:
        """Where the records go."""
        return self._files.sink

    @property
    def bytes_beside(self) -> int:
        """Of event log and rejects."""
        return self._files.bytes_beside()

    def flush(self) -> None:
        """Write what can be written; the commit follows by settle()."""
        self._attempt(Step.WRITE, self._files.sink.flush)
        point("data-written")

    def flush_odd(self) -> None:
        """Write all of it, padded where it must be."""
        self._attempt(Step.WRITE, self._files.sink.flush_odd)

    def settle(self, place: Plan, events: Iterable[Event], remarks: list[Remark]) -> None:
        """The data has reached a place: bring the journal there as well, and commit both.

        Raises:
            FileTooLargeError, SegmentLostError: with the commit where it was.
        """
        desk, state = self._desk, self._desk.state
        if desk.settings.fsync == FSYNC_ALWAYS:
            self.sync()
        self._append_log(list(events), remarks)
        remarks.clear()
        state.data_tail = state.planned = place.pos
        state.file_offset = place.pos - state.segment_pos
        state.journal_tail, state.planned_counters = place.journal, place.counters
        desk.spool.commit_writer(state)
        point("data-committed")
        point("journal-committed")

    def _append_log(self, events: list[Event], remarks: list[Remark]) -> None:
        files, state = self._files, self._desk.state
        kept = self._rejects_to_keep(events)
        notes = b"".join(remark.pack(state.data_tail) for remark in remarks)
        log = notes + event_log.pack_events(events)
        if log:
            self._attempt(Step.EVENT_LOG, lambda: files.events.append(log))
            point("events-written")
        if kept:
            self._attempt(Step.EVENT_LOG, lambda: files.rejects.append(kept))
            point("rejects-written")
        state.events_offset, state.rejects_offset = files.events.size, files.rejects.size

    def _rejects_to_keep(self, events: list[Event]) -> bytes:
        """Packed rejects, up to --max-rejects bytes a segment; what is beyond is only counted."""
        limit = self._desk.settings.max_rejects or 1 << 62
        room = limit - self._files.rejects.size
        packed = []
        for event in events:
            if event.kind != lib.HMB_EV_REJECT:
                continue
            size = _REJECT_HEADER + len(event.body) + -len(event.body) % 8
            if size > room:
                self._limit_rejects()
                continue
            room -= size
            packed.append(
                rejects.pack(event.reason, event.epoch, event.cursor, event.host_ns, event.body)
            )
        return b"".join(packed)

    def _limit_rejects(self) -> None:
        if not self._rejects_limited:
            self._rejects_limited = True
            self._desk.note(Note.REJECTS_LIMITED)
            self._desk.log.warning(
                "rejects-limited",
                segment=self._desk.state.name,
                limit=self._desk.settings.max_rejects,
                action="what is rejected beyond it in this segment is counted, not kept",
            )

    # -- looking after

    def _attempt(self, step: Step, action: Callable[[], Any]) -> Any:
        return self._desk.retrier.attempt(step, action, look=self.look)

    def look(self) -> None:
        """What became of the files while they were open.

        Raises:
            SegmentLostError: they cannot be continued.
        """
        condition = self._files.condition()
        if condition is Condition.DELETED:
            self._restore()
        elif condition is not Condition.WELL:
            raise SegmentLostError(condition.name.lower())
        else:
            self._files.restore()
            if self._desk.retrier.trouble is not None:
                self._files.reopen()

    def _restore(self) -> None:
        """Somebody deleted the open segment: all that is left of it is what we hold open."""
        desk = self._desk
        try:
            if self._place.is_deleted():
                self._use_place(desk.home.open())
            self._files.restore()
        except FileExistsError as error:
            raise SegmentLostError("replaced") from error
        except OSError as error:
            if answer(Step.WRITE, error.errno or 0) is Answer.DISK_FULL:
                raise SegmentLostError("deleted") from error  # its room is what was wanted
            raise
        desk.note(Note.SEGMENT_RESTORED)
        desk.log.error(
            "segment-restored",
            segment=desk.state.name,
            found="deleted while it was written",
            action="written again from what was still open; leave .part files alone",
        )

    def _use_place(self, place: Place) -> None:
        self._files.use_place(place)
        self._place.close()
        self._place = place

    def sync(self) -> None:
        """fdatasync; what is not confirmed is told, and written anew where it can be read."""
        sink = self._files.sink
        confirmed = sink.synced
        try:
            self._desk.retrier.optional(Step.SYNC, self._files.sync)
        except OSError as error:
            self._sync_failed(error, confirmed)
        self.last_sync = time.monotonic_ns()

    def _sync_failed(self, error: OSError, confirmed: int) -> None:
        desk, sink = self._desk, self._files.sink
        desk.note(Note.FSYNC_FAILED)
        again = "read back and written again"
        try:
            sink.rewrite(confirmed)
            self._files.sync()
        except OSError as second:
            again = f"could not be written again: {second.strerror}"
            sink.dirty = False  # a third answer would say no more
        desk.log.error(
            "fsync-failed",
            error=error.strerror,
            segment=desk.state.name,
            bytes=sink.in_file - confirmed,
            action=again,
        )

    # -- the end

    def seal(self, cause: Cause, remarks: list[Remark]) -> Sidecar:
        """Everything up to the commit becomes a sealed segment; the files are closed.

        Raises:
            SegmentLostError: the dump was taken away.
        """
        desk, state = self._desk, self._desk.state
        with contextlib.suppress(OSError):  # the steps below retry
            self.look()
        state.phase, state.cause = lib.HMB_PHASE_SEALING, int(cause)
        desk.spool.commit_writer(state)
        point("seal-committed")
        digest = self._finish_data()
        self._append_log([], remarks)
        remarks.clear()
        desk.spool.commit_writer(state)
        point("seal-data")
        side: Sidecar = self._attempt(Step.SIDECAR, lambda: self._describe(cause, digest))
        self._publish(side.encode())
        self.close()
        return side

    def _finish_data(self) -> str:
        """Cut off padding, what was reserved and what lies beyond the commit; the XXH3."""
        sink, state = self._files.sink, self._desk.state
        if sink.in_file == sink.taken == state.file_offset:
            self._attempt(Step.TRUNCATE, lambda: os.ftruncate(sink.fd, state.file_offset))
            digest = str(sink.hash.hexdigest())
            sink.go_buffered()
        else:
            digest = self._attempt(Step.TRUNCATE, lambda: sink.cut(state.file_offset))
        if self._desk.settings.fsync != FSYNC_NEVER:
            sink.dirty = True  # the size, too
            self.sync()
        return digest

    def _describe(self, cause: Cause, digest: str) -> Sidecar:
        state, files, origins = self._desk.state, self._files, self._desk.origins
        end = state.segment_pos + state.file_offset
        entries = event_log.read(files.events.fd, state.events_offset)
        lists = lists_of(entries, state.segment_pos, end)
        counted = counters_delta(state.planned_counters, state.base_counters)
        origin = origins.of(state.epoch)
        builder = SidecarBuilder(files.sealed, state.segment, origin, cause)
        builder.begun(epoch=state.epoch, started_ns=state.started_ns)
        builder.counts(counted)
        builder.lists(lists)
        builder.rejects(
            state.name,
            entries=lists.reject_entries if state.rejects_offset else 0,
            records=counted["rejected_records"],
            size=lists.reject_bytes,
        )
        boundaries = [entry.offset for entry in lists.index]
        first, last = walk_ends(files.sink.fd, state.file_offset, boundaries)
        builder.dump(state.file_offset, digest, first, last)
        return builder.build()

    def _publish(self, side: bytes) -> None:
        state, retrier, place = self._desk.state, self._desk.retrier, self._place
        self._attempt(
            Step.RENAME,
            lambda: publish(
                place,
                state.name,
                side,
                rejects=state.rejects_offset > 0,
                suffix=self._desk.output.suffix,
                sync=lambda: retrier.optional(Step.SYNC_DIRECTORY, place.sync),
            ),
        )

    def let_go(self, why: str) -> None:
        """It cannot be continued: leave what is there of it as it is, up to its last place."""
        desk, sink = self._desk, self._files.sink
        try:
            if self._files.condition() is Condition.MOVED:
                sink.cut(desk.state.file_offset)
                os.fsync(sink.fd)
        except OSError as error:
            desk.log.warning("segment-left", segment=desk.state.name, error=error.strerror)
        if self._files.condition() in (Condition.MOVED, Condition.DELETED):
            self._place.unlink(desk.state.name + names.EVENTS_PART)
        desk.log.error(
            "segment-vanished",
            segment=desk.state.name,
            found=why,
            bytes=desk.state.file_offset,
            action="the capture goes on in a new segment; what was moved is not copied",
        )
        self.close()

    def discard(self) -> None:
        """Nothing of it is committed: the spool has all that was written to it."""
        for name in (self._files.part, self._files.events.name, self._files.rejects.name):
            with contextlib.suppress(OSError):
                self._place.unlink(name)
        self.close()

    def close(self) -> None:
        """Close files and directory; the segment stays as it is."""
        self._files.close()
        self._place.close()


def _name_segment(desk: Desk) -> None:
    state = desk.state
    state.segment += 1
    state.started_ns = time.time_ns()
    state.name = desk.output.segment_name(state.segment, state.started_ns)
    state.segment_pos = state.planned = state.data_tail
    state.planned_counters = state.base_counters
    state.file_offset = state.events_offset = state.rejects_offset = 0
    state.phase, state.cause = lib.HMB_PHASE_WRITING, 0
    desk.spool.commit_writer(state)
    point("segment-named")


def fill(
    sink: Any, spool: Any, taken: Callable[[], int], end: int, flush: Callable[[], None]
) -> bool:
    """Take everything up to `end`, writing whole buffers; whether there was one."""
    whole = False
    while (left := end - taken()) > 0:
        sink.take(spool, taken(), min(left, sink.room))
        while not sink.room:
            ahead = min(end - taken(), BOUNCE)
            if ahead:
                sink.take_ahead(spool, taken(), ahead)
            flush()
            whole = True
    return whole

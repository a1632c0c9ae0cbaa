# SPDX-License-Identifier: Apache-2.0
"""A sealed segment's sidecar, from its event log, its counters and its first and last records.

One builder for a segment that was sealed in order and for one whose host died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hmb_daemon.spool import journal
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.writing import names
from hmb_daemon.writing.event_log import LogEntry, Remark
from hmb_daemon.writing.walk import begin_walk, walk_on
from hmb_trace._core import lib
from hmb_trace.dumps import sidecar

LIST_MAX = 10_000  # entries of a list in a sidecar; the counts know no limit
_INDEX_MAX = 4096
_HEAD_BYTES = 64 * 4096  # so many records of the largest size
_GAP_CAUSES = {
    lib.HMB_GAP_REJECTS: "rejects",
    lib.HMB_GAP_OVERFLOW: "ring-overflow",
    lib.HMB_GAP_SKIPPED: "firmware-skipped",
}
_Item = TypeVar("_Item")
# Notes after which the first gap has a cause of its own.
_GAP_AFTER = {
    Note.RESUMED: "daemon-down",
    Note.HOST_DIED: "host-died",
    Note.SPOOL_SET_ASIDE: "spool-lost",
    Note.SPOOL_VANISHED: "spool-lost",
}
# Notes that say that something is missing: kind and text of the sidecar's reason.
_REASONS = {
    Note.SEGMENT_VANISHED: (
        "segment-vanished",
        "somebody took a segment away while it was open; what it held is not in this dump set",
    ),
    Note.SPOOL_SET_ASIDE: (
        "spool-lost",
        "a damaged spool was set aside; records that only it held are missing",
    ),
    Note.FSYNC_FAILED: (
        "sync-failed",
        "the disk did not confirm what was written; it was written anew where it could be read, "
        "and XXH3 shows whether the file is good",
    ),
    Note.DISK_FULL_DELETED: (
        "disk-full-deleted",
        "--disk-full drop-oldest deleted the oldest segment to make room",
    ),
}


@dataclass(slots=True)
class Lists:
    """What the event log of a segment says. `base`: stream position of the segment's start."""

    base: int
    gaps: list[sidecar.Gap] = field(default_factory=list)
    episodes: list[sidecar.Episode] = field(default_factory=list)
    notes: list[sidecar.Note] = field(default_factory=list)
    clock: list[sidecar.ClockPair] = field(default_factory=list)
    clock_steps: list[sidecar.ClockStep] = field(default_factory=list)
    index: list[sidecar.IndexEntry] = field(default_factory=list)
    reasons: list[sidecar.Reason] = field(default_factory=list)
    reject_entries: int = 0
    reject_bytes: int = 0
    unknown_extent: bool = False
    truncated: bool = False
    last_offset: int = 0  # of the last event with a record boundary, for the walk to the end
    _in_episode: bool = False
    _stride: int = 1
    _indexed: int = 0
    _gap_after: tuple[int, str] | None = None  # host time, cause of the first gap since

    def add(self, entry: LogEntry) -> None:
        """One entry of the log."""
        _HANDLERS.get(entry.kind, Lists._note)(self, entry)

    def _offset(self, entry: LogEntry) -> int:
        """In this file; what a forced cut parted from its place is told at the beginning."""
        return max(0, entry.pos - self.base)

    def _append(self, target: list[_Item], item: _Item) -> None:
        if len(target) < LIST_MAX:
            target.append(item)
        else:
            self.truncated = True

    def _reason(self, reason: sidecar.Reason) -> None:
        self.unknown_extent |= reason.count is None
        self._append(self.reasons, reason)

    def _index(self, entry: LogEntry) -> None:
        self.last_offset = self._offset(entry)
        self._indexed += 1
        if self._indexed % self._stride:
            return
        self.index.append(
            sidecar.IndexEntry(offset=self.last_offset, seq=entry.seq, ts_ns=entry.ts_ns)
        )
        if len(self.index) > _INDEX_MAX:  # a huge file: keep every second entry from now on
            del self.index[::2]
            self._stride *= 2

    def _gap(self, entry: LogEntry) -> None:
        self._append(
            self.gaps,
            sidecar.Gap(
                offset=self._offset(entry),
                seq_before=entry.a,
                seq_after=entry.b,
                lost=entry.c,
                rejected=entry.d,
                ts_ns=entry.ts_ns,
                host_ns=entry.host_ns,
                cause=self._gap_cause(entry),
                confirmed=not entry.reason & lib.HMB_UNCONFIRMED,
            ),
        )

    def _gap_cause(self, entry: LogEntry) -> str:
        """Why records are missing here, as far as anybody can tell."""
        why = _GAP_CAUSES.get(entry.reason & ~lib.HMB_UNCONFIRMED, "unexplained")
        if why == "rejects" or (not entry.c and entry.d):
            return "rejects"
        if self._gap_after and entry.host_ns >= self._gap_after[0]:
            cause, self._gap_after = self._gap_after[1], None
            if cause != "daemon-down" or why != "firmware-skipped":
                return cause
        return "ring-overflow" if self._in_episode else why

    def _reject(self, entry: LogEntry) -> None:
        self.reject_entries += 1
        self.reject_bytes += entry.body_length

    def _clock(self, entry: LogEntry) -> None:
        pair = sidecar.ClockPair(ts_ns=entry.ts_ns, host_ns=entry.host_ns, error_ns=entry.a)
        self._append(self.clock, pair)

    def _clock_step(self, entry: LogEntry) -> None:
        step = sidecar.ClockStep(
            offset=self._offset(entry),
            ts_before=entry.a,
            ts_after=entry.ts_ns,
            host_ns=entry.host_ns,
            step_ns=journal.signed(entry.c),
            error_ns=entry.d,
        )
        self._append(self.clock_steps, step)

    def _overflow(self, entry: LogEntry) -> None:
        self._in_episode = True
        before = entry.a if entry.b else None
        episode = sidecar.Episode(
            host_ns=entry.host_ns, offset=self._offset(entry), last_seq_before=before
        )
        self._append(self.episodes, episode)
        self._note(entry)

    def _overflow_end(self, entry: LogEntry) -> None:
        lost = entry.c or None
        known = self.episodes.pop() if self._in_episode and self.episodes else None
        episode = sidecar.Episode(
            host_ns=known.host_ns if known else entry.host_ns,
            offset=known.offset if known else self._offset(entry),
            last_seq_before=known.last_seq_before if known else entry.a,
            first_seq_after=entry.b if lost else None,
            lost=lost,
        )
        self._append(self.episodes, episode)
        self._in_episode = False
        if lost is None:
            self._lost_unknown(
                entry,
                "overflow-unknown",
                "firmware reported OVERFLOWED, and no sequence number is missing: at least one "
                "record was dropped",
                seq_before=episode.last_seq_before,
            )
        self._note(entry)

    def _lost_unknown(
        self, entry: LogEntry, kind: str, text: str, *, seq_before: int | None = None
    ) -> None:
        self._reason(
            sidecar.Reason(
                kind=kind,
                epoch=entry.epoch,
                seq_before=seq_before,
                offset=self._offset(entry),
                fw_ns=entry.ts_ns or None,
                host_ns=entry.host_ns,
                text=text,
            )
        )

    def _loss_before(self, entry: LogEntry) -> None:
        text = "OVERFLOWED was set when the capture began: firmware had dropped records before"
        self._lost_unknown(entry, "before-attach", text)
        self._note(entry)

    def _loss_unknown(self, entry: LogEntry) -> None:
        """Cursors were given up (R2); after a spool set aside the note that follows says it."""
        if entry.a != entry.b:
            text = "the ring's cursors were invalid; what was unread was given up"
            self._lost_unknown(entry, "overflow-unknown", text)
        self._note(entry)

    def _state(self, entry: LogEntry) -> None:
        if not entry.a:  # Beginning
            return
        remark = Remark.of(entry)
        self._append(
            self.notes,
            sidecar.Note(
                id=remark.note.text if remark else "state",
                host_ns=entry.host_ns,
                offset=self._offset(entry),
            ),
        )
        if remark:
            self._remark(entry, remark)

    def _remark(self, entry: LogEntry, remark: Remark) -> None:
        if remark.note in _GAP_AFTER:
            self._gap_after = (entry.host_ns, _GAP_AFTER[remark.note])
        said = _REASONS.get(remark.note)
        if said:
            kind, text = said
            self._reason(
                sidecar.Reason(
                    kind=kind,
                    count=remark.count,
                    seq_before=remark.seq_before,
                    seq_after=remark.seq_after,
                    offset=self._offset(entry),
                    host_ns=entry.host_ns,
                    text=text,
                )
            )

    def _note(self, entry: LogEntry) -> None:
        keys = journal.VALUE_NAMES.get(entry.kind, ())
        values = (entry.a, entry.b, entry.c, entry.d)
        detail: dict[str, int | str] = dict(zip(keys, values, strict=False))
        note = sidecar.Note(
            id=journal.IDS.get(entry.kind, f"event-{entry.kind}"),
            host_ns=entry.host_ns,
            offset=self._offset(entry),
            detail={**detail, "cursor": entry.cursor, "epoch": entry.epoch},
        )
        self._append(self.notes, note)


_HANDLERS: dict[int, Callable[[Lists, LogEntry], None]] = {
    lib.HMB_EV_INDEX: Lists._index,
    lib.HMB_EV_GAP: Lists._gap,
    lib.HMB_EV_REJECT: Lists._reject,
    lib.HMB_EV_CLOCK: Lists._clock,
    lib.HMB_EV_OVERFLOW: Lists._overflow,
    lib.HMB_EV_OVERFLOW_END: Lists._overflow_end,
    lib.HMB_EV_STATE: Lists._state,
    lib.HMB_EV_LOSS_BEFORE: Lists._loss_before,
    lib.HMB_EV_LOSS_UNKNOWN: Lists._loss_unknown,
    lib.HMB_EV_CLOCK_STEP: Lists._clock_step,
}


def lists_of(entries: Iterable[LogEntry], base: int, end: int) -> Lists:
    """What a log says, as far as its events lie at or before stream position `end`."""
    lists = Lists(base)
    for entry in entries:
        if entry.pos > end:
            break
        lists.add(entry)
    return lists


def walk_ends(fd: int, size: int, boundaries: Sequence[int]) -> tuple[Any, Any]:
    """Walks (struct hmb_walk) of the first records of a segment, and of its last ones.

    Args:
        boundaries: offsets where records begin, ascending (the index); the last may be the
            end of the segment itself, or have nothing but a wrap marker behind it.
    """
    first = last = begin_walk()
    # A few markers may stand before the first record, never many.
    walk_on(first, os.pread(fd, min(size, _HEAD_BYTES), 0))
    for begin in reversed([0, *boundaries]):
        last = _walk_from(fd, size, begin)
        if last.records:
            break
    return first, last


def _walk_from(fd: int, size: int, offset: int) -> Any:
    found = begin_walk(offset)
    while found.offset < size:
        if not walk_on(found, os.pread(fd, min(size - found.offset, 1 << 20), found.offset)):
            break
    return found


@dataclass(frozen=True, slots=True)
class Origin:
    """What is the same for all segments of a run."""

    label: str
    device: sidecar.Device
    ring_size: int
    catalog: sidecar.CatalogCopy | None = None


class Origins:
    """Which ring an epoch came from: another may take the place of the first (R6)."""

    def __init__(self, now: Origin, earlier: Sequence[tuple[int, Origin]] = ()) -> None:
        """`now`: of the latest epochs; `earlier`: last epoch and origin of the rings before."""
        self._now = now
        self._earlier = list(earlier)

    def change(self, epoch: int, now: Origin) -> None:
        """Epochs from this one on are another ring's, or the same one's still."""
        if now != self._now:
            self._earlier.append((epoch - 1, self._now))
            self._now = now

    def of(self, epoch: int) -> Origin:
        """The ring of an epoch."""
        return next((origin for last, origin in self._earlier if epoch <= last), self._now)

    def since(self, epoch: int) -> list[tuple[int, Origin]]:
        """The earlier ones that a segment of this epoch, or a later one, may need."""
        return [(last, origin) for last, origin in self._earlier if last >= epoch]


class SidecarBuilder:
    """A sidecar, piece by piece."""

    def __init__(self, segment: str, number: int, origin: Origin, cause: Cause) -> None:
        self._side = sidecar.Sidecar(
            segment=segment,
            number=number,
            label=origin.label,
            device=origin.device,
            ring_size=origin.ring_size,
            sealed_ns=time.time_ns(),
            cause=cause.text,
            catalog=origin.catalog,
            reasons=[],
        )

    def begun(self, *, epoch: int, started_ns: int, ring_size: int = 0) -> None:
        """Where and when it began; a ring size of 0 is not known better."""
        side = self._side
        side.epoch, side.started_ns = epoch, started_ns
        side.ring_size = ring_size or side.ring_size

    def counts(self, counted: dict[str, int]) -> None:
        """Put the collector's counters into the sidecar's own words."""
        side = self._side
        side.counters = counted
        side.records = counted["records"]
        side.wrap_markers = counted["wrap_markers"] + counted["partial_markers"]
        for name in ("partial_markers", "straddled", "truncated", "gaps", "lost", "duplicates"):
            setattr(side, name, counted[name])
        side.sequence_resets = counted["sequence_resets"]
        side.glitches = counted.get("seq_glitches", 0)

    def lists(self, lists: Lists) -> None:
        """Put what the event log says into the sidecar."""
        side = self._side
        side.gap_list, side.episodes, side.events = lists.gaps, lists.episodes, lists.notes
        side.clock, side.index, side.list_truncated = lists.clock, lists.index, lists.truncated
        side.clock_steps, side.reasons = lists.clock_steps, lists.reasons
        unknown = side.counters.get("unknown_losses", 0)
        side.complete = not lists.unknown_extent and not unknown

    def reason(self, reason: sidecar.Reason) -> None:
        """Something else that is missing."""
        assert self._side.reasons is not None
        self._side.reasons.append(reason)
        self._side.complete &= reason.count is not None

    def dump(self, size: int, xxh3: str, first: Any, last: Any) -> None:
        """What the dump itself shows; first and last as walk_ends() gives them."""
        side = self._side
        side.bytes, side.xxh3 = size, xxh3
        final = last if last.records else first
        if first.records:
            side.first_seq, side.first_ts_ns = int(first.first_seq), int(first.first_ts_ns)
        if final.records:
            side.last_seq, side.last_ts_ns = int(final.last_record_seq), int(final.last_ts_ns)

    def rejects(self, name: str, *, entries: int, records: int, size: int) -> None:
        """What the rejects file holds; nothing where there is none."""
        if entries:
            self._side.rejects = sidecar.RejectsSummary(
                file=name + names.REJECTS, entries=entries, records=records, bytes=size
            )

    def build(self) -> sidecar.Sidecar:
        """The sidecar."""
        return self._side

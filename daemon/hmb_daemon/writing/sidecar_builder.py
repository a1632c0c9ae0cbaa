# SPDX-License-Identifier: Apache-2.0
"""A sealed segment's sidecar, from its event log, its counters and its first and last records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hmb_daemon.spool import journal as events
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import WriterState
from hmb_daemon.writing import names
from hmb_daemon.writing.walk import begin_walk, walk_on
from hmb_trace._core import lib
from hmb_trace.dumps import sidecar

LIST_MAX = 10_000  # entries of a list in a sidecar; the counts know no limit
_INDEX_MAX = 4096
_READ = events.HEADER.size * 8192
_HEAD_BYTES = 64 * 4096  # so many records of the largest size
_Item = TypeVar("_Item")
_Entry = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the first entry of an event log says of its segment, should the spool be lost."""

    segment_pos: int = 0
    epoch: int = 0
    started_ns: int = 0
    ring_size: int = 0  # 0: not known

    def pack(self) -> bytes:
        """As an entry."""
        return events.HEADER.pack(
            *(events.MAGIC, lib.HMB_EV_STATE, 0, 0, self.epoch, self.segment_pos, 0),
            *(self.started_ns, 0, 0, 0, self.ring_size, 0, 0, 0),
        )

    @classmethod
    def unpack(cls, entry: bytes) -> Beginning | None:
        """None: these bytes are none."""
        if len(entry) < events.HEADER.size:
            return None
        found = events.HEADER.unpack(entry)
        if found[0] != events.MAGIC:
            return None
        return cls(found[5], found[4], found[7], found[11])


def note_entry(note: Note, segment_pos: int, host_ns: int) -> bytes:
    """A note of the daemon's own, at byte 0 of what follows `segment_pos` in the stream."""
    return events.HEADER.pack(
        *(events.MAGIC, lib.HMB_EV_STATE, 0, 0, 0, segment_pos, 0, host_ns, 0, 0),
        *(int(note), 0, 0, 0, 0),
    )


def log_entry(event: events.Event) -> bytes:
    """An event as the event log keeps it: 96 bytes, the length of its body in `reserved`."""
    return events.HEADER.pack(
        *(events.MAGIC, event.kind, event.reason, 0, event.epoch, event.pos, event.cursor),
        *(event.host_ns, event.ts_ns, event.seq, *event.values, len(event.body)),
    )


@dataclass(slots=True)
class Lists:
    """What the event log of a segment says. `base`: stream position of the segment's start."""

    base: int
    gaps: list[sidecar.Gap] = field(default_factory=list)
    episodes: list[sidecar.Episode] = field(default_factory=list)
    notes: list[sidecar.Note] = field(default_factory=list)
    clock: list[sidecar.ClockPair] = field(default_factory=list)
    index: list[sidecar.IndexEntry] = field(default_factory=list)
    reject_entries: int = 0
    reject_bytes: int = 0
    unknown_extent: bool = False
    truncated: bool = False
    last_offset: int = 0  # of the last event with a record boundary, for the walk to the end
    _in_episode: bool = False
    _stride: int = 1
    _indexed: int = 0

    def add(self, entry: _Entry) -> None:
        """One entry of the log, as HEADER unpacks it."""
        handler = _HANDLERS.get(entry[1])
        if handler:
            handler(self, entry)
        else:
            self._note(entry)

    def _offset(self, entry: _Entry) -> int:
        return entry[5] - self.base

    def _append(self, target: list[_Item], item: _Item) -> None:
        if len(target) < LIST_MAX:
            target.append(item)
        else:
            self.truncated = True

    def _index(self, entry: _Entry) -> None:
        self.last_offset = self._offset(entry)
        self._indexed += 1
        if self._indexed % self._stride:
            return
        item = sidecar.IndexEntry(offset=self.last_offset, seq=entry[9], ts_ns=entry[8])
        self.index.append(item)
        if len(self.index) > _INDEX_MAX:  # a huge file: keep every second entry from now on
            del self.index[::2]
            self._stride *= 2

    def _gap(self, entry: _Entry) -> None:
        cause = "overflow" if self._in_episode else "damage" if entry[13] else "gap"
        self._append(
            self.gaps,
            sidecar.Gap(
                offset=self._offset(entry),
                seq_before=entry[10],
                seq_after=entry[11],
                lost=entry[12],
                rejected=entry[13],
                ts_ns=entry[8],
                host_ns=entry[7],
                cause=cause,
            ),
        )

    def _reject(self, entry: _Entry) -> None:
        self.reject_entries += 1
        self.reject_bytes += entry[14]

    def _clock(self, entry: _Entry) -> None:
        pair = sidecar.ClockPair(ts_ns=entry[8], host_ns=entry[7], error_ns=entry[10])
        self._append(self.clock, pair)

    def _overflow(self, entry: _Entry) -> None:
        self._in_episode = True
        before = entry[10] if entry[11] else None
        episode = sidecar.Episode(
            host_ns=entry[7], offset=self._offset(entry), last_seq_before=before
        )
        self._append(self.episodes, episode)
        self._note(entry)

    def _overflow_end(self, entry: _Entry) -> None:
        lost = entry[12] or None
        known = self.episodes.pop() if self._in_episode and self.episodes else None
        episode = sidecar.Episode(
            host_ns=known.host_ns if known else entry[7],
            offset=known.offset if known else self._offset(entry),
            last_seq_before=known.last_seq_before if known else entry[10],
            first_seq_after=entry[11] if lost else None,
            lost=lost,
        )
        self._append(self.episodes, episode)
        self._in_episode = False
        self.unknown_extent |= lost is None
        self._note(entry)

    def _unknown_loss(self, entry: _Entry) -> None:
        self.unknown_extent = True
        self._note(entry)

    def _state(self, entry: _Entry) -> None:
        if not entry[10]:  # Beginning
            return
        known = {note.value: note.text for note in Note}
        self.unknown_extent |= entry[10] in (Note.SEGMENT_VANISHED, Note.SPOOL_SET_ASIDE)
        note = sidecar.Note(
            id=known.get(entry[10], "state"), host_ns=entry[7], offset=self._offset(entry)
        )
        self._append(self.notes, note)

    def _note(self, entry: _Entry) -> None:
        keys = events.VALUE_NAMES.get(entry[1], ())
        detail: dict[str, int | str] = dict(zip(keys, entry[10:14], strict=False))
        note = sidecar.Note(
            id=events.IDS.get(entry[1], f"event-{entry[1]}"),
            host_ns=entry[7],
            offset=self._offset(entry),
            detail={**detail, "cursor": entry[6], "epoch": entry[4]},
        )
        self._append(self.notes, note)


_HANDLERS: dict[int, Callable[[Lists, _Entry], None]] = {
    lib.HMB_EV_INDEX: Lists._index,
    lib.HMB_EV_GAP: Lists._gap,
    lib.HMB_EV_REJECT: Lists._reject,
    lib.HMB_EV_CLOCK: Lists._clock,
    lib.HMB_EV_OVERFLOW: Lists._overflow,
    lib.HMB_EV_OVERFLOW_END: Lists._overflow_end,
    lib.HMB_EV_STATE: Lists._state,
    lib.HMB_EV_LOSS_BEFORE: Lists._unknown_loss,
    lib.HMB_EV_LOSS_UNKNOWN: Lists._unknown_loss,
}


def read_log(fd: int, size: int, base: int, end: int) -> Lists:
    """The first `size` bytes of an event log, as far as its events lie at or before `end`."""
    lists = Lists(base)
    offset = 0
    while offset < size:
        chunk = os.pread(fd, min(_READ, size - offset), offset)
        whole = len(chunk) // events.HEADER.size * events.HEADER.size
        if not whole:
            break
        for entry in events.HEADER.iter_unpack(chunk[:whole]):
            if entry[0] != events.MAGIC or entry[5] > end:
                return lists
            lists.add(entry)
        offset += whole
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


class Origins:
    """Which ring an epoch came from: another may take the place of the first (R6).

    Args:
        now: of the latest epochs.
        earlier: last epoch and origin of the rings before, oldest first.
    """

    def __init__(self, now: Origin, earlier: Sequence[tuple[int, Origin]] = ()) -> None:
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


def rejects_summary(name: str, lists: Lists, records: int) -> sidecar.RejectsSummary | None:
    """What the sidecar says about the rejects file; None where there is none."""
    if not lists.reject_entries:
        return None
    return sidecar.RejectsSummary(
        file=name, entries=lists.reject_entries, records=records, bytes=lists.reject_bytes
    )


def sidecar_of(
    state: WriterState,
    suffix: str,
    origin: Origin,
    cause: Cause,
    *,
    data_fd: int,
    events_fd: int,
    xxh3: str,
) -> sidecar.Sidecar:
    """The sidecar of a segment whose files hold what `state` says.

    Args:
        suffix: of the dump once it is sealed.
        data_fd: read through a descriptor of its own, since this one may be for direct I/O.
        xxh3: of the dump.
    """
    end = state.segment_pos + state.file_offset
    lists = read_log(events_fd, state.events_offset, state.segment_pos, end)
    side = sidecar.Sidecar(
        segment=state.name + suffix,
        number=state.segment,
        label=origin.label,
        device=origin.device,
        ring_size=origin.ring_size,
        epoch=state.epoch,
        started_ns=state.started_ns,
        sealed_ns=time.time_ns(),
        cause=cause.text,
        bytes=state.file_offset,
        xxh3=xxh3,
    )
    counted = events.counters_delta(state.planned_counters, state.base_counters)
    fill_counts(side, counted)
    fill_lists(side, lists)
    side.complete = not lists.unknown_extent and not counted["unknown_losses"]
    side.rejects = rejects_summary(state.name + names.REJECTS, lists, counted["rejected_records"])
    with Path(f"/proc/self/fd/{data_fd}").open("rb") as file:
        boundaries = [entry.offset for entry in lists.index]
        first, last = walk_ends(file.fileno(), state.file_offset, boundaries)
    fill_ends(side, first, last)
    return side


def fill_counts(side: sidecar.Sidecar, counted: dict[str, int]) -> None:
    """Put the collector's counters into the sidecar's own words."""
    side.counters = counted
    side.records = counted["records"]
    side.wrap_markers = counted["wrap_markers"] + counted["partial_markers"]
    for name in ("partial_markers", "straddled", "truncated", "gaps", "lost", "duplicates"):
        setattr(side, name, counted[name])
    side.sequence_resets = counted["sequence_resets"]


def fill_lists(side: sidecar.Sidecar, lists: Lists) -> None:
    """Put what the event log says into the sidecar."""
    side.gap_list, side.episodes, side.events = lists.gaps, lists.episodes, lists.notes
    side.clock, side.index, side.list_truncated = lists.clock, lists.index, lists.truncated


def fill_ends(side: sidecar.Sidecar, first: Any, last: Any) -> None:
    """Put first and last record into the sidecar, where there are any."""
    final = last if last.records else first
    if first.records:
        side.first_seq, side.first_ts_ns = first.first_seq, first.first_ts_ns
    if final.records:
        side.last_seq, side.last_ts_ns = final.last_record_seq, final.last_ts_ns

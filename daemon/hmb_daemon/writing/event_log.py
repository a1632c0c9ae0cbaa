# SPDX-License-Identifier: Apache-2.0
"""The event log of an open segment: what its sidecar will be made of, 96 bytes an entry.

Journal events are kept without their bodies (those are in the rejects file); between them
stand the daemon's own notes.  It outlives the spool: a segment whose host died is described
from it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hmb_daemon.spool import journal
from hmb_daemon.spool.causes import Note
from hmb_trace._core import lib

_ENTRY = struct.Struct("<IHHII10Q")
ENTRY_SIZE = _ENTRY.size
_MAGIC: int = lib.hmb_event_magic()
_READ = ENTRY_SIZE * 8192


class LogEntry(NamedTuple):
    """One entry; the values' meaning is that of the journal event (spool.journal.VALUE_NAMES)."""

    kind: int
    epoch: int = 0
    pos: int = 0  # in the dump stream
    cursor: int = 0
    host_ns: int = 0
    ts_ns: int = 0
    seq: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    reason: int = 0
    body_length: int = 0  # of the event's body, which is not kept here

    def pack(self) -> bytes:
        """As it stands in the file."""
        return _ENTRY.pack(
            *(_MAGIC, self.kind, self.reason, 0, self.epoch, self.pos, self.cursor),
            *(self.host_ns, self.ts_ns, self.seq, self.a, self.b, self.c, self.d),
            self.body_length,
        )

    @classmethod
    def of_event(cls, event: journal.Event) -> LogEntry:
        """What the log keeps of a journal event."""
        a, b, c, d = event.values
        return cls(
            *(event.kind, event.epoch, event.pos, event.cursor, event.host_ns, event.ts_ns),
            *(event.seq, a, b, c, d, event.reason, len(event.body)),
        )


def unpack(chunk: bytes) -> Iterator[LogEntry | None]:
    """The entries in whole bytes of them; None for one that is none."""
    for raw in _ENTRY.iter_unpack(chunk):
        magic, kind, reason, _, epoch, pos, cursor, host_ns, ts_ns, seq, a, b, c, d, body = raw
        yield (
            LogEntry(kind, epoch, pos, cursor, host_ns, ts_ns, seq, a, b, c, d, reason, body)
            if magic == _MAGIC
            else None
        )


def read(fd: int, size: int, offset: int = 0) -> Iterator[LogEntry]:
    """The first entries of a log, up to `size` bytes or the first that is none.

    Raises:
        OSError: as the system says.
    """
    while offset < size:
        chunk = os.pread(fd, min(_READ, size - offset), offset)
        whole = len(chunk) // ENTRY_SIZE * ENTRY_SIZE
        if not whole:
            return
        for entry in unpack(chunk[:whole]):
            if entry is None:
                return
            yield entry
        offset += whole


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the first entry of an event log says of its segment, should the spool be lost."""

    segment_pos: int = 0
    epoch: int = 0
    started_ns: int = 0
    ring_size: int = 0  # 0: not known

    def pack(self) -> bytes:
        """As an entry."""
        return LogEntry(
            kind=lib.HMB_EV_STATE,
            epoch=self.epoch,
            pos=self.segment_pos,
            host_ns=self.started_ns,
            b=self.ring_size,
        ).pack()

    @classmethod
    def of(cls, first: LogEntry) -> Beginning:
        """From the first entry of a log."""
        return cls(first.pos, first.epoch, first.host_ns, first.b)


@dataclass(frozen=True, slots=True)
class Remark:
    """A note of the daemon's own, with what it knows about records that are missing."""

    note: Note
    host_ns: int
    count: int | None = None
    seq_before: int | None = None
    seq_after: int | None = None

    def pack(self, pos: int) -> bytes:
        """As an entry at a stream position; unknown numbers are 0, known ones one more."""
        return LogEntry(
            kind=lib.HMB_EV_STATE,
            pos=pos,
            host_ns=self.host_ns,
            a=int(self.note),
            b=_shifted(self.count),
            c=_shifted(self.seq_before),
            d=_shifted(self.seq_after),
        ).pack()

    @classmethod
    def of(cls, entry: LogEntry) -> Remark | None:
        """None: a note of another version of the daemon."""
        if entry.a not in _KNOWN:
            return None
        known = (_unshifted(entry.b), _unshifted(entry.c), _unshifted(entry.d))
        return cls(Note(entry.a), entry.host_ns, *known)


_KNOWN = frozenset(int(note) for note in Note)


def _shifted(value: int | None) -> int:
    return 0 if value is None else value + 1


def _unshifted(value: int) -> int | None:
    return value - 1 if value else None


def pack_events(events: Iterable[journal.Event]) -> bytes:
    """Journal events as the log keeps them."""
    return b"".join(LogEntry.of_event(event).pack() for event in events)

# SPDX-License-Identifier: Apache-2.0
"""What a consumer must make of a ring: dump, rejects, counters (R2-R5, R8-R12)."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tests.oracle.sequence import Gap, Sequence, ahead
from tests.oracle.wire import (
    CHAIN,
    FLAGS_AT,
    HEADER,
    KNOWN_FLAGS,
    LEN_AT,
    M32,
    M64,
    MARKER,
    RECORD,
    RECORD_MAGIC,
    Header,
    Window,
)

OVERFLOWED = 1
# A consumer that waits must leave room for what it waits for: a record, and a lap end before it.
ROOM_TO_WAIT = 2 * 4096

DAMAGED = "damaged"
LYING_LENGTH = "lying-length"
UNKNOWN_FLAGS = "unknown-flags"
CLEANED_MARKER = "marker"


class Verdict(Enum):
    """On a place where the stream may go on after damage (R9)."""

    NO = "pass over it"
    RESUME = "go on here"
    WAIT = "a chain that ends at head: come again when there is more"
    NOTHING_LEFT = "head"


class InvalidCursorsError(Exception):
    """R2: not multiples of 8, or head is more than a ring ahead of tail."""


@dataclass(frozen=True)
class Reject:
    """Ring bytes kept out of the dump."""

    cursor: int
    reason: str
    data: bytes


@dataclass
class Episode:
    """An overflow episode (R5); lost is None while nobody can tell."""

    head: int
    seq_before: int | None
    seq_after: int | None = None
    lost: int | None = None


class Consumer:
    """One capture of one ring. Feed it the area and each published head, in order."""

    def __init__(self, tail: int, *, keep_unknown_flags: bool = False) -> None:
        self.position = tail  # unbounded; `tail` is what the ring would hold
        self.keep_unknown_flags = keep_unknown_flags
        self.dump = bytearray()
        self.rejects: list[Reject] = []
        self.counters: Counter[str] = Counter()
        self.sequence = Sequence(
            episode_is_open=lambda: self.open_episode is not None,
            on_loss_in_episode=lambda gap: self._end_episode(gap.seq_after, gap.lost),
        )
        self.chain = 0  # links of a chain at `position` that ended at head, and waits for more
        self.chain_may_end = False  # nothing more will come
        self.last_ts_ns = 0
        self.resync: str | None = None  # the reason, while inside damage
        self.overflow_seen: bool | None = None  # not looked yet
        self.open_episode: Episode | None = None
        self.episodes: list[Episode] = []

    @property
    def tail(self) -> int:
        return self.position & M64

    @property
    def gaps(self) -> list[Gap]:
        return self.sequence.gaps

    @property
    def gap_places(self) -> list[tuple[int, int]]:
        """Dump offset and cursor of the record after each gap."""
        return self.sequence.places

    def collect(self, area: bytes, head: int, ring_flags: int = 0) -> None:
        """Take everything up to head that can be taken now."""
        check_cursors(head, self.tail, len(area))
        window = Window(area, self.position, head)
        self._watch_overflow(window.head, bool(ring_flags & OVERFLOWED))
        start = self.position
        while self.position < window.head and self._step(window):
            pass
        self.counters["ring_bytes"] += self.position - start

    def take_the_rest(self, area: bytes, head: int, ring_flags: int = 0) -> None:
        """Nothing more will come: what only waits for more is taken as it is."""
        while self.chain:
            self.chain_may_end = True
            self.collect(area, head, ring_flags)

    def finish(self) -> None:
        """The capture ends here."""
        self.sequence.settle()
        self._end_episode(None, None)

    def totals(self) -> dict[str, int]:
        """The counters, sequence accounting included; those at zero too."""
        sequence = self.sequence
        self.counters["bytes"] = len(self.dump)
        self.counters["gaps"] = sum(gap.lost > 0 for gap in sequence.gaps)
        self.counters["lost"] = sequence.lost
        self.counters["duplicates"] = sequence.duplicates
        self.counters["sequence_resets"] = sequence.resets
        self.counters["seq_glitches"] = sequence.glitches
        self.counters["rejected_records"] = sequence.rejected + self._rejected_whole()
        self.counters["rejected_bytes"] = sum(len(reject.data) for reject in self.rejects)
        return {name: self.counters[name] for name in COUNTERS}

    def _rejected_whole(self) -> int:
        return sum(reject.reason == UNKNOWN_FLAGS for reject in self.rejects)

    def _step(self, window: Window) -> bool:
        """One step forward; False when it must wait for a later head."""
        at = self.position
        if self.resync:
            return self._search(window, at, self.resync)
        if window.left(at) < HEADER:
            return self._lap_end(window)
        header = window.header(at)
        if header is None:
            return self._damage(window, DAMAGED)
        if header.is_marker:
            return self._marker(window, header)
        if window.is_lying(at, header):
            self.counters["lying_lengths"] += 1
            return self._damage(window, LYING_LENGTH)
        return self._record(window, header)

    # -- R3, R4: ends of laps

    def _lap_end(self, window: Window) -> bool:
        """Fewer than 32 bytes left: a partial marker or a plain gap, never a header."""
        boundary = window.boundary(self.position)
        if boundary > window.head:
            return False
        gap = window.read(self.position, boundary - self.position)
        if gap[:4] == struct.pack("<I", RECORD_MAGIC):
            self._partial_marker(gap)
        else:
            self.counters["plain_gaps"] += 1
        self.position = boundary
        return True

    def _partial_marker(self, gap: bytes) -> None:
        (seq,) = struct.unpack_from("<I", gap, 4)
        if len(gap) >= 16:
            (self.last_ts_ns,) = struct.unpack_from("<Q", gap, 8)
        self.dump += RECORD.pack(RECORD_MAGIC, seq, self.last_ts_ns, 0, 0, MARKER, 0, 0, 0)
        self.counters["partial_markers"] += 1
        self.sequence.marker(seq)

    def _marker(self, window: Window, header: Header) -> bool:
        boundary = window.boundary(self.position)
        if boundary > window.head:
            return False
        original = window.read(self.position, HEADER)
        clean = bytearray(original)
        clean[FLAGS_AT] &= KNOWN_FLAGS
        clean[LEN_AT : LEN_AT + 2] = b"\0\0"
        self.dump += clean
        self.counters["wrap_markers"] += 1
        if clean != original:
            self.counters["markers_cleaned"] += 1
            self._reject(CLEANED_MARKER, original)
        self.last_ts_ns = header.ts_ns
        self.sequence.marker(header.seq)
        self.position = boundary
        return True

    # -- R8, R10, R11: records

    def _record(self, window: Window, header: Header) -> bool:
        at = self.position
        data = window.read(at, header.span)
        self.sequence.record(header.seq, (len(self.dump), self.tail))
        waits = self.sequence.waits
        if self.open_episode and at >= self.open_episode.head and not waits:
            self._end_episode(header.seq, None)
        self.last_ts_ns = header.ts_ns
        self.counters["unknown_flags"] += header.unknown_flags != 0
        if header.unknown_flags and not self.keep_unknown_flags:
            self._reject(UNKNOWN_FLAGS, data)
        else:
            self._keep(header, data)
            self.counters["straddled"] += at + header.span > window.boundary(at)
        self.position = at + header.span
        return True

    def _keep(self, header: Header, data: bytes) -> None:
        end = HEADER + header.payload_len
        self.dump += data[:end] + bytes(len(data) - end)
        self.counters["records"] += 1
        self.counters["truncated"] += header.flags >> 1 & 1

    # -- R9: damage

    def _damage(self, window: Window, reason: str) -> bool:
        self.counters["resyncs"] += 1
        return self._search(window, self.position + 8, reason)

    def _search(self, window: Window, start: int, reason: str) -> bool:
        """Reject everything before the next header that can be trusted, or before head."""
        found = start
        verdict = self._judge(window, found)
        while verdict is Verdict.NO:
            self.chain, self.chain_may_end = 0, False
            found += 8
            verdict = self._judge(window, found)
        self.resync = None if verdict is Verdict.RESUME else reason
        skipped = window.read(self.position, found - self.position)
        if skipped:
            self._reject(reason, skipped)
        self.sequence.rejected_bytes += len(skipped)
        self.position = found
        if verdict is not Verdict.WAIT:
            self.chain, self.chain_may_end = 0, False
        return verdict is Verdict.RESUME

    def _judge(self, window: Window, at: int) -> Verdict:
        """May the stream go on here?"""
        if at >= window.head:
            return Verdict.NOTHING_LEFT
        header = window.header(at)
        if header is None or not window.confirmed(at, header):
            return Verdict.NO
        last = self.sequence.measured_from
        if last is None or ahead(last, header.seq):
            return Verdict.RESUME
        rejected = self.sequence.rejected_bytes + at - self.position
        behind = (last - header.seq) & M32
        if behind <= window.ring_size // 32 and rejected < window.ring_size:
            return Verdict.NO  # may be of an earlier lap
        return self._judge_chain(window, at, header)

    def _judge_chain(self, window: Window, at: int, header: Header) -> Verdict:
        links, records, ends_at_head = window.chain(at, header)
        if records == CHAIN:
            return Verdict.RESUME
        if not ends_at_head:
            return Verdict.NO
        has_grown = 0 < self.chain < links
        crowded = window.ring_size - (window.head - at) < ROOM_TO_WAIT
        if has_grown or crowded or self.chain_may_end:
            return Verdict.RESUME
        self.chain = links
        return Verdict.WAIT

    def _reject(self, reason: str, data: bytes) -> None:
        self.rejects.append(Reject(self.tail, reason, data))

    # -- R5: overflow episodes

    def _watch_overflow(self, head: int, overflowed: bool) -> None:
        if overflowed and self.overflow_seen is None:
            self.counters["unknown_losses"] += 1  # before we came
        elif overflowed and not self.overflow_seen:
            if self.sequence.pending and self.sequence.pending.in_episode:
                self.sequence.settle()
            self._end_episode(None, None)
            self.open_episode = Episode(head, self.sequence.last)
            self.counters["overflow_episodes"] += 1
        self.overflow_seen = overflowed

    def _end_episode(self, seq_after: int | None, lost: int | None) -> None:
        episode, self.open_episode = self.open_episode, None
        if episode is not None:
            episode.seq_after, episode.lost = seq_after, lost
            self.episodes.append(episode)
            self.counters["unknown_losses"] += lost is None


COUNTERS = (
    "records",
    "bytes",
    "ring_bytes",
    "wrap_markers",
    "partial_markers",
    "plain_gaps",
    "straddled",
    "truncated",
    "gaps",
    "lost",
    "duplicates",
    "sequence_resets",
    "rejected_records",
    "rejected_bytes",
    "resyncs",
    "lying_lengths",
    "unknown_flags",
    "markers_cleaned",
    "overflow_episodes",
    "unknown_losses",
    "seq_glitches",
)


def check_cursors(head: int, tail: int, ring_size: int) -> None:
    """R2."""
    if head % 8 or tail % 8 or (head - tail) & M64 > ring_size:
        raise InvalidCursorsError(f"head {head:#x}, tail {tail:#x}, ring_size {ring_size}")


def joined(rejects: list[Reject]) -> list[Reject]:
    """Neighbours of one reason in one piece: how a consumer splits them is its own affair."""
    out: list[Reject] = []
    for reject in rejects:
        last = out[-1] if out else None
        if last and (last.reason, (last.cursor + len(last.data)) & M64) == (
            reject.reason,
            reject.cursor,
        ):
            out[-1] = Reject(last.cursor, last.reason, last.data + reject.data)
        else:
            out.append(reject)
    return out

# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces by the official protobuf classes, written packet by packet.

Tracks: one per cpu, and one per value of an event's `track` field (die 3, queue 7); each piece of
the firmware's clock (an epoch, a clock that was set) has its own. Paired begins and ends, and
complete events, are slices; counters are counter tracks; all else are instants. Slices that
overlap on a track go to further lanes of the same name, which the viewer groups.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.timeaxis import Axis, firmware_axis
from hmb_trace.dumps.walker import BreakKind, SequenceBreak
from hmb_trace.exports.perfetto_packets import REALTIME, Packets
from hmb_trace.exports.perfetto_tracks import Track, Tracks
from hmb_trace.query.durations import duration_rules, pair_names
from hmb_trace.query.pairing import Paired, Pairing

_I64 = 1 << 63
_PAYLOAD_ROOM = 32 << 20  # bytes of payloads that wait for the ends of their slices
_BEGINS_KEPT = 200_000  # begins that wait with their track and time
_MOST_LOSSES = 10_000
_MARKED_TRACKS = 64  # tracks that a loss is marked on, before it is the cores' alone
_CODES = {
    **{f"u{8 << i}": code for i, code in enumerate("BHIQ")},
    **{f"i{8 << i}": code for i, code in enumerate("bhiq")},
    "f32": "f",
    "f64": "d",
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is shown of a record; payload None: there was no room to keep it."""

    event: Event | None
    opcode: int
    cpu: int
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class _Begin:
    """A begin that waits for its end."""

    seen: _Seen
    ts: int  # on the trace's axis
    track: Track


@dataclass(frozen=True, slots=True)
class _LossPlace:
    """Where records are missing: between two times of the axis, on the tracks of a piece."""

    begin: int
    end: int
    piece: int
    found: SequenceBreak


Losses = Callable[[SequenceBreak], int]


def as_seen(found: SequenceBreak) -> int:
    """Every record that the sequence misses."""
    return found.lost


class _Decoder:
    """Reads all fields of an event's payload by one unpack."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._texts = [i for i, f in enumerate(event.fields) if f.type.startswith("char")]
        self._struct = _struct_of(event)

    def values(self, payload: bytes) -> Sequence[Any]:
        """One value per field, in the catalog's order; None where the payload is too short."""
        if self._struct is None or len(payload) < self._struct.size:
            return list(self._event.values(payload).values())
        found = list(self._struct.unpack_from(payload))
        for index in self._texts:
            found[index] = found[index].split(b"\0", 1)[0].decode("utf-8", "replace")
        return found


def _struct_of(event: Event) -> struct.Struct | None:
    """The layout of a payload; None if fields overlap or do not come in order."""
    text, at = "<", 0
    for one in event.fields:
        if one.offset < at:
            return None
        text += f"{one.offset - at}x" if one.offset > at else ""
        plain = one.type[0] in "cb"
        text += f"{one.size}s" if plain else _CODES[one.type]
        at = one.offset + one.size
    return struct.Struct(text)


_Half = tuple[int, int, int, int]  # row, opcode, cpu and firmware time of a begin


def _begins(paired: Paired) -> list[_Half]:
    """The begins that have lost their ends."""
    found = paired.singles[paired.singles["is_end"] == 0]
    columns = (found[name].tolist() for name in ("row", "opcode", "cpu", "ts_ns"))
    return list(zip(*columns, strict=True))


class _Ends:
    """What became of the ends of one batch."""

    def __init__(self, paired: Paired) -> None:
        self.slices = self._by_row(paired.matches)
        self.uncertain = self._by_row(paired.uncertain)
        self.lost_begins = _begins(paired)

    @staticmethod
    def _by_row(matches: np.ndarray[Any, Any]) -> dict[int, tuple[int, int, int, int]]:
        """By the end's row: the begin's row, opcode and cpu, and the time between them."""
        spans = (matches["end_ts_ns"] - matches["begin_ts_ns"]).tolist()
        names = ("begin_row", "begin_opcode", "begin_cpu")
        values = zip(*(matches[name].tolist() for name in names), spans, strict=True)
        return dict(zip(matches["end_row"].tolist(), values, strict=True))


@dataclass
class PerfettoCounts:
    """What was written, and what there was no room for."""

    slices: int = 0
    instants: int = 0
    counters: int = 0
    unmatched: int = 0  # begins and ends without a partner; written as instants
    uncertain: int = 0  # pairs across a gap, an epoch or a clock step; written as instants
    bare: int = 0  # slices and begins without arguments
    crowded: int = 0  # slices as instants: too many overlap on their track
    folded: int = 0  # records on the track that values share
    beyond: int = 0  # records whose time Perfetto cannot hold
    invalid: int = 0  # durations that are none; written as instants
    losses_left_out: int = 0

    def warnings(self) -> list[str]:
        """What a user must know, one line each."""
        texts = {
            "bare": "slices or begins have no arguments: too many begins were waiting",
            "crowded": "slices are shown as instants: too many overlap on one track",
            "folded": "records are on a track named (others): too many values of a track field",
            "beyond": "records have a time of 2^63 ns or more, which Perfetto cannot show",
            "invalid": "durations are none (negative, all ones, too large): shown as instants",
            "losses_left_out": "losses are not marked: too many of them",
        }
        counts = {name: getattr(self, name) for name in texts}
        return [f"{count} {texts[name]}" for name, count in counts.items() if count]


class PerfettoWriter:
    """Writes one trace.

    Args:
        out: gets whole packets; nothing is kept but track names and waiting begins, both bounded.
        catalog: names, kinds, pairs, tracks; None: every record is an instant of its cpu.
        axis: the time axis, nanoseconds.
        realtime: the axis is the host's CLOCK_REALTIME, and the packets say so.
        epoch_of: number of the epoch that a file of the dump belongs to, where that is known.

    Raises:
        MissingExtraError: the perfetto package is not installed.
    """

    def __init__(
        self,
        out: BinaryIO,
        catalog: Catalog | None = None,
        axis: Axis = firmware_axis,
        *,
        realtime: bool = False,
        epoch_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.packets = Packets(out, REALTIME if realtime else None)
        self._tracks = Tracks(self.packets)
        self._type = self.packets.pb.TrackEvent
        self._catalog = catalog
        self._axis = axis
        self._pairing = Pairing(catalog) if catalog else None
        self._names = pair_names(catalog) if catalog else {}
        self._rules = duration_rules(catalog)
        self._spans: dict[int, int] = {}  # durations that rows of the batch carry
        self._waiting: dict[int, _Begin] = {}
        self._waiting_bytes = 0
        self._decoders: dict[int, _Decoder] = {}
        self._row = 0
        self._epoch_of = epoch_of
        self._epochs = self._clocks = 0  # that began after the first
        self._shift = 0  # from the firmware's clock to the axis, of late
        self._last: int | None = None  # time of the record before, on the axis
        self._gaps: list[SequenceBreak] = []  # of which no row has come yet
        self._losses: list[_LossPlace] = []
        self._concerned: list[list[Track]] = []  # by piece that is over
        self.counts = PerfettoCounts()

    # ---- records ----

    def add(self, batch: RecordBatch, breaks: Iterable[SequenceBreak] = ()) -> None:
        """Write the records of a batch; batches come in file order.

        Args:
            breaks: of the sequence, in the stretch of the file that this batch comes from.
        """
        times = self._times(batch)
        lost = self._rows_of_losses(batch, breaks)
        step_rows = batch.offset_rows([step.offset for step in batch.steps])
        steps = dict(zip(step_rows, batch.steps, strict=True))
        paired = self._pairing.feed(batch) if self._pairing else None
        ends = _Ends(paired) if paired else None
        self._spans = self._carried(batch)
        opcodes, cpus = batch.opcode.tolist(), batch.cpu.tolist()
        events = self._catalog.events if self._catalog else {}
        for row, (opcode, cpu) in enumerate(zip(opcodes, cpus, strict=True)):
            if row in steps:
                self._begin_piece(batch.segment, epoch=steps[row].epoch)
            if row in lost:
                self._lose(lost[row], times[row])
            seen = _Seen(events.get(opcode), opcode, cpu, bytes(batch.payload(row)))
            self._one(seen, times[row], self._row + row, ends)
            self._last = times[row]
        if len(batch) in steps:
            self._begin_piece(batch.segment, epoch=steps[len(batch)].epoch)
        if len(batch):
            self._shift = times[-1] - int(batch.ts_ns[-1])
        for half in ends.lost_begins if ends else ():
            self._no_end(half)
        self._row += len(batch)

    def _times(self, batch: RecordBatch) -> list[int]:
        times: list[int] = self._axis(batch).tolist()
        beyond = np.flatnonzero(batch.ts_ns >= np.uint64(_I64)).tolist()
        self.counts.beyond += len(beyond)
        for row in beyond:
            times[row] = max(times[row], _I64 - 1)
        return times

    def _one(self, seen: _Seen, ts: int, row: int, ends: _Ends | None) -> None:
        """Write a record, or keep it as one half of a slice."""
        event = seen.event
        if ends is None or event is None or not event.pair or event.kind not in ("begin", "end"):
            self._record(seen, ts, row - self._row)
        elif event.kind == "begin":
            self._keep(row, seen, ts)
        elif row in ends.slices:
            self._close(ends.slices[row], ts)
        elif row in ends.uncertain:
            self._halve(ends.uncertain[row][0], " (uncertain)")
            self._instant(seen, ts, " (uncertain)")
            self.counts.uncertain += 1
        else:
            self._instant(seen, ts, " (no begin)")
            self.counts.unmatched += 1

    def _begin_piece(self, segment: int, *, epoch: bool) -> None:
        """Times before here and from here on say nothing about each other."""
        self._concerned.append(self._tracks.concerned(_MARKED_TRACKS))
        self._last = None
        if epoch:
            self._epochs, self._clocks = self._epochs + 1, 0
        else:
            self._clocks += 1
        number = self._epoch_of(segment)
        name = f"epoch {self._epochs if number is None else number}" if self._epochs else ""
        parts = [name, f"clock {self._clocks + 1}" if self._clocks else ""]
        self._tracks.begin_piece(f" ({', '.join(filter(None, parts))})")

    def _record(self, seen: _Seen, ts: int, row: int) -> None:
        event = seen.event
        if event is not None and event.kind == "counter" and self._counter(event, seen, ts):
            return
        span = self._spans.get(row)
        if span is None:
            self._instant(seen, ts)
        else:
            self._slice(seen, self._track_of(seen), ts, ts + span)

    def _carried(self, batch: RecordBatch) -> dict[int, int]:
        """The durations that records carry themselves, by row."""
        found: dict[int, int] = {}
        for rule in self._rules:
            carried = rule.of(batch)
            self.counts.invalid += carried.invalid
            found.update(zip(carried.rows.tolist(), carried.ns.tolist(), strict=True))
        return found

    def _track_of(self, seen: _Seen) -> Track:
        event = seen.event
        if event is not None and event.track and seen.payload is not None:
            made = event.field(event.track)
            value = made.value(seen.payload) if made else None
            if isinstance(value, int):
                return self._tracks.of(event.track, value)
        return self._tracks.of("cpu", seen.cpu)

    def _counter(self, event: Event, seen: _Seen, ts: int) -> bool:
        made = event.field(event.value)
        value = made.value(seen.payload or b"") if made else None
        if made is None or not isinstance(value, (int, float)):
            return False
        base = self._track_of(seen).name if event.track else ""
        track = self._tracks.counter(event.name, base, made.unit)
        packet = self.packets.event(ts, self._type.TYPE_COUNTER, track)
        if isinstance(value, int) and -_I64 <= value < _I64:
            packet.track_event.counter_value = value
        else:
            packet.track_event.double_counter_value = float(value)
        self.packets.put(packet)
        self.counts.counters += 1
        return True

    def _instant(self, seen: _Seen, ts: int, note: str = "", track: Track | None = None) -> None:
        where = track or self._track_of(seen)
        packet = self.packets.event(ts, self._type.TYPE_INSTANT, where.first)
        self.packets.name(packet, (seen.event.name if seen.event else f"{seen.opcode:#06x}") + note)
        self._annotate(packet, seen)
        self.packets.put(packet)
        self.counts.instants += 1

    def _slice(self, seen: _Seen, track: Track, begin: int, end: int) -> None:
        lane = self._tracks.lane(track, begin, end)
        if lane is None:
            self.counts.crowded += 1
            self._instant(seen, begin, f" ({end - begin} ns)", track)
            return
        packet = self.packets.event(begin, self._type.TYPE_SLICE_BEGIN, lane)
        self.packets.name(packet, self._names.get(seen.opcode, f"{seen.opcode:#06x}"))
        self._annotate(packet, seen)
        self.packets.put(packet)
        self.packets.put(self.packets.event(end, self._type.TYPE_SLICE_END, lane))
        self.counts.slices += 1

    # ---- arguments ----

    def _annotate(self, packet: Any, seen: _Seen) -> None:
        if seen.payload is None:
            return
        if seen.event is None or not seen.event.fields:
            if seen.payload:
                self.packets.note(packet, "payload").string_value = seen.payload.hex()
            return
        values = self._decoder(seen.event).values(seen.payload)
        for made, value in zip(seen.event.fields, values, strict=True):
            if value is not None:
                self._annotate_field(packet, made, value)

    def _annotate_field(self, packet: Any, made: Field, value: Any) -> None:
        note = self.packets.note(packet, made.name)
        kind = made.type[0]
        if made.enum and value in made.enum:
            note.string_value = made.enum[value]
        elif kind == "u":
            note.uint_value = value
        elif kind == "i":
            note.int_value = value
        elif kind == "f":
            note.double_value = value
        else:
            note.string_value = value.hex() if kind == "b" else value

    def _decoder(self, event: Event) -> _Decoder:
        known = self._decoders.get(event.opcode)
        if known is None:
            known = self._decoders[event.opcode] = _Decoder(event)
        return known

    # ---- begins that wait: payloads first go, then tracks, so that memory stays bounded ----

    def _keep(self, row: int, seen: _Seen, ts: int) -> None:
        if len(self._waiting) >= _BEGINS_KEPT:
            return
        track = self._track_of(seen)
        size = len(seen.payload or b"")
        if self._waiting_bytes + size > _PAYLOAD_ROOM:
            seen = replace(seen, payload=None)
        else:
            self._waiting_bytes += size
        self._waiting[row] = _Begin(seen, ts, track)

    def _taken(self, row: int) -> _Begin | None:
        begin = self._waiting.pop(row, None)
        if begin is not None and begin.seen.payload is not None:
            self._waiting_bytes -= len(begin.seen.payload)
        return begin

    def _close(self, match: tuple[int, int, int, int], ts: int) -> None:
        """The end of a slice has come."""
        row, opcode, cpu, span = match
        begin = self._taken(row)
        if begin is None:  # there was no room to keep it
            assert self._catalog is not None
            seen = _Seen(self._catalog.get(opcode), opcode, cpu, None)
            begin = _Begin(seen, ts - span, self._track_of(seen))
        self.counts.bare += begin.seen.payload is None
        self._slice(begin.seen, begin.track, begin.ts, ts)

    def _halve(self, row: int, note: str) -> bool:
        """A begin that is no slice; False: there was no room to keep it."""
        begin = self._taken(row)
        if begin is not None:
            self._instant(begin.seen, begin.ts, note, begin.track)
        return begin is not None

    def _no_end(self, half: _Half) -> None:
        row, opcode, cpu, ts_ns = half
        self.counts.unmatched += 1
        if not self._halve(row, " (no end)"):
            self.counts.bare += 1
            seen = _Seen(self._catalog.get(opcode) if self._catalog else None, opcode, cpu, None)
            self._instant(seen, ts_ns + self._shift, " (no end)")

    # ---- losses ----

    def _rows_of_losses(
        self, batch: RecordBatch, breaks: Iterable[SequenceBreak]
    ) -> dict[int, list[SequenceBreak]]:
        """Gaps by the row before which they lie."""
        self._gaps += [one for one in breaks if one.kind is BreakKind.GAP]
        found: dict[int, list[SequenceBreak]] = {}
        if not len(batch):
            return found
        gaps, self._gaps = self._gaps, []
        rows = batch.offset_rows([g.offset if g.segment == batch.segment else 0 for g in gaps])
        for row, gap in zip(rows, gaps, strict=True):
            found.setdefault(min(row, len(batch) - 1), []).append(gap)
        return found

    def _lose(self, gaps: list[SequenceBreak], ts: int) -> None:
        room = max(0, _MOST_LOSSES - len(self._losses))
        self.counts.losses_left_out += len(gaps[room:])
        begin = ts if self._last is None else min(self._last, ts)
        self._losses += [_LossPlace(begin, ts, len(self._concerned), gap) for gap in gaps[:room]]

    def finish(self, told: Losses = as_seen) -> PerfettoCounts:
        """Write what still waits, and the places where records are missing; flush.

        Args:
            told: how many records are missing at a break; 0: none (they are in the rejects).
        """
        if self._pairing is not None:
            for half in _begins(self._pairing.finish()):
                self._no_end(half)
        self._concerned.append(self._tracks.concerned(_MARKED_TRACKS))
        for place in self._losses:
            lost = told(place.found)
            for track in self._concerned[place.piece] if lost else ():
                self._mark(place, track, lost)
        self.packets.flush()
        self.counts.folded = self._tracks.folded
        return self.counts

    def _mark(self, place: _LossPlace, track: Track, lost: int) -> None:
        """Records of this track may be among the missing ones."""
        lane = self._tracks.lane(track, place.begin, place.end) or track.first
        packet = self.packets.event(place.begin, self._type.TYPE_SLICE_BEGIN, lane)
        self.packets.name(packet, f"lost {lost}")
        self.packets.note(packet, "lost").uint_value = lost
        for name in ("seq_before", "seq_after"):
            self.packets.note(packet, name).uint_value = getattr(place.found, name)
        self.packets.put(packet)
        self.packets.put(self.packets.event(place.end, self._type.TYPE_SLICE_END, lane))

# SPDX-License-Identifier: Apache-2.0
"""The Perfetto file, parsed back with the official classes."""

from __future__ import annotations

import io
import struct
from collections import defaultdict
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.timeaxis import RelativeAxis, firmware_axis
from hmb_trace.dumps.walker import Walker
from hmb_trace.exports import perfetto, perfetto_tracks
from hmb_trace.exports.perfetto import PerfettoCounts, PerfettoWriter
from tests.conftest import require_module
from tests.unit.exporting import CATALOG, Row, record, rows

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4


class Parsed:
    """What a trace says, names resolved."""

    counts = PerfettoCounts()

    def __init__(self, data: bytes) -> None:
        require_module("perfetto", "analysis")
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 - optional

        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(data)
        self.tracks: dict[int, str] = {}
        self.events: list[dict[str, Any]] = []
        names: dict[int, str] = {}
        notes: dict[int, str] = {}
        for packet in trace.packet:
            names.update({one.iid: one.name for one in packet.interned_data.event_names})
            notes.update({o.iid: o.name for o in packet.interned_data.debug_annotation_names})
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
            if packet.HasField("track_event"):
                self.events.append(self._event(packet, names, notes))

    def _event(self, packet: Any, names: dict[int, str], notes: dict[int, str]) -> dict[str, Any]:
        event = packet.track_event
        values = {}
        for note in event.debug_annotations:
            kind = note.WhichOneof("value")
            values[notes[note.name_iid]] = getattr(note, kind)
        value = event.WhichOneof("counter_value_field")
        return {
            "ts": packet.timestamp,
            "type": event.type,
            "uuid": event.track_uuid,
            "track": self.tracks[event.track_uuid],
            "name": event.name or names.get(event.name_iid, ""),
            "args": values,
            "value": getattr(event, value) if value else None,
        }

    def slices(self) -> list[tuple[str, str, int, int, dict[str, Any]]]:
        """(name, track, begin, end, args); fails if slices of a lane overlap."""
        lanes: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            if event["type"] in (SLICE_BEGIN, SLICE_END):
                lanes[event["uuid"]].append(event)
        found = []
        for lane in lanes.values():
            lane.sort(key=lambda event: event["ts"])
            for begin, end in zip(lane[::2], lane[1::2], strict=True):
                assert (begin["type"], end["type"]) == (SLICE_BEGIN, SLICE_END)
                found.append((begin["name"], begin["track"], begin["ts"], end["ts"], begin["args"]))
        return found


def export(
    data: bytes, *, catalog: Any = CATALOG, max_bytes: int = 1 << 20, axis: Any = firmware_axis
) -> Parsed:
    require_module("perfetto", "analysis")
    out = io.BytesIO()
    walker = Walker(keep_breaks=True)
    writer = PerfettoWriter(out, catalog, axis)
    for batch in open_dump(io.BytesIO(data)).batches(max_bytes, walker=walker):
        writer.add(batch, walker.breaks or ())
        walker.breaks = []
    counts = writer.finish()
    parsed = Parsed(out.getvalue())
    parsed.counts = counts
    return parsed


def expected_slices(made: list[Row]) -> list[tuple[str, str, int, int]]:
    begins = {row.fields["id"]: row for row in made if row.opcode == 1}
    found = []
    for row in made:
        if row.opcode == 2:
            begin = begins.pop(row.fields["id"])
            found.append(("read", f"die {begin.fields['die']}", begin.ts_ns, row.ts_ns))
        if row.opcode == 4 and row.fields["us"]:
            end = row.ts_ns + 1000 * row.fields["us"]
            found.append(("erase", f"die {row.fields['die']}", row.ts_ns, end))
    return found


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_slices_instants_counters(max_bytes: int) -> None:
    made = rows(1200)
    parsed = export(testing.dump(record(row) for row in made), max_bytes=max_bytes)
    slices = parsed.slices()
    assert sorted(s[:4] for s in slices if s[2] != s[3]) == sorted(expected_slices(made))
    by_time = {(row.ts_ns, row.opcode): row for row in made}
    for name, _, begin, _, args in slices:
        row = by_time[begin, 1 if name == "read" else 4]
        expected = {k: v.hex() if k == "raw" else v for k, v in row.fields.items()}
        assert args == expected
    counters = [e for e in parsed.events if e["type"] == COUNTER]
    assert [(e["ts"], e["value"]) for e in counters] == [
        (row.ts_ns, row.fields["celsius"]) for row in made if row.opcode == 3
    ]
    instants = [e for e in parsed.events if e["type"] == INSTANT]
    plain = [e for e in instants if e["name"] in ("varying", "0x0009")]
    assert [(e["ts"], e["track"]) for e in sorted(plain, key=lambda e: e["ts"])] == [
        (row.ts_ns, f"cpu {row.cpu}") for row in made if row.opcode in (5, 9)
    ]
    unmatched = [e for e in instants if e["name"] == "read_begin (no end)"]
    ended = {row.fields["id"] for row in made if row.opcode == 2}
    left = [row for row in made if row.opcode == 1 and row.fields["id"] not in ended]
    assert sorted(e["args"]["id"] for e in unmatched) == [row.fields["id"] for row in left]


def test_without_catalog_every_record_is_an_instant_of_its_cpu() -> None:
    made = rows(200)
    parsed = export(testing.dump(record(row) for row in made), catalog=None)
    assert [(e["ts"], e["track"], e["name"]) for e in parsed.events] == [
        (row.ts_ns, f"cpu {row.cpu}", f"{row.opcode:#06x}") for row in made
    ]
    assert [e["args"].get("payload", "") for e in parsed.events] == [r.payload.hex() for r in made]


@pytest.mark.parametrize(("axis", "moved"), [(firmware_axis, 0), (RelativeAxis(5), -5)])
def test_losses_are_slices_on_every_track_they_concern(axis: Any, moved: int) -> None:
    """Not on one side track: where one looks, one sees that something is missing."""
    data = testing.dump(
        [
            testing.record(0, ts_ns=5, cpu=0),
            testing.record(1, ts_ns=6, cpu=1),
            testing.record(9, ts_ns=77, cpu=0),
            testing.record(10, ts_ns=78, cpu=3),
        ]
    )
    parsed = export(data, axis=axis)
    assert parsed.events[0]["ts"] == 5 + moved
    args = {"seq_before": 1, "seq_after": 9, "lost": 7}
    assert sorted(parsed.slices()) == [
        ("lost 7", f"cpu {cpu}", 6 + moved, 77 + moved, args) for cpu in (0, 1, 3)
    ]


def test_uncertain_pairs_r16_are_no_slices() -> None:
    """Begin, a gap, end: whether they belong together is not known."""
    made = rows(1200)
    begin = next(row for row in made if row.opcode == 1)
    end = next(r for r in made if r.opcode == 2 and r.fields["id"] == begin.fields["id"])
    cut = [record(row) for row in (begin, end)]
    far = bytearray(cut[1])
    far[4:8] = (begin.seq + 50).to_bytes(4, "little")
    parsed = export(cut[0] + bytes(far))
    assert [one[0] for one in parsed.slices()] == ["lost 49"] * len({s[1] for s in parsed.slices()})
    names = [e["name"] for e in parsed.events if e["type"] == INSTANT]
    assert names == ["read_begin (uncertain)", "read_end (uncertain)"]
    assert (parsed.counts.uncertain, parsed.counts.unmatched) == (1, 0)


def test_a_clock_that_goes_back_begins_tracks_of_its_own_r16() -> None:
    data = testing.dump(
        [
            *(testing.record(i, ts_ns=10**9 + i) for i in range(3)),
            *(testing.record(3 + i, ts_ns=5 + i) for i in range(3)),
        ]
    )
    parsed = export(data, catalog=None)
    assert [e["track"] for e in parsed.events] == ["cpu 0"] * 3 + ["cpu 0 (clock 2)"] * 3


@pytest.mark.parametrize("value", [2**64 - 1, 2**63])
def test_durations_that_are_none_are_instants(value: int) -> None:
    field = {"name": "d", "type": "u64"}
    event = {"opcode": 3, "name": "CMP", "kind": "complete", "duration": "d", "field": [field]}
    catalog = Catalog.from_dict({"name": "d", "event": [event | {"duration_unit": "us"}]})
    parsed = export(testing.record(0, struct.pack("<Q", value), opcode=3), catalog=catalog)
    assert [(e["type"], e["name"]) for e in parsed.events] == [(INSTANT, "CMP")]
    assert parsed.counts.invalid == 1


def test_times_beyond_2_63_are_told() -> None:
    parsed = export(testing.record(0, ts_ns=2**64 - 5), catalog=None)
    assert [e["ts"] for e in parsed.events] == [2**63 - 1]
    assert parsed.counts.warnings() == [
        "1 records have a time of 2^63 ns or more, which Perfetto cannot show"
    ]


def _begin_catalog() -> Catalog:
    field = [{"name": "id", "type": "u32"}, {"name": "die", "type": "u32"}]
    common = {"key": "id", "track": "die", "field": field}
    return Catalog.from_dict(
        {
            "name": "many",
            "event": [
                {"opcode": 1, "name": "op_begin", "kind": "begin", "pair": "op_end", **common},
                {"opcode": 2, "name": "op_end", "kind": "end", "pair": "op_begin", **common},
            ],
        }
    )


def test_values_of_a_track_field_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto_tracks, "MOST_TRACKS", 8)
    records = []
    for i in range(40):
        payload = struct.pack("<II", i, i)
        records.append(testing.record(2 * i, payload, ts_ns=20 * i, opcode=1))
        records.append(testing.record(2 * i + 1, payload, ts_ns=20 * i + 10, opcode=2))
    parsed = export(testing.dump(records), catalog=_begin_catalog())
    tracks = [track for _, track, *_ in sorted(parsed.slices(), key=lambda s: s[2])]
    assert tracks == [f"die {i}" for i in range(8)] + ["die (others)"] * 32
    assert parsed.counts.folded == 32


@pytest.mark.parametrize(("room", "kept", "lanes"), [(400, 10**6, 256), (400, 5, 256), (0, 0, 4)])
def test_begins_that_wait_are_bounded(
    room: int, kept: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R34: first arguments go, then tracks, then lanes; the times of slices stay right."""
    monkeypatch.setattr(perfetto, "_PAYLOAD_ROOM", room)
    monkeypatch.setattr(perfetto, "_BEGINS_KEPT", kept)
    monkeypatch.setattr(perfetto_tracks, "MOST_LANES", lanes)
    payloads = [struct.pack("<II", i, i % 3) for i in range(100)]
    records = [testing.record(i, p, ts_ns=i, opcode=1) for i, p in enumerate(payloads)]
    records += [
        testing.record(100 + i, p, ts_ns=1000 + i, opcode=2) for i, p in enumerate(payloads)
    ]
    parsed = export(testing.dump(records), catalog=_begin_catalog())
    slices = parsed.slices()
    expected = {(i, 1000 + i) for i in range(100)}
    assert {(begin, end) for _, _, begin, end, _ in slices} <= expected
    assert len(slices) + parsed.counts.crowded == 100
    assert parsed.counts.crowded == (96 if lanes == 4 else 0)
    assert parsed.counts.bare == 100 - min(room // 8, kept)
    if kept:
        assert all(args["id"] == begin for _, _, begin, _, args in slices if args)

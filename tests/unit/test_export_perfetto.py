# SPDX-License-Identifier: Apache-2.0
"""The Perfetto file, parsed back with the official classes."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.timeaxis import RelativeAxis, firmware_axis
from hmb_trace.dumps.walker import Walker
from hmb_trace.exports.perfetto import PerfettoWriter
from tests.conftest import require_module
from tests.unit.exporting import CATALOG, Row, record, rows

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4


class Parsed:
    """What a trace says, names resolved."""

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
        writer.add(batch)
    writer.finish(walker.breaks or ())
    return Parsed(out.getvalue())


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
def test_losses_are_marked_on_the_axis(axis: Any, moved: int) -> None:
    parsed = export(testing.record(1, ts_ns=5) + testing.record(9, ts_ns=77), axis=axis)
    assert parsed.events[0]["ts"] == 5 + moved
    lost = [e for e in parsed.events if e["track"] == "lost records"]
    assert [(e["ts"], e["name"]) for e in lost] == [(77 + moved, "7 lost")]
    assert lost[0]["args"] == {"seq_before": 1, "seq_after": 9, "lost": 7}

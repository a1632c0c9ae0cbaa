# SPDX-License-Identifier: Apache-2.0
"""Files by an independent encoder: ours are the same to the byte, and we read them right (P6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmb_trace import pccx
from hmb_trace.pccx import Arch, EventBatch, Header, Payload, Trace
from tests.conftest import SHARED
from tests.golden.pccx import encode
from tests.golden.pccx.encode import GOLDEN, HERE, NAMED, NUMBERED, PLAIN, Event

NO_CHECKSUM = ("flatbuf-trailer.pccx", "bincode-empty.pccx")


def header(encoding: str) -> Header:
    arch = Arch((32, 32), "1.1", 2.05)
    return Header("v0.4.0-contention-aware", arch, Trace(500, 32, 1000), Payload(encoding))


def batch(events: list[Event]) -> EventBatch:
    rows = np.zeros(len(events), pccx.EVENT_DTYPE)
    made = EventBatch(rows)
    for row, (core, start, duration, name, api) in enumerate(events):
        number = name if isinstance(name, int) else 0
        if isinstance(name, str) and name in pccx.EVENT_TYPES:
            number = pccx.EVENT_TYPES.index(name)
        elif isinstance(name, str):
            made.type_names[row] = name
        rows[row] = (core, start, duration, number)
        if api is not None:
            made.api_names[row] = api
    return made


def events_of(path: Path) -> list[Event]:
    found: list[Event] = []
    with pccx.read(path) as file:
        for one in pccx.event_batches(file, 2):
            for row in range(len(one)):
                core, start, duration, _ = one.events[row].tolist()
                found.append((core, start, duration, one.type_name(row), one.api_names.get(row)))
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_are_what_the_encoder_writes(name: str) -> None:
    assert (HERE / name).read_bytes() == GOLDEN[name]


@pytest.mark.parametrize(
    ("name", "events", "checksum"),
    [
        ("flatbuf.pccx", PLAIN, "number"),
        ("flatbuf-empty.pccx", [], "number"),
        ("flatbuf-numbered.pccx", NUMBERED, "hex"),
        ("bincode.pccx", PLAIN, "number"),
        ("bincode-named.pccx", NAMED, "hex"),
        ("bincode-empty.pccx", [], "none"),
    ],
)
def test_write_p3_p6_byte_for_byte(
    name: str, events: list[Event], checksum: str, tmp_path: Path
) -> None:
    encoding = name.split(".", maxsplit=1)[0].split("-", maxsplit=1)[0]
    out = tmp_path / name
    pccx.write_events(out, batch(events), encoding, header(encoding), checksum=checksum)
    assert out.read_bytes() == GOLDEN[name]


def test_write_p3_raw_byte_for_byte(tmp_path: Path) -> None:
    out = tmp_path / "raw.pccx"
    pccx.write(out, bytes(range(256)), header("raw"))
    assert out.read_bytes() == GOLDEN["raw.pccx"]


@pytest.mark.parametrize("name", ["flatbuf.pccx", "bincode.pccx"])
def test_read_p6_plain(name: str) -> None:
    assert events_of(HERE / name) == PLAIN
    found = pccx.inspect(HERE / name)
    assert (found["events"], found["checksum"], found["warnings"]) == (6, "ok", [])


def test_read_p6_free_types_and_api_names() -> None:
    assert events_of(HERE / "bincode-named.pccx") == NAMED


def test_read_p6_ids_beyond_five_are_kept() -> None:
    names = [event[3] for event in events_of(HERE / "flatbuf-numbered.pccx")]
    assert names == ["API_CALL", "EVENT_7", f"EVENT_{2**31}"]
    with pccx.read(HERE / "flatbuf-numbered.pccx") as file:
        assert pccx.flat_events(file)["event_type_id"].tolist() == [6, 7, 2**31]


def test_read_p6_name_trailer() -> None:
    found = events_of(HERE / "flatbuf-trailer.pccx")
    assert [event[4] for event in found] == ["uca_init", None, "이름"]
    info = pccx.inspect(HERE / "flatbuf-trailer.pccx")
    assert (info["events"], info["encoding"], info["checksum"]) == (3, "flatbuf", "absent")
    assert info["warnings"] == []


@pytest.mark.parametrize("name", GOLDEN)
def test_verify_golden(name: str) -> None:
    expected = "absent" if name in NO_CHECKSUM else "ok"
    assert pccx.verify(HERE / name, strict=True)["checksum"] == expected


def test_reference_file_reads_to_the_last_event() -> None:
    path = SHARED / "data" / "dummy_trace.pccx"
    if not path.exists():
        pytest.skip("no shared/data/dummy_trace.pccx beside the repository")
    found = pccx.verify(path, strict=True)
    assert (found["encoding"], found["events"], found["checksum"]) == ("bincode", 16_008, "ok")
    stats = pccx.statistics(path)
    assert stats["by_type"] == {**dict.fromkeys(pccx.EVENT_TYPES[1:6], 3200), "API_CALL": 8}
    assert (stats["last_cycle"], stats["api_names"]) == (5_423_940, 8)
    assert len(stats["by_core"]) == 32
    found_events = events_of(path)
    assert found_events[0] == (0, 0, 820, "API_CALL", "uca_init")
    whole = path.read_bytes()
    again = encode.bincode(5_423_940, found_events)
    assert whole.endswith(again)
    assert len(again) == found["header"]["payload"]["byte_length"]


def test_reference_file_written_again_is_identical(tmp_path: Path) -> None:
    path = SHARED / "data" / "dummy_trace.pccx"
    if not path.exists():
        pytest.skip("no shared/data/dummy_trace.pccx beside the repository")
    out = tmp_path / "again.pccx"
    with pccx.read(path) as file:
        pccx.write_events(out, pccx.event_batches(file, 1000), "bincode", file.header)
    assert out.read_bytes() == path.read_bytes()

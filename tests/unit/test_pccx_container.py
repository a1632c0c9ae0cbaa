# SPDX-License-Identifier: Apache-2.0
"""The container: magic, versions, lengths that lie, checksums, payload encodings (P2-P6)."""

from __future__ import annotations

import json
import resource
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hmb_trace import pccx
from hmb_trace.errors import InvalidDataError, NoInputError
from hmb_trace.pccx import EVENT_DTYPE, ChecksumError, PccxError
from hmb_trace.testing import marker, record
from tests.golden.pccx.encode import (
    NAMED,
    PLAIN,
    bincode,
    bincode_event,
    container,
    file_of,
    flatbuf,
    text,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.pccx"


def refused(path: Path, data: bytes, match: str) -> None:
    """inspect() gives one clear error and allocates nothing large."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDataError, match=match) as caught:
            pccx.inspect(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 16 << 20


def info(path: Path, data: bytes) -> dict[str, object]:
    path.write_bytes(data)
    return pccx.inspect(path)


@pytest.mark.parametrize("major", [0, 2, 255])
def test_container_p2_other_major_is_refused(major: int, path: Path) -> None:
    refused(path, file_of(b"{}", major=major), "major version: found")


def test_container_p2_any_minor_is_read(path: Path) -> None:
    head = b'{"pccx_lab_version":"v"}'
    assert info(path, file_of(head, minor=255))["minor"] == 255


def test_container_p2_reserved_bytes_warn(path: Path) -> None:
    found = info(path, file_of(b'{"pccx_lab_version":"v"}', reserved=b"\1\0"))
    assert any("reserved" in line for line in found["warnings"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [b"", b"P", b"RECT" + bytes(60), b"\x7fELF" + bytes(60)])
def test_container_p5_another_magic_is_named(data: bytes, path: Path) -> None:
    refused(path, data, "magic")


@pytest.mark.parametrize(
    "length", [3, 1000, 64 << 20, (64 << 20) + 1, 2**40, 2**63, 2**64 - 1, 2**64 - 16]
)
def test_container_p3_header_length_that_lies(length: int, path: Path) -> None:
    refused(path, file_of(b"{}", length=length), "header length")


def test_container_every_cut_gives_one_error(path: Path) -> None:
    whole = container(bincode(500, NAMED), "bincode")
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidDataError) as caught:
            pccx.inspect(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [257, 2**31, 2**63, 2**64 - 1])
def test_container_p4_payload_shorter_than_stated(length: int, path: Path) -> None:
    whole = container(bytes(256), "raw")
    longer = whole.replace(b'"byte_length":256', f'"byte_length":{length}'.encode())
    longer = longer[:8] + struct.pack("<Q", len(longer) - 16 - 256) + longer[16:]
    refused(path, longer, rf"payload\.byte_length: header says {length}, but only 256")


def test_container_p4_longer_payload_warns(path: Path) -> None:
    found = info(path, container(flatbuf(PLAIN), "flatbuf") + b"tail")
    assert (found["events"], found["checksum"]) == (6, "ok")
    assert any("4 bytes after" in line for line in found["warnings"])  # type: ignore[attr-defined]


def test_container_p5_checksum_mismatch_warns_or_fails(path: Path) -> None:
    found = info(path, container(b"x", "raw", checksum=5))
    assert found["checksum"] == "mismatch"
    assert any("checksum_fnv64" in line for line in found["warnings"])  # type: ignore[attr-defined]
    assert pccx.verify(path)["checksum"] == "mismatch"
    with pytest.raises(ChecksumError, match="checksum_fnv64") as caught:
        pccx.verify(path, strict=True)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("value", [True, "0x", -1])
def test_container_p1_mistyped_checksum(value: object, path: Path) -> None:
    refused(path, container(b"x", "raw", checksum=value), r"payload\.checksum_fnv64")


def test_info_has_the_documented_keys(path: Path) -> None:
    found = info(path, container(b"", "raw"))
    assert list(found) == [
        *("kind", "major", "minor", "header", "encoding", "events", "checksum", "warnings"),
        *("verdict", "reasons", "lost", "lost_exact", "epochs", "clock_steps"),
    ]
    assert found["kind"] == "pccx"
    assert found["header"] == json.loads(container(b"", "raw")[16:])


def test_info_p5_unknown_encoding_is_shown_as_raw(path: Path) -> None:
    found = info(path, container(b"abc", "zip"))
    assert (found["encoding"], found["events"]) == ("raw", None)
    assert any("'zip'" in line for line in found["warnings"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 23, 25, 47])
def test_info_p5_flatbuf_that_is_not_24n(size: int, path: Path) -> None:
    found = info(path, container(bytes(size), "flatbuf"))
    assert (found["encoding"], found["events"]) == ("raw", None)
    assert any("multiple of 24" in line for line in found["warnings"])  # type: ignore[attr-defined]


def test_info_raw_counts_records_without_markers(path: Path) -> None:
    dump = record(1, b"abc") + marker(2) + record(2)
    assert info(path, container(dump, "raw"))["events"] == 2
    assert info(path, container(b"", "raw"))["events"] == 0
    assert info(path, container(b"no dump", "raw"))["events"] is None
    found = info(path, container(dump[:-1], "raw"))
    assert found["events"] == 1
    assert any("byte 72" in line for line in found["warnings"])  # type: ignore[attr-defined]


# ---- bincode that is torn or lies ----


def event(**change: bytes) -> bytes:
    parts = {
        "fixed": struct.pack("<IQQ", 1, 2, 3),
        "type": text("DMA_READ"),
        "tag": b"\0",
        "api": b"",
        **change,
    }
    return b"".join(parts.values())


def named(length: int, data: bytes) -> bytes:
    return struct.pack("<Q", length) + data


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (b"", "expected at least 16"),
        (bytes(15), "expected at least 16"),
        (struct.pack("<QQ", 0, 1), "count of events: found 1"),
        (
            struct.pack("<QQ", 0, 2**64 - 1) + bytes(64),
            "count of events: found 18446744073709551615",
        ),
        (struct.pack("<QQ", 0, 3) + event() * 2, "count of events: found 3"),
        (struct.pack("<QQ", 0, 2) + event() + event()[:-1], "event 1 at byte 89: payload ends"),
        (struct.pack("<QQ", 0, 1) + event(type=named(2**64 - 1, b"x")), "event_type: length"),
        (struct.pack("<QQ", 0, 1) + event(type=named(2**63, b"x")), "event_type: length"),
        (
            struct.pack("<QQ", 0, 1) + event(type=named(10**9, b"x")),
            "event_type: length 1000000000",
        ),
        (struct.pack("<QQ", 0, 1) + event(type=named(2, b"\xc3(")), "event_type: not UTF-8"),
        (struct.pack("<QQ", 0, 1) + event(type=named(3, b"\xed\xa0\x80")), "event_type: not UTF-8"),
        (struct.pack("<QQ", 0, 1) + event(type=named(2, b"\xc0\x80")), "event_type: not UTF-8"),
        (struct.pack("<QQ", 0, 1) + event(tag=b"\2"), "option tag 2"),
        (struct.pack("<QQ", 0, 1) + event(tag=b"\xff"), "option tag 255"),
        (struct.pack("<QQ", 0, 1) + event(tag=b"\1"), "payload ends inside it"),
        (struct.pack("<QQ", 0, 1) + event(tag=b"\1", api=named(9, b"")), "api_name: length 9"),
        (
            struct.pack("<QQ", 0, 1) + event(tag=b"\1", api=named(2**64 - 8, b"")),
            "api_name: length",
        ),
        (struct.pack("<QQ", 0, 1) + event(tag=b"\1", api=named(1, b"\x80")), "api_name: not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bincode_p5_torn_or_lying_is_an_error(payload: bytes, match: str, path: Path) -> None:
    refused(path, container(payload, "bincode"), match)


def test_bincode_p5_what_comes_before_the_fault_is_read(path: Path) -> None:
    good = b"".join(bincode_event(one) for one in NAMED)
    path.write_bytes(container(struct.pack("<QQ", 0, 4) + good + bytes([255]) * 30, "bincode"))
    seen = 0
    with pccx.read(path) as file, pytest.raises(PccxError, match="event 3"):
        for batch in pccx.event_batches(file, 2):
            seen += len(batch)
    assert seen == 3


def test_bincode_bytes_after_the_last_event_warn(path: Path) -> None:
    found = info(path, container(bincode(1, PLAIN) + b"abc", "bincode"))
    assert found["events"] == 6
    assert any("3 bytes after" in line for line in found["warnings"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["é", "한국어", "😀", "x" * 70_000, "", "EVENT_6", "EVENT_07"])
def test_bincode_p6_free_type_strings_survive(name: str, path: Path) -> None:
    path.write_bytes(container(bincode(1, [(1, 2, 3, name, name)]), "bincode"))
    with pccx.read(path) as file:
        (batch,) = pccx.event_batches(file)
        assert (batch.type_name(0), batch.api_names[0]) == (name, name)


# ---- flatbuf ----


def test_flatbuf_is_mapped_not_copied(path: Path) -> None:
    path.write_bytes(container(flatbuf(PLAIN), "flatbuf"))
    with pccx.read(path) as file:
        events = pccx.flat_events(file)
        assert events.base is not None
        assert np.shares_memory(events, file.payload)
        assert not events.flags.writeable


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_flatbuf_p6_trailer_of_no_names(rows: int, path: Path) -> None:
    found = info(path, container(flatbuf(PLAIN[:rows], []), "flatbuf"))
    assert (found["encoding"], found["events"], found["warnings"]) == ("flatbuf", rows, [])


def test_flatbuf_p6_core_id_that_looks_like_a_trailer(path: Path) -> None:
    core = int.from_bytes(b"PCC2", "little")
    events = [(core, 1, 2, 0, None), (0, 5, 2, 1, None), (core, 7, 0, 3, None)]
    assert info(path, container(flatbuf(events), "flatbuf"))["events"] == 3
    with_names = container(flatbuf(events, [(2, "n")]), "flatbuf")
    assert info(path, with_names)["events"] == 3
    with pccx.read(path) as file:
        (batch,) = pccx.event_batches(file)
        assert batch.api_names == {2: "n"}


def test_flatbuf_p6_many_lookalikes_do_not_cost_a_parse_each(path: Path) -> None:
    row = b"PCC2" + struct.pack("<I", 2**32 - 1) + bytes(16)
    assert info(path, container(row * 20_000, "flatbuf"))["events"] == 20_000


@pytest.mark.parametrize(
    "trailer",
    [
        b"PCC2" + struct.pack("<I", 1),  # torn
        b"PCC2" + struct.pack("<I", 2**32 - 1) + struct.pack("<IH", 0, 0),
        b"PCC2" + struct.pack("<I", 1) + struct.pack("<IH", 0, 9) + b"abc",
        b"PCC2" + struct.pack("<I", 1) + struct.pack("<IH", 0, 1) + b"\xff",
        b"PCC2" + struct.pack("<I", 1) + struct.pack("<IH", 6, 1) + b"a",  # no such event
        b"PCC2" + struct.pack("<I", 1) + struct.pack("<IH", 0, 1) + b"ab",  # does not end there
    ],
)
def test_flatbuf_p6_broken_trailer_is_no_trailer(trailer: bytes, path: Path) -> None:
    found = info(path, container(flatbuf(PLAIN) + trailer, "flatbuf"))
    assert (found["encoding"], found["events"]) == ("raw", None)


# ---- writing ----


def test_write_is_atomic(path: Path) -> None:
    path.write_bytes(b"old")

    def pieces() -> object:
        yield b"abc"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        pccx.write(path, pieces())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_write_where_nothing_can_be_created(tmp_path: Path) -> None:
    for target, code in ((tmp_path / "no" / "x.pccx", 73), (tmp_path, 73)):
        with pytest.raises(Exception, match="cannot") as caught:
            pccx.write(target, b"")
        assert getattr(caught.value, "exit_code", None) == code


def test_read_what_is_not_there(path: Path) -> None:
    with pytest.raises(NoInputError, match="cannot open"):
        pccx.read(path)


def test_write_big_payload_is_streamed_behind_a_padded_header(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmb_trace.pccx.output.HELD", 1000)
    payload = bytes(range(256)) * 40
    pieces = [payload[i : i + 700] for i in range(0, len(payload), 700)]
    header = pccx.write(path, pieces, encoding="raw")
    with pccx.read(path) as file:
        assert bytes(file.payload) == payload
        assert file.header == header
        assert file.checksum() == "ok"
        assert file.prefix.header_length >= len(json.dumps(file.raw_header, separators=(",", ":")))
        assert (16 + file.prefix.header_length) % 4096 == 0, "the payload can be mapped by itself"


def test_write_events_p6_flatbuf_is_sorted_and_stable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmb_trace.pccx.output.HELD", 4000)
    monkeypatch.setattr("hmb_trace.pccx.sorting.RUN_EVENTS", 64)
    dice = np.random.default_rng(1)
    events = np.zeros(5000, EVENT_DTYPE)
    events["start_cycle"] = dice.integers(0, 300, 5000)
    events["core_id"] = np.arange(5000)
    for parts in (1, 7):
        pccx.write_events(path, np.array_split(events, parts), "flatbuf")
        expected = events[np.argsort(events["start_cycle"], kind="stable")]
        with pccx.read(path) as file:
            assert (pccx.flat_events(file) == expected).all()
            assert file.checksum() == "ok"


def test_reading_a_big_file_does_not_fill_memory(path: Path) -> None:
    size = 512 << 20
    head = container(b"", "raw").replace(b'"byte_length":0', b'"byte_length":%d' % size)
    head = head[:8] + struct.pack("<Q", len(head) - 16) + head[16:]
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert pccx.inspect(path)["checksum"] == "mismatch"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10

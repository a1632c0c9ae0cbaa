# SPDX-License-Identifier: Apache-2.0
"""Selections and expressions, against plain Python over the same records."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, open_dump
from hmb_trace.dumps.sidecar import ClockPair, Device, IndexEntry, Sidecar, sidecar_path
from hmb_trace.dumps.timeaxis import (
    ClockPieces,
    RelativeAxis,
    host_axis,
    parse_moment,
    relative_axis,
)
from hmb_trace.errors import UsageError
from hmb_trace.query.expression import Expression
from hmb_trace.query.select import (
    Range,
    Selection,
    parse_numbers,
    parse_opcodes,
    parse_range,
    parse_time,
    spans_of,
)
from hmb_trace.query.stats import gather

CATALOG = Catalog.from_dict(
    {
        "name": "t",
        "event": [
            {
                "opcode": 1,
                "name": "read",
                "field": [
                    {"name": "lba", "type": "u64"},
                    {"name": "st", "type": "i8", "enum": {"0": "ok", "-1": "bad"}},
                    {"name": "tag", "type": "char[4]"},
                ],
            },
            {"opcode": 2, "name": "write", "field": [{"name": "lba", "type": "u32"}]},
        ],
    }
)
READ = struct.Struct("<Qb4s")


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(60):
        lba = [i, 2**63 + i, 2**64 - 1 - i][i % 3]
        if i % 5 == 0:
            rows.append({"opcode": 1, "payload": b"\x01", "name": "read"})
        elif i % 5 == 1:
            rows.append({"opcode": 3, "payload": b"", "name": "0x0003"})
        elif i % 5 == 2:
            made = {"opcode": 2, "payload": struct.pack("<I", i), "name": "write", "lba": i}
            rows.append(made)
        else:
            st = -(i % 2)
            payload = READ.pack(lba, st, b"ab" if i % 4 else b"xyzw")
            tag = "ab" if i % 4 else "xyzw"
            made = {
                "opcode": 1,
                "payload": payload,
                "name": "read",
                "lba": lba,
                "st": st,
                "tag": tag,
            }
            rows.append(made)
        rows[-1] |= {"seq": i, "cpu": i % 4, "ts_ns": 1000 + 10 * i}
    return rows


ROWS = _rows()


def batch() -> RecordBatch:
    records = [
        testing.record(r["seq"], r["payload"], opcode=r["opcode"], cpu=r["cpu"], ts_ns=r["ts_ns"])
        for r in ROWS
    ]
    return next(open_dump(io.BytesIO(testing.dump(records))).batches())


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("seq >= 10 and seq < 20", lambda r: 10 <= r["seq"] < 20),
        ("10 <= seq < 20 or cpu == 3", lambda r: 10 <= r["seq"] < 20 or r["cpu"] == 3),
        ("lba > 0x7fffffffffffffff", lambda r: r.get("lba", -1) > 2**63 - 1),
        ("lba < 30", lambda r: r.get("lba", 99) < 30),
        ("lba > -1", lambda r: "lba" in r),
        ("not lba < 30", lambda r: not r.get("lba", 99) < 30),
        ('st == "bad"', lambda r: r.get("st") == -1),
        ("st != 0", lambda r: r.get("st", 0) != 0),
        ('name == "read" and cpu in (0, 2)', lambda r: r["name"] == "read" and r["cpu"] in (0, 2)),
        ('name in ["write", "0x0003"]', lambda r: r["name"] in ("write", "0x0003")),
        ("cpu not in (0, 1, 2)", lambda r: r["cpu"] == 3),
        ('tag == "ab"', lambda r: r.get("tag") == "ab"),
        ("seq * 1000000000 > 30000000000", lambda r: r["seq"] > 30),
        ("(seq - 5) % 7 == 0", lambda r: (r["seq"] - 5) % 7 == 0),
        ("seq & 0x3 == 2 | 0", lambda r: r["seq"] & 3 == 2),
        ("-seq > -5", lambda r: -r["seq"] > -5),
        ("payload_len == 1", lambda r: len(r["payload"]) == 1),
    ],
)
def test_expression_equals_plain_python(text: str, truth: Callable[[dict[str, Any]], bool]) -> None:
    found = Expression(text, CATALOG).mask(batch()).tolist()
    assert found == [bool(truth(row)) for row in ROWS]
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lbaa > 3", "did you mean 'lba'"),
        ("__import__('os')", "not allowed"),
        ("lba.real > 3", "not allowed"),
        ("lba >", "expression"),
        ("", "expression"),
        ("lba if cpu else 3", "not allowed"),
        ("(1, 2) == cpu", "not allowed"),
        ("lba ** 3", "not allowed"),
        ("[x for x in (1,)]", "not allowed"),
        ('st == "nonsense"', "no label"),
        ("name + 1 > 2", "expression"),
    ],
)
def test_bad_expression_is_one_clear_error(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Expression(text, CATALOG).mask(batch())
    assert "\n" not in str(caught.value)


def _selected(selection: Selection) -> list[int]:
    made = batch()
    return [int(s) for s in made.seq[selection.mask(made)]]


def test_selection_by_columns() -> None:
    assert _selected(Selection(opcodes=frozenset({3}))) == [
        r["seq"] for r in ROWS if r["opcode"] == 3
    ]
    assert _selected(Selection(cpus=frozenset({1, 2}))) == [
        r["seq"] for r in ROWS if r["cpu"] in (1, 2)
    ]
    assert _selected(Selection(seq=Range(50, None))) == list(range(50, 60))
    assert _selected(Selection(seq=Range(0xFFFFFFF0, 3))) == [0, 1, 2, 3]  # over the wrap (R12)
    assert _selected(Selection(time=Range(1100, 1120))) == [10, 11, 12]
    assert _selected(Selection(time=Range(None, -5))) == []
    assert Selection().is_everything


def test_parsers() -> None:
    assert parse_range("0x10..20", "seq") == Range(16, 20)
    assert parse_range("..9", "seq") == Range(None, 9)
    assert parse_range("7", "seq") == Range(7, 7)
    assert parse_numbers(["1,3..5", "9"], "cpu", 256) == {1, 3, 4, 5, 9}
    assert parse_numbers([], "cpu", 256) is None
    assert parse_opcodes(["re*,7"], CATALOG) == {1, 7}
    for bad in ("x", "", "..", "1..2..3", "-1"):
        with pytest.raises(UsageError):
            parse_range(bad, "seq")
    with pytest.raises(UsageError, match="0 to 255"):
        parse_numbers(["256"], "cpu", 256)
    with pytest.raises(UsageError, match="no event 'nope'"):
        parse_opcodes(["nope"], CATALOG)


def test_moments() -> None:
    assert parse_moment("123") == ("fw", 123)
    assert parse_moment("+1.5s") == ("relative", 1_500_000_000)
    second = 1_767_225_600 * 10**9
    assert parse_moment("2026-01-01") == ("host", second)
    assert parse_moment("2026-01-01T00:00:00.000000001") == ("host", second + 1)
    assert parse_moment("2026-01-01T01:00:00.5+01:00") == ("host", second + 500_000_000)
    with pytest.raises(UsageError):
        parse_moment("yesterday")


def _segment(folder: Path, number: int, times: list[int], **known: Any) -> None:
    path = folder / f"dev-{number:06d}-20260101T000000Z.bin"
    first = known.pop("first_seq", 0)
    made = [testing.record(first + i, ts_ns=ts) for i, ts in enumerate(times)]
    path.write_bytes(testing.dump(made))
    sidecar = Sidecar(
        segment=path.name,
        number=number,
        label="dev",
        device=Device(path="x"),
        bytes=32 * len(times),
        records=len(times),
        first_ts_ns=times[0],
        last_ts_ns=times[-1],
        index=[IndexEntry(offset=0, seq=0, ts_ns=0)],
        **known,
    )
    sidecar_path(path).write_bytes(sidecar.encode())


BASE = 1_700_000_000 * 10**9


def test_host_axis_interpolates_between_pairs_and_back(tmp_path: Path) -> None:
    pairs = [ClockPair(ts_ns=1000, host_ns=BASE), ClockPair(ts_ns=2000, host_ns=BASE + 1500)]
    _segment(tmp_path, 1, [500, 1000, 1500, 2000, 3000], clock=pairs)
    dump = open_dump(tmp_path)
    made = next(dump.batches())
    axis = host_axis(dump)
    assert (axis(made) - BASE).tolist() == [-500, 0, 750, 1500, 2500]
    piece = ClockPieces(dump).of_segment[0][0].piece
    for ts, host in zip(made.ts_ns, axis(made), strict=True):
        assert piece.firmware(int(host)) == int(ts)
    assert RelativeAxis(1000)(made).tolist() == [-500, 0, 500, 1000, 2000]
    with pytest.raises(UsageError, match="no clock pairs"):
        host_axis(open_dump(io.BytesIO(testing.record(0))))


MS = 10**6


def _two_epochs(folder: Path) -> Dump:
    """100 records a ms apart on the host's clock: 0..49 in one epoch, 50..99 in the next."""
    times = [1000 * MS + i * MS for i in range(50)]
    first = [ClockPair(ts_ns=1000 * MS, host_ns=BASE)]
    second = [ClockPair(ts_ns=1000 * MS, host_ns=BASE + 50 * MS)]
    _segment(folder, 1, times, clock=first)
    _segment(folder, 2, times, clock=second, epoch=1)
    return open_dump(folder)


@pytest.mark.parametrize(
    ("begin", "end"), [("+0.02s", "+0.03s"), ("+0.045s", "+0.055s"), ("+0.07s", None)]
)
@pytest.mark.parametrize("clock", ["relative", "host"])
def test_a_time_of_the_host_lies_in_one_epoch_r16(
    begin: str, end: str | None, clock: str, tmp_path: Path
) -> None:
    """Seen before: records of both epochs, and twice as many as lie in the span."""
    dump = _two_epochs(tmp_path)
    wanted = range(
        round(float(begin[1:-1]) * 1000), 1 + (round(float(end[1:-1]) * 1000) if end else 99)
    )
    if clock == "host":
        second = "2023-11-14T22:13:20"
        begin, end = f"{second}{begin[2:-1]}", end and f"{second}{end[2:-1]}"
    time, windows = parse_time(dump, begin, end)
    got = [
        (b.segment - 0) * 50 + (int(ts) // MS - 1000)
        for b in Selection(time=time, windows=windows).batches(dump)
        for ts in b.ts_ns
    ]
    assert got == list(wanted)


def test_relative_time_goes_on_over_epochs_and_clock_steps_r16(tmp_path: Path) -> None:
    dump = _two_epochs(tmp_path)
    axis = relative_axis(dump)
    assert [int(t) for b in dump.batches() for t in axis(b)] == [i * MS for i in range(100)]
    bare = tmp_path / "bare.bin"
    times = [5 * MS, 6 * MS, 900 * MS, 1 * MS, 3 * MS]
    bare.write_bytes(testing.dump(testing.record(i, ts_ns=ts) for i, ts in enumerate(times)))
    alone = open_dump(bare)
    axis = relative_axis(alone)
    got = [int(t) // MS for b in alone.batches() for t in axis(b)]
    assert got == [0, 1, 895, 895, 897]
    _, windows = parse_time(alone, "+0.896s", None)
    assert [int(s) for b in Selection(windows=windows).batches(alone) for s in b.seq] == [4]
    assert gather(dump).span_ns == 98 * MS
    assert gather(alone).span_ns == 897 * MS
    assert gather(alone, selection=Selection(cpus=frozenset({0}))).span_ns == 897 * MS


def test_a_clock_step_ends_the_reach_of_a_pair_r16(tmp_path: Path) -> None:
    """An older sidecar: the pairs show that the clock went back, the records show where."""
    times = [1000 * MS, 1001 * MS, 1002 * MS, 10 * MS, 11 * MS]
    pairs = [
        ClockPair(ts_ns=1000 * MS, host_ns=BASE),
        ClockPair(ts_ns=11 * MS, host_ns=BASE + 4 * MS),
    ]
    _segment(tmp_path, 1, times, clock=pairs)
    dump = open_dump(tmp_path)
    axis = host_axis(dump)
    assert [int(t) - BASE for b in dump.batches() for t in axis(b)] == [i * MS for i in range(5)]


@pytest.mark.parametrize(
    "text", ["18446744073709551616", "99999999999999999999s", "9" * 5000, "+300000000d", "9" * 5000 + "s"]
)
def test_a_moment_that_no_clock_reaches_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="moment"):
        parse_moment(text)


def test_ranges_are_checked() -> None:
    for text, what, limit in (("0..4294967296", "seq", 1 << 32), ("70000", "opcode", 1 << 16)):
        with pytest.raises(UsageError, match="expected 0 to"):
            parse_range(text, what, limit)
    with pytest.raises(UsageError, match="lies after"):
        parse_time(open_dump(io.BytesIO(testing.record(0))), "2", "1")
    with pytest.raises(UsageError, match="before its begin"):
        parse_numbers(["5..3"], "cpu", 256)
    assert parse_opcodes(["RE*"], CATALOG) == {1}


def _indexed(folder: Path, number: int, start: int) -> Path:
    path = folder / f"dev-{number:06d}-20260101T000000Z.bin"
    records = [testing.record(start + i, ts_ns=1000 * (start + i)) for i in range(100)]
    path.write_bytes(testing.dump(records))
    index = [
        IndexEntry(offset=i * 32, seq=start + i, ts_ns=1000 * (start + i))
        for i in range(0, 100, 10)
    ]
    sidecar = Sidecar(
        segment=path.name,
        number=number,
        label="dev",
        device=Device(path="x"),
        bytes=3200,
        records=100,
        first_ts_ns=1000 * start,
        last_ts_ns=1000 * (start + 99),
        index=index,
    )
    sidecar_path(path).write_bytes(sidecar.encode())
    return path


@pytest.mark.parametrize(("first", "last"), [(120, 130), (0, 5), (295, 400), (99, 100), (210, 210)])
def test_time_range_reads_only_what_the_index_says(tmp_path: Path, first: int, last: int) -> None:
    for number in range(3):
        _indexed(tmp_path, number, number * 100)
    dump = open_dump(tmp_path)
    wanted = Range(first * 1000, last * 1000)
    got = [int(s) for b in Selection(time=wanted).batches(dump) for s in b.seq]
    assert got == list(range(first, min(last, 299) + 1))
    read = sum(len(b) for b in dump.batches(spans=spans_of(dump, wanted)))
    assert read <= last - first + 70
    assert parse_time(dump, "+0.0001s", None) == (Range(100_000, None), [])

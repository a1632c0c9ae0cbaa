# SPDX-License-Identifier: Apache-2.0
"""Listings: the C renderer against Python's own formatting, csv and json modules."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, open_dump
from hmb_trace.dumps.sidecar import ClockPair, Device, Sidecar, sidecar_path
from hmb_trace.dumps.timeaxis import Places, firmware_axis
from hmb_trace.errors import UsageError
from hmb_trace.escapes import UNSAFE
from hmb_trace.text.listing import Listing, Style
from hmb_trace.units import format_duration

CATALOG = Catalog.from_dict(
    {
        "name": "test",
        "event": [
            {
                "opcode": 1,
                "name": "miss",
                "format": "lba={lba:#x} n={n:+d} st={st} {st:>4} t={t:.3f} {tag} {raw} {lba:#018x}",
                "field": [
                    {"name": "lba", "type": "u64"},
                    {"name": "n", "type": "i32"},
                    {"name": "st", "type": "u8", "enum": {"1": 'one, "x"'}},
                    {"name": "t", "type": "f64"},
                    {"name": "tag", "type": "char[4]"},
                    {"name": "raw", "type": "bytes[2]"},
                ],
            },
            {"opcode": 2, "name": "plain", "field": [{"name": "time", "type": "f32"}]},
            {
                "opcode": 3,
                "name": "ints",
                "format": "{a:x}|{a:#X}|{a:08b}|{b:5d}|{b:<5d}|{b:05}|{c}|{c:#o}|{seq} {cpu:02}",
                "field": [
                    {"name": "a", "type": "u16"},
                    {"name": "b", "type": "i8"},
                    {"name": "c", "type": "i64"},
                ],
            },
        ],
    }
)
MISS = struct.Struct("<QiBd4s2s")
INTS = struct.Struct("<Hbq")


def batch_of(*records: bytes) -> RecordBatch:
    return next(open_dump(io.BytesIO(testing.dump(records))).batches())


def some_batch() -> RecordBatch:
    return batch_of(
        testing.record(0, MISS.pack(4096, -5, 1, 1.5, b"ok\0x", b"\x00\xff"), opcode=1, ts_ns=7),
        testing.record(1, MISS.pack(2**64 - 1, 2**31 - 1, 9, -0.1, b'"\\\n\xff', b"ab"), opcode=1),
        testing.record(2, b"\x01\x02", opcode=1, cpu=3, flags=2),  # too short for its fields
        testing.record(3, struct.pack("<f", 0.1), opcode=2, ts_ns=2**63),
        testing.record(4, INTS.pack(0xABC, -7, -(2**63)), opcode=3, cpu=4),
        testing.record(5, b"hello", opcode=0x77, flags=0x80),
        testing.record(6, opcode=0x77),
    )


def lines(style: Style, batch: RecordBatch, catalog: Catalog | None = CATALOG) -> str:
    listing = Listing(style, catalog)
    data = listing.heading() + b"".join(bytes(p) for p in listing.renderer.render(batch))
    return data.decode()


def test_messages_equal_the_catalogs_own() -> None:
    batch = some_batch()
    got = lines(Style(fields=["message"]), batch).splitlines()
    for row in (0, 4):
        event = CATALOG.events[int(batch.opcode[row])]
        expected = event.message(
            batch.payload(row), seq=int(batch.seq[row]), cpu=int(batch.cpu[row])
        )
        assert got[row] == expected
    assert got[2] == "lba=? n=? st=? ? t=? ? ? ?"
    assert got[5] == b"hello".hex()


def test_text_line_has_time_core_seq_name_message_and_flags() -> None:
    text = lines(Style(), some_batch()).splitlines()
    assert text[0].split()[:4] == ["0.000000007", "cpu0", "0", "miss"]
    assert text[2].endswith("[truncated]")
    assert text[5].split()[3:] == ["0x0077", b"hello".hex(), "[flags", "0x80]"]
    assert text[6].endswith("0x0077")  # no payload, and no spaces instead of it
    assert len(text) == 7  # control characters in payloads do not break lines


def test_csv_read_back_by_the_standard_library() -> None:
    rows = list(csv.DictReader(io.StringIO(lines(Style("csv"), some_batch()), newline="")))
    assert [int(row["seq"]) for row in rows] == list(range(7))
    assert (rows[0]["lba"], rows[0]["n"], rows[0]["st"], rows[0]["tag"]) == (
        "4096",
        "-5",
        "1",
        "ok",
    )
    assert rows[1]["tag"] == '"\\\\x0a\ufffd'  # quotes doubled and undone, control made visible
    assert float(rows[1]["t"]) == -0.1
    assert rows[2]["lba"] == ""
    assert float(rows[3]["payload_time"]) == pytest.approx(0.1)
    assert rows[5]["name"] == "0x0077"


def test_jsonl_read_back_by_the_standard_library() -> None:
    rows = [json.loads(line) for line in lines(Style("jsonl"), some_batch()).splitlines()]
    assert rows[1]["fields"] == {
        "lba": 2**64 - 1,
        "n": 2**31 - 1,
        "st": 9,
        "t": -0.1,
        "tag": '"\\\n\ufffd',
        "raw": b"ab".hex(),
    }
    assert rows[2]["fields"]["lba"] is None
    assert rows[4]["fields"]["c"] == -(2**63)
    assert rows[5]["payload"] == b"hello".hex()
    assert "fields" not in rows[5]


def test_jsonl_without_catalog_has_hex() -> None:
    rows = [json.loads(line) for line in lines(Style("jsonl"), some_batch(), None).splitlines()]
    assert [bytes.fromhex(row["payload"]) for row in rows] == [
        bytes(payload) for payload in some_batch().payloads()
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308, 5e-324, 0.1, 1 / 3, -0.0])
def test_floats_read_back_the_same(value: float) -> None:
    batch = batch_of(testing.record(0, MISS.pack(0, 0, 0, value, b"", b""), opcode=1))
    row = json.loads(lines(Style("jsonl", fields=["t"]), batch))
    if math.isfinite(value):
        assert struct.pack("<d", row["t"]) == struct.pack("<d", value)
    else:
        assert row["t"] is None


def test_host_clock_is_iso() -> None:
    batch = batch_of(testing.record(0))
    listing = Listing(Style("csv", clock="host", fields=["time"]))
    for seconds in (0, 951_782_400, 1_709_164_800, 4_102_444_799, -1, -86_400 * 366):
        times = np.array([seconds * 10**9 + 123_456_789], "i8")
        got = b"".join(bytes(p) for p in listing.renderer.render(batch, times)).decode().strip()
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        assert got == moment.strftime("%Y-%m-%dT%H:%M:%S") + ".123456789Z"


def test_unknown_field_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'nonsense'"):
        Listing(Style(fields=["nonsense"]), CATALOG)
    with pytest.raises(UsageError, match="need a --catalog"):
        Listing(Style(fields=["lba"]))


def test_long_lines_and_many_rows() -> None:
    """The output buffer grows where one line does not fit, and rows are never split or lost."""
    records = [testing.record(i, bytes(4064), opcode=9) for i in range(700)]
    batch = batch_of(*records)
    got = lines(Style("csv", fields=["seq", "payload"]), batch, None).splitlines()[1:]
    assert [int(line.split(",")[0]) for line in got] == list(range(len(batch)))
    assert {len(line.split(",")[1]) for line in got} == {len("hex:") + 8128}


def _column(batch: RecordBatch, name: str) -> list[Any]:
    return [int(v) for v in getattr(batch, name)]


def test_header_columns() -> None:
    batch = some_batch()
    names = ["offset", "seq", "ts_ns", "opcode", "cpu", "flags", "payload_len"]
    rows = list(csv.DictReader(io.StringIO(lines(Style("csv", fields=names), batch))))
    for name in names:
        assert [int(row[name]) for row in rows] == _column(batch, name)


def _texts(how: str, texts: list[str]) -> list[str]:
    """Each text as a char field comes out of C (fast) and of a template (slow)."""
    fields = [{"name": "t", "type": "char[8]"}]
    events = [
        {"opcode": 1, "name": "fast", "format": "{t}", "field": fields},
        {"opcode": 2, "name": "slow", "format": "{t:>1}", "field": fields},
    ]
    catalog = Catalog.from_dict({"name": "t", "event": events})
    records = [
        testing.record(2 * i + opcode, text.encode().ljust(8, b"\0"), opcode=opcode)
        for i, text in enumerate(texts)
        for opcode in (1, 2)
    ]
    made = lines(Style(how, fields=["message"]), batch_of(*records), catalog)
    return made.split("\n")[how == "csv" : -1]


def test_c_and_python_escape_the_same_characters_in_the_same_way() -> None:
    points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    risky = {c for first, last in UNSAFE for c in (first - 1, *range(first, last + 1), last + 1)}
    sample = sorted({c for c in points if c < 0x3000 or c % 997 == 0} | (risky - {-1, 0}))
    for how in ("text", "jsonl", "csv"):
        texts = [f"a{chr(c)}b" for c in sample]
        found = [
            line for at in range(0, len(texts), 2000) for line in _texts(how, texts[at:][:2000])
        ]
        assert found[::2] == found[1::2]
        for code, line in zip(sample, found[::2], strict=True):
            hidden = any(first <= code <= last for first, last in UNSAFE)
            assert (chr(code) in line) == (not hidden), hex(code)
            if how == "jsonl":
                assert json.loads(line) == {"message": f"a{chr(code)}b"}


def test_csv_safe_guards_what_a_spreadsheet_takes_for_a_formula() -> None:
    texts = ["=1+1", "@SUM(A1)", "-2+3", "+4", "plain"]
    fields = [{"name": "t", "type": "char[8]"}, {"name": "n", "type": "i8"}]
    events = [{"opcode": 1, "name": "=e", "format": "{n} {t}", "field": fields}]
    catalog = Catalog.from_dict({"name": "t", "event": events})
    records = [
        testing.record(i, text.encode().ljust(8, b"\0") + b"\xff", opcode=1)
        for i, text in enumerate(texts)
    ]
    columns = ["t", "n", "name", "message"]
    safe = lines(Style("csv", fields=columns, csv_safe=True), batch_of(*records), catalog)
    rows = list(csv.DictReader(io.StringIO(safe)))
    assert [row["t"] for row in rows] == ["'=1+1", "'@SUM(A1)", "'-2+3", "'+4", "plain"]
    assert {row["n"] for row in rows} == {"-1"}
    assert {row["name"] for row in rows} == {"'=e"}
    assert [row["message"] for row in rows] == [f"'-1 {text}" for text in texts]
    plain = lines(Style("csv", fields=columns), batch_of(*records), catalog)
    assert [row["t"] for row in csv.DictReader(io.StringIO(plain))] == texts


def test_bytes_in_csv_are_read_as_no_number() -> None:
    fields = [{"name": "b", "type": "bytes[2]"}]
    events = [{"opcode": 1, "name": "e", "field": fields}]
    catalog = Catalog.from_dict({"name": "t", "event": events})
    batch = batch_of(testing.record(0, b"\x12\xe5", opcode=1), testing.record(1, b"\0", opcode=1))
    made = lines(Style("csv", fields=["payload", "b", "message"]), batch, catalog)
    assert made == 'payload,b,message\nhex:12e5,"hex:12e5","b=12e5"\nhex:00,"","b=?"\n'


def _two_epochs(folder: Path) -> Dump:
    for number in (1, 2):
        path = folder / f"dev-{number:06d}-20260101T000000Z.bin"
        path.write_bytes(testing.dump(testing.record(i, ts_ns=10**9 + i) for i in range(2)))
        pair = ClockPair(ts_ns=10**9, host_ns=1_700_000_000_000_000_000 + number)
        known = Sidecar(
            segment=path.name,
            number=number,
            label="dev",
            device=Device(path="x"),
            bytes=64,
            records=2,
            epoch=number - 1,
            first_seq=0,
            last_seq=1,
            first_ts_ns=10**9,
            last_ts_ns=10**9 + 1,
            clock=[pair],
        )
        sidecar_path(path).write_bytes(known.encode())
    return open_dump(folder)


def _listed(dump: Dump, style: Style) -> str:
    listing, places = Listing(style), Places(dump)
    parts = [bytes(p) for b in dump.batches() for p in listing.lines(b, firmware_axis, places)]
    return (listing.heading() + b"".join(parts)).decode()


def test_an_epoch_has_a_line_of_its_own_and_columns_r16(tmp_path: Path) -> None:
    dump = _two_epochs(tmp_path)
    text = _listed(dump, Style("text", payload="none")).splitlines()
    assert len(text) == 5
    assert text[2].startswith("---- epoch 1 begins (")
    assert text[2].endswith("1.000000001 -> 1.000000000 ----")
    rows = [json.loads(line) for line in _listed(dump, Style("jsonl")).splitlines()]
    assert [row.get("kind") for row in rows] == [None, None, "epoch", None, None]
    assert (rows[2]["epoch"], rows[2]["offset"]) == (1, 0)
    made = _listed(dump, Style("csv", fields=["seq", "epoch", "host_ns", "file"]))
    found = list(csv.DictReader(io.StringIO(made)))
    assert [row["epoch"] for row in found] == ["0", "0", "1", "1"]
    assert [row["host_ns"][-1] for row in found] == ["1", "2", "2", "3"]
    assert [Path(row["file"]).name[:10] for row in found] == ["dev-000001"] * 2 + ["dev-000002"] * 2


def test_what_is_not_known_is_empty_and_times_have_64_bits_r13(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0, ts_ns=2**64 - 1))
    dump = open_dump(path)
    made = _listed(dump, Style("csv", fields=["time", "epoch", "host_ns"]))
    assert made == "time,epoch,host_ns\n18446744073709551615,,\n"
    made = _listed(dump, Style("jsonl", fields=["time", "epoch"]))
    assert json.loads(made) == {"time": 2**64 - 1, "epoch": None}
    assert _listed(dump, Style("text")).startswith("18446744073.709551615")


def test_durations_have_no_exponent() -> None:
    found = [format_duration(value) for value in (999.6, 999_950, 999_950_000, 999_000_000)]
    assert found == ["1 us", "1 ms", "1.000 s", "999 ms"]

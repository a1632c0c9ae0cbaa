# SPDX-License-Identifier: Apache-2.0
"""Opcode catalogs: what they say, errors with the path of the wrong key, pairing, importers."""

from __future__ import annotations

import random
import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import open_dump
from hmb_trace.catalog.importer import from_c, from_csv, from_dump, to_toml
from hmb_trace.catalog.model import Catalog, CatalogError, Event, Field
from hmb_trace.cli import main
from hmb_trace.errors import NoInputError
from hmb_trace.query.pairing import Pairing
from hmb_trace.query.rules import OpenTable
from hmb_trace.testing import marker, record
from tests.conftest import ROOT

FULL = """
name = "demo"
firmware_build = "1.2-rc3"
clock_mhz = 800
[workload]
rate = 5
[[event]]
opcode = 0x10
name = "IO_SUBMIT"
kind = "begin"
pair = "IO_DONE"
key = "tag"
track = "die"
pccx = "DMA_READ"
format = "submit tag={tag} lba={lba:#x} op={op} on cpu {cpu}"
[[event.field]]
name = "tag"
type = "u16"
[[event.field]]
name = "op"
type = "u8"
enum = { 1 = "read", 0x2 = "write" }
[[event.field]]
name = "die"
type = "i8"
[[event.field]]
name = "lba"
type = "u64"
offset = 8
unit = "block"
[[event]]
opcode = 0x11
name = "IO_DONE"
kind = "end"
[[event.field]]
name = "tag"
type = "u16"
[[event]]
opcode = 0x12
name = "TEMP"
kind = "counter"
value = "celsius"
[[event.field]]
name = "celsius"
type = "f32"
[[event.field]]
name = "label"
type = "char[8]"
[[event.field]]
name = "blob"
type = "bytes[3]"
"""


def toml(**change: Any) -> dict[str, Any]:
    made = tomllib.loads(FULL)
    for path, value in change.items():
        *parents, key = path.split("__")
        at: Any = made
        for parent in parents:
            at = at[int(parent) if parent.isdigit() else parent]
        if value is None:
            del at[key]
        else:
            at[int(key) if key.isdigit() else key] = value
    return made


def test_catalog_says_what_the_file_says() -> None:
    catalog = Catalog.parse(FULL.encode())
    assert (catalog.name, catalog.firmware_build, catalog.clock_mhz) == ("demo", "1.2-rc3", 800)
    submit = catalog.events[0x10]
    assert catalog.by_name["IO_SUBMIT"] is submit
    assert (submit.kind, submit.pair, submit.key, submit.track) == (
        "begin",
        "IO_DONE",
        "tag",
        "die",
    )
    assert [(f.name, f.offset, f.size) for f in submit.fields] == [
        *(("tag", 0, 2), ("op", 2, 1), ("die", 3, 1), ("lba", 8, 8))
    ]
    assert submit.payload_size == submit.dtype.itemsize == 16
    done = catalog.events[0x11]
    assert (done.pair, done.key) == ("IO_SUBMIT", "tag")  # told by the partner
    assert catalog.name_of(0x99) == "0x0099"
    assert catalog.names()[[0x10, 0x99]].tolist() == ["IO_SUBMIT", "0x0099"]


def test_catalog_values_labels_and_messages() -> None:
    catalog = Catalog.parse(FULL.encode())
    payload = struct.pack("<HBbIQ", 7, 2, -3, 0, 0xABC)
    submit = catalog.events[0x10]
    assert submit.values(payload) == {"tag": 7, "op": 2, "die": -3, "lba": 0xABC}
    assert submit.message(payload, cpu=5) == "submit tag=7 lba=0xabc op=write on cpu 5"
    assert submit.message(payload[:9], cpu=5) == "submit tag=7 lba=? op=write on cpu 5"
    temp = catalog.events[0x12]
    values = temp.values(struct.pack("<f8s3s", 36.5, b"core\0xx", b"\1\2\3"))
    assert values == {"celsius": 36.5, "label": "core", "blob": b"\1\2\3"}


def test_catalog_round_trips_as_toml_and_json() -> None:
    catalog = Catalog.parse(FULL.encode())
    assert Catalog.from_dict(catalog.to_dict()) == catalog
    assert Catalog.parse(to_toml(catalog).encode()) == catalog


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": None}, "name: missing"),
        ({"nome": "x"}, "nome: unknown key"),
        ({"clock_mhz": 0}, "clock_mhz"),
        ({"clock_mhz": "1"}, "clock_mhz"),
        ({"event": 3}, "event: found 3"),
        ({"event__0": 3}, r"event\[0\]"),
        ({"event__0__opcode": None}, r"event\[0\]\.opcode: missing"),
        ({"event__0__opcode": 65536}, r"event\[0\]\.opcode"),
        ({"event__0__opcode": True}, r"event\[0\]\.opcode"),
        ({"event__1__opcode": 0x10}, r"event\[1\]\.opcode: found 16"),
        ({"event__1__name": "TEMP"}, r"event\[2\]\.name"),
        ({"event__0__name": ""}, r"event\[0\]\.name"),
        ({"event__0__kind": "start"}, r"event\[0\]\.kind: found 'start', expected one of instant"),
        ({"event__0__knd": "x"}, r"event\[0\]\.knd: unknown key"),
        ({"event__0__pccx": "DMA"}, r"event\[0\]\.pccx"),
        ({"event__0__pair": "NO"}, r"event\[0\]\.pair: found 'NO'"),
        ({"event__0__pair": "TEMP"}, r"event\[0\]\.pair: TEMP is of kind counter"),
        ({"event__2__pair": "IO_DONE"}, r"event\[2\]\.pair: found on kind 'counter'"),
        ({"event__0__key": "nope"}, r"event\[0\]\.key: found 'nope'"),
        ({"event__1__key": "cpu"}, r"event\[0\]\.key: found 'tag', but IO_DONE has 'cpu'"),
        ({"event__1__field": []}, r"event\[1\]\.key"),
        ({"event__0__duration": "lab"}, r"event\[0\]\.duration"),
        ({"event__2__duration": "celsius"}, r"event\[2\]\.duration: field celsius is f32"),
        ({"event__0__kind": "complete", "event__0__pair": ""}, r"event\[0\]\.duration: missing"),
        ({"event__2__value": ""}, r"event\[2\]\.value: missing"),
        ({"event__0__duration_unit": "min"}, r"event\[0\]\.duration_unit"),
        ({"event__0__format": "{"}, r"event\[0\]\.format"),
        ({"event__0__format": "{nope}"}, r"event\[0\]\.format: found {nope}"),
        ({"event__0__format": "{tag.__class__}"}, r"event\[0\]\.format"),
        ({"event__0__format": "{tag!r}"}, r"event\[0\]\.format"),
        ({"event__0__format": "{tag:zz}"}, r"event\[0\]\.format: {tag:zz}"),
        ({"event__0__format": "{tag:>99999999}"}, r"event\[0\]\.format: .*up to 1000"),
        ({"event__2__format": "{celsius:.99999999f}"}, r"event\[2\]\.format: .*up to 1000"),
        ({"event__0__format": "{tag:" + "9" * 5000 + "}"}, r"event\[0\]\.format: .*up to 1000"),
        ({"event__0__format": "{tag:c}"}, r"event\[0\]\.format: {tag:c}"),
        ({"event__2__value": "label"}, r"event\[2\]\.value: field label is char"),
        ({"event__0__field__1__enum": {"256": "x"}}, r"\[1\]\.enum: found 256, .* 0 to 255"),
        ({"event__0__field__2__enum": {"-129": "x"}}, r"\[2\]\.enum: found -129, .* -128 to 127"),
        ({"event__0__field__1__enum": {"9" * 4000: "x"}}, r"\[1\]\.enum: found 99"),
        ({"event__0__field__0__type": "u24"}, r"event\[0\]\.field\[0\]\.type"),
        ({"event__0__field__0__type": "char[0]"}, r"event\[0\]\.field\[0\]\.type"),
        ({"event__0__field__0__type": "char[4065]"}, r"event\[0\]\.field\[0\]\.type"),
        ({"event__0__field__3__offset": 4060}, r"event\[0\]\.field\[3\]\.offset"),
        ({"event__0__field__1__name": "tag"}, r"event\[0\]\.field\[1\]\.name"),
        ({"event__0__field__1__name": "a b"}, r"event\[0\]\.field\[1\]\.name"),
        ({"event__0__field__1__name": "seq"}, r"event\[0\]\.field\[1\]\.name"),
        ({"event__0__field__1__enum": {"x": "y"}}, r"event\[0\]\.field\[1\]\.enum\.x"),
        ({"event__0__field__1__enum": {"1": 2}}, r"event\[0\]\.field\[1\]\.enum\.1"),
        ({"event__2__field__0__enum": {"1": "a"}}, r"event\[2\]\.field\[0\]\.enum"),
    ],
)
def test_catalog_error_carries_the_path_of_the_wrong_key(
    change: dict[str, Any], match: str
) -> None:
    with pytest.raises(CatalogError, match=match) as caught:
        Catalog.from_dict(toml(**change), "x.toml")
    assert str(caught.value).startswith("x.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"name = ", b"\xff", b"[" * 5000, b"clock_mhz = " + b"9" * 5000])
def test_catalog_that_is_no_toml(data: bytes) -> None:
    with pytest.raises(CatalogError, match=r"x\.toml"):
        Catalog.parse(data, "x.toml")


def test_catalog_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoInputError):
        Catalog.load(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "producer_sim/hmb_producer_sim/workloads").glob("*.toml")), ids=str
)
def test_catalogs_of_the_simulator_are_valid(path: Path) -> None:
    catalog = Catalog.load(path)
    assert len(catalog) > 0
    assert Catalog.parse(to_toml(catalog).encode()) == catalog


# ---- importers ----


def test_import_c_enums_and_defines() -> None:
    catalog = from_c(
        """
        #define TRACE_BOOT 0x01u   /* boot */
        #define NOT_A_NUMBER "x"
        typedef enum { GC_START = 0x100, /* , = */ GC_DONE, // }
            READ_BEGIN = GC_DONE + 3, READ_END, ALONE_BEGIN, ALIAS_MAX = 0xFFFFF } op_t;
        enum more { PLAIN = 512 };
        """,
        "ids.h",
    )
    assert {e.name: (e.opcode, e.kind, e.pair) for e in catalog} == {
        "TRACE_BOOT": (1, "instant", ""),
        "GC_START": (0x100, "begin", "GC_DONE"),
        "GC_DONE": (0x101, "end", "GC_START"),
        "READ_BEGIN": (0x104, "begin", "READ_END"),
        "READ_END": (0x105, "end", "READ_BEGIN"),
        "ALONE_BEGIN": (0x106, "instant", ""),
        "PLAIN": (512, "instant", ""),
    }
    assert Catalog.parse(to_toml(catalog).encode()) == catalog


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("int x;", "no opcodes"),
        ("enum { A = sizeof(int) };", "A: found"),
        ("enum { A = 1, B = 1 };", "B: opcode 0x1"),
        ("enum { A B };", "enum: found"),
    ],
)
def test_import_c_errors(text: str, match: str) -> None:
    with pytest.raises(CatalogError, match=match):
        from_c(text, "ids.h")


def test_import_csv() -> None:
    catalog = from_csv("Opcode,Name,kind,pair\n1,A,begin,B\n0x2,B,end,\n", "x.csv")
    assert {e.name: (e.opcode, e.pair) for e in catalog} == {"A": (1, "B"), "B": (2, "A")}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n", "column 'a'"),
        ("opcode,name\nx,A\n", "line 2: opcode"),
        ("opcode,name\n1,\n", r"event\[0\]\.name"),
        ("opcode,name,kind\n1,A,odd\n", r"event\[0\]\.kind"),
    ],
)
def test_import_csv_errors(text: str, match: str) -> None:
    with pytest.raises(CatalogError, match=match):
        from_csv(text, "x.csv")


def test_init_has_every_opcode_of_the_dump(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    rows = [record(1, bytes(13), opcode=3), record(2, bytes(20), opcode=3), record(3, opcode=9)]
    path.write_bytes(b"".join(rows) + marker(4, opcode=77))
    catalog, counts = from_dump(open_dump(path), "x")
    assert counts == {3: 2, 9: 1}
    assert [f.type for f in catalog.events[3].fields] == ["u64", "u32", "u8"]
    assert Catalog.parse(to_toml(catalog, counts).encode()) == catalog


def test_cli_catalog_init_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.bin").write_bytes(record(1, opcode=5))
    out = tmp_path / "x.toml"
    assert main(["catalog", "init", str(tmp_path / "x.bin"), "-o", str(out)]) == 0
    assert main(["catalog", "check", str(out)]) == 0
    assert "1 events" in capsys.readouterr().out


def test_cli_catalog_import_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.h").write_text("enum { A_BEGIN = 1, A_END };")
    assert main(["catalog", "import", str(tmp_path / "ids.h")]) == 0
    assert Catalog.parse(capsys.readouterr().out.encode()).events[1].pair == "A_END"


# ---- pairing ----

PAIRS = Catalog(
    "p",
    {
        1: Event(1, "B", kind="begin", pair="E"),
        2: Event(2, "E", kind="end", pair="B"),
        3: Event(3, "S", "begin", pair="D", key="t", fields=(Field("t", "i16", 2, 2),)),
        4: Event(4, "D", "end", pair="S", key="t", fields=(Field("t", "i64", 0, 8),)),
        5: Event(5, "ALONE", kind="begin"),
    },
)


def random_rows(dice: random.Random, count: int) -> list[tuple[int, int, int, bytes]]:
    rows, now = [], 0
    for _ in range(count):
        now += dice.choice([0, 1, 50]) - (dice.random() < 0.1) * min(now, 40)
        opcode, tag = dice.randrange(1, 7), dice.randrange(-2, 4)
        payload = {3: struct.pack("<hh", 0, tag), 4: struct.pack("<q", tag)}.get(opcode, b"")
        rows.append((now, opcode, dice.randrange(3), payload[: dice.choice([1, 9, 9, 9])]))
    return rows


def slow_pairing(rows: list[tuple[int, int, int, bytes]]) -> tuple[set[Any], set[Any]]:
    waiting: dict[Any, int] = {}
    matches, singles = set(), set()
    for row, (now, opcode, cpu, payload) in enumerate(rows):
        if opcode == 6:
            continue
        shape = {3: "<xxh", 4: "<q"}.get(opcode, "<")
        key: Any = cpu
        if shape != "<":
            fits = len(payload) >= struct.calcsize(shape)
            key = struct.unpack_from(shape, payload) if fits else None
        pair = {1: "cpu", 2: "cpu", 3: "tag", 4: "tag", 5: "alone"}[opcode]
        if key is None:
            singles.add(row)
        elif opcode in (1, 3, 5):
            if (pair, key) in waiting:
                singles.add(waiting[pair, key])
            waiting[pair, key] = row
        elif (pair, key) in waiting and rows[waiting[pair, key]][0] <= now:
            matches.add((waiting.pop((pair, key)), row))
        else:
            singles.add(row)
    return matches, singles | set(waiting.values())


@pytest.mark.parametrize("seed", range(5))
def test_pairing_equals_the_slow_one_across_batches(seed: int, tmp_path: Path) -> None:
    rows = random_rows(random.Random(seed), 2000)
    records = [record(i, p, ts_ns=t, opcode=o, cpu=c) for i, (t, o, c, p) in enumerate(rows)]
    path = tmp_path / "x.bin"
    path.write_bytes(b"".join(records))
    pairing = Pairing(PAIRS)
    parts = [pairing.feed(batch) for batch in open_dump(path).batches(max_bytes=9000)]
    assert len(parts) > 4
    parts.append(pairing.finish())
    found = {(int(m["begin_row"]), int(m["end_row"])) for part in parts for m in part.matches}
    single_rows = [int(row) for part in parts for row in part.singles["row"]]
    matches, singles = slow_pairing(rows)
    assert (found, set(single_rows)) == (matches, singles)
    assert len(single_rows) == len(singles)
    assert pairing.matched == len(matches)
    assert pairing.unmatched_begins + pairing.unmatched_ends == len(singles)
    for part in parts:
        for match, span in zip(part.matches, part.durations_ns, strict=True):
            begin, end = rows[int(match["begin_row"])], rows[int(match["end_row"])]
            assert (match["begin_cpu"], match["end_cpu"]) == (begin[2], end[2])
            assert span == end[0] - begin[0]


def test_pairing_memory_is_bounded(tmp_path: Path) -> None:
    count = 5000
    begins = [record(i, struct.pack("<hh", 0, i), opcode=3, ts_ns=i) for i in range(count)]
    path = tmp_path / "x.bin"
    path.write_bytes(b"".join(begins))
    pairing = Pairing(PAIRS)
    pairing._open = OpenTable(64, 512)
    parts = [pairing.feed(batch) for batch in open_dump(path).batches(max_bytes=20_000)]
    assert pairing._open.c.size == 512
    parts.append(pairing.finish())
    rows = [int(row) for part in parts for row in part.singles["row"]]
    assert sorted(rows) == list(range(count))
    assert pairing.unmatched_begins == count


def test_catalog_of_the_documentation_is_valid() -> None:
    text = (ROOT / "docs" / "catalog.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    catalog = Catalog.parse(example.encode(), "docs/catalog.md")
    assert catalog.events[0x102].key == "tag"

# SPDX-License-Identifier: Apache-2.0
"""Parquet, Arrow and SQL, compared with the records they were made of."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.catalog.columns import payload_columns
from hmb_trace.catalog.model import Catalog
from hmb_trace.cli import main
from hmb_trace.dumps.dump import open_dump
from tests.conftest import require_module
from tests.unit.exporting import CATALOG, Row, rows, write_set

CATALOG_TEXT_FIELDS = ("id", "die", "lba", "status", "celsius", "us", "tag", "raw", "x", "n")


@pytest.fixture(scope="module")
def made() -> list[Row]:
    return rows(3000)


@pytest.fixture
def files(tmp_path: Path, made: list[Row]) -> list[str]:
    require_module("pyarrow", "analysis")
    require_module("duckdb", "analysis")
    return write_set(tmp_path / "set", made)


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    """The test catalog as a file: TOML by hand, since the standard library only reads it."""
    lines = ['name = "export"']
    for event in CATALOG.to_dict()["event"]:
        fields = event.pop("field", [])
        lines += ["[[event]]", *(f"{key} = {json.dumps(value)}" for key, value in event.items())]
        for field in fields:
            labels = field.pop("enum", {})
            lines += ["[[event.field]]", *(f"{k} = {json.dumps(v)}" for k, v in field.items())]
            if labels:
                pairs = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in labels.items())
                lines.append(f"enum = {{ {pairs} }}")
    path = tmp_path / "catalog.toml"
    path.write_text("\n".join(lines))
    return str(path)


def check(table: list[dict[str, Any]], made: list[Row]) -> None:
    assert len(table) == len(made)
    for found, row in zip(table, made, strict=True):
        assert (found["seq"], found["ts_ns"], found["opcode"]) == (row.seq, row.ts_ns, row.opcode)
        assert (found["cpu"], found["flags"]) == (row.cpu, 0)
        assert found["payload_len"] == len(row.payload)
        assert found["name"] == CATALOG.name_of(row.opcode)
        for name in CATALOG_TEXT_FIELDS:
            assert found[name] == row.fields.get(name), (row, name)
        whole = row.opcode in (1, 2, 3, 4) or (row.opcode == 5 and len(row.payload) == 2)
        assert found["payload"] == (None if whole else row.payload)


def test_parquet_by_duckdb(tmp_path: Path, files: list[str], catalog: str, made: list[Row]) -> None:
    duckdb = require_module("duckdb", "analysis")
    out = tmp_path / "x.parquet"
    assert main(["convert", *files, "-o", str(out), "--catalog", catalog]) == 0
    check(duckdb.sql(f"select * from '{out}'").to_arrow_table().to_pylist(), made)


def test_arrow_file(tmp_path: Path, files: list[str], catalog: str, made: list[Row]) -> None:
    out = tmp_path / "x.arrow"
    assert main(["convert", *files, "-o", str(out), "--catalog", catalog]) == 0
    import pyarrow as pa  # noqa: PLC0415 - optional

    check(pa.ipc.open_file(out).read_all().to_pylist(), made)


def test_parquet_without_catalog_keeps_every_payload(
    tmp_path: Path, files: list[str], made: list[Row]
) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    out = tmp_path / "x.parquet"
    assert main(["convert", *files, "-o", str(out), "-q"]) == 0
    assert pq.read_table(out)["payload"].to_pylist() == [row.payload for row in made]


def test_columns_of_other_types_get_names_of_their_own() -> None:
    made = Catalog.from_dict(
        {
            "name": "t",
            "event": [
                {"opcode": 1, "name": "a", "field": [{"name": "v", "type": "u8"}]},
                {"opcode": 2, "name": "b", "field": [{"name": "v", "type": "i64"}]},
                {"opcode": 3, "name": "c", "field": [{"name": "v", "type": "u8"}]},
                {"opcode": 4, "name": "d", "field": [{"name": "payload", "type": "u8"}]},
            ],
        }
    )
    columns = {column.name: sorted(column.fields) for column in payload_columns(made)}
    assert columns == {"v": [1, 3], "b_v": [2], "payload_payload": [4]}


def sql(capfd: pytest.CaptureFixture[str], query: str, *args: str) -> list[dict[str, str]]:
    assert main(["sql", query, *args, "--csv"]) == 0
    return list(csv.DictReader(io.StringIO(capfd.readouterr().out)))


def test_sql(
    files: list[str], catalog: str, made: list[Row], capfd: pytest.CaptureFixture[str]
) -> None:
    args = (*files, "--catalog", catalog)
    found = sql(capfd, "select name, count(*) n from trace group by 1 order by 1", *args)
    names = [CATALOG.name_of(row.opcode) for row in made]
    assert {r["name"]: int(r["n"]) for r in found} == {n: names.count(n) for n in set(names)}
    found = sql(capfd, "select * from read_end order by seq", *args)
    ends = [row for row in made if row.opcode == 2]
    assert [(int(r["seq"]), int(r["id"]), int(r["status"])) for r in found] == [
        (row.seq, row.fields["id"], row.fields["status"]) for row in ends
    ]
    # One table twice, and two tables joined.
    found = sql(capfd, "select count(*) n from trace a join trace b on a.seq + 1 = b.seq", *args)
    assert int(found[0]["n"]) == len(made) - 1
    query = "select count(*) n from read_begin b join read_end e on b.id = e.id"
    assert int(sql(capfd, query, *args)[0]["n"]) == len(ends)
    query = "with t as (select seq from trace) select (select count(*) from t) + count(*) n from t"
    assert int(sql(capfd, query, *args)[0]["n"]) == 2 * len(made)
    found = sql(capfd, "from trace limit 2", *args)
    assert found[0]["ts_ns"] == str(made[0].ts_ns)
    assert len(found[0]) >= 12 + len(CATALOG_TEXT_FIELDS)
    found = sql(capfd, "SELECT MAX(SEQ) M FROM TRACE", *args)
    assert int(found[0]["M"]) == len(made) - 1
    found = sql(capfd, "select max(seq) m from trace", *args, "--opcode", "erase")
    assert int(found[0]["m"]) == max(row.seq for row in made if row.opcode == 4)


def test_sql_gaps_and_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require_module("duckdb", "analysis")
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0) + testing.record(5, b"\x01\x02"))
    assert main(["sql", "select lost, seq_after from gaps", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"lost": 4, "seq_after": 5}
    assert main(["sql", "select payload p from trace order by seq", str(path)]) == 0
    assert capfd.readouterr().out.split() == ["p", "0102"]


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("select nope from trace", 2, "nope"),
        ("selec", 2, "sql"),
        ("select * from nothing", 2, "tables: trace, gaps"),
        ("select count(*) from trace", 65, "byte 32"),
    ],
)
def test_sql_errors_are_one_line(
    query: str, code: int, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_module("duckdb", "analysis")
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0) + b"garbage!" * 5)
    assert main(["sql", query, str(path)]) == code
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0))
    assert main(["convert", str(path), "-o", str(tmp_path / "x.parquet")]) == 2
    assert not (tmp_path / "x.parquet").exists()
    assert open_dump(path)

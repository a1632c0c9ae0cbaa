# SPDX-License-Identifier: Apache-2.0
"""SQL: whole rows whatever the query's words, exact output, and nothing out of its reach."""

from __future__ import annotations

import csv
import io
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.cli import main
from tests.conftest import program, require_module

_CATALOG = """
name = "c"
[[event]]
opcode = 1
name = "RD"
[[event.field]]
name = "LBA"
type = "u32"
[[event.field]]
name = "lba"
type = "u32"
[[event.field]]
name = "status"
type = "u8"
enum = { "0" = "OK", "1" = "FAIL" }
[[event]]
opcode = 2
name = "rd"
[[event.field]]
name = "x"
type = "f64"
"""


@pytest.fixture
def dump(tmp_path: Path) -> list[str]:
    require_module("duckdb", "analysis")
    (tmp_path / "c.toml").write_text(_CATALOG)
    records = [
        testing.record(i, struct.pack("<IIB", i, 100 + i, i % 3), opcode=1, ts_ns=10 * i)
        for i in range(6)
    ]
    records.append(testing.record(6, struct.pack("<d", float("nan")), opcode=2, ts_ns=60))
    records.append(testing.record(7, b"\x12\xe5", opcode=9, cpu=3, ts_ns=70))
    (tmp_path / "d.bin").write_bytes(testing.dump(records))
    return [str(tmp_path / "d.bin"), "--catalog", str(tmp_path / "c.toml")]


def ask(capfd: pytest.CaptureFixture[str], query: str, *args: str) -> list[dict[str, Any]]:
    assert main(["sql", query, *args, "--json"]) == 0, capfd.readouterr().err
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("table trace", 8),
        ("select unnest(t) from trace t", 8),
        ("from trace", 8),
        ("select trace.* from trace", 8),
    ],
)
def test_every_column_is_there_whatever_the_words(
    query: str, rows: int, dump: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    every = ask(capfd, "select * from trace", *dump)
    found = ask(capfd, query, *dump)
    assert found == every
    assert len(found) == rows
    assert {"seq", "ts_ns", "payload", "status", "status_label", "epoch", "host_ns", "file"} <= set(
        every[0]
    )
    assert ask(capfd, "select t from trace t", *dump)[0]["t"].keys() == every[0].keys()
    found = ask(capfd, "select columns('LBA|ts_ns|_lba') from trace", *dump)
    assert set(found[1]) == {"ts_ns", "LBA", "RD_lba"}


def test_hash_and_filters_look_at_every_column(
    dump: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    found = ask(capfd, "select count(distinct hash(trace)) n from trace where cpu < 4", *dump)
    assert found == [{"n": 8}]
    found = ask(capfd, "select seq from trace where status = 1 and ts_ns in (10, 40)", *dump)
    assert [row["seq"] for row in found] == [1, 4]
    found = ask(capfd, "select seq from trace where status_label = 'FAIL'", *dump)
    assert [row["seq"] for row in found] == [1, 4]
    assert ask(capfd, "select count(*) n from trace", *dump) == [{"n": 8}]


def test_a_table_may_be_read_more_than_once(
    dump: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    found = ask(capfd, "pivot trace on cpu using count(*) group by opcode", *dump)
    assert {row["opcode"]: row["0"] for row in found} == {1: 6, 2: 1, 9: 0}
    with Path(dump[0]).open("rb") as file:
        done = subprocess.run(
            [program("hmb-trace"), "sql", "select count(*) n from trace a, trace b", "-", "--csv"],
            stdin=file,
            capture_output=True,
            check=True,
            text=True,
        )
    assert done.stdout.split() == ["n", "64"]


def test_names_that_differ_only_in_case_are_kept_apart(
    dump: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(capfd, "select count(*) n from RD", *dump) == [{"n": 6}]
    assert ask(capfd, "select count(*) n from rd_0x0002", *dump) == [{"n": 1}]
    assert ask(capfd, "select LBA, RD_lba from RD limit 1", *dump) == [{"LBA": 0, "RD_lba": 100}]
    names = {row["name"] for row in ask(capfd, "show tables", *dump)}
    assert names == {"trace", "gaps", "RD", "rd_0x0002"}


def test_json_is_json(dump: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    query = "select x, x + 1 as x, 1.5 d, [x] l, payload p, sum(9e18::hugeint) s from trace"
    found = ask(capfd, f"{query} where opcode = 2 group by all", *dump)
    whole = 9 * 10**18
    assert found == [{"x": None, "x_1": None, "d": 1.5, "l": [None], "p": None, "s": whole}]


def test_csv_marks_bytes_and_escapes_controls(
    dump: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    query = "select payload p, '=1' f, chr(27) || chr(8238) e from trace where opcode = 9"
    assert main(["sql", query, *dump, "--csv", "--csv-safe"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert rows == [{"p": "hex:12e5", "f": "'=1", "e": "\\x1b\\u202e"}]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "is empty"),
        (" ; ", "is empty"),
        ("select 1; select 2", "2 statements that answer"),
        ("table trac", "did you mean trace?"),
        ("select nope from trace", "nope"),
        ("select * from read_csv('/etc/passwd')", "--allow-files"),
        ("copy (select 1) to 'out.csv'", "--allow-files"),
        ("set memory_limit = '8GB'", "locked"),
        ("select sum(seq, 2) from trace", "No function matches"),
    ],
)
def test_errors_are_one_short_line(
    query: str,
    says: str,
    dump: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sql", query, *dump]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert len(err) < 400
    assert "LINE 1" not in err
    assert not Path("out.csv").exists()


def test_statements_may_prepare_and_files_may_be_allowed(
    dump: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    query = "create temp table a as select seq from trace; select count(*) n from a"
    assert ask(capfd, query, *dump) == [{"n": 8}]
    out = tmp_path / "o.csv"
    assert main(["sql", f"copy (from trace) to '{out}'", *dump, "--allow-files"]) == 0
    assert out.stat().st_size > 100


def test_percentiles_of_millions_and_a_limit_of_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_module("duckdb", "analysis")
    from tests.integration.test_memory import make_dump

    make_dump(tmp_path / "d.bin", 2_000_000)
    path = str(tmp_path / "d.bin")
    assert ask(capfd, "select quantile_cont(seq, 0.5) q from trace", path) == [{"q": 999999.5}]
    assert (
        main(["sql", "select quantile_cont(seq, 0.5) from trace", path, "--memory", "30MiB"]) == 2
    )
    assert "--memory" in capfd.readouterr().err
    query = "select max(ts_ns) m from (select ts_ns, hash(seq) h from trace order by h)"
    assert ask(capfd, query, path, "--memory", "60MiB") == [{"m": 1_999_999}]

# SPDX-License-Identifier: Apache-2.0
"""Events of flatbuf and bincode files in every command that shows rows (P6)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmb_trace import pccx
from hmb_trace.cli import main
from hmb_trace.errors import UsageError
from hmb_trace.pccx.as_records import cycles_to_ns, open_inputs
from hmb_trace.pccx.events import EventBatch
from hmb_trace.pccx.header import Header

EVENTS = np.array(
    [(0, 0, 100, 1), (1, 50, 7, 2), (300, 400, 0, 9), (2, 500, 2**63, 0)], pccx.EVENT_DTYPE
)
NAMED = EventBatch(EVENTS.copy(), {}, {1: "uca_init", 3: "é" * 80})


def package(path: Path, encoding: str, clock_mhz: int = 1000) -> str:
    header = Header("test")
    header.trace.clock_mhz = clock_mhz
    events: Any = NAMED if encoding == "bincode" else EVENTS
    pccx.write_events(path, events, encoding, header)
    return str(path)


def rows(path: str, capfd: pytest.CaptureFixture[str], *more: str) -> list[dict[str, str]]:
    assert main(["decode", path, "--format", "csv", *more]) == 0
    return list(csv.DictReader(io.StringIO(capfd.readouterr().out)))


@pytest.mark.parametrize("encoding", ["flatbuf", "bincode"])
@pytest.mark.parametrize("clock", [1000, 300])
def test_decode_p6_shows_start_duration_core_type_and_name(
    encoding: str, clock: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = rows(package(tmp_path / "a.pccx", encoding, clock), capfd)
    assert [row["name"] for row in found] == ["MAC_COMPUTE", "DMA_READ", "EVENT_9", "UNKNOWN"]
    for row, event in zip(found, EVENTS, strict=True):
        core, start, duration, _ = event.tolist()
        assert int(row["core"]) == core and int(row["cpu"]) == min(core, 255)
        assert int(row["start_cycle"]) == start and int(row["duration_cycles"]) == duration
        assert int(row["ts_ns"]) == start * 1000 // clock
        assert int(row["duration_ns"]) == min(duration * 1000 // clock, 2**64 - 1)
    if encoding == "bincode":
        assert [row["api_name"] for row in found] == ["", "uca_init", "", "é" * 64]


def test_cycles_to_ns_is_exact_and_saturates() -> None:
    values = np.array([0, 1, 299, 2**53 + 1, 2**64 - 1], "u8")
    for clock in (1, 299, 1000, 1001, 2**32 - 1):
        expected = [min(int(v) * 1000 // clock, 2**64 - 1) for v in values]
        assert cycles_to_ns(values, clock).tolist() == expected, clock


def test_free_types_keep_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from hmb_trace.pccx.events import OTHER_TYPE  # noqa: PLC0415 - only here

    events = EVENTS.copy()
    events["event_type_id"] = OTHER_TYPE
    batch = EventBatch(events, {0: "my op", 1: "my-op", 2: "2nd", 3: "my op"}, {})
    pccx.write_events(tmp_path / "a.pccx", batch, "bincode", Header("test"))
    found = [row["name"] for row in rows(str(tmp_path / "a.pccx"), capfd)]
    assert found[0] == found[3] == "my_op"
    assert len(set(found)) == 3


def test_sql_report_and_exports_of_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = package(tmp_path / "a.pccx", "flatbuf")
    assert main(["sql", "select core, duration_ns from MAC_COMPUTE", path, "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0]) == {"core": 0, "duration_ns": 100}
    for name in ("a.html", "a.parquet", "a.pftrace", "a.jsonl"):
        words = ["report", path] if name == "a.html" else ["convert", path]
        assert main([*words, "-o", str(tmp_path / name), "-q"]) == 0
    assert "MAC_COMPUTE" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 4
    assert main(["decode", path, "--where", "core >= 2", "--fields", "core"]) == 0
    assert capfd.readouterr().out.split() == ["300", "2"]


def test_events_are_no_dump(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = package(tmp_path / "a.pccx", "flatbuf")
    for words in (["filter", path, "-o", "x.bin"], ["pack", path, "-o", str(tmp_path / "b.pccx")]):
        assert main(words) == 65
        assert "expected 'raw'" in capfd.readouterr().err
    (tmp_path / "c.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="read alone"):
        open_inputs([path, tmp_path / "c.bin"])


def test_many_events_stream(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """More than one batch; seq is the event's place in the file."""
    count = 200_000
    events = np.zeros(count, pccx.EVENT_DTYPE)
    events["start_cycle"] = np.arange(count)
    pccx.write_events(tmp_path / "a.pccx", events, "flatbuf", Header("test"))
    dump = open_inputs([tmp_path / "a.pccx"])
    at = 0
    for batch in dump.batches():
        assert batch.seq[0] == at and (np.diff(batch.seq.astype("i8")) == 1).all()
        at += len(batch)
    assert at == count

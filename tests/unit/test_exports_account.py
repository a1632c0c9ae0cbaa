# SPDX-License-Identifier: Apache-2.0
"""What a capture is missing goes along into every export; epochs keep their own clocks (R16)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hmb_trace.cli import main
from tests.conftest import require_module, require_program
from tests.unit.captures import HOST, two_epochs

LINE = "hmb-trace: lossy: 5 records lost in 1 gap (ring-overflow)"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return two_epochs(tmp_path / "set")


def convert(capture: Path, name: str, *more: str) -> Path:
    out = capture.parent / name
    assert main(["convert", str(capture), "-o", str(out), *more]) == 0
    return out


@pytest.mark.parametrize(
    "name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow", "a.pftrace", "a.pccx", "ctf"]
)
def test_the_closing_line_tells_the_account(
    name: str, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_module("perfetto", "analysis")
    convert(capture, name, *(["--to", "ctf"] if name == "ctf" else []))
    assert LINE in capfd.readouterr().err.splitlines()
    if name != "ctf":
        assert main(["convert", str(capture), "-o", str(capture.parent / name), "-q"]) == 0
        assert capfd.readouterr().err == ""


# ---- Parquet and Arrow ----


def read_table(path: Path) -> Any:
    require_module("pyarrow", "analysis")
    import pyarrow as pa  # noqa: PLC0415 - optional
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    if path.suffix == ".parquet":
        return pq.read_table(path), pq.ParquetFile(path).metadata.metadata
    with pa.ipc.open_file(path) as file:
        table = file.read_all()
    return table, table.schema.metadata


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables_carry_the_account_and_say_where_a_record_stands(name: str, capture: Path) -> None:
    table, about = read_table(convert(capture, name, "-q"))
    assert about[b"hmb_trace.verdict"] == b"lossy: 5 records lost in 1 gap (ring-overflow)"
    account = json.loads(about[b"hmb_trace"])["account"]
    assert (account["verdict"], account["lost"]) == ("lossy", 5)
    found = table.to_pydict()
    assert found["epoch"] == [0] * 20 + [1] * 20
    assert found["host_ns"][0] == HOST and found["host_ns"][20] == HOST + 10**9
    assert {Path(one).name[:8] for one in found["file"]} == {"d-000001", "d-000002"}


def test_clock_relative_and_host_have_columns(capture: Path) -> None:
    table, _ = read_table(convert(capture, "r.parquet", "-q", "--clock", "relative"))
    assert table["relative_ns"].to_pylist()[:2] == [0, 1000]
    assert table["relative_ns"].to_pylist()[20] == 10**9
    table, _ = read_table(convert(capture, "h.parquet", "-q", "--clock", "host"))
    assert table["host_time"].cast("int64").to_pylist() == table["host_ns"].to_pylist()


# ---- Perfetto ----


def trace_of(path: Path) -> Any:
    require_module("perfetto", "analysis")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 - optional

    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


def test_perfetto_has_a_clock_snapshot_per_epoch_and_the_verdict(capture: Path) -> None:
    trace = trace_of(convert(capture, "a.pftrace", "-q", "--clock", "host"))
    snapshots = [p.clock_snapshot for p in trace.packet if p.HasField("clock_snapshot")]
    shifts = {
        (s.clocks[0].clock_id, s.clocks[1].timestamp - s.clocks[0].timestamp) for s in snapshots
    }
    assert shifts == {(128, HOST), (129, HOST + 10**9)}
    assert {s.clocks[1].clock_id for s in snapshots} == {s.primary_trace_clock for s in snapshots}
    events = [p for p in trace.packet if p.HasField("track_event")]
    assert {p.timestamp_clock_id for p in events} == {1}
    instants = [p.timestamp for p in events if p.track_event.type == 3]
    assert sorted(instants)[20] == HOST + 10**9
    about = {m.name: m.string_value for p in trace.packet for m in p.chrome_events.metadata}
    assert about["hmb_trace.verdict"] == "lossy"
    assert json.loads(about["hmb_trace.account"])["reasons"][0]["kind"] == "ring-overflow"


def test_perfetto_epochs_have_tracks_of_their_own(capture: Path) -> None:
    trace = trace_of(convert(capture, "a.pftrace", "-q"))
    names = [p.track_descriptor.name for p in trace.packet if p.HasField("track_descriptor")]
    assert {name for name in names if "2" in name} == {"cpu 2 (epoch 1)"}
    assert {"cpu 0", "cpu 1"} <= set(names)
    lost = [p for p in trace.packet for i in p.interned_data.event_names if i.name == "lost 5"]
    assert lost


# ---- CTF ----


def test_ctf_has_a_clock_for_each_epoch(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tool = require_program("babeltrace2")
    out = convert(capture, "ctf", "--to", "ctf")
    assert sorted(p.name for p in out.iterdir()) == ["clock-001", "clock-002"]
    assert "2 traces (a clock each)" in capfd.readouterr().err
    run = subprocess.run(
        [tool, "--clock-seconds", str(out)], capture_output=True, text=True, check=True
    )
    times = re.findall(r"^\[(\d+)\.(\d+)\]", run.stdout, re.MULTILINE)
    found = [int(s) * 10**9 + int(ns) for s, ns in times]
    assert found[:20] == [HOST + 1000 * i for i in range(20)]
    assert found[20:] == [HOST + 10**9 + 1000 * i for i in range(20)]


def test_ctf_environment_tells_the_account(capture: Path) -> None:
    out = convert(capture, "ctf", "--to", "ctf", "-q")
    text = (out / "clock-002" / "metadata").read_text(encoding="utf-8")
    assert 'verdict = "lossy";' in text and "lost = 5;" in text and "epoch = 1;" in text
    assert 'reason_1 = "ring-overflow: 5' in text
    assert "absolute = true;" in text


def test_ctf_of_one_clock_is_one_trace(capture: Path) -> None:
    (first, _) = sorted(capture.glob("*.bin"))
    out = convert(capture, "ctf", "--to", "ctf", "-q")
    one = capture.parent / "one"
    assert main(["convert", str(first), "--to", "ctf", "-o", str(one), "-q"]) == 0
    assert sorted(p.name for p in one.iterdir()) == [first.name, "metadata"]
    assert (one / first.name).samefile(first)
    assert out.is_dir()


# ---- the report ----


def test_report_tells_verdict_reasons_and_epochs(capture: Path) -> None:
    out = capture.parent / "a.html"
    assert main(["report", str(capture), "-o", str(out), "-q"]) == 0
    text = out.read_text(encoding="utf-8")
    assert '<span class="badge bad">✗ lossy: 5 records lost in 1 gap (ring-overflow)</span>' in text
    assert 'data-verdict="lossy"' in text
    data = re.search(r'id="report-data">(.*?)</script>', text)
    assert data
    timeline = json.loads(data[1])["timeline"]
    assert sum(timeline["lost"]) == 5
    assert [mark[1] for mark in timeline["marks"]] == ["new epoch"]
    assert "2 epochs, shown one after the other" in text


@pytest.mark.parametrize(
    ("spoil", "badge"), [("nothing", "good"), ("sidecar", "grey"), ("lost", "bad")]
)
def test_report_badge_has_the_colour_of_the_verdict(spoil: str, badge: str, capture: Path) -> None:
    second = max(capture.glob("*.bin"))
    if spoil == "sidecar":
        second.with_suffix(".json").unlink()
    path = min(capture.glob("*.bin")) if spoil == "lost" else second
    out = capture.parent / "a.html"
    single = capture.parent / "d-000001-20260101T000000Z.bin"
    single.write_bytes(path.read_bytes())
    beside = path.with_suffix(".json")
    if beside.exists():
        text = beside.read_text(encoding="utf-8").replace("d-000002", "d-000001")
        text = text.replace('"number": 2', '"number": 1')
        single.with_suffix(".json").write_text(text, encoding="utf-8")
    assert main(["report", str(single), "-o", str(out), "-q"]) == 0
    assert f'<span class="badge {badge}">' in out.read_text(encoding="utf-8")


# ---- top of a directory (R2) ----


def test_top_of_a_directory_tells_verdict_and_losses(
    capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["top", str(capture), "--once", "--interval", "50ms"]
    assert main(words) == 0
    out = capfd.readouterr().out
    assert "lossy: 5 records lost in 1 gap (ring-overflow)" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["lost"], found["gaps"], found["sealed"]) == (5, 1, 2)
    assert found["verdict"].startswith("lossy")

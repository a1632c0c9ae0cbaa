# SPDX-License-Identifier: Apache-2.0
"""A .pccx gives back what the dump and its sidecars say (P7, R12, R16)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import pccx
from hmb_trace.cli import main
from hmb_trace.dumps.account import account
from hmb_trace.dumps.dump import open_dump
from hmb_trace.pccx import output, provenance
from hmb_trace.pccx.packing import PackOptions
from tests.unit.captures import HOST, two_epochs


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return two_epochs(tmp_path / "set")


def packed(capture: Path, encoding: str = "raw") -> Path:
    out = capture.parent / f"{encoding}.pccx"
    assert main(["pack", "-q", "-e", encoding, str(capture), "-o", str(out)]) == 0
    return out


def plain(path: Path) -> dict[str, Any]:
    """An account without the names of files and places in them."""
    made = account(open_dump(path)).as_dict()
    for one in (*made["reasons"], *made["epochs"], *made["clock_steps"]):
        for key in ("file", "segment", "offset"):
            one.pop(key, None)
    return made


def test_the_account_of_a_package_is_that_of_the_set(capture: Path) -> None:
    out = packed(capture)
    shutil.rmtree(capture)
    capture = two_epochs(capture)
    assert plain(out) == plain(capture)
    made = account(open_dump(out))
    assert (made.verdict, made.lost, len(made.epochs)) == ("lossy", 5, 2)
    assert made.boundaries == [[0, 400, 800]]
    assert made.epochs[1].offset == 800


def test_header_p7_carries_the_account_and_the_clocks(capture: Path) -> None:
    for encoding in ("raw", "flatbuf", "bincode"):
        about = pccx.inspect(packed(capture, encoding))["header"]["hmb_trace"]
        assert (about["lost"], about["gaps"], about["complete"]) == (5, 1, False)
        found = about["account"]
        assert (found["verdict"], found["lost"]) == ("lossy", 5)
        (reason,) = found["reasons"]
        assert (reason["kind"], reason["count"], reason["offset"]) == ("ring-overflow", 5, 400)
        assert reason["file"] == "d-000001-20260101T000000Z.bin"
        assert [one["offset"] for one in about["clocks"]] == [0, 800]


@pytest.mark.parametrize("command", ["decode", "again"])
def test_host_times_r16_are_those_of_the_set(
    command: str, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = packed(capture)
    if command == "again":  # a package of a package
        again = capture.parent / "again.pccx"
        assert main(["pack", "-q", str(out), "-o", str(again)]) == 0
        out = again
    found = []
    for path in (capture, out):
        words = ["decode", str(path), "--clock", "host", "--format", "csv", "--fields", "time,seq"]
        assert main(words) == 0
        found.append(capfd.readouterr().out.splitlines())
    assert found[0] == found[1]
    assert len(found[0]) == 41


def test_info_of_a_package_says_the_verdict(
    capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for encoding in ("raw", "flatbuf"):
        assert main(["info", "--json", str(packed(capture, encoding))]) == 0
        found = json.loads(capfd.readouterr().out)
        assert (found["verdict"], found["lost"], found["lost_exact"]) == ("lossy", 5, True)
        assert [r["kind"] for r in found["reasons"]] == ["ring-overflow"]


def test_many_reasons_are_summed_up_where_they_have_no_room() -> None:
    reasons = [{"kind": "ring-overflow", "count": 2, "text": "x" * 80}] * 5000
    reasons += [{"kind": "host-died", "count": None, "text": ""}] * 3
    about = {"account": {"reasons": reasons, "lost": 10_000}}
    made = provenance.fitted(about, 20_000)
    assert len(json.dumps(made)) <= 20_000
    kept = made["account"]["reasons"]
    assert sum(r["count"] or 0 for r in kept) == 10_000
    assert kept[-1]["kind"] == "host-died" and kept[-1]["count"] is None


def test_a_package_larger_than_memory_keeps_room_for_its_account(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "HELD", 100)
    out = packed(capture)
    assert account(open_dump(out)).lost == 5
    assert pccx.verify(out, strict=True)["checksum"] == "ok"


def test_a_header_with_nonsense_for_clocks_has_none(capture: Path) -> None:
    made = pccx.read(packed(capture)).header
    made.extra["hmb_trace"]["clocks"] = [{"offset": -1}, {"offset": 0, "pairs": 7}, 9, None]
    made.extra["hmb_trace"]["account"]["epochs"] = [1, 2]
    bad = capture.parent / "bad.pccx"
    with pccx.read(packed(capture)) as file:
        pccx.write(bad, bytes(file.payload), made)
    assert main(["decode", str(bad), "--clock", "host"]) == 2
    assert main(["decode", str(bad)]) == 0


def test_uncertain_pairs_are_told_by_pack(capture: Path) -> None:
    result = pccx.pack([capture], capture.parent / "x.pccx", PackOptions("flatbuf"))
    assert result.account.lost == 5
    assert HOST


@pytest.mark.parametrize("encoding", ["raw", "flatbuf", "bincode"])
def test_gaps_and_verify_p7_say_what_the_header_carries(
    encoding: str, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(packed(capture, encoding))
    assert main(["gaps", "--json", out]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["kind"], row["lost"]) for row in rows if row["lost"]] == [("ring-overflow", 5)]
    assert main(["gaps", "--strict", out]) == 1
    assert "lossy: 5 records lost" in capfd.readouterr().out
    assert main(["verify", out]) == 0
    assert "warning: lossy: 5 records lost" in capfd.readouterr().err
    assert main(["verify", "--strict", out]) == 1
    assert "problem: lossy: 5 records lost" in capfd.readouterr().err


@pytest.mark.parametrize("encoding", ["flatbuf", "bincode"])
def test_events_r16_have_no_host_time_from_the_offsets_of_the_dump(
    encoding: str, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(packed(capture, encoding))
    words = ["sql", "--json", "select distinct epoch, host_ns from trace", out]
    assert main(words) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert found == [{"epoch": None, "host_ns": None}]  # two clocks: which is it?


@pytest.mark.parametrize(
    ("name", "value"), [("epoch", -1), ("epoch", 2**64), ("started_ns", 2**70), ("clock", [[-1]])]
)
def test_a_sidecar_with_numbers_that_cannot_be_is_damaged(
    name: str, value: Any, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    beside = min(capture.glob("*.json"))
    made = json.loads(beside.read_text())
    made[name] = [{"ts_ns": -1, "host_ns": 1}] if name == "clock" else value
    beside.write_text(json.dumps(made))
    for words in (["decode", "--clock", "host"], ["report", "-o", str(capture.parent / "a.html")]):
        assert main([*words, str(capture)]) == 0
        assert "not a sidecar" in capfd.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""hmb-trace why names the planted fault first, and little where nothing was planted."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.cli import main
from tests.conftest import Programs
from tests.integration.daemonlib import Rig

AT_REST = [  # a ring that was filled, then drained once
    ("corrupt-magic@3000", "damage"),
    ("oversize-length@3000", "damage"),
    ("torn-record@3000", "damage"),
    ("lying-length@3000", "damage"),
    ("unknown-flags@3000", "damage"),
    ("garbage@3000", "damage"),
    ("duplicate-seq@3000", "order"),
    ("backward-seq@3000", "restart"),
    ("overflow-burst@3000", "loss"),
    ("unknown-ring-flags@500", "ring"),
    ("time-jump-back@3000", "clock"),
]
LIVE = [
    # At rest, or faster than the host's clock can follow, nothing tells a jump from a silence.
    ("time-jump@3000", "clock", "20k/s"),
    ("reset@3000", "restart", "max"),
    ("frozen-reset:20@3000", "restart", "max"),
]


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def findings(
    rig: Rig, capsys: pytest.CaptureFixture[str], *, code: int = 1
) -> list[dict[str, Any]]:
    catalog = rig.folder / "ftl.toml"
    catalog.write_text(rig.programs.run("hmb-firmware-sim", "--print-catalog", "ftl").stdout)
    capsys.readouterr()
    assert main(["why", str(rig.out), "--catalog", str(catalog), "--json", "-q"]) == code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return found


@pytest.mark.parametrize(("fault", "kind"), AT_REST)
def test_the_fault_at_rest_comes_first(
    fault: str, kind: str, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.fill("--workload", "ftl", "--ring-size", "2MiB", "--count", "6000", "--fault", fault)
    rig.drain()
    assert [f["kind"] for f in findings(rig, capsys)][:1] == [kind]


@pytest.mark.parametrize(("fault", "kind", "rate"), LIVE)
def test_the_fault_of_a_live_ring_comes_first(
    fault: str, kind: str, rate: str, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = rig.simulate(
        *("--workload", "ftl", "--ring-size", "64KiB", "--count", "6000", "--rate", rate),
        *("--on-full", "block", "--fault", fault, "--linger", "20s"),
    )
    daemon = rig.daemon("--on-frozen", "wait")
    simulator.expect(0)
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    assert [f["kind"] for f in findings(rig, capsys)][:1] == [kind]


def test_a_healthy_capture_has_few_findings(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fill("--workload", "ftl", "--ring-size", "16MiB", "--count", "200000")
    rig.drain()
    found = findings(rig, capsys)
    assert {f["kind"] for f in found} <= {"error", "warning"} and len(found) <= 3


CATALOG = """
name = "c"
[[event]]
opcode = 1
name = "CMD"
kind = "begin"
pair = "CMD_DONE"
key = "tag"
field = [{ name = "tag", type = "u32" }]
[[event]]
opcode = 2
name = "CMD_DONE"
kind = "end"
pair = "CMD"
key = "tag"
field = [{ name = "tag", type = "u32" }]
[[event]]
opcode = 3
name = "HEAP"
kind = "counter"
value = "bytes"
field = [{ name = "bytes", type = "u32" }]
"""


def capture(folder: Path, **odd: int) -> str:
    """1,000 commands of 5 µs each; what is odd about them is named."""
    made, ts = [], 1000
    for i in range(1000):
        ts += 10_000 + (odd.get("silence", 0) if i == 500 else 0)
        tag = i.to_bytes(4, "little")
        made.append((1, ts, tag))
        heap = 1000 + i * odd.get("leak", 0)
        made.append((3, ts + 1, heap.to_bytes(4, "little")))
        ts += 5000 + (odd.get("slow", 0) if i == 300 else 0)
        if i != odd.get("lost_end", -1):
            made.append((2, ts, tag))
    records = (testing.record(s, p, ts_ns=t, opcode=o) for s, (o, t, p) in enumerate(made))
    (folder / "d.bin").write_bytes(b"".join(records))
    (folder / "c.toml").write_text(CATALOG)
    return str(folder / "d.bin")


@pytest.mark.parametrize(
    ("odd", "kind", "subject"),
    [
        ({"silence": 50_000_000}, "silence", "all records"),
        ({"slow": 300_000}, "slow", "CMD"),
        ({"leak": 100}, "runaway", "HEAP"),
        ({"lost_end": 200}, "unended", "CMD"),
    ],
)
def test_what_is_odd_comes_first(
    odd: dict[str, int], kind: str, subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture(tmp_path, **odd)
    assert main(["why", path, "--catalog", str(tmp_path / "c.toml"), "--json", "-q"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert (found[0]["kind"], found[0]["subject"]) == (kind, subject)


def test_nothing_is_invented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path)
    assert main(["why", path, "--catalog", str(tmp_path / "c.toml"), "-q"]) == 0
    assert capsys.readouterr().out == "nothing is wrong as far as can be seen\n"

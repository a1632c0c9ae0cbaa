# SPDX-License-Identifier: Apache-2.0
"""A selection that finds nothing says so, and what the dump covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmb_trace import testing
from hmb_trace.cli import main
from hmb_trace.dumps.sidecar import ClockPair, Device, Sidecar, sidecar_path

BASE = 1_700_000_000 * 10**9


@pytest.fixture
def dump(tmp_path: Path) -> str:
    path = tmp_path / "a.bin"
    made = (testing.record(i, ts_ns=1000 * i, opcode=i % 2) for i in range(9))
    path.write_bytes(testing.dump(made))
    sidecar = Sidecar(
        segment=path.name,
        number=1,
        label="a",
        device=Device(path="x"),
        bytes=9 * 32,
        records=9,
        clock=[ClockPair(ts_ns=0, host_ns=BASE)],
    )
    sidecar_path(path).write_bytes(sidecar.encode())
    return str(path)


@pytest.mark.parametrize("command", [["decode"], ["filter"], ["stats"], ["sql", "from trace"]])
@pytest.mark.parametrize("chosen", [["--cpu", "9"], ["--from", "+99s"], ["--where", "seq > 100"]])
def test_nothing_found_is_one_line_on_stderr(
    command: list[str], chosen: list[str], dump: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, dump, *chosen]) == 0
    err = capfd.readouterr().err
    assert (
        "hmb-trace: 0 of 9 records; the dump covers seq 0..8, firmware time 0..8000 ns, "
        "host time 2023-11-14T22:13:20.000Z..2023-11-14T22:13:20.000Z"
    ) in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["decode", "filter", "stats"])
def test_a_catalog_that_fits_nothing_is_told(
    command: str, dump: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\n[[event]]\nopcode = 77\nname = "x"\n')
    assert main([command, dump, "--catalog", str(tmp_path / "c.toml")]) == 0
    assert "catalog c fits 0 of 2 opcodes" in capfd.readouterr().err


def test_an_empty_dump_and_a_whole_one_are_quiet(
    dump: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", dump]) == 0
    assert "0 of" not in capfd.readouterr().err

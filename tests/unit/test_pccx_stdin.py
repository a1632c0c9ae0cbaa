# SPDX-License-Identifier: Apache-2.0
"""A .pccx on standard input: every command takes it like a file."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from hmb_trace import testing
from hmb_trace.cli import main

DATA = testing.dump(testing.record(i, b"abcd", ts_ns=1000 * i) for i in range(50))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    (tmp_path / "a.bin").write_bytes(DATA)
    assert main(["pack", str(tmp_path / "a.bin"), "-q"]) == 0
    data = (tmp_path / "a.pccx").read_bytes()
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", stdin)
    return data


def test_info_of_a_piped_package(package: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json", "-"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["kind"], found["events"], found["checksum"]) == ("pccx", 50, "ok")


@pytest.mark.parametrize(
    "words", [["decode", "-"], ["convert", "-", "--to", "csv", "-o", "-"], ["stats", "-"]]
)
def test_records_of_a_piped_package(
    words: list[str], package: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert "49" in capfd.readouterr().out


def test_unpack_of_a_piped_package(package: bytes, tmp_path: Path) -> None:
    assert main(["unpack", "-", "-o", str(tmp_path / "b.bin"), "-q"]) == 0
    assert (tmp_path / "b.bin").read_bytes() == DATA

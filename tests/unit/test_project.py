# SPDX-License-Identifier: Apache-2.0
"""The project's own machinery: set-up that says what is missing, licences, skip or fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, require


def check_tools(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "scripts/check_tools.sh"],
        cwd=ROOT,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )


def test_setup_names_the_compiler_that_is_missing() -> None:
    result = check_tools(PATH="/nonexistent", PYTHON=sys.executable)
    assert result.returncode != 0
    assert "apt install gcc" in result.stderr


def test_setup_names_venv_when_python_lacks_it(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    result = check_tools(PATH="/usr/bin:/bin", PYTHON=str(python))
    assert result.returncode != 0
    assert "apt install python3-venv" in result.stderr


def test_setup_is_silent_when_nothing_is_missing() -> None:
    result = check_tools(PATH="/usr/local/bin:/usr/bin:/bin", PYTHON=sys.executable)
    assert (result.returncode, result.stderr) == (0, "")


def test_make_help_lists_the_documented_targets() -> None:
    text = subprocess.check_output(["make", "--no-print-directory", "help"], cwd=ROOT, text=True)
    for target in ("demo", "test", "lint", "bench", "bench-peers", "fuzz", "docs", "deb"):
        assert f"make {target} " in text, text


def test_require_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    require(True, "never said")
    monkeypatch.setitem(require.__globals__, "CI", False)
    with pytest.raises(pytest.skip.Exception, match="no such thing"):
        require(False, "no such thing")
    monkeypatch.setitem(require.__globals__, "CI", True)
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        require(False, "no such thing")


def test_make_docs_writes_a_page_for_every_command(tmp_path: Path) -> None:
    script = [sys.executable, "scripts/build_docs.py", "--man", str(tmp_path)]
    subprocess.run(script, cwd=ROOT, check=True)
    pages = {path.name for path in tmp_path.rglob("*.[1578]")}
    assert {"hmb-trace.1", "hmb-trace-daemon.8", "hmb-firmware-sim.1"} <= pages
    assert {"hmb-trace-daemon.toml.5", "hmb-trace-format.5", "hmb-trace-durability.7"} <= pages
    commands = (ROOT / "src/hmb_trace/cli").glob("[a-z]*.py")
    assert {f"hmb-trace-{path.stem}.1" for path in commands} <= pages
    for path in tmp_path.rglob("*.[1578]"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith('.\\" -*- coding: utf-8')
        assert ".SH NAME" in text

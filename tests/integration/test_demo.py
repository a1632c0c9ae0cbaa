# SPDX-License-Identifier: Apache-2.0
"""make demo, on a small scale: all three acts, the books, the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def test_demo_balances_its_books_and_leaves_its_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "scripts/demo.py", "--output", str(out), "--scale", "0.02"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60,000" in done.stdout
    assert done.stdout.count("✓ produced = dumped + reported lost") == 3
    assert "✗" not in done.stdout
    assert "lost = 0" in done.stdout
    for name in ("ftl.toml", "demo.pccx", "report.html"):
        assert (out / name).stat().st_size > 1000
    assert list(out.glob("paced/capture/*.bin"))
    assert not list(out.glob("*/capture/*.part"))

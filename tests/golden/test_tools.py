# SPDX-License-Identifier: Apache-2.0
"""What the tools print, to the letter. A file in tools/ is a test: its first line is the command.

HMB_GOLDEN_UPDATE=1 pytest tests/golden/test_tools.py writes the files anew; read the diff.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from hmb_trace.cli import main
from tests.conftest import ROOT

CASES = sorted((Path(__file__).parent / "tools").glob("*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_output_to_the_letter(
    case: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    head = case.read_text(encoding="utf-8").splitlines()[0]
    program, *args = shlex.split(head.removeprefix("$ "))
    assert program == "hmb-trace"
    code = main(args)
    out, err = capfd.readouterr()
    found = f"{head}\n{out}{err}exit code {code}\n"
    if os.environ.get("HMB_GOLDEN_UPDATE"):
        case.write_text(found, encoding="utf-8")
    assert found == case.read_text(encoding="utf-8")

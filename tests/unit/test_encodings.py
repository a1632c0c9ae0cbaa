# SPDX-License-Identifier: Apache-2.0
"""Names and texts that the terminal's encoding has no letters for are no traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hmb_trace import testing
from tests.conftest import program, require_module


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["info", "--json"],
        ["verify"],
        ["gaps"],
        ["stats"],
        ["decode", "--fields", "seq,file"],
        ["sql", "select file from trace", "--json"],
        ["sql", "select file from trace", "--csv"],
    ],
)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_name_beyond_the_encoding_is_escaped(
    words: list[str], encoding: str, tmp_path: Path
) -> None:
    if words[0] == "sql":
        require_module("duckdb", "analysis")
    path = tmp_path / "\ud55c\uae00.bin"
    path.write_bytes(testing.record(0) + testing.record(5))
    done = subprocess.run(
        [program("hmb-trace"), *words, str(path)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr

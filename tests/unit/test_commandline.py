# SPDX-License-Identifier: Apache-2.0
"""Errors on stderr: one line, whatever is in it and wherever it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmb_trace import commandline, testing
from tests.conftest import ROOT, program


def test_no_control_character_of_a_file_name_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commandline.fail("prog", "cannot open x\x1b[31m\x9b1m\ny\udcff한: gone")
    assert capsys.readouterr().err == "prog: cannot open x\\x1b[31m\\x9b1m y\\udcff한: gone\n"


def test_an_error_does_not_go_to_stdout_where_stderr_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    commandline.fail("prog", "wrong")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "words",
    ["info X", "decode X", "convert X --to csv -o -", "filter X", "gaps X --csv", "report X -o -"],
)
def test_closed_stdout_is_an_error_in_one_line(tmp_path: Path, words: str) -> None:
    """Python leaves None there: some prints vanish, others end in a traceback."""
    dump = tmp_path / "x.bin"
    dump.write_bytes(testing.dump([testing.record(0), testing.record(9)]))
    done = without(1, words.replace("X", str(dump)))
    assert (done.returncode, done.stderr) == (74, "hmb-trace: I/O: Bad file descriptor\n")


@pytest.mark.parametrize("words", ["info -", "decode -", "catalog import -"])
def test_closed_stdin_is_an_error_in_one_line(words: str) -> None:
    done = without(0, words)
    assert done.returncode == 74
    assert done.stderr.endswith(": Bad file descriptor\n")
    assert done.stderr.count("\n") == 1


def without(fd: int, words: str) -> subprocess.CompletedProcess[str]:
    """Run hmb-trace with one of its standard files closed."""
    return subprocess.run(
        [program("hmb-trace"), *words.split()],
        preexec_fn=lambda: os.close(fd),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_lists_every_command_without_importing_one() -> None:
    code = (
        "import sys\n"
        "from hmb_trace.cli import main\n"
        "main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('hmb_trace.cli.') or m == 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    names = [path.stem for path in (ROOT / "src/hmb_trace/cli").glob("[a-z]*.py")]
    listed = [line.split()[0] for line in shown if line[:2] == "  " and line[2:3].isalpha()]
    assert set(names) <= set(listed) and loaded == "[]"

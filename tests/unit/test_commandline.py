# SPDX-License-Identifier: Apache-2.0
"""Errors on stderr: one line, whatever is in it and wherever it goes."""

from __future__ import annotations

import sys

import pytest

from hmb_trace import commandline


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

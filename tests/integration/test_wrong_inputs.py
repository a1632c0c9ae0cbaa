# SPDX-License-Identifier: Apache-2.0
"""Every command against every kind of wrong input: one right line, the right exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from hmb_trace import cli
from tests.conftest import Programs, require_module

# How each command that reads a file is called; {} is the file, {out} one that does not exist.
READERS = {
    "catalog": ["check", "{}"],
    "convert": ["--to", "csv", "-o", "{out}", "{}"],
    "decode": ["{}"],
    "diff": ["{}", "{}"],
    "filter": ["{}"],
    "gaps": ["{}"],
    "info": ["{}"],
    "pack": ["{}", "-o", "{out}"],
    "repair": ["{}"],
    "report": ["{}", "-o", "{out}"],
    "sql": ["select 1", "{}"],
    "stats": ["{}"],
    "unpack": ["{}", "-o", "{out}"],
    "verify": ["{}"],
    "view": ["{}"],
    "why": ["{}"],
}
NEEDS = {"sql": "duckdb", "view": "textual"}
OTHERS = {"completion", "ctl", "doctor", "top"}  # talk to a daemon or the system, and read no file
EMPTY_FILE = {
    "catalog": 78,
    "diff": 2,
    "unpack": 65,
    "view": 2,
}  # elsewhere an empty dump is a good dump
FOREIGN = {"catalog": 78}
DIRECTORY = {"repair": 2}


def commands() -> list[str]:
    return cli.hmb_trace.list_commands(click.Context(cli.hmb_trace))


def run(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], words: list[str]
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    found = capsys.readouterr()
    return code, found.out, found.err


def call(
    capsys: pytest.CaptureFixture[str], name: str, file: Path, out: Path
) -> tuple[int, str, str]:
    """A reader on a file."""
    if name in NEEDS:
        require_module(NEEDS[name], "all")
    words = [word.format(file, out=out) for word in READERS[name]]
    return run(capsys, cli.main, [name, *words])


def one_line(error: str, *parts: str) -> None:
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    for part in parts:
        assert part in error


def test_every_command_is_in_the_tables_of_this_test() -> None:
    assert set(commands()) - OTHERS == set(READERS)


@pytest.mark.parametrize("name", commands())
def test_help_has_words_and_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, text, error = run(capsys, cli.main, [name, "--help"])
    assert (code, error) == (0, "")
    assert text.startswith("Usage: hmb-trace")
    assert len(text.splitlines()[2].strip()) > 10
    if name != "catalog":  # a group: its subcommands have them
        assert "xample" in text


@pytest.mark.parametrize("name", commands())
def test_unknown_option_is_usage(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, _, error = run(capsys, cli.main, [name, "--no-such-option"])
    assert code == 2
    one_line(error, "--no-such-option")


def test_unknown_command_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, cli.main, ["decod", "x"])
    assert code == 2
    one_line(error, "decode")


@pytest.mark.parametrize("name", READERS)
def test_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    code, _, error = call(capsys, name, tmp_path / "no.bin", tmp_path / "out")
    assert code == 66
    one_line(error, "no.bin", "No such file")


@pytest.mark.parametrize("name", READERS)
def test_directory_without_dumps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()
    code, _, error = call(capsys, name, empty, tmp_path / "out")
    assert code == DIRECTORY.get(name, 66)
    one_line(error, "nothing")


@pytest.mark.parametrize("name", READERS)
def test_file_of_another_kind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    foreign = tmp_path / "picture.png"
    foreign.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    code, _, error = call(capsys, name, foreign, tmp_path / "out")
    assert code == FOREIGN.get(name, 65)
    one_line(error, "picture.png")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", READERS)
def test_empty_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty.bin"
    empty.write_bytes(b"")
    code, _, error = call(capsys, name, empty, tmp_path / "out")
    assert code == EMPTY_FILE.get(name, 0)
    assert "Traceback" not in error
    if code:
        one_line(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", READERS)
def test_unreadable_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"")
    secret.chmod(0)
    code, _, error = call(capsys, name, secret, tmp_path / "out")
    assert code == 77
    one_line(error, "secret.bin", "Permission denied")


@pytest.mark.parametrize("name", ["hmb-trace-daemon", "hmb-firmware-sim"])
def test_daemon_and_simulator_manners(programs: Programs, name: str) -> None:
    assert "xample" in programs.run(name, "--help").stdout
    one_line(programs.run(name, "--no-such-option", code=2).stderr, "--no-such-option")

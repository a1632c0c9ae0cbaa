# SPDX-License-Identifier: Apache-2.0
"""hmb-trace ctl without a daemon: how its words are read, and what it says when nobody answers."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from hmb_trace.cli import main
from hmb_trace.cli.ctl import _parse, event_text
from hmb_trace.errors import InputOutputError, InvalidDataError, NoInputError, UsageError
from hmb_trace.live import control_client as control
from hmb_trace.live.control_client import Link, find_socket
from tests.unit.test_manners import somebody_else


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, "status", None)),
        (["stop"], (None, "stop", None)),
        (["nvme0"], ("nvme0", "status", None)),
        (["nvme0", "rotate"], ("nvme0", "rotate", None)),
        (["rotate", "nvme0"], ("nvme0", "rotate", None)),
        (["log-level", "debug"], (None, "log-level", "debug")),
        (["/run/x", "log-level", "error"], ("/run/x", "log-level", "error")),
    ],
)
def test_words(words: list[str], expected: tuple[str | None, str, str | None]) -> None:
    assert _parse(words) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statu"], "did you mean 'status'"),
        (["nvme0", "rotat"], "did you mean 'rotate'"),
        (["nvme0", "dance"], "expected a command: status"),
        (["stop", "rotate"], "expected one command"),
        (["log-level"], "found nothing, expected one of debug"),
        (["log-level", "loud"], "found 'loud', expected one of debug"),
    ],
)
def test_wrong_words_are_told_what_is_right(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _parse(words)


def serve(path: Path, *answers: list[bytes]) -> threading.Thread:
    """Answer one request each, in order and in pieces, on one connection; then hang up."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def work() -> None:
        link, _ = server.accept()
        for pieces in answers:
            link.recv(4096)
            for piece in pieces:
                link.sendall(piece)
        link.close()
        server.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_link_names_what_the_other_end_does(tmp_path: Path) -> None:
    path = tmp_path / "control"
    whole = [b'{"ok": true, "sta', b'tus": {"a": 1}}\n']
    thread = serve(path, whole, [b'{"ok": false, "error": "no"}\n'])
    with Link(path) as link:
        assert link.status() == {"a": 1}
        with pytest.raises(UsageError, match="the daemon says: no"):
            link.ask("dance")
        with pytest.raises(InputOutputError, match="has gone"):
            link.ask("status")
    thread.join(10)
    with pytest.raises(NoInputError, match="no daemon listens"):
        Link(path)


def test_link_to_something_else(tmp_path: Path) -> None:
    path = tmp_path / "control"
    thread = serve(path, [b"HTTP/1.0 400 Bad Request\n"])
    with Link(path) as link, pytest.raises(InvalidDataError, match="no daemon"):
        link.ask("status")
    thread.join(10)


def test_find_socket_by_path_and_not_at_all(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert find_socket(str(tmp_path / "s")) == tmp_path / "s"
    for target in (str(tmp_path), str(tmp_path / "none"), "shm:/hmbtest-none", "nvme77"):
        with pytest.raises(NoInputError, match=r"--control PATH|No such file"):
            find_socket(target)


def test_environment_names_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HMB_TRACE_CONTROL", str(tmp_path / "c"))
    assert main(["ctl", "stop"]) == 66
    err = capfd.readouterr().err
    assert str(tmp_path / "c") in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["nvme0"], ["/dev/nvme0-hmbtrace", "stop"]])
def test_a_service_of_another_user(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="hmb-run-") as run:
        Path(run).chmod(0o755)
        (Path(run) / "nvme0").mkdir(mode=0o700)
        monkeypatch.setattr(control, "SERVICE_DIRECTORY", Path(run))
        monkeypatch.setattr(control, "_COMM", "nobody-is-that")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{run}/nvme0/control")
            (Path(run) / "nvme0").chmod(0 if os.geteuid() else 0o700)
            with somebody_else():
                assert main(["ctl", *words]) == 77
            (Path(run) / "nvme0").chmod(0o700)
    assert "try sudo" in capfd.readouterr().err


def test_events_on_one_line() -> None:
    event = json.loads('{"timestamp": "T", "level": "info", "event": "gap", "lost": 3, "seq": 9}')
    assert event_text(event) == "T info    gap lost=3 seq=9"

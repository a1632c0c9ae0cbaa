# SPDX-License-Identifier: Apache-2.0
"""hmb-trace top in a real terminal (tmux), with the simulator and the daemon behind it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Programs, program, require_module, require_program, wait_until
from tests.integration.daemonlib import Rig

COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


class Terminal:
    """A tmux server of its own with one window, 80 by 24."""

    def __init__(self, folder: Path) -> None:
        self._tmux = [require_program("tmux"), "-S", str(folder / "tmux"), "-f", os.devnull]
        self._status = folder / "status"
        self._typescript = folder / "typescript"

    def _call(self, *args: str) -> str:
        done = subprocess.run(
            [*self._tmux, *args], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout

    def start(self, *args: object, **env: str) -> None:
        """Run a program; what it writes is kept byte by byte."""
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        command = " ".join(shlex.quote(str(arg)) for arg in args)
        script = (
            f"env -u NO_COLOR LC_ALL=C.UTF-8 {settings} {command}; echo $? > {self._status}; cat"
        )
        self._call("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", script)
        self._call("pipe-pane", "-O", f"cat > {self._typescript}")

    def screen(self) -> str:
        return self._call("capture-pane", "-p")

    def colours(self) -> str:
        """The screen with the escapes of its colours."""
        return self._call("capture-pane", "-p", "-e")

    def resize(self, columns: int, rows: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    def press(self, key: str) -> None:
        self._call("send-keys", key)

    def shows(self, *patterns: str, timeout: float = 20.0) -> str:
        """Wait until every pattern is on one screen; that screen."""

        def found() -> str:
            text = self.screen()
            return text if all(re.search(pattern, text) for pattern in patterns) else ""

        try:
            return str(wait_until(found, " and ".join(patterns), timeout))
        except BaseException:
            print(self.screen())
            raise

    def exit_code(self) -> int:
        wait_until(lambda: self._status.exists() and self._status.read_text(), "the end")
        return int(self._status.read_text())

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False, timeout=20)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    require_module("textual", "ui")
    with tempfile.TemporaryDirectory(prefix="hmb-top-") as folder:
        made = Terminal(Path(folder))
        yield made
        made.close()


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


@pytest.fixture
def catalog(rig: Rig) -> Path:
    path = rig.folder / "ftl.toml"
    path.write_text(rig.programs.run("hmb-firmware-sim", "--print-catalog", "ftl").stdout)
    return path


def start(rig: Rig, *args: object) -> Path:
    """Simulator and daemon; the daemon's control socket."""
    rig.simulate("--workload", "ftl", "--keep", "--linger", "0", *args)
    return listening(rig)


def listening(rig: Rig) -> Path:
    """A daemon's control socket once it is there."""
    control = rig.folder / "control"
    daemon = rig.daemon("--control", control)
    wait_until(lambda: control.exists() or daemon.process.poll() is not None, "the daemon")
    return control


def test_running_overflow_frozen_and_reset(rig: Rig, terminal: Terminal, catalog: Path) -> None:
    faults = ("overflow-burst:100@20000", "frozen:1500@28000", "reset@34000")
    control = start(
        *(rig, "--rate", "4k/s", "--count", "60000"),
        *(word for fault in faults for word in ("--fault", fault)),
    )
    terminal.start(
        *(program("hmb-trace"), "top", control, "--interval", "200ms", "--catalog", catalog)
    )
    screen = terminal.shows(
        "RUNNING", r"records +[1-9][\d,]*/s", "NAND_READ ", "cpu0", "last records"
    )
    assert "lost     0 in 0 gaps" in screen
    assert rig.ring in screen
    assert COLOUR.search(terminal.colours())
    terminal.shows("OVERFLOWED", "lost     100 in 1 gaps", r"gap .*lost=100")
    terminal.shows("FROZEN", r"state=frozen before=running")
    terminal.shows("RUNNING", "state=running before=frozen")
    terminal.shows("epoch 1", "RUNNING", r"records +[1-9][\d,]*/s")
    terminal.press("q")
    assert terminal.exit_code() == 0


def test_resizes_pauses_and_uses_no_colour(rig: Rig, terminal: Terminal) -> None:
    control = start(rig, "--rate", "5k/s")
    terminal.start(program("hmb-trace"), "top", control, "--interval", "100ms", NO_COLOR="1")
    wide = terminal.shows("RUNNING", "cpu3", "0x1020").splitlines()
    assert max(map(len, wide)) == 80
    assert COLOUR.search(terminal.colours()) is None
    terminal.resize(50, 14)
    narrow = terminal.shows("RUNNING", r"opcodes ─+\n", "Quit")
    assert "cpu0" not in [line[:4] for line in narrow.splitlines()]
    assert max(map(len, narrow.splitlines())) <= 50
    terminal.resize(20, 4)
    terminal.resize(120, 40)
    terminal.shows("RUNNING", "cpu3", r" in all")
    terminal.press("Space")
    terminal.shows("paused")
    wait_until(standing_still(terminal), "a screen that stands still")
    terminal.press("C-c")
    assert terminal.exit_code() == 0


def standing_still(terminal: Terminal) -> Callable[[], bool]:
    """Whether the counts are those of the last call."""
    before = [""]

    def check() -> bool:
        found = re.findall(r"[\d,]+ in all", terminal.screen())
        same = found == before
        before[:] = found
        return same and bool(found)

    return check


def test_a_daemon_that_ends_and_comes_back(rig: Rig, terminal: Terminal) -> None:
    control = start(rig, "--rate", "5k/s")
    terminal.start(program("hmb-trace"), "top", control, "--interval", "100ms")
    terminal.shows("RUNNING", r"records +[1-9][\d,]*/s")
    rig.programs.run("hmb-trace", "ctl", control, "stop", "--wait")
    terminal.shows("GONE", "has gone")
    rig.daemon("--control", control)
    terminal.shows("RUNNING", "it is back", r"records +[1-9][\d,]*/s")


# ---- text for scripts


def top(rig: Rig, *args: object, code: int = 0) -> str:
    return rig.programs.run("hmb-trace", "top", "--interval", "200ms", *args, code=code).stdout


def as_json(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_once_agrees_with_the_ledger(rig: Rig, catalog: Path) -> None:
    simulator = rig.simulate(
        *("--workload", "ftl", "--keep", "--linger", "0", "--rate", "20k/s"),
    )
    control = listening(rig)
    text = top(rig, control, "--once", "--catalog", catalog)
    assert "\x1b" not in text
    assert "HOST_READ" in text
    assert "RUNNING" in text
    first, second = as_json(top(rig, control, "--batch", "-n", "2", "--json"))
    assert first["records"] < second["records"]
    assert 2_000 < second["records_per_s"] < 100_000
    assert not second["sampled"]
    assert set(map(int, second["opcodes_per_s"])) <= set(range(0x1000, 0x1100))
    simulator.signal(signal.SIGTERM)
    simulator.expect(0)

    def counts() -> bool:
        (found,) = as_json(top(rig, control, "--once", "--json"))
        return bool(found["records"] == rig.ledger["records"] and found["unread"] == 0)

    wait_until(counts, "every record in the daemon's counters")


def test_ring_alone_and_directory_alone(rig: Rig) -> None:
    rig.fill("--count", "1000", "--freeze-at-end")
    before = rig.ring_file.read_bytes()
    (found,) = as_json(top(rig, rig.ring, "--once", "--json"))
    assert (found["state"], found["pid"], found["records"]) == ("frozen", None, None)
    assert found["unread"] == found["head"] - found["tail"] > 0
    assert rig.ring_file.read_bytes() == before
    assert "nobody drains this ring" in top(rig, rig.ring, "--once")
    rig.drain()
    (found,) = as_json(top(rig, rig.out, "--once", "--json"))
    assert found["state"] == "idle"
    assert found["segment"].endswith(".bin")


def test_directory_of_a_daemon_without_socket(rig: Rig) -> None:
    rig.simulate("--workload", "ftl", "--keep", "--linger", "0", "--rate", "20k/s")
    rig.daemon()
    wait_until(lambda: list(rig.out.glob("*.part")), "a segment")

    def written() -> bool:
        (found,) = as_json(top(rig, rig.out, "--once", "--json"))
        return found["state"] == "writing" and 2_000 < found["records_per_s"] < 100_000

    wait_until(written, "a rate")
    (found,) = as_json(top(rig, rig.ring, "--once", "--json"))
    assert found["state"] == "writing"
    assert found["bytes_per_s"] > 0
    assert "without --control" in top(rig, rig.ring, "--once")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "top needs a terminal"),
        (("--json",), "--json needs --once or --batch"),
        (("-n", "2"), "--count needs --batch"),
        (("--once", "/nowhere/at/all"), "No such file"),
        (("--once", os.devnull), "no daemon with a control socket"),
    ],
)
def test_what_top_refuses(rig: Rig, args: tuple[str, ...], said: str) -> None:
    run = rig.programs.run("hmb-trace", "top", *args, code=None)
    assert run.process.returncode == (66 if args[:1] == ("--once",) else 2)
    assert said in run.stderr
    assert run.stderr.count("\n") == 1

# SPDX-License-Identifier: Apache-2.0
"""What every layer of tests shares: requirements, the three programs, shared-memory names."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"  # reference material; may be absent
SHM = Path("/dev/shm")
CI = os.environ.get("CI") == "true"

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so that tests import each other as tests.…


def require(condition: object, reason: str) -> None:
    """Go on if condition holds; else skip with the reason, or fail where CI=true.

    The reason says what is missing and what would bring it: "no clang-14 (apt install clang-14)".
    """
    if condition:
        return
    if CI:
        pytest.fail(f"CI must have this: {reason}", pytrace=False)
    pytest.skip(reason)


def require_program(name: str, package: str | None = None) -> str:
    """The path of a system program; skipped (CI: failed) with the package that brings it."""
    found = shutil.which(name)
    require(found, f"no {name} (apt install {package or name})")
    assert found is not None
    return found


def require_module(name: str, extra: str) -> Any:
    """An optional Python module; skipped (CI: failed) with the extra that brings it."""
    try:
        __import__(name)
    except ImportError:
        require(False, f"no module {name} (make build EXTRAS={extra})")
    return sys.modules[name]


def wait_until(
    condition: Callable[[], object], what: str = "the condition", timeout: float = 45.0
) -> Any:
    """Poll until condition() is true and return its value; fail after timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:g} s for {what}")
        time.sleep(0.005)


# ---- the three programs, as a user starts them ----


def program(name: str) -> str:
    """The path of an installed program of ours, from the same environment as this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.fail(f"{path} is missing: make build", pytrace=False)
    return str(path)


class Running:
    """A program of ours in the background; what it says goes to files."""

    def __init__(self, args: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.args = list(args)
        name = f"{Path(args[0]).name}-{uuid.uuid4().hex[:6]}"
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                self.args, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code; a failure that shows stderr if it does not end in time."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.fail(f"did not end within {timeout:g} s")

    def expect(self, code: int = 0, timeout: float = 60.0) -> Running:
        """Wait for the end and insist on the exit code."""
        found = self.wait(timeout)
        if found != code:
            self.fail(f"exit {found}, expected {code}")
        return self

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def fail(self, what: str) -> NoReturn:
        pytest.fail(f"{' '.join(self.args)}: {what}\n{self.stderr[-4000:]}", pytrace=False)


class Programs:
    """Starts our programs and ends what a test left running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Running] = []

    def start(self, name: str, *args: object, env: dict[str, str] | None = None) -> Running:
        """Start hmb-trace, hmb-trace-daemon or hmb-firmware-sim and return at once."""
        merged = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        command = [program(name), *(str(a) for a in args)]
        running = Running(command, self.folder, merged)
        self._running.append(running)
        return running

    def run(
        self, name: str, *args: object, code: int | None = 0, timeout: float = 60.0, **kw: Any
    ) -> Running:
        """Start and wait; code None accepts any end."""
        running = self.start(name, *args, **kw)
        if code is None:
            running.wait(timeout)
            return running
        return running.expect(code, timeout)

    def stop_all(self) -> None:
        for running in self._running:
            if running.process.poll() is None:
                running.signal(signal.SIGTERM)
        for running in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(3)
            running.kill()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """programs.start("hmb-trace-daemon", …) and programs.run(…); ended with the test."""
    folder = tmp_path / "programs"
    folder.mkdir()
    started = Programs(folder)
    yield started
    started.stop_all()


@pytest.fixture
def shm_name() -> Iterator[str]:
    """A POSIX shared-memory name that nobody else has, removed after the test ("/hmbtest-…")."""
    name = f"/hmbtest-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield name
    for path in SHM.glob(f"{name[1:]}*"):
        path.unlink(missing_ok=True)


@pytest.fixture
def shared_reference() -> Path:
    """The folder of reference material beside the repository, where there is one."""
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED.name}/ beside the repository")
    return SHARED


# ---- what was skipped, and what would enable it ----


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each reason to skip, most frequent first."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    if not reasons:
        return
    terminalreporter.section("skipped here")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5d}  {reason}")


def native_build(target: str) -> Path:
    """What tests/native/Makefile makes: a sanitizer's build of a test, testpoint.so."""
    require(shutil.which("gcc"), "no gcc (apt install gcc)")
    command = ["make", "-s", "-C", str(ROOT / "tests" / "native"), target]
    subprocess.run(command, check=True, timeout=100)
    return ROOT / "build" / "native" / target

# SPDX-License-Identifier: Apache-2.0
"""What firmware does wrong, drained by the daemon: every command says the same about it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hmb_daemon.cli import command as daemon
from hmb_producer_sim.cli import main as simulate
from hmb_producer_sim.faults import ARGUMENTS

from hmb_trace.commandline import run
from hmb_trace.dumps import account as accounts
from hmb_trace.dumps.dump import open_dumps
from tests.consistency.captures import Truth
from tests.consistency.test_one_truth import COMMANDS, Runner, Said

# These need a consumer while they happen, or end the ring: tests/integration has them.
_NEED_A_CONSUMER = (
    *("frozen", "frozen-reset", "reset", "reset-now", "reset-while-down", "reset-at-tail"),
    *("cursor-regress", "cursor-regress-transient", "cursor-jump", "cursor-jump-transient"),
    *("overrun", "version-bump", "overflow-burst", "unknown-ring-flags"),
)
FAULTS = [kind for kind in ARGUMENTS if kind not in _NEED_A_CONSUMER]
_COUNT = 3000


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The dump set of a fault; each is made once."""
    made: dict[str, Path] = {}

    def capture(kind: str) -> Path:
        if kind not in made:
            made[kind] = _capture(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return capture


def _capture(kind: str, folder: Path) -> Path:
    ring, out = folder / "ring", folder / "out"
    words = ["--file", str(ring), "-q", "--ring-size", "1MiB", "--count", str(_COUNT)]
    words += ["--payload", "16..64", "--fault", f"{kind}@1500", "--keep"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert simulate(words) == 0
    words = ["--device", str(ring), "--once", "--output-dir", str(out), "--rotate-size", "64KiB"]
    words += ["--spool-dir", str(folder / "spool"), "--spool-size", "1MiB", "--label", "f"]
    assert run(daemon, "hmb-trace-daemon", words) == 0
    return out


_SLOW = ("by_sql", "by_arrow", "by_report", "by_info_text")  # told apart by made captures
QUICK = [command for command in COMMANDS if command.__name__ not in _SLOW]


@pytest.mark.parametrize("command", QUICK, ids=lambda command: command.__name__)
@pytest.mark.parametrize("kind", FAULTS)
def test_one_truth_about_faults(
    kind: str,
    command: Callable[[Runner], Said],
    captured: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = captured(kind)
    deep = accounts.account(open_dumps([folder]), deep=True)
    truth = Truth(str(deep.verdict), deep.lost, paths=(folder,))
    runner = Runner(capfd, tmp_path / "capture", truth)
    said = command(runner)
    assert (said.verdict, said.lost) == (truth.verdict, truth.lost)
    if said.records is not None:
        assert said.records == deep.records

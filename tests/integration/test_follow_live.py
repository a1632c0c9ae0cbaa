# SPDX-License-Identifier: Apache-2.0
"""Simulator, daemon and decode together: following a set, and reading a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import program, wait_until

COUNT = 30_000


@pytest.fixture
def ring(tmp_path: Path) -> Any:
    """A simulator that waits for its consumer; (device, ledger path)."""
    name = f"/hmb-follow-{uuid.uuid4().hex[:8]}"
    ledger = tmp_path / "ledger.json"
    sim = subprocess.Popen(
        [
            *(program("hmb-firmware-sim"), "--shm", name, "--workload", "ftl", "-q"),
            *("--rate", "40k/s", "--count", str(COUNT), "--on-full", "block"),
            *("--freeze-at-end", "--ledger", str(ledger)),
        ]
    )
    try:
        yield f"shm:{name}", ledger
        sim.wait(20)
    finally:
        sim.kill()
        sim.wait()
        Path(f"/dev/shm{name}").unlink(missing_ok=True)


def wait_for(path: Path) -> None:
    wait_until(path.exists, str(path))


def daemon(device: str, folder: Path, *args: str) -> list[str]:
    return [
        *(program("hmb-trace-daemon"), "--device", device, "--on-frozen", "exit"),
        *("--spool-dir", str(folder / "spool"), *args),
    ]


def test_follow_shows_every_record_once(tmp_path: Path, ring: tuple[str, Path]) -> None:
    device, ledger = ring
    wait_for(Path("/dev/shm") / device.removeprefix("shm:/"))
    captured = tmp_path / "set"
    captured.mkdir()
    follow = subprocess.Popen(
        [
            *(program("hmb-trace"), "decode", "--follow", str(captured)),
            *("--format", "csv", "--fields", "seq", "-n", str(COUNT)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        args = daemon(device, tmp_path, "--output-dir", str(captured), "--rotate-size", "300KiB")
        subprocess.run(args, check=True, timeout=30, capture_output=True)
        out, _ = follow.communicate(timeout=20)  # ends by itself: it was told how many
    finally:
        follow.kill()
        follow.wait()
    assert [int(line) for line in out.split()[1:]] == list(range(COUNT))
    assert json.loads(ledger.read_text())["records"] == COUNT


def test_daemon_to_decode_by_pipe(tmp_path: Path, ring: tuple[str, Path]) -> None:
    device, _ = ring
    wait_for(Path("/dev/shm") / device.removeprefix("shm:/"))
    source = subprocess.Popen(
        daemon(device, tmp_path, "--output", "-"), stdout=subprocess.PIPE, stderr=sys.stderr
    )
    try:
        decode = subprocess.run(
            [program("hmb-trace"), "decode", "-", "--format", "csv", "--fields", "seq"],
            stdin=source.stdout,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    finally:
        source.kill()
        source.wait()
    assert [int(line) for line in decode.stdout.split()[1:]] == list(range(COUNT))

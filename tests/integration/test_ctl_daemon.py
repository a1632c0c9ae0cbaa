# SPDX-License-Identifier: Apache-2.0
"""hmb-trace ctl against the real daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Programs, Running, wait_until
from tests.integration.daemonlib import Rig, segments, sidecars


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


def start(rig: Rig, *args: object) -> tuple[Path, Running]:
    """A daemon that has drained ten records."""
    rig.fill("--count", "10")
    path = rig.folder / "ctl"
    daemon = rig.daemon("--control", path, *args)
    wait_until(lambda: list(rig.out.glob("*.part")), "the daemon")
    return path, daemon


def ctl(rig: Rig, *args: object, code: int = 0) -> Running:
    return rig.programs.run("hmb-trace", "ctl", *args, code=code)


def status(rig: Rig, target: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl(rig, target, "status", "--json").stdout)
    return found


def test_status_by_socket_ring_and_directory(rig: Rig) -> None:
    path, daemon = start(rig)
    wait_until(lambda: status(rig, path)["counters"]["records"] == 10, "records")
    assert status(rig, rig.ring)["pid"] == status(rig, rig.out)["pid"] == daemon.pid
    found = status(rig, path)
    part = Path(found["segment"]["path"])
    assert part.parent == rig.out
    assert part.read_bytes()[:4] == b"RECT"
    text = ctl(rig, path).stdout
    assert "state:" in text
    assert "running" in text
    assert "10 (" in text


def test_rotate_and_stop_wait_until_it_is_done(rig: Rig) -> None:
    path, daemon = start(rig)
    sealed = ctl(rig, path, "rotate", "--wait").stdout.strip()
    assert [Path(sealed)] == segments(rig.out)
    assert sidecars(rig.out)[0].cause == "rotate-request"
    ctl(rig, path, "stop", "--wait")
    daemon.expect(0, timeout=2)
    assert "no daemon" in ctl(rig, rig.ring, code=66).stderr


def test_events_and_log_level(rig: Rig) -> None:
    path, _ = start(rig, "--log-level", "error")
    ctl(rig, path, "log-level", "info")
    ctl(rig, path, "rotate", "--wait")
    ids = [event["event"] for event in json.loads(ctl(rig, path, "events", "--json").stdout)]
    assert "segment-sealed" in ids
    assert "segment-open" not in ids  # that was below the level of its time
    assert "segment-sealed" in ctl(rig, path, "events").stdout

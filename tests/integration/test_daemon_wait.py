# SPDX-License-Identifier: Apache-2.0
"""hmb-trace-daemon --wait: a ring that is not there yet is no reason to end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from hmb_trace.testing import RingBuilder, ring_header
from tests.conftest import Programs, wait_until
from tests.integration.daemonlib import Rig, logged, summary


@pytest.fixture
def rig(programs: Programs, tmp_path: Path) -> Rig:
    return Rig(programs, tmp_path)


@pytest.fixture
def service_manager(tmp_path: Path) -> socket.socket:
    """The socket to which a service says READY=1."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.bind(str(tmp_path / "notify"))
    link.settimeout(20)
    return link


def test_waits_until_firmware_has_initialised_the_ring(
    rig: Rig, service_manager: socket.socket
) -> None:
    """H10: absent, then garbage, then half a header: one process, and it is ready meanwhile."""
    env = {"NOTIFY_SOCKET": str(rig.folder / "notify")}
    daemon = rig.daemon("--wait", "--log-format", "json", env=env)
    said = service_manager.recv(4096).decode()
    assert "READY=1" in said
    assert "STATUS=waiting: cannot open" in said
    rig.ring_file.write_bytes(bytes(8192))
    wait_until(lambda: "magic is 0x00000000" in daemon.stderr, "the other reason")
    assert len(logged(daemon, "waiting-for-ring")) == 2
    ring = RingBuilder(4096)
    ring.append(b"first")
    ring.write(rig.ring_file)
    wait_until(lambda: logged(daemon, "attached") or "attached" in daemon.stderr, "the ring")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)
    assert summary(daemon)["records"] == 1


def test_a_signal_ends_the_waiting_in_order(rig: Rig) -> None:
    daemon = rig.daemon("--wait", "--log-format", "json")
    wait_until(lambda: logged(daemon, "waiting-for-ring"), "the waiting")
    daemon.signal(signal.SIGTERM)
    daemon.expect(0)


def test_what_waiting_cannot_help_is_final(rig: Rig) -> None:
    rig.ring_file.write_bytes(ring_header(ring_size=4096, version=2) + bytes(8192))
    rig.daemon("--wait").expect(76)
    rig.daemon("--wait", "--once").expect(2)


def test_without_it_a_missing_ring_is_exit_66(rig: Rig) -> None:
    daemon = rig.daemon("--log-format", "json").expect(66)
    assert "waiting-for-ring" not in daemon.stderr

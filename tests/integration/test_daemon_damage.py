# SPDX-License-Identifier: Apache-2.0
"""Damage beside a restart, and wrong seqs, through the whole daemon (R9, R12)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hmb_trace.testing import record, ring_header
from tests.conftest import Programs
from tests.integration.daemonlib import Rig, segments, sidecars, walk

SIZE = 1 << 20


@pytest.fixture
def rig(programs: Programs, tmp_path: Path) -> Rig:
    return Rig(programs, tmp_path)


def good(first: int, count: int, ts_ns: int) -> bytes:
    return b"".join(record(first + i, b"x" * 24, ts_ns=ts_ns + i) for i in range(count))


def put(rig: Rig, content: bytes) -> None:
    rig.ring_file.write_bytes(ring_header(SIZE, head=len(content)) + content.ljust(SIZE, b"\0"))


def grow(rig: Rig, at: int, more: bytes) -> None:
    """What firmware does: bytes, then head."""
    with rig.ring_file.open("r+b") as file:
        file.seek(0x40 + at)
        file.write(more)
        file.flush()
        file.seek(0x10)
        file.write((at + len(more)).to_bytes(8, "little"))


RESTART = good(10**6, 100, 0) + b"\xff" * 64 + good(0, 5000, 1000)
BITFLIP = good(0, 100, 0) + record(100 + (1 << 30), b"x" * 24, ts_ns=100) + b"\xff" * 64
BITFLIP += good(102, 5000, 1000)


def test_restart_r9_beside_damage_is_no_blackout(rig: Rig) -> None:
    """A firmware core that crashes in mid-record and traces on from 0."""
    put(rig, RESTART)
    rig.drain()
    (side,) = sidecars(rig.out)
    assert (side.records, side.lost, side.sequence_resets) == (5100, 0, 1)
    assert side.counters["rejected_bytes"] == 64


def test_bit_flip_r12_in_a_seq_is_a_glitch_and_no_loss(rig: Rig) -> None:
    put(rig, BITFLIP)
    rig.drain()
    (side,) = sidecars(rig.out)
    assert (side.records, side.lost, side.sequence_resets) == (5101, 0, 0)
    assert (side.counters["seq_glitches"], side.counters["rejected_records"]) == (1, 1)


@pytest.mark.parametrize("bit", [0, 1, 7, 20, 30, 31])
def test_bit_flip_r12_of_any_bit_costs_nothing(rig: Rig, bit: int) -> None:
    wrong = record(100 ^ (1 << bit), b"x" * 24, ts_ns=100)
    put(rig, good(0, 100, 0) + wrong + good(101, 50, 1000))
    rig.drain()
    (side,) = sidecars(rig.out)
    assert (side.records, side.lost, side.counters["seq_glitches"]) == (151, 0, 1)
    assert side.duplicates + side.sequence_resets == 0


def test_break_r12_waits_over_a_killed_daemon(rig: Rig) -> None:
    """Killed between the record with the wrong seq and the one that tells so."""
    before = good(0, 100, 0) + record(100 + (1 << 30), b"x" * 24, ts_ns=100)
    put(rig, before)
    first = rig.daemon(env={"HMB_TRACE_TEST_KILL": "collector-after-commit"})
    first.expect(-signal.SIGKILL)
    grow(rig, len(before), good(101, 50, 1000))
    rig.drain()
    found, _ = walk(segments(rig.out))
    sides = sidecars(rig.out)
    assert (found.records, found.seq_glitches, found.lost) == (151, 1, 0)
    assert sum(side.lost for side in sides) == 0
    assert sum(side.counters["seq_glitches"] for side in sides) == 1

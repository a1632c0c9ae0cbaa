# SPDX-License-Identifier: Apache-2.0
"""What firmware wrote is what the dump set holds, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Programs
from tests.integration.daemonlib import Rig, assert_equals_ledger, sidecars, summary

M64, M32 = 1 << 64, 1 << 32


@pytest.fixture
def rig(programs: Programs, tmp_path: Path, shm_name: str) -> Rig:
    return Rig(programs, tmp_path, shm_name)


CASES = {
    "marker-4k": ("--ring-size", "4KiB", "--payload", "0..900", "--count", "20000"),
    "marker-small": ("--ring-size", "4KiB", "--payload", "0..64", "--count", "30000"),
    "straddle": (
        *("--ring-size", "8KiB", "--payload", "0..4064", "--count", "5000"),
        *("--wrap", "straddle"),
    ),
    "seq-marker": (
        *("--ring-size", "8KiB", "--payload", "0..333", "--count", "30000"),
        *("--wrap", "seq-marker"),
    ),
    "cursor-wrap": (
        *("--ring-size", "16KiB", "--payload", "0..200", "--count", "20000"),
        *("--start-cursor", str(M64 - 65536)),
    ),
    "seq-wrap": (
        *("--ring-size", "16KiB", "--payload", "0..200", "--count", "20000"),
        *("--start-seq", str(M32 - 5000)),
    ),
    "64m": ("--ring-size", "64MiB", "--payload", "0..4064", "--count", "30000"),
    "2m": ("--ring-size", "2MiB", "--payload", "16..96", "--count", "300000"),
}


@pytest.mark.parametrize("args", CASES.values(), ids=CASES)
def test_dump_equals_ledger_r3_r11(rig: Rig, args: tuple[str, ...]) -> None:
    simulator = rig.simulate("--rate", "max", "--on-full", "block", "--freeze-at-end", *args)
    daemon = rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    assert_equals_ledger(rig.out, rig.ledger)
    told = summary(daemon)
    assert told["records"] == rig.ledger["records"]
    assert (told["lost"], told["rejected_records"], told["gaps"]) == (0, 0, 0)
    assert all(side.complete for side in sidecars(rig.out))


@pytest.mark.parametrize("keep_seq", [False, True], ids=["drops-take-seq", "drops-keep-seq"])
def test_forced_drops_are_reported_r5(rig: Rig, keep_seq: bool) -> None:
    """A ring that nobody drains at first: its drops are gaps where they take a seq."""
    policy = ["--drops-keep-seq"] if keep_seq else []
    args = ("--ring-size", "4KiB", "--payload", "0..64", "--on-full", "drop", "--keep", *policy)
    simulator = rig.simulate("--rate", "200k/s", "--duration", "3s", "--freeze-at-end", *args)
    daemon = rig.daemon("--on-frozen", "exit").expect(0)
    simulator.expect(0)
    ledger, sides = rig.ledger, sidecars(rig.out)
    assert_equals_ledger(rig.out, ledger)
    assert ledger["dropped"] > 0 or keep_seq
    told = summary(daemon)
    if keep_seq:
        assert sum(side.lost for side in sides) == 0
        assert "unknown" in str(told["lost"])
        assert not all(side.complete for side in sides)
    else:
        assert sum(side.lost for side in sides) == ledger["dropped"]
        assert sum(gap.lost for side in sides for gap in side.gap_list) == ledger["dropped"]

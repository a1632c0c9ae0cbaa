# SPDX-License-Identifier: Apache-2.0
"""What the simulator's ledger promises against what the oracle makes of its ring.

Three accounts of one ring, by people who did not read each other's code:
the producer's, the referee's, the library's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hmb_producer_sim.cli import main as simulate_by

from hmb_trace import fnv1a_64
from tests.oracle.collect import Consumer
from tests.oracle.native import NativeConsumer

FAULTS = [
    *("corrupt-magic", "oversize-length", "lying-length", "torn-record", "unknown-flags"),
    *("duplicate-seq", "backward-seq", "damaged-marker", "dirty-marker", "garbage"),
    *("time-jump", "time-jump-back"),
]


def simulate(folder: Path, *options: str) -> tuple[bytearray, dict[str, Any]]:
    """A ring that holds all that was produced, over 2^64 and 2^32; and its ledger."""
    ring, ledger = folder / "ring", folder / "ledger"
    args = ["--file", str(ring), "--ledger", str(ledger), "--ring-size", "64KiB", "-q", "--keep"]
    args += ["--workload", "uniform", "--rate", "max", "--count", "600", "--payload", "0..90"]
    args += ["--start-cursor", str(2**64 - 32960), "--start-seq", str(2**32 - 100)]
    assert simulate_by([*args, *options]) == 0
    return bytearray(ring.read_bytes()), json.loads(ledger.read_text())


@pytest.mark.parametrize("wrap", ["marker", "straddle", "seq-marker"])
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_ledger_oracle_and_library_agree(tmp_path: Path, wrap: str, fault: str | None) -> None:
    region, ledger = simulate(tmp_path, "--wrap", wrap, *(["--fault", fault] if fault else []))
    head, tail = (int.from_bytes(region[at : at + 8], "little") for at in (0x10, 0x18))
    oracle = Consumer(tail)
    oracle.collect(bytes(region[0x40:]), head)
    library = NativeConsumer(region)
    library.collect()
    assert (library.tail, library.totals()) == (head, oracle.totals())
    assert library.dump == oracle.dump
    totals = oracle.totals()
    found = (totals["records"], totals["bytes"], totals["lost"], f"{fnv1a_64(oracle.dump):#018x}")
    assert found == tuple(ledger[key] for key in ("records", "bytes", "dropped", "fnv64"))

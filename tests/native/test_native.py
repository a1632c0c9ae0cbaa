# SPDX-License-Identifier: Apache-2.0
"""The C tests under AddressSanitizer, UBSan and ThreadSanitizer, and a short run of each fuzzer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, require

HERE = Path(__file__).parent
OUT = ROOT / "build" / "native"
TESTS = sorted(path.stem for path in HERE.glob("test_*.c"))
THREADED = [name for name in TESTS if "<pthread.h>" in (HERE / f"{name}.c").read_text()]
FUZZERS = sorted(path.stem for path in HERE.glob("fuzz_*.c"))
CLANG = next((c for c in ("clang", "clang-19", "clang-16", "clang-14") if shutil.which(c)), None)


def run(*command: str | Path, timeout: float = 100) -> str:
    done = subprocess.run(
        [str(c) for c in command],
        cwd=HERE,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        text = done.stdout[-6000:]
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{text}", pytrace=False)
    return done.stdout


def build(target: str) -> Path:
    run("make", "-s", target)
    return OUT / target


@pytest.mark.parametrize("name", TESTS)
def test_c_under_address_and_undefined_behaviour_sanitizer(name: str) -> None:
    require(shutil.which("gcc"), "no gcc (apt install gcc)")
    run(build(f"asan/{name}"))


@pytest.mark.parametrize("name", THREADED)
def test_c_under_thread_sanitizer(name: str) -> None:
    require(shutil.which("gcc"), "no gcc (apt install gcc)")
    run(build(f"tsan/{name}"))


def hostile(seed: int, seconds: int) -> None:
    require(shutil.which("gcc"), "no gcc (apt install gcc)")
    run(build("asan/hostile_ring"), str(seed), str(seconds), timeout=seconds + 60)


def test_hostile_firmware_r2_to_r12_loses_and_invents_nothing() -> None:
    """Random crimes under a running collector; the account adds up against the ledger."""
    hostile(1, 8)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hostile_firmware_for_ten_minutes(seed: int) -> None:
    hostile(seed, 600)


@pytest.mark.parametrize("name", FUZZERS)
def test_fuzzer_finds_nothing_in_a_short_run(name: str) -> None:
    """The long run is `make fuzz`; this one keeps the fuzzers alive, with a seed of its own."""
    require(CLANG, "no clang (apt install clang-14 libclang-rt-14-dev)")
    text = run(build(f"fuzz/{name}"), "-seed=1", "-runs=8000", "-max_len=1024", "-timeout=10")
    assert "Done 8000 runs" in text

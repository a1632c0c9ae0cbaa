# SPDX-License-Identifier: Apache-2.0
"""Memory stays bounded, whatever the size of the dump: below 250 MB for every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from hmb_trace import testing
from hmb_trace.layout import RECORD_HDR_DTYPE, RECORD_MAGIC
from tests.conftest import program, require_module

LIMIT_KIB = 250 * 1000
RECORDS = 6_000_000  # 288 MB: more than the limit, so that whoever holds it all is found out


def make_dump(path: Path, records: int) -> None:
    kind = np.dtype([("header", RECORD_HDR_DTYPE), ("payload", "<u8", (2,))])
    with path.open("wb") as file:
        for start in range(0, records, 1 << 20):
            rows = np.zeros(min(1 << 20, records - start), kind)
            number = np.arange(start, start + len(rows))
            header = rows["header"]
            header["magic"], header["payload_len"] = RECORD_MAGIC, 16
            header["seq"], header["ts_ns"], header["opcode"] = number, number, number % 7
            rows["payload"][:, 0] = number
            rows.tofile(file)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.bin"
    make_dump(path, RECORDS)
    return path


# A child begins with its parent's peak: start it from a small process, not from the test runner.
LAUNCHER = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_kib(*args: str) -> int:
    """The largest resident size of one run."""
    command = [sys.executable, "-S", "-c", LAUNCHER, program("hmb-trace"), *args]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    "args",
    [
        ["info"],
        ["verify"],
        ["stats", "--cpu", "0"],
        ["gaps"],
        ["filter", "--where", "seq % 2 == 0", "-o", "OUT"],
        ["decode", "-n", "1000000"],
        ["convert", "--to", "ctf", "-o", "OUT"],
        ["convert", "--to", "parquet", "-o", "OUT"],
    ],
    ids=lambda args: "-".join(args[:3]),
)
def test_peak_memory(args: list[str], large: Path, tmp_path: Path) -> None:
    if "parquet" in args:
        require_module("pyarrow", "analysis")
    given = [str(tmp_path / "out") if arg == "OUT" else arg for arg in args]
    assert peak_kib(*given, str(large)) < LIMIT_KIB


def test_peak_memory_of_perfetto(tmp_path: Path) -> None:
    """Fewer records: it is slower, and kept 600 bytes of each when it kept any."""
    require_module("perfetto", "analysis")
    path = tmp_path / "a.bin"
    make_dump(path, 300_000)
    kept = peak_kib("convert", str(path), "-o", str(tmp_path / "a.pftrace"), "-q")
    make_dump(path, 30_000)
    little = peak_kib("convert", str(path), "-o", str(tmp_path / "b.pftrace"), "-q")
    assert kept - little < 60_000


@pytest.mark.parametrize(
    ("repeated", "words"),
    [(bytes(64), ["repair", "-n"]), (testing.record(0), ["info"])],
    ids=["zeros", "records"],
)
def test_peak_memory_of_a_zstd_bomb(tmp_path: Path, repeated: bytes, words: list[str]) -> None:
    """A hundred kilobytes that stand for gigabytes come out piece by piece."""
    path = tmp_path / "bomb.bin.zst"
    piece = repeated * (1 << 14)
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with path.open("wb") as file:
        for _ in range((2 << 30) // len(piece)):
            file.write(compressor.compress(piece))
        file.write(compressor.flush())
    assert peak_kib(*words, str(path)) < LIMIT_KIB

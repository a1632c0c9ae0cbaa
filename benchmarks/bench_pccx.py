# SPDX-License-Identifier: Apache-2.0
""".pccx: FNV against the byte loop, packing against cp plus one hash pass, conversions, opening."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import Sample, alternate, heading, median, ratio, row, timed

from hmb_trace import layout, pccx
from hmb_trace._core import ffi, lib
from hmb_trace.fnv import BASIS, fnv1a_64

RECORD = 48
CHUNK = 1 << 20  # records made at once
CATALOG = """
name = "bench"
[[event]]
opcode = 1
name = "READ_BEGIN"
kind = "begin"
pair = "READ_END"
key = "tag"
pccx = "DMA_READ"
[[event.field]]
name = "tag"
type = "u32"
[[event]]
opcode = 2
name = "READ_END"
kind = "end"
[[event.field]]
name = "tag"
type = "u32"
[[event]]
opcode = 3
name = "BUSY"
kind = "complete"
duration = "ns"
pccx = "MAC_COMPUTE"
[[event.field]]
name = "ns"
type = "u64"
offset = 8
"""
# One conversion in a process of its own, so that its peak memory is its own. (ru_maxrss
# would be that of the process before exec: this one, with all its arrays.)
CHILD = """
import re, sys, time
from pathlib import Path
from hmb_trace import Catalog, pccx
here, source, out, encoding, catalog = sys.argv[1:]
sys.path.insert(0, here)
from bench_pccx import make_room
options = pccx.PackOptions(encoding, Catalog.load(catalog) if catalog else None)
make_room(Path(out), Path(source).stat().st_size)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
cpu = time.process_time()
begun = time.perf_counter()
result = pccx.pack([Path(source)], out, options)
seconds = time.perf_counter() - begun
rss = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(seconds, time.process_time() - cpu, result.records, rss)
"""


def write_dump(path: Path, size: int, jitter: int) -> int:
    """Records of 48 bytes, eight opcodes, pairs 64 records apart; jitter makes times go back."""
    dtype = [("header", layout.RECORD_HDR_DTYPE), ("tag", "<u4"), ("pad", "<u4"), ("ns", "<u8")]
    dice, total = np.random.default_rng(1), size // RECORD
    with path.open("wb") as stream:
        for start in range(0, total, CHUNK):
            number = np.arange(start, min(start + CHUNK, total))
            rows = np.zeros(len(number), dtype)
            header = rows["header"]
            header["magic"], header["payload_len"] = layout.RECORD_MAGIC, RECORD - 32
            header["seq"], header["cpu"] = number, number % 4
            header["ts_ns"] = (
                number * 100 + 10_000 + dice.integers(-jitter, jitter + 1, len(number))
            )
            header["opcode"] = np.where(number // 64 % 2, 2, 1)
            other = number % 8 >= 4
            header["opcode"][other] = 3 + number[other] % 6
            rows["tag"], rows["ns"] = number % 64, number % 5000
            stream.write(rows.data)
    return total


def read_all(path: Path) -> None:
    with path.open("rb") as stream:
        while stream.read(4 << 20):
            pass


def make_room(out: Path, size: int) -> None:
    """Remove out, and leave as much memory as is needed next free and lately touched.

    The host takes freed pages back within seconds, and touching them again costs seven times
    as much: without this the order of the runs would decide how fast they are.
    """
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE].fill(1)
        out.unlink(missing_ok=True)


def hash_file(path: Path) -> None:
    state = None
    buffer = bytearray(4 << 20)
    with path.open("rb") as stream:
        while size := stream.readinto(buffer):
            state = fnv1a_64(memoryview(buffer)[:size], state)


def bench_fnv(quick: bool) -> None:
    heading("FNV-1a-64 against the byte loop, alternating")
    row("buffer", "GB/s", "loop GB/s", "ratio")
    for size in (64 << 10, 1 << 20, (64 if quick else 256) << 20):
        data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        times = max(1, (64 << 20) // size)

        def fast(data: np.ndarray = data, times: int = times) -> None:
            for _ in range(times):
                fnv1a_64(data)

        def loop(data: np.ndarray = data, times: int = times) -> None:
            for _ in range(times):
                lib.hmb_fnv1a_64_plain(ffi.from_buffer(data), data.nbytes, BASIS)

        ways = {
            "fast": lambda: timed(fast, size * times),  # noqa: B023 - called in this round only
            "loop": lambda: timed(loop, size * times),  # noqa: B023 - called in this round only
        }
        found = alternate(ways, 3 if quick else 7)
        rates = (median(found[way], lambda s: s.rate) for way in ("fast", "loop"))
        row(f"{size >> 10} KiB", *rates, ratio(found, "fast", "loop"))


def converter(source: Path, out: Path, encoding: str, catalog: Path | None) -> Callable[[], Sample]:
    def convert() -> Sample:
        args = [str(Path(__file__).parent), str(source), str(out), encoding, str(catalog or "")]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *args], check=True, capture_output=True, text=True
        )
        seconds, cpu, records, rss = (float(word) for word in done.stdout.split())
        peaks[encoding] = max(peaks.get(encoding, 0.0), rss / 1024)
        return Sample(seconds, cpu, source.stat().st_size, int(records))

    return convert


peaks: dict[str, float] = {}  # MiB, by encoding


def bench_pack(folder: Path, size: int, rounds: int) -> None:
    source, out = folder / "x.bin", folder / "x.pccx"
    write_dump(source, size, 0)

    def cp_and_hash() -> Sample:
        make_room(out, size)
        begun = time.perf_counter()
        subprocess.run(["cp", "--reflink=never", source, out], check=True)
        hash_file(source)
        return Sample(time.perf_counter() - begun, 0, size)

    heading(f"pack raw against cp plus one FNV pass, {size >> 20} MiB, alternating")
    read_all(source)
    ways = {"pack": converter(source, out, "raw", None), "cp + FNV": cp_and_hash}
    found = alternate(ways, rounds)
    row("", "GB/s", "times as long", "from", "to", "peak MiB")
    row("cp + FNV", median(found["cp + FNV"], lambda s: s.rate))
    pairs = zip(found["pack"], found["cp + FNV"], strict=True)
    slower = sorted(mine.seconds / theirs.seconds for mine, theirs in pairs)
    middle = statistics.median(slower)
    speed = median(found["pack"], lambda s: s.rate)
    row("pack", speed, middle, slower[0], slower[-1], peaks["raw"])


def bench_convert(folder: Path, size: int, rounds: int) -> None:
    catalog = folder / "c.toml"
    catalog.write_text(CATALOG)
    heading(f"dump to events, {size >> 20} MiB of {RECORD}-byte records")
    row("", "M records/s", "CPU s/GB", "peak MiB", widths=(44, 14, 12, 12))
    for title, jitter, chosen in (
        ("no catalog, in order", 0, None),
        ("catalog with pairs, in order", 0, catalog),
        ("catalog with pairs, times out of order", 5000, catalog),
    ):
        source, out = folder / "x.bin", folder / "x.pccx"
        write_dump(source, size, jitter)
        read_all(source)
        for encoding in ("flatbuf", "bincode"):
            peaks.pop(encoding, None)
            run = converter(source, out, encoding, chosen)
            found = alternate({encoding: run}, rounds)[encoding]
            speed = median(found, lambda s: s.records / s.seconds / 1e6)
            cpu = median(found, lambda s: s.cpu / s.bytes * 1e9)
            name = f"{encoding}: {title}"
            row(name, speed, cpu, peaks[encoding], widths=(44, 14, 12, 12))
    bench_read(folder / "x.pccx", rounds)


def bench_read(path: Path, rounds: int) -> None:
    def decode() -> Sample:
        events = 0
        begun = time.perf_counter()
        with pccx.read(path) as file:
            for batch in pccx.event_batches(file):
                events += len(batch)
        return Sample(time.perf_counter() - begun, 0, path.stat().st_size, events)

    found = alternate({"decode": decode}, rounds)["decode"]
    speed = median(found, lambda s: s.records / s.seconds / 1e6)
    row("bincode decoded, M events/s", speed, widths=(44, 14))


def bench_open(folder: Path, size: int) -> None:
    path, events = folder / "open.pccx", np.zeros(size // 24, pccx.EVENT_DTYPE)
    events["start_cycle"] = np.arange(len(events))
    header = pccx.Header("bench", extra={"hmb_trace": {"events": len(events)}})
    pccx.write_events(path, events, "flatbuf", header)

    def open_it() -> None:
        with pccx.read(path) as file:
            assert int(pccx.flat_events(file)["start_cycle"][-1]) == len(events) - 1

    found = alternate({"open": lambda: timed(open_it)}, 9)["open"]
    heading(f"open a flatbuf of {size >> 20} MiB and look at its last event")
    row("", "ms")
    row("open", median(found, lambda s: s.seconds * 1e3))


def run(quick: bool = False) -> None:
    """Everything; quick: small files, few rounds."""
    bench_fnv(quick)
    parent = os.environ.get("BENCH_DIR", ".")
    folder = Path(tempfile.mkdtemp(prefix=".bench-pccx-", dir=parent))
    try:
        bench_open(folder, (64 if quick else 1024) << 20)
        bench_pack(folder, (64 if quick else 2048) << 20, 1 if quick else 5)
        bench_convert(folder, (64 if quick else 1024) << 20, 1 if quick else 3)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    run("--quick" in sys.argv)

# SPDX-License-Identifier: Apache-2.0
"""How fast dumps are read, counted, listed and converted; printed as rates and ratios.

    python benchmarks/bench_offline.py [--records 8M] [--peers]     (BENCH_DIR: where files go)

Records are 48 bytes (16 of payload). Every figure is the best of three runs on a file in the page
cache, by wall clock; `cpu` beside it is by CPU time, which other load disturbs less. The bare walk
(C, nothing but validity and record boundaries) is measured in the same run, alternating.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hmb_trace.cli import main as hmb_trace
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.sidecar import Device, IndexEntry, Sidecar, sidecar_path
from hmb_trace.dumps.walker import Walker
from hmb_trace.layout import RECORD_HDR_DTYPE, RECORD_MAGIC
from hmb_trace.query.select import Range, Selection
from hmb_trace.query.stats import gather
from hmb_trace.units import parse_rate

REPEATS = 3
_CHUNK = 1 << 20


def make_dump(path: Path, records: int, *, begin_ns: int = 1000) -> None:
    """Records of 48 bytes, 19 opcodes, 4 cores, 100 ns apart."""
    kind = np.dtype([("header", RECORD_HDR_DTYPE), ("payload", "<u8", (2,))])
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, records, _CHUNK):
            rows = np.zeros(min(_CHUNK, records - start), kind)
            number = np.arange(start, start + len(rows))
            header = rows["header"]
            header["magic"], header["payload_len"] = RECORD_MAGIC, 16
            header["seq"], header["ts_ns"] = number, begin_ns + number * 100
            header["opcode"] = rng.integers(1, 20, len(rows))
            header["cpu"] = rng.integers(0, 4, len(rows))
            rows["payload"] = rng.integers(0, 1 << 40, (len(rows), 2), dtype="u8")
            rows.tofile(file)


def best(work: Callable[[], object]) -> tuple[float, float]:
    """(seconds, CPU seconds) of the fastest of a few runs."""
    found = []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(found)


def columns(path: Path) -> None:
    for _ in open_dump(path).batches():
        pass


def bare_walk(path: Path) -> None:
    open_dump(path).scan(Walker())


def command(*args: str) -> Callable[[], object]:
    def run() -> None:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = hmb_trace(list(args))
        if code != 0:
            raise SystemExit(f"failed: {' '.join(args)}")

    return run


def report(name: str, records: int, timed: tuple[float, float], note: str = "") -> float:
    """Print one line; returns records per second."""
    rate = records / timed[0]
    cpu = records / timed[1] if timed[1] else 0
    print(f"{name:<28} {rate / 1e6:9.2f} M/s   cpu {cpu / 1e6:9.2f} M/s   {note}", flush=True)
    return rate


def bench_seek(folder: Path, records: int) -> None:
    """--from/--to over a set whose sidecars have an index, 1 s of it."""
    data = folder / "seek"
    data.mkdir()
    for number in range(4):
        path = data / f"dev-{number:06d}-20260101T000000Z.bin"
        make_dump(path, records // 4, begin_ns=number * 10**12)
        index = [
            IndexEntry(offset=at * 48, seq=at, ts_ns=number * 10**12 + at * 100)
            for at in range(0, records // 4, 20_000)
        ]
        sidecar = Sidecar(
            segment=path.name,
            number=number,
            label="dev",
            device=Device(path="x"),
            first_ts_ns=index[0].ts_ns,
            last_ts_ns=index[-1].ts_ns,
            index=index,
        )
        sidecar_path(path).write_bytes(sidecar.encode())
    dump = open_dump(data)
    span = records // 4 * 100
    wanted = Range(10**12 + span // 2, 10**12 + span // 2 + span // 10)

    def seek() -> None:
        found = sum(map(len, Selection(time=wanted).batches(dump)))
        assert found == span // 10 // 100 + 1

    timed = best(seek)
    print(f"{'--from/--to, 4 segments':<28} {1000 * timed[0]:9.2f} ms")


def bench_peers(dump: Path, folder: Path, records: int) -> None:
    """Counting and text against babeltrace2 on the same trace."""
    tool = shutil.which("babeltrace2")
    if tool is None:
        print("babeltrace2 is not installed (apt install babeltrace2): peers left out")
        return
    command("convert", str(dump), "--to", "ctf", "-o", str(folder / "ctf"))()
    counting = [tool, str(folder / "ctf"), "-c", "sink.utils.counter"]
    for name, args, ours in (
        ("count", counting, command("info", str(dump))),
        ("text", [tool, str(folder / "ctf")], command("decode", str(dump), "-o", "/dev/null")),
    ):
        start = time.perf_counter()
        subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        theirs = time.perf_counter() - start
        mine = best(ours)[0]
        report(f"babeltrace2 {name}", records, (theirs, 0), f"ours {theirs / mine:.0f}x")


def run(quick: bool) -> None:
    """What `make bench` calls."""
    _in_folder(500_000 if quick else 8_000_000)


def _in_folder(records: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hmb-bench-", dir=os.environ.get("BENCH_DIR")))
    print(f"\noffline: {records:,} records of 48 bytes")
    try:
        _run(folder, records)
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", default="8M")
    _in_folder(parse_rate(parser.parse_args().records) or 0)
    return 0


def _run(folder: Path, records: int) -> None:
    dump = folder / "bench.bin"
    make_dump(dump, records)
    bare = report("bare walk", records, best(lambda: bare_walk(dump)))
    rate = report("columns", records, best(lambda: columns(dump)), "aim 80, cached")
    print(f"{'columns / bare walk':<28} {rate / bare:9.2f}       aim 0.3")
    report("stats", records, best(lambda: gather(open_dump(dump))), "aim 30")
    out = str(folder / "out")
    for target, aim in (("csv", "aim 1"), ("jsonl", ""), ("parquet", "aim 3")):
        work = command("convert", str(dump), "--to", target, "-o", out, "-q")
        report(target, records, best(work), aim)
    report("decode to text", records, best(command("decode", str(dump), "-o", out)))
    bench_seek(folder, records)
    print(f"{'RSS':<28} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:9.0f} MiB")


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The whole daemon against a bare write loop of the same bytes to the same disk."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Sample, alternate, heading, median, note, ratio, row, timed

BIN = Path(sys.executable).parent
RINGS = ("2MiB", "16MiB", "64MiB")
BLOCK = 1 << 20
HEADER_BYTES = 32


@dataclass
class Captured:
    """One capture."""

    sample: Sample
    rss_anon: int  # bytes
    ledger: dict[str, Any]
    records: int
    lost: int
    around: float  # CPU s of start and exit: the spool's pages made and freed
    waited: float  # share of the time in which firmware found the ring full


class Capture:
    """A simulator and a daemon on one ring, measured from the first record until all is sealed."""

    def __init__(
        self, folder: Path, ring: str, *simulator: str, daemon: tuple[str, ...] = ()
    ) -> None:
        self.folder, self.ring = folder, ring
        self.simulator_args, self.daemon_args = simulator, daemon
        self.out = folder / "capture"
        self.shm = f"/hmb-bench-{os.getpid()}"
        self.daemon: subprocess.Popen[bytes] | None = None

    def run(self) -> Captured:
        shutil.rmtree(self.out, ignore_errors=True)
        ledger = self.folder / "ledger.json"
        simulator = subprocess.Popen(
            [
                str(BIN / "hmb-firmware-sim"), "--shm", self.shm, "--ring-size", self.ring,
                "--ledger", str(ledger), "--freeze-at-end", "--quiet", *self.simulator_args,
            ]
        )  # fmt: skip
        # Firmware starts once a consumer is there: held until the daemon says so.
        path = Path("/dev/shm") / self.shm[1:]
        while not path.exists():
            if simulator.poll() is not None:
                raise RuntimeError("the simulator ended early")
            time.sleep(0.001)
        os.kill(simulator.pid, signal.SIGSTOP)
        log = (self.folder / "daemon.log").open("wb")
        daemon = subprocess.Popen(
            [
                str(BIN / "hmb-trace-daemon"), "--device", f"shm:{self.shm}",
                "--output-dir", str(self.out), "--on-frozen", "exit", "--label", "bench",
                "--log-format", "json", "--rotate-size", "0", *self.daemon_args,
            ],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            return self._measure(simulator, daemon, ledger)
        finally:
            log.close()
            for process in (simulator, daemon):
                if process.returncode is None and process.poll() is None:
                    process.kill()
                    process.wait()
            path.unlink(missing_ok=True)

    def _measure(
        self, simulator: subprocess.Popen[bytes], daemon: subprocess.Popen[bytes], ledger: Path
    ) -> Captured:
        running = b'"running"'
        while running not in (self.folder / "daemon.log").read_bytes():
            if daemon.poll() is not None:
                raise RuntimeError((self.folder / "daemon.log").read_text())
            time.sleep(0.005)
        while "hmb-populate" in _threads(daemon.pid):  # the spool's pages, once in a capture's life
            time.sleep(0.005)
        before = _cpu(daemon.pid)
        os.kill(simulator.pid, signal.SIGCONT)
        begun = time.perf_counter()
        rss = 0
        while not any(self.out.glob("*.bin")):  # there once it is synced and sealed
            if daemon.poll() is not None:
                raise RuntimeError((self.folder / "daemon.log").read_text())
            rss = max(rss, _rss_anon(daemon.pid))
            time.sleep(0.005)
        seconds, cpu = time.perf_counter() - begun, _cpu(daemon.pid) - before
        _, status, usage = os.wait4(daemon.pid, 0)
        daemon.returncode = os.waitstatus_to_exitcode(status)
        simulator.wait(60)
        if daemon.returncode or simulator.returncode:
            raise RuntimeError((self.folder / "daemon.log").read_text())
        cars = [json.loads(p.read_text()) for p in self.out.glob("*.json")]
        size, records = sum(c["bytes"] for c in cars), sum(c["records"] for c in cars)
        sample = Sample(seconds, cpu, size, records)
        lost = sum(c["lost"] for c in cars)
        around = usage.ru_utime + usage.ru_stime - cpu
        told = json.loads(ledger.read_text())
        waited = told["blocked_s"] / told["elapsed_s"]
        return Captured(sample, rss, told, records, lost, around, waited)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _threads(pid: int) -> set[str]:
    return {path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")}


def _rss_anon(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((x for x in status.splitlines() if x.startswith("RssAnon")), "RssAnon: 0 kB")
    return int(line.split()[1]) * 1024


def bare_loop(path: Path, size: int, *, direct: bool) -> None:
    """What the machine can do: one buffer, written over and over, then made durable."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    fd = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o644)
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(os.urandom(BLOCK))
    try:
        done = 0
        while done < size:
            done += os.write(fd, buffer)
        os.fdatasync(fd)
    finally:
        os.close(fd)
        buffer.close()


def _kinds(folder: Path) -> tuple[str, ...]:
    try:
        bare_loop(folder / "probe", BLOCK, direct=True)
    except OSError:
        note("this file system takes no direct I/O")
        return ("buffered",)
    return ("direct", "buffered")


def throughput(folder: Path, total: int, rounds: int) -> None:
    """Daemon against loop, by kind of I/O, ring and record size."""
    heading("whole daemon, firmware blocking when the ring is full, against a bare write loop")
    print("(the simulator runs on the same cores; aim: ratio >= 0.8, CPU direct <= 0.3 s/GB;")
    print(
        " fw waits: time in which firmware found the ring full; near 0 %, it was the limit itself)"
    )
    widths = (24, 11, 11, 7, 13, 10, 10, 9, 12, 10)
    row("I/O, ring, record", "daemon", "bare loop", "ratio", "M records/s", "CPU s/GB", "loop CPU",
        "RssAnon", "start+exit", "fw waits", widths=widths)  # fmt: skip
    cases = [(k, r, 64) for k in _kinds(folder) for r in RINGS]
    cases += [("direct", "16MiB", size) for size in (16, 512)]
    for kind, ring, payload in cases:
        count = total // (HEADER_BYTES + payload)
        capture = Capture(
            folder, ring, "--count", str(count), "--rate", "max", "--on-full", "block",
            "--ledger-hash", "none", "--payload", f"{payload}..{payload}",
            daemon=("--io", kind, "--fsync", "seal"),
        )  # fmt: skip
        seen: list[Captured] = []

        def daemon(capture: Capture = capture, seen: list[Captured] = seen) -> Sample:
            seen.append(capture.run())
            return seen[-1].sample

        def loop(kind: str = kind) -> Sample:
            path = folder / "bare"
            return timed(lambda: bare_loop(path, total, direct=kind == "direct"), total)

        found = alternate({"daemon": daemon, "loop": loop}, rounds)
        mine, theirs = found["daemon"], found["loop"]
        row(
            f"{kind}, {ring}, {HEADER_BYTES + payload} B",
            f"{median(mine, lambda s: s.rate):.2f} GB/s",
            f"{median(theirs, lambda s: s.rate):.2f} GB/s",
            f"{ratio(found, 'daemon', 'loop'):.2f}",
            f"{median(mine, lambda s: s.records / s.seconds / 1e6):.1f}",
            f"{median(mine, lambda s: s.cpu / s.bytes * 1e9):.3f}",
            f"{median(theirs, lambda s: s.cpu / s.bytes * 1e9):.3f}",
            f"{max(c.rss_anon for c in seen) / 1e6:.0f} MB",
            f"{statistics.median(c.around for c in seen):.2f} s",
            f"{100 * statistics.median(c.waited for c in seen):.0f} %",
            widths=widths,
        )


def burst(folder: Path, count: int) -> None:
    """Ten million records at full producer speed, kept whole by the spool."""
    heading("burst at full producer speed, dropping when full, 32 MiB ring, 1 GiB spool")
    done = Capture(
        folder, "32MiB", "--count", str(count), "--rate", "max", "--on-full", "drop",
        "--ledger-hash", "none", daemon=("--spool-size", "1GiB"),
    ).run()  # fmt: skip
    produced = done.ledger["records"] + done.ledger["dropped"] + done.ledger["dropped_unseen"]
    row("produced", f"{produced:,}")
    row("kept", f"{done.records:,}")
    row("lost (aim: 0)", f"{produced - done.records:,}")
    row("producer", f"{produced / done.ledger['elapsed_s'] / 1e6:.1f} M/s")


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    """A busy loop pinned on every core."""
    loops = [
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
        for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def crowded(folder: Path, count: int, runs: int) -> None:
    """Records at a steady pace while every core is busy with something else."""
    heading(
        "5 M records/s of 64 B, 32 MiB ring, a busy loop on each core (aim: lost 0 in each run)"
    )
    lost = []
    for _ in range(runs):
        with _busy_cores():
            done = Capture(
                folder, "32MiB", "--count", str(count), "--rate", "5M/s", "--on-full", "drop",
                "--payload", "32..32", "--ledger-hash", "none", daemon=("--spool-size", "1GiB"),
            ).run()  # fmt: skip
        produced = done.ledger["records"] + done.ledger["dropped"] + done.ledger["dropped_unseen"]
        lost.append(produced - done.records)
    row("lost, run by run", " ".join(f"{n:,}" for n in lost), widths=(30, 60))


def idle(seconds: float, folder: Path) -> None:
    """What the daemon costs when nothing happens."""
    heading(f"idle, 64 MiB ring, {seconds:.0f} s (aim: < 0.5 % of a core)")
    capture = Capture(folder, "64MiB")
    simulator = subprocess.Popen(
        [
            str(BIN / "hmb-firmware-sim"), "--shm", capture.shm, "--ring-size", "64MiB",
            "--rate", "1/s", "--quiet",
        ]
    )  # fmt: skip
    path = Path("/dev/shm") / capture.shm[1:]
    while not path.exists():
        time.sleep(0.01)
    daemon = subprocess.Popen(
        [str(BIN / "hmb-trace-daemon"), "--device", f"shm:{capture.shm}", "--output-dir",
         str(capture.out), "--log-level", "error"],
    )  # fmt: skip
    try:
        time.sleep(3)
        before = _cpu(daemon.pid)
        time.sleep(seconds)
        row("CPU", f"{100 * (_cpu(daemon.pid) - before) / seconds:.2f} %")
        row("RssAnon", f"{_rss_anon(daemon.pid) / 1e6:.0f} MB")
    finally:
        for process in (daemon, simulator):
            process.terminate()
            process.wait(20)
        path.unlink(missing_ok=True)


def latency(folder: Path, seconds: float) -> None:
    """From the firmware's publish to tail (spool committed), seen by a third process."""
    heading("latency at 100 k records/s, 16 MiB ring (aim: p99 < 2.5 ms to the spool)")
    capture = Capture(folder, "16MiB")
    simulator = subprocess.Popen(
        [str(BIN / "hmb-firmware-sim"), "--shm", capture.shm, "--ring-size", "16MiB",
         "--rate", "100k/s", "--quiet"],
    )  # fmt: skip
    path = Path("/dev/shm") / capture.shm[1:]
    while not path.exists():
        time.sleep(0.01)
    daemon = subprocess.Popen(
        [str(BIN / "hmb-trace-daemon"), "--device", f"shm:{capture.shm}", "--output-dir",
         str(capture.out), "--log-level", "error", "--rotate-size", "0"],
    )  # fmt: skip
    try:
        time.sleep(3)
        spool, files = _watch(path, capture.out, seconds)
    finally:
        for process in (daemon, simulator):
            process.terminate()
            process.wait(20)
        path.unlink(missing_ok=True)
    row("", "p50", "p99", "max")
    for name, waits in (("to the spool, ms", spool), ("to the file, ms", files)):
        ordered = sorted(waits)
        cuts = [statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]]
        row(name, *(f"{1000 * c:.2f}" for c in cuts))


def _watch(ring: Path, out: Path, seconds: float) -> tuple[list[float], list[float]]:
    """How long after a head was seen tail passed it, and the file was as long."""
    waits: tuple[list[float], list[float]] = ([], [])
    open_heads: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
    with ring.open("rb") as file, mmap.mmap(file.fileno(), 64, prot=mmap.PROT_READ) as header:
        part = next(out.glob("*.bin.part"))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            now = time.perf_counter()
            head = int.from_bytes(header[0x10:0x18], "little")
            tail = int.from_bytes(header[0x18:0x20], "little")
            # From the ring's first byte on, so that cursors and offsets differ only by the gaps at
            # the laps' ends. st_size counts whole pages: what lies in the last may not be there.
            reached = (tail, part.stat().st_size - 4096)
            for waiting, done, value in zip(open_heads, waits, reached, strict=True):
                while waiting and waiting[0][1] <= value:
                    done.append(now - waiting.pop(0)[0])
                if not waiting or head > waiting[-1][1]:
                    waiting.append((now, head))
            time.sleep(0.0002)
    return waits


def run(quick: bool) -> None:
    """Print the tables."""
    where = os.environ.get("BENCH_DIR", ".")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=where) as name:
        folder = Path(name)
        throughput(folder, (256 << 20) if quick else (2 << 30), 1 if quick else 3)
        burst(folder, 1_000_000 if quick else 10_000_000)
        crowded(folder, 1_000_000 if quick else 20_000_000, 1 if quick else 10)
        latency(folder, 3 if quick else 15)
        idle(3 if quick else 20, folder)

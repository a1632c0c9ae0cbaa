#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench-peers: what others make of the same load, where they are installed.

Producers differ (a tracepoint call is not a DMA write), so look at what is kept, at the
consumer's CPU, and at reading; rates of producing are there for scale only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bench_offline
from bench_daemon import BIN, Capture
from measure import heading, load, note, row

HERE = Path(__file__).parent
PAYLOAD = 16
WIDTHS = (34, 14, 14, 14, 18)


def quiet(*command: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Run to the end, output captured; RuntimeError when it fails."""
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def capture_with_ours(folder: Path, count: int) -> Path:
    """Our daemon on a 32 MiB ring; the dump set is left for the readers."""
    capture = Capture(
        folder, "32MiB", "--count", str(count), "--rate", "max", "--on-full", "block",
        "--payload", f"{PAYLOAD}..{PAYLOAD}", "--ledger-hash", "none",
    )  # fmt: skip
    done = capture.run()
    seconds, cpu = done.sample.seconds, done.sample.cpu
    row("hmb-trace, 32 MiB ring", f"{count / seconds / 1e6:.2f} M/s",
        f"{100 * done.records / count:.1f} %", f"{cpu / count * 1e6:.4f}",
        f"{cpu / done.sample.bytes * 1e9:.2f}", widths=WIDTHS)  # fmt: skip
    return capture.out


class Lttng:
    """A session of LTTng-UST with a session daemon of its own."""

    def __init__(self, folder: Path, buffers: tuple[str, str]) -> None:
        self.folder, self.buffers = folder, buffers
        self.trace = folder / f"lttng-{buffers[0]}"
        self.env = {**os.environ, "LTTNG_HOME": str(folder), "HOME": str(folder)}

    def run(self, emit: Path, count: int) -> None:
        pidfile = self.folder / "sessiond.pid"
        quiet("lttng-sessiond", "--daemonize", "--no-kernel", f"--pidfile={pidfile}", env=self.env)
        pid = int(pidfile.read_text())
        try:
            self._session(emit, count)
        finally:
            os.kill(pid, 15)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.05)

    def _lttng(self, *words: object) -> str:
        return quiet("lttng", *words, env=self.env).stdout

    def _session(self, emit: Path, count: int) -> None:
        size, number = self.buffers
        self._lttng("create", "hmb", f"--output={self.trace}")
        self._lttng("enable-channel", "-u", "c", f"--subbuf-size={size}", f"--num-subbuf={number}")
        self._lttng("enable-event", "-u", "hmb:record", "-c", "c")
        self._lttng("start")
        seconds = float(quiet(emit, count, env=self.env).stdout)
        self._lttng("stop")
        lost = sum(map(int, re.findall(r"Discarded events: (\d+)", self._lttng("list", "hmb"))))
        cpu = _cpu_of("lttng-consumerd")
        self._lttng("destroy", "hmb")
        size_all = sum(p.stat().st_size for p in self.trace.rglob("*") if p.is_file())
        row(f"LTTng-UST, {number} x {size}", f"{count / seconds / 1e6:.2f} M/s",
            f"{100 * (count - lost) / count:.1f} %", f"{cpu / count * 1e6:.4f}",
            f"{cpu / size_all * 1e9:.2f}", widths=WIDTHS)  # fmt: skip


def _cpu_of(name: str) -> float:
    """User and system seconds of all processes of that name."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if f"({name[:15]})" in text:
            fields = text.rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def build_emitter(folder: Path) -> Path | None:
    """The LTTng event source, compiled; None where LTTng is not installed."""
    if not shutil.which("lttng-sessiond"):
        note("LTTng is not installed (apt install lttng-tools liblttng-ust-dev)")
        return None
    out = folder / "emit"
    source = HERE / "lttng"
    try:
        quiet("cc", "-O2", f"-I{source}", "-o", out, source / "emit.c", "-llttng-ust", "-ldl")
    except RuntimeError as error:
        note(f"no LTTng: {str(error).splitlines()[0]} (apt install liblttng-ust-dev)")
        return None
    return out


def read_rate(what: str, count: int, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    row(what, f"{count / (time.perf_counter() - begun) / 1e6:.2f} M/s", widths=WIDTHS)


def reading(folder: Path, dump: Path, count: int) -> None:
    """Counting and printing the same records, ours and as CTF through babeltrace2."""
    heading("reading the same records")
    read_rate("hmb-trace stats", count, lambda: quiet(BIN / "hmb-trace", "stats", dump))
    with (folder / "text").open("wb") as text:
        read_rate(
            "hmb-trace decode, text", count,
            lambda: subprocess.run([BIN / "hmb-trace", "decode", dump], stdout=text, check=True),
        )  # fmt: skip
    if not shutil.which("babeltrace2"):
        note("babeltrace2 is not installed (apt install babeltrace2)")
        return
    ctf = folder / "ctf"
    quiet(BIN / "hmb-trace", "convert", "--to", "ctf", "-o", ctf, dump)
    counting = ["babeltrace2", ctf, "-c", "sink.utils.counter"]
    read_rate("babeltrace2 counting (our CTF)", count, lambda: quiet(*counting))
    with (folder / "text").open("wb") as text:
        read_rate(
            "babeltrace2 text (our CTF)", count,
            lambda: subprocess.run(["babeltrace2", str(ctf)], stdout=text, check=True),
        )  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000_000, help="events (default: 5 million)")
    count = parser.parse_args().count
    print(load())
    heading(f"{count:,} events of {PAYLOAD} payload bytes, emitted as fast as it goes")
    row("", "emitted", "kept", "CPU s/M", "consumer CPU s/GB", widths=WIDTHS)
    where = os.environ.get("BENCH_DIR", ".")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=where) as name:
        folder = Path(name).resolve()
        dump = capture_with_ours(folder, count)
        emit = build_emitter(folder)
        for buffers in (("4M", "8"), ("512k", "4")) if emit else ():
            Lttng(folder, buffers).run(emit, count)
        reading(folder, dump, count)
        inside = folder / "inside"
        inside.mkdir()
        heading("the same trace, ours inside one process: start-up left out")
        bench_offline.bench_peers(dump, inside, count)


if __name__ == "__main__":
    main()

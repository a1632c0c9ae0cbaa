#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make demo: firmware simulator, daemon, .pccx and report, with the books balanced at the end.

Act one: firmware at a steady pace; its records become a dump set, a .pccx and a report.
Act two: firmware as fast as the daemon frees the ring, to see the speed.
Act three: firmware that waits for nobody, and a ring far too small, so that records are
lost on purpose: the verdict is `lossy`, and the account says how many, to the record.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PACED = {
    "records": 3_000_000,
    "rate": "500k/s",
    "ring": "2MiB",
    "on_full": "block",
    "rotate": "32MiB",
}
FAST = {
    "records": 10_000_000,
    "rate": "max",
    "ring": "16MiB",
    "on_full": "block",
    "rotate": "256MiB",
}
OVERRUN = {
    "records": 6_000_000,
    "rate": "1.5M/s",
    "ring": "64KiB",
    "on_full": "drop",
    "rotate": "64MiB",
}
PATIENCE = 90.0  # seconds for one act
console = Console(highlight=False)


def fail(what: str) -> NoReturn:
    console.print(f"[bold red]demo failed:[/] {what}")
    sys.exit(1)


def run(*args: object) -> str:
    """Run one of our programs to its end, showing the command line; its standard output."""
    command = [str(a) for a in args]
    shown = [str(Path(c).relative_to(ROOT)) if c.startswith(f"{ROOT}/") else c for c in command]
    console.print(f"[dim]$ {' '.join(shown)}[/]", soft_wrap=True)
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False
    )
    if done.returncode:
        fail(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Act:
    """A simulator and a daemon on the same ring."""

    def __init__(self, name: str, plan: dict[str, Any], out: Path, scale: float) -> None:
        self.name, self.plan = name, plan
        self.records = int(plan["records"] * scale)
        self.folder = out / name
        self.shm = f"/hmb-demo-{os.getpid()}-{name}"
        self.ledger_path = self.folder / "ledger.json"
        self.capture = self.folder / "capture"
        self.seconds = 0.0
        self.folder.mkdir(parents=True)

    def play(self) -> None:
        """Start both, watch, wait for both."""
        fast = ["--ledger-hash", "none"] if self.plan is FAST else []
        simulator = self._start(
            "hmb-firmware-sim", "--shm", self.shm, "--ring-size", self.plan["ring"],
            "--workload", "ftl", "--count", self.records, "--rate", self.plan["rate"],
            "--on-full", self.plan["on_full"], "--freeze-at-end", "--linger", "60s",
            "--ledger", self.ledger_path, *fast,
        )  # fmt: skip
        ring = Path("/dev/shm") / self.shm[1:]
        self._wait(ring.exists, simulator, "the ring to appear")
        daemon = self._start(
            "hmb-trace-daemon", "--device", f"shm:{self.shm}", "--output-dir", self.capture,
            "--rotate-size", self.plan["rotate"], "--on-frozen", "exit", "--label", "demo",
        )  # fmt: skip
        try:
            self._watch(ring, simulator, daemon)
        finally:
            for process in (simulator, daemon):
                if process.poll() is None:
                    process.terminate()
                    process.wait(10)
        for process, log in ((simulator, "hmb-firmware-sim"), (daemon, "hmb-trace-daemon")):
            if process.returncode:
                fail(f"{log} ended with {process.returncode}, see {self.folder / log}.log")

    def _start(self, program: str, *args: object) -> subprocess.Popen[bytes]:
        words = [program, *(str(a) for a in args)]
        console.print(
            f"[dim]$ {' '.join(w.replace(f'{ROOT}/', '') for w in words)} &[/]",
            soft_wrap=True,
        )
        with (self.folder / f"{program}.log").open("wb") as log:
            return subprocess.Popen(
                [str(BIN / program), *words[1:]], stdout=log, stderr=subprocess.STDOUT
            )

    def _wait(self, condition: Any, process: subprocess.Popen[bytes], what: str) -> None:
        end = time.monotonic() + 20
        while not condition():
            if process.poll() is not None or time.monotonic() > end:
                log = (self.folder / "hmb-firmware-sim.log").read_text(errors="replace")
                fail(f"waited for {what}: {log.strip()[-500:]}")
            time.sleep(0.01)

    def _watch(
        self, ring: Path, simulator: subprocess.Popen[bytes], daemon: subprocess.Popen[bytes]
    ) -> None:
        begun = time.monotonic()
        moved_from = moved_to = begun
        seen = 0
        with console.status("starting") as line:
            while daemon.poll() is None:
                now, size = time.monotonic(), self._dumped()
                if size != seen:
                    moved_from, moved_to = (moved_from if seen else now), now
                    seen = size
                fill = _ring_fill(ring)
                state = "" if fill is None else f", ring {100 * fill:4.1f} % full"
                rate = size / max(now - moved_from, 0.1) / 1e6
                line.update(f"{size / 1e6:8.1f} MB in the dump, {rate:6.0f} MB/s{state}")
                if now - begun > PATIENCE:
                    fail(f"still running after {PATIENCE:.0f} s, see {self.folder}")
                time.sleep(0.1)
            simulator.wait(70)
        self.seconds = max(moved_to - begun, 1e-9)

    def _dumped(self) -> int:
        sizes = (p.stat().st_size for p in self.capture.glob("*.bin*") if p.exists())
        return sum(sizes) if self.capture.exists() else 0

    # ---- the books ----

    def account(self) -> dict[str, Any]:
        """Ledger (what firmware did) against the dump set (what we have); fails if they differ."""
        ledger = json.loads(self.ledger_path.read_text())
        checksum = [] if self.plan is FAST else ["--checksum"]
        dump = json.loads(run("hmb-trace", "info", "--json", *checksum, self.capture))
        unseen = ledger["dropped_unseen"]
        produced = ledger["records"] + ledger["dropped"] + unseen
        table = Table(title=f"Account of the {self.name} act", title_justify="left")
        table.add_column("", style="bold")
        table.add_column("records", justify="right")
        table.add_row("produced by firmware", f"{produced:,}")
        table.add_row("in the dump", f"{dump['records']:,}")
        table.add_row("reported lost", f"{dump['lost']:,}")
        if unseen:
            # Before the first or after the last record: no sequence number shows them (R12).
            table.add_row("dropped at the very ends, known to firmware only", f"{unseen:,}")
        table.add_row("verdict", dump["verdict"])
        console.print(table)
        expected = _expected(ledger, dump)
        books = {
            "produced = dumped + reported lost": produced
            == dump["records"] + dump["lost"] + unseen,
            "every drop that can be seen is reported": dump["lost"] == ledger["dropped"],
            f"the verdict is {' or '.join(expected)}": dump["verdict"] in expected,
            "the reasons add up to what is lost": _explained(dump) == dump["lost"],
            "the dump ends with a whole record": not dump["truncated_end"],
            "first and last seq": all(dump[k] == ledger[k] for k in ("first_seq", "last_seq")),
            "bytes, wrap markers included": dump["bytes"] == ledger["bytes"],
        }
        if checksum:
            books["FNV-1a of every byte"] = _number(dump["fnv64"]) == _number(ledger["fnv64"])
        for words, holds in books.items():
            console.print(f"  {'[green]✓[/]' if holds else '[red]✗[/]'} {words}")
        if not all(books.values()):
            fail(f"ledger {ledger} and dump {dump} disagree")
        return {**dump, "seconds": self._capture_seconds()}

    def _capture_seconds(self) -> float:
        from hmb_trace.dumps import sidecar  # noqa: PLC0415 - the package is there only once built

        cars = [sidecar.load(path) for path in sorted(self.capture.glob("*.json"))]
        ns = max(c.sealed_ns for c in cars) - min(c.started_ns for c in cars)
        return max(ns / 1e9, 1e-9)


def _expected(ledger: dict[str, Any], dump: dict[str, Any]) -> list[str]:
    """The verdict that is true, by what firmware knows of its drops."""
    if not ledger["dropped"] and not ledger["dropped_unseen"]:
        return ["whole"]
    # The ring overflowed before the daemon came, or after the last record: no seq shows how much.
    vague = any(r["kind"] in ("before-attach", "overflow-unknown") for r in dump["reasons"])
    return ["incomplete"] if vague else ["lossy"]


def _explained(dump: dict[str, Any]) -> int:
    """Lost records that a reason gives."""
    return sum(r["count"] or 0 for r in dump["reasons"] if r["kind"] != "rejects")


def _number(text: str | int) -> int:
    return text if isinstance(text, int) else int(text, 16)


def _ring_fill(path: Path) -> float | None:
    """Unread share of the ring, read from its header as any observer may."""
    try:
        with path.open("rb") as file:
            head = file.read(0x20)
    except OSError:
        return None
    size, _, head_at, tail_at = struct.unpack("<IIQQ", head[8:])
    return ((head_at - tail_at) % 2**64) / size if size else None


def speed(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    return (
        f"{found['records'] / seconds / 1e6:.2f} M records/s, "
        f"{found['bytes'] / seconds / 1e9:.2f} GB/s"
    )


def main() -> None:
    """All three acts; ends with 1 when a book does not balance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "demo-out", help="emptied first")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of records")
    asked = parser.parse_args()
    out, scale = asked.output.resolve(), asked.scale
    begun = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    console.rule("Act one: firmware at a steady pace")
    paced = Act("paced", PACED, out, scale)
    paced.play()
    first = paced.account()

    console.rule("From the dump set to a .pccx and a report")
    catalog, pccx, report = (out / name for name in ("ftl.toml", "demo.pccx", "report.html"))
    catalog.write_text(run("hmb-firmware-sim", "--print-catalog", "ftl"), encoding="utf-8")
    run("hmb-trace", "pack", paced.capture, "-o", pccx, "--catalog", catalog)
    run("hmb-trace", "verify", "--strict", pccx)
    title = "Flash translation layer, simulated"
    run("hmb-trace", "report", paced.capture, "--catalog", catalog, "--title", title, "-o", report)

    console.rule("Act two: firmware as fast as the daemon lets it")
    fast = Act("fast", FAST, out, scale)
    fast.play()
    second = fast.account()

    console.rule("Act three: a ring far too small, and firmware that waits for nobody")
    overrun = Act("overrun", OVERRUN, out, scale)
    overrun.play()
    third = overrun.account()
    lossy = out / "overload.html"
    title = "The same, overloaded"
    run("hmb-trace", "report", overrun.capture, "--catalog", catalog, "--title", title, "-o", lossy)

    console.rule("Done")
    segments = len(list(paced.capture.glob("*.bin")))
    for name, found in (("paced", first), ("full speed", second), ("overload", third)):
        said = f"[bold]{found['verdict']}[/], lost = {found['lost']:,}"
        console.print(f"  {name:11s} {speed(found)}, {said}")
    console.print(f"  dump set    {paced.capture} ({segments} sealed segments)", soft_wrap=True)
    console.print(f"  .pccx       {pccx} (verified)", soft_wrap=True)
    console.print(f"  reports     {report}, {lossy.name}", soft_wrap=True)
    console.print(f"  all of it in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("demo: interrupted")
        sys.exit(130)

# SPDX-License-Identifier: Apache-2.0
"""How well `hmb-trace diff` finds planted changes, and how often it finds what is not there.

Each side holds 2 M records of the simulator's ftl workload, of different seeds; the changes are
planted into the dump of the new side. Not part of `make bench`: it takes minutes.

    python benchmarks/bench_diff.py [--records N] [--healthy PAIRS] [--lossy PAIRS] [--only NAME]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace import Catalog, open_dump
from hmb_trace.compare.findings import Finding
from hmb_trace.compare.run import compare_captures
from hmb_trace.dumps.batch import RecordBatch

BIN = Path(sys.executable).parent
TS, OPCODE, CPU, PAYLOAD = 8, 16, 18, 32


class Trace:
    """A dump in memory that can be changed."""

    def __init__(self, path: Path, catalog: Catalog) -> None:
        data = bytearray(path.read_bytes())
        with open_dump(path) as dump:
            (batch,) = dump.batches(max_bytes=len(data) + 1)
        self.catalog = catalog
        self.bytes = np.frombuffer(data, "u1").copy()
        self.at = batch.offset.astype("i8")
        self.ts = batch.ts_ns.astype("i8")
        self.opcode = batch.opcode.copy()
        self.cpu = batch.cpu.copy()
        self.length = batch.payload_len.copy()
        self.keep = np.ones(len(batch), bool)
        self.order = np.arange(len(batch))
        self.random = np.random.default_rng(7)

    def rows(self, name: str) -> NDArray[np.int64]:
        """Rows of an event."""
        return np.flatnonzero(self.opcode == self.catalog.by_name[name].opcode)

    def field(self, name: str, field: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Rows of an event and the values of a field in them."""
        made = self.catalog.by_name[name].field(field)
        assert made is not None
        rows = self.rows(name)
        places = self.at[rows, None] + PAYLOAD + made.offset + np.arange(made.size)
        return rows, self.bytes[places].view(made.dtype)[:, 0]

    def store(self, name: str, field: str, rows: NDArray[Any], values: NDArray[Any]) -> None:
        """Write values of a field."""
        made = self.catalog.by_name[name].field(field)
        assert made is not None
        places = self.at[rows, None] + PAYLOAD + made.offset + np.arange(made.size)
        self.bytes[places] = values.astype(made.dtype)[:, None].view("u1")

    def some(self, rows: NDArray[Any], share: float) -> NDArray[Any]:
        """A random choice of rows."""
        picked: NDArray[Any] = rows[self.random.random(len(rows)) < share]
        return picked

    def write(self, path: Path) -> None:
        """Sort by time, number afresh, write."""
        rows = self.order[np.argsort(self.ts[self.order], kind="stable")]
        rows = rows[self.keep[rows]]
        for column, size, values in (
            (TS, 8, self.ts.astype("u8")),
            (OPCODE, 2, self.opcode),
            (CPU, 1, self.cpu),
        ):
            self.bytes[self.at[:, None] + column + np.arange(size)] = values[:, None].view("u1")
        seq = np.empty(len(self.at), "u4")
        seq[rows] = np.arange(len(rows))
        self.bytes[self.at[:, None] + 4 + np.arange(4)] = seq[:, None].view("u1")
        columns = {
            "offset": self.at.astype("u8"),
            "seq": seq,
            "ts_ns": self.ts.astype("u8"),
            "opcode": self.opcode,
            "cpu": self.cpu,
            "flags": np.zeros(len(seq), "u1"),
            "payload_len": self.length,
        }
        batch = RecordBatch(memoryview(self.bytes), 0, 0, "", **columns)
        path.write_bytes(batch.select(rows).to_bytes())


# ---- plants: what is changed, and what a finding must name


@dataclass(frozen=True)
class Plant:
    """A change, and the kinds and subject that count as found."""

    name: str
    change: Callable[[Trace], None]
    kinds: tuple[str, ...]
    subject: str

    def found_in(self, findings: list[Finding]) -> bool:
        return any(f.kind in self.kinds and self.subject in f.subject for f in findings)


def slower(
    begin: str, end: str, factor: float, key: str, value: int | None, *, share: float = 1.0
) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows, keys = trace.field(end, key)
        begins, begin_keys = trace.field(begin, key)
        mine = rows if value is None else rows[keys == value]
        mine = trace.some(mine, share)
        keys_of = dict(zip(rows.tolist(), keys.tolist(), strict=True))
        by_key = {k: begins[begin_keys == k] for k in np.unique(begin_keys).tolist()}
        for row in mine.tolist():
            before = by_key.get(keys_of[row])
            place = np.searchsorted(before, row) - 1 if before is not None else -1
            if place >= 0:
                trace.ts[row] += int((trace.ts[row] - trace.ts[before[place]]) * (factor - 1))

    return change


def rate(factor: float) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        trace.ts[:] = trace.ts[0] + ((trace.ts - trace.ts[0]) / factor).astype("i8")

    return change


def drop(name: str, share: float) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        trace.keep[trace.some(trace.rows(name), share)] = False

    return change


def rename(name: str, opcode: int, count: int) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows = trace.rows(name)
        trace.opcode[trace.random.choice(rows, count, replace=False)] = opcode

    return change


def bit(name: str, field: str, position: int, to: int) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows, values = trace.field(name, field)
        mask = values.dtype.type(1 << position)
        trace.store(name, field, rows, values | mask if to else values & ~mask)

    return change


def scale(name: str, field: str, factor: float, share: float = 1.0) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows, values = trace.field(name, field)
        chosen = trace.random.random(len(rows)) < share
        trace.store(name, field, rows[chosen], (values[chosen] * factor).astype(values.dtype))

    return change


def put(name: str, field: str, value: int, count: int) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows, values = trace.field(name, field)
        chosen = trace.random.choice(len(rows), count, replace=False)
        trace.store(name, field, rows[chosen], np.full(count, value, values.dtype))

    return change


def swap(first: str, second: str, share: float) -> Callable[[Trace], None]:
    """Where `second` follows `first` on the same core, exchange their times."""

    def change(trace: Trace) -> None:
        a, b = trace.catalog.by_name[first].opcode, trace.catalog.by_name[second].opcode
        for cpu in np.unique(trace.cpu):
            rows = np.flatnonzero(trace.cpu == cpu)
            here = np.flatnonzero((trace.opcode[rows[:-1]] == a) & (trace.opcode[rows[1:]] == b))
            here = trace.some(here, share)
            left, right = rows[here], rows[here + 1]
            trace.ts[left], trace.ts[right] = trace.ts[right] + 1, trace.ts[left].copy()

    return change


def move_core(name: str, cpu: int, share: float) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        trace.cpu[trace.some(trace.rows(name), share)] = cpu

    return change


def late(name: str, part: float) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows = trace.rows(name)
        limit = trace.ts[0] + int((trace.ts[-1] - trace.ts[0]) * part)
        trace.keep[rows[trace.ts[rows] < limit]] = False

    return change


def jitter(name: str, spread_ns: int) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        rows = trace.rows(name)
        moved = trace.random.integers(0, spread_ns, len(rows))
        trace.ts[rows] += moved

    return change


def stall(name: str, every: int, length_ns: int) -> Callable[[Trace], None]:
    """Now and then nothing happens for a while."""

    def change(trace: Trace) -> None:
        pauses = np.zeros(len(trace.ts), "i8")
        pauses[every::every] = length_ns
        trace.ts += np.cumsum(pauses)

    return change


def plants() -> list[Plant]:
    read, program, erase = "NAND_READ", "NAND_PROGRAM", "NAND_ERASE"
    d, f = ("duration",), ("field", "bit", "value")
    nand = lambda die, factor, name=read: slower(name, f"{name}_DONE", factor, "die", die)  # noqa: E731 - a table
    return [
        Plant("die 3 reads +10 %", nand(3, 1.10), d, "NAND_READ die 3"),
        Plant("die 17 reads +5 %", nand(17, 1.05), d, "NAND_READ die 17"),
        Plant("die 30 programs +10 %", nand(30, 1.10, program), d, "NAND_PROGRAM die 30"),
        Plant("die 1 reads -10 %", nand(1, 0.90), d, "NAND_READ die 1"),
        Plant("all reads of flash +3 %", nand(None, 1.03), d, "NAND_READ"),
        Plant("all programs +3 %", nand(None, 1.03, program), d, "NAND_PROGRAM"),
        Plant("erases +20 %", nand(None, 1.2, erase), d, "NAND_ERASE"),
        Plant(
            "1 % of DMA x3",
            slower("DMA_OUT", "DMA_OUT_DONE", 3, "tag", None, share=0.01),
            d,
            "DMA_OUT",
        ),
        Plant(
            "0.5 % of writes x5",
            slower("HOST_WRITE", "HOST_WRITE_DONE", 5, "tag", None, share=0.005),
            d,
            "HOST_WRITE",
        ),
        Plant(
            "tag 9 reads +15 %",
            slower("HOST_READ", "HOST_READ_DONE", 1.15, "tag", 9),
            d,
            "HOST_READ tag 9",
        ),
        Plant("rate -2 %", rate(0.98), ("rate",), "all"),
        Plant("rate +1 %", rate(1.01), ("rate",), "all"),
        Plant(
            "stalls of 1 ms each 10,000",
            stall("", 10_000, 1_000_000),
            ("rate", "jitter", "duration"),
            "",
        ),
        Plant("a quarter of the trims missing", drop("HOST_TRIM", 0.25), ("share",), "HOST_TRIM"),
        Plant("5 % fewer L2P misses", drop("L2P_MISS", 0.05), ("share",), "L2P_MISS"),
        Plant(
            "10 % fewer queue depth samples",
            drop("QUEUE_DEPTH", 0.1),
            ("share", "jitter"),
            "QUEUE_DEPTH",
        ),
        Plant("retries halved", drop("READ_RETRY", 0.5), ("share",), "READ_RETRY"),
        Plant("trims gone", drop("HOST_TRIM", 1.0), ("gone",), "HOST_TRIM"),
        Plant("SMART updates gone", drop("SMART_UPDATE", 1.0), ("gone",), "SMART_UPDATE"),
        Plant("one new event in a million", rename("L2P_HIT", 0x2001, 2), ("new",), "0x2001"),
        Plant("a new event, 20 times", rename("HOST_READ", 0x2002, 20), ("new",), "0x2002"),
        Plant("a new event, 1 in 1,000", rename("DMA_IN", 0x2003, 2000), ("new",), "0x2003"),
        Plant("stuck bit 3 of a read's lba", bit("HOST_READ", "lba", 3, 0), f, "HOST_READ.lba"),
        Plant("stuck bit 0 of a page", bit("NAND_READ", "page", 0, 1), f, "NAND_READ.page"),
        Plant(
            "stuck bit 2 of a block", bit("NAND_PROGRAM", "block", 2, 1), f, "NAND_PROGRAM.block"
        ),
        Plant("stuck bit 5 of a ppa", bit("L2P_UPDATE", "new_ppa", 5, 0), f, "L2P_UPDATE.new_ppa"),
        Plant("DMA bytes +2 %", scale("DMA_OUT", "bytes", 1.02), f, "DMA_OUT.bytes"),
        Plant(
            "corrected bits +5 %",
            scale("NAND_READ_DONE", "corrected_bits", 1.5, 0.3),
            f,
            "NAND_READ_DONE.corrected_bits",
        ),
        Plant(
            "queue depth up in half the samples",
            scale("QUEUE_DEPTH", "commands", 1.25, 0.5),
            f,
            "QUEUE_DEPTH.commands",
        ),
        Plant("free blocks -10 %", scale("FREE_BLOCKS", "blocks", 0.9), f, "FREE_BLOCKS.blocks"),
        Plant(
            "program status FAIL, 5 times",
            put("NAND_PROGRAM_DONE", "status", 1, 5),
            ("new", "value"),
            "NAND_PROGRAM_DONE.status",
        ),
        Plant(
            "write status 7, 40 times",
            put("HOST_WRITE_DONE", "status", 7, 40),
            ("new", "value", "field"),
            "HOST_WRITE_DONE.status",
        ),
        Plant("channel 0 preferred", put("DMA_OUT", "channel", 0, 6000), f, "DMA_OUT.channel"),
        Plant(
            "20 % swapped: map before done",
            swap("HOST_READ_DONE", "HOST_READ", 0.2),
            ("order",),
            "",
        ),
        Plant(
            "5 % swapped: DMA before its command",
            swap("DMA_OUT_DONE", "HOST_READ_DONE", 0.05),
            ("order",),
            "",
        ),
        Plant(
            "programs swapped with reads, 10 %",
            swap("NAND_PROGRAM_DONE", "NAND_READ", 0.1),
            ("order",),
            "",
        ),
        Plant("2 % of L2P hits on core 3", move_core("L2P_HIT", 3, 0.02), ("core", "order"), ""),
        Plant(
            "10 % of flash reads on core 3", move_core("NAND_READ", 3, 0.1), ("core",), "NAND_READ"
        ),
        Plant("trims begin at 20 %", late("HOST_TRIM", 0.2), ("first",), "HOST_TRIM"),
        Plant("SMART jitter 5 ms", jitter("SMART_UPDATE", 15_000_000), ("jitter",), "SMART_UPDATE"),
    ]


# ---- runs


def make(folder: Path, seed: int, records: int) -> Path:
    """The simulator's dump of a seed."""
    path = folder / f"{seed}.bin"
    if not path.exists():
        ring = folder / f"{seed}.ring"
        sim = [BIN / "hmb-firmware-sim", "--file", ring, "-q", "--ring-size", "256MiB"]
        sim += [
            "--count",
            str(records),
            "--workload",
            "ftl",
            "--seed",
            str(seed),
            "--ledger-hash",
            "none",
        ]
        subprocess.run(sim, check=True)
        daemon = [BIN / "hmb-trace-daemon", "--device", ring, "--output", path, "--once"]
        daemon += [
            "--spool-size",
            "300MiB",
            "--log-level",
            "error",
            "--spool-dir",
            folder / "spool",
        ]
        subprocess.run(daemon, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ring.unlink()
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--lossy", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        catalog_text = subprocess.check_output([BIN / "hmb-firmware-sim", "--print-catalog", "ftl"])
        catalog = Catalog.parse(catalog_text)
        _recall(folder, catalog, options)
        if not options.only:
            _false_alarms(folder, catalog, options)
            _lossy(folder, catalog, options)
    return 0


def _recall(folder: Path, catalog: Catalog, options: argparse.Namespace) -> None:
    base, new = make(folder, 1, options.records), make(folder, 2, options.records)
    found = total = 0
    for plant in plants():
        if options.only not in plant.name:
            continue
        trace = Trace(new, catalog)
        plant.change(trace)
        changed = folder / "planted.bin"
        trace.write(changed)
        begun = time.perf_counter()
        result = compare_captures([base], [changed], catalog)
        took = time.perf_counter() - begun
        hit = plant.found_in(result.findings)
        first = next((i for i, f in enumerate(result.findings) if plant.found_in([f])), None)
        found, total = found + hit, total + 1
        place = f"at {first + 1} of {len(result.findings)}" if first is not None else "MISSED"
        print(f"{'ok' if hit else '--'}  {plant.name:38} {place:14} {took:5.1f} s", flush=True)
        for finding in result.findings[: 5 if not hit or options.only else 0]:
            print(f"      {finding.kind} {finding.subject}: {finding.text}")
    print(f"recall: {found} of {total}")


def _false_alarms(folder: Path, catalog: Catalog, options: argparse.Namespace) -> None:
    alarms = 0
    for pair in range(options.healthy):
        base, new = (make(folder, 100 + 2 * pair + i, options.records) for i in (0, 1))
        result = compare_captures([base], [new], catalog)
        alarms += bool(result.findings)
        for finding in result.findings:
            print(
                f"      false: {finding.kind} {finding.subject}: {finding.text} (p {finding.p:.4f})"
            )
        base.unlink()
        new.unlink()
    print(f"pairs that differ only in the seed: findings in {alarms} of {options.healthy}")


def _lossy(folder: Path, catalog: Catalog, options: argparse.Namespace) -> None:
    wrong = 0
    base = make(folder, 1, options.records)
    for pair in range(options.lossy):
        new = make(folder, 3 + pair, options.records)
        trace = Trace(new, catalog)
        random = np.random.default_rng(pair)
        seqs = np.arange(len(trace.at))
        for _ in range(int(random.integers(1, 6))):
            begin = int(random.integers(0, len(seqs)))
            trace.keep[begin : begin + int(random.integers(100, len(seqs) // 8))] = False
        rows = trace.rows("HOST_TRIM")
        trace.keep[rows] = False  # every trim was among the lost ones
        changed = folder / "lossy.bin"
        _write_with_gaps(trace, changed)
        result = compare_captures([base], [changed], catalog)
        gone = [f for f in result.findings if f.kind == "gone"]
        wrong += bool(gone)
        for finding in gone:
            print(f"      wrong: {finding.subject} {finding.text}")
    print(f"lossy pairs: something lost was called gone in {wrong} of {options.lossy}")


def _write_with_gaps(trace: Trace, path: Path) -> None:
    """As it is, but without the dropped records; seq keeps their places."""
    columns = {
        "offset": trace.at.astype("u8"),
        "seq": np.arange(len(trace.at), dtype="u4"),
        "ts_ns": trace.ts.astype("u8"),
        "opcode": trace.opcode,
        "cpu": trace.cpu,
        "flags": np.zeros(len(trace.at), "u1"),
        "payload_len": trace.length,
    }
    batch = RecordBatch(memoryview(trace.bytes), 0, 0, "", **columns)
    path.write_bytes(batch.select(np.flatnonzero(trace.keep)).to_bytes())


if __name__ == "__main__":
    sys.exit(main())

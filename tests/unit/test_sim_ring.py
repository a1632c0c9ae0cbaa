# SPDX-License-Identifier: Apache-2.0
"""What the simulator writes, read by a reader that shares no code with it.

The reader knows SPEC R3 and R4 and nothing of the engine; its dump must be the ledger's.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from hmb_producer_sim import workload as workloads
from hmb_producer_sim.engine import END, REACHED, Engine, Settings

RECT = 0x54434552
HEADER = struct.Struct("<IIQHBBHHQ")


def fnv1a(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


@dataclass
class Reader:
    """A consumer of well-formed rings in plain Python."""

    memory: mmap.mmap
    dump: bytearray = field(default_factory=bytearray)
    seqs: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    opcodes: list[int] = field(default_factory=list)
    markers: int = 0
    partial: int = 0
    straddled: int = 0
    lost: int = 0
    _last: int | None = None
    _after_marker: bool = False

    @property
    def size(self) -> int:
        return struct.unpack_from("<I", self.memory, 8)[0]

    def cursors(self) -> tuple[int, int]:
        return struct.unpack_from("<QQ", self.memory, 16)

    def flags(self) -> int:
        return struct.unpack_from("<I", self.memory, 32)[0]

    def _at(self, cursor: int, count: int) -> bytes:
        at = cursor % self.size
        first = self.memory[64 + at : 64 + min(self.size, at + count)]
        return first + self.memory[64 : 64 + count - len(first)]

    def drain(self) -> int:
        head, tail = self.cursors()
        start = tail
        assert (head - tail) % 2**64 <= self.size
        while tail != head:
            tail = self._step(tail, (head - tail) % 2**64)
        struct.pack_into("<Q", self.memory, 24, tail)
        return (tail - start) % 2**64

    def _step(self, cursor: int, unread: int) -> int:
        left = self.size - cursor % self.size
        if left < 32:
            assert left <= unread, "a partial gap is published with the record behind it"
            self._partial(self._at(cursor, left))
            return (cursor + left) % 2**64
        magic, seq, ts_ns, opcode, _, flags, length, _, _ = HEADER.unpack(self._at(cursor, 32))
        assert magic == RECT
        if flags & 1:
            assert left <= unread
            assert length == 0
            self.markers += 1
            self.dump += self._at(cursor, 32)
            self._marker_seq(seq)
            self.times.append(ts_ns)
            return (cursor + left) % 2**64
        need = 32 + (length + 7) // 8 * 8
        assert need <= unread
        record = self._at(cursor, need)
        assert not any(record[32 + length :]), "padding is zero"
        self.straddled += need > left
        self.dump += record
        self._record_seq(seq)
        self.seqs.append(seq)
        self.times.append(ts_ns)
        self.opcodes.append(opcode)
        return (cursor + need) % 2**64

    def _partial(self, raw: bytes) -> None:
        if struct.unpack_from("<I", raw)[0] != RECT:
            return
        seq = struct.unpack_from("<I", raw, 4)[0]
        last = self.times[-1] if self.times else 0
        ts_ns = struct.unpack_from("<Q", raw, 8)[0] if len(raw) >= 16 else last
        self.partial += 1
        self.dump += HEADER.pack(RECT, seq, ts_ns, 0, 0, 1, 0, 0, 0)
        self._marker_seq(seq)
        self.times.append(ts_ns)

    def _marker_seq(self, seq: int) -> None:
        ahead = (seq - self._last) % 2**32 if self._last is not None else 0
        if 1 <= ahead < 2**31:
            self.lost += ahead - 1
            self._last, self._after_marker = seq, True

    def _record_seq(self, seq: int) -> None:
        if self._last is not None:
            ahead = (seq - self._last) % 2**32
            if self._after_marker:
                assert ahead < 2**31
                self.lost += max(0, ahead - 1)
            else:
                assert 1 <= ahead < 2**31
                self.lost += ahead - 1
        self._last, self._after_marker = seq, False


@contextmanager
def firmware(
    settings: Settings, payload: tuple[int, int] | None = None, workload: str = "uniform"
) -> Iterator[tuple[Engine, Reader]]:
    memory = mmap.mmap(-1, 64 + settings.ring_size)
    if workload == "ftl":
        payload = None
    engine = Engine(memory, settings, workloads.load(workload, payload))
    try:
        yield engine, Reader(memory)
    finally:
        engine.close()
        memory.close()


def produce(engine: Engine, reader: Reader, count: int) -> None:
    """Alternate: firmware writes until the ring is full, the reader empties it."""
    while engine.run(count, 200_000) not in (REACHED, END):
        reader.drain()
    reader.drain()
    engine.close_epoch()


def check(engine: Engine, reader: Reader) -> dict[str, int]:
    counts = engine.total()
    assert len(reader.seqs) == counts["records"]
    assert len(reader.dump) == counts["bytes"]
    assert (reader.markers, reader.partial) == (counts["markers"], counts["partial_markers"])
    assert reader.straddled == counts["straddled"]
    assert fnv1a(bytes(reader.dump)) == counts["fnv64"]
    if counts["records"]:
        assert (reader.seqs[0], reader.seqs[-1]) == (counts["first_seq"], counts["last_seq"])
    return counts


@pytest.mark.parametrize("wrap", ["marker", "straddle", "seq-marker"])
@pytest.mark.parametrize("ring_size", [4096, 65536])
@pytest.mark.parametrize("payload", [(0, 0), (0, 64), (16, 16), (0, 4064), (4064, 4064), (1, 7)])
def test_ledger_equals_dump_r4(wrap: str, ring_size: int, payload: tuple[int, int]) -> None:
    settings = Settings(ring_size, block=True, wrap=wrap)
    with firmware(settings, payload) as (engine, reader):
        produce(engine, reader, 300)
        counts = check(engine, reader)
    assert counts["records"] == 300
    assert reader.lost == 0


def test_wrap_r3_partial_marker_of_every_length() -> None:
    lengths = set()
    for payload in ((0, 40), (8, 24), (3, 90)):
        with firmware(Settings(4096, block=True), payload) as (engine, reader):
            original = reader._partial
            reader._partial = lambda raw, keep=original: (lengths.add(len(raw)), keep(raw))  # type: ignore[method-assign,assign]
            produce(engine, reader, 3000)
            assert check(engine, reader)["partial_markers"] > 0
    assert lengths == {8, 16, 24}


@pytest.mark.parametrize("wrap", ["marker", "straddle", "seq-marker"])
def test_cursor_r2_and_seq_r12_wrap_around(wrap: str) -> None:
    settings = Settings(
        4096, block=True, wrap=wrap, start_seq=2**32 - 50, start_cursor=2**64 - 8200
    )
    with firmware(settings, (0, 64)) as (engine, reader):
        produce(engine, reader, 400)
        check(engine, reader)
        assert reader.cursors()[0] < 2**32
    assert 0 in reader.seqs
    assert reader.lost == 0


@pytest.mark.parametrize("wrap", ["marker", "straddle", "seq-marker"])
@pytest.mark.parametrize("payload", [(0, 64), (0, 4064)])
def test_drops_r12_are_the_gaps_a_reader_sees(wrap: str, payload: tuple[int, int]) -> None:
    with firmware(Settings(4096, wrap=wrap), payload) as (engine, reader):
        for until in range(150, 1500, 150):
            engine.run(until, 10**9)
            reader.drain()
        engine.close_epoch()
        counts = check(engine, reader)
        assert reader.flags() & 1
    assert counts["dropped"] > 0
    assert reader.lost == counts["dropped"]
    assert counts["records"] + counts["dropped"] + counts["dropped_unseen"] == 1350


def test_drops_that_keep_seq_leave_no_gap() -> None:
    with firmware(Settings(4096, drops_keep_seq=True), (0, 64)) as (engine, reader):
        for until in (200, 400, 600):
            engine.run(until, 10**9)
            reader.drain()
        engine.close_epoch()
        counts = check(engine, reader)
    assert counts["dropped"] > 0
    assert counts["drop_gaps"] == 0
    assert reader.lost == 0


def test_drops_before_the_first_record_are_unseen() -> None:
    with firmware(Settings(4096), (0, 0)) as (engine, reader):
        engine.drop(7)
        engine.run(20, 10**9)
        engine.drop(3)
        reader.drain()
        engine.close_epoch()
        counts = check(engine, reader)
    assert (counts["dropped"], counts["dropped_unseen"]) == (0, 10)
    assert reader.seqs[0] == 7


@pytest.mark.parametrize("workload", ["uniform", "burst"])
def test_same_seed_same_records(workload: str) -> None:
    hashes = []
    for seed in (1, 1, 2):
        with firmware(Settings(65536, seed=seed, block=True), None, workload) as (engine, reader):
            produce(engine, reader, 2000)
            hashes.append(check(engine, reader)["fnv64"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_times_never_go_back() -> None:
    for rate, burst in ((None, "uniform"), (333_333, "uniform"), (10_000_000, "burst")):
        with firmware(Settings(65536, rate=rate, block=True), None, burst) as (engine, reader):
            produce(engine, reader, 3000)
            assert reader.times == sorted(reader.times)


def test_rate_keeps_virtual_time_exact() -> None:
    with firmware(Settings(1 << 20, rate=3_000_000, block=True), (0, 0)) as (engine, reader):
        produce(engine, reader, 30_001)
    assert reader.times[-1] - reader.times[0] == 10_000_000


def test_rate_by_the_firmware_clock() -> None:
    """2000 records of 0.1 ms each take 0.2 s at least, and none comes before its time."""
    workload = replace(workloads.load("uniform", (0, 0)), gap_ns=100_000)
    with mmap.mmap(-1, 64 + (1 << 20)) as memory:
        engine = Engine(memory, Settings(1 << 20, by_clock=True), workload)
        start = time.monotonic_ns()
        while engine.run(2001, 10**7) != REACHED:
            stats = engine.stats()
            clock_ns = stats["now_ns"] - 10**9
            assert clock_ns <= time.monotonic_ns() - start + 100_000  # the next is drawn ahead
        assert time.monotonic_ns() - start >= 200_000_000
        engine.close()

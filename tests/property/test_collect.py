# SPDX-License-Identifier: Apache-2.0
"""Random, damaged and lying rings: libhmbtrace must make of them what the oracle makes.

A producer writes what a list of acts tells it, some of them crimes, into a
tiny ring, so that laps end often; both consumers run until nothing moves
after every publish, and must agree then and there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmb_trace.testing import RingBuilder, marker, record, without_tail
from tests.oracle import native
from tests.oracle.collect import Consumer, joined
from tests.oracle.wire import M64

EXAMPLES = int(os.environ.get("HMB_TRACE_EXAMPLES", "1000"))
AREA_AT = native.AREA_AT
RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

Act = tuple[str, int, int]


class Producer:
    """Firmware that does as it is told; never writes over what the consumer has not freed."""

    def __init__(self, ring: RingBuilder, style: str) -> None:
        self.ring = ring
        self.style = style
        self.largest = min(4064, ring.ring_size - 32)
        self.flags = 0

    def act(self, act: Act) -> None:
        kind, a, b = act
        getattr(self, f"do_{kind}")(a, b)

    def put(self, data: bytes) -> None:
        if len(data) % 8 == 0 and len(data) <= self.ring.free:
            self.ring.raw(data)

    def next_seq(self) -> int:
        seq = self.ring.seq
        self.ring.skip_seq(1)
        return seq

    def room_for(self, span: int) -> bool:
        """End the lap as the wrap style has it; True if the record fits after that."""
        ring = self.ring
        left = ring.left
        must_fit = 32 if self.style == "straddle" else span
        skip = left if left < must_fit else 0
        if skip + span > ring.free:
            return False
        if skip:
            self.end_lap(left)
        return True

    def end_lap(self, left: int) -> None:
        if self.style == "plain" and left < 32:
            self.ring.raw(bytes(left))
            return
        seq = self.ring.seq if self.style != "zero-marker" else 0
        self.put(marker(seq, ts_ns=self.ring.ts_ns).ljust(left, b"\0")[:left])
        if self.style == "seq-marker":
            self.ring.skip_seq(1)

    def good(self, a: int, b: int, **fields: int) -> None:
        size = a % (self.largest + 1) if b % 4 == 0 else a % min(64, self.largest + 1)
        if not self.room_for(32 + (size + 7) // 8 * 8):
            return
        self.ring.ts_ns += b
        payload = bytes([a & 0xFF]) * size
        self.put(record(self.next_seq(), payload, ts_ns=self.ring.ts_ns, opcode=b, **fields))

    def do_good(self, a: int, b: int) -> None:
        self.good(a, b)

    def do_truncated(self, a: int, b: int) -> None:
        self.good(a, b, flags=2)

    def do_unknown_flags(self, a: int, b: int) -> None:
        self.good(a, b, flags=b % 64 * 4 + 4 & 0xFE)

    def do_dirty(self, a: int, b: int) -> None:
        self.good(a, b, padding=0xA5, reserved0=b, reserved1=a)

    def do_alike(self, a: int, b: int) -> None:
        """Many of one length, one of which may be wrong in one way."""
        size, odd_one = b % 41, a % 24
        wrong = ({}, {"flags": 2}, {"flags": 0x10}, {"payload_len": b % 4200}, {"magic": 1})[a % 5]
        for number in range(6 + b % 16):
            if not self.room_for(32 + (size + 7) // 8 * 8):
                return
            if number == odd_one and a % 7 == 0:
                self.ring.skip_seq(b % 3)
            fields = wrong if number == odd_one else {}
            self.put(record(self.next_seq(), bytes([b & 0xFF]) * size, padding=0xA5, **fields))

    def do_drop(self, a: int, b: int) -> None:
        self.ring.skip_seq(a % 8 if b % 16 else a << 16)

    def do_back(self, a: int, b: int) -> None:
        self.ring.skip_seq(-(a % 4) if b % 16 else -(a << 16))

    def do_glitch(self, a: int, b: int) -> None:
        """A record whose seq alone is wrong, by one bit or by much."""
        if self.room_for(40):
            wrong = self.next_seq() ^ (1 << b % 32 if a % 4 else b << 12 | a)
            self.put(record(wrong & 0xFFFFFFFF, bytes(a % 8), ts_ns=self.ring.ts_ns))

    def do_restart(self, a: int, b: int) -> None:
        """Firmware dies in mid-record, and begins anew with small numbers."""
        self.put(bytes([0xDB]) * (b % 9 * 8))
        self.ring.skip_seq(a % 300 - self.ring.seq)
        for _ in range(b % 7):
            self.good(b % 32, a)

    def do_lie(self, a: int, b: int) -> None:
        """A length that is legal or not, over a payload of another one."""
        true = a % 64 // 8 * 8
        stated = (true + b % 128, b % 4200, 4064 + a % 4)[a % 3]
        self.put(record(self.next_seq(), bytes(true), payload_len=stated))

    def do_garbage(self, a: int, b: int) -> None:
        self.put(Random(a).randbytes(b % 12 * 8))

    def do_magic(self, a: int, b: int) -> None:
        """Garbage that begins as a record does."""
        self.put(b"RECT" + Random(a).randbytes(b % 6 * 8 + 4))

    def do_torn(self, a: int, b: int) -> None:
        whole = record(self.next_seq(), bytes(a % 40 // 8 * 8))
        self.put(whole[: b % len(whole) // 8 * 8])

    def do_old(self, a: int, b: int) -> None:
        """A record of an earlier lap."""
        self.put(record(self.ring.seq - 1 - a % 64, bytes(b % 3 * 8)))

    def do_nested(self, a: int, b: int) -> None:
        """A payload that holds records."""
        seq = self.ring.seq
        payload = record(seq + a % 3) + record(seq + 2, bytes(b % 3 * 8))
        if self.room_for(32 + len(payload)):
            self.put(record(self.next_seq(), payload))

    def do_marker(self, a: int, b: int) -> None:
        """A marker where none is due: any seq, anything set, whole or not, skipping or not."""
        seq = (self.ring.seq, self.ring.seq + b % 4 - 2, 0, a << 16)[a % 4]
        fields = {"flags": b & 0xFE, "payload_len": a} if b % 3 == 0 else {}
        data = marker(seq, ts_ns=b, opcode=b, **fields)
        left = self.ring.left
        self.put((data.ljust(left, b"\x11") if b % 5 else data)[:left] if a % 7 else data)

    def do_lap(self, a: int, b: int) -> None:
        """Nothing at all up to the lap boundary, or up to shortly before or behind it."""
        self.put(bytes([b & 0xFF]) * max(0, self.ring.left + a % 5 * 8 - 16))

    def do_flip(self, a: int, b: int) -> None:
        """One byte, somewhere in what is unread."""
        ring = self.ring
        unread = (ring.head - ring.tail) & M64
        if unread:
            at = ring.tail + (a << 3 | b & 7) % unread
            ring.area[at % ring.ring_size] ^= b >> 3 & 0xFF or 1

    def do_ring_flags(self, a: int, b: int) -> None:
        self.flags = a & 3

    def do_publish(self, a: int, b: int) -> None:
        """run() looks for this one."""


KINDS = [name.removeprefix("do_") for name in vars(Producer) if name.startswith("do_")]
CRIMES = [kind for kind in KINDS if kind not in ("good", "publish")]
number = st.integers(0, 0xFFFF)
honest = st.tuples(st.sampled_from(["good", "good", "good", "publish", "drop"]), number, number)
crime = st.tuples(st.sampled_from(CRIMES), number, number)
acts = st.lists(st.one_of(honest, honest, crime), max_size=60)
sizes = st.sampled_from([32, 64, 128, 256, 512, 1024, 4096, 8192, 16384, 65536])
cursors = st.one_of(
    st.just(0),
    st.integers(0, 2048).map(lambda n: n * 8),
    st.integers(1, 1024).map(lambda n: M64 + 1 - n * 8),
)
seqs = st.one_of(
    *(st.just(0), st.integers(0, 40).map(lambda n: 0xFFFFFFFF - n), st.just(0x7FFFFFFF)),
    st.sampled_from([3000, 1 << 20]),
)
styles = st.sampled_from(["marker", "seq-marker", "zero-marker", "straddle", "plain"])


class Duel:
    """Both consumers on one ring."""

    def __init__(self, ring: RingBuilder, *, keep: bool, data_room: int = 0) -> None:
        self.ring = ring
        self.flags = 0
        self.oracle = Consumer(ring.tail, keep_unknown_flags=keep)
        self.region = ring.region()
        self.library = native.NativeConsumer(
            self.region, keep_unknown_flags=keep, data_room=data_room
        )

    def publish(self, flags: int) -> None:
        self.flags = flags
        self.region[AREA_AT:] = self.ring.area
        self.library.publish(self.ring.head, flags)
        before = without_tail(self.region)
        self.oracle.collect(bytes(self.ring.area), self.ring.head, flags)
        self.library.collect()
        assert without_tail(self.region) == before
        self.agree()
        self.ring.tail = self.oracle.tail

    def agree(self) -> None:
        oracle, library = self.oracle, self.library
        assert library.tail == oracle.tail
        assert joined(library.rejects) == joined(oracle.rejects)
        assert bytes(library.dump).hex(" ", 32) == bytes(oracle.dump).hex(" ", 32)
        assert library.gaps == oracle.gaps
        assert library.gap_places == oracle.gap_places
        assert library.totals() == oracle.totals()

    def finish(self) -> None:
        self.oracle.take_the_rest(bytes(self.ring.area), self.ring.head, self.flags)
        self.library.take_the_rest()
        self.agree()
        self.oracle.finish()
        self.library.finish()
        self.agree()


def run(producer: Producer, duel: Duel, script: list[Act]) -> None:
    for act in script:
        producer.act(act)
        if act[0] == "publish":
            duel.publish(producer.flags)
    duel.publish(producer.flags)
    duel.finish()


@dataclass(frozen=True)
class Scene:
    """Where a script is played."""

    size: int
    cursor: int
    seq: int
    style: str
    fill: int
    keep: bool


scenes = st.builds(
    Scene, sizes, cursors, seqs, styles, fill=st.sampled_from([0, 0x52, 0xFF]), keep=st.booleans()
)


@pytest.mark.timeout(300)  # seconds on a quiet machine, but CI machines are not
@settings(RELAXED, max_examples=EXAMPLES)
@given(scene=scenes, script=acts)
def test_collect_equals_the_oracle(scene: Scene, script: list[Act]) -> None:
    ring = RingBuilder(scene.size, cursor=scene.cursor, seq=scene.seq, ts_ns=1, fill=scene.fill)
    run(Producer(ring, scene.style), Duel(ring, keep=scene.keep), script)


ODD_ONES: dict[str, dict[str, int]] = {
    "truncated": {"flags": 2},
    "unknown-flags": {"flags": 0x10},
    "longer": {"payload_len": 40},
    "shorter": {"payload_len": 5},
    "too-long": {"payload_len": 5000},
    "no-magic": {"magic": 1},
    "gap": {},
    "marker": {"flags": 1},
}


@pytest.mark.parametrize("size", [0, 13, 16])
@pytest.mark.parametrize("odd", ODD_ONES)
def test_collect_sees_the_odd_one_among_records_of_one_length(odd: str, size: int) -> None:
    """Wherever it stands in the run, the last and the last but one included."""
    for at in range(14):
        ring = RingBuilder(1 << 16)
        duel = Duel(ring, keep=False)
        for number in range(14):
            if number == at and odd == "gap":
                ring.skip_seq(3)
            fields = ODD_ONES[odd] if number == at else {}
            ring.raw(record(ring.seq, bytes([7]) * size, padding=0xA5, **fields))
            ring.skip_seq(1)
        duel.publish(0)
        ring.append(b"after")
        duel.publish(0)
        duel.finish()


def long_script(rng: Random) -> Iterator[Act]:
    for _ in range(1500):
        kind = rng.choice(CRIMES) if rng.random() < 0.05 else "good"
        yield (kind, rng.randrange(1 << 16), rng.randrange(1 << 16))
        if rng.random() < 0.01:
            yield ("publish", 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_collect_in_windows_smaller_than_the_ring_equals_the_oracle(seed: int) -> None:
    rng = Random(seed)
    ring = RingBuilder(1 << 16, cursor=rng.randrange(1 << 16) * 8, seq=rng.randrange(1 << 32))
    duel = Duel(ring, keep=False, data_room=seed % 4 * 4096)
    run(Producer(ring, rng.choice(["marker", "straddle", "plain"])), duel, list(long_script(rng)))


@pytest.mark.parametrize("size", [8, 8184, 30000])
def test_collect_rejects_damage_larger_than_a_window_in_one_piece(size: int) -> None:
    ring = RingBuilder(1 << 16)
    ring.append(b"before")
    ring.raw(b"\xdb" * size)
    ring.append(b"after")
    ring.append(b"last")
    duel = Duel(ring, keep=False)
    duel.publish(0)
    assert [len(reject.data) for reject in joined(duel.library.rejects)] == [size]
    assert duel.library.totals()["records"] == 3

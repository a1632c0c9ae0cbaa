# SPDX-License-Identifier: Apache-2.0
"""Breaks of the sequence as the collector tells them: why, where, when, how sure (R5, R9, R12)."""

from __future__ import annotations

import time

import pytest

from hmb_trace._core import ffi, lib
from hmb_trace.testing import RingBuilder, record
from tests.oracle.native import Event, NativeConsumer

SIZE = 1 << 16


def told(consumer: NativeConsumer, *kinds: int) -> list[Event]:
    wanted = kinds or (lib.HMB_EV_GAP,)
    return [event for event in consumer.events if event.kind in wanted]


def publish(consumer: NativeConsumer, ring: RingBuilder, flags: int = 0) -> None:
    consumer.region[0x40:] = ring.area
    consumer.publish(ring.head, flags)
    consumer.collect()
    ring.tail = consumer.tail


def fill(ring: RingBuilder, upto: int) -> None:
    while ring.head - ring.tail < upto:
        ring.append(bytes(200))


@pytest.mark.parametrize(
    ("unread", "reason"),
    [(0, "SKIPPED"), (SIZE // 2, "SKIPPED"), (SIZE - 8000, "OVERFLOW"), (SIZE - 400, "OVERFLOW")],
)
@pytest.mark.parametrize("laps", [0, 3])
def test_gap_r5_says_whether_the_ring_may_have_been_full(
    unread: int, reason: str, laps: int
) -> None:
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.append(b"first")
    for _ in range(laps * 16):
        fill(ring, SIZE // 16)
        publish(consumer, ring)
    fill(ring, unread)
    ring.skip_seq(5)
    ring.append(b"after")
    ring.append(b"and on")
    publish(consumer, ring)
    (gap,) = told(consumer)
    assert (gap.c, gap.reason) == (5, getattr(lib, f"HMB_GAP_{reason}"))


def test_gap_r5_at_the_head_of_the_pass_before_may_be_of_a_ring_that_was_full_then() -> None:
    """Firmware filled the ring and dropped; we drained it; only then it wrote on."""
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    fill(ring, SIZE - 400)
    publish(consumer, ring)
    ring.skip_seq(5)
    ring.append(b"after")
    ring.append(b"and on")
    publish(consumer, ring)
    (gap,) = told(consumer)
    assert gap.reason == lib.HMB_GAP_OVERFLOW


def test_gap_r5_in_an_overflow_episode_is_an_overflow_whatever_the_ring_holds() -> None:
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.append(b"before")
    publish(consumer, ring)
    ring.skip_seq(5)
    ring.append(b"after")
    publish(consumer, ring, flags=1)
    assert not told(consumer)
    ring.append(b"and on")
    publish(consumer, ring, flags=1)
    (gap,) = told(consumer)
    (end,) = told(consumer, lib.HMB_EV_OVERFLOW_END)
    assert gap.reason == lib.HMB_GAP_OVERFLOW
    assert (end.b, end.c, end.pos, end.cursor) == (6, 5, gap.pos, gap.cursor)


def test_gap_r12_that_the_rejects_explain_says_so() -> None:
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.raw(record(0) + b"\xdb" * 32 + record(2) + record(3))
    publish(consumer, ring)
    (gap,) = told(consumer)
    assert (gap.c, gap.d, gap.reason) == (0, 1, lib.HMB_GAP_REJECTS)


def test_break_r12_is_told_at_the_record_after_it_though_later() -> None:
    """Place, time and host time are those of the record after the break."""
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.raw(record(0, bytes(40), ts_ns=5) + record(7, bytes(8), ts_ns=6))
    earliest = time.time_ns()
    publish(consumer, ring)
    latest = time.time_ns()
    assert not told(consumer)
    assert consumer.state.pending.state == lib.HMB_PENDING_WAITS
    ring.raw(b"\xdb" * 16 + record(8, ts_ns=9) + record(9))
    publish(consumer, ring)
    (gap,) = told(consumer)
    assert (gap.a, gap.b, gap.c, gap.pos, gap.cursor) == (0, 7, 6, 72, 72)
    assert (gap.ts_ns, gap.reason & lib.HMB_UNCONFIRMED) == (6, 0)
    assert earliest <= gap.host_ns <= latest


def test_every_event_has_the_time_at_which_its_pass_saw_it() -> None:
    ring = RingBuilder(SIZE)
    ring.raw(record(0) + record(1, flags=0x80) + b"\xdb" * 16 + record(2) + record(3))
    earliest = time.time_ns()
    consumer = NativeConsumer(ring.region())
    publish(consumer, ring)
    assert len(consumer.events) >= 2
    assert all(earliest <= event.host_ns <= time.time_ns() for event in consumer.events)


def test_break_r12_that_nothing_followed_is_unconfirmed() -> None:
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.raw(record(0) + record(7))
    publish(consumer, ring)
    consumer.finish()
    (gap,) = told(consumer)
    assert gap.reason == lib.HMB_GAP_SKIPPED | lib.HMB_UNCONFIRMED
    assert consumer.totals()["lost"] == 6


def test_break_r12_that_was_told_too_early_is_still_known_for_a_glitch() -> None:
    """FROZEN, and then firmware goes on after all: the jump back is no second break."""
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    ring.raw(record(0) + record(1 << 20))
    publish(consumer, ring)
    consumer.finish()
    ring.raw(record(2) + record(3))
    publish(consumer, ring)
    totals = consumer.totals()
    assert (totals["seq_glitches"], totals["sequence_resets"], totals["gaps"]) == (1, 0, 1)


def test_no_mark_for_a_cut_r12_stands_between_a_break_and_its_account() -> None:
    ring = RingBuilder(SIZE)
    consumer = NativeConsumer(ring.region())
    consumer.options.index_bytes = 1
    for seq in (0, 7, 8):
        ring.raw(record(seq))
        publish(consumer, ring)
    marks = [event.pos for event in consumer.events if event.kind == lib.HMB_EV_INDEX]
    assert marks == [32, 96]


def one_restart(ring: RingBuilder, count: int) -> None:
    ring.raw(b"\xdb" * 24)
    ring.skip_seq(-ring.seq)
    for _ in range(count):
        ring.append(bytes(16))


@pytest.mark.parametrize("first", [1, 2, 3])
def test_chain_r9_that_ends_at_head_is_believed_when_the_next_pass_sees_it_grow(first: int) -> None:
    ring = RingBuilder(SIZE, seq=1 << 20)
    consumer = NativeConsumer(ring.region())
    ring.append(b"before")
    one_restart(ring, first)
    publish(consumer, ring)
    assert (consumer.totals()["records"], consumer.state.chain) == (1, first)
    publish(consumer, ring)  # nothing new: still nothing to go by
    assert consumer.totals()["records"] == 1
    ring.append(b"more")
    publish(consumer, ring)
    consumer.finish()
    totals = consumer.totals()
    assert (totals["records"], totals["sequence_resets"]) == (first + 2, 1)
    assert totals["rejected_bytes"] == 24


def test_chain_r9_that_ends_at_head_and_turns_out_to_be_none_is_passed_over() -> None:
    ring = RingBuilder(SIZE, seq=1 << 20)
    consumer = NativeConsumer(ring.region())
    ring.append(b"before")
    one_restart(ring, 2)
    publish(consumer, ring)
    ring.raw(b"\xdb" * 24 + record((1 << 20) + 1) + record((1 << 20) + 2))
    publish(consumer, ring)
    totals = consumer.totals()
    assert (totals["records"], totals["sequence_resets"]) == (3, 0)
    assert totals["rejected_bytes"] == 24 + 96 + 24


def test_blackout_r9_is_never_longer_than_a_ring() -> None:
    """Numbers that an earlier lap could have left are waited out for a lap, and no longer."""
    size = 1 << 14
    ring = RingBuilder(size, seq=400)
    consumer = NativeConsumer(ring.region())
    ring.append(b"before")
    one_restart(ring, 0)
    published = ring.head
    while not consumer.totals()["sequence_resets"]:
        ring.append(bytes(200))
        assert ring.head - published < size + 5 * 232
        publish(consumer, ring)
    assert consumer.totals()["records"] > 1


@pytest.mark.parametrize("size", [32, 64, 256, 4096])
def test_chain_r9_in_a_ring_too_small_to_wait_in_goes_on_at_once(size: int) -> None:
    ring = RingBuilder(size, seq=1 << 20)
    consumer = NativeConsumer(ring.region())
    for data in (record(1 << 20), b"\xdb" * 16, record(0), record(1)):
        while len(data) > ring.left:
            ring.raw(b"\xdb" * ring.left)
            publish(consumer, ring)
        ring.raw(data)
        publish(consumer, ring)
    consumer.finish()
    assert consumer.totals()["records"] == 3


def test_state_r12_is_plain_data_that_a_restart_can_go_on_from() -> None:
    """Copied byte by byte between the record after the break and the one that explains it."""
    ring = RingBuilder(SIZE)
    first = NativeConsumer(ring.region())
    ring.raw(record(0) + record(1 << 20))
    publish(first, ring)
    second = NativeConsumer(first.region)
    ffi.buffer(second.state)[:] = bytes(ffi.buffer(first.state))
    ring.raw(record(2) + record(3))
    publish(second, ring)
    totals = second.totals()
    assert (totals["seq_glitches"], totals["lost"], totals["records"]) == (1, 0, 4)

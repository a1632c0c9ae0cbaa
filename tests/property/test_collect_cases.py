# SPDX-License-Identifier: Apache-2.0
"""Hand-written cases of every rule: what they must give is stated here, byte by byte.

Each runs against the oracle and against libhmbtrace, so that the referee is refereed too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hmb_trace.testing import RingBuilder, dump, marker, record
from tests.oracle import native
from tests.oracle.collect import Consumer, InvalidCursorsError, Reject, joined
from tests.oracle.sequence import Gap

M64 = 1 << 64
VOLUME = {"records", "bytes", "ring_bytes", "rejected_bytes", "rejected_records"}


class Drained:
    """What came out, whoever did it."""

    def __init__(self, consumer: Any) -> None:
        self.dump = bytes(consumer.dump)
        self.rejects = joined(consumer.rejects)
        self.totals = consumer.totals()
        self.gaps = consumer.gaps
        self.tail = consumer.tail

    def expect(self, dumped: bytes, *rejects: Reject, **totals: int) -> None:
        """Compare; every counter that signals trouble is 0 unless it is named."""
        assert self.dump.hex(" ", 32) == dumped.hex(" ", 32)
        assert self.rejects == list(rejects)
        quiet = set(self.totals) - VOLUME
        found = {name: self.totals[name] for name in quiet | set(totals)}
        assert found == dict.fromkeys(quiet, 0) | totals


Step = tuple[int, int]  # head, ring flags
Drain = Callable[..., Drained]


def by_oracle(ring: RingBuilder, *steps: Step, keep: bool = False, finish: bool = True) -> Drained:
    consumer = Consumer(ring.tail, keep_unknown_flags=keep)
    for head, flags in steps or ((ring.head, ring.flags),):
        consumer.collect(bytes(ring.area), head, flags)
    if finish:
        consumer.take_the_rest(bytes(ring.area), ring.head, ring.flags)
        consumer.finish()
    return Drained(consumer)


def by_library(ring: RingBuilder, *steps: Step, keep: bool = False, finish: bool = True) -> Drained:
    region = ring.region()
    first = steps[0] if steps else (ring.head, ring.flags)
    consumer = native.NativeConsumer(region, keep_unknown_flags=keep)
    for head, flags in steps or (first,):
        consumer.publish(head, flags)
        consumer.collect()
    if finish:
        consumer.take_the_rest()
        consumer.finish()
    return Drained(consumer)


@pytest.fixture(params=[by_oracle, by_library], ids=["oracle", "library"])
def drain(request: pytest.FixtureRequest) -> Drain:
    chosen: Drain = request.param
    return chosen


def test_empty_ring_gives_nothing(drain: Drain) -> None:
    drain(RingBuilder(256)).expect(b"", records=0, bytes=0, ring_bytes=0)


def test_records_come_out_as_they_went_in(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.append(b"")
    ring.append(b"12345", opcode=7, cpu=3, flags=2)
    found = drain(ring)
    found.expect(bytes(ring.expected_dump), records=2, truncated=1, ring_bytes=72, bytes=72)
    assert found.tail == 72


def test_padding_r11_is_zero_in_the_dump(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.append(b"abc", padding=0xEE)
    drain(ring).expect(record(0, b"abc"), records=1)


def test_reserved_fields_r1_stay_as_they_were(drain: Drain) -> None:
    ring = RingBuilder(256)
    odd = record(0, b"x", reserved0=7, reserved1=9)
    ring.raw(odd)
    drain(ring).expect(odd, records=1)


@pytest.mark.parametrize("style", ["marker", "seq-marker", "straddle", "plain"])
@pytest.mark.parametrize("cursor", [0, 64, M64 - 128, M64 - 8])
@pytest.mark.parametrize("size", [0, 3, 16, 17, 40])
def test_wrap_r3_styles_give_no_false_gap(drain: Drain, style: Any, cursor: int, size: int) -> None:
    ring = RingBuilder(256, cursor=cursor, wrap=style, seq=0xFFFFFFFE, ts_ns=50)
    while ring.fits(size):
        ring.append(bytes([1]) * size)
    found = drain(ring)
    assert found.dump == ring.expected_dump
    assert found.tail == ring.head
    totals = found.totals
    assert (totals["records"], totals["gaps"], totals["rejected_bytes"]) == (ring.records, 0, 0)
    assert totals["wrap_markers"] + totals["partial_markers"] == ring.markers


def test_wrap_r3_1_whole_marker_waits_for_the_boundary(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.append(bytes(100))
    ring.poke(ring.head, marker(1))
    found = drain(ring, (ring.head + 32, 0))
    found.expect(bytes(ring.expected_dump), records=1)
    assert found.tail == ring.head


def test_wrap_r3_1_whole_marker_jumps_to_the_boundary(drain: Drain) -> None:
    ring = RingBuilder(256, cursor=136)
    ring.raw(marker(1, ts_ns=9) + b"\xcc" * 88)
    ring.raw(record(1, bytes(100), ts_ns=9))
    drain(ring).expect(
        marker(1, ts_ns=9) + record(1, bytes(100), ts_ns=9),
        records=1,
        wrap_markers=1,
        ring_bytes=256,
    )


@pytest.mark.parametrize("left", [8, 16, 24])
def test_wrap_r3_2_short_end_waits_for_the_boundary(drain: Drain, left: int) -> None:
    ring = RingBuilder(256, cursor=256 - left)
    found = drain(ring, (ring.head + left - 8, 0))
    found.expect(b"", ring_bytes=0)
    assert found.tail == 256 - left


@pytest.mark.parametrize(("left", "ts_ns"), [(8, 500), (16, 900), (24, 900)])
def test_wrap_r4_partial_marker_is_completed(drain: Drain, left: int, ts_ns: int) -> None:
    ring = RingBuilder(256, cursor=256 - left - 40)
    ring.raw(record(5, b"abc", ts_ns=500))
    ring.raw(marker(6, ts_ns=900)[:left])
    ring.raw(record(6, ts_ns=900))
    drain(ring).expect(
        dump([record(5, b"abc", ts_ns=500), marker(6, ts_ns=ts_ns), record(6, ts_ns=900)]),
        records=2,
        partial_markers=1,
    )


def test_wrap_r4_partial_marker_first_of_all_has_time_zero(drain: Drain) -> None:
    ring = RingBuilder(256, cursor=248)
    ring.raw(marker(6, ts_ns=900)[:8])
    ring.raw(record(6, ts_ns=900))
    drain(ring).expect(marker(6) + record(6, ts_ns=900), records=1, partial_markers=1)


@pytest.mark.parametrize("left", [8, 16, 24])
def test_wrap_r4_gap_without_magic_leaves_nothing(drain: Drain, left: int) -> None:
    ring = RingBuilder(256, cursor=256 - left)
    ring.raw(bytes([0x5A]) * left)
    ring.append(b"abc")
    drain(ring).expect(record(0, b"abc"), records=1, plain_gaps=1)


def test_marker_r4_is_cleaned_and_kept_aside(drain: Drain) -> None:
    ring = RingBuilder(128)
    dirty = marker(0, ts_ns=4, payload_len=77, flags=0xF2, opcode=9, reserved1=3)
    ring.raw(dirty + bytes(96))
    clean = marker(0, ts_ns=4, flags=2, opcode=9, reserved1=3)
    drain(ring).expect(
        clean, Reject(0, "marker", dirty), wrap_markers=1, markers_cleaned=1, rejected_bytes=32
    )


def test_flags_r10_unknown_go_to_the_rejects_without_a_gap(drain: Drain) -> None:
    ring = RingBuilder(256)
    odd = record(1, b"abc", flags=0x80, padding=0x11)
    ring.raw(record(0))
    ring.raw(odd)
    ring.raw(record(2))
    found = drain(ring)
    found.expect(
        record(0) + record(2),
        Reject(32, "unknown-flags", odd),
        records=2,
        unknown_flags=1,
        rejected_bytes=40,
    )


def test_flags_r10_unknown_are_kept_on_demand(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0) + record(1, b"abc", flags=0x80, padding=0x11))
    drain(ring, keep=True).expect(
        record(0) + record(1, b"abc", flags=0x80), records=2, unknown_flags=1
    )


def test_straddle_r3_3_is_made_one_piece(drain: Drain) -> None:
    ring = RingBuilder(256, cursor=256 - 40, wrap="straddle")
    ring.append(b"0123456789abcdef")
    ring.append(b"")
    drain(ring).expect(bytes(ring.expected_dump), records=2, straddled=1)


def test_oversize_r8_is_damage(drain: Drain) -> None:
    ring = RingBuilder(8192)
    bad = record(1, bytes(8), payload_len=4065)
    ring.raw(record(0) + bad + record(2) + record(3))
    drain(ring).expect(
        record(0) + record(2) + record(3),
        Reject(32, "damaged", bad),
        records=3,
        resyncs=1,
        rejected_bytes=40,
    )


def test_length_beyond_head_r8_is_damage(drain: Drain) -> None:
    ring = RingBuilder(256)
    bad = record(1, payload_len=64)
    ring.raw(record(0) + bad + record(2))
    found = drain(ring)
    found.expect(record(0) + record(2), Reject(32, "damaged", bad), records=2, resyncs=1)
    assert found.gaps == [Gap(0, 2, 0, 1, confirmed=False)]


def test_lying_length_r8_swallows_nothing(drain: Drain) -> None:
    ring = RingBuilder(256)
    bad = record(1, bytes(8), payload_len=40)
    ring.raw(record(0) + bad + record(2) + record(3))
    drain(ring).expect(
        record(0) + record(2) + record(3),
        Reject(32, "lying-length", bad),
        records=3,
        lying_lengths=1,
        resyncs=1,
    )


def test_good_record_before_garbage_r8_stays(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0, bytes(40)) + b"\xaa" * 32 + record(1) + record(2))
    drain(ring).expect(
        record(0, bytes(40)) + record(1) + record(2),
        Reject(72, "damaged", b"\xaa" * 32),
        records=3,
        resyncs=1,
    )


def test_payload_that_holds_a_record_r8_stays_when_the_successor_is_right(drain: Drain) -> None:
    ring = RingBuilder(256)
    outer = record(0, record(1) + record(2))
    ring.raw(outer + record(1) + record(2))
    drain(ring).expect(outer + record(1) + record(2), records=3)


def test_resync_r9_does_not_revive_an_earlier_lap(drain: Drain) -> None:
    ring = RingBuilder(256, cursor=256)
    old = record(5) + record(6)
    ring.raw(record(10) + b"\x99" * 24 + old + record(11) + record(12))
    drain(ring).expect(
        record(10) + record(11) + record(12),
        Reject(288, "damaged", b"\x99" * 24 + old),
        records=3,
        resyncs=1,
    )


def test_resync_r9_goes_on_with_the_next_head(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0))
    ring.raw(b"\x42" * 24)
    first = ring.head
    ring.raw(b"\x43" * 8 + record(1) + record(2))
    found = drain(ring, (first, 0), (ring.head, 0))
    found.expect(
        record(0) + record(1) + record(2),
        Reject(32, "damaged", b"\x42" * 24 + b"\x43" * 8),
        records=3,
        resyncs=1,
    )


def test_resync_r9_takes_the_record_a_marker_announced(drain: Drain) -> None:
    ring = RingBuilder(128, cursor=128 - 64)
    ring.raw(record(0) + marker(1) + b"\x77" * 16 + record(1))
    drain(ring).expect(
        record(0) + marker(1) + record(1),
        Reject(128, "damaged", b"\x77" * 16),
        records=2,
        wrap_markers=1,
        resyncs=1,
    )


def test_gap_r12_counts_what_is_missing(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0xFFFFFFFE) + record(3))
    found = drain(ring)
    found.expect(record(0xFFFFFFFE) + record(3), records=2, gaps=1, lost=4)
    assert found.gaps == [Gap(0xFFFFFFFE, 3, 4, 0, confirmed=False)]


def test_duplicate_and_reset_r12_are_no_losses(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(9) + record(9) + record(2) + record(3))
    drain(ring).expect(
        record(9) + record(9) + record(2) + record(3), records=4, duplicates=1, sequence_resets=1
    )


@pytest.mark.parametrize(
    ("marker_seq", "next_seq", "lost"),
    [
        (6, 6, 0),
        (6, 7, 0),
        (6, 9, 2),
        (8, 8, 2),
        (8, 9, 2),
        (0, 6, 0),
        (5, 6, 0),
        (5, 8, 2),
        (99, 6, 0),
        (99, 8, 2),
    ],
)
def test_marker_seq_r3_4_gives_no_false_gap(
    drain: Drain, marker_seq: int, next_seq: int, lost: int
) -> None:
    ring = RingBuilder(128, cursor=64)
    ring.raw(record(5) + marker(marker_seq) + record(next_seq))
    drain(ring).expect(
        record(5) + marker(marker_seq) + record(next_seq),
        records=2,
        wrap_markers=1,
        lost=lost,
        gaps=int(lost > 0),
    )


def test_loss_r12_beside_damage_counts_apart(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0) + b"\x01" * 64 + record(6) + record(7))
    found = drain(ring)
    assert found.gaps == [Gap(0, 6, 3, 2)]
    assert found.totals["lost"] == 3


def test_overflow_r5_episode_closes_with_the_gap(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0))
    first = ring.head
    ring.raw(record(4))
    drain(ring, (0, 0), (first, 1), (ring.head, 1)).expect(
        record(0) + record(4), records=2, gaps=1, lost=3, overflow_episodes=1
    )


def test_overflow_r5_without_a_gap_is_unknown(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0))
    first = ring.head
    ring.raw(record(1))
    drain(ring, (0, 0), (first, 1), (ring.head, 1)).expect(
        record(0) + record(1), records=2, overflow_episodes=1, unknown_losses=1
    )


def test_overflow_r5_open_at_the_end_is_unknown(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0))
    drain(ring, (0, 0), (ring.head, 1)).expect(
        record(0), records=1, overflow_episodes=1, unknown_losses=1
    )


@pytest.mark.parametrize(("head", "tail"), [(4, 0), (264, 0), (8, 4), (0, 8)])
def test_cursors_r2_invalid_are_refused(drain: Drain, head: int, tail: int) -> None:
    ring = RingBuilder(256)
    ring.tail, ring.head = tail, head
    with pytest.raises(InvalidCursorsError):
        drain(ring)


def test_overflow_r5_set_at_attach_is_an_earlier_loss(drain: Drain) -> None:
    ring = RingBuilder(256)
    ring.raw(record(0))
    drain(ring, (ring.head, 1)).expect(record(0), records=1, unknown_losses=1)


def test_lying_length_r8_keeps_its_reason_over_several_passes(drain: Drain) -> None:
    """A liar whose successor is behind the last good record: nothing can be trusted up to head."""
    ring = RingBuilder(1024, cursor=960)
    liar = record(3, bytes(8), payload_len=40)
    ring.raw(record(9) + liar + record(4) + record(5))
    drain(ring).expect(
        record(9),
        Reject(992, "lying-length", liar + record(4) + record(5)),
        records=1,
        lying_lengths=1,
        resyncs=1,
    )


def test_straddle_r3_3_after_a_liar_that_reached_over_the_end(drain: Drain) -> None:
    """The liar's copy goes over the ring end; what stands inside it is judged as ever."""
    ring = RingBuilder(512, cursor=M64 - 96)
    liar = record(0, payload_len=112)
    rest = record(1) + record(2, bytes(16)) + record(3) + record(4)
    ring.raw(liar + rest)
    drain(ring).expect(
        rest,
        Reject(M64 - 96, "lying-length", liar),
        records=4,
        lying_lengths=1,
        resyncs=1,
        straddled=1,
    )


@pytest.mark.parametrize("seq", [5, 0x80000005, 0xFFFFFFFF])
def test_marker_seq_r3_4_left_zero_is_no_loss_at_any_seq(drain: Drain, seq: int) -> None:
    """0 is behind a seq below 2^31, but ahead of one above it: still nothing is missing."""
    ring = RingBuilder(128, cursor=64)
    data = record(seq) + marker(0) + record(seq + 1)
    ring.raw(data)
    drain(ring).expect(data, records=2, wrap_markers=1)


def test_marker_seq_r3_4_that_led_past_the_record_is_forgotten_with_it(drain: Drain) -> None:
    ring = RingBuilder(256, cursor=192)
    data = record(5) + marker(99) + record(6) + record(7) + record(120) + record(121)
    ring.raw(data)
    found = drain(ring)
    assert found.gaps == [Gap(7, 120, 112, 0)]


def test_payload_that_holds_records_r8_is_suspect_when_the_successor_reaches_past_head(
    drain: Drain,
) -> None:
    ring = RingBuilder(512)
    outer = record(1, record(2) + record(3))
    last = record(2, payload_len=4000)
    ring.raw(record(0) + outer + last)
    drain(ring).expect(
        record(0) + record(2) + record(3),
        Reject(32, "lying-length", outer[:32]),
        Reject(128, "damaged", last),
        records=3,
        lying_lengths=1,
        resyncs=2,
    )

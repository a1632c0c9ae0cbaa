# SPDX-License-Identifier: Apache-2.0
"""hmb_collect() where it must say no, or take nothing: R2, R6, R7, R9 stop, full sinks, flood."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from cffi import FFI

from hmb_trace import _core
from hmb_trace._core import ffi, lib
from hmb_trace.testing import RingBuilder, marker, record, without_tail
from tests.oracle.native import NativeConsumer, decode_events
from tests.oracle.wire import M64

HEAD_AT, TAIL_AT = 0x10, 0x18
UPTO = """
int64_t hmb_collect_upto(const struct hmb_ring *ring, struct hmb_state *state,
                         const struct hmb_options *options, struct hmb_sink *sink, uint64_t head,
                         uint64_t header_tail);
"""


@pytest.fixture(scope="module")
def collect_upto() -> Iterator[Any]:
    """The pass under a head that the caller has seen: ring memory may be newer than it."""
    more = FFI()
    more.cdef(_core._api_text() + UPTO)
    private = more.dlopen(str(_core._PATH))

    def call(consumer: NativeConsumer, sink: Any, head: int) -> int:
        at = [
            more.cast(f"struct {kind} *", int(ffi.cast("uintptr_t", what)))
            for kind, what in (
                ("hmb_ring", consumer.ring),
                ("hmb_state", consumer.state),
                ("hmb_options", consumer.options),
                ("hmb_sink", sink),
            )
        ]
        taken: int = private.hmb_collect_upto(*at, head, consumer.state.tail)
        return taken

    yield call
    more.dlclose(private)


def consumer_of(ring: RingBuilder, **options: int) -> NativeConsumer:
    consumer = NativeConsumer(ring.region())
    for name, value in options.items():
        setattr(consumer.options, name, value)
    return consumer


def collect(consumer: NativeConsumer, sink: Any) -> int:
    taken: int = lib.hmb_collect(consumer.ring, consumer.state, consumer.options, sink, ffi.NULL)
    return taken


def assert_nothing_taken(consumer: NativeConsumer, error: int) -> None:
    sink, data, events = consumer._sink()
    state = bytes(ffi.buffer(consumer.state))
    region = bytes(consumer.region)
    assert collect(consumer, sink) == -error
    assert (sink.data_len, sink.events_len) == (0, 0)
    assert bytes(ffi.buffer(consumer.state)) == state
    assert bytes(consumer.region) == region
    del data, events


def filled(count: int = 3, ring_size: int = 256, **start: int) -> RingBuilder:
    ring = RingBuilder(ring_size, **start)  # type: ignore[arg-type] # ints
    for _ in range(count):
        ring.append(b"abc")
    return ring


@pytest.mark.parametrize(("at", "value"), [(HEAD_AT, 36), (HEAD_AT, 512), (TAIL_AT, 4)])
def test_cursors_r2_that_turn_invalid_take_nothing(at: int, value: int) -> None:
    consumer = consumer_of(filled())
    struct.pack_into("<Q", consumer.region, at, value)
    assert_nothing_taken(consumer, errno.ESTALE if at == TAIL_AT else errno.EILSEQ)


@pytest.mark.parametrize(("at", "value"), [(0, 0), (8, 128), (TAIL_AT, 8)])
def test_reinitialised_r6_takes_nothing(at: int, value: int) -> None:
    """magic, ring_size or tail is not what we left there."""
    consumer = consumer_of(filled())
    struct.pack_into("<I", consumer.region, at, value)
    assert_nothing_taken(consumer, errno.ESTALE)


def test_reinitialised_r6_with_both_cursors_zero_takes_nothing() -> None:
    consumer = consumer_of(filled(cursor=512))
    struct.pack_into("<QQ", consumer.region, HEAD_AT, 0, 0)
    assert_nothing_taken(consumer, errno.ESTALE)


def test_tail_r2_is_stored_only_over_the_one_expected() -> None:
    consumer = consumer_of(filled())
    before = bytes(consumer.region)
    assert lib.hmb_ring_store_tail(consumer.ring, 8, 16) == -errno.ESTALE
    assert bytes(consumer.region) == before
    assert lib.hmb_ring_store_tail(consumer.ring, 0, 16) == 0
    assert (consumer.tail, without_tail(consumer.region)) == (16, without_tail(before))


@pytest.mark.parametrize("field", ["data_cap", "events_cap"])
def test_sink_that_is_too_small_takes_nothing(field: str) -> None:
    consumer = consumer_of(filled())
    sink, data, events = consumer._sink()
    setattr(sink, field, getattr(sink, field) - 8)
    assert collect(consumer, sink) == -errno.ENOSPC
    assert (sink.data_len, sink.events_len, consumer.state.tail) == (0, 0, 0)
    del data, events


def test_corrupt_r9_stop_leaves_the_tail_at_the_damage() -> None:
    ring = filled(1)
    ring.raw(b"\x99" * 40)
    ring.append(b"")
    consumer = consumer_of(ring, stop_on_corrupt=1)
    with pytest.raises(OSError, match="hmb_collect") as caught:
        consumer.collect()
    assert caught.value.errno == errno.EBADMSG
    assert (consumer.tail, bytes(consumer.dump)) == (40, record(0, b"abc"))
    assert_nothing_taken(consumer, errno.EBADMSG)


def test_corrupt_r8_stop_holds_for_lying_lengths_too() -> None:
    ring = filled(1)
    ring.raw(record(1, bytes(8), payload_len=40) + record(2) + record(3))
    consumer = consumer_of(ring, stop_on_corrupt=1)
    with pytest.raises(OSError, match="hmb_collect"):
        consumer.collect()
    assert consumer.tail == 40


@pytest.mark.parametrize("cursor", [0, M64 + 1 - 128])
def test_overrun_r7_is_quarantined_not_dumped(collect_upto: Any, cursor: int) -> None:
    """head' - tail > ring_size after the copy: what was copied may be of two laps."""
    ring = filled(3, cursor=cursor)
    consumer = consumer_of(ring)
    seen = ring.head
    consumer.publish(ring.tail + 256 + 8)
    sink, _data, events = consumer._sink()
    assert collect_upto(consumer, sink, seen) == 120
    happened = decode_events(bytes(ffi.buffer(events, sink.events_len)))
    rejects = [(e.cursor, e.reason, e.data) for e in happened if e.kind == lib.HMB_EV_REJECT]
    copied = b"".join(record(i, b"abc", ts_ns=i * 1000) for i in range(3))
    assert sink.data_len == 0
    assert rejects == [(cursor, lib.HMB_REJECT_OVERRUN, copied)]
    assert [e.a for e in happened if e.kind == lib.HMB_EV_OVERRUN] == [(ring.tail + 264) & M64]
    counters = consumer.state.counters
    assert (counters.overruns, counters.records, counters.rejected_bytes) == (1, 0, 120)
    assert consumer.state.tail == seen


def test_overrun_r7_with_a_head_that_went_back_takes_nothing(collect_upto: Any) -> None:
    ring = filled(3)
    consumer = consumer_of(ring)
    consumer.publish(ring.head - 40)
    sink, _data, _events = consumer._sink()
    assert collect_upto(consumer, sink, ring.head) == -errno.ESTALE
    assert sink.data_len == 0


def test_head_r7_that_moved_on_within_the_ring_is_no_overrun(collect_upto: Any) -> None:
    ring = filled(3)
    consumer = consumer_of(ring)
    consumer.publish(ring.tail + 256)
    sink, data, _events = consumer._sink()
    assert collect_upto(consumer, sink, ring.head) == 120
    assert bytes(ffi.buffer(data, sink.data_len)) == bytes(ring.expected_dump)


def test_index_events_carry_the_state_at_their_position() -> None:
    ring = filled(6)
    consumer = consumer_of(ring, index_bytes=100)
    consumer.collect()
    (index,) = [event for event in consumer.events if event.kind == lib.HMB_EV_INDEX]
    state = ffi.from_buffer("struct hmb_state *", index.data)
    assert (index.pos, state.pos, state.last_seq, state.counters.records) == (240, 240, 5, 6)


def test_flood_of_anomalies_is_counted_but_not_written_one_by_one() -> None:
    """A producer that repeats one seq for ever must not fill the journal."""
    ring = RingBuilder(1 << 18)
    for _ in range(8000):
        ring.raw(record(7))
    consumer = consumer_of(ring, index_bytes=1 << 30)
    consumer.collect()
    consumer.finish()
    counters = consumer.state.counters
    written = sum(event.kind == lib.HMB_EV_DUPLICATE for event in consumer.events)
    assert (counters.duplicates, counters.records) == (7999, 8000)
    assert written + counters.events_suppressed == 7999
    assert 0 < written < 7999


def test_overflow_r5_seen_twice_closes_the_first_episode_as_unknown() -> None:
    ring = filled(1)
    consumer = consumer_of(ring)
    for flags in (0, 1, 0, 1):
        consumer.publish(ring.head, flags)
        consumer.collect()
    consumer.finish()
    counters = consumer.state.counters
    assert (counters.overflow_episodes, counters.unknown_losses) == (2, 2)


def test_ring_flags_r1_unknown_and_reserved_fields_are_noted_once() -> None:
    ring = filled(1)
    ring.flags = 0x30
    consumer = NativeConsumer(ring.region())
    struct.pack_into("<I", consumer.region, 0x24, 5)
    consumer.collect()
    consumer.collect()
    kinds = [event.kind for event in consumer.events]
    assert kinds.count(lib.HMB_EV_UNKNOWN_RING_FLAGS) == 1
    assert kinds.count(lib.HMB_EV_RESERVED_SET) == 1


def test_marker_alone_in_the_smallest_ring_r3() -> None:
    ring = RingBuilder(32)
    ring.raw(marker(0, ts_ns=1))
    consumer = NativeConsumer(ring.region())
    consumer.collect()
    assert bytes(consumer.dump) == marker(0, ts_ns=1)

# SPDX-License-Identifier: Apache-2.0
"""Injected faults: the ledger foretells what consumers make of them.

Two consumers judge it: the collector in C, and the oracle in plain Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hmb_producer_sim import workload as workloads
from hmb_producer_sim.engine import Engine, Settings
from hmb_producer_sim.faults import ARGUMENTS, TWISTS, Fault, Injector, parse

from hmb_trace.errors import UsageError
from hmb_trace.fnv import fnv1a_64
from tests.oracle.collect import Consumer
from tests.oracle.native import NativeConsumer

RING = 16384
# counters of a consumer -> the ledger's name
SAME = {
    "records": "records",
    "bytes": "bytes",
    "wrap_markers": "markers",
    "partial_markers": "partial_markers",
    "plain_gaps": "plain_gaps",
    "straddled": "straddled",
    "duplicates": "duplicates",
    "sequence_resets": "sequence_resets",
    "rejected_bytes": "rejected_bytes",
    "resyncs": "resyncs",
    "lying_lengths": "lying_lengths",
    "unknown_flags": "unknown_flags",
    "markers_cleaned": "markers_cleaned",
    "lost": "dropped",
    "gaps": "drop_gaps",
}


class Both:
    """The two consumers, on one region."""

    def __init__(self, region: bytearray, **options: Any) -> None:
        self.region = region
        self.options = options
        self.dumps: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        self.native = NativeConsumer(self.region, **self.options)
        self.oracle = Consumer(self.native.state.tail, **self.options)

    def read(self) -> None:
        (head,) = struct.unpack_from("<Q", self.region, 16)
        (flags,) = struct.unpack_from("<I", self.region, 32)
        self.oracle.collect(bytes(self.region[64:]), head, flags)
        self.native.collect()
        assert bytes(self.native.dump) == bytes(self.oracle.dump)

    def new_epoch(self) -> None:
        """What a daemon does when it finds the ring re-initialised (R6) or lost (R2)."""
        head, tail = struct.unpack_from("<QQ", self.region, 16)
        if (head - tail) % 2**64 > RING:
            struct.pack_into("<Q", self.region, 24, head)
        self.dumps.append(bytes(self.native.dump))
        self.begin()


@contextmanager
def capture(
    faults: list[str], settings: Settings, count: int, payload: tuple[int, int] = (0, 96)
) -> Iterator[tuple[Engine, Injector, Both]]:
    region = bytearray(64 + RING)
    engine = Engine(region, settings, workloads.load("uniform", payload))
    both = Both(region, keep_unknown_flags=settings.keep_unknown_flags)

    def wait(condition: Callable[[], bool], patience_s: float) -> bool:
        both.read()
        return condition()

    injector = Injector(engine, [parse(one) for one in faults], count, wait)
    try:
        yield engine, injector, both
    finally:
        engine.close()


def drive(engine: Engine, injector: Injector, both: Both, count: int, chunk: int = 37) -> None:
    """Write a little, read it, until count records were produced."""
    produced = 0
    while produced < count:
        epochs = len(injector.epochs)
        engine.run(min(count, injector.next_stop(), produced + chunk), 10**8)
        produced = engine.stats()["produced"]
        if produced >= injector.next_stop():
            injector.inject(produced)
        if len(injector.epochs) > epochs:
            both.new_epoch()
        both.read()
    injector.finish()
    engine.close_epoch()
    both.read()


def compare(engine: Engine, both: Both) -> dict[str, int]:
    counts = engine.epoch()
    for totals in (both.native.totals(), both.oracle.totals()):
        assert {ours: totals[ours] for ours in SAME} == {
            ours: counts[theirs] for ours, theirs in SAME.items()
        }
    assert fnv1a_64(bytes(both.native.dump)) == counts["fnv64"]
    return counts


@pytest.mark.parametrize("wrap", ["marker", "straddle", "seq-marker"])
@pytest.mark.parametrize("kind", [*TWISTS, "garbage", "garbage:8", "garbage:8000"])
def test_damage_r8_r9_r10_is_counted_as_the_ledger_says(kind: str, wrap: str) -> None:
    settings = Settings(RING, block=True, wrap=wrap)
    faults = [f"{kind}@{at}" for at in (200, 577, 900)]
    with capture(faults, settings, 1500) as (engine, injector, both):
        drive(engine, injector, both, 1500)
        compare(engine, both)
        happened = [entry["injected"] for entry in injector.log]
        if kind == "dirty-marker" and wrap == "straddle":
            assert not any(happened)  # such firmware writes no whole marker
        else:
            # Markers of such firmware are partial ones, and rare.
            rare = kind == "damaged-marker" and wrap == "straddle"
            assert happened == [True] * 3 or (rare and happened[0])
            assert both.native.totals()["rejected_bytes"] == sum(
                entry["bytes"] for entry in injector.log
            )


@pytest.mark.parametrize("seed", range(4))
def test_many_faults_at_once(seed: int) -> None:
    kinds = [*TWISTS, "garbage:64", "overflow-burst:7", "time-jump", "unknown-ring-flags"]
    kinds.remove("backward-seq")  # bytes of the lap before would look like the future
    faults = [f"{kind}@{100 + 90 * n + seed}" for n, kind in enumerate(2 * kinds)]
    settings = Settings(RING, block=True, seed=seed, start_seq=2**32 - 900)
    with capture(faults, settings, 4000) as (engine, injector, both):
        drive(engine, injector, both, 4000, chunk=11 + seed)
        counts = compare(engine, both)
        assert all(entry["injected"] for entry in injector.log)
    assert counts["dropped"] == 14


@pytest.mark.parametrize("wrap", ["marker", "straddle"])
def test_damage_keeps_away_from_the_last_bytes_of_a_lap_r3(wrap: str) -> None:
    """Nobody looks for a header there: a consumer would have to reject the marker too."""
    faults = [f"corrupt-magic@{at}" for at in range(100, 5000, 9)]
    settings = Settings(RING, block=True, wrap=wrap)
    with capture(faults, settings, 5100, (0, 40)) as (engine, injector, both):
        drive(engine, injector, both, 5100, chunk=200)
        compare(engine, both)
        assert all(entry["injected"] for entry in injector.log)


def test_unknown_flags_r10_kept() -> None:
    settings = Settings(RING, block=True, keep_unknown_flags=True)
    with capture(["unknown-flags@50"], settings, 200) as (engine, injector, both):
        drive(engine, injector, both, 200)
        counts = compare(engine, both)
    assert (counts["records"], counts["unknown_flags"], counts["rejected_bytes"]) == (200, 1, 0)


def test_overflow_burst_r5_is_a_gap_and_a_flag() -> None:
    with capture(["overflow-burst:25@40"], Settings(RING), 90) as (engine, injector, both):
        drive(engine, injector, both, 90)
        counts = compare(engine, both)
        assert engine.stats()["ring_flags"] == 1
    assert counts["dropped"] == 25


@pytest.mark.parametrize("kind", ["reset", "reset-now", "frozen-reset:1"])
def test_reset_r6_starts_seq_cursor_and_clock_again(kind: str) -> None:
    settings = Settings(RING, block=True, keep_log=True, start_cursor=4096, start_seq=77)
    with capture([f"{kind}@500"], settings, 900) as (engine, injector, both):
        drive(engine, injector, both, 900)
        counts = compare(engine, both)
        total = engine.total()
        assert engine.stats()["ring_flags"] == 0
    first = injector.epochs[0]
    assert (first["first_seq"], counts["first_seq"]) == (77, 0)
    assert counts["first_ts_ns"] == pytest.approx(settings.start_ts_ns, abs=1000)
    assert (first["fnv64"], len(both.dumps[0])) == (fnv1a_64(both.dumps[0]), first["bytes"])
    assert total["records"] == first["records"] + counts["records"]
    assert total["fnv64"] == fnv1a_64(both.dumps[0] + bytes(both.native.dump))
    discarded = injector.log[0]["discarded_records"]
    assert total["records"] + discarded == 900
    assert injector.exact == (discarded == 0)
    assert (discarded > 0) == (kind == "reset-now")


@pytest.mark.parametrize("kind", ["cursor-regress", "cursor-regress:64", "cursor-jump"])
def test_cursor_r2_stays_invalid_until_the_consumer_follows(kind: str) -> None:
    with capture([f"{kind}@300"], Settings(RING, block=True), 600) as (engine, injector, both):

        def wait(condition: Callable[[], bool], patience_s: float) -> bool:
            head, tail = struct.unpack_from("<QQ", both.region, 16)
            if (head - tail) % 2**64 > RING:
                struct.pack_into("<Q", both.region, 24, head)
            else:
                both.read()
            return condition()

        injector._wait = wait
        drive(engine, injector, both, 600)
        counts = compare(engine, both)
        total = engine.total()
        assert injector.log[0]["followed"]
    assert total["records"] == 600
    assert counts["first_seq"] == injector.epochs[0]["last_seq"] + 1


def test_version_bump_r1_ends_the_workload() -> None:
    with capture(["version-bump@100"], Settings(RING, block=True), 300) as (engine, injector, both):
        engine.run(100, 10**8)
        both.read()
        injector.inject(100)
        assert injector.ended
        assert struct.unpack_from("<I", both.region, 4)[0] == 2


def test_overrun_r7_passes_the_unread_records() -> None:
    with capture(["overrun"], Settings(RING, block=True), 300) as (engine, injector, _):
        engine.run(20, 10**8)
        injector.inject(10**6)
        stats = engine.stats()
        assert stats["head"] - stats["tail"] > RING
        assert not injector.exact
        engine.run(10**6, 10**6)
        assert engine.stats()["head"] == stats["head"], "firmware waits for a tail that makes sense"


def test_fault_that_finds_no_place_is_said() -> None:
    with capture(["dirty-marker@5", "garbage@99"], Settings(RING), 20) as (engine, injector, both):
        drive(engine, injector, both, 20)
    assert [(entry["kind"], entry["injected"]) for entry in injector.log] == [
        ("dirty-marker", False),
        ("garbage", False),
    ]


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("reset", Fault("reset", 0, None)),
        ("garbage@5", Fault("garbage", 256, 5)),
        ("garbage:16@0", Fault("garbage", 16, 0)),
        ("backward-seq:3", Fault("backward-seq", 3, None)),
    ],
)
def test_fault_spec(spec: str, fault: Fault) -> None:
    assert parse(spec) == fault


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("corupt-magic", "did you mean corrupt-magic"),
        ("xyzzy", "expected one of corrupt-magic"),
        ("reset:5", "takes no argument"),
        ("garbage:7", "multiple of 8"),
        ("garbage:-8", "whole number"),
        ("garbage@x", "whole number"),
    ],
)
def test_wrong_fault_spec(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(spec)


def test_every_kind_has_a_way_to_happen() -> None:
    for kind in ARGUMENTS:
        assert (
            kind in TWISTS or kind == "garbage" or hasattr(Injector, f"_{kind.replace('-', '_')}")
        )

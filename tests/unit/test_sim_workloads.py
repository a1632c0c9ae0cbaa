# SPDX-License-Identifier: Apache-2.0
"""Workloads: what they emit is what their catalogs say."""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hmb_producer_sim import workload as workloads
from hmb_producer_sim.engine import Engine, Settings

from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.errors import ConfigError, NoInputError, UsageError

RECORD = struct.Struct("<IIQHBBHHQ")


def records(
    workload: workloads.Workload, count: int, **settings: Any
) -> list[tuple[int, int, int, int, bytes]]:
    """(ts_ns, opcode, cpu, flags, payload) of the first records of a workload."""
    ring_size = 1 << 23
    with mmap.mmap(-1, 64 + ring_size) as memory:
        engine = Engine(memory, Settings(ring_size, **settings), workload)
        engine.run(count, 10**10)
        head = engine.stats()["head"]
        found = list(_walk(memory[64 : 64 + head]))
        engine.close()
    assert len(found) == count
    return found


def _walk(area: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    at = 0
    while at < len(area):
        _, _, ts_ns, opcode, cpu, flags, length, _, _ = RECORD.unpack_from(area, at)
        yield ts_ns, opcode, cpu, flags, area[at + 32 : at + 32 + length]
        at += 32 + (length + 7) // 8 * 8


def _key(event: Event, cpu: int, values: dict[str, Any]) -> tuple[str, int]:
    begin = event.name if event.kind == "begin" else event.pair
    return begin, cpu if event.key == "cpu" else values[event.key]


@pytest.mark.parametrize("name", workloads.BUILT_IN)
def test_records_have_the_payloads_of_the_catalog(name: str) -> None:
    catalog = Catalog.load(workloads.resolve(name))
    seen: Counter[str] = Counter()
    last = 0
    for ts_ns, opcode, _, _, payload in records(workloads.load(name), 40_000):
        event = catalog.get(opcode)
        assert event is not None
        seen[event.name] += 1
        assert len(payload) >= event.payload_size
        assert ts_ns >= last
        last = ts_ns
    rare = {"UNCORRECTABLE", "HOST_TRIM", "FW_LOG", "TEMPERATURE"}
    assert set(seen) >= {event.name for event in catalog} - rare


@pytest.mark.parametrize("name", ["ftl", "burst"])
def test_every_end_follows_its_begin(name: str) -> None:
    catalog = Catalog.load(workloads.resolve(name))
    open_since: dict[tuple[str, int], int] = {}
    pairs = 0
    for ts_ns, opcode, cpu, _, payload in records(workloads.load(name), 40_000):
        event = catalog.get(opcode)
        assert event is not None
        values = event.values(payload)
        if event.kind == "begin":
            assert _key(event, cpu, values) not in open_since
            open_since[_key(event, cpu, values)] = ts_ns
        elif event.kind == "end":
            started = open_since.pop(_key(event, cpu, values))
            pairs += 1
            for field in ("latency_ns", "busy_ns", "elapsed_ns", "elapsed"):
                assert values.get(field, ts_ns - started) == ts_ns - started
    assert pairs > 1000


def test_ftl_runs_on_four_cores_and_collects_garbage() -> None:
    found = records(workloads.load("ftl"), 60_000)
    assert {cpu for _, _, cpu, _, _ in found} == {0, 1, 2, 3}
    opcodes = Counter(opcode for _, opcode, _, _, _ in found)
    assert opcodes[0x1040] > 0
    clipped = [(opcode, payload) for _, opcode, _, flags, payload in found if flags == 2]
    assert clipped
    for opcode, payload in clipped:
        assert opcode == 0x1070
        assert len(payload[1:].rstrip(b"\0")) == 46


@pytest.mark.parametrize("rate", [1000, 50_000, 500_000])
def test_ftl_virtual_time_keeps_the_rate(rate: int) -> None:
    found = records(workloads.load("ftl"), 40_000, rate=None, seed=3)
    with mmap.mmap(-1, 64 + (1 << 23)) as memory:
        engine = Engine(memory, Settings(1 << 23, rate=rate, seed=3), workloads.load("ftl"))
        # One wall-clock second at most: what matters is the virtual clock.
        engine.run(min(40_000, rate // 5), 10**9)
        stats = engine.stats()
        engine.close()
    spent = (stats["now_ns"] - 10**9) / 1e9
    assert stats["produced"] / rate == pytest.approx(spent, rel=0.35)
    assert len(found) == 40_000


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


OWN = """
name = "mine"
[[event]]
opcode = 7
name = "A"
field = [
    { name = "x", type = "u16" },
    { name = "f", type = "f32" },
    { name = "s", type = "char[6]" },
]
[[event]]
opcode = 8
name = "B"
[workload]
cpus = 3
[workload.events.A]
weight = 3
payload = [12, 40]
truncated = true
fields.x = { min = 5, max = 9, draw = "counter" }
[workload.events.B]
weight = 1
cpus = 1
"""


def test_own_workload_draws_weights_ranges_and_counters(tmp_path: Path) -> None:
    found = records(workloads.load(_write(tmp_path / "w.toml", OWN)), 8000)
    a = [one for one in found if one[1] == 7]
    assert len(a) == pytest.approx(6000, rel=0.05)
    assert [struct.unpack_from("<H", one[4])[0] for one in a[:7]] == [5, 6, 7, 8, 9, 5, 6]
    assert {one[2] for one in a} == {0, 1, 2}
    assert {one[3] for one in a} == {2}
    assert {len(one[4]) for one in a} == set(range(12, 41))
    assert all(one[2] == 0 for one in found if one[1] == 8)
    assert all(0 <= struct.unpack_from("<f", one[4], 2)[0] <= 100 for one in a)
    assert all(one[4][6:12].rstrip(b"\0").isalpha() for one in a)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("weight = 3", "weight = -1", "workload.events.A.weight"),
        ("payload = [12, 40]", "payload = [2, 40]", "workload.events.A.payload"),
        ("payload = [12, 40]", "payload = [12, 5000]", "workload.events.A.payload"),
        ('draw = "counter"', 'draw = "odd"', "fields.x.draw"),
        ("max = 9", "max = 4", "fields.x.max"),
        ("[workload.events.B]", "[workload.events.C]", "workload.events"),
        ("weight = 3", "weight = 0", "weight"),
        ("cpus = 3", "cpus = 0", "workload.cpus"),
        ("opcode = 8", "opcode = 70000", "opcode"),
    ],
)
def test_wrong_workload_names_the_key(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = OWN.replace(old, new).replace("weight = 1", "weight = 0" if "0" in new else "weight = 1")
    with pytest.raises(ConfigError, match=named):
        workloads.load(_write(tmp_path / "w.toml", text))


@pytest.mark.parametrize("text", ["= nonsense", "a = " + "9" * 5000, "a = " + "[" * 5000])
def test_workload_that_is_no_toml(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        workloads.load(_write(tmp_path / "w.toml", text))


def test_workload_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match="built in: ftl, uniform, burst"):
        workloads.load(str(tmp_path / "none.toml"))


def test_payload_of_ftl_is_fixed() -> None:
    with pytest.raises(UsageError, match="fixed layout"):
        workloads.load("ftl", (0, 10))

# SPDX-License-Identifier: Apache-2.0
"""One rule for durations and pairs, in statistics, report, Perfetto and .pccx."""

from __future__ import annotations

import io
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmb_trace import pccx, testing
from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.dump import Dump, open_dump
from hmb_trace.pccx import PackOptions, pack
from hmb_trace.query.durations import pair_name, pair_names
from hmb_trace.query.pairing import Pairing
from hmb_trace.query.stats import gather
from hmb_trace.report.gather import Gatherer
from tests.conftest import require_module

_KEY = [{"name": "tag", "type": "u64"}]
CATALOG = Catalog.from_dict(
    {
        "name": "t",
        "event": [
            {"opcode": 1, "name": "rd", "kind": "begin", "pair": "rd_done", "key": "tag"}
            | {"field": _KEY},
            {"opcode": 2, "name": "rd_done", "kind": "end", "field": _KEY},
            {"opcode": 3, "name": "cmp", "kind": "complete", "duration": "d"}
            | {"duration_unit": "us", "field": [{"name": "d", "type": "u64"}]},
            {"opcode": 4, "name": "neg", "kind": "complete", "duration": "d"}
            | {"field": [{"name": "d", "type": "i16"}]},
        ],
    }
)


def records(*rows: tuple[int, int, int, int]) -> bytes:
    """seq, ts_ns, opcode, value."""
    sizes = {1: "<Q", 2: "<Q", 3: "<Q", 4: "<h"}
    return testing.dump(
        testing.record(seq, struct.pack(sizes[op], value), ts_ns=ts, opcode=op)
        for seq, ts, op, value in rows
    )


def dump_of(data: bytes) -> Dump:
    return open_dump(io.BytesIO(data))


def everywhere(data: bytes, tmp_path: Path) -> dict[str, tuple[dict[str, int], int, int]]:
    """Durations by name, uncertain pairs and invalid durations, as each part tells them."""
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    stats = gather(open_dump(path), catalog=CATALOG)
    found = {
        "stats": (
            {n: d.histogram.total for n, d in stats.durations.items() if d.histogram.count},
            stats.uncertain,
            sum(d.invalid for d in stats.durations.values()),
        )
    }
    pairs = Gatherer(open_dump(path), CATALOG).run().latencies.pairs()
    found["report"] = (
        {p.name: p.histogram.total for p in pairs if p.histogram.count},
        sum(p.uncertain for p in pairs),
        sum(p.invalid for p in pairs),
    )
    result = pack([str(path)], str(tmp_path / "a.pccx"), PackOptions("bincode", CATALOG))
    assert result.events is not None
    sums: dict[str, int] = {}
    with pccx.read(str(tmp_path / "a.pccx")) as file:
        for batch in pccx.event_batches(file):
            sums["all"] = sums.get("all", 0) + int(batch.events["duration"].sum(dtype="u8"))
    found["pccx"] = (sums, result.events.uncertain, result.events.invalid)
    return found


@pytest.mark.parametrize(
    ("rows", "durations", "uncertain", "invalid"),
    [
        ([(0, 10, 1, 7), (1, 30, 2, 7)], {"rd": 20}, 0, 0),
        ([(0, 10, 1, 7), (5, 30, 2, 7)], {}, 1, 0),  # a gap lies between
        (
            [(0, 10, 1, 7), (1, 20, 1, 8), (9, 30, 2, 7), (10, 31, 1, 9), (11, 35, 2, 9)],
            {"rd": 4},
            1,
            0,
        ),
        (
            [(0, 9_000_000, 1, 7), (1, 5, 1, 6), (2, 9, 2, 7), (3, 10, 2, 6)],
            {"rd": 5},
            1,
            0,
        ),  # clock
        ([(0, 1, 3, 5), (1, 2, 3, 2**64 - 1)], {"cmp": 5000}, 0, 1),
        ([(0, 1, 3, 2**62)], {}, 0, 1),
        ([(0, 1, 4, 9), (1, 2, 4, -5)], {"neg": 9}, 0, 1),
    ],
)
def test_pairs_and_durations_are_the_same_everywhere(
    rows: list[tuple[int, int, int, int]],
    durations: dict[str, int],
    uncertain: int,
    invalid: int,
    tmp_path: Path,
) -> None:
    found = everywhere(records(*rows), tmp_path)
    assert found["stats"] == (durations, uncertain, invalid)
    assert found["report"] == (durations, uncertain, invalid)
    assert found["pccx"][0]["all"] == sum(durations.values())
    assert found["pccx"][1:] == (uncertain, invalid)


def test_perfetto_draws_no_slice_of_what_is_no_duration(tmp_path: Path) -> None:
    require_module("perfetto", "analysis")
    from hmb_trace.exports.perfetto import PerfettoWriter

    rows = [(0, 10, 1, 7), (5, 30, 2, 7), (6, 31, 3, 2**64 - 1), (7, 32, 1, 8), (8, 40, 2, 8)]
    writer = PerfettoWriter(io.BytesIO(), CATALOG)
    for batch in dump_of(records(*rows)).batches():
        writer.add(batch)
    counts = writer.finish()
    assert (counts.slices, counts.uncertain, counts.instants) == (1, 1, 3)


def test_a_gap_in_records_that_are_not_selected_still_parts_a_pair(tmp_path: Path) -> None:
    from hmb_trace.query.select import Selection

    rows = [(0, 10, 1, 7), (1, 11, 3, 1), (5, 20, 3, 1), (6, 30, 2, 7)]
    chosen = Selection(opcodes=frozenset({1, 2}))
    found = gather(dump_of(records(*rows)), catalog=CATALOG, selection=chosen)
    assert found.uncertain == 1
    pairing = Pairing(CATALOG)
    for batch in Selection(opcodes=frozenset({1, 2})).batches(dump_of(records(*rows)), max_bytes=1):
        pairing.feed(batch)
    assert (pairing.matched, pairing.uncertain) == (0, 1)


def test_names_of_pairs() -> None:
    assert pair_name("nand_read_begin", "nand_read_end") == "nand_read"
    assert pair_name("NAND_READ", "NAND_READ_DONE") == "NAND_READ"
    assert pair_name("ReadBegin", "ReadEnd") == "Read"
    assert pair_name("gc_start", "gc_stop") == "gc"
    assert pair_name("submit", "done") == "submit to done"
    assert pair_names(CATALOG) == {1: "rd", 2: "rd", 3: "cmp", 4: "neg"}


def _colliding(count: int) -> np.ndarray[Any, Any]:
    """Keys that fell into one slot of the table whose hash had no seed."""
    inverse = pow(0xFF51AFD7ED558CCD, -1, 1 << 64)
    pair = 0x9E3779B97F4A7C15
    return np.array([((x * (2**32 + 1)) * inverse - pair) % 2**64 for x in range(count)], "u8")


def test_keys_cannot_be_made_to_collide() -> None:
    """Seen before: 80,000 such begins took 14 s, harmless ones a fraction of one."""
    keys = _colliding(60_000)
    data = records(*((i, i, 1, int(key)) for i, key in enumerate(keys)))
    begin = time.process_time()
    pairing = Pairing(CATALOG)
    for batch in dump_of(data).batches():
        pairing.feed(batch)
    assert time.process_time() - begin < 2
    assert len(pairing.finish().singles) == len(keys)


def test_the_rule_in_c() -> None:
    values = np.array([0, 5, 2**64 - 1, 2**63, 2**60], "u8")
    out, valid = np.empty(5, "u8"), np.empty(5, "u1")

    def rule(signed: int, mul: int, div: int) -> list[int]:
        lib.hmb_durations_ns(
            *(ffi.cast("uint64_t *", values.ctypes.data), 5, 8, signed, mul, div),
            *(ffi.cast("uint64_t *", out.ctypes.data), ffi.cast("uint8_t *", valid.ctypes.data)),
        )
        return valid.tolist()

    assert rule(0, 1, 1) == [1, 1, 0, 1, 1]
    assert rule(1, 1, 1) == [1, 1, 0, 0, 1]
    assert rule(0, 1000, 1) == [1, 1, 0, 0, 0]
    assert rule(0, 1000, 800) == [1, 1, 0, 1, 1]
    assert out.tolist()[1] == 6

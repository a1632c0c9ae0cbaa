# SPDX-License-Identifier: Apache-2.0
"""Statistics against plain counting."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.dump import open_dump
from hmb_trace.query.select import Selection
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.query.stats import as_json, gather, log2_bucket

CATALOG = Catalog.from_dict(
    {
        "name": "t",
        "event": [
            {
                "opcode": 1,
                "name": "op_begin",
                "kind": "begin",
                "pair": "op_end",
                "key": "id",
                "field": [{"name": "id", "type": "u32"}],
            },
            {
                "opcode": 2,
                "name": "op_end",
                "kind": "end",
                "pair": "op_begin",
                "key": "id",
                "field": [{"name": "id", "type": "u32"}],
            },
            {
                "opcode": 3,
                "name": "whole",
                "kind": "complete",
                "duration": "took",
                "duration_unit": "us",
                "field": [{"name": "took", "type": "u32"}],
            },
        ],
    }
)


def dump_bytes() -> bytes:
    made = []
    for i in range(90):
        opcode = i % 3 + 1
        value = i // 3 if opcode < 3 else i
        ts = 1000 * i + (i % 3 == 1) * 5 * i
        seq = i if i < 50 else i + 4
        made.append(
            testing.record(seq, struct.pack("<I", value), opcode=opcode, cpu=i % 2, ts_ns=ts)
        )
    made.insert(7, testing.marker(7))
    return testing.dump(made)


def test_selected_statistics_equal_those_of_all_where_all_are_selected() -> None:
    """The numpy path against the C path."""
    everything = as_json(gather(open_dump(io.BytesIO(dump_bytes()))), None)
    picked = Selection(cpus=frozenset(range(256)))
    same = as_json(gather(open_dump(io.BytesIO(dump_bytes())), selection=picked), None)
    everything.pop("bytes"), everything.pop("bytes_per_s")
    assert same.pop("bytes") == len(dump_bytes()) - 32  # the marker is not selected
    same.pop("bytes_per_s")
    assert everything == same
    assert everything["records"] == 90
    assert (everything["gaps"], everything["lost"], everything["wrap_markers"]) == (1, 4, 1)
    assert [one["records"] for one in everything["opcodes"]] == [30, 30, 30]


def test_durations_of_pairs_and_complete_events() -> None:
    found = gather(open_dump(io.BytesIO(dump_bytes())), catalog=CATALOG)
    spans = [1000 + 5 * i for i in range(1, 90, 3)]
    pair = found.durations["op"].as_dict()
    assert (pair["count"], pair["min_ns"], pair["max_ns"]) == (30, min(spans), max(spans))
    assert pair["mean_ns"] == pytest.approx(sum(spans) / 30)
    assert pair["p50_ns"] == pytest.approx(sorted(spans)[14], rel=0.016)
    whole = found.durations["whole"].as_dict()
    assert (whole["min_ns"], whole["max_ns"]) == (2000, 89000)
    assert (found.unmatched_begins, found.unmatched_ends) == (0, 0)


def test_quantiles_are_close_over_all_magnitudes() -> None:
    rng = np.random.default_rng(7)
    values = np.exp(rng.uniform(0, 43, 20_000)).astype("u8")
    durations = LogHistogram()
    durations.add(values[:9000])
    durations.add(values[9000:])
    ordered = np.sort(values)
    for q in (0.001, 0.5, 0.99, 0.999, 1.0):
        exact = int(ordered[max(1, int(np.ceil(q * len(ordered)))) - 1])
        found = durations.quantile(q)
        assert exact <= found <= exact * 1.008 + 1
    assert durations.total == int(sum(int(v) for v in values))
    assert LogHistogram().count == 0


def test_extreme_durations() -> None:
    durations = LogHistogram()
    durations.add(np.array([0, 2**64 - 1], "u8"))
    assert durations.quantile(1.0) == 2**64 - 1
    assert durations.quantile(0.5) == 0
    assert log2_bucket(np.array([0, 1, 2, 3, 4, 2**63], "u8")).tolist() == [0, 1, 2, 2, 3, 64]


def test_empty_dump() -> None:
    made = as_json(gather(open_dump(io.BytesIO(b"")), catalog=CATALOG), CATALOG)
    assert (made["records"], made["records_per_s"], made["opcodes"]) == (0, None, [])

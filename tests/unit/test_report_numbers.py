# SPDX-License-Identifier: Apache-2.0
"""The report's bounded-memory counters against plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmb_trace.query.histogram import LogHistogram, bucket_end, bucket_of, quarter, quarters
from hmb_trace.report.timegrid import TimeGrid

TIMES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(batches=st.lists(TIMES, min_size=1, max_size=6), slots=st.sampled_from([2, 8, 64]))
def test_time_grid_keeps_every_count_in_its_slot(batches: list[list[int]], slots: int) -> None:
    grid = TimeGrid(slots=slots, width_ns=1)
    for batch in batches:
        grid.add("n", grid.index(np.array(batch, np.uint64)))
    expected: dict[int, int] = {}
    for ts in (t for batch in batches for t in batch):
        slot = ts // grid.width_ns - grid.start_ns // grid.width_ns
        expected[slot] = expected.get(slot, 0) + 1
    found = {int(i): int(n) for i, n in enumerate(grid.layer("n")[0]) if n}
    assert found == expected
    assert max(found) < grid.used <= slots


def test_time_grid_rows_and_weights() -> None:
    grid = TimeGrid(slots=4, width_ns=10)
    slot = grid.index(np.array([0, 5, 39], np.uint64))
    grid.add("bytes", slot, np.array([0, 2, 0]), np.array([1.0, 2.0, 4.0]))
    assert grid.read("bytes").tolist() == [[1, 0, 0, 4], [0, 0, 0, 0], [2, 0, 0, 0]]
    assert grid.read("bytes", 2).tolist() == [[1, 4], [0, 0], [2, 0]]


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60))
def test_log_histogram_is_exact_where_it_says_so(values: list[int]) -> None:
    histogram = LogHistogram()
    for part in (values[:7], values[7:]):
        histogram.add(np.array(part, np.uint64))
    assert (histogram.count, histogram.total) == (len(values), sum(values))
    assert (histogram.minimum, histogram.maximum) == (min(values), max(values))
    bars = histogram.coarse()
    assert sum(n for _, _, n in bars) == len(values)
    assert all(n == sum(low <= v <= high for v in values) for low, high, n in bars)
    assert all(a[1] + 1 == b[0] for a, b in pairwise(bars))


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.integers(0, 2**53), min_size=1))
def test_drawn_bars_are_the_same_one_by_one_and_vectorised(values: list[int]) -> None:
    assert quarters(np.array(values, np.uint64)).tolist() == [quarter(v) for v in values]


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.integers(0, 2**50), min_size=1, max_size=60), q=st.floats(0.001, 1))
def test_log_histogram_quantile_is_at_most_a_bucket_high(values: list[int], q: float) -> None:
    histogram = LogHistogram()
    histogram.add(np.array(values, np.uint64))
    exact = sorted(values)[max(1, int(np.ceil(q * len(values)))) - 1]
    assert exact <= histogram.quantile(q) <= exact + exact / 128


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255, 256, 257, 2**32, 2**63, 2**64 - 1])
def test_log_histogram_bucket_holds_its_value(value: int) -> None:
    bucket = int(bucket_of(np.array([value], np.uint64))[0])
    assert value <= bucket_end(bucket)
    assert bucket == 0 or bucket_end(bucket - 1) < value

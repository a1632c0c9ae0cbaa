# SPDX-License-Identifier: Apache-2.0
"""The demo's third act, small: latencies across a loss against those that firmware measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.account import account
from hmb_trace.dumps.dump import open_dump
from hmb_trace.query.pairing import Pairing
from hmb_trace.query.stats import gather
from hmb_trace.report.gather import Gatherer
from tests.conftest import program


@pytest.fixture(scope="module")
def overload(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Catalog]:
    """What firmware wrote, less a stretch in the middle that a full ring would have cost."""
    folder = tmp_path_factory.mktemp("overload")
    ring, whole, cut = (folder / name for name in ("ring", "whole.bin", "cut.bin"))
    arguments = ["--file", ring, "--ring-size", "16MiB", "--workload", "ftl", "--count", "120000"]
    subprocess.run([program("hmb-firmware-sim"), *arguments, "-q"], check=True)
    daemon = [program("hmb-trace-daemon"), "--device", ring, "--output", whole, "--once"]
    subprocess.run(daemon, check=True, capture_output=True)
    with cut.open("wb") as out:
        rows = 0
        for batch in open_dump(whole).batches():
            number = np.arange(rows, rows + len(batch))
            rows += len(batch)
            out.write(batch.select((number < 50_000) | (number >= 90_000)).to_bytes())
    text = subprocess.run(
        [program("hmb-firmware-sim"), "--print-catalog", "ftl"], check=True, capture_output=True
    ).stdout
    return cut, Catalog.parse(text)


def test_latencies_agree_with_the_firmwares_own(overload: tuple[Path, Catalog]) -> None:
    """Seen before: a HOST_READ of 1.24 s that never was; firmware's own longest was 12 ms."""
    path, catalog = overload
    dump = open_dump(path)
    assert account(dump).lost == 40_000
    done = catalog.by_name["HOST_READ_DONE"]
    field = done.field("latency_ns")
    assert field is not None
    pairing, own, all_own = Pairing(catalog), [], []
    rows = 0
    for batch in dump.batches():
        paired = pairing.feed(batch)
        ends = paired.matches[paired.matches["end_opcode"] == done.opcode]
        picked = batch.select((ends["end_row"] - rows).astype("i8"))
        own.append(picked.field(field.offset, field.dtype))
        every = batch.select(batch.opcode == done.opcode)
        all_own.append(every.field(field.offset, field.dtype))
        rows += len(batch)
    firmware = np.sort(np.concatenate(own))
    assert len(firmware) > 1000
    stats = gather(dump, catalog=catalog)
    assert stats.uncertain > 0
    found = stats.durations["HOST_READ"]
    assert found.uncertain > 0
    assert found.histogram.count == len(firmware)
    for q in (0.5, 0.9, 0.99, 0.999, 1.0):
        exact = int(firmware[max(1, int(np.ceil(q * len(firmware)))) - 1])
        assert found.histogram.quantile(q) == pytest.approx(exact, rel=0.01), q
    assert found.histogram.maximum <= int(np.concatenate(all_own).max()) * 1.01
    report = {pair.name: pair for pair in Gatherer(dump, catalog).run().latencies.pairs()}
    assert report["HOST_READ"].histogram.counts.tolist() == found.histogram.counts.tolist()
    assert report["HOST_READ"].uncertain == found.uncertain
    slowest = report["HOST_READ"].words()["slowest"]
    assert slowest[0].duration == found.histogram.maximum

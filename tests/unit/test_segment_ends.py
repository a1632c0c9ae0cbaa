# SPDX-License-Identifier: Apache-2.0
"""First and last record of a segment, wherever the last index entry happens to stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hmb_daemon.spool.causes import Cause
from hmb_daemon.writing.sidecar_builder import Origin, SidecarBuilder, walk_ends

from hmb_trace import testing
from hmb_trace.dumps.sidecar import Device


@pytest.mark.parametrize("tail", ["record", "marker"])
@pytest.mark.parametrize("last_entry", ["none", "inside", "at the end", "before the marker"])
def test_ends_are_those_of_the_records(tmp_path: Path, tail: str, last_entry: str) -> None:
    records = [testing.record(i, bytes(600), ts_ns=10 * i) for i in range(1000)]
    data = testing.dump(records)
    size = len(records[0])
    whole = data + (testing.marker(1000) if tail == "marker" else b"")
    entries = {
        "none": [],
        "inside": [500 * size],
        "at the end": [500 * size, len(whole)],
        "before the marker": [500 * size, len(data)],
    }[last_entry]
    path = tmp_path / "a.bin"
    path.write_bytes(whole)
    origin = Origin(label="a", device=Device(path="x"), ring_size=64)
    builder = SidecarBuilder("a", 1, origin, Cause.STOP)
    fd = os.open(path, os.O_RDONLY)
    try:
        builder.dump(len(whole), "", *walk_ends(fd, len(whole), entries))
    finally:
        os.close(fd)
    side = builder.build()
    assert (side.first_seq, side.first_ts_ns) == (0, 0)
    assert (side.last_seq, side.last_ts_ns) == (999, 9990)

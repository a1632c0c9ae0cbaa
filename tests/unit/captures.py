# SPDX-License-Identifier: Apache-2.0
"""A dump set with epochs, a gap, rejects and clock pairs, as the daemon would seal it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmb_trace import testing
from hmb_trace.dumps.sidecar import ClockPair, Device, Gap, Sidecar
from hmb_trace.dumps.walker import Walker

HOST = 1_767_225_600_000_000_000


def segment(
    folder: Path,
    number: int,
    records: Sequence[bytes],
    *,
    epoch: int = 0,
    shift: int = HOST,
    gaps: Sequence[Gap] = (),
    **more: Any,
) -> Path:
    """A sealed segment and its sidecar; shift: host clock minus firmware clock."""
    data = testing.dump(records)
    name = f"d-{number:06d}-20260101T000000Z"
    path = folder / f"{name}.bin"
    path.write_bytes(data)
    walker = Walker()
    walker.walk(data)
    pairs = [ClockPair(ts_ns=ts, host_ns=ts + shift) for ts in (walker.min_ts_ns, walker.max_ts_ns)]
    side = Sidecar(
        segment=name,
        number=number,
        label="d",
        device=Device(path="/dev/x", serial="S1"),
        epoch=epoch,
        bytes=len(data),
        records=walker.records,
        wrap_markers=walker.wrap_markers,
        first_seq=walker.first_seq,
        last_seq=walker.last_record_seq,
        first_ts_ns=walker.first_ts_ns,
        last_ts_ns=walker.last_ts_ns,
        gaps=sum(1 for gap in gaps if gap.lost),
        lost=sum(gap.lost for gap in gaps),
        gap_list=list(gaps),
        clock=pairs,
        **{"clock_steps": [], **more},
    )
    path.with_suffix(".json").write_bytes(side.encode())
    return path


def two_epochs(folder: Path) -> Path:
    """40 records: a gap of 5 in the first epoch; the second begins at time 0 again."""
    folder.mkdir()
    first = [testing.record(i, b"ab", ts_ns=1000 * i, opcode=1, cpu=i % 2) for i in range(10)]
    first += [testing.record(i + 5, b"ab", ts_ns=1000 * i, opcode=1, cpu=0) for i in range(10, 20)]
    offset = 10 * len(first[0])
    gap = Gap(
        *(),
        offset=offset, seq_before=9, seq_after=15, lost=5, ts_ns=10_000, host_ns=HOST + 10_000,
        cause="ring-overflow",
    )  # fmt: skip
    segment(folder, 1, first, gaps=[gap])
    second = [testing.record(i, b"ab", ts_ns=1000 * i, opcode=1, cpu=2) for i in range(20)]
    segment(folder, 2, second, epoch=1, shift=HOST + 10**9)
    return folder

# SPDX-License-Identifier: Apache-2.0
"""A dump that is a selection of others, and the sidecar that keeps it from accusing itself.

Its seqs have holes where records were left out on purpose. So the account of the source goes along,
with places as they are in the new file, and so do clock pairs and an index.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from hmb_trace.dumps.account import Account, clock_pairs
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.sidecar import (
    ClockPair,
    ClockStep,
    Device,
    Filtered,
    IndexEntry,
    Sidecar,
    sidecar_path,
)
from hmb_trace.files import output_file
from hmb_trace.layout import RECORD_HDR_SIZE, RecordFlag

_INDEX_BYTES = 4 << 20


class FilterWriter:
    """Writes selected records, and notes what their sidecar has to say."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = xxhash.xxh3_64()
        self._places: list[tuple[int, int]] = []  # segment and offset in the source ...
        self._moved: list[int] = []  # ... and in the new file
        self._index: list[IndexEntry] = []
        self.bytes = self.records = self.truncated = 0
        self.first: tuple[int, int] | None = None  # seq, ts_ns
        self.last: tuple[int, int] | None = None

    def write(self, batch: RecordBatch) -> None:
        """Append the rows of a batch."""
        self._note_places(batch)
        self._note_index()
        data = batch.to_bytes()
        self._out.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        self.records += len(batch)
        self.truncated += int(np.count_nonzero(batch.flags & RecordFlag.TRUNCATED))
        if len(batch):
            self.first = self.first or (int(batch.seq[0]), int(batch.ts_ns[0]))
            self.last = int(batch.seq[-1]), int(batch.ts_ns[-1])

    def _note_places(self, batch: RecordBatch) -> None:
        sizes = RECORD_HDR_SIZE + ((batch.payload_len.astype("u8") + 7) & ~np.uint64(7))
        ends = np.concatenate([np.zeros(1, "u8"), np.cumsum(sizes)])
        cuts = [batch.base, *batch.cuts.tolist()]
        rows = np.searchsorted(batch.offset, cuts).tolist()
        for cut, row in zip(cuts, rows, strict=True):
            self._places.append((batch.segment, cut))
            self._moved.append(self.bytes + int(ends[row]))

    def _note_index(self) -> None:
        begin = self._index[-1].offset if self._index else 0
        if self.last and self.bytes - begin >= _INDEX_BYTES:
            seq, ts_ns = self.last
            self._index.append(IndexEntry(offset=self.bytes, seq=seq, ts_ns=ts_ns))

    def place(self, segment: int, offset: int) -> int:
        """Where a place of the source lies in the new file."""
        at = bisect_left(self._places, (segment, offset))
        return self._moved[at] if at < len(self._moved) else self.bytes

    def sidecar(self, dump: Dump, account: Account, output: Path, filtered: Filtered) -> Sidecar:
        """What lies beside the new file."""
        sources = [segment.known for segment in dump.segments if segment.known]
        first = sources[0] if sources else None
        side = Sidecar(
            segment=output.name,
            number=0,
            label="",
            device=first.device if first else Device(path=""),
            ring_size=first.ring_size if first else 0,
            epoch=first.epoch if first else 0,
            started_ns=first.started_ns if first else 0,
            sealed_ns=time.time_ns(),
            cause="filter",
            complete=account.lost_exact,
            bytes=self.bytes,
            records=self.records,
            truncated=self.truncated,
            gaps=account.gaps,
            lost=account.lost,
            clock=_pairs(dump, account),
            index=self._index,
            xxh3=self._hash.hexdigest(),
            catalog=first.catalog if first else None,
            filtered=filtered,
        )
        if self.first and self.last:
            side.first_seq, side.first_ts_ns = self.first
            side.last_seq, side.last_ts_ns = self.last
        side.account = self._account(account, dump)
        side.clock_steps = [
            ClockStep(offset=s["offset"], ts_before=s["ts_before"], ts_after=s["ts_after"])
            for s in side.account["clock_steps"]
        ]
        return side

    def _account(self, account: Account, dump: Dump) -> dict[str, Any]:
        made = account.as_dict()
        names = {segment.name: index for index, segment in enumerate(dump.segments)}
        for reason in made["reasons"]:
            if reason["offset"] is not None:
                index = names.get(reason["file"], 0)
                reason["offset"] = self.place(index, reason["offset"])
        for one in (*made["epochs"], *made["clock_steps"]):
            one["offset"], one["segment"] = self.place(one["segment"], one["offset"]), 0
        made |= {"records": self.records, "bytes": self.bytes, "truncated": self.truncated}
        made["wrap_markers"] = 0
        for number, name in enumerate(("seq", "ts_ns")):
            made[f"first_{name}"] = self.first[number] if self.first else None
            made[f"last_{name}"] = self.last[number] if self.last else None
        return made


def _pairs(dump: Dump, account: Account) -> list[ClockPair]:
    """Clock pairs fit a file that has one clock: none where epochs or steps lie in between."""
    if len(account.epochs) > 1 or account.clock_steps:
        return []
    return clock_pairs(dump)


def write_sidecar(output: Path, side: Sidecar) -> None:
    """Put the sidecar beside its dump. Raises CannotCreateError."""
    with output_file(str(sidecar_path(output))) as out:
        out.write(side.encode())

# SPDX-License-Identifier: Apache-2.0
"""Checking a dump against the format and against its sidecar (SPEC R11-R13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xxhash

from hmb_trace.dumps.account import Account, Accountant
from hmb_trace.dumps.account import Verdict as AccountVerdict
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.places import Place
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.dumps.walker import Walker
from hmb_trace.layout import RECORD_HDR_SIZE


@dataclass
class Verdict:
    """What verify found.

    Attributes:
        problems: the data is not what it claims to be; one line each.
        warnings: lost records and other facts worth knowing.
        account: of a dump; its verdict decides about --strict.
        unit: what `records` counts: records, or events of a .pccx.
    """

    records: int = 0
    wrap_markers: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unit: str = "records"
    account: Account | None = None


class _File:
    """What one file adds up to, for comparison with its sidecar."""

    def __init__(self) -> None:
        self.bytes = 0
        self.dirty = 0
        self.first_dirty = 0
        self.hash = xxhash.xxh3_64()

    def add(self, batch: RecordBatch) -> None:
        self.bytes += len(batch.buffer)
        self.hash.update(batch.buffer)
        dirty = dirty_padding(batch)
        if len(dirty) and not self.dirty:
            self.first_dirty = int(batch.offset[dirty[0]])
        self.dirty += len(dirty)


def dirty_padding(batch: RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows whose padding is not all zero (R11)."""
    data = np.frombuffer(batch.buffer, "u1")
    ends = batch.offset - np.uint64(batch.base) + RECORD_HDR_SIZE + batch.payload_len
    dirty = np.zeros(len(batch), bool)
    for used in range(1, 8):
        rows = np.flatnonzero((batch.payload_len & 7) == used)
        for at in range(8 - used):
            dirty[rows] |= data[(ends[rows] + np.uint64(at)).astype("i8")] != 0
    return np.flatnonzero(dirty)


_PROBLEMS = frozenset(("missing-segment", "cut-segment", "bad-sidecar"))


def verify(dump: Dump) -> Verdict:
    """One pass over every file of a dump.

    Raises:
        HmbTraceError: a file cannot be read at all.
    """
    accountant = Accountant(dump)
    files = [_File() for _ in dump.segments]
    for batch in dump.batches(partial=True, walker=accountant.walker):
        files[batch.segment].add(batch)
    account = accountant.finish()
    size = sum(file.bytes for file in files)
    found = Verdict(account.records, account.wrap_markers, size, account=account)
    found.problems += [_place_line(place) for place in account.places if place.kind in _PROBLEMS]
    faulty = {problem.segment for problem in dump.problems}
    told = {place.segment for place in account.places if place.kind in _PROBLEMS}
    found.problems += [f"{p.path}: {p.reason}" for p in dump.problems]
    for index, (segment, file) in enumerate(zip(dump.segments, files, strict=True)):
        known = segment.known
        if known and index not in faulty | told and not _same_hash(file, known):
            hashes = f"found {file.hash.hexdigest()}, the sidecar says {known.xxh3}"
            found.problems.append(f"{segment.name}: xxh3: {hashes}")
        if file.dirty:
            found.problems.append(
                f"{segment.name}: padding: not zero after {file.dirty} records, "
                f"first at byte {file.first_dirty}"
            )
    found.warnings += _warnings(account, accountant.walker)
    return found


def _place_line(place: Place) -> str:
    lost = "" if not place.lost else f" ({place.lost:,} records lost)"
    text = place.text if place.file in place.text else f"{place.file}: {place.text}"
    return f"{place.kind}: {text}{lost}"


def _same_hash(file: _File, known: Sidecar) -> bool:
    return not known.xxh3 or file.hash.hexdigest() == known.xxh3.lower()


def _warnings(account: Account, walker: Walker) -> list[str]:
    counts = (
        (account.duplicates, f"{account.duplicates} duplicate sequence numbers"),
        (account.sequence_resets, f"{account.sequence_resets} sequence resets"),
        (account.glitches, f"{account.glitches} records with a damaged sequence number"),
        (len(account.clock_steps), f"{len(account.clock_steps)} clock steps"),
        (walker.unknown_flags, f"{walker.unknown_flags} records with unknown flags"),
    )
    lines = [] if account.verdict is AccountVerdict.WHOLE else [account.line()]
    return lines + [text for count, text in counts if count]

# SPDX-License-Identifier: Apache-2.0
"""Checking a dump against the format and against its sidecar (SPEC R11-R13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xxhash

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import known_losses, sidecar_of
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.dumps.walker import Walker
from hmb_trace.layout import RECORD_HDR_SIZE


@dataclass
class Verdict:
    """What verify found.

    Attributes:
        problems: the data is not what it claims to be; one line each.
        warnings: lost records and other facts worth knowing.
        unit: what `records` counts: records, or events of a .pccx.
    """

    records: int = 0
    wrap_markers: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unit: str = "records"


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


def verify(dump: Dump) -> Verdict:
    """One pass over every file of a dump.

    Raises:
        HmbTraceError: a file cannot be read at all.
    """
    walker = Walker()
    files = [_File() for _ in dump.segments]
    records = [0] * len(files)
    for batch in dump.batches(partial=True, walker=walker):
        files[batch.segment].add(batch)
        records[batch.segment] += len(batch)
    found = Verdict(walker.records, walker.wrap_markers, sum(f.bytes for f in files))
    faults = {problem.segment: problem.reason for problem in dump.problems}
    for index, (segment, file) in enumerate(zip(dump.segments, files, strict=True)):
        lines = [faults[index]] if index in faults else []
        lines += _against_sidecar(segment, file, records[index], index in faults)
        if file.dirty:
            lines.append(
                f"padding: not zero after {file.dirty} records, first at byte {file.first_dirty}"
            )
        found.problems += [f"{segment.name}: {line}" for line in lines]
    found.warnings += _sequence(dump, walker)
    return found


def _against_sidecar(segment: Segment, file: _File, records: int, faulty: bool) -> list[str]:
    known = sidecar_of(segment)
    if known is None:
        return []
    lines = [
        f"{name}: found {found}, the sidecar says {said}"
        for name, found, said in (
            ("bytes", file.bytes, known.bytes),
            ("records", records, known.records),
        )
        if found != said
    ]
    if not lines and not faulty and not _same_hash(file, known):
        lines.append(f"xxh3: found {file.hash.hexdigest()}, the sidecar says {known.xxh3}")
    return lines


def _same_hash(file: _File, known: Sidecar) -> bool:
    return not known.xxh3 or file.hash.hexdigest() == known.xxh3.lower()


def _sequence(dump: Dump, walker: Walker) -> list[str]:
    gaps, lost = known_losses(dump, walker)
    counts = (
        (lost, f"{lost} records lost in {gaps} gaps"),
        (walker.duplicates, f"{walker.duplicates} duplicate sequence numbers"),
        (walker.sequence_resets, f"{walker.sequence_resets} sequence resets"),
        (walker.clock_steps_back, f"{walker.clock_steps_back} steps back of the clock"),
        (walker.unknown_flags, f"{walker.unknown_flags} records with unknown flags"),
    )
    lines = [text for count, text in counts if count]
    for segment in dump.segments:
        known = sidecar_of(segment)
        if known and not known.complete:
            lines.append(f"{segment.name}: capture not complete ({known.cause})")
    return lines

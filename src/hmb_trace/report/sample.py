# SPDX-License-Identifier: Apache-2.0
"""Which records the report lists: a bounded choice from a stream of any length.

Both ends, both sides of every gap (the first few hundred), the first few of every opcode,
and a sample at even distances in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.batch import RecordBatch

ENDS = 150  # records kept from either end
EVEN = 900  # kept at even distances: between this and twice as many
AROUND_GAPS = 300  # gaps of which both neighbours are kept
PER_OPCODE = 4  # first of its kind in so many batches
OPCODE_RECORDS = 600  # and no more than about so many in all


@dataclass(frozen=True, slots=True)
class Kept:
    """One record, copied out of its batch."""

    seq: int
    ts_ns: int
    opcode: int
    cpu: int
    flags: int
    payload: bytes
    shown_ns: int  # place on the report's time axis
    after_gap: bool


class Sampler:
    """Feed it every batch in order; `rows()` is the choice, in order of the stream."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        self._even: list[int] = []
        self._fixed: set[int] = set()
        self._tail: list[int] = []
        self._stride = 1
        self._seen = 0
        self._gaps = 0
        self._per_opcode = np.zeros(65536, np.int64)

    def add(
        self,
        batch: RecordBatch,
        shown_ns: npt.NDArray[np.uint64],
        after_gap: npt.NDArray[np.intp],
    ) -> None:
        """Take what is wanted of a batch.

        Args:
            shown_ns: of each row, its place on the report's time axis.
            after_gap: rows that follow a gap.
        """
        self._make_room(len(batch))
        begin, gap_rows = self._seen, set(after_gap[: AROUND_GAPS - self._gaps].tolist())
        self._gaps += len(gap_rows)
        fixed = {r for row in gap_rows for r in (row - 1, row) if r >= 0}
        fixed.update(range(max(0, min(ENDS - begin, len(batch)))))
        fixed.update(self._new_opcodes(batch.opcode))
        tail = range(max(0, len(batch) - ENDS), len(batch))
        even = range((-begin) % self._stride, len(batch), self._stride)
        for row in fixed.union(tail, even):
            self._kept[begin + row] = _copy(batch, row, int(shown_ns[row]), row in gap_rows)
        self._fixed.update(begin + row for row in fixed)
        self._even += [begin + row for row in even]
        self._tail = [*self._tail, *(begin + row for row in tail)][-ENDS:]
        self._seen += len(batch)
        self._forget()

    def rows(self) -> list[Kept]:
        """The records chosen, in order."""
        return [self._kept[i] for i in sorted(self._kept)]

    def _new_opcodes(self, opcode: npt.NDArray[np.uint16]) -> list[int]:
        rare = np.flatnonzero(self._per_opcode[opcode] < PER_OPCODE)
        if not len(rare) or self._per_opcode.sum() >= OPCODE_RECORDS:
            return []
        found, first = np.unique(opcode[rare], return_index=True)
        self._per_opcode[found] += 1
        rows: list[int] = rare[first].tolist()
        return rows

    def _make_room(self, coming: int) -> None:
        """Widen the distance until the even ones of the coming rows fit."""
        while len(self._even) + coming // self._stride > 2 * EVEN:
            self._stride *= 2
            self._even = [i for i in self._even if i % self._stride == 0]

    def _forget(self) -> None:
        wanted = self._fixed.union(self._even, self._tail)
        self._kept = {i: kept for i, kept in self._kept.items() if i in wanted}


def _copy(batch: RecordBatch, row: int, shown_ns: int, after_gap: bool) -> Kept:
    return Kept(
        seq=int(batch.seq[row]),
        ts_ns=int(batch.ts_ns[row]),
        opcode=int(batch.opcode[row]),
        cpu=int(batch.cpu[row]),
        flags=int(batch.flags[row]),
        payload=bytes(batch.payload(row)),
        shown_ns=shown_ns,
        after_gap=after_gap,
    )

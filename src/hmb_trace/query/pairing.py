# SPDX-License-Identifier: Apache-2.0
"""Begins and ends matched by the catalog: by cpu, or by a payload key. Streaming, vectorised.

The rule is plain, so that nothing is guessed away: an end belongs to the latest begin of its
pair under the same key. A begin that meets another begin under its key before its end came
has lost its end; an end without a waiting begin has lost its begin; an end earlier than its
begin (the clock went back) is not its end. All of these are kept and counted. So are pairs that
enclose the end of a piece of the dump, where records are missing or another clock begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.pccx.rules import OpenTable, Rules

MATCH_DTYPE = np.dtype(
    [
        ("begin_row", "<u8"),
        ("end_row", "<u8"),
        ("begin_ts_ns", "<u8"),
        ("end_ts_ns", "<u8"),
        ("key", "<u8"),
        ("begin_opcode", "<u2"),
        ("end_opcode", "<u2"),
        ("begin_cpu", "u1"),
        ("end_cpu", "u1"),
        ("pair", "<u2"),
        ("uncertain", "<u8"),
    ]
)
SINGLE_DTYPE = np.dtype(
    [
        ("row", "<u8"),
        ("ts_ns", "<u8"),
        ("key", "<u8"),
        ("opcode", "<u2"),
        ("cpu", "u1"),
        ("is_end", "u1"),
        ("pair", "<u4"),
    ]
)


_NONE: NDArray[np.void] = np.empty(0, MATCH_DTYPE)


@dataclass(frozen=True)
class Paired:
    """What one batch yielded. Rows count the records fed since the start, from 0.

    Attributes:
        matches: dtype MATCH_DTYPE, in the order of the ends; times in nanoseconds; key is
            the payload key (two's complement if signed) or the cpu.
        singles: dtype SINGLE_DTYPE: ends without a begin, begins that lost their end.
        uncertain: as matches: begin and end stand in different pieces of the dump (a gap, a new
            epoch or a clock step lies between). Whether they belong together is not known, and
            what their times tell is not a duration.
    """

    matches: NDArray[np.void]
    singles: NDArray[np.void]
    uncertain: NDArray[np.void]

    @property
    def durations_ns(self) -> NDArray[np.uint64]:
        """end - begin of every match, nanoseconds."""
        spans: NDArray[np.uint64] = self.matches["end_ts_ns"] - self.matches["begin_ts_ns"]
        return spans


class Pairing:
    """Feed it batches in order; memory is bounded by `limit` begins that wait.

    Attributes:
        matched, uncertain, unmatched_begins, unmatched_ends: counts so far.
    """

    def __init__(self, catalog: Catalog, *, limit: int = 1 << 20) -> None:
        self._rules = Rules(catalog)
        self._open = OpenTable(limit=limit)
        self._rows = 0
        self.matched = 0
        self.uncertain = 0
        self.unmatched_begins = 0
        self.unmatched_ends = 0

    def feed(self, batch: RecordBatch) -> Paired:
        """Match the records of the next batch."""
        rows = len(batch)
        matches, singles = np.empty(rows, MATCH_DTYPE), np.empty(rows, SINGLE_DTYPE)
        keep, call = self._call(batch, matches, singles)
        given_up = []
        while lib.hmb_pair_rows(self._rules.c, self._open.c, call) == lib.HMB_STEP_TABLE:
            given_up.append(self._open.make_room())
        del keep
        self._rows += rows
        dropped = [_singles_of(waiting) for waiting in given_up if len(waiting)]
        return self._count(
            matches[: call.matches_len], np.concatenate([singles[: call.singles_len], *dropped])
        )

    def finish(self) -> Paired:
        """The begins that still wait: their ends never came. The pairing starts afresh."""
        left = _singles_of(self._open.waiting())
        self._open = OpenTable()
        return self._count(np.empty(0, MATCH_DTYPE), left)

    def _count(self, matches: NDArray[np.void], singles: NDArray[np.void]) -> Paired:
        ends = int(np.count_nonzero(singles["is_end"]))
        self.unmatched_ends += ends
        self.unmatched_begins += len(singles) - ends
        doubtful = matches["uncertain"] != 0
        if not doubtful.any():
            self.matched += len(matches)
            return Paired(matches, singles, _NONE)
        certain, uncertain = matches[~doubtful], matches[doubtful]
        self.matched += len(certain)
        self.uncertain += len(uncertain)
        return Paired(certain, singles, uncertain)

    def _call(
        self, batch: RecordBatch, matches: NDArray[np.void], singles: NDArray[np.void]
    ) -> tuple[list[Any], Any]:
        buffer = ffi.from_buffer(batch.buffer)
        at = batch.offset - np.uint64(batch.base) + np.uint64(RECORD_HDR_SIZE)
        columns = {
            name: np.ascontiguousarray(getattr(batch, name))
            for name in ("ts_ns", "opcode", "cpu", "flags", "payload_len")
        }
        call = ffi.new("struct hmb_pair_rows *")
        call.payloads = ffi.cast("uint8_t *", buffer)
        call.payload_at = ffi.cast("uint64_t *", at.ctypes.data)
        for name, array in columns.items():
            kind = f"uint{8 * array.dtype.itemsize}_t *"
            setattr(call, name, ffi.cast(kind, array.ctypes.data))
        call.rows, call.row_base = len(batch), self._rows
        cuts = np.ascontiguousarray(batch.cut_rows())
        call.cuts, call.cuts_len = ffi.cast("uint64_t *", cuts.ctypes.data), len(cuts)
        call.matches = ffi.cast("struct hmb_match *", matches.ctypes.data)
        call.singles = ffi.cast("struct hmb_single *", singles.ctypes.data)
        return [buffer, at, columns, cuts], call


def _singles_of(waiting: NDArray[np.void]) -> NDArray[np.void]:
    singles = np.zeros(len(waiting), SINGLE_DTYPE)
    for name in ("ts_ns", "key", "opcode", "cpu"):
        singles[name] = waiting[name]
    singles["row"], singles["pair"] = waiting["ref"], waiting["pair"] - 1
    return singles

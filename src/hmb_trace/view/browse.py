# SPDX-License-Identifier: Apache-2.0
"""Random access to records by number: what the viewer scrolls over. Bounded memory."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump, Span
from hmb_trace.dumps.walker import SequenceBreak, Walker
from hmb_trace.query.select import Selection, Window

_PIECE = 1 << 20  # bytes of dump that are read at once
_CACHED = 8  # pieces


class _Piece(NamedTuple):
    """Where some selected records are."""

    first: int  # number of the first of them
    span: Span
    seqs: tuple[int, int]  # of the first and the last of them
    ts_ns: int  # of the first


class RecordIndex:
    """Numbers the selected records of a dump: 0 is the first.

    Attributes:
        count: records found so far.
        breaks: sequence breaks of the dump.
        done: whether the whole dump has been looked at.
    """

    def __init__(self, dump: Dump, selection: Selection | None = None) -> None:
        self.dump = dump
        self.selection = selection or Selection()
        self.count = 0
        self.done = False
        self._walker = Walker(keep_breaks=True)
        self._pieces: list[_Piece] = []
        self._firsts: list[int] = []
        self._cache: OrderedDict[int, RecordBatch] = OrderedDict()

    @property
    def breaks(self) -> list[SequenceBreak]:
        return self._walker.breaks or []

    def build(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Look at the whole dump once; may run in a thread of its own, while others read.

        Raises:
            DumpError: damaged; what comes before is numbered.
        """
        spans = self.selection.spans(self.dump)
        try:
            for batch in self.dump.batches(_PIECE, walker=self._walker, spans=spans):
                if not goes_on():
                    return
                found = batch
                if not self.selection.is_everything:
                    found = batch.select(self.selection.mask(batch))
                if len(found):
                    self._add(
                        found, Span(batch.segment, batch.base, batch.base + len(batch.buffer))
                    )
        finally:
            self.done = True

    def _add(self, found: RecordBatch, span: Span) -> None:
        seqs = int(found.seq[0]), int(found.seq[-1])
        self._firsts.append(self.count)
        self._pieces.append(_Piece(self.count, span, seqs, int(found.ts_ns[0])))
        self.count += len(found)

    def rows(self, first: int, count: int) -> list[RecordBatch]:
        """Records first .. first + count - 1, as far as there are any, in one or more batches."""
        found = []
        end = min(first + count, self.count)
        while first < end:
            piece = bisect.bisect_right(self._firsts, first) - 1
            batch = self._load(piece)
            begin = first - self._pieces[piece].first
            part = batch.select(slice(begin, begin + end - first))
            if not len(part):
                break
            found.append(part)
            first += len(part)
        return found

    def _load(self, piece: int) -> RecordBatch:
        if piece in self._cache:
            self._cache.move_to_end(piece)
            return self._cache[piece]
        span = self._pieces[piece].span
        batch = next(self.dump.batches(_PIECE, partial=True, spans=[span]))
        if not self.selection.is_everything:
            batch = batch.select(self.selection.mask(batch))
        self._cache[piece] = batch
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return batch

    def number_at(self, segment: int, offset: int) -> int:
        """The number of the first selected record at or after a place in the dump."""
        place = (segment, offset)
        keys = [(piece.span.segment, piece.span.end or 0) for piece in self._pieces]
        at = bisect.bisect_right(keys, place)
        if at == len(self._pieces):
            return max(self.count - 1, 0)
        piece = self._pieces[at]
        if (piece.span.segment, piece.span.begin) >= place:
            return piece.first
        return piece.first + int(np.searchsorted(self._load(at).offset, offset))

    def number_of_seq(self, seq: int) -> int | None:
        """The number of the first selected record with this sequence number, so far as read."""
        for at, piece in enumerate(self._pieces):
            begin, end = piece.seqs
            if (seq - begin) % (1 << 32) > (end - begin) % (1 << 32):
                continue
            rows = np.flatnonzero(self._load(at).seq == seq)
            if len(rows):
                return piece.first + int(rows[0])
        return None

    def number_in(self, window: Window) -> int:
        """The number of the first selected record inside a window; else the last."""
        for at, piece in enumerate(self._pieces):
            batch = self._load(at)
            first = window.range.first
            rows = np.flatnonzero(window.axis(batch) >= (0 if first is None else first))
            if len(rows):
                return piece.first + int(rows[0])
        return max(self.count - 1, 0)

    def number_of_time(self, ts_ns: int) -> int:
        """The number of the first selected record at or after a firmware time; else the last."""
        for at, piece in enumerate(self._pieces):
            following = self._pieces[at + 1] if at + 1 < len(self._pieces) else None
            if following is not None and following.ts_ns < ts_ns:
                continue
            rows = np.flatnonzero(self._load(at).ts_ns >= ts_ns)
            if len(rows):
                return piece.first + int(rows[0])
        return max(self.count - 1, 0)

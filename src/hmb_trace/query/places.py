# SPDX-License-Identifier: Apache-2.0
"""Columns that say where a record stands: its file, its epoch, its time on the host's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.timeaxis import Axis, host_axis
from hmb_trace.errors import UsageError
from hmb_trace.exports.arrow import Maker, pyarrow


class _Places:
    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._pa = pyarrow()
        self._host: Axis | None = None
        self._has_host = True
        self._epochs: dict[int, int | None] = {}

    def offset(self, batch: RecordBatch) -> Any:
        return self._pa.array(np.ascontiguousarray(batch.offset))

    def file(self, batch: RecordBatch) -> Any:
        pa = self._pa
        return pa.DictionaryArray.from_arrays(np.zeros(len(batch), "i4"), pa.array([batch.path]))

    def epoch(self, batch: RecordBatch) -> Any:
        if batch.segment not in self._epochs:
            known = self._dump.segments[batch.segment].known
            self._epochs[batch.segment] = known.epoch if known else None
        epoch = self._epochs[batch.segment]
        return self._pa.array(
            np.full(len(batch), epoch or 0, "u4"),
            mask=None if epoch is not None else np.ones(len(batch), bool),
        )

    def host_ns(self, batch: RecordBatch) -> Any:
        if self._host is None and self._has_host:
            try:
                self._host = host_axis(self._dump)
            except UsageError:  # no clock pairs
                self._has_host = False
        if self._host is None:
            return self._pa.nulls(len(batch), self._pa.int64())
        return self._pa.array(self._host(batch))


def place_columns(dump: Dump) -> Mapping[str, Maker]:
    """offset, file, epoch (null where it is not known) and host_ns (null without clock pairs)."""
    pa, places = pyarrow(), _Places(dump)
    return {
        "epoch": (pa.uint32(), places.epoch),
        "host_ns": (pa.int64(), places.host_ns),
        "file": (pa.dictionary(pa.int32(), pa.string()), places.file),
        "offset": (pa.uint64(), places.offset),
    }

# SPDX-License-Identifier: Apache-2.0
"""Columns that say where a record stands: its file, its epoch, its time on the host's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.timeaxis import NO_VALUE, Places
from hmb_trace.exports.arrow import Maker, pyarrow


def place_columns(dump: Dump) -> Mapping[str, Maker]:
    """offset, file, epoch (null where it is not known) and host_ns (null without clock pairs)."""
    pa, places = pyarrow(), Places(dump)

    def epoch(batch: RecordBatch) -> Any:
        found = places.epochs(batch)
        return pa.array(found, pa.int64(), mask=found == NO_VALUE).cast(pa.uint32())

    def host_ns(batch: RecordBatch) -> Any:
        found = places.host_ns(batch)
        return pa.array(found, pa.int64(), mask=found == NO_VALUE)

    def file(batch: RecordBatch) -> Any:
        return pa.DictionaryArray.from_arrays(np.zeros(len(batch), "i4"), pa.array([batch.path]))

    def offset(batch: RecordBatch) -> Any:
        return pa.array(np.ascontiguousarray(batch.offset))

    return {
        "epoch": (pa.uint32(), epoch),
        "host_ns": (pa.int64(), host_ns),
        "file": (pa.dictionary(pa.int32(), pa.string()), file),
        "offset": (pa.uint64(), offset),
    }

# SPDX-License-Identifier: Apache-2.0
"""The .pccx container: read, write, pack dumps, convert between encodings.

with hmb_trace.pccx.read("trace.pccx") as file:
    file.header.trace.clock_mhz
    file.payload                      # uint8 array, mapped
    for batch in event_batches(file): # flatbuf and bincode
        batch.events["start_cycle"]
"""

from hmb_trace.pccx.container import ChecksumError, PccxError, PccxFile, read
from hmb_trace.pccx.events import (
    EVENT_DTYPE,
    EVENT_TYPES,
    EventBatch,
    event_batches,
    flat_events,
)
from hmb_trace.pccx.header import Arch, Header, HeaderError, Payload, Trace
from hmb_trace.pccx.inspection import inspect, statistics, verify
from hmb_trace.pccx.packing import PackOptions, PackResult, pack, unpack
from hmb_trace.pccx.writing import convert, write, write_events

__all__ = [
    "EVENT_DTYPE",
    "EVENT_TYPES",
    "Arch",
    "ChecksumError",
    "EventBatch",
    "Header",
    "HeaderError",
    "PackOptions",
    "PackResult",
    "Payload",
    "PccxError",
    "PccxFile",
    "Trace",
    "convert",
    "event_batches",
    "flat_events",
    "inspect",
    "pack",
    "read",
    "statistics",
    "unpack",
    "verify",
    "write",
    "write_events",
]

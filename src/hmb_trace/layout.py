# SPDX-License-Identifier: Apache-2.0
"""Constants and numpy dtypes of the formats (seed 003 sections 3 and 4; docs/format.md).

Importing this module compares every dtype with what the C compiler made of
include/uapi/linux/hmb_trace.h.
"""

from __future__ import annotations

import enum

import numpy as np

from hmb_trace._core import layout

ABI_VERSION = 1
RING_MAGIC = 0x54424D48
RECORD_MAGIC = 0x54434552
RECORD_AREA_OFF = 0x40
RING_SIZE_MIN = 32
RECORD_ALIGN = 8
RECORD_HDR_SIZE = 32
RECORD_MAX_PAYLOAD = 4064


class RingFlag(enum.IntFlag):
    """struct hmb_ring_hdr.flags; written by firmware only."""

    OVERFLOWED = 1
    FROZEN = 2


class RecordFlag(enum.IntFlag):
    """struct hmb_record_hdr.flags."""

    WRAP_MARKER = 1
    TRUNCATED = 2


RING_HDR_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u4"),
        ("ring_size", "<u4"),
        ("record_area_off", "<u4"),
        ("head", "<u8"),
        ("tail", "<u8"),
        ("flags", "<u4"),
        ("reserved0", "<u4"),
        ("reserved1", "<u8"),
        ("reserved2", "<u8"),
        ("reserved3", "<u8"),
    ]
)

RECORD_HDR_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("seq", "<u4"),
        ("ts_ns", "<u8"),
        ("opcode", "<u2"),
        ("cpu", "u1"),
        ("flags", "u1"),
        ("payload_len", "<u2"),
        ("reserved0", "<u2"),
        ("reserved1", "<u8"),
    ]
)


def align8(size: int) -> int:
    """size, rounded up to a multiple of 8 bytes."""
    return (size + 7) & ~7


def _check(name: str, dtype: np.dtype[np.void], known: dict[str, tuple[int, int]]) -> None:
    if known[f"sizeof {name}"][1] != dtype.itemsize:
        raise ImportError(f"{name}: C has {known[f'sizeof {name}'][1]} bytes, numpy {dtype}")
    for field, (kind, offset, *_) in (dtype.fields or {}).items():
        if known[f"{name}.{field}"] != (offset, kind.itemsize):
            raise ImportError(f"{name}.{field}: C says {known[f'{name}.{field}']}, numpy {offset}")


_check("hmb_ring_hdr", RING_HDR_DTYPE, layout())
_check("hmb_record_hdr", RECORD_HDR_DTYPE, layout())

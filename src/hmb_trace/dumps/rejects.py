# SPDX-License-Identifier: Apache-2.0
"""The rejects file: ring bytes that SPEC R4, R7, R9 and R10 keep out of the dump.

Entries back to back: a 40-byte header, the bytes, zeros up to a multiple of 8.

| offset | size | field |
|---|---|---|
| 0 | 4 | magic, "HREJ" |
| 4 | 2 | reason (hmb_reject_reason, libhmbtrace/api/journal.h) |
| 6 | 2 | reserved, zero |
| 8 | 4 | epoch |
| 12 | 4 | length of the bytes |
| 16 | 8 | ring cursor of the first byte |
| 24 | 8 | host clock, nanoseconds since 1970 |
| 32 | 8 | reserved, zero |
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hmb_trace._core import lib
from hmb_trace.errors import InvalidDataError, from_os_error

MAGIC = 0x4A455248
HEADER = struct.Struct("<IHHIIQQQ")
REASONS: dict[int, str] = {
    lib.HMB_REJECT_DAMAGED: "damaged",
    lib.HMB_REJECT_LYING_LENGTH: "lying-length",
    lib.HMB_REJECT_UNKNOWN_FLAGS: "unknown-flags",
    lib.HMB_REJECT_MARKER: "marker",
    lib.HMB_REJECT_OVERRUN: "overrun",
}


@dataclass(frozen=True, slots=True)
class Reject:
    """One entry; `offset` is its place in the rejects file, `cursor` that in the ring."""

    offset: int
    reason: str
    epoch: int
    cursor: int
    host_ns: int
    data: bytes


def pack(reason: int, epoch: int, cursor: int, host_ns: int, data: bytes) -> bytes:
    """One entry as it stands in the file, padding included."""
    header = HEADER.pack(MAGIC, reason, 0, epoch, len(data), cursor, host_ns, 0)
    return header + data + bytes(-len(data) % 8)


def _entry(file: BinaryIO, offset: int, name: str) -> Reject | None:
    header = file.read(HEADER.size)
    if not header:
        return None
    if len(header) < HEADER.size:
        raise InvalidDataError(f"{name}: ends inside an entry's header at byte {offset}")
    magic, reason, _, epoch, length, cursor, host_ns, _ = HEADER.unpack(header)
    if magic != MAGIC:
        raise InvalidDataError(
            f"{name}: magic is {magic:#010x} at byte {offset}, expected {MAGIC:#010x} ('HREJ')"
        )
    data = file.read(length)
    padding = -length % 8
    if len(data) < length or len(file.read(padding)) < padding:
        raise InvalidDataError(f"{name}: ends inside an entry at byte {offset}")
    return Reject(offset, REASONS.get(reason, f"reason-{reason}"), epoch, cursor, host_ns, data)


def read(path: str | os.PathLike[str]) -> Iterator[Reject]:
    """The entries of a rejects file, in order.

    Raises:
        NoInputError, PermissionDeniedError, InputOutputError: as the system says.
        InvalidDataError: after the whole entries before it: no rejects file, or a torn one.
    """
    name = os.fspath(path)
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - only the opening may map OSError
    except OSError as error:
        raise from_os_error(error, f"cannot read {name}") from error
    with file:
        offset = 0
        while (entry := _entry(file, offset, name)) is not None:
            yield entry
            offset += HEADER.size + len(entry.data) + -len(entry.data) % 8

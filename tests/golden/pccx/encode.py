# SPDX-License-Identifier: Apache-2.0
"""An encoder of .pccx files that shares no line with the library: struct and json only.

Run it to write the golden files again: python -m tests.golden.pccx.encode
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TYPES = ("UNKNOWN", "MAC_COMPUTE", "DMA_READ", "DMA_WRITE", "SYSTOLIC_STALL", "BARRIER_SYNC")

# (core_id, start_cycle, duration, event_type or its id, api_name)
Event = tuple[int, int, int, str | int, str | None]


def fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def container(
    payload: bytes,
    encoding: str,
    *,
    checksum: Any = "number",
    version: str = "v0.4.0-contention-aware",
    trace: tuple[int, int, int] = (500, 32, 1000),
    **extra: Any,
) -> bytes:
    sums = {"number": fnv(payload), "hex": f"0x{fnv(payload):016x}", "none": None}
    header = {
        "pccx_lab_version": version,
        "arch": {"mac_dims": [32, 32], "isa_version": "1.1", "peak_tops": 2.05},
        "trace": dict(zip(("cycles", "cores", "clock_mhz"), trace, strict=True)),
        "payload": {
            "encoding": encoding,
            "byte_length": len(payload),
            "checksum_fnv64": sums.get(checksum, checksum),
        },
        "format_minor": 1,
        **extra,
    }
    return file_of(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), payload)


def file_of(
    header: bytes,
    payload: bytes = b"",
    *,
    magic: bytes = b"PCCX",
    major: int = 1,
    minor: int = 1,
    reserved: bytes = b"\0\0",
    length: int | None = None,
) -> bytes:
    size = len(header) if length is None else length
    return magic + bytes([major, minor]) + reserved + struct.pack("<Q", size) + header + payload


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def bincode_event(event: Event) -> bytes:
    core, start, duration, name, api = event
    assert isinstance(name, str)
    option = b"\0" if api is None else b"\1" + text(api)
    return struct.pack("<IQQ", core, start, duration) + text(name) + option


def bincode(total_cycles: int, events: Sequence[Event]) -> bytes:
    head = struct.pack("<QQ", total_cycles, len(events))
    return head + b"".join(bincode_event(event) for event in events)


def flatbuf(events: Sequence[Event], trailer: Sequence[tuple[int, str]] | None = None) -> bytes:
    rows = []
    for core, start, duration, name, _ in events:
        number = TYPES.index(name) if isinstance(name, str) else name
        rows.append(struct.pack("<IQQI", core, start, duration, number))
    data = b"".join(rows)
    if trailer is not None:
        data += b"PCC2" + struct.pack("<I", len(trailer))
        for index, name in trailer:
            data += struct.pack("<IH", index, len(name.encode())) + name.encode()
    return data


PLAIN: list[Event] = [
    (0, 0, 100, "MAC_COMPUTE", None),
    (1, 5, 2**64 - 6, "DMA_READ", None),
    (255, 2**32, 0, "DMA_WRITE", None),
    (2**32 - 1, 2**63, 1, "SYSTOLIC_STALL", None),
    (3, 2**64 - 1, 0, "BARRIER_SYNC", None),
    (7, 2**64 - 1, 0, "UNKNOWN", None),
]
NAMED: list[Event] = [
    (0, 0, 100, "MAC_COMPUTE", None),
    (0, 400, 42, "API_CALL", "uca_init"),
    (1, 500, 0, "이벤트", ""),
]
NUMBERED: list[Event] = [(0, 1, 2, 6, None), (0, 2, 2, 7, None), (4, 9, 1, 2**31, None)]

GOLDEN = {
    "flatbuf.pccx": container(flatbuf(PLAIN), "flatbuf"),
    "flatbuf-empty.pccx": container(b"", "flatbuf"),
    "flatbuf-numbered.pccx": container(flatbuf(NUMBERED), "flatbuf", checksum="hex"),
    "flatbuf-trailer.pccx": container(
        flatbuf(NUMBERED, [(0, "uca_init"), (2, "이름")]), "flatbuf", checksum="none"
    ),
    "bincode.pccx": container(bincode(500, PLAIN), "bincode"),
    "bincode-named.pccx": container(bincode(500, NAMED), "bincode", checksum="hex"),
    "bincode-empty.pccx": container(bincode(500, []), "bincode", checksum="none"),
    "raw.pccx": container(bytes(range(256)), "raw"),
}


if __name__ == "__main__":
    for file, data in GOLDEN.items():
        (HERE / file).write_bytes(data)

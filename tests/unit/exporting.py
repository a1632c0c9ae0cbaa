# SPDX-License-Identifier: Apache-2.0
"""Records and a catalog that exercise every export, and what must come out of them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog

CATALOG = Catalog.from_dict(
    {
        "name": "export",
        "event": [
            {
                "opcode": 1,
                "name": "read_begin",
                "kind": "begin",
                "pair": "read_end",
                "key": "id",
                "track": "die",
                "field": [
                    {"name": "id", "type": "u32"},
                    {"name": "die", "type": "u8", "offset": 6},
                    {"name": "lba", "type": "u64", "offset": 7},
                ],
            },
            {
                "opcode": 2,
                "name": "read_end",
                "kind": "end",
                "pair": "read_begin",
                "key": "id",
                "field": [
                    {"name": "id", "type": "u32"},
                    {"name": "status", "type": "i16", "enum": {"0": "OK", "-5": 'bad "x"'}},
                ],
            },
            {
                "opcode": 3,
                "name": "temperature",
                "kind": "counter",
                "value": "celsius",
                "field": [{"name": "celsius", "type": "f32", "unit": "C"}],
            },
            {
                "opcode": 4,
                "name": "erase",
                "kind": "complete",
                "duration": "us",
                "duration_unit": "us",
                "track": "die",
                "field": [
                    {"name": "us", "type": "u16"},
                    {"name": "die", "type": "u8"},
                    {"name": "tag", "type": "char[4]"},
                    {"name": "raw", "type": "bytes[2]"},
                    {"name": "x", "type": "f64"},
                ],
            },
            {"opcode": 5, "name": "varying", "field": [{"name": "n", "type": "u16"}]},
        ],
    }
)
_BEGIN, _END, _ERASE = struct.Struct("<I2xBQ"), struct.Struct("<Ih"), struct.Struct("<HB4s2sd")


@dataclass
class Row:
    """One record as the tests know it."""

    seq: int
    ts_ns: int
    opcode: int
    cpu: int
    payload: bytes
    fields: dict[str, Any]


def rows(count: int, seed: int = 1) -> list[Row]:
    """Records of all kinds in the order of time; no gaps."""
    rng = random.Random(seed)
    made = []
    open_ids: list[int] = []
    for i in range(count):
        opcode = rng.choice([1, 2, 3, 4, 5, 9])
        if opcode == 2 and not open_ids:
            opcode = 1
        made.append(_row(i, 1000 + 10 * i + rng.randrange(10), opcode, rng, open_ids))
    return made


def _row(seq: int, ts_ns: int, opcode: int, rng: random.Random, open_ids: list[int]) -> Row:
    fields: dict[str, Any] = {}
    payload = b""
    if opcode == 1:
        fields = {"id": seq, "die": rng.randrange(4), "lba": rng.randrange(1 << 64)}
        payload = _BEGIN.pack(*fields.values())
        open_ids.append(seq)
    elif opcode == 2:
        fields = {"id": open_ids.pop(rng.randrange(len(open_ids))), "status": rng.choice([0, -5])}
        payload = _END.pack(*fields.values())
    elif opcode == 3:
        fields = {"celsius": rng.randrange(400) / 4}
        payload = struct.pack("<f", fields["celsius"])
    elif opcode == 4:
        fields = {"us": rng.randrange(1 << 16), "die": rng.randrange(4), "tag": b"ab\0\0"}
        fields |= {"raw": rng.randbytes(2), "x": rng.random()}
        payload = _ERASE.pack(*fields.values())
        fields["tag"] = "ab"
    elif opcode == 5:
        fields = {"n": rng.randrange(1 << 16)}
        payload = struct.pack("<H", fields["n"]) + rng.randbytes(rng.randrange(5))
    else:
        payload = rng.randbytes(rng.randrange(20))
    return Row(seq, ts_ns, opcode, rng.randrange(4), payload, fields)


def record(row: Row) -> bytes:
    """The dump bytes of a row."""
    return testing.record(row.seq, row.payload, ts_ns=row.ts_ns, opcode=row.opcode, cpu=row.cpu)


def write_set(folder: Path, made: list[Row], segments: int = 3) -> list[str]:
    """A dump set with a wrap marker in every segment; returns the paths."""
    folder.mkdir(exist_ok=True)
    size = -(-len(made) // segments)
    paths = []
    for number in range(segments):
        part = made[number * size : (number + 1) * size]
        data = [record(row) for row in part]
        middle = part[len(part) // 2]
        data.insert(len(part) // 2, testing.marker(middle.seq, ts_ns=middle.ts_ns))
        path = folder / f"dev-{number:06d}-20260101T000000Z.bin"
        path.write_bytes(testing.dump(data))
        paths.append(str(path))
    return paths

# SPDX-License-Identifier: Apache-2.0
"""Round trips of every encoding, and no byte that can crash the reader (P3-P6)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmb_trace import pccx
from hmb_trace.errors import HmbTraceError
from hmb_trace.fnv import fnv1a_64
from hmb_trace.pccx import EVENT_DTYPE, Arch, EventBatch, Header, Payload, Trace
from hmb_trace.pccx.header import encode_header, parse_header
from hmb_trace.testing import record
from tests.golden.pccx.encode import GOLDEN

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | U64 | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KNOWN = {"mac_dims", "isa_version", "peak_tops", "cycles", "cores", "clock_mhz", "encoding"}
KNOWN |= {"byte_length", "checksum_fnv64", "pccx_lab_version", "arch", "trace", "payload"}
EXTRA = st.dictionaries(TEXT.filter(lambda k: k not in KNOWN | {"format_minor"}), JSON, max_size=2)
FAST = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def headers(draw: st.DrawFn) -> Header:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    arch = Arch(draw(st.tuples(U32, U32)), draw(TEXT), draw(finite), draw(EXTRA))
    trace = Trace(draw(U64), draw(U32), draw(U32), draw(EXTRA))
    payload = Payload(draw(TEXT), draw(U64), draw(st.none() | U64), draw(EXTRA))
    return Header(draw(TEXT), arch, trace, payload, draw(st.integers(0, 255)), draw(EXTRA))


@FAST
@given(headers(), st.sampled_from(["number", "hex"]))
def test_header_p3_round_trip(header: Header, style: str) -> None:
    text = encode_header(header, style)
    again, _ = parse_header(text)
    assert again == header
    assert encode_header(again, style) == text


EVENTS = st.lists(
    st.tuples(U32, U64, U64, st.integers(0, 9) | U32.filter(lambda n: n < 2**32 - 1)), max_size=30
)


def batch_of(rows: list[Any]) -> EventBatch:
    return EventBatch(np.array(rows, EVENT_DTYPE) if rows else np.empty(0, EVENT_DTYPE))


def read_back(path: Path, size: int) -> tuple[list[Any], dict[int, str], dict[int, str]]:
    rows: list[Any] = []
    types: dict[int, str] = {}
    names: dict[int, str] = {}
    with pccx.read(path) as file:
        assert file.checksum() == "ok"
        for batch in pccx.event_batches(file, size):
            types |= {row + len(rows): text for row, text in batch.type_names.items()}
            names |= {row + len(rows): text for row, text in batch.api_names.items()}
            rows += batch.events.tolist()
    return rows, types, names


@FAST
@given(EVENTS, st.integers(1, 40))
def test_flatbuf_p6_round_trip(rows: list[Any], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pccx"
        pccx.write_events(path, batch_of(rows), "flatbuf")
        found, _, _ = read_back(path, size)
    assert found == sorted(rows, key=lambda row: row[1])


@FAST
@given(EVENTS, st.integers(1, 40), st.data())
def test_bincode_p6_round_trip(rows: list[Any], size: int, data: st.DataObject) -> None:
    batch = batch_of(rows)
    where = st.integers(0, max(0, len(rows) - 1))
    if rows:
        batch.api_names = data.draw(st.dictionaries(where, TEXT, max_size=5))
        free = TEXT.filter(lambda text: not text.startswith("EVENT_"))
        free = free.filter(lambda text: text not in pccx.EVENT_TYPES)
        batch.type_names = data.draw(st.dictionaries(where, free, max_size=5))
        for row in batch.type_names:
            batch.events["event_type_id"][row] = 2**32 - 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pccx"
        pccx.write_events(path, batch, "bincode")
        found = read_back(path, size)
    assert found == (batch.events.tolist(), batch.type_names, batch.api_names)


@FAST
@given(st.lists(st.tuples(st.binary(max_size=40), U64, st.integers(0, 65535)), max_size=20))
def test_raw_p6_round_trip(rows: list[tuple[bytes, int, int]]) -> None:
    dump = b"".join(record(i, p, ts_ns=t, opcode=o) for i, (p, t, o) in enumerate(rows))
    with tempfile.TemporaryDirectory() as folder:
        source, out, back = (Path(folder) / name for name in ("x.bin", "x.pccx", "y.bin"))
        source.write_bytes(dump)
        header = pccx.pack([source], out).header
        assert header.payload.checksum_fnv64 == fnv1a_64(dump)
        assert pccx.inspect(out)["events"] == len(rows)
        pccx.unpack(out, back)
        assert back.read_bytes() == dump


@settings(FAST, max_examples=300)
@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_reader_survives_any_damage(name: str, data: st.DataObject) -> None:
    damaged = bytearray(GOLDEN[name])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] + data.draw(st.binary(max_size=9))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pccx"
        path.write_bytes(damaged)
        try:
            pccx.inspect(path)
            with pccx.read(path) as file:
                for batch in pccx.event_batches(file, 3):
                    [batch.type_name(row) for row in range(len(batch))]
        except HmbTraceError as error:
            assert "\n" not in str(error)

# SPDX-License-Identifier: Apache-2.0
"""The JSON header: what is read, what is refused and by which path, what is written (P1, P3)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import pccx
from hmb_trace.pccx.header import (
    HeaderError,
    encode_header,
    parse_header,
    reference_float,
)

BASE: dict[str, Any] = {
    "pccx_lab_version": "v",
    "arch": {"mac_dims": [32, 32], "isa_version": "1.1", "peak_tops": 2.05},
    "trace": {"cycles": 500, "cores": 32, "clock_mhz": 1000},
    "payload": {"encoding": "raw", "byte_length": 0, "checksum_fnv64": None},
    "format_minor": 1,
}
GONE = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(BASE))
    *parents, key = path.split(".")
    at = made
    for parent in parents:
        at = at[parent]
    if value is GONE:
        del at[key]
    else:
        at[key] = value
    return made


def parse(made: object) -> pccx.Header:
    return parse_header(json.dumps(made).encode())[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (2**64 - 1, 2**64 - 1),
        ("0xcbf29ce484222325", 0xCBF29CE484222325),
        ("0xcbf29ce4842223", 0xCBF29CE4842223),
        ("cbf29ce484222325", 0xCBF29CE484222325),
        ("CBF29CE484222325", 0xCBF29CE484222325),
        ("0", 0),
        ("12", 0x12),
        (None, None),
        (GONE, None),
    ],
)
def test_checksum_p1_forms_read(value: Any, expected: int | None) -> None:
    assert parse(changed("payload.checksum_fnv64", value)).payload.checksum_fnv64 == expected


@pytest.mark.parametrize(
    "value", [-1, 2**64, 1.0, True, "", "0x", "xyz", "0x" + "1" * 17, " 12", "1_2", [], {}]
)
def test_checksum_p1_other_forms_are_refused(value: Any) -> None:
    with pytest.raises(HeaderError, match=r"payload\.checksum_fnv64"):
        parse(changed("payload.checksum_fnv64", value))


@pytest.mark.parametrize(
    ("style", "expected"), [("number", b"255"), ("hex", b'"0x00000000000000ff"'), ("none", b"null")]
)
def test_checksum_p1_forms_written(style: str, expected: bytes) -> None:
    made = parse(changed("payload.checksum_fnv64", 255))
    assert b'"checksum_fnv64":' + expected + b"}" in encode_header(made, style)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pccx_lab_version", GONE),
        ("pccx_lab_version", 1),
        ("pccx_lab_version", None),
        ("arch", None),
        ("arch", []),
        ("arch.mac_dims", GONE),
        ("arch.mac_dims", [1]),
        ("arch.mac_dims", [1, 2, 3]),
        ("arch.mac_dims", "ab"),
        ("arch.isa_version", GONE),
        ("arch.isa_version", 1.1),
        ("arch.peak_tops", "2"),
        ("arch.peak_tops", True),
        ("trace", 1),
        ("trace.cycles", GONE),
        ("trace.cycles", 1.0),
        ("trace.cycles", -1),
        ("trace.cycles", 2**64),
        ("trace.cycles", True),
        ("trace.cycles", None),
        ("trace.cores", GONE),
        ("trace.cores", 2**32),
        ("trace.clock_mhz", "1000"),
        ("payload", "x"),
        ("payload.encoding", GONE),
        ("payload.encoding", 3),
        ("payload.byte_length", GONE),
        ("payload.byte_length", 2**64),
        ("payload.byte_length", 1e3),
        ("payload.byte_length", -1),
        ("format_minor", 256),
        ("format_minor", None),
    ],
)
def test_header_p3_wrong_field_is_named_by_its_path(path: str, value: Any) -> None:
    with pytest.raises(HeaderError, match=path.replace(".", r"\.")) as caught:
        parse(changed(path, value))
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(("index", "value"), [(0, 1.5), (1, -1), (1, 2**32), (0, None)])
def test_header_p3_mac_dims_are_named_by_index(index: int, value: Any) -> None:
    dims: list[Any] = [1, 2]
    dims[index] = value
    with pytest.raises(HeaderError, match=rf"arch\.mac_dims\[{index}\]"):
        parse(changed("arch.mac_dims", dims))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{} x",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b"{/* no */}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
)
def test_header_p3_what_is_no_object_is_one_error(text: bytes) -> None:
    with pytest.raises(HeaderError) as caught:
        parse_header(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["-0", "1.0", "1e3"])
def test_header_p3_numbers_that_are_no_integers_for_the_reference(number: str) -> None:
    text = json.dumps(BASE).replace('"cycles": 500', f'"cycles": {number}')
    with pytest.raises(HeaderError, match=r"trace\.cycles"):
        parse_header(text.encode())


def test_header_p3_key_found_twice() -> None:
    text = json.dumps(BASE).replace('"cycles": 500', '"cycles": 500, "cycles": 500')
    with pytest.raises(HeaderError, match=r"trace\.cycles: found twice"):
        parse_header(text.encode())
    text = json.dumps(BASE)[:-1] + ', "x": 1, "x": 2}'  # nobody's key
    assert parse_header(text.encode())[0].extra == {"x": 2}


def test_header_p3_absent_objects_and_defaults() -> None:
    made = parse({"pccx_lab_version": "v"})
    assert (made.arch.mac_dims, made.arch.isa_version, made.arch.peak_tops) == ((0, 0), "", 0.0)
    assert (made.trace.cycles, made.trace.cores, made.trace.clock_mhz) == (0, 0, 1000)
    assert (made.payload.encoding, made.payload.byte_length) == ("", 0)
    assert made.format_minor == 0
    assert parse(changed("trace.clock_mhz", GONE)).trace.clock_mhz == 1000
    assert parse(changed("arch.peak_tops", GONE)).arch.peak_tops == 0.0


def test_header_p3_unknown_keys_are_kept_in_place() -> None:
    made = changed("arch.sram_kib", 512)
    made["trace"]["seed"] = {"a": [1, 2.5, None]}
    made["payload"]["zip"] = "no"
    made["생성"] = "도구"
    header = parse(made)
    assert json.loads(encode_header(header)) == made
    assert list(json.loads(encode_header(header)))[:5] == list(BASE)


def test_header_p3_white_space_around_it_is_allowed() -> None:
    assert parse_header(b"  \n" + json.dumps(BASE, indent=3).encode() + b" " * 100)[0].extra == {}


def test_header_p3_written_like_the_reference_writer() -> None:
    expected = json.dumps(BASE, separators=(",", ":")).encode()
    assert encode_header(parse(BASE)) == expected
    strange = changed("pccx_lab_version", 'q"\\/\b\f\n\r\t\x00\x1f\x7fé한😀')
    text = encode_header(parse(strange)).decode()
    assert '"q\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7fé한😀"' in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (2.0, "2.0"),
        (2.05, "2.05"),
        (65.54, "65.54"),
        (0.001, "0.001"),
        (0.00001, "0.00001"),
        (0.000001, "1e-6"),
        (1.5e-7, "1.5e-7"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (1.25e17, "1.25e17"),
        (123456789012345680.0, "1.2345678901234568e17"),
        (-3.25, "-3.25"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
    ],
)
def test_header_p3_floats_as_the_reference_prints_them(value: float, expected: str) -> None:
    assert reference_float(value) == expected
    assert float(expected) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_header_floats_must_be_finite(value: float) -> None:
    with pytest.raises(HeaderError, match="finite"):
        reference_float(value)


def test_header_p3_values_that_json_cannot_hold(tmp_path: Path) -> None:
    made = parse(BASE)
    made.extra["x"] = object()
    out = tmp_path / "x.pccx"
    with pytest.raises(HeaderError, match="JSON"):
        pccx.write(out, b"", made)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("item", [b"{},", b"[],", b"1,"])
def test_a_header_of_millions_of_values_is_refused_at_once(item: bytes) -> None:
    data = b'{"pccx_lab_version":"x","a":[' + item * (4 << 20) + b"1]}"
    begin = time.monotonic()
    with pytest.raises(HeaderError, match="values, expected at most 1048576"):
        parse_header(data)
    assert time.monotonic() - begin < 1

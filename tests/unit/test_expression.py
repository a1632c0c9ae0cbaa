# SPDX-License-Identifier: Apache-2.0
"""Expressions: labels, exact integers, times, and errors that say what was meant."""

from __future__ import annotations

import io
import logging
import operator
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import open_dump
from hmb_trace.errors import UsageError
from hmb_trace.query.expression import Expression

_STATUS = {"0": "OK", "1": "FAIL"}
CATALOG = Catalog.from_dict(
    {
        "name": "t",
        "event": [
            {"opcode": 1, "name": "read", "field": [{"name": "lba", "type": "u64"}]},
            {
                "opcode": 2,
                "name": "read_done",
                "field": [{"name": "status", "type": "u8", "enum": _STATUS}],
            },
            {
                "opcode": 3,
                "name": "erase_done",
                "field": [{"name": "status", "type": "u8", "enum": {"1": "PASS", "2": "FAIL"}}],
            },
            {
                "opcode": 4,
                "name": "slow",
                "field": [
                    {"name": "busy", "type": "u32", "unit": "us"},
                    {"name": "took_ns", "type": "u32"},
                    {"name": "plain", "type": "u32"},
                    {"name": "signed", "type": "i64"},
                ],
            },
            {
                "opcode": 5,
                "name": "odd",
                "field": [
                    {"name": "offset", "type": "u32"},
                    {"name": "uid", "type": "bytes[2]"},
                    {"name": "x", "type": "char[4]"},
                ],
            },
            {"opcode": 6, "name": "other", "field": [{"name": "x", "type": "u32"}]},
        ],
    }
)


def batch_of(*records: tuple[int, bytes]) -> RecordBatch:
    made = [testing.record(i, payload, opcode=op) for i, (op, payload) in enumerate(records)]
    return next(open_dump(io.BytesIO(testing.dump(made))).batches())


def rows(text: str, batch: RecordBatch) -> list[int]:
    return [int(s) for s in batch.seq[Expression(text, CATALOG).mask(batch)]]


ANSWERS = batch_of((2, b"\0"), (2, b"\1"), (3, b"\1"), (3, b"\2"), (1, bytes(8)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('status == "FAIL"', [1, 3]),
        ('status == "OK"', [0]),
        ('status != "OK"', [1, 2, 3]),
        ('status in ("OK", "PASS")', [0, 2]),
        ('status not in ("OK", "PASS")', [1, 3]),
        ('name == "read_done" and status != "OK"', [1]),
    ],
)
def test_labels_of_events_that_share_a_field_name(text: str, expected: list[int]) -> None:
    assert rows(text, ANSWERS) == expected


def test_a_label_that_no_event_has_is_an_error() -> None:
    with pytest.raises(UsageError, match="no label 'NOPE'; it has OK, FAIL, PASS"):
        Expression('status == "NOPE"', CATALOG)


def _lbas(*values: int) -> RecordBatch:
    return batch_of(*((1, struct.pack("<Q", value)) for value in values))


@pytest.mark.parametrize(
    "text",
    [
        "lba - 2 < 0",
        "-lba < 0",
        "~lba < 0",
        "lba & 0xF000000000000000 != 0",
        "lba * lba > 0",
        "lba << 60 > lba",
        "(lba + 1) - 1 == lba",
        "lba - 0x10000000000000000 < 0",
        "(lba | -1) == -1",
        "lba // 3 * 3 + lba % 3 == lba",
        "lba > 1.5",
        "lba < 18446744073709551614.5",
        "lba >> 70 == 0",
    ],
)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_u64_is_exact_whatever_else_the_batch_holds(text: str, values: list[int]) -> None:
    with_neighbours = [1, *values, 2**64 - 1]
    expected = [i for i, lba in enumerate(with_neighbours) if eval(text, {"lba": lba})]
    assert rows(text, _lbas(*with_neighbours)) == expected
    for i, value in enumerate(with_neighbours):
        assert rows(text, _lbas(value)) == ([0] if i in expected else [])


@given(
    st.sampled_from(["+", "-", "*", "//", "%", "&", "|", "^"]),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    st.integers(-(2**70), 2**70),
)
@settings(max_examples=150, deadline=None)
def test_arithmetic_equals_python(sign: str, values: list[int], other: int) -> None:
    python: dict[str, Any] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
        "&": operator.and_,
        "|": operator.or_,
        "^": operator.xor,
    }
    batch = batch_of(*((4, bytes(12) + struct.pack("<q", value)) for value in values))
    for i, value in enumerate(values):
        if sign in ("//", "%") and other == 0:
            assert rows(f"signed {sign} 0 == 0", batch) == []
            continue
        result = python[sign](value, other)
        assert i in rows(f"signed {sign} ({other}) == {result}", batch)


def test_no_value_is_false() -> None:
    batch = _lbas(0, 4)
    assert rows("8 // lba == 2", batch) == [1]
    assert rows("8 // lba != 2", batch) == []
    assert rows("8 / lba > 0", batch) == [1]
    assert rows("lba << 99999999999999 > 0", batch) == []


def test_times_have_units() -> None:
    batch = batch_of((4, struct.pack("<IIIq", 2000, 1_500_000, 3, 0)))
    assert rows("busy > 1.5ms", batch) == [0]
    assert rows("busy == 2ms", batch) == [0]
    assert rows("took_ns == 1.5ms and busy == 2000", batch) == [0]
    assert rows("ts_ns < 1h", batch) == [0]
    with pytest.raises(UsageError, match="plain has no unit in the catalog"):
        Expression("plain > 1ms", CATALOG)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('status = "FAIL"', "found '=', expected '=='"),
        ("lba > 1 && cpu == 0", "found '&&', expected 'and'"),
        ('"a" * 9999999999 == "b"', "text can be compared, not calculated with"),
        ('name + "a" == "b"', "text can be compared"),
        ("name > 3", "name is text"),
        ('cpu == "0"', "cpu is a number"),
        ("  ", "is empty"),
        ("lba > " + "9" * 5000, "expression"),
        ('uid == "xy"', "hexadecimal"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Expression(text, CATALOG)
    assert "\n" not in str(caught.value)


def test_fields_that_share_a_name_with_the_record_or_with_each_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = batch_of((5, struct.pack("<I2s4s", 77, b"\xab\xcd", b"ab\0c")), (6, b"\7\0\0\0"))
    assert rows("payload_offset == 77", batch) == [0]
    assert rows('uid == "abcd"', batch) == [0]
    assert rows('x == "ab"', batch) == [0]
    assert rows("x == 7", batch) == [1]
    assert rows("other_x == 7", batch) == [1]
    with caplog.at_level(logging.WARNING, "hmb_trace"):
        assert rows("offset == 77", batch) == []
    assert "the payload field of that name is payload_offset" in caplog.text


def test_an_event_name_that_is_not_in_the_catalog_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "hmb_trace"):
        Expression('name == "Erase_Done"', CATALOG)
    assert "did you mean 'erase_done'?" in caplog.text

# SPDX-License-Identifier: Apache-2.0
"""hmb_trace.testing: the builders lay out exactly the bytes they promise."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from hmb_trace.errors import UsageError
from hmb_trace.layout import RECORD_HDR_DTYPE, RING_HDR_DTYPE
from hmb_trace.testing import RingBuilder, dump, marker, record, ring_header, without_tail


def test_ring_header_has_every_field_in_its_place() -> None:
    raw = ring_header(512, head=24, tail=8, flags=3, reserved=(1, 2, 3, 4))
    (found,) = np.frombuffer(raw, RING_HDR_DTYPE)
    expected = (0x54424D48, 1, 512, 0x40, 24, 8, 3, 1, 2, 3, 4)
    assert found.item() == expected


def test_record_has_every_field_in_its_place() -> None:
    raw = record(
        7, b"abc", ts_ns=9, opcode=10, cpu=11, flags=2, reserved0=12, reserved1=13, padding=0xFF
    )
    (found,) = np.frombuffer(raw[:32], RECORD_HDR_DTYPE)
    assert found.item() == (0x54434552, 7, 9, 10, 11, 2, 3, 12, 13)
    assert raw[32:] == b"abc" + b"\xff" * 5


def test_record_can_lie() -> None:
    assert struct.unpack_from("<H", record(0, b"", payload_len=4065), 20) == (4065,)


def test_marker_is_a_header_with_bit_0() -> None:
    raw = marker(3, ts_ns=5, flags=0x80)
    assert (len(raw), raw[19], raw[20:22]) == (32, 0x81, b"\0\0")


def test_dump_is_records_and_nothing_else() -> None:
    assert dump([record(0), record(1, b"x")]) == record(0) + record(1, b"x")


@pytest.mark.parametrize(("size", "cursor"), [(31, 0), (48, 0), (16, 0), (64, 4)])
def test_builder_refuses_rings_that_cannot_be(size: int, cursor: int) -> None:
    with pytest.raises(UsageError):
        RingBuilder(size, cursor=cursor)


def test_builder_says_when_the_ring_is_full() -> None:
    ring = RingBuilder(64)
    ring.append(bytes(32))
    with pytest.raises(UsageError, match="ring full"):
        ring.append()
    ring.consume()
    assert ring.append() == 64


def test_builder_counts_the_skipped_bytes_as_used_r3() -> None:
    ring = RingBuilder(128)
    ring.append(bytes(56))
    assert not ring.fits(32)
    ring.consume(64)
    assert not ring.fits(72)
    assert ring.fits(0)


@pytest.mark.parametrize(
    ("style", "at", "seqs"),
    [("marker", 128, [0, 1, 1]), ("seq-marker", 128, [0, 1, 2]), ("straddle", 72, [0, 1])],
)
def test_builder_wrap_styles_r3(style: str, at: int, seqs: list[int]) -> None:
    ring = RingBuilder(128, wrap=style)  # type: ignore[arg-type] # parametrised
    ring.append(bytes(40))
    ring.consume()
    assert ring.append(bytes(32)) == at
    found = bytes(ring.expected_dump)
    assert [struct.unpack_from("<I", found, i + 4)[0] for i in (0, 72, 104)[: len(seqs)]] == seqs


def test_builder_writes_a_file_that_is_the_region(tmp_path: Path) -> None:
    ring = RingBuilder(64, flags=2)
    ring.append(b"abc")
    path = ring.write(tmp_path / "ring")
    assert path.read_bytes() == bytes(ring.region())
    assert len(ring.region()) == 128


def test_without_tail_hides_only_the_tail() -> None:
    one, two = RingBuilder(64), RingBuilder(64)
    two.tail = 8
    assert without_tail(one.region()) == without_tail(two.region())
    two.flags = 1
    assert without_tail(one.region()) != without_tail(two.region())

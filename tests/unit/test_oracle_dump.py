# SPDX-License-Identifier: Apache-2.0
"""The oracle's dump reader against accounts written down by hand (R12, R13, rule 5)."""

from __future__ import annotations

import pytest

from hmb_trace.testing import dump, marker, record
from tests.oracle.dump import read_dump
from tests.oracle.sequence import Gap


def test_empty_dump_is_complete() -> None:
    account = read_dump(b"")
    assert (account.complete, account.records, account.offset) == (True, [], 0)


def test_records_and_markers_are_told_apart_r13() -> None:
    account = read_dump(dump([record(0, b"abc", flags=2), marker(1), record(1)]))
    assert [entry.payload for entry in account.records] == [b"abc", b""]
    assert [entry.offset for entry in account.markers] == [40]
    assert (account.truncated, account.gaps, account.offset) == (1, [], 104)


def test_sequence_r12_gap_duplicate_reset_wrap() -> None:
    seqs = [0xFFFFFFFE, 0xFFFFFFFF, 0, 0, 4, 1, 2]
    account = read_dump(dump(record(seq) for seq in seqs))
    assert account.gaps == [Gap(0, 4, 3, 0)]
    assert (account.lost, account.duplicates, account.sequence_resets) == (3, 1, 1)


@pytest.mark.parametrize("cut", range(1, 72))
def test_cut_r13_is_an_error_at_the_record_that_is_cut(cut: int) -> None:
    whole = record(0) + record(1, b"abc")
    account = read_dump(whole[:cut])
    if cut == 32:
        assert account.complete
        return
    expected = "header" if cut < 32 or cut < 64 else "payload"
    assert (account.error, account.offset) == (expected, 0 if cut < 32 else 32)
    assert len(account.records) == (cut > 32)


@pytest.mark.parametrize(
    ("bad", "error"), [(record(1, magic=1), "magic"), (record(1, payload_len=4065), "payload_len")]
)
def test_garbage_r13_is_an_error_where_it_begins(bad: bytes, error: str) -> None:
    account = read_dump(record(0) + bad + record(2))
    assert (account.error, account.offset, len(account.records)) == (error, 32, 1)


def test_markers_r3_4_several_between_two_records_consume_one_seq_each() -> None:
    account = read_dump(dump([record(5), marker(6), marker(8), record(11), record(12)]))
    assert account.gaps == [Gap(5, 11, 3, 0)]


def test_a_break_r12_that_nothing_follows_is_unconfirmed() -> None:
    account = read_dump(dump([record(5), marker(6), marker(8), record(11)]))
    assert account.gaps == [Gap(5, 11, 3, 0, confirmed=False)]


def test_markers_r3_4_that_lead_past_the_next_record_say_nothing() -> None:
    account = read_dump(dump([record(5), marker(6), marker(900), record(7), marker(0), record(8)]))
    assert account.gaps == [Gap(5, 7, 1, 0)]
    assert account.sequence_resets == 0

# SPDX-License-Identifier: Apache-2.0
"""Batches carry the places where pieces begin: those of the account, found while reading (R16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmb_trace.dumps.account import account
from hmb_trace.dumps.dump import Dump, open_dumps
from hmb_trace.dumps.walker import Walker
from tests.consistency.captures import CAPTURES, made

DOUBTS = ("one_seq_damaged",)


def cuts_of(dump: Dump) -> list[set[int]]:
    """By file, from the batches; a file's begin is no place inside it."""
    found: list[set[int]] = [set() for _ in dump.segments]
    for batch in dump.batches(partial=True):
        found[batch.segment] |= {int(offset) for offset in batch.cuts}
    return found


def scanned_cuts_of(dump: Dump) -> list[set[int]]:
    """The same from a pass that makes no columns."""
    found: list[set[int]] = [set() for _ in dump.segments]
    dump.scan(
        Walker(),
        partial=True,
        on_batch=lambda batch: found[batch.segment].update(batch.cuts.tolist()),
    )
    return found


def records_in(dump: Dump) -> list[set[int]]:
    """Offsets of the records of each file, as far as it can be read."""
    found: list[set[int]] = [set() for _ in dump.segments]
    for batch in dump.batches(partial=True):
        found[batch.segment] |= set(batch.offset.tolist())
    return found


@pytest.mark.parametrize("name", sorted(CAPTURES))
def test_the_pieces_of_a_pass_are_those_of_the_account(name: str, tmp_path: Path) -> None:
    truth = made(name, tmp_path)
    paths = [str(p) for p in truth.paths or (tmp_path,)]
    dump = open_dumps(paths)
    found = cuts_of(dump)
    assert scanned_cuts_of(dump) == found
    told = [set(offsets) for offsets in account(open_dumps(paths), deep=True).boundaries]
    earlier = False
    for own, others, read in zip(found, told, records_in(dump), strict=True):
        if earlier and read and others & {0, min(read)}:
            assert min(read) in own  # the seam
        earlier |= bool(read)
        inside = {offset for offset in others if offset in read}
        assert inside - {min(read, default=0)} <= own
        # A pass may doubt more than the account does: where files are not read in the order of
        # their seqs, or a file between them is gone, and a record whose seq alone was damaged.
        assert len(own - others) <= (2 if name == "one_seq_damaged" else 1)
        assert name in DOUBTS or own <= others | {min(read, default=0)}

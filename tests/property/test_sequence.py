# SPDX-License-Identifier: Apache-2.0
"""Sequence accounting of dumps (R12, R3.4): libhmbtrace's walk against the oracle's reader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hmb_trace.dumps.walker import BreakKind, Walker
from hmb_trace.testing import marker, record
from tests.oracle.dump import Account, read_dump
from tests.oracle.wire import M32

small = st.integers(-3, 5)
wild = st.one_of(
    st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF]), st.integers(0, M32)
)
# kind, how far from the last one, or where to, payload bytes
step = st.tuples(st.sampled_from(["record", "record", "marker"]), small | wild, st.integers(0, 20))


@st.composite
def dumps(draw: st.DrawFn) -> bytes:
    """Records and markers whose numbers mostly go on, and sometimes do not."""
    seq = draw(wild)
    out = bytearray()
    for kind, distance, size in draw(st.lists(step, max_size=30)):
        here = (seq + distance) & M32 if -3 <= distance <= 5 else distance
        out += marker(here) if kind == "marker" else record(here, bytes(size))
        seq = here if kind == "record" else seq
    return bytes(out)


def totals(account: Account) -> tuple[int, ...]:
    markers, records = len(account.markers), len(account.records)
    sequence = (len(account.gaps), account.lost, account.duplicates, account.sequence_resets)
    return (records, markers, *sequence, account.truncated, account.offset)


@settings(max_examples=500, deadline=None)
@given(dump=dumps(), cuts=st.lists(st.integers(0, 1 << 16), max_size=3), flags=st.integers(0, 255))
def test_walk_r12_r13_equals_the_oracle_however_the_dump_is_cut(
    dump: bytes, cuts: list[int], flags: int
) -> None:
    dump += record(7, b"abc", flags=flags)
    dump = dump[: len(dump) - flags % 3]
    account = read_dump(dump)
    walker = Walker(keep_breaks=True)
    for cut in [*sorted(cut % (len(dump) + 1) for cut in cuts), len(dump)]:
        walker.walk(dump[walker.offset : max(cut, walker.offset)])
    sequence = (walker.gaps, walker.lost, walker.duplicates, walker.sequence_resets)
    found = (walker.records, walker.wrap_markers, *sequence, walker.truncated, walker.offset)
    assert found == totals(account)
    gaps = [b for b in walker.breaks or [] if b.kind == BreakKind.GAP]
    assert [(b.seq_before, b.seq_after, b.lost) for b in gaps] == [
        (gap.seq_before, gap.seq_after, gap.lost) for gap in account.gaps
    ]

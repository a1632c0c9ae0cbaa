# SPDX-License-Identifier: Apache-2.0
"""The C walk against the slow reader: any records, any cut, garbage anywhere (R8, R12, R13)."""

from __future__ import annotations

import io
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hmb_trace import testing
from hmb_trace.dumps.dump import DumpError, open_dump
from hmb_trace.dumps.sidecar import Device, RejectsSummary, Sidecar
from hmb_trace.dumps.walker import BreakKind, Walker
from tests.oracle.dump import Account, read_dump

_SEQ_STEPS = st.sampled_from([1, 1, 1, 1, 2, 3, 0, -1, 1000, 2**31 - 1, 2**31, 2**31 + 1])
_RECORD = st.fixed_dictionaries(
    {
        "step": _SEQ_STEPS,
        "payload": st.binary(max_size=40),
        "ts_ns": st.sampled_from([0, 5, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1),
        "opcode": st.integers(0, 65535),
        "cpu": st.integers(0, 255),
        "flags": st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 0x80]),
        "reserved0": st.sampled_from([0, 7]),
    }
)


@st.composite
def dumps(draw: st.DrawFn) -> bytes:
    """Records and markers, perhaps with bytes changed, inserted or cut off."""
    seq = draw(st.sampled_from([0, 2**32 - 2, 2**31]))
    parts = []
    for fields in draw(st.lists(_RECORD, max_size=12)):
        seq = (seq + fields.pop("step")) % 2**32
        wrong = draw(st.sampled_from([0, 0, 0, 1, 2, 1 << 20, 1 << 31]))
        lying = {"payload_len": 9999} if draw(st.integers(0, 30)) == 0 else {}
        if fields["flags"] & 1:
            fields["payload"] = b""
        parts.append(testing.record(seq ^ wrong, **fields, **lying))
    data = bytearray(b"".join(parts))
    harm = draw(st.sampled_from(["none", "none", "cut", "change", "insert"]))
    at = draw(st.integers(0, len(data)))
    if harm == "cut":
        del data[at:]
    elif harm == "change" and at < len(data):
        data[at] ^= draw(st.integers(1, 255))
    elif harm == "insert":
        data[at:at] = draw(st.binary(min_size=1, max_size=48))
    return bytes(data)


def beside(known_rejects: int) -> Sidecar:
    """A sidecar that tells of so many rejected bytes."""
    told = RejectsSummary(file="x.rejects", entries=1, records=0, bytes=known_rejects)
    return Sidecar(
        segment="x.bin", number=1, label="x", device=Device(path="x"), bytes=0, rejects=told
    )


def walk(
    data: bytes, max_bytes: int, known_rejects: int
) -> tuple[list[tuple[int, ...]], Walker, DumpError | None]:
    walker = Walker(keep_breaks=True)
    rows: list[tuple[int, ...]] = []
    error = None
    try:
        dump = open_dump(io.BytesIO(data))
        vars(dump.segments[0])["sidecar"] = beside(known_rejects)
        for batch in dump.batches(max_bytes, walker=walker):
            columns = (batch.offset, batch.seq, batch.ts_ns, batch.opcode, batch.cpu, batch.flags)
            rows += zip(*(c.tolist() for c in columns), batch.payload_len.tolist(), strict=True)
            for row in range(len(batch)):
                begin = int(batch.offset[row]) + 32
                end = begin + int(batch.payload_len[row])
                assert bytes(batch.payload(row)) == data[begin:end]
    except DumpError as caught:
        error = caught
    return rows, walker, error


def expected_rows(account: Account) -> list[tuple[int, ...]]:
    return [
        (
            *(e.offset, e.header.seq, e.header.ts_ns, e.header.opcode, e.header.cpu),
            *(e.header.flags, e.header.payload_len),
        )
        for e in account.records
    ]


@settings(max_examples=150, deadline=None)
@given(
    data=dumps(),
    max_bytes=st.sampled_from([1, 1 << 20]),
    known_rejects=st.sampled_from([0, 0, 31, 64, 1 << 40]),
)
def test_walk_equals_the_slow_reader_r8_r12_r13(
    data: bytes, max_bytes: int, known_rejects: int
) -> None:
    account = read_dump(data, known_rejects)
    rows, walker, error = walk(data, max_bytes, known_rejects)
    assert rows == expected_rows(account)
    assert walker.wrap_markers == len(account.markers)
    found = (walker.lost, walker.duplicates, walker.sequence_resets, walker.truncated)
    assert found == (
        *(account.lost, account.duplicates, account.sequence_resets, account.truncated),
    )
    assert walker.seq_glitches == account.glitches
    gaps = [b for b in walker.breaks or [] if b.kind is BreakKind.GAP]
    assert [(g.seq_before, g.seq_after, g.lost) for g in gaps] == [
        (g.seq_before, g.seq_after, g.lost) for g in account.gaps
    ]
    kinds = Counter(b.kind for b in walker.breaks or [])
    assert kinds[BreakKind.GLITCH] == account.glitches
    assert kinds[BreakKind.DUPLICATE] == account.duplicates
    assert kinds[BreakKind.RESET] == account.sequence_resets
    assert (error is None) == account.complete
    if error:
        assert error.offset == account.offset
        word = {"header": "header", "payload": "payload", "magic": "magic"}
        assert word.get(account.error or "", "payload_len") in error.reason

# SPDX-License-Identifier: Apache-2.0
"""The test vectors: what each ring or dump holds, and what must come out of it, stated by hand.

scripts/regenerate_vectors.py writes them to docs/test-vectors/v1/ after the
oracle has agreed with every statement made here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hmb_trace.testing import RingBuilder, WrapStyle, dump, marker, record, ring_header

M64 = 1 << 64
DAMAGED, LYING, UNKNOWN, MARKER = "damaged", "lying-length", "unknown-flags", "marker"

Rejected = tuple[int, str, bytes]  # cursor, reason, bytes
# seq before, seq after, lost, in the rejects; False: nothing followed that could confirm it
Missing = tuple[int, int, int, int] | tuple[int, int, int, int, bool]


@dataclass
class RingVector:
    """A ring and what a consumer makes of it (tail None: all of it is taken)."""

    name: str
    rules: str
    about: str
    region: bytes
    dump: bytes = b""
    rejects: list[Rejected] = field(default_factory=list)
    gaps: list[Missing] = field(default_factory=list)
    tail: int | None = None
    keep_unknown_flags: bool = False
    counters: dict[str, int] = field(default_factory=dict)  # those that signal something


@dataclass
class RefusedVector:
    """A region that must not be attached (R1), or whose cursors cannot be (R2: field cursors)."""

    name: str
    rules: str
    about: str
    region: bytes
    field: str
    found: int | None = None
    expected: int | None = None
    exit_code: int = 65


@dataclass
class DumpVector:
    """A dump file and what a reader makes of it."""

    name: str
    rules: str
    about: str
    dump: bytes
    error: str | None = None  # what the record at `offset` lacks
    offset: int | None = None
    gaps: list[Missing] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


def area(ring_size: int, *pieces: bytes, cursor: int = 0, **header: int) -> bytes:
    """A region with these bytes published at cursor; header fields may be overridden."""
    ring = RingBuilder(ring_size, cursor=cursor)
    ring.raw(b"".join(pieces))
    head = header.pop("head", ring.head)
    tail = header.pop("tail", ring.tail)
    return ring_header(ring_size, head=head, tail=tail, **header) + bytes(ring.area)  # type: ignore[arg-type] # no `reserved` among them


def rec(seq: int, payload: bytes = b"", **fields: int) -> bytes:
    """A record whose time, opcode and cpu follow from its seq, so that all fields are in use."""
    given: dict[str, int] = {"ts_ns": 1_000_000 + 1000 * (seq & 0xFFFF), "opcode": 0x100 + seq % 7}
    given |= {"cpu": seq % 4} | fields
    return record(seq, payload, **given)  # type: ignore[arg-type] # a dict of ints


def basics() -> list[RingVector]:
    """The three that the format's own text names."""
    wrapped = RingBuilder(4096, ts_ns=5_000_000, seq=100)
    for i in range(36):
        wrapped.append(bytes((i + j) & 0xFF for j in range(77)), opcode=i % 11, cpu=i % 3)
    wrapped.lap()
    return [
        RingVector("empty", "R1", "Header and a zeroed area: nothing to read.", area(4096)),
        RingVector(
            "single",
            "R8 R11",
            "One record with 16 payload bytes at offset 0.",
            area(4096, rec(0, bytes(range(16)))),
            dump=rec(0, bytes(range(16))),
        ),
        RingVector(
            "wrap",
            "R3.1 R4",
            "One lap of records, its end skipped by a whole wrap marker.",
            bytes(wrapped.region()),
            dump=bytes(wrapped.expected_dump),
            counters={"wrap_markers": 1},
        ),
    ]


def refusals() -> list[RefusedVector]:
    """R1: one for each field, and R2 cursors."""
    good = bytes(64)

    def one(
        name: str, about: str, which: str, found: int, expected: int, **kw: int
    ) -> RefusedVector:
        code = kw.pop("exit_code", 65)
        region = ring_header(kw.pop("ring_size", 64), **kw) + good  # type: ignore[arg-type] # ints
        return RefusedVector(f"r1-{name}", "R1", about, region, which, found, expected, code)

    def cursors(name: str, about: str, head: int, tail: int) -> RefusedVector:
        region = ring_header(64, head=head, tail=tail) + good
        return RefusedVector(f"r2-{name}", "R2", about, region, "cursors")

    short = ring_header(128) + good
    return [
        one("magic", "Not a ring.", "magic", 0x54424D49, 0x54424D48, magic=0x54424D49),
        one("version-zero", "No version has this number.", "version", 0, 1, version=0),
        one("version-new", "A newer ABI.", "version", 2, 1, version=2, exit_code=76),
        one("ring-size-zero", "No area.", "ring_size", 0, 32, ring_size=0),
        one("ring-size-small", "A power of two below 32.", "ring_size", 16, 32, ring_size=16),
        one("ring-size-odd", "Not a power of two.", "ring_size", 48, 32, ring_size=48),
        one(
            "area-off",
            "The area must begin at 0x40.",
            "record_area_off",
            0x80,
            0x40,
            record_area_off=0x80,
        ),
        RefusedVector(
            "r1-region-short", "R1", "64 bytes of a 128-byte area.", short, "region", 128, 192
        ),
        RefusedVector(
            "r1-region-stub", "R1", "Less than a header.", ring_header(64)[:40], "region", 40, 64
        ),
        cursors("head-unaligned", "head is no multiple of 8.", 36, 0),
        cursors("tail-unaligned", "tail is no multiple of 8.", 64, 4),
        cursors("head-beyond", "More unread bytes than the ring has.", 72, 0),
        cursors("tail-ahead", "tail is ahead of head.", 0, 8),
    ]


def attached() -> list[RingVector]:
    """R1, R2, R5: what is accepted although it looks odd."""
    two = rec(0) + rec(1, b"abc")
    full = b"".join(rec(i) for i in range(4))
    flags = {"r5-overflowed": 1, "r5-frozen": 2, "r5-both": 3, "r5-unknown": 0x80000010}
    about = {
        "r5-overflowed": "OVERFLOWED found set at attach: earlier loss of unknown extent.",
        "r5-frozen": "FROZEN: drained to head all the same.",
        "r5-both": "OVERFLOWED and FROZEN.",
        "r5-unknown": "Ring flags nobody has defined: logged once, otherwise ignored.",
    }
    return [
        RingVector(
            "r1-reserved-set",
            "R1",
            "Reserved header fields that are not zero: logged once, otherwise ignored.",
            ring_header(128, head=len(two), reserved=(1, 2, 3, 4)) + two.ljust(128, b"\0"),
            dump=two,
        ),
        RingVector(
            "r2-cursors-wrap",
            "R2 R3",
            "Cursors that pass 2^64 inside the second record.",
            area(128, rec(0), rec(1, bytes(16)), cursor=M64 - 64),
            dump=rec(0) + rec(1, bytes(16)),
            counters={"straddled": 1},
        ),
        RingVector(
            "r2-full", "R2", "head - tail is exactly ring_size.", area(128, full), dump=full
        ),
        *(
            RingVector(
                n,
                "R5",
                about[n],
                area(128, two, flags=f),
                dump=two,
                counters={"unknown_losses": f & 1},
            )
            for n, f in flags.items()
        ),
    ]


def styled(
    name: str, rules: str, about: str, style: WrapStyle, cursor: int, **seen: int
) -> RingVector:
    """Three records of 24 payload bytes in a 256-byte ring, wrapped as the style has it."""
    ring = RingBuilder(256, cursor=cursor, wrap=style, seq=41, ts_ns=7000)
    for i in range(3):
        ring.append(bytes([i]) * 24, opcode=i)
    return RingVector(
        name, rules, about, bytes(ring.region()), bytes(ring.expected_dump), counters=dict(seen)
    )


def wraps() -> list[RingVector]:
    """R3, R4."""
    whole = marker(1, ts_ns=1_001_000)
    dirty = marker(0, ts_ns=4, payload_len=77, flags=0xF2, opcode=9, reserved1=3)
    partial = [
        RingVector(
            f"r4-partial-{left}",
            "R3.2 R4",
            f"{left} bytes left: the beginning of a marker, completed in the dump.",
            area(256, rec(5, b"abc"), marker(6, ts_ns=8888)[:left], rec(6), cursor=216 - left),
            rec(5, b"abc") + marker(6, ts_ns=8888 if left > 8 else 1_005_000) + rec(6),
            counters={"partial_markers": 1},
        )
        for left in (8, 16, 24)
    ]
    plain = [
        RingVector(
            f"r4-plain-gap-{left}",
            "R3.2 R4",
            f"{left} bytes left and no magic in them: skipped, nothing in the dump.",
            area(256, rec(5, b"abc"), b"\x5a" * left, rec(6), cursor=216 - left),
            rec(5, b"abc") + rec(6),
            counters={"plain_gaps": 1},
        )
        for left in (8, 16, 24)
    ]
    return [
        *partial,
        *plain,
        RingVector(
            "r3-1-marker-jumps",
            "R3.1 R4",
            "A whole marker; the bytes it skips look like a record and are none.",
            area(256, rec(0), whole, rec(9), bytes(32), rec(1), cursor=128),
            rec(0) + whole + rec(1),
            counters={"wrap_markers": 1},
        ),
        RingVector(
            "r3-1-marker-waits",
            "R3.1",
            "head is behind the marker but before the lap boundary: wait at the marker.",
            area(256, rec(0), whole, bytes(32), cursor=128),
            rec(0),
            tail=160,
        ),
        RingVector(
            "r3-2-end-waits",
            "R3.2",
            "Fewer than 32 bytes left and head has not reached the boundary: wait.",
            area(256, rec(0), bytes(16), cursor=200),
            rec(0),
            tail=232,
        ),
        RingVector(
            "r3-2-end-unwritten",
            "R3.2",
            "The last record ends 24 bytes before the boundary and so does head.",
            area(256, rec(0), cursor=200),
            rec(0),
        ),
        styled(
            "r3-3-straddle", "R3.3", "A payload goes on at offset 0.", "straddle", 160, straddled=1
        ),
        styled(
            "r3-3-straddle-header-only",
            "R3.3",
            "The header ends at the ring end.",
            "straddle",
            168,
            straddled=1,
        ),
        styled(
            "r3-4-seq-marker",
            "R3.4",
            "The marker has a seq of its own.",
            "seq-marker",
            160,
            wrap_markers=1,
        ),
        RingVector(
            "r3-4-marker-zero-seq",
            "R3.4",
            "A producer that leaves the marker's seq 0.",
            area(128, rec(5), marker(0), rec(6), cursor=64),
            rec(5) + marker(0) + rec(6),
            counters={"wrap_markers": 1},
        ),
        RingVector(
            "r3-4-marker-zero-seq-high",
            "R3.4",
            "The same above 2^31, where 0 is ahead: still no loss, and no reset.",
            area(128, rec(0x80000005), marker(0), rec(0x80000006), cursor=64),
            rec(0x80000005) + marker(0) + rec(0x80000006),
            counters={"wrap_markers": 1},
        ),
        RingVector(
            "r3-4-marker-after-loss",
            "R3.4 R12",
            "Two records lost before a marker, one after it.",
            area(128, rec(5), marker(8), rec(10), cursor=64),
            rec(5) + marker(8) + rec(10),
            gaps=[(5, 10, 3, 0, False)],
            counters={"wrap_markers": 1, "gaps": 1, "lost": 3},
        ),
        RingVector(
            "r4-partial-first",
            "R4",
            "A partial marker without a time of its own, and no record before it: time 0.",
            area(256, marker(6, ts_ns=8888)[:8], rec(6), cursor=248),
            marker(6) + rec(6),
            counters={"partial_markers": 1},
        ),
        RingVector(
            "r4-marker-cleaned",
            "R4",
            "Bit 0 decides: a marker with payload_len 77 and unknown bits is a marker.",
            area(128, dirty, bytes(32), rec(0), cursor=64),
            marker(0, ts_ns=4, flags=2, opcode=9, reserved1=3) + rec(0),
            rejects=[(64, MARKER, dirty)],
            counters={"wrap_markers": 1, "markers_cleaned": 1},
        ),
    ]


def validity() -> list[RingVector]:
    """R8, R10, R11."""
    oversize = rec(1, bytes(8), payload_len=4065)
    beyond = rec(1, payload_len=4000)
    lying = rec(1, bytes(8), payload_len=40)
    long_lie = rec(1, bytes(24), payload_len=56)
    nested = rec(0, rec(1) + rec(2))
    hollow = rec(0, bytes(32), payload_len=64)
    odd = rec(1, b"abc", flags=0x42, padding=0x11)
    return [
        RingVector(
            "r8-largest",
            "R8",
            "payload_len 4064, the largest legal one.",
            area(8192, rec(0, bytes(4064)), rec(1)),
            rec(0, bytes(4064)) + rec(1),
        ),
        RingVector(
            "r8-oversize",
            "R8 R9",
            "payload_len 4065.",
            area(8192, rec(0), oversize, rec(2), rec(3)),
            rec(0) + rec(2) + rec(3),
            [(32, DAMAGED, oversize)],
            [(0, 2, 0, 1)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r8-beyond-head",
            "R8 R9",
            "A legal length that reaches past head.",
            area(256, rec(0), beyond, rec(2)),
            rec(0) + rec(2),
            [(32, DAMAGED, beyond)],
            [(0, 2, 0, 1, False)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r8-lying-length",
            "R8 R9",
            "A legal length that swallows the next record.",
            area(256, rec(0), lying, rec(2), rec(3)),
            rec(0) + rec(2) + rec(3),
            [(32, LYING, lying)],
            [(0, 2, 0, 1)],
            counters={"lying_lengths": 1, "resyncs": 1},
        ),
        RingVector(
            "r8-lying-length-straddles",
            "R8 R9",
            "A lying length across the ring end; the next record stands at offset 0.",
            area(128, rec(0), long_lie, rec(2), cursor=40),
            rec(0) + rec(2),
            [(72, LYING, long_lie)],
            [(0, 2, 0, 1, False)],
            counters={"lying_lengths": 1, "resyncs": 1},
        ),
        RingVector(
            "r8-straddle-over-a-record",
            "R8 R9 R3.3",
            "A straddled record is suspect even before its right successor: a record at offset 0.",
            area(128, hollow, rec(1), rec(1), cursor=64),
            rec(1) + rec(1),
            [(64, LYING, hollow)],
            counters={"lying_lengths": 1, "resyncs": 1, "duplicates": 1},
        ),
        RingVector(
            "r8-good-before-garbage",
            "R8 R9",
            "Garbage after a record does not make the record bad.",
            area(256, rec(0, bytes(40)), b"\xaa" * 32, rec(1), rec(2)),
            rec(0, bytes(40)) + rec(1) + rec(2),
            [(72, DAMAGED, b"\xaa" * 32)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r8-records-in-a-payload",
            "R8",
            "A payload that holds records, followed by its right successor: kept whole.",
            area(256, nested, rec(1), rec(2)),
            nested + rec(1) + rec(2),
        ),
        RingVector(
            "r10-unknown-flags",
            "R10",
            "Unknown record flags: into the rejects, and no gap from it.",
            area(256, rec(0), odd, rec(2)),
            rec(0) + rec(2),
            [(32, UNKNOWN, odd)],
            counters={"unknown_flags": 1},
        ),
        RingVector(
            "r10-unknown-flags-kept",
            "R10 R11",
            "The same with --unknown-flags keep.",
            area(256, rec(0), odd, rec(2)),
            rec(0) + rec(1, b"abc", flags=0x42) + rec(2),
            keep_unknown_flags=True,
            counters={"unknown_flags": 1, "truncated": 1},
        ),
        RingVector(
            "r11-dirty-padding",
            "R11",
            "Padding that is not zero in the ring is zero in the dump.",
            area(256, rec(0, b"abc", padding=0xEE), rec(1, b"defgh", padding=0xEE)),
            rec(0, b"abc") + rec(1, b"defgh"),
        ),
        RingVector(
            "r11-reserved-fields",
            "R11",
            "Reserved record fields stay as they were; TRUNCATED is counted.",
            area(256, rec(0, b"abc", reserved0=0x1234, reserved1=1 << 63, flags=2)),
            rec(0, b"abc", reserved0=0x1234, reserved1=1 << 63, flags=2),
            counters={"truncated": 1},
        ),
    ]


def damage() -> list[RingVector]:
    """R9."""
    old = rec(5) + rec(6)
    torn = rec(1)[:24]
    across = b"\x99" * 56
    return [
        RingVector(
            "r9-resync",
            "R9",
            "Garbage between records.",
            area(256, rec(0), b"\x01" * 48, rec(1), rec(2)),
            rec(0) + rec(1) + rec(2),
            [(32, DAMAGED, b"\x01" * 48)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r9-earlier-lap",
            "R9",
            "Whole records of an earlier lap behind garbage do not come back to life.",
            area(256, rec(10), b"\x99" * 24, old, rec(11), rec(12), cursor=256),
            rec(10) + rec(11) + rec(12),
            [(288, DAMAGED, b"\x99" * 24 + old)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r9-nothing-after",
            "R9",
            "No header up to head: all of it is rejected, and the search goes on later.",
            area(256, rec(0), b"\x99" * 64),
            rec(0),
            [(32, DAMAGED, b"\x99" * 64)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r9-torn-header",
            "R8 R9",
            "head stands inside a header.",
            area(256, rec(0), torn),
            rec(0),
            [(32, DAMAGED, torn)],
            counters={"resyncs": 1},
        ),
        RingVector(
            "r9-across-the-end",
            "R9 R3.2",
            "Damage up to and over the ring end; a short end inside it is damage too.",
            area(256, rec(0), across, rec(1), rec(2), cursor=184),
            rec(0) + rec(1) + rec(2),
            [(216, DAMAGED, across)],
            counters={"resyncs": 1},
        ),
        *(
            RingVector(
                f"r9-before-an-end-{left}",
                "R9 R3.2",
                f"The record after the damage ends {left} bytes before the lap boundary.",
                area(256, rec(0), b"\x01" * 16, rec(1), bytes(left), rec(2), cursor=176 - left),
                rec(0) + rec(1) + rec(2),
                [(208 - left, DAMAGED, b"\x01" * 16)],
                counters={"resyncs": 1, "plain_gaps": 1},
            )
            for left in (8, 16, 24)
        ),
        RingVector(
            "r9-after-a-marker",
            "R9 R3.4",
            "Garbage after a marker: the record that the marker announced is still taken.",
            area(128, rec(0), marker(1), b"\x77" * 16, rec(1), cursor=64),
            rec(0) + marker(1) + rec(1),
            [(128, DAMAGED, b"\x77" * 16)],
            counters={"wrap_markers": 1, "resyncs": 1},
        ),
        RingVector(
            "r9-first-bytes",
            "R9",
            "A consumer that attaches in the middle of a record.",
            area(256, rec(0, bytes(24))[32:], rec(1), rec(2), cursor=32),
            rec(1) + rec(2),
            [(32, DAMAGED, bytes(24))],
            counters={"resyncs": 1},
        ),
        *restarts(),
    ]


def restarts() -> list[RingVector]:
    """R9.3: firmware dies in mid-record and begins anew."""
    junk = b"\xdb" * 40
    before = rec(9000) + rec(9001)
    seen = {"resyncs": 1, "sequence_resets": 1}

    def one(name: str, about: str, after: list[bytes]) -> RingVector:
        region, kept = area(1 << 14, before, junk, *after), before + b"".join(after)
        rejects = [(64, DAMAGED, junk)]
        return RingVector(f"r9-{name}", "R9 R12", about, region, kept, rejects, counters=seen)

    four = [rec(seq) for seq in range(4)]
    return [
        one("restart", "Four records in sequence after damage are a restart.", four),
        one("restart-at-head", "Two that end at head are one too, when nothing follows.", four[:2]),
        one(
            "restart-with-payloads",
            "Of any length.",
            [rec(s, bytes(s * 8)) for s in range(5)],
        ),
        RingVector(
            "r9-no-restart",
            "R9",
            "Three in sequence, and then more damage: not believed.",
            area(1 << 14, before, junk, *four[:3], junk, rec(9002)),
            before + rec(9002),
            [(64, DAMAGED, junk + b"".join(four[:3]) + junk)],
            counters={"resyncs": 1},
        ),
    ]


def sequences() -> list[RingVector]:
    """R12 in a ring."""

    def one(
        name: str, about: str, seqs: list[int], missing: list[Missing], **seen: int
    ) -> RingVector:
        data = b"".join(rec(seq) for seq in seqs)
        return RingVector(
            f"r12-{name}", "R12", about, area(256, data), data, [], missing, counters=seen
        )

    holes = b"\x01" * 64
    return [
        one("gap", "Three records missing.", [0, 1, 5], [(1, 5, 3, 0, False)], gaps=1, lost=3),
        one("seq-wrap", "0xFFFFFFFF is followed by 0.", [0xFFFFFFFE, 0xFFFFFFFF, 0, 1], []),
        one(
            "gap-over-wrap",
            "A gap over 2^32.",
            [0xFFFFFFFE, 3],
            [(0xFFFFFFFE, 3, 4, 0, False)],
            gaps=1,
            lost=4,
        ),
        one("duplicate", "The same seq twice.", [9, 9, 10], [], duplicates=1),
        one("reset", "A seq that goes back.", [9, 2, 3], [], sequence_resets=1),
        one(
            "gap-largest",
            "The largest gap: one more would be a reset.",
            [0, 0x7FFFFFFF],
            [(0, 0x7FFFFFFF, 0x7FFFFFFE, 0, False)],
            gaps=1,
            lost=0x7FFFFFFE,
        ),
        one("reset-smallest", "2^31 ahead is a reset.", [0, 0x80000000], [], sequence_resets=1),
        RingVector(
            "r12-gap-beside-damage",
            "R12 R9",
            "Five missing around 64 damaged bytes: at most two of them are there, three are lost.",
            area(256, rec(0), holes, rec(6), rec(7)),
            rec(0) + rec(6) + rec(7),
            [(32, DAMAGED, holes)],
            [(0, 6, 3, 2)],
            counters={"resyncs": 1, "gaps": 1, "lost": 3},
        ),
        *glitches(),
    ]


def glitches() -> list[RingVector]:
    """R12: a seq field that is wrong, and what only looks like one."""
    wild = rec(1 << 30)
    holes = b"\x01" * 64
    seen = {"seq_glitches": 1}

    def one(name: str, about: str, pieces: list[bytes], **case: Any) -> RingVector:
        kept = b"".join(piece for piece in pieces if piece is not holes)
        at = b"".join(pieces).find(holes)
        rejects = [(at, DAMAGED, holes)] if at >= 0 else []
        counters = {"resyncs": at >= 0, **case.pop("counters", seen)}
        return RingVector(
            f"r12-{name}",
            "R12",
            about,
            area(512, *pieces),
            kept,
            rejects,
            counters=counters,
            **case,
        )

    return [
        one("glitch-ahead", "A jump that the next record takes back.", [rec(0), wild, rec(2)]),
        one("glitch-back", "The same, backwards.", [rec(9), rec(3), rec(11)]),
        one("glitch-same", "A seq that looks like a duplicate.", [rec(9), rec(9), rec(11)]),
        one(
            "glitch-before-damage",
            "A wrong seq, then damage with a record in it: nothing is lost.",
            [rec(0), wild, holes, rec(3), rec(4)],
            gaps=[(0, 3, 0, 1)],
        ),
        one(
            "glitch-after-damage",
            "Damage with two records in it, then a wrong seq.",
            [rec(0), holes, wild, rec(4), rec(5)],
            gaps=[(0, 4, 0, 2)],
        ),
        one(
            "loss-before-damage",
            "One missing, then damage: it fits a wrong seq as well, so it is lost, unconfirmed.",
            [rec(0), rec(2), holes, rec(3), rec(4)],
            gaps=[(0, 2, 1, 0, False)],
            counters={"gaps": 1, "lost": 1},
        ),
        one(
            "jump",
            "A jump after which the sequence goes on there is a loss.",
            [rec(0), rec(1000), rec(1001)],
            gaps=[(0, 1000, 999, 0)],
            counters={"gaps": 1, "lost": 999},
        ),
        one(
            "jump-and-back",
            "A jump, and back to where it would take more than one record: both breaks stand.",
            [rec(0), rec(1000), rec(5), rec(6)],
            gaps=[(0, 1000, 999, 0)],
            counters={"gaps": 1, "lost": 999, "sequence_resets": 1},
        ),
    ]


def rings() -> list[RingVector]:
    """Every ring that can be drained."""
    return [*basics(), *attached(), *wraps(), *validity(), *damage(), *sequences()]


def dumps() -> list[DumpVector]:
    """R12, R13, R14: what readers must make of files."""
    whole = dump([rec(0, b"abc"), rec(1, bytes(range(20))), rec(2)])
    seqs = [rec(s) for s in (0xFFFFFFFE, 0xFFFFFFFF, 0, 0, 4, 1, 2)]
    marked = dump(
        [
            *(rec(5), marker(6), rec(6), marker(7), rec(8), marker(0), rec(9)),
            *(marker(12), rec(12), marker(13), marker(15), rec(17), marker(19)),
        ]
    )
    cut = "The file ends inside "
    return [
        DumpVector("dump-empty", "R13", "No records: a valid dump.", b""),
        DumpVector("dump-plain", "R11", "Three records.", whole),
        DumpVector(
            "dump-sequence",
            "R12",
            "Sequence wrap, duplicate, gap, reset.",
            dump(seqs),
            gaps=[(0, 4, 3, 0)],
            counters={"lost": 3, "duplicates": 1, "sequence_resets": 1},
        ),
        DumpVector(
            "dump-markers",
            "R13 R3.4 R12",
            "Markers with the next seq, their own, none, after a loss, two in a row, at the end.",
            marked,
            gaps=[(9, 12, 2, 0), (12, 17, 2, 0, False)],
            counters={"lost": 4},
        ),
        DumpVector(
            "dump-glitch",
            "R12",
            "A record whose seq alone is wrong, with a marker beside it: nothing is missing.",
            dump([rec(5), rec(1 << 20), marker(7), rec(7), rec(8)]),
            counters={"glitches": 1},
        ),
        DumpVector(
            "dump-jump-and-back",
            "R12",
            "Back to where it would take more than one record: without rejects both breaks stand.",
            dump([rec(5), rec(1 << 20), rec(8), rec(9)]),
            gaps=[(5, 1 << 20, (1 << 20) - 6, 0)],
            counters={"lost": (1 << 20) - 6, "sequence_resets": 1},
        ),
        DumpVector(
            "dump-markers-circle",
            "R3.4 R12",
            "Markers that go once around all numbers, up to the next record's: nothing is lost.",
            dump([rec(0), marker(0x7FFFFFFF), marker(0xFFFFFFFE), marker(1), rec(1)]),
        ),
        DumpVector(
            "dump-flags",
            "R10 R11",
            "TRUNCATED, and unknown flags that somebody kept.",
            dump([rec(0, b"abc", flags=2), rec(1, flags=0x80)]),
            counters={"truncated": 1},
        ),
        DumpVector("r13-cut-header", "R13", cut + "a header.", whole[:60], "header", 40),
        DumpVector("r13-cut-first", "R13", cut + "the first header.", whole[:7], "header", 0),
        DumpVector("r13-cut-payload", "R13", cut + "a payload.", whole[:80], "payload", 40),
        DumpVector("r13-cut-padding", "R13", cut + "the padding.", whole[:94], "payload", 40),
        DumpVector(
            "r13-garbage",
            "R13",
            "Garbage between records.",
            whole[:40] + b"\x55" * 40 + rec(1),
            "magic",
            40,
        ),
        DumpVector(
            "r13-oversize",
            "R13 R8",
            "payload_len 4065.",
            rec(0) + rec(1, payload_len=4065) + bytes(4072),
            "payload_len",
            32,
        ),
        DumpVector(
            "r14-zeros",
            "R14",
            "Preallocated zeros after the last record.",
            whole + bytes(96),
            "magic",
            128,
        ),
    ]

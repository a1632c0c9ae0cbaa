# SPDX-License-Identifier: Apache-2.0
"""What is known of one file: from a walk over it, from its sidecar, or from both."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from hmb_trace.dumps import sidecar as sidecars
from hmb_trace.dumps.filewalk import FileWalk
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import Damaged, Gap, Note, Sidecar
from hmb_trace.dumps.steps_back import went_back
from hmb_trace.layout import RECORD_HDR_DTYPE, RECORD_HDR_SIZE, RecordFlag

_SEQUENCE_NOTES = ("duplicate", "sequence-reset")
_ZST_SUFFIX = ".zst"


@dataclass(eq=False, slots=True)
class Facts:
    """One file.

    Attributes:
        index: of the file in its dump, reading order.
        side: its sidecar, where that describes this file.
        walk: what a pass over the whole file saw; None: the sidecar has to do.
        doubt: why a sidecar that is there is of no use, or not quite; "" otherwise.
        carried: the account that the file brings along (a .pccx, a filtered dump).
        absent: only the sidecar is there, the dump is gone.
    """

    index: int
    segment: Segment
    side: Sidecar | None = None
    walk: FileWalk | None = None
    doubt: str = ""
    carried: dict[str, Any] | None = None
    absent: bool = False
    records: int = 0
    wrap_markers: int = 0
    truncated: int = 0
    bytes: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    piece: int = field(default=0)  # which epoch of the dump; set when files are compared

    @property
    def name(self) -> str:
        """For messages."""
        return self.segment.name

    @property
    def epoch(self) -> int | None:
        """As the capture numbers them; None where nothing says."""
        return self.side.epoch if self.side else None

    @property
    def series(self) -> tuple[str, int] | None:
        """Directory and label, number."""
        if self.absent and self.side and self.segment.path:
            return str(self.segment.path.parent / self.side.label), self.side.number
        return self.segment.series

    @property
    def missing_records(self) -> int:
        """Records that the sidecar counts and the file does not hold (any more)."""
        if self.side is None:
            return 0
        return max(0, self.side.records - self.records) if self.cut or self.absent else 0

    @property
    def cut(self) -> bool:
        """Whether the file ends before it should."""
        if self.walk is None or self.absent:
            return False
        shorter = self.side is not None and self.bytes < self.side.bytes
        return shorter or self.walk.fault is not None

    @property
    def seq_range(self) -> tuple[int, int] | None:
        """First and last seq of what the file held when it was sealed, else of what it holds."""
        side = self.side
        if (self.cut or self.absent) and side and side.first_seq is not None:
            last = side.last_seq if side.last_seq is not None else side.first_seq
            return side.first_seq, last
        if self.first_seq is None or self.last_seq is None:
            return None
        return self.first_seq, self.last_seq

    @property
    def ts_range(self) -> tuple[int, int] | None:
        """First and last ts_ns, as seq_range."""
        side = self.side
        if (self.cut or self.absent) and side and side.first_ts_ns is not None:
            return side.first_ts_ns, side.last_ts_ns or side.first_ts_ns
        if self.first_ts is None or self.last_ts is None:
            return None
        return self.first_ts, self.last_ts


def of_file(index: int, segment: Segment, walk: FileWalk | None) -> Facts:
    """What is known of a file; without a walk its sidecar must describe it (see described)."""
    found = Facts(index, segment, side=segment.known, walk=walk)
    found.carried = carried_account(segment)
    if walk is not None:
        _fill_from_walk(found, walk.c)
        _compare(found)
    elif found.side is not None:
        _fill_from_sidecar(found, found.side)
    elif found.carried is not None:
        _fill_from_account(found, found.carried)
    beside = segment.sidecar
    if isinstance(beside, Damaged):
        found.doubt = str(beside.error)
    return found


def of_absent(index: int, path: Path, side: Sidecar) -> Facts:
    """A segment of which only the sidecar is left."""
    return Facts(index, Segment(str(path), path, Kind.DUMP), side=side, absent=True)


def _fill_from_walk(found: Facts, c: Any) -> None:
    found.records, found.wrap_markers = int(c.records), int(c.wrap_markers)
    found.truncated, found.bytes = int(c.truncated), int(c.offset)
    if found.records:
        found.first_seq, found.last_seq = int(c.first_seq), int(c.last_record_seq)
        found.first_ts, found.last_ts = int(c.first_ts_ns), int(c.last_ts_ns)


def _fill_from_sidecar(found: Facts, side: Sidecar) -> None:
    found.records, found.wrap_markers = side.records, side.wrap_markers
    found.truncated, found.bytes = side.truncated, side.bytes
    found.first_seq, found.last_seq = side.first_seq, side.last_seq
    found.first_ts, found.last_ts = side.first_ts_ns, side.last_ts_ns


def _fill_from_account(found: Facts, carried: dict[str, Any]) -> None:
    for name in ("records", "wrap_markers", "truncated", "bytes"):
        setattr(found, name, int(carried.get(name) or 0))
    found.first_seq, found.last_seq = carried.get("first_seq"), carried.get("last_seq")
    found.first_ts, found.last_ts = carried.get("first_ts_ns"), carried.get("last_ts_ns")


def _compare(found: Facts) -> None:
    """Whether the sidecar speaks of this very file: what the walk saw is never overruled."""
    side = found.side
    if side is None or (not found.records and found.bytes < side.bytes):
        return
    if side.first_seq not in (None, found.first_seq):
        found.doubt = _differs("first_seq", found.first_seq, side.first_seq)
        found.side = None
        return
    if found.bytes < side.bytes:
        return  # cut
    for name, seen, said in (
        ("bytes", found.bytes, side.bytes),
        ("records", found.records, side.records),
        ("last_seq", found.last_seq, side.last_seq),
    ):
        if said is not None and seen != said:
            found.doubt = _differs(name, seen, said)
            return


def _differs(name: str, seen: object, said: object) -> str:
    return f"does not describe this file: {name}: found {seen}, the sidecar says {said}"


def carried_account(segment: Segment) -> dict[str, Any] | None:
    """The account that a .pccx or a filtered dump brings along."""
    if segment.kind is Kind.PCCX:
        found = segment.packaged
        made = found.about.get("account") if found else None
        if found and found.encoding != "raw" and _is_account(made):
            return _without_offsets(made)
    else:
        made = segment.known.account if segment.known else None
    return made if _is_account(made) else None


def _without_offsets(made: dict[str, Any]) -> dict[str, Any]:
    """An account beside events: its offsets are those of the dump that they were made from."""
    found = dict(made)
    for name, nowhere in zip(_ACCOUNT_LISTS, (None, 0, 0), strict=True):
        found[name] = [{**one, "offset": nowhere} for one in made.get(name) or ()]
    return found


def _is_account(made: object) -> TypeGuard[dict[str, Any]]:
    """Whether an object from a file can be read as an account: anyone may have written it."""
    if not isinstance(made, dict):
        return False
    lists = [made.get(name) or [] for name in ("reasons", "epochs", "clock_steps")]
    if not all(isinstance(one, list) and all(map(_is_entry, one)) for one in lists):
        return False
    if any("offset" not in one for one in (*lists[1], *lists[2])):
        return False
    return all(_is_plain(value) for name, value in made.items() if name not in _ACCOUNT_LISTS)


_ACCOUNT_LISTS = ("reasons", "epochs", "clock_steps")
_TEXTS = ("kind", "text", "file")


def _is_entry(made: object) -> bool:
    """A reason, an epoch or a clock step: numbers, and texts where texts are due."""
    return isinstance(made, dict) and all(
        isinstance(value, str) if name in _TEXTS and value is not None else _is_number(value)
        for name, value in made.items()
    )


def _is_number(value: object) -> bool:
    return value is None or type(value) is int


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, str, bool))


def described(segment: Segment) -> bool:
    """Whether what lies beside the file, or in it, saves a walk over it."""
    if segment.kind is Kind.PCCX:
        return carried_account(segment) is not None
    side = segment.known
    if side is None or segment.partial or segment.path is None:
        return False
    return _is_consistent(side) and _same_size(segment, side) and _same_begin(segment, side)


def _is_consistent(side: Sidecar) -> bool:
    """Whether the lists tell all that the counts count."""
    if side.list_truncated or side.counters.get("events_suppressed", 0):
        return False
    if side.account is not None:
        return True
    losses = [gap.lost for gap in side.gap_list if gap.lost]
    notes = [len(notes_of(side, kind)) for kind in _SEQUENCE_NOTES]
    counts = [side.duplicates, side.sequence_resets]
    if (len(losses), sum(losses)) != (side.gaps, side.lost) or notes != counts:
        return False
    if side.reasons is None and side.sequence_resets:
        return False  # an older daemon took a damaged seq for a gap and a reset (R12)
    if not _adds_up(side):
        return False
    return bool(side.clock_steps) or _clock_goes_forward(side)


def _adds_up(side: Sidecar) -> bool:
    """Whether first and last seq leave room for no gap that the lists do not tell of."""
    if side.first_seq is None or side.last_seq is None or side.sequence_resets:
        return True
    inside = [gap for gap in side.gap_list if not is_at_begin(side, gap.offset, gap.seq_after)]
    told = sum(gap.lost + gap.rejected for gap in inside)
    numbers = (side.last_seq - side.first_seq) % (1 << 32) + 1
    missing = numbers - side.records - told
    set_aside = side.rejects.records if side.rejects else 0
    return missing <= set_aside + side.wrap_markers  # markers may have seqs of their own (R3)


def _clock_goes_forward(side: Sidecar) -> bool:
    times = [entry.ts_ns for entry in side.index if entry.seq or entry.ts_ns]
    ends = [time for time in (side.first_ts_ns, side.last_ts_ns) if time is not None]
    times = [*ends[:1], *times, *ends[1:]]
    return not any(itertools.starmap(went_back, itertools.pairwise(times)))


def _same_size(segment: Segment, side: Sidecar) -> bool:
    assert segment.path is not None
    if segment.kind is Kind.ZSTD:
        from hmb_trace.dumps import zstd  # noqa: PLC0415 - only compressed segments

        return zstd.content_size(segment.path) == side.bytes
    try:
        return segment.path.stat().st_size == side.bytes
    except OSError:
        return False


def _same_begin(segment: Segment, side: Sidecar) -> bool:
    """Whether the first record is the one that the sidecar names."""
    if segment.kind is not Kind.DUMP or segment.path is None or not side.records:
        return True
    try:
        with segment.path.open("rb") as file:
            head = os.read(file.fileno(), RECORD_HDR_SIZE)
    except OSError:
        return False
    return head[:4] == b"RECT" and _is_first(head, side)


def _is_first(head: bytes, side: Sidecar) -> bool:
    import numpy as np  # noqa: PLC0415 - beside the type

    record = np.frombuffer(head, RECORD_HDR_DTYPE)[0]
    if int(record["flags"]) & RecordFlag.WRAP_MARKER:
        return True
    return (int(record["seq"]), int(record["ts_ns"])) == (side.first_seq, side.first_ts_ns)


def notes_of(side: Sidecar, kind: str) -> list[Note]:
    """The notes of a kind."""
    return [note for note in side.events if note.id == kind]


def is_at_begin(side: Sidecar, offset: int, seq_after: int | None) -> bool:
    """Whether a break lies between the segment before and this one's first record."""
    if not offset:
        return True
    markers = offset <= side.wrap_markers * RECORD_HDR_SIZE
    return markers and offset % RECORD_HDR_SIZE == 0 and seq_after == side.first_seq


def gaps_at_begin(side: Sidecar) -> list[Gap]:
    """The gaps that the collector saw before the first record."""
    return [gap for gap in side.gap_list if is_at_begin(side, gap.offset, gap.seq_after)]


def rejects_gone(facts: Facts) -> bool:
    """Whether the sidecar tells of a rejects file that is not there any more."""
    path, side = facts.segment.path, facts.side
    if path is None or side is None or side.rejects is None:
        return False
    beside = sidecars.rejects_path(path)
    return not any(one.is_file() for one in (beside, path.with_name(side.rejects.file)))

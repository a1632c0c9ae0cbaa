# SPDX-License-Identifier: Apache-2.0
"""What sidecars add to what a dump says by itself (SPEC R5, R12): causes, rejects, clocks."""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from hmb_trace.dumps import sidecar as _sidecar
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.segments import Segment
from hmb_trace.dumps.sidecar import ClockPair, Sidecar
from hmb_trace.dumps.walker import BreakKind, SequenceBreak, Walker
from hmb_trace.errors import InvalidDataError

log = logging.getLogger("hmb_trace")


def sidecar_of(segment: Segment) -> Sidecar | None:
    """The sidecar of a file, if there is a usable one; an unusable one is warned about."""
    if segment.path is None:
        return None
    try:
        return _sidecar.find(segment.path)
    except InvalidDataError as error:
        log.warning("%s; going on without it", error)
        return None


def known_losses(dump: Dump, walker: Walker) -> tuple[int, int]:
    """Gaps and lost records after a pass; rejects are subtracted where a sidecar knows them.

    A sidecar counts for its file only if the pass read that file to its end.
    """
    marks = [*walker.marks, (-1, walker.gaps, walker.lost)]
    bad = {problem.segment for problem in dump.problems}
    gaps = lost = 0
    for (index, gaps_at, lost_at), (_, gaps_next, lost_next) in pairwise(marks):
        known = None if index in bad else sidecar_of(dump.segments[index])
        gaps += known.gaps if known else gaps_next - gaps_at
        lost += known.lost if known else lost_next - lost_at
    return gaps, lost


@dataclass(frozen=True, slots=True)
class Loss:
    """One line of `hmb-trace gaps`.

    Attributes:
        kind: "gap", "duplicate", "reset", or "overflow" (an episode without a gap, R5).
        lost: records that nobody has; None: unknown, at least one.
        rejected: missing from the dump, but in the rejects file.
        ts_ns: firmware clock of the record after it; None where no record follows.
        host_ns: host clock when it was noticed; None without a sidecar.
        cause: as the sidecar knows it; "" without one.
    """

    file: str
    offset: int
    kind: str
    seq_before: int | None
    seq_after: int | None
    lost: int | None
    rejected: int = 0
    ts_ns: int | None = None
    host_ns: int | None = None
    cause: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Column name to value, in the order of the listing."""
        return {name: getattr(self, name) for name in self.__slots__}


_KIND_NAMES = {
    BreakKind.GAP: "gap",
    BreakKind.DUPLICATE: "duplicate",
    BreakKind.RESET: "reset",
    BreakKind.GLITCH: "glitch",
}


def losses(dump: Dump, *, partial: bool = False) -> list[Loss]:
    """Every loss, duplicate and sequence reset of a dump, in file order.

    Raises:
        DumpError: as Dump.batches.
    """
    walker = Walker(keep_breaks=True)
    dump.scan(walker, partial=partial)
    by_segment: dict[int, list[SequenceBreak]] = {}
    for found in walker.breaks or []:
        by_segment.setdefault(found.segment, []).append(found)
    bad = {problem.segment for problem in dump.problems}
    result: list[Loss] = []
    for index, segment in enumerate(dump.segments):
        known = None if index in bad else sidecar_of(segment)
        result += _segment_losses(segment.name, by_segment.get(index, []), known)
    return result


def _segment_losses(name: str, breaks: list[SequenceBreak], known: Sidecar | None) -> list[Loss]:
    seen = [_plain(name, found) for found in breaks]
    if known is None:
        return seen
    told = [_told(name, gap) for gap in known.gap_list]
    places = {(loss.seq_before, loss.seq_after) for loss in told}
    others = [
        loss
        for loss in (seen if known.list_truncated else _explained(seen, told))
        if loss.kind != "gap" or (loss.seq_before, loss.seq_after) not in places
    ]
    episodes = [_episode(name, episode) for episode in known.episodes if episode.lost is None]
    return sorted([*told, *others, *episodes], key=lambda loss: loss.offset)


def _plain(name: str, found: SequenceBreak) -> Loss:
    return Loss(
        name,
        found.offset,
        _KIND_NAMES[found.kind],
        found.seq_before,
        found.seq_after,
        found.lost,
        ts_ns=found.ts_ns,
    )


def _told(name: str, gap: _sidecar.Gap) -> Loss:
    return Loss(
        name,
        gap.offset,
        "gap",
        gap.seq_before,
        gap.seq_after,
        gap.lost,
        gap.rejected,
        gap.ts_ns or None,
        gap.host_ns or None,
        gap.cause,
    )


def _explained(seen: list[Loss], told: list[Loss]) -> list[Loss]:
    """Gaps of the dump less what the sidecar tells of them: whole records in the rejects (R10)."""
    offsets = [loss.offset for loss in told]
    sums = list(accumulate(((loss.lost or 0) + loss.rejected for loss in told), initial=0))
    result, known_before = [], 0
    for loss in seen:
        known = sums[bisect_right(offsets, loss.offset)]
        rest = (loss.lost or 0) - (known - known_before)
        known_before = known
        if loss.kind != "gap":
            result.append(loss)
        elif rest > 0:
            result.append(_rejected(loss, rest))
    return result


def _rejected(loss: Loss, count: int) -> Loss:
    """A gap of the dump that the collector did not see as one: it rejected those records (R10)."""
    return Loss(
        loss.file,
        loss.offset,
        "gap",
        loss.seq_before,
        loss.seq_after,
        0,
        count,
        loss.ts_ns,
        cause="rejected",
    )


def _episode(name: str, episode: _sidecar.Episode) -> Loss:
    return Loss(
        name,
        episode.offset,
        "overflow",
        episode.last_seq_before,
        episode.first_seq_after,
        None,
        host_ns=episode.host_ns,
        cause="overflow",
    )


def clock_pairs(dump: Dump) -> list[ClockPair]:
    """Firmware and host clock pairs of all sidecars, in order of the firmware clock."""
    known = [sidecar_of(segment) for segment in dump.segments]
    pairs = [pair for one in known if one for pair in one.clock]
    return sorted(pairs, key=lambda pair: pair.ts_ns)

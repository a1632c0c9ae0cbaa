# SPDX-License-Identifier: Apache-2.0
"""What a sidecar tells about losses inside its file, held against what a walk saw (SPEC R12)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from hmb_trace.dumps.facts import Facts, is_at_begin, notes_of, rejects_gone
from hmb_trace.dumps.filewalk import Beyond
from hmb_trace.dumps.places import DUPLICATE, GLITCH, RESET, Ledger, Place
from hmb_trace.dumps.sidecar import Gap, Reason, Sidecar
from hmb_trace.dumps.walker import BreakKind

_KINDS = {
    BreakKind.DUPLICATE: DUPLICATE,
    BreakKind.RESET: RESET,
    BreakKind.GLITCH: GLITCH,
}
_SEQ = 1 << 32
_CAUSES = {
    "host-died": "the host died while the segment was written",
    "spool-damaged": "the spool was damaged; what it held is lost",
}
_NOTES = {
    "loss-before-attach": ("before-attach", "the ring had overflowed before the daemon came"),
    "loss-unknown": ("unexplained", "the ring's cursors were invalid; what lay between is lost"),
    "segment-vanished": ("segment-vanished", "the segment's file vanished while it was written"),
    "spool-set-aside": ("spool-lost", "a damaged spool was set aside"),
    "fsync-failed": ("sync-failed", "fsync failed; the disk may not hold what was written"),
}


class Rejects:
    """How many missing records the rejects of one file can still account for."""

    def __init__(self, facts: Facts) -> None:
        side = facts.side
        self.at_hand = not rejects_gone(facts)
        self.records = side.rejects.records if side and side.rejects else 0
        told = sum(gap.rejected for gap in side.gap_list) if side else 0
        self._left = max(0, self.records - told) if self.at_hand else 0

    @property
    def left(self) -> int:
        """Records that no gap accounts for yet."""
        return self._left

    def cover(self, missing: int) -> int:
        """So many of the missing records lie in the rejects."""
        found = min(missing, self._left)
        self._left -= found
        return found


class Teller:
    """Puts the places inside one file into the ledger."""

    def __init__(self, facts: Facts, ledger: Ledger) -> None:
        self.facts = facts
        self.ledger = ledger
        self.rejects = Rejects(facts)
        self.glitches = 0

    def tell(self) -> None:
        """All places but those before the first record: these are a seam's."""
        facts = self.facts
        if facts.side is not None:
            for reason in reasons_of(facts.side):
                self._reason(reason)
        told = [g for g in gaps_of(facts.side) if not self._at_begin(g.offset, g.seq_after)]
        if facts.walk is None:
            self._told_alone(told)
        else:
            self._walked(facts.walk.breaks, told)
            if facts.walk.beyond:
                self._beyond(facts.walk.beyond)
        self._rejects()

    def _beyond(self, more: Beyond) -> None:
        if more.lost:
            self.ledger.add_unlisted("unexplained", more.gaps, more.lost)
        for kind, count in ((DUPLICATE, more.duplicates), (RESET, more.resets)):
            if count:
                self.ledger.add_unlisted(kind, count)

    def place(self, kind: str, **more: Any) -> None:
        """Add one place of this file."""
        facts = self.facts
        more.setdefault("epoch", facts.epoch)
        self.ledger.add(Place(kind, facts.index, facts.name, **more))

    def gap(self, gap: Gap, lost: int, rejected: int) -> None:
        """A gap that the sidecar tells of, with the numbers that stand."""
        kind = gap.cause
        if rejected and not self.rejects.at_hand:
            lost, rejected = lost + rejected, 0
        if not lost and not rejected:
            return
        text = "" if gap.confirmed else "the capture ended before this could be confirmed"
        self.place(
            "rejects" if not lost else kind,
            offset=gap.offset,
            seq_before=gap.seq_before,
            seq_after=gap.seq_after,
            lost=lost,
            rejected=rejected,
            ts_ns=gap.ts_ns or None,
            host_ns=gap.host_ns or None,
            text=text,
        )

    def _at_begin(self, offset: int, seq_after: int | None) -> bool:
        return self.facts.side is not None and is_at_begin(self.facts.side, offset, seq_after)

    def _reason(self, reason: Reason) -> None:
        self.place(
            reason.kind,
            epoch=self.facts.epoch if reason.epoch is None else reason.epoch,
            offset=reason.offset,
            seq_before=reason.seq_before,
            seq_after=reason.seq_after,
            lost=reason.count,
            ts_ns=reason.fw_ns,
            host_ns=reason.host_ns,
            text=reason.text,
        )

    def _rejects(self) -> None:
        """What was set aside and belongs to no gap."""
        side = self.facts.side
        if side is None or side.rejects is None or not side.rejects.entries:
            return
        if self.rejects.at_hand and self.rejects.records and not self.rejects.left:
            return  # the gaps say so
        more = "" if self.rejects.at_hand else "; the rejects file is gone"
        self.place(
            "rejects",
            rejected=self.rejects.left,
            text=f"{side.rejects.records} records, {side.rejects.bytes} bytes set aside{more}",
        )

    def _told_alone(self, told: list[Gap]) -> None:
        for gap in told:
            self.gap(gap, gap.lost, gap.rejected)
        side = self.facts.side
        if side is None:
            return
        self.glitches += side.glitches
        for kind in (DUPLICATE, RESET):
            for note in notes_of(side, kind):
                before, after = _seqs(note.detail)
                if not self._at_begin(note.offset, after):
                    self.place(
                        kind,
                        offset=note.offset,
                        seq_before=before,
                        seq_after=after,
                        host_ns=note.host_ns,
                    )

    def _walked(self, breaks: npt.NDArray[Any], told: list[Gap]) -> None:
        side = self.facts.side
        if side is not None and side.filtered:
            return self._told_alone(told)
        last = -1
        for item in breaks:
            if item["kind"] != BreakKind.GAP:
                self._oddity(BreakKind(int(item["kind"])), item)
                continue
            offset = int(item["offset"])
            here = [gap for gap in told if last < gap.offset <= offset]
            self._one_gap(item, here)
            last = offset
        for gap in told:  # in the part of the file that is cut off
            if self.facts.cut and gap.offset > max(last, self.facts.bytes):
                self.gap(gap, gap.lost, gap.rejected)
        return None

    def _one_gap(self, item: Any, told: list[Gap]) -> None:
        rest = int(item["lost"])
        for gap in told:
            lost = min(gap.lost, rest)
            rejected = min(gap.rejected, rest - lost)
            rest -= lost + rejected
            self.gap(gap, lost, rejected)
        covered = self.rejects.cover(rest)
        if covered:
            self.place("rejects", lost=0, rejected=covered, **_where(item))
        if rest > covered:
            self.place("unexplained", lost=rest - covered, **_where(item))

    def _oddity(self, kind: BreakKind, item: Any) -> None:
        """A break where nothing is missing."""
        self.glitches += kind is BreakKind.GLITCH
        self.place(_KINDS[kind], **_where(item))


def _where(item: Any) -> dict[str, int]:
    return {
        "offset": int(item["offset"]),
        "seq_before": int(item["seq_before"]),
        "seq_after": int(item["seq_after"]),
        "ts_ns": int(item["ts_ns"]),
    }


def _seqs(detail: dict[str, int | str]) -> tuple[int | None, int | None]:
    before, after = (detail.get(k, detail.get("seq")) for k in ("seq_before", "seq_after"))
    return (
        before if isinstance(before, int) else None,
        after if isinstance(after, int) else None,
    )


def gaps_of(side: Sidecar | None) -> list[Gap]:
    """The gaps that a sidecar lists, in file order."""
    return sorted(side.gap_list, key=lambda gap: gap.offset) if side else []


def reasons_of(side: Sidecar) -> list[Reason]:
    """What only the daemon knows; worked out from older keys where it did not write it so."""
    if side.reasons is not None:
        return side.reasons
    found = [
        Reason(
            kind="overflow-unknown",
            offset=episode.offset,
            seq_before=episode.last_seq_before,
            seq_after=episode.first_seq_after,
            host_ns=episode.host_ns,
            text="the ring overflowed, and no gap in seq says how much was dropped",
        )
        for episode in side.episodes
        if episode.lost is None
    ]
    for note in side.events:
        if note.id in _NOTES:
            kind, text = _NOTES[note.id]
            found.append(Reason(kind=kind, offset=note.offset, host_ns=note.host_ns, text=text))
    if side.cause in _CAUSES:
        kind = "host-died" if side.cause == "host-died" else "spool-lost"
        found.append(Reason(kind=kind, offset=side.bytes, text=_CAUSES[side.cause]))
    if not side.complete and not found:
        found.append(Reason(kind="unexplained", text="the daemon calls the capture not complete"))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Places in a capture where something is missing or its order breaks, and a ledger of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

LOSS_KINDS = (
    "ring-overflow",  # firmware dropped records, the ring was full
    "overflow-unknown",  # OVERFLOWED without a gap in seq
    "before-attach",  # OVERFLOWED was set before the daemon came
    "firmware-skipped",  # a gap while the ring had room
    "daemon-down",  # the ring filled while no daemon ran
    "host-died",
    "missing-segment",
    "cut-segment",
    "segment-vanished",
    "spool-lost",
    "rejects",  # bytes that were no records; kept in the rejects file
    "sync-failed",
    "bad-sidecar",
    "no-sidecar",
    "disk-full-deleted",
    "unexplained",  # a gap, and nothing says why
)
DUPLICATE, RESET, GLITCH = "duplicate", "sequence-reset", "seq-glitch"
EPOCH, CLOCK = "epoch", "clock-step"
OTHER_KINDS = (DUPLICATE, RESET, GLITCH, EPOCH, CLOCK)  # no losses
UNVERIFIED_KINDS = frozenset(("bad-sidecar", "no-sidecar"))  # say less is known, not that it lacks
PLACES_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Place:
    """One line of `hmb-trace gaps`.

    Attributes:
        segment: index of the file in its dump.
        offset: of the record after it, bytes from the start of its file; None: no place.
        lost: records that nobody has; None: unknown, at least one.
        rejected: missing from the dump, but in the rejects file.
        ts_ns: firmware clock of the record after it; None where no record follows.
        host_ns: host clock when it was noticed; None without a sidecar.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("file", "offset", "kind", "epoch", "seq_before", "seq_after"),
        *("lost", "rejected", "ts_ns", "host_ns", "text"),
    )

    kind: str
    segment: int
    file: str
    offset: int | None = None
    epoch: int | None = None
    seq_before: int | None = None
    seq_after: int | None = None
    lost: int | None = 0
    rejected: int = 0
    ts_ns: int | None = None
    host_ns: int | None = None
    text: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether it is a reason for a verdict, rather than a fact beside it."""
        return self.kind not in OTHER_KINDS

    def as_dict(self) -> dict[str, Any]:
        """Column name to value, in the order of the listing."""
        return {name: getattr(self, name) for name in self.COLUMNS}

    @property
    def order(self) -> tuple[int, int]:
        """Sorts places as the dump is read."""
        return self.segment, -1 if self.offset is None else self.offset


class Ledger:
    """Counts every place, and keeps so many of them.

    Attributes:
        lost: records, the known part.
        gaps: places with lost records, those of unknown extent not counted.
        kinds: how many places of each kind.
        unknown: places of unknown extent.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.kinds: Counter[str] = Counter()
        self.lost_by_kind: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # kind: places that were not kept
        self.dropped_lost: Counter[str] = Counter()
        self.lost = self.gaps = self.unknown = self.rejected = 0

    def add(self, place: Place) -> None:
        """Count a place."""
        self.kinds[place.kind] += 1
        self.rejected += place.rejected
        if place.lost is None:
            self.unknown += place.kind not in UNVERIFIED_KINDS
        elif place.lost:
            self.lost += place.lost
            self.lost_by_kind[place.kind] += place.lost
            self.gaps += 1
        if len(self.places) < PLACES_KEPT:
            self.places.append(place)
        else:
            self.dropped[place.kind] += 1
            self.dropped_lost[place.kind] += place.lost or 0

    def add_unlisted(self, kind: str, count: int, lost: int = 0) -> None:
        """Count places of which nothing else is known."""
        self.kinds[kind] += count
        self.dropped[kind] += count
        if lost:
            self.lost += lost
            self.lost_by_kind[kind] += lost
            self.dropped_lost[kind] += lost
            self.gaps += count

    def in_order(self) -> list[Place]:
        """The places kept, as the dump is read."""
        return sorted(self.places, key=lambda place: place.order)

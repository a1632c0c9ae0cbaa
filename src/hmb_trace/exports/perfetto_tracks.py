# SPDX-License-Identifier: Apache-2.0
"""Tracks of a Perfetto trace, and the lanes that overlapping slices need. Bounded in number."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from hmb_trace.exports.perfetto_packets import Packets

MOST_TRACKS = 4096
MOST_LANES = 256  # of one track


@dataclass(slots=True)
class Track:
    """A track and its lanes.

    Attributes:
        first: uuid of the first lane, which instants go to.
        free: lanes by the end of their last slice: (end, uuid), in order.
    """

    name: str
    first: int
    free: list[tuple[int, int]] = field(default_factory=list)


class Tracks:
    """Gives out tracks by name and value, each piece of the clock its own.

    Attributes:
        folded: records of values beyond MOST_TRACKS, which share a track.
    """

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._tracks: dict[tuple[str, int | None], Track] = {}
        self._counters: dict[tuple[str, str], int] = {}
        self._suffix = ""
        self._made = 0
        self.folded = 0

    def begin_piece(self, suffix: str) -> None:
        """From here on all tracks are new ones, whose names end so."""
        self._tracks = {}
        self._counters.clear()
        self._suffix = suffix

    def of(self, label: str, value: int) -> Track:
        """The track `label value`; one for all further values once there are MOST_TRACKS."""
        track = self._tracks.get((label, value))
        if track is not None:
            return track
        if self._made < MOST_TRACKS or label == "cpu":
            return self._new((label, value), f"{label} {value}")
        self.folded += 1
        known = self._tracks.get((label, None))
        return known or self._new((label, None), f"{label} (others)")

    def _new(self, key: tuple[str, int | None], name: str) -> Track:
        self._made += 1
        uuid = self._packets.track(name + self._suffix)
        track = self._tracks[key] = Track(name + self._suffix, uuid, [(0, uuid)])
        return track

    def counter(self, name: str, base: str, unit: str) -> int:
        """The uuid of a counter's track."""
        key = (name, base)
        if key not in self._counters:
            title = f"{name} {base}".strip() if base else name + self._suffix
            self._counters[key] = self._packets.track(title, counter_unit=unit)
        return self._counters[key]

    def lane(self, track: Track, begin: int, end: int) -> int | None:
        """A lane in which nothing else stands from begin on; None: they are all taken."""
        index = bisect_right(track.free, (begin, 1 << 64)) - 1
        if index >= 0:
            uuid = track.free.pop(index)[1]
        elif len(track.free) < MOST_LANES:
            uuid = self._packets.track(track.name)
        else:
            return None
        track.free.insert(bisect_right(track.free, (end, uuid)), (end, uuid))
        return uuid

    def concerned(self, most: int) -> list[Track]:
        """The tracks on which records of this piece may be missing; the cores' if they are many."""
        if len(self._tracks) <= most:
            return list(self._tracks.values())
        return [track for (label, _), track in self._tracks.items() if label == "cpu"]

# SPDX-License-Identifier: Apache-2.0
"""Names of a dump set's files: <label>-<number>-<UTC start>.bin and what lies beside it.

The number orders the segments, whatever the clock did.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

BIN = ".bin"
ZST = ".bin.zst"
PART = ".bin.part"
ENDINGS = (BIN, ZST, PART)  # of dumps, the better one of two copies first
SIDECAR = ".json"
REJECTS = ".rejects"
_STEM = re.compile(r"(?P<label>.+)-(?P<number>\d{6,})-(?P<start>[0-9A-Za-z:.+-]+)")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A segment's name taken apart."""

    label: str
    number: int
    start: str  # as in the name: 20260131T120000Z

    @property
    def stem(self) -> str:
        """The name without suffix."""
        return f"{self.label}-{self.number:06d}-{self.start}"


def make(label: str, number: int, started_ns: int) -> SegmentName:
    """The name of a new segment; started_ns: host clock, since 1970."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_ns // 10**9))
    return SegmentName(label, number, stamp)


def stem_of(name: str) -> str:
    """X of X.bin, X.bin.zst, X.bin.part, X.json and X.rejects; other names as they are."""
    for ending in (*ENDINGS, SIDECAR, REJECTS):
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending)
    return name


def parse(name: str) -> SegmentName | None:
    """The parts of a segment's name, with or without suffix; None: not such a name."""
    match = _STEM.fullmatch(stem_of(name))
    return SegmentName(match["label"], int(match["number"]), match["start"]) if match else None


def is_dump(name: str) -> bool:
    """Whether a file of this name in a directory is meant to be a dump."""
    return name.endswith(ENDINGS) and not name.startswith(".")


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Orders names as people do: a2 before a10."""
    parts = _DIGITS.split(name)
    return [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in parts if p]

# SPDX-License-Identifier: Apache-2.0
"""One thing that is wrong in a capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# What matters more comes first; within a kind, what happened more often.
WEIGHTS = {
    "loss": 100,
    "damage": 90,
    "restart": 85,
    "clock": 80,
    "order": 75,
    "ring": 72,
    "error": 70,
    "unended": 60,
    "silence": 55,
    "slow": 50,
    "runaway": 45,
    "burst": 40,
    "warning": 30,
}


@dataclass(frozen=True)
class Place:
    """Where to look. Times are the firmware's, nanoseconds; offsets bytes into the file."""

    file: str | None = None
    offset: int | None = None
    seq: int | None = None
    ts_ns: int | None = None


@dataclass(frozen=True)
class Finding:
    """A statement about a capture, and what it rests on.

    Attributes:
        kind: a key of WEIGHTS.
        subject: what it is about.
        text: the statement, with its numbers.
        count: how often.
        place: the first one, or the worst.
        also: further facts, one line each.
        look: a command that shows it.
    """

    kind: str
    subject: str
    text: str
    count: int = 1
    place: Place = field(default_factory=Place)
    also: tuple[str, ...] = ()
    look: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the most important first."""
        return -WEIGHTS[self.kind], -self.count

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        shown["place"] = {n: getattr(self.place, n) for n in Place.__dataclass_fields__}
        shown["also"] = list(self.also)
        return shown

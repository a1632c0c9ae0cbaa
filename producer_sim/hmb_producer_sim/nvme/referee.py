# SPDX-License-Identifier: Apache-2.0
"""What host or firmware did that the NVMe specification, or the trace contract, forbids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MOST_LINES = 50  # of one kind of message; a broken client must not fill the disk


class Referee:
    """Collects violations; each is told once, when it happens.

    Attributes:
        violations: what was seen, bounded; `count` is all of it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: Counter[str] = Counter()
        self.violations: list[str] = []
        self.count = 0

    def violation(self, text: str) -> None:
        """A rule was broken: the run will fail."""
        self.count += 1
        if len(self.violations) < MOST_LINES:
            self.violations.append(text)
            self._say(f"violation: {text}")

    def note(self, kind: str, text: str) -> None:
        """Something worth a line, at most MOST_LINES times for each kind."""
        self._said[kind] += 1
        if self._said[kind] <= MOST_LINES:
            self._say(text)
        elif self._said[kind] == MOST_LINES + 1:
            self._say(f"{kind}: no more lines about this")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""requirements.py EXTRA: what an extra of pyproject.toml asks for, one requirement a line.

Installing these by themselves spares building the C libraries once more for each extra.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def expand(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """The extra's requirements, extras of our own replaced by theirs."""
    found: list[str] = []
    for requirement in extras[extra]:
        own = re.fullmatch(r"hmb-trace\[([\w,-]+)\]", requirement)
        names = own[1].split(",") if own else []
        found += [r for name in names for r in expand(name, extras)] or [requirement]
    return found


def main() -> None:
    """Print them."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if len(sys.argv) != 2 or sys.argv[1] not in extras:
        sys.exit(f"usage: requirements.py {'|'.join(extras)}")
    print("\n".join(expand(sys.argv[1], extras)))


if __name__ == "__main__":
    main()

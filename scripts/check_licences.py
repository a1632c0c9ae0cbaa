#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence, every licence named has its text in LICENSES/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = {".py", ".c", ".h", ".sh", ".toml", ".mk", ".js", ".css", ".pml", ".S", ".service"}
NAMES = {"Makefile", "Kbuild"}
TAG = re.compile(r"SPDX-License-Identifier:\s*([^\n*]+?)\s*(?:\*/|-->|#}|$)", re.MULTILINE)
HEAD_LINES = 3
# Licences that are named in an expression but are exceptions to one, not texts of their own.
EXCEPTION = "Linux-syscall-note"


def tracked() -> list[Path]:
    """Every file under version control."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


def must_name_licence(path: Path) -> bool:
    """Source, not data: golden files and vectors are made by sources that name theirs."""
    if "golden" in path.parts or "test-vectors" in path.parts:
        return False
    return path.suffix in SOURCE or path.name in NAMES


def identifiers(expression: str) -> set[str]:
    """The licences in an SPDX expression."""
    words = re.findall(r"[A-Za-z0-9.+-]+", expression)
    return {w for w in words if w not in {"OR", "AND", "WITH", EXCEPTION}}


def problems(path: Path, known: set[str]) -> list[str]:
    """What is wrong with one file, in words."""
    try:
        head = "\n".join(path.read_text(encoding="utf-8").splitlines()[:HEAD_LINES])
    except UnicodeDecodeError:
        return [f"{path}: not UTF-8"]
    found = TAG.search(head)
    if not found:
        return [f"{path}: no SPDX-License-Identifier in its first {HEAD_LINES} lines"]
    unknown = identifiers(found[1]) - known
    return [f"{path}: {name} has no text in LICENSES/" for name in sorted(unknown)]


def main() -> int:
    """Check all tracked files; 1 when one lacks its licence."""
    # GPL-2.0 and GPL-2.0-only name the same text; the kernel uses the first form.
    known = {path.stem for path in Path("LICENSES").glob("*.txt")}
    known |= {f"{name}-only" for name in known}
    found = [
        p for f in tracked() if f.exists() and must_name_licence(f) for p in problems(f, known)
    ]
    print("\n".join(found) if found else "licences: every source file names one that is here")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""How much memory the spool takes where nobody said: of what this process may use, and is free."""

from __future__ import annotations

import os
from pathlib import Path

_MIB = 1 << 20
_LEAST = 64 * _MIB
_MOST = 1024 * _MIB
_SHARE_OF_MEMORY = 32
_MOST_OF_MEMORY = 8  # of a small limit no more than this share, whatever the least is
_SHARE_OF_TMPFS = 4  # of what is free: the next daemon finds three quarters of that
_CGROUP = Path("/sys/fs/cgroup")


def memory_limit(cgroup: Path | None = None) -> int:
    """Bytes that this process may use: RAM, or less where a memory cgroup says so."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    folder = cgroup if cgroup is not None else _own_cgroup()
    limits = [ram]
    while folder is not None:
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _limit_in(folder / name)
        folder = folder.parent if folder not in (_CGROUP, folder.parent) else None
    return min(limits)


def _limit_in(path: Path) -> list[int]:
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []  # else "max"


def _own_cgroup() -> Path | None:
    """Of version 2, or the memory controller's of version 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            return _CGROUP / path.lstrip("/")
        if "memory" in controllers.split(","):
            return _CGROUP / "memory" / path.lstrip("/")
    return None


def default_size(limit: int, free: int) -> int:
    """Bytes of a spool.

    Args:
        limit: memory that the process may use.
        free: room in the tmpfs.
    """
    wanted = min(max(limit // _SHARE_OF_MEMORY, _LEAST), _MOST, limit // _MOST_OF_MEMORY)
    return min(wanted, free // _SHARE_OF_TMPFS) & ~(_MIB - 1)


def free_in(directory: Path) -> int:
    """Bytes that a file system has left for us."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize

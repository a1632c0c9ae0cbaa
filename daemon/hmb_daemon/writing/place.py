# SPDX-License-Identifier: Apache-2.0
"""The output directory, by its descriptor: what others do to its name does not move our files.

A directory that is renamed takes its open segment along, which is sealed where it went.  One
whose file system is gone is never replaced by the bare mount point below it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def mount_point(path: Path) -> Path:
    """The directory that the file system of an existing path is mounted on."""
    path = path.resolve()
    device = path.stat().st_dev
    while path.parent != path and path.parent.stat().st_dev == device:
        path = path.parent
    return path


def is_mounted(point: Path) -> bool:
    """Whether something is (still) mounted there."""
    if point.parent == point:
        return True
    try:
        return point.stat().st_dev != point.parent.stat().st_dev
    except OSError:
        return False


class Place:
    """A directory that files are made in. Names are relative to it."""

    def __init__(self, path: Path) -> None:
        """Open it, making it when missing.

        Raises:
            OSError: as the system says.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.fd = os.open(path, _DIRECTORY)

    def is_where_it_was(self) -> bool:
        """Whether its path still leads to it."""
        try:
            return os.path.samestat(os.fstat(self.fd), self.path.stat())
        except OSError:
            return False

    def is_deleted(self) -> bool:
        """Whether it has no name any more: nothing can be made in it."""
        return os.fstat(self.fd).st_nlink == 0

    def open(self, name: str, flags: int) -> int:
        """Open a file of ours: a regular one, never through a link, never somebody else's.

        Raises:
            OSError: as the system says; EPERM: no regular file, or another user's.
        """
        fd = os.open(name, flags | _OPEN | os.O_NONBLOCK, 0o644, dir_fd=self.fd)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return fd
        os.close(fd)
        raise PermissionError(errno.EPERM, "not a regular file of this user", name)

    def stat(self, name: str) -> os.stat_result | None:
        """What stands under a name, links not followed; None: nothing."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_at(self, fd: int, name: str) -> bool:
        """Whether a name leads to an open file."""
        found = self.stat(name)
        return found is not None and os.path.samestat(os.fstat(fd), found)

    def rename(self, source: str, target: str) -> None:
        """Rename inside the directory."""
        os.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def rename_if_there(self, source: str, target: str) -> None:
        """Rename, unless that has happened already.

        Raises:
            FileNotFoundError: neither is there.
        """
        try:
            self.rename(source, target)
        except FileNotFoundError:
            if self.stat(target) is None:
                raise

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def sync(self) -> None:
        """Make renames last."""
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


class NotMountedError(OSError):
    """The file system that the output lies on is not there."""


class Home:
    """Where the output directory belongs: opens it again after something happened to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mount: Path | None = None

    def open(self) -> Place:
        """The directory that its path leads to now.

        Raises:
            NotMountedError: the file system it lay on was taken away: the directory below the
                mount point is not where the capture belongs.
            OSError: as the system says.
        """
        if self._mount is not None and not is_mounted(self._mount):
            raise NotMountedError(errno.ENODEV, f"nothing is mounted on {self._mount} any more")
        place = Place(self.path)
        if self._mount is None:
            self._mount = mount_point(self.path)
        return place

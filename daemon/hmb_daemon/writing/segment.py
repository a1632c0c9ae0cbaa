# SPDX-License-Identifier: Apache-2.0
"""The files of one segment: opened, appended to, sealed.

While it is written a segment is X.bin.part, X.events.part and, when something
was rejected, X.rejects.part.  Sealing leaves X.bin, X.json and X.rejects; every
step of it can be repeated, so that a start after a crash simply seals again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from hmb_daemon.host.testpoints import point
from hmb_daemon.writing import names
from hmb_daemon.writing.sink import Sink, Write

_COPY_CHUNK = 1 << 20
_CREATE = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC


def open_data(path: Path, flags: int, *, direct: bool) -> tuple[int, bool]:
    """Open a segment's data file, with direct I/O where the file system takes it."""
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o644), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            flags &= ~os.O_EXCL  # it was made before the flag was refused
    return os.open(path, flags, 0o644), False


class Segment:
    """An open segment. Offsets are bytes into the respective file.

    Args:
        directory: where it lies.
        name: its name without suffix.
        offset, events_offset, rejects_offset: where the files go on; 0: a new segment.
        suffix: of the dump once it is sealed.
        fresh: it must not be there yet.

    Raises:
        FileExistsError: `fresh`, and another daemon took this name.
        OSError: as the system says; nothing half-open remains.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        offset: int = 0,
        events_offset: int = 0,
        rejects_offset: int = 0,
        direct: bool = True,
        pwrite: Write = os.pwrite,
        reserve: int = 0,
        suffix: str = names.BIN,
        fresh: bool = False,
    ) -> None:
        self.directory = directory
        self.name = name
        self.suffix = suffix
        self.events_offset = events_offset
        self.rejects_offset = rejects_offset
        self._rejects_fd = -1
        self._log_dirty = False
        directory.mkdir(parents=True, exist_ok=True)
        flags = _CREATE | os.O_EXCL if fresh else _CREATE
        part = self.path(suffix + names.PART)
        if fresh and (self.path(suffix).exists() or self.path(suffix + ".zst").exists()):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(part))
        fd, is_direct = open_data(part, flags, direct=direct)
        self._events_fd = -1
        try:
            self._events_fd = os.open(self.path(names.EVENTS_PART), _CREATE, 0o644)
            os.ftruncate(self._events_fd, events_offset)
            # Tells a later start, and other daemons, that this part is not an orphan.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.sink = Sink(fd, offset, direct=is_direct, pwrite=pwrite, reserve=reserve)
            if offset:
                self.sink.resume()
            self._open_rejects(create=False)
        except BaseException:
            if fresh:
                part.unlink(missing_ok=True)
            if self._events_fd >= 0:
                os.close(self._events_fd)
            os.close(fd)
            raise

    def path(self, suffix: str) -> Path:
        """One of the segment's files."""
        return self.directory / (self.name + suffix)

    def _open_rejects(self, *, create: bool) -> None:
        flags = _CREATE if create else _CREATE & ~os.O_CREAT
        try:
            self._rejects_fd = os.open(self.path(names.REJECTS_PART), flags, 0o644)
        except FileNotFoundError:
            return
        os.ftruncate(self._rejects_fd, self.rejects_offset)

    def append_events(self, data: bytes) -> None:
        """Append to the event log; may be called again with the same bytes after an error."""
        _write_all(self._events_fd, data, self.events_offset)
        self.events_offset += len(data)
        self._log_dirty = True

    def append_rejects(self, data: bytes) -> None:
        """Append entries to the rejects file, which is made by the first."""
        if self._rejects_fd < 0:
            self._open_rejects(create=True)
        _write_all(self._rejects_fd, data, self.rejects_offset)
        self.rejects_offset += len(data)
        self._log_dirty = True

    def sync(self) -> None:
        """fdatasync of everything that was written since the last."""
        self.sink.sync()
        if self._log_dirty:
            os.fdatasync(self._events_fd)
            if self._rejects_fd >= 0:
                os.fdatasync(self._rejects_fd)
            self._log_dirty = False

    def finish_data(self) -> None:
        """Cut off the padding and what was reserved, and bring all of it to the disk."""
        os.ftruncate(self.sink.fd, self.sink.in_file)
        os.fsync(self.sink.fd)
        self.sink.dirty = False
        self.sync()

    @property
    def events_fd(self) -> int:
        """The event log, to read from."""
        return self._events_fd

    def restore(self) -> bool:
        """Make files again that somebody deleted while they were open; whether there were any.

        What was written to them is still there as long as they are open.

        Raises:
            OSError: they cannot be made; may be called again.
        """
        dump, sealed = self.path(self.suffix + names.PART), self.path(self.suffix)
        gone = not _is_at(self.sink.fd, dump) and not _is_at(self.sink.fd, sealed)
        if gone:
            self.directory.mkdir(parents=True, exist_ok=True)
            fd = _copy_of(self.sink.fd, dump)
            os.close(self.sink.fd)
            self.sink.fd, self.sink.dirty = fd, True
        if gone and not _is_at(self._events_fd, self.path(names.EVENTS_PART)):
            fd = _copy_of(self._events_fd, self.path(names.EVENTS_PART))
            os.close(self._events_fd)
            self._events_fd, self._log_dirty = fd, True
        if gone and self._rejects_fd >= 0:
            self._restore_rejects()
        return gone

    def _restore_rejects(self) -> None:
        path = self.path(names.REJECTS_PART)
        if _is_at(self._rejects_fd, path) or _is_at(self._rejects_fd, self.path(names.REJECTS)):
            return
        fd = _copy_of(self._rejects_fd, path)
        os.close(self._rejects_fd)
        self._rejects_fd = fd

    def close(self) -> None:
        """Close the files; the segment stays as it is."""
        self.sink.close()
        os.close(self.sink.fd)
        os.close(self._events_fd)
        if self._rejects_fd >= 0:
            os.close(self._rejects_fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether a path leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _copy_of(fd: int, path: Path) -> int:
    """A copy of an open file under `path`, opened and locked like the file itself."""
    temporary = path.with_name(path.name + ".tmp")
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    copy = os.open(temporary, _CREATE | os.O_TRUNC, 0o644)
    try:
        fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with Path(f"/proc/self/fd/{fd}").open("rb", buffering=0) as source:
            while data := source.read(_COPY_CHUNK):
                _write_all(copy, data, os.lseek(copy, 0, os.SEEK_END))
        fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | flags)
        temporary.replace(path)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_sidecar(directory: Path, name: str, data: bytes) -> None:
    """Write X.json: whole or not at all."""
    target = directory / (name + names.SIDECAR)
    temporary = target.with_name(target.name + ".tmp")
    fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o644)
    try:
        _write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(target)


def sync_directory(directory: Path) -> None:
    """Make renames last."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename_if_there(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except FileNotFoundError:
        if not target.exists():
            raise


def publish(
    directory: Path, name: str, side: bytes | None, *, rejects: bool, suffix: str = names.BIN
) -> None:
    """The steps of sealing after the data is on the disk; each may be repeated.

    Args:
        side: the sidecar's bytes; None: it is there already.
        rejects: whether the segment has a rejects file.
    """
    if side is not None:
        write_sidecar(directory, name, side)
    point("seal-sidecar")
    if rejects:
        _rename_if_there(
            directory / (name + names.REJECTS_PART), directory / (name + names.REJECTS)
        )
    point("seal-rejects")
    _rename_if_there(directory / (name + suffix + names.PART), directory / (name + suffix))
    point("seal-renamed")
    sync_directory(directory)
    point("seal-synced")
    (directory / (name + names.EVENTS_PART)).unlink(missing_ok=True)
    if not rejects:
        (directory / (name + names.REJECTS_PART)).unlink(missing_ok=True)
    point("seal-events")

# SPDX-License-Identifier: Apache-2.0
"""The files of one segment: opened, appended to, looked after, published.

While it is written a segment is X.bin.part, X.events.part and, when something
was rejected, X.rejects.part.  Sealing leaves X.bin, X.json and X.rejects; every
step of it can be repeated, so that a start after a crash simply seals again.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
from collections.abc import Callable, Iterator

from hmb_daemon.errors_table import NOT_SUPPORTED
from hmb_daemon.host.testpoints import point
from hmb_daemon.writing import names
from hmb_daemon.writing.place import Place
from hmb_daemon.writing.sink import Sink, Write

_COPY_CHUNK = 1 << 20
_CREATE = os.O_CREAT | os.O_RDWR


class Condition(enum.Enum):
    """How an open file is found."""

    WELL = enum.auto()
    DELETED = enum.auto()  # it has no name any more
    MOVED = enum.auto()  # it has another name, or its directory has
    CUT = enum.auto()  # it is shorter than what was written to it


class LogFile:
    """An append-only file beside the dump; made by the first append."""

    def __init__(self, place: Place, name: str, size: int) -> None:
        self.place = place
        self.name = name
        self.size = size
        self.fd = -1
        self._dirty = False

    def open(self, *, fresh: bool = False) -> None:
        """Open or make it, and cut off what was written beyond `size`."""
        fd = self.place.open(self.name, _CREATE | os.O_EXCL if fresh else _CREATE)
        try:
            os.ftruncate(fd, self.size)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd

    def open_if_there(self) -> None:
        """Open it where an earlier daemon made it, and has not renamed it yet."""
        if self.place.stat(self.name):
            self.open()

    def append(self, data: bytes) -> None:
        """May be called again with the same bytes after an error."""
        if self.fd < 0:
            self.open()
        write_all(self.fd, data, self.size)
        self.size += len(data)
        self._dirty = True

    def sync(self) -> None:
        """fdatasync of what was written since the last."""
        if self.fd >= 0 and self._dirty:
            os.fdatasync(self.fd)
            self._dirty = False

    def restore(self, *other_names: str) -> None:
        """Make it again where somebody took it away; what was written is still open."""
        if self.fd < 0 or any(self.place.is_at(self.fd, n) for n in (self.name, *other_names)):
            return
        if self.place.stat(self.name) is None:
            fd = copy_of(self.place, self.fd, self.name)
            os.close(self.fd)
            self.fd, self._dirty = fd, True

    def close(self) -> None:
        """Close it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SegmentFiles:
    """The three files of an open segment. Offsets are bytes into the respective file.

    Args:
        place: where it lies; the caller's.
        name: its name without suffix.
        suffix: of the dump once it is sealed.
        offset, events_size, rejects_size: where the files go on; 0: a new segment.
        fresh: it must not be there yet.
        no_lock: called with the error where the file system has no locks.

    Raises:
        FileExistsError: `fresh`, and another daemon took this name.
        OSError: as the system says; nothing half-open remains.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        *,
        offset: int = 0,
        events_size: int = 0,
        rejects_size: int = 0,
        direct: bool = True,
        pwrite: Write = os.pwrite,
        reserve: int = 0,
        suffix: str = names.BIN,
        fresh: bool = False,
        no_lock: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.place, self.name, self.suffix = place, name, suffix
        self.part, self.sealed = name + suffix + names.PART, name + suffix
        self.events = LogFile(place, name + names.EVENTS_PART, events_size)
        self.rejects = LogFile(place, name + names.REJECTS_PART, rejects_size)
        taken = fresh and any(place.stat(name + s) for s in (suffix, suffix + ".zst"))
        if taken:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.part)
        with contextlib.ExitStack() as undo:
            fd = place.open(self.part, _CREATE | os.O_EXCL if fresh else _CREATE)
            undo.callback(os.close, fd)
            if fresh:
                undo.callback(place.unlink, self.part)
            _lock(fd, no_lock)
            self.events.open(fresh=fresh)
            undo.callback(self.events.close)
            if fresh:
                undo.callback(place.unlink, name + names.EVENTS_PART)
            self.rejects.open_if_there()
            undo.callback(self.rejects.close)
            self.sink = Sink(fd, offset, direct=direct, pwrite=pwrite, reserve=reserve)
            undo.callback(self.sink.close)
            if offset:
                self.sink.resume()
            self.sink.go_direct()
            undo.pop_all()

    def sync(self) -> None:
        """fdatasync of everything that was written since the last."""
        self.sink.sync()
        self.events.sync()
        self.rejects.sync()

    def bytes_beside(self) -> int:
        """Of the event log and the rejects."""
        return self.events.size + self.rejects.size

    def condition(self) -> Condition:
        """What others did to the dump while it was open."""
        found = os.fstat(self.sink.fd)
        at_home = self.place.is_at(self.sink.fd, self.part)
        if not at_home and not self.place.is_at(self.sink.fd, self.sealed):
            return Condition.MOVED if found.st_nlink else Condition.DELETED
        if found.st_size < self.sink.in_file:
            return Condition.CUT
        return Condition.WELL if self.place.is_where_it_was() else Condition.MOVED

    def use_place(self, place: Place) -> None:
        """Go on in another directory: the one that the files lay in was deleted."""
        self.place = place
        self.events.place = self.rejects.place = place

    def restore(self) -> bool:
        """Make files again that somebody deleted; whether the dump was among them.

        Raises:
            OSError: they cannot be made; may be called again. FileExistsError: something else
                stands under the name now.
        """
        deleted = self.condition() is Condition.DELETED
        if deleted:
            if self.place.stat(self.part) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.part)
            self.sink.replace_file(copy_of(self.place, self.sink.fd, self.part))
        self.events.restore()
        self.rejects.restore(self.name + names.REJECTS)
        return deleted

    def reopen(self) -> None:
        """Take a new descriptor of the same file, as a stale one may be the trouble (NFS)."""
        if not self.place.is_at(self.sink.fd, self.part):
            return
        fd = self.place.open(self.part, os.O_RDWR)
        if os.path.samestat(os.fstat(fd), os.fstat(self.sink.fd)):
            self.sink.replace_file(fd)
        else:
            os.close(fd)

    def close(self) -> None:
        """Close the files; the segment stays as it is."""
        self.sink.close()
        os.close(self.sink.fd)
        self.events.close()
        self.rejects.close()


def _lock(fd: int, no_lock: Callable[[OSError], None]) -> None:
    """Tell a later start, and other daemons, that this part is not an orphan."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
        no_lock(error)


def copy_of(place: Place, fd: int, name: str) -> int:
    """A copy of an open file under a name that is free, locked like the file itself.

    Raises:
        OSError: as the system says; nothing remains under the name.
    """
    temporary = name + ".tmp"
    place.unlink(temporary)
    copy = place.open(temporary, _CREATE | os.O_EXCL)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with buffered(fd):
            _copy_bytes(fd, copy)
        place.rename(temporary, name)
    except BaseException:
        os.close(copy)
        place.unlink(temporary)
        raise
    return copy


@contextlib.contextmanager
def buffered(fd: int) -> Iterator[None]:
    """Without direct I/O for a moment: reads of any size and place."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        yield
        return
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _copy_bytes(source: int, target: int) -> None:
    offset = 0
    while data := os.pread(source, _COPY_CHUNK, offset):
        write_all(target, data, offset)
        offset += len(data)


def write_all(fd: int, data: bytes, offset: int) -> None:
    """pwrite until all of it is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_whole(place: Place, name: str, data: bytes) -> None:
    """Write a file: whole or not at all."""
    temporary = name + ".tmp"
    place.unlink(temporary)
    fd = place.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    place.rename(temporary, name)


def publish(
    place: Place,
    name: str,
    side: bytes | None,
    *,
    rejects: bool,
    suffix: str = names.BIN,
    sync: Callable[[], None] | None = None,
) -> None:
    """The steps of sealing after the data is on the disk; each may be repeated.

    Args:
        side: the sidecar's bytes; None: it is there already.
        rejects: whether the segment has a rejects file.
        sync: makes the renames last; default: the directory's fsync.
    """
    if side is not None:
        write_whole(place, name + names.SIDECAR, side)
    point("seal-sidecar")
    if rejects:
        place.rename_if_there(name + names.REJECTS_PART, name + names.REJECTS)
    point("seal-rejects")
    place.rename_if_there(name + suffix + names.PART, name + suffix)
    point("seal-renamed")
    (sync or place.sync)()
    point("seal-synced")
    place.unlink(name + names.EVENTS_PART)
    if not rejects:
        place.unlink(name + names.REJECTS_PART)
    point("seal-events")

# SPDX-License-Identifier: Apache-2.0
"""Segments that outlived their host (SPEC R14): found at the start, sealed beside the capture.

The start only takes their locks and looks for the last sequence number near their ends.  A
thread seals them.  Nothing that is not zero is deleted or cut away: bytes that are no records
go to the rejects (reason host-died), and what follows them stays in the dump.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from hmb_daemon.errors_table import NOT_SUPPORTED
from hmb_daemon.recovery import dump_scan
from hmb_daemon.spool.causes import Cause
from hmb_daemon.spool.journal import COUNTER_NAMES
from hmb_daemon.writing import event_log, names
from hmb_daemon.writing.event_log import Beginning
from hmb_daemon.writing.place import Place
from hmb_daemon.writing.segment import publish, write_all, write_whole
from hmb_daemon.writing.sidecar_builder import Lists, Origin, SidecarBuilder, lists_of
from hmb_daemon.writing.walk import begin_walk, walk_on
from hmb_trace._core import lib
from hmb_trace.dumps import rejects
from hmb_trace.dumps.sidecar import Reason, Sidecar
from hmb_trace.errors import BusyError, InvalidDataError
from hmb_trace.live.ring import lock_holder

_CHUNK = 4 << 20
_REJECT_MAX = 16 << 20  # bytes of one entry
_FIRST_S = 1.0
_MAX_S = 30.0


@dataclass(slots=True)
class Orphan:
    """A .part that is locked for us and not sealed yet."""

    found: names.Found
    fd: int
    last_seq: int | None
    end: int = 0  # of the last record


def adopt(directory: Path, label: str, log: Any, *, keep: str = "") -> list[Orphan]:
    """Lock every .part of this label that no spool stands behind, in order.

    Args:
        keep: name of a segment that a spool continues; left alone.

    Raises:
        BusyError: another daemon writes segments of this label here.
        OSError: as the system says.
    """
    orphans = []
    for found in names.scan(directory, label):
        if not found.suffix.endswith(names.PART) or found.name == keep:
            continue
        part = found.name + found.suffix
        if not names.is_plain(directory, part):
            log.warning(
                "foreign-file",
                path=str(directory / part),
                action="no regular file of this user; left alone",
            )
            continue
        orphans.append(_adopt_one(directory, found))
    return orphans


def _adopt_one(directory: Path, found: names.Found) -> Orphan:
    path = directory / (found.name + found.suffix)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = lock_holder(fd)
        os.close(fd)
        raise BusyError(
            f"{path} is being written by {f'pid {pid}' if pid else 'another daemon'}; two "
            "captures in one directory need different names: give another --label"
        ) from error
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            os.close(fd)
            raise
    size = os.fstat(fd).st_size
    walk = dump_scan.last_walk(fd, size, _boundaries(directory, found.name))
    if walk is None:
        return Orphan(found, fd, None)
    return Orphan(found, fd, int(walk.last_record_seq), int(walk.offset))


def _boundaries(directory: Path, name: str) -> list[int]:
    """Offsets of records that the event log knows."""
    with contextlib.suppress(OSError), _open_log(directory, name) as fd:
        entries = event_log.read(fd, os.fstat(fd).st_size)
        base = next(entries, None)
        if base is not None:
            return [e.pos - base.pos for e in entries if e.kind == lib.HMB_EV_INDEX]
    return []


@contextlib.contextmanager
def _open_log(directory: Path, name: str) -> Iterator[int]:
    path = directory / (name + names.EVENTS_PART)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


class Sealer:
    """Seals orphans, one after the other.

    Args:
        sealed: called with name and number after each.
    """

    def __init__(
        self,
        directory: Path,
        orphans: list[Orphan],
        origin: Origin,
        cause: Cause,
        log: Any,
        *,
        sealed: Callable[[str, int], None] = lambda name, number: None,
    ) -> None:
        self.left = list(orphans)
        self._directory = directory
        self._origin = origin
        self._cause = cause
        self._log = log
        self._sealed = sealed

    def run(self, wait: Callable[[float], bool] = lambda seconds: True) -> None:
        """Seal all of them; what fails is tried again.

        Args:
            wait: waits so many seconds; True: asked to end, what is left stays for the next start.
        """
        delay = _FIRST_S
        while self.left:
            orphan = self.left[0]
            try:
                side = self._seal(orphan)
            except OSError as error:
                self._log.error("recovery-failed", segment=orphan.found.name, error=error.strerror)
                if wait(delay):
                    return
                delay = min(2 * delay, _MAX_S)
                continue
            os.close(orphan.fd)
            self.left.pop(0)
            self._sealed(orphan.found.name, side.number)
            delay = _FIRST_S

    def close(self) -> None:
        """Give up the locks of what is left."""
        for orphan in self.left:
            os.close(orphan.fd)
        self.left = []

    def _seal(self, orphan: Orphan) -> Sidecar:
        place = Place(self._directory)
        try:
            return self._seal_in(place, orphan)
        finally:
            place.close()

    def _seal_in(self, place: Place, orphan: Orphan) -> Sidecar:
        name, fd = orphan.found.name, orphan.fd
        size = os.fstat(fd).st_size
        parts = list(dump_scan.stretches(fd, size))
        damaged = [part for part in parts if not part.good]
        kept = _Rejects(place, name)
        for part in damaged:
            kept.add(fd, part)
        kept.write()
        if damaged:
            fd = _without(place, orphan, parts)
        else:
            os.ftruncate(fd, parts[-1].end if parts else 0)  # zeros were reserved, never written
            os.fsync(fd)
        walk, _ = walked = _walk(fd)
        rejected = sum(part.end - part.start for part in damaged)
        # Beyond the first damage the log's offsets are no longer those of the file.
        known = damaged[0].start if damaged else int(walk.offset)
        side = self._describe(orphan.found, walked, kept, rejected, known)
        publish(place, name, side.encode(), rejects=kept.entries > 0, sync=lambda: _sync(place))
        if fd != orphan.fd:
            os.close(fd)
        self._log.warning(
            "segment-recovered",
            segment=side.segment,
            cause=side.cause,
            records=side.records,
            bytes=side.bytes,
            rejected_bytes=rejected,
            cut_zeros=size - (parts[-1].end if parts else 0),
        )
        return side

    def _describe(
        self, found: names.Found, walked: tuple[Any, str], kept: _Rejects, rejected: int, known: int
    ) -> Sidecar:
        walk, digest = walked
        lists, begin = _read_log(self._directory, found.name, known)
        counted = _counted(walk, lists, kept.entries, rejected)
        builder = SidecarBuilder(found.name + names.BIN, found.number, self._origin, self._cause)
        builder.begun(epoch=begin.epoch, started_ns=begin.started_ns, ring_size=begin.ring_size)
        builder.counts(counted)
        builder.lists(lists)
        builder.dump(int(walk.offset), digest, walk, walk)
        builder.rejects(found.name, entries=kept.entries, records=kept.entries, size=kept.size)
        kind = "host-died" if self._cause is Cause.HOST_DIED else "spool-lost"
        builder.reason(Reason(kind=kind, offset=int(walk.offset), text=_text(rejected)))
        return builder.build()


def _text(rejected: int) -> str:
    said = "the capture ended without its last records: what was only in memory is gone"
    if rejected:
        said += f"; {rejected} bytes that are no records are in the rejects"
    return said


def _counted(walk: Any, lists: Lists, entries: int, rejected_bytes: int) -> dict[str, int]:
    rejected = sum(gap.rejected for gap in lists.gaps)
    counted = dict.fromkeys(COUNTER_NAMES, 0)
    for name in ("records", "wrap_markers", "truncated", "gaps", "duplicates", "sequence_resets"):
        counted[name] = int(getattr(walk, name))
    counted["bytes"] = int(walk.offset)
    counted["lost"] = max(0, int(walk.lost) - rejected)
    counted["rejected_bytes"] = rejected_bytes + lists.reject_bytes
    counted["rejected_records"] = entries
    return counted


def _sync(place: Place) -> None:
    try:
        place.sync()
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise


def _without(place: Place, orphan: Orphan, parts: list[dump_scan.Stretch]) -> int:
    """The good stretches alone, in a file that takes the place of the damaged one."""
    part = orphan.found.name + orphan.found.suffix
    temporary = part + ".tmp"
    place.unlink(temporary)
    fd = place.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    try:
        offset = 0
        for good in (stretch for stretch in parts if stretch.good):
            for chunk in _chunks(orphan.fd, good):
                write_all(fd, chunk, offset)
                offset += len(chunk)
        os.fsync(fd)
        place.rename(temporary, part)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _chunks(fd: int, stretch: dump_scan.Stretch, size: int = _CHUNK) -> Iterator[bytes]:
    for offset in range(stretch.start, stretch.end, size):
        yield os.pread(fd, min(size, stretch.end - offset), offset)


class _Rejects:
    """The rejects file of an orphan: its whole entries, and what is added now.

    It is on the disk before the dump is written anew; a second try begins with the entries
    that were there before the first.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name + names.REJECTS_PART
        self._packed: list[bytes] = []
        self.entries = self.size = 0
        self._read_old(place.path / self._name)

    def _read_old(self, path: Path) -> None:
        if not names.is_plain(path.parent, path.name):
            return
        codes = {text: code for code, text in rejects.REASONS.items()}
        with contextlib.suppress(InvalidDataError):  # its torn end
            for entry in rejects.read(path):
                code = codes.get(entry.reason, 0)
                if code != rejects.HOST_DIED:
                    self._add(code, entry.epoch, entry.cursor, entry.host_ns, entry.data)

    def add(self, fd: int, stretch: dump_scan.Stretch) -> None:
        """Bytes of the dump file; their cursor is their offset in it."""
        offset = stretch.start
        for chunk in _chunks(fd, stretch, _REJECT_MAX):
            self._add(rejects.HOST_DIED, 0, offset, 0, chunk)
            offset += len(chunk)

    def _add(self, reason: int, epoch: int, cursor: int, host_ns: int, data: bytes) -> None:
        self._packed.append(rejects.pack(reason, epoch, cursor, host_ns, data))
        self.entries += 1
        self.size += len(data)

    def write(self) -> None:
        """Write them, whole or not at all."""
        if self.entries:
            write_whole(self._place, self._name, b"".join(self._packed))


def _walk(fd: int) -> tuple[Any, str]:
    """Walk over a file of whole records, and its hash."""
    walk = begin_walk()
    digest = xxhash.xxh3_64()
    while True:
        chunk = os.pread(fd, _CHUNK, walk.offset)
        used = walk_on(walk, chunk)
        if not used:
            return walk, digest.hexdigest()
        digest.update(memoryview(chunk)[:used])


def _read_log(directory: Path, name: str, end: int) -> tuple[Lists, Beginning]:
    """What the event log still says up to byte `end` of the dump."""
    with contextlib.suppress(FileNotFoundError), _open_log(directory, name) as fd:
        entries = event_log.read(fd, os.fstat(fd).st_size)
        first = next(entries, None)
        if first is not None:
            begin = Beginning.of(first)
            return lists_of(entries, begin.segment_pos, begin.segment_pos + end), begin
    return Lists(0), Beginning()


def sweep(directory: Path, label: str, keep: str, log: Any) -> None:
    """What is left of a seal whose last step the host did not live to see.

    Temporary copies go, and event logs of segments that are sealed; anything else is kept.
    """
    pattern = re.compile(rf"({re.escape(label)}-\d{{6,}}-\d{{8}}T\d{{6}}Z)")
    for path in list(directory.iterdir()):
        match = pattern.match(path.name)
        if not match or match[1] == keep or not names.is_plain(directory, path.name):
            continue
        _sweep_one(path, match[1], path.name.removeprefix(match[1]), log)


def _sweep_one(path: Path, name: str, rest: str, log: Any) -> None:
    def there(*suffixes: str) -> bool:
        return any(path.with_name(name + suffix).exists() for suffix in suffixes)

    sealed, part = there(names.BIN, names.ZST), there(names.BIN + names.PART)
    copy = rest in (names.SIDECAR + ".tmp", names.ZST + ".tmp") or rest.endswith(".part.tmp")
    log_of_sealed = rest == names.EVENTS_PART and sealed and there(names.SIDECAR)
    if (copy and (sealed or part)) or log_of_sealed:
        path.unlink(missing_ok=True)
    elif not part and (copy or rest in (names.EVENTS_PART, names.REJECTS_PART)):
        log.warning("leftover-kept", path=str(path), action="its segment is not here; left alone")

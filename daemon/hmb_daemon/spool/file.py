# SPDX-License-Identifier: Apache-2.0
"""The spool file: where it lies, who may touch it, and the commits in it (docs/durability.md).

The file is libhmbtrace's; beside it lies a small manifest that says what a later
start must know to finish it: which device, which output.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from hmb_daemon.spool import journal as events
from hmb_trace._core import ffi, lib
from hmb_trace.dumps.sidecar import Device
from hmb_trace.errors import (
    BusyError,
    CannotCreateError,
    InvalidDataError,
    PermissionDeniedError,
    from_os_error,
)
from hmb_trace.live.ring import lock_holder
from hmb_trace.units import format_size

_MIB = 1 << 20
_PAGE = 4096
_SIZE_MAX = 1 << 62
_HEADER = 65536  # bytes before journal and data
_CHUNK = 1 << 20
_OFFSET_COUNTERS: int = ffi.offsetof("struct hmb_state", "counters")


class EarlierRing(msgspec.Struct, kw_only=True):
    """A ring that another took the place of, for its segments that are not sealed yet."""

    last_epoch: int
    device: Device
    ring_size: int


class Manifest(msgspec.Struct, kw_only=True):
    """What stands beside a spool."""

    device: str
    identity: str
    directory: str
    prefix: str
    ring_size: int
    single: str = ""  # --output FILE
    earlier: list[EarlierRing] = []

    def fits(self, other: Manifest) -> bool:
        """Whether both are of the same ring and the same output."""
        return msgspec.structs.replace(self, earlier=other.earlier) == other


class DamagedSpoolError(InvalidDataError):
    """A spool that nobody can go on with: what it held is not known. damaged.py sets it aside."""


class WriterState(msgspec.Struct, kw_only=True):
    """struct hmb_writer_commit in Python; positions as in libhmbtrace/api/spool.h.

    `planned` is the last position whose events are all in the segment's files,
    `planned_counters` what had been counted there: the segment may be cut there.
    """

    data_tail: int = 0
    journal_tail: int = 0
    segment: int = 0
    segment_pos: int = 0
    file_offset: int = 0
    rejects_offset: int = 0
    events_offset: int = 0
    started_ns: int = 0
    phase: int = 0
    cause: int = 0
    name: str = ""
    planned: int = 0
    epoch: int = 0
    planned_counters: bytes = events.NO_COUNTERS
    base_counters: bytes = events.NO_COUNTERS


def default_directory() -> Path:
    """A tmpfs directory of our own: the service's runtime directory, else in /dev/shm."""
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if runtime:
        return Path(runtime)
    if Path("/dev/shm").is_dir():
        return Path(f"/dev/shm/hmb-trace-{os.geteuid()}")
    session = os.environ.get("XDG_RUNTIME_DIR")
    return Path(session or "/tmp") / f"hmb-trace-{os.geteuid()}"


def default_size() -> int:
    """1/32 of RAM, between 64 MiB and 1 GiB, bytes."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(ram // 32, 64 * _MIB), 1024 * _MIB) & ~(_MIB - 1)


def file_name(device: str) -> str:
    """The spool's name: readable, and different for different device paths."""
    place = device if device.startswith("shm:") else str(Path(device).resolve())
    place = place.replace("shm:/", "/dev/shm/", 1) if place.startswith("shm:/") else place
    digest = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{Path(place).name[:80] or 'ring'}-{digest}.spool"


def prepare_directory(directory: Path, *, private: bool) -> int:
    """Open the spool directory, making it 0700 when missing; a symbolic link is refused.

    Raises:
        PermissionDeniedError: `private`, and it belongs to somebody else or others may enter.
        CannotCreateError: it cannot be made.
    """
    try:
        if private:
            directory.mkdir(mode=0o700, exist_ok=True)
        else:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(
            error, f"cannot use spool directory {directory}", creating=True
        ) from error
    status = os.fstat(fd)
    if private and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
        os.close(fd)
        raise PermissionDeniedError(
            f"spool directory {directory} is mode {stat.S_IMODE(status.st_mode):04o} of uid "
            f"{status.st_uid}, expected 0700 of uid {os.geteuid()}; remove it or give --spool-dir"
        )
    return fd


class Spool:
    """An open, locked, mapped spool. create() or open_leftover(); close() ends it."""

    def __init__(self, directory: Path, name: str, fd: int, directory_fd: int) -> None:
        self.path = directory / name
        self.name = name
        self.fd = fd
        self._directory_fd = directory_fd
        self._abandoned = False
        self.c = ffi.new("struct hmb_spool *")
        self._commit = ffi.new("struct hmb_commit *")
        self._writer = ffi.new("struct hmb_writer_commit *")

    # -- making, opening, closing

    @staticmethod
    def _open(directory: Path, name: str, directory_fd: int, flags: int) -> Spool:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = lock_holder(fd)
            os.close(fd)
            raise BusyError(
                f"spool {directory / name} is in use by pid {pid}; stop that daemon first"
            ) from error
        return Spool(directory, name, fd, directory_fd)

    @staticmethod
    def create(
        directory: Path, name: str, directory_fd: int, size: int, manifest: Manifest
    ) -> Spool:
        """A fresh spool of `size` data bytes, all of it reserved.

        Raises:
            CannotCreateError: no room for it in the tmpfs, or not allowed.
        """
        size = -(-size // _PAGE) * _PAGE
        journal = min(max(size // 16, 4 * _MIB), 64 * _MIB) & ~(_PAGE - 1)
        size = min(size, _SIZE_MAX)  # no file system takes that much, and it will say so
        total = lib.hmb_spool_file_size(size, journal)
        try:
            spool = Spool._open(directory, name, directory_fd, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise from_os_error(
                error, f"cannot create spool {directory / name}", creating=True
            ) from error
        try:
            os.posix_fallocate(spool.fd, 0, total)
            spool._write_manifest(manifest)
        except OSError as error:
            spool.close(remove=True)
            raise CannotCreateError(
                f"cannot reserve {format_size(total)} for spool {directory / name}: "
                f"{error.strerror}; free memory or give a smaller --spool-size"
            ) from error
        spool._map(total, size, journal, manifest.identity)
        return spool

    @staticmethod
    def open_leftover(directory: Path, name: str, directory_fd: int) -> Spool | None:
        """The spool that an earlier daemon left, or None; one that was never begun is None too.

        Takes directory_fd over, whatever comes of it.

        Raises:
            BusyError: another daemon uses it. CannotCreateError, PermissionDeniedError.
            DamagedSpoolError: it stays as it is.
            InvalidDataError: of another version, which can finish it.
        """
        try:
            spool = Spool._open(directory, name, directory_fd, 0)
        except FileNotFoundError:
            os.close(directory_fd)
            return None
        except OSError as error:
            raise from_os_error(
                error, f"cannot open spool {directory / name}", creating=True
            ) from error
        try:
            begun = spool._map_leftover()
        except BaseException:
            spool.close(remove=False)
            raise
        if not begun:
            spool.close(remove=True)
        return spool if begun else None

    def _map_leftover(self) -> bool:
        """Map and check it; False: killed before its header was written, nothing was collected."""
        size = os.fstat(self.fd).st_size
        err = -lib.hmb_spool_map(self.c, self.fd, size, 0, 0, ffi.NULL, 0)
        if err == errno.ENODATA and self._is_blank():
            return False
        if err == errno.EPROTONOSUPPORT:
            raise InvalidDataError(
                f"spool {self.path} was left by another version of the daemon; let that version "
                "finish it, or move it and its .json away"
            )
        if err in (errno.ENODATA, errno.EBADMSG):
            raise DamagedSpoolError(f"spool {self.path}: header or commits are damaged")
        if err:
            raise CannotCreateError(f"cannot map spool {self.path}: {os.strerror(err)}")
        self.manifest()
        self._check_journal()
        return True

    def _is_blank(self) -> bool:
        """Whether nothing stands in journal and data: a header of zeros alone may be damage."""
        offset = _HEADER
        while chunk := os.pread(self.fd, _CHUNK, offset):
            if chunk.count(0) != len(chunk):
                return False
            offset += len(chunk)
        return True

    def _check_journal(self) -> None:
        start, end = self.read_writer().journal_tail, int(self.read_commit().journal_head)
        waiting = ffi.buffer(self.c.journal + start % self.c.journal_size, end - start)
        try:
            for _ in events.parse(memoryview(waiting)):
                pass
        except events.TornEventError as error:
            raise DamagedSpoolError(f"spool {self.path}: journal is damaged: {error}") from error

    def _map(self, total: int, size: int, journal: int, identity: str) -> None:
        err = lib.hmb_spool_map(
            self.c, self.fd, total, size, journal, identity.encode(errors="replace")[:255], 1
        )
        if err:
            self.close(remove=True)
            raise CannotCreateError(f"cannot map spool {self.path}: {os.strerror(-err)}")

    def _manifest_name(self) -> str:
        return self.name + ".json"

    def _write_manifest(self, manifest: Manifest) -> None:
        name = self._manifest_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name + ".tmp", flags, 0o600, dir_fd=self._directory_fd)
        try:
            # Paths need not be UTF-8: this keeps what os.fsdecode() made of them.
            os.write(fd, json.dumps(msgspec.to_builtins(manifest)).encode())
        finally:
            os.close(fd)
        os.rename(name + ".tmp", name, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)

    def manifest(self) -> Manifest:
        """What stands beside the spool.

        Raises:
            DamagedSpoolError: it is missing or torn.
        """
        try:
            fd = os.open(
                self._manifest_name(), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._directory_fd
            )
            with os.fdopen(fd, "rb") as file:
                return msgspec.convert(json.loads(file.read()), Manifest)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise DamagedSpoolError(
                f"spool {self.path}: its manifest {self._manifest_name()} is damaged: {error}"
            ) from error

    def rebind(self, manifest: Manifest) -> None:
        """Another ring took the old one's place (R6); nothing of it was collected yet.

        Raises:
            OSError: the manifest cannot be written.
        """
        self._write_manifest(manifest)
        lib.hmb_spool_set_identity(self.c, manifest.identity.encode(errors="replace")[:255])

    def abandon(self) -> None:
        """Leave it mapped when closed: a thread that cannot be ended may still look at it."""
        self._abandoned = True

    def close(self, *, remove: bool) -> None:
        """Unmap and unlock; `remove` deletes it: everything in it is in sealed files."""
        if remove:
            for name in (self.name, self._manifest_name()):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._directory_fd)
        if self._abandoned:
            return
        lib.hmb_spool_unmap(self.c)
        os.close(self.fd)
        os.close(self._directory_fd)

    # -- commits

    @property
    def identity(self) -> str:
        """Of the ring that the spool's records come from."""
        text: bytes = ffi.string(lib.hmb_spool_identity(self.c))
        return text.decode(errors="replace")

    @property
    def data_size(self) -> int:
        """Bytes of records that it can hold."""
        return int(self.c.data_size)

    def data_head(self) -> int:
        """Bytes ever committed."""
        return int(lib.hmb_spool_data_head(self.c))

    def read_commit(self) -> Any:
        """The collector's last commit (struct hmb_commit, valid until the next call)."""
        lib.hmb_spool_read_commit(self.c, self._commit)
        return self._commit

    def commit(self, commit: Any) -> None:
        """Publish for the collector, while it does not run."""
        lib.hmb_spool_commit(self.c, commit)

    def read_writer(self) -> WriterState:
        """The writer's last commit."""
        raw = self._writer
        lib.hmb_spool_read_writer(self.c, raw)
        return WriterState(
            data_tail=raw.data_tail,
            journal_tail=raw.journal_tail,
            segment=raw.segment,
            segment_pos=raw.segment_pos,
            file_offset=raw.file_offset,
            rejects_offset=raw.rejects_offset,
            events_offset=raw.events_offset,
            started_ns=raw.started_ns,
            phase=raw.phase,
            cause=raw.seal_cause,
            name=ffi.string(raw.name).decode(errors="surrogateescape"),
            planned=raw.planned,
            epoch=raw.epoch,
            planned_counters=events.counters_bytes(raw.planned_counters),
            base_counters=events.counters_bytes(raw.base_counters),
        )

    def commit_writer(self, state: WriterState) -> None:
        """Publish for the writer: frees what lies before data_tail and journal_tail."""
        raw = self._writer
        raw.data_tail, raw.journal_tail = state.data_tail, state.journal_tail
        raw.segment, raw.segment_pos = state.segment, state.segment_pos
        raw.file_offset, raw.rejects_offset = state.file_offset, state.rejects_offset
        raw.events_offset, raw.started_ns = state.events_offset, state.started_ns
        raw.phase, raw.seal_cause = state.phase, state.cause
        raw.name = state.name.encode(errors="surrogateescape")[:255]
        raw.planned, raw.epoch = state.planned, state.epoch
        for to, counters in (
            (raw.planned_counters, state.planned_counters),
            (raw.base_counters, state.base_counters),
        ):
            ffi.memmove(ffi.addressof(to), counters, events.COUNTERS.size)
        lib.hmb_spool_commit_writer(self.c, raw)

    # -- journal and data

    def append_journal(self, entries: bytes, state: Any) -> bool:
        """Commit events and the collector's state, while it does not run; False: no room."""
        commit = self.read_commit()
        waiting = commit.journal_head - self.read_writer().journal_tail
        if waiting + len(entries) > self.c.journal_size:
            return False
        offset = commit.journal_head % self.c.journal_size
        ffi.memmove(self.c.journal + offset, entries, len(entries))
        commit.journal_head += len(entries)
        commit.state = state
        self.commit(commit)
        return True

    def journal(self, start: int, end: int) -> bytes:
        """Journal bytes [start, end)."""
        offset = start % self.c.journal_size
        return bytes(ffi.buffer(self.c.journal + offset, end - start))

    def data(self, start: int, end: int) -> bytes:
        """Data bytes [start, end), for a look at a few records."""
        return bytes(ffi.buffer(self.c.data + start % self.c.data_size, end - start))


def counters_in(state_body: bytes) -> bytes:
    """The counters inside the bytes of a struct hmb_state."""
    return state_body[_OFFSET_COUNTERS : _OFFSET_COUNTERS + events.COUNTERS.size]


def is_no_space(error: OSError) -> bool:
    """Whether a disk, a quota or a file size limit is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

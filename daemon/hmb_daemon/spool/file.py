# SPDX-License-Identifier: Apache-2.0
"""The spool file: where it lies, who may touch it, and the commits in it (docs/durability.md).

The file is libhmbtrace's; beside it lies a small manifest that says what a later
start must know to finish it: which device, which output.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from hmb_daemon.settings import Settings
from hmb_daemon.spool import journal as events
from hmb_daemon.spool import locks
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
_HEADER = 65536  # bytes before sums, journal and data
_SHARED = 0o077  # what group and others may not do with a spool
_CHUNK = 1 << 20
_OFFSET_COUNTERS: int = ffi.offsetof("struct hmb_state", "counters")


def _manifest_name(name: str) -> str:
    return name + ".json"


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

    def encode(self) -> bytes:
        """As it is written: with a check over the rest of it."""
        fields = msgspec.to_builtins(self)
        # Paths need not be UTF-8: this keeps what os.fsdecode() made of them.
        text = json.dumps(fields, sort_keys=True)
        return json.dumps({**fields, "check": _check_of(text)}, sort_keys=True).encode()

    @staticmethod
    def decode(text: bytes) -> Manifest:
        """The manifest that was written.

        Raises:
            ValueError, msgspec.MsgspecError: it is torn, changed, or names what it must not.
        """
        fields = json.loads(text)
        check = fields.pop("check", "")
        if check != _check_of(json.dumps(fields, sort_keys=True)):
            raise ValueError("its check does not fit")
        found = msgspec.convert(fields, Manifest)
        for name in (found.prefix, found.single):
            require_plain(name)
        return found


def _check_of(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def require_plain(name: str) -> str:
    """A name of a file inside the output directory, not a way out of it.

    Raises:
        ValueError: it is one.
    """
    if "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return name


class DamagedSpoolError(InvalidDataError):
    """A spool that cannot be gone on with: what it held is not known. damaged.py sets it aside."""


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


def place(settings: Settings) -> tuple[Path, bool]:
    """The spool directory, and whether it must be ours alone."""
    if settings.spool_dir is not None:
        return settings.spool_dir, False
    return default_directory(), not os.environ.get("RUNTIME_DIRECTORY")


def file_name(device: str) -> str:
    """The spool's name: readable, and different for different device paths."""
    place = device if device.startswith("shm:") else str(Path(device).resolve())
    place = place.replace("shm:/", "/dev/shm/", 1) if place.startswith("shm:/") else place
    path = place.encode(errors="surrogateescape")
    digest = f"{lib.hmb_fnv1a_64(path, len(path), lib.hmb_fnv1a_64_basis()) & 0xFFFFFFFF:08x}"
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


def require_ours(fd: int, path: Path) -> None:
    """A plain file that only we can write and that has no other name.

    Raises:
        PermissionDeniedError: somebody else may have put it there, or may change it.
    """
    status = os.fstat(fd)
    mode = stat.S_IMODE(status.st_mode)
    mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not mine or mode & _SHARED or status.st_nlink != 1:
        raise PermissionDeniedError(
            f"{path} is mode {mode:04o} of uid {status.st_uid} with {status.st_nlink} links, "
            f"expected a plain file of mode 0600 of uid {os.geteuid()} with one; "
            "look who put it there, and move it away"
        )


class Spool:
    """An open, locked, mapped spool. create() or open_leftover(); close() ends it."""

    def __init__(self, directory: Path, name: str, fd: int, directory_fd: int) -> None:
        self.path = directory / name
        self.name = name
        self.fd = fd
        self._directory_fd = directory_fd
        self._abandoned = False
        self.collected = False  # a collector runs on it
        self.unbound = False  # ... or ran, and no daemon has said yet where its records belong
        self.c = ffi.new("struct hmb_spool *")
        self._commit = ffi.new("struct hmb_commit *")
        self._writer = ffi.new("struct hmb_writer_commit *")

    # -- making, opening, closing

    @staticmethod
    def _open(directory: Path, name: str, directory_fd: int, flags: int) -> Spool:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, 0o600, dir_fd=directory_fd)
        try:
            require_ours(fd, directory / name)
        except PermissionDeniedError:
            os.close(fd)
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = lock_holder(fd)
            os.close(fd)
            raise BusyError(
                f"spool {directory / name} is in use by pid {pid}; stop that daemon first"
            ) from error
        with contextlib.suppress(OSError):  # a file system without them: no second process there
            locks.claim_writer(fd)
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
        with contextlib.suppress(OSError):  # of a spool that was removed before it
            os.unlink(_manifest_name(name), dir_fd=directory_fd)
        try:
            spool = Spool._open(directory, name, directory_fd, os.O_CREAT)
            os.ftruncate(spool.fd, 0)
        except OSError as error:
            raise from_os_error(
                error, f"cannot create spool {directory / name}", creating=True
            ) from error
        try:
            os.posix_fallocate(spool.fd, 0, total)
            spool._map(total, size, journal, manifest.identity)
            # After the header: a header of zeros beside a manifest was not always one of zeros.
            spool._write_manifest(manifest)
        except OSError as error:
            spool.close(remove=True)
            raise CannotCreateError(
                f"cannot reserve {format_size(total)} for spool {directory / name}: "
                f"{error.strerror}; free memory or give a smaller --spool-size"
            ) from error
        return spool

    @staticmethod
    def open_leftover(directory: Path, name: str, directory_fd: int) -> Spool | None:
        """The spool that an earlier daemon left, or None; one that was never begun is None too.

        Takes directory_fd over, whatever comes of it.

        Raises:
            BusyError: another daemon uses it. CannotCreateError.
            PermissionDeniedError: it is not ours alone.
            DamagedSpoolError: it stays as it is, as does one of another version.
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
        """Map and check it; False: killed while it was made, nothing was collected."""
        size = os.fstat(self.fd).st_size
        self.collected = locks.is_collected(self.fd)
        mode = lib.HMB_SPOOL_JOIN_COLLECTOR if self.collected else lib.HMB_SPOOL_LEFTOVER
        err = -lib.hmb_spool_map(self.c, self.fd, size, 0, 0, ffi.NULL, mode)
        if err == errno.EPROTONOSUPPORT:
            raise DamagedSpoolError(
                f"spool {self.path} was left by another version of the daemon, which can finish it "
                "under its own name"
            )
        if err == errno.ENODATA and not self.has_manifest() and self._is_blank():
            return False
        if err in (errno.ENODATA, errno.EBADMSG):
            raise DamagedSpoolError(f"spool {self.path}: header or commits are damaged")
        if err:
            raise CannotCreateError(f"cannot map spool {self.path}: {os.strerror(err)}")
        if not self.has_manifest() and self._has_no_writer():
            if self.collected or self.read_commit().state.tail or self.read_commit().data_head:
                self.unbound = True
                return True
            return False
        self._check_manifest()
        self._check_names()
        self._check_journal()
        return True

    def has_its_name(self) -> bool:
        """Whether a later start would find this very file."""
        try:
            named = os.stat(self.name, dir_fd=self._directory_fd, follow_symlinks=False)
            directory = self.path.parent.stat()
        except OSError:
            return False
        here = os.fstat(self._directory_fd)
        return os.path.samestat(named, os.fstat(self.fd)) and os.path.samestat(directory, here)

    def has_manifest(self) -> bool:
        """Whether anything stands beside it."""
        try:
            os.stat(_manifest_name(self.name), dir_fd=self._directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _has_no_writer(self) -> bool:
        """Whether no daemon has ever written from it."""
        written = self.read_writer()
        return not (written.name or written.data_tail or written.journal_tail or written.segment)

    def bind(self, manifest: Manifest) -> None:
        """Say where the records belong that a collector took before any daemon was there.

        Raises:
            CannotCreateError: the manifest cannot be written.
        """
        try:
            self._write_manifest(manifest)
        except OSError as error:
            raise from_os_error(error, f"cannot write {self.path}.json", creating=True) from error
        self.unbound = False

    def _check_manifest(self) -> None:
        manifest = self.manifest()
        # A daemon killed between manifest and header, when one ring took another's place (R6).
        if manifest.identity[:255] != self.identity and not manifest.earlier:
            raise DamagedSpoolError(
                f"spool {self.path}: its records are of ring {self.identity!r}, its manifest says "
                f"{manifest.identity!r}"
            )

    def _check_names(self) -> None:
        try:
            require_plain(self.read_writer().name)
        except ValueError as error:
            raise DamagedSpoolError(f"spool {self.path}: its segment's name: {error}") from error

    def verify(self) -> None:
        """Compare every byte that waits in it with the sums of its commits.

        Raises:
            DamagedSpoolError: they are not what was collected.
        """
        damage = ffi.new("struct hmb_spool_damage *")
        if lib.hmb_spool_verify(self.c, damage):
            raise DamagedSpoolError(
                f"spool {self.path}: not what was collected: data bytes {damage.data_from} to "
                f"{damage.data_to}, journal bytes {damage.journal_from} to {damage.journal_to}"
            )

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

    def _write_manifest(self, manifest: Manifest) -> None:
        name = _manifest_name(self.name)
        with contextlib.suppress(FileNotFoundError):  # of a daemon that was killed here
            os.unlink(name + ".tmp", dir_fd=self._directory_fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name + ".tmp", flags, 0o600, dir_fd=self._directory_fd)
        with os.fdopen(fd, "wb") as file:
            file.write(manifest.encode())
        os.rename(name + ".tmp", name, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)

    def manifest(self) -> Manifest:
        """What stands beside the spool.

        Raises:
            PermissionDeniedError: somebody else may have written it.
            DamagedSpoolError: it is missing, torn or changed.
        """
        name = _manifest_name(self.name)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(name, flags, dir_fd=self._directory_fd)
            with os.fdopen(fd, "rb") as file:
                require_ours(fd, self.path.with_name(name))
                return Manifest.decode(file.read())
        except (OSError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            raise DamagedSpoolError(
                f"spool {self.path}: its manifest {name} is damaged: {error}"
            ) from error

    def bind_again(self, manifest: Manifest) -> None:
        """Write a manifest that somebody removed.

        Raises:
            OSError: it cannot be written.
        """
        self._write_manifest(manifest)

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
        if remove and self.has_its_name():
            for name in (self.name, _manifest_name(self.name)):
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
        if len(entries) > lib.hmb_spool_journal_room(self.c, commit.journal_head):
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

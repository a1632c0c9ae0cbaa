# SPDX-License-Identifier: Apache-2.0
"""Attach to a ring: a device node, a shared-memory object or a plain file (SPEC R1, R2).

The consumer stores the 8 bytes of `tail` and nothing else, ever.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import posix_ipc

from hmb_trace._core import ffi, lib
from hmb_trace.errors import (
    AbiTooNewError,
    BusyError,
    HmbTraceError,
    InputOutputError,
    InvalidDataError,
    NoInputError,
    UsageError,
    from_os_error,
)

SHM_SCHEME = "shm:"
FLAG_NAMES = {1: "OVERFLOWED", 2: "FROZEN"}
_DRAIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RingView:
    """One look at a ring header; cursors and sizes in bytes."""

    version: int
    ring_size: int
    head: int
    tail: int
    flags: int

    @property
    def unread(self) -> int:
        """Bytes published but not consumed, modulo 2^64 (R2: valid only if <= ring_size)."""
        return (self.head - self.tail) % (1 << 64)

    @property
    def valid(self) -> bool:
        """Whether the cursors obey R2."""
        return bool(lib.hmb_cursors_valid(self.head, self.tail, self.ring_size))

    @property
    def flag_names(self) -> list[str]:
        """Names of the flags that are set; unknown bits as hexadecimal."""
        return ring_flag_names(self.flags)


def ring_flag_names(flags: int) -> list[str]:
    """Names of the ring flags that are set; unknown bits as hexadecimal."""
    known = [name for bit, name in FLAG_NAMES.items() if flags & bit]
    unknown = flags & ~sum(FLAG_NAMES)
    return [*known, hex(unknown)] if unknown else known


@dataclass(frozen=True, slots=True)
class Event:
    """Something about the capture that is no record (struct hmb_event)."""

    kind: int
    reason: int
    epoch: int
    pos: int
    cursor: int
    host_ns: int
    ts_ns: int
    seq: int
    values: tuple[int, int, int, int]
    data: bytes


def _refusal(path: str, refusal: Any) -> HmbTraceError:
    found, expected = refusal.found, refusal.expected
    where = f"cannot attach {path}"
    if refusal.field == lib.HMB_FIELD_MAGIC:
        return InvalidDataError(
            f"{where}: magic is {found:#010x}, expected {expected:#010x} ('HMBT'); "
            "not a trace ring, or firmware has not initialised it yet"
        )
    if refusal.field == lib.HMB_FIELD_VERSION:
        kind = AbiTooNewError if found > expected else InvalidDataError
        what_to_do = (
            "upgrade hmb-trace" if found > expected else "fix it in the firmware's ring header"
        )
        return kind(f"{where}: version is {found}, expected {expected}; {what_to_do}")
    if refusal.field == lib.HMB_FIELD_RING_SIZE:
        return InvalidDataError(
            f"{where}: ring_size is {found}, expected a power of two of at least {expected}; "
            "fix it in the firmware's ring header"
        )
    if refusal.field == lib.HMB_FIELD_RECORD_AREA_OFF:
        return InvalidDataError(
            f"{where}: record_area_off is {found:#x}, expected {expected:#x}; "
            "fix it in the firmware's ring header"
        )
    return InvalidDataError(
        f"{where}: region is {found} bytes, expected at least {expected}; "
        "the header promises more than is mapped"
    )


def lock_holder(fd: int) -> int | None:
    """The pid that consumes the open ring, or None (from /proc/locks, or the device's sysfs)."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        from hmb_trace.live.device import consumer_pid  # noqa: PLC0415 - only character devices need it

        return consumer_pid(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pattern = re.compile(rf"^\d+: FLOCK\s+\S+\s+\S+\s+(\d+) {device} ", re.MULTILINE)
    try:
        found = pattern.search(Path("/proc/locks").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def open_ring(path: str, *, writable: bool = True) -> int:
    """Open a ring by path or `shm:/NAME`; the file descriptor is the caller's.

    Raises:
        NoInputError: nothing there. PermissionDeniedError, BusyError: as the system says.
    """
    flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
    try:
        if path.startswith(SHM_SCHEME):
            return _open_shm(path, writable=writable)
        return os.open(path, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise _busy_device(path) from error
        raise from_os_error(error, f"cannot open {path}") from error


def _busy_device(path: str) -> BusyError:
    """A character device lets one consumer open it."""
    from hmb_trace.live.device import consumer_pid  # noqa: PLC0415 - only character devices need it

    return _busy(path, consumer_pid(path))


def _busy(path: str, pid: int | None) -> BusyError:
    who = f"pid {pid}" if pid else "another process"
    return BusyError(
        f"cannot drain {path}: {who} consumes it already; "
        "a ring has one consumer, stop that one first"
    )


def _open_shm(path: str, *, writable: bool) -> int:
    name = path.removeprefix(SHM_SCHEME)
    try:
        return int(posix_ipc.SharedMemory(name, read_only=not writable).fd)
    except posix_ipc.ExistentialError as error:
        raise NoInputError(
            f"cannot open {path}: no such shared-memory object; "
            "start the producer first (hmb-firmware-sim --shm /NAME)"
        ) from error
    except posix_ipc.PermissionsError as error:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path) from error
    except ValueError as error:
        raise NoInputError(f"cannot open {path}: {error}; expected shm:/NAME") from error


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _busy(path, lock_holder(fd)) from error


class _Sink:
    """Room for what a pass gives (struct hmb_sink)."""

    def __init__(self, data_room: int) -> None:
        self._data = bytearray(max(data_room, int(lib.hmb_collect_min_data())))
        self._events = bytearray(max(1 << 16, int(lib.hmb_collect_min_events())))
        self.c = ffi.new("struct hmb_sink *")
        self.c.data, self.c.data_cap = ffi.from_buffer(self._data), len(self._data)
        self.c.events, self.c.events_cap = ffi.from_buffer(self._events), len(self._events)

    def taken(self) -> tuple[bytes, list[Event]]:
        data = bytes(memoryview(self._data)[: self.c.data_len])
        return data, parse_events(memoryview(self._events)[: self.c.events_len])


class Ring:
    """An attached ring. Use attach(); close() or a with block releases it."""

    def __init__(self, path: str, fd: int, memory: mmap.mmap, *, exclusive: bool) -> None:
        self.path = path
        self.fd = fd
        self.exclusive = exclusive
        self._memory = memory
        self._base = ffi.from_buffer(memory)
        self.c = ffi.new("struct hmb_ring *")
        self._guarded = False
        self._guard()
        try:
            self.reattach()
        except BaseException:
            self._unguard()
            raise
        self._state = ffi.new("struct hmb_state *")
        self._options = ffi.new("struct hmb_options *")
        self._begun = False

    def reattach(self) -> None:
        """Check the header again (R1), as after a re-initialisation (R6).

        Raises:
            InvalidDataError, AbiTooNewError: naming field, found and expected value.
        NoInputError: the device's region is gone.
        """
        self._map_again()
        refusal = ffi.new("struct hmb_refusal *")
        advance, fd, can_poll = self.c.advance, self.c.fd, self.c.can_poll
        if lib.hmb_ring_attach(self.c, self._base, len(self._memory), refusal):
            raise _refusal(self.path, refusal)
        if advance != ffi.NULL or can_poll:
            self.c.advance, self.c.fd, self.c.can_poll = advance, fd, can_poll

    def is_cut(self) -> bool:
        """Whether its file has become shorter than what is mapped: the rest is gone."""
        if self.c.can_poll:
            return False
        if lib.hmb_is_cut(self._base):
            return True
        return os.fstat(self.fd).st_size < len(self._memory)

    def header_is_valid(self) -> bool:
        """Whether the header still obeys R1 as it stands; nothing changes."""
        scratch, refusal = ffi.new("struct hmb_ring *"), ffi.new("struct hmb_refusal *")
        return not lib.hmb_ring_attach(scratch, self._base, len(self._memory), refusal)

    def _map_again(self) -> None:
        """A device's ring may come back larger than what was mapped: ask, and map it all."""
        if not stat.S_ISCHR(os.fstat(self.fd).st_mode):
            return
        from hmb_trace.live.device import get_info, map_region  # noqa: PLC0415 - devices only

        info = get_info(self.fd, self.path)
        if info.map_size <= len(self._memory):
            return
        old = self._memory
        self._memory, writable = map_region(self.fd, info, self.path)
        self._unguard()
        self._base = ffi.from_buffer(self._memory)
        self._guard()
        old.close()
        if not writable:  # the policy may have changed meanwhile
            lib.hmb_ring_use_ioctl(self.c, self.fd)

    @property
    def identity(self) -> str:
        """Which device and which region this is, as stable as the system can tell."""
        status = os.fstat(self.fd)
        # ASCII: it is kept in a field of bytes, and a file's name need not be UTF-8.
        name = Path(self.path).name.encode("ascii", errors="backslashreplace").decode()
        if stat.S_ISCHR(status.st_mode):
            return f"chr:{status.st_rdev:x}:{name}"
        return f"file:{status.st_dev:x}:{status.st_ino}:{name}"[:200]

    @property
    def drive(self) -> str | None:
        """The drive whose memory the ring lies in, such as nvme0; None: no drive's."""
        if not stat.S_ISCHR(os.fstat(self.fd).st_mode):
            return None
        from hmb_trace.live.device import controller  # noqa: PLC0415 - devices only

        return controller(self.fd)

    def view(self) -> RingView:
        """One look at header and cursors (head by acquire)."""
        view = ffi.new("struct hmb_ring_view *")
        lib.hmb_ring_view(self.c, view)
        return RingView(view.version, view.ring_size, view.head, view.tail, view.flags)

    def collect(self, max_bytes: int = _DRAIN_BYTES) -> tuple[bytes, list[Event]]:
        """Consume what is there: dump bytes (whole records, SPEC R3-R11) and what happened.

        The bytes are the caller's before `tail` moves: a crash in between repeats, never loses.
        An empty result means that nothing is ready.

        Raises:
            InvalidDataError: cursors invalid (R2), or the ring was re-initialised (R6):
                call restart() after a look at the ring.
            UsageError: attached with exclusive=False, only to look.
        """
        if not self.exclusive:
            raise UsageError(f"{self.path}: attached only to look; attach with exclusive=True")
        if not self._begun:
            self.restart()
        sink = _Sink(max_bytes)
        before = self._state.tail
        self._raise_for(lib.hmb_collect(self.c, self._state, self._options, sink.c, ffi.NULL))
        result, happened = sink.taken()
        if self._state.tail != before:
            self._raise_for(lib.hmb_ring_store_tail(self.c, before, self._state.tail))
        return result, happened

    def finish(self) -> tuple[bytes, list[Event]]:
        """The capture ends here: like collect(), for what only waited for more to come.

        Records after a restart of the firmware, too few to be believed while more may come (R9),
        are taken; a break of the sequence that no record followed (R12) and an overflow without
        a gap (R5) are told and counted.
        """
        dumped, happened = b"", []
        while self._begun and lib.hmb_collect_release(self._state):
            more, events = self.collect()
            dumped += more
            happened += events
        sink = _Sink(0)
        self._raise_for(lib.hmb_collect_finish(self._state, sink.c))
        return dumped, happened + sink.taken()[1]

    def restart(self) -> None:
        """Begin at the ring's own tail: first use, or after a re-initialisation.

        Raises:
            InvalidDataError: cursors invalid (R2).
        """
        self.reattach()
        self._raise_for(lib.hmb_state_begin(self._state, self.c))
        self._begun = True

    @property
    def counters(self) -> dict[str, int]:
        """Counts since restart(), one for every kind of drop."""
        counters = self._state.counters
        return {name: int(getattr(counters, name)) for name, _ in ffi.typeof(counters).fields}

    def _raise_for(self, result: int) -> None:
        if result >= 0 or result == -errno.ENOSPC:
            return
        view = self.view()
        if result == -errno.EILSEQ:
            raise invalid_cursors(self.path, view)
        if result == -errno.ESTALE:
            raise InvalidDataError(
                f"{self.path}: the ring was re-initialised (head {view.head}, tail {view.tail}, "
                f"expected tail {self._state.tail}); start again with restart()"
            )
        raise InputOutputError(f"{self.path}: cannot store tail: {os.strerror(-result)}")

    def _guard(self) -> None:
        """A file may be cut below its mapping; the reads then end in hmb_is_cut()."""
        self._guarded = self.exclusive and bool(lib.hmb_guard(self._base, len(self._memory)))

    def _unguard(self) -> None:
        if self._guarded:
            lib.hmb_unguard(self._base)
            self._guarded = False

    def close(self) -> None:
        """Unmap and release the lock; the ring stays as it is."""
        self._unguard()
        self._base = ffi.NULL
        self.c = ffi.NULL
        try:
            self._memory.close()
        finally:
            os.close(self.fd)

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def invalid_cursors(path: str, view: RingView) -> InvalidDataError:
    """The one-line error of R2."""
    return InvalidDataError(
        f"{path}: cursors are invalid: head {view.head}, tail {view.tail}, "
        f"expected multiples of 8 at most ring_size {view.ring_size} apart; "
        "firmware must re-initialise the ring"
    )


def parse_events(buffer: memoryview) -> list[Event]:
    """Events as hmb_collect() wrote them, in order."""
    events = []
    base = ffi.from_buffer(buffer)
    size = ffi.sizeof("struct hmb_event")
    offset = 0
    while offset + size <= len(buffer):
        raw = ffi.cast("struct hmb_event *", base + offset)
        start, end = offset + size, offset + size + raw.length
        values = (raw.a, raw.b, raw.c, raw.d)
        events.append(
            Event(
                *(raw.kind, raw.reason, raw.epoch, raw.pos, raw.cursor, raw.host_ns, raw.ts_ns),
                *(raw.seq, values, bytes(buffer[start:end])),
            )
        )
        offset = (end + 7) & ~7
    return events


def _map_char_device(path: str, fd: int) -> tuple[mmap.mmap, bool]:
    from hmb_trace.live.device import get_info, map_region  # noqa: PLC0415 - only character devices need it

    return map_region(fd, get_info(fd, path), path)


def _map_file(path: str, fd: int, size: int, *, writable: bool) -> mmap.mmap:
    if size < 64:
        raise InvalidDataError(
            f"cannot attach {path}: region is {size} bytes, expected at least 64 (a ring header)"
        )
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
    except OSError as error:
        raise from_os_error(error, f"cannot map {path}") from error


def attach(path: str | os.PathLike[str], *, exclusive: bool = True) -> Ring:
    """Attach to a ring; nothing is written to it.

    Args:
        path: a device node, a regular file (as in /dev/shm) or `shm:/NAME`.
        exclusive: take the consumer's lock; False only to look (read-only: no collect()).

    Raises:
        InvalidDataError, AbiTooNewError: refused by R1, naming the field.
        BusyError: another consumer holds it, naming its pid.
        NoInputError, PermissionDeniedError: as the system says.
    """
    name = os.fspath(path)
    # A device lets any number look while one consumes; only writers exclude each other.
    fd = open_ring(name, writable=exclusive)
    try:
        return _attach_fd(name, fd, exclusive)
    except BaseException:
        os.close(fd)
        raise


def _attach_fd(name: str, fd: int, exclusive: bool) -> Ring:
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        memory, writable = _map_char_device(name, fd)
        ring = Ring(name, fd, memory, exclusive=exclusive)
        ring.c.fd, ring.c.can_poll = fd, 1
        if not writable:
            lib.hmb_ring_use_ioctl(ring.c, fd)
        return ring
    if not stat.S_ISREG(status.st_mode):
        raise NoInputError(f"cannot attach {name}: expected a device node or a file")
    if exclusive:
        _lock(fd, name)
    memory = _map_file(name, fd, status.st_size, writable=exclusive)
    return Ring(name, fd, memory, exclusive=exclusive)

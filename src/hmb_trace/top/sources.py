# SPDX-License-Identifier: Apache-2.0
"""Where the numbers come from: a daemon, a ring nobody serves, or a dump set alone."""

from __future__ import annotations

import os
import stat
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hmb_trace.dumps.account import Account, Accountant
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.places import UNVERIFIED_KINDS
from hmb_trace.dumps.segments import Segment, of_directory
from hmb_trace.errors import HmbTraceError, InvalidDataError, NoInputError
from hmb_trace.live.control_client import Link, find_socket
from hmb_trace.live.ring import lock_holder, open_ring
from hmb_trace.top.tail import Seen, Tail

_RING_HEADER = struct.Struct("<4sIIIQQI")  # magic, version, size, offset, head, tail, flags
_U64 = 1 << 64


@dataclass
class Sample:
    """One look. None: this source does not know it. Bytes, seconds, counts since the start.

    Attributes:
        at: host's monotonic clock.
        state: running, frozen, waiting, disconnected, stopping; idle and writing without a
            daemon; gone when the source went away.
    """

    state: str
    subject: str
    at: float = field(default_factory=time.monotonic)
    pid: int | None = None
    uptime: float | None = None
    epoch: int | None = None
    ring_size: int | None = None
    head: int | None = None
    tail: int | None = None
    ring_flags: int = 0
    ring_most: int | None = None
    overflow: bool = False
    spool_size: int | None = None
    spool_fill: int | None = None
    spool_most: int | None = None
    records: int | None = None
    bytes: int | None = None
    lost: int | None = None
    unknown_losses: int = 0
    gaps: int | None = None
    rejected: int | None = None
    disk: str | None = None
    output: str | None = None
    segment: str | None = None
    segment_bytes: int | None = None
    sealed: int | None = None
    verdict: str = ""  # the account of what is sealed, in one line
    problem: str = ""
    seen: Seen = field(default_factory=Seen)
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unread(self) -> int | None:
        """Ring bytes not consumed, never more than the ring."""
        if self.head is None or self.tail is None or self.ring_size is None:
            return None
        return min((self.head - self.tail) % _U64, self.ring_size)


class Source(Protocol):
    """Something to look at again and again."""

    def sample(self) -> Sample:
        """One look. Raises HmbTraceError when there is nothing any more."""
        ...

    def close(self) -> None: ...


class DaemonSource:
    """A daemon behind its control socket, and the tail of what it writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._link: Link | None = Link(path)
        self._tail = Tail()

    def sample(self) -> Sample:
        """Connects again where the daemon was started again."""
        try:
            self._link = self._link or Link(self._path)
            status = self._link.status()
            log = self._link.ask("events")["events"]
        except HmbTraceError:
            self.close()
            raise
        segment = status["segment"]
        seen = self._tail.look(segment["path"], segment["bytes"] if segment["path"] else None)
        return _of_status(status, seen, log)

    def close(self) -> None:
        if self._link:
            self._link.close()
        self._link = None
        self._tail.close()


def _of_status(status: dict[str, Any], seen: Seen, log: list[dict[str, Any]]) -> Sample:
    ring, spool, counters = status["ring"], status["spool"], status["counters"]
    segment = status["segment"]
    return Sample(
        state=status["state"],
        subject=status["device"],
        pid=status["pid"],
        uptime=status["uptime_s"],
        epoch=status["epoch"],
        ring_size=ring["size"],
        head=ring["head"],
        tail=ring["tail"],
        ring_flags=ring["flags"],
        ring_most=ring["max_fill"],
        overflow=status["overflow_episode"],
        spool_size=spool["size"],
        spool_fill=spool["fill"],
        spool_most=status["max_spool_fill"],
        records=counters["records"],
        bytes=counters["bytes"],
        lost=counters["lost"],
        unknown_losses=counters["unknown_losses"],
        gaps=counters["gaps"],
        rejected=counters["rejected_records"],
        disk=status["disk"],
        output=status["output"],
        segment=segment["name"],
        segment_bytes=segment["bytes"],
        sealed=status["segments_sealed"],
        seen=seen,
        log=log,
    )


class RingSource:
    """A ring without a daemon that can be asked: its header alone, read only.

    Raises:
        NoInputError: a device, which lets only its consumer look. InvalidDataError: no ring.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = open_ring(path, writable=False)
        self._head: int | None = None
        try:
            self.sample()
        except HmbTraceError:
            self.close()
            raise

    def sample(self) -> Sample:
        raw = os.pread(self._fd, _RING_HEADER.size, 0)
        if len(raw) < _RING_HEADER.size or raw[:4] != b"HMBT":
            found = repr(raw[:4]) if raw else "an empty file"
            raise InvalidDataError(f"{self._path}: found {found}, expected a ring ('HMBT')")
        _, _, size, _, head, tail, flags = _RING_HEADER.unpack(raw)
        moved = self._head is not None and head != self._head
        self._head = head
        pid = lock_holder(self._fd)
        return Sample(
            state="frozen" if flags & 2 else "writing" if moved else "idle",
            subject=self._path,
            pid=pid,
            ring_size=size,
            head=head,
            tail=tail,
            ring_flags=flags,
            bytes=head,
            problem=_why_so_little(pid),
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _why_so_little(pid: int | None) -> str:
    if pid is None:
        return "nobody drains this ring"
    return f"pid {pid} drains it, without --control: only the ring's header is known"


class DirectorySource:
    """A dump set that some daemon writes, or wrote."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tail = Tail()
        self._records = self._bytes = 0
        self._sealed: list[str] = []
        self._account: Account | None = None

    def sample(self) -> Sample:
        """Raises NoInputError where the directory has gone; one without segments may get some."""
        if not self._directory.is_dir():
            raise NoInputError(f"cannot read {self._directory}: No such directory")
        try:
            segments = of_directory(self._directory)
            newest = segments[-1]
        except NoInputError:
            return Sample("idle", str(self._directory), problem="no segment yet")
        usable = newest.kind is Kind.DUMP
        seen = self._tail.look(newest.name if usable else None)
        self._bytes += seen.new_bytes
        self._records += seen.records
        told = self._told(segments)
        unknown = sum(r.count is None and r.kind not in UNVERIFIED_KINDS for r in told.reasons)
        return Sample(
            state="writing" if seen.new_bytes else "idle",
            subject=str(self._directory),
            bytes=self._bytes,
            records=None if seen.skipped else self._records,
            output=str(self._directory),
            segment=Path(newest.name).name,
            lost=told.lost,
            unknown_losses=unknown,
            gaps=told.gaps,
            rejected=told.rejected_records,
            sealed=len(self._sealed),
            verdict=told.line() if self._sealed else "",
            problem="" if newest.partial else "the newest segment is sealed",
            seen=seen,
        )

    def _told(self, segments: list[Segment]) -> Account:
        """What the sealed segments' sidecars say is missing; the dumps themselves are not read."""
        sealed = [segment for segment in segments if not segment.partial]
        names = [segment.name for segment in sealed]
        if self._account is None or names != self._sealed:
            self._sealed = names
            self._account = Accountant(Dump(sealed)).finish(read_on=False)
        return self._account

    def close(self) -> None:
        self._tail.close()


def source_of(target: str | None) -> Source:
    """The best source for a socket, a ring, a device, a directory, or nothing at all.

    Raises:
        HmbTraceError: there is nothing to look at; the message says why.
    """
    try:
        return DaemonSource(find_socket(target))
    except NoInputError:
        if target is None:
            raise
        path = Path(target)
        if path.is_dir():
            return DirectorySource(path)
        if not target.startswith("shm:") and not _is_file(path):
            raise
    return RingSource(target)


def _is_file(path: Path) -> bool:
    """Whether it may be looked at: opening a device would take it from its consumer."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False

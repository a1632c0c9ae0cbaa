# SPDX-License-Identifier: Apache-2.0
"""Where the ring lives: POSIX shared memory, a plain file, or memory that exists already.

A name that the simulator makes appears only once the ring header is whole: the region is
built under a temporary name and linked to its own.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import posix_ipc

from hmb_trace.errors import (
    BusyError,
    CannotCreateError,
    InvalidDataError,
    UsageError,
    from_os_error,
)
from hmb_trace.layout import RECORD_AREA_OFF, RING_SIZE_MIN
from hmb_trace.live.ring import lock_holder

SHM_DIRECTORY = Path("/dev/shm")
RING_SIZE_MAX = 1 << 31


@dataclass
class Region:
    """A mapped region of RECORD_AREA_OFF + ring_size bytes."""

    path: Path
    memory: mmap.mmap
    ring_size: int
    temporary: Path | None = None  # its name until it is published
    ephemeral: bool = False  # goes away with the simulator
    replace: bool = False
    published: bool = field(default=False, init=False)

    def publish(self) -> None:
        """Let the name appear.

        Raises:
            BusyError: the name is taken.
        """
        if self.temporary is not None:
            try:
                if self.replace:
                    self.temporary.replace(self.path)
                else:
                    os.link(self.temporary, self.path)
                    self.temporary.unlink()
            except FileExistsError:
                raise taken(self.path) from None
            except OSError as error:
                raise from_os_error(error, f"cannot create {self.path}", creating=True) from error
            self.temporary = None
        self.published = True

    def consumer(self) -> int | None:
        """The pid of the consumer that has attached, None while there is none."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return lock_holder(fd)
        finally:
            os.close(fd)

    def unlink(self) -> None:
        """Remove the name; whoever has it mapped keeps the memory."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def taken(path: Path) -> BusyError:
    """The error for a name that exists already."""
    return BusyError(
        f"{path}: exists already, so another simulator may be using it; choose another name, "
        "or give --replace if it was left behind"
    )


def shm_path(name: str) -> Path:
    """'/NAME' or 'NAME' -> its file.

    Raises:
        UsageError: not a POSIX shared memory name.
    """
    bare = name.removeprefix("shm:").removeprefix("/")
    if not bare or "/" in bare or bare in (".", ".."):
        raise UsageError(f"--shm: found {name!r}, expected a name like /hmb0 without other slashes")
    return SHM_DIRECTORY / bare


def _map(fd: int, size: int, what: Path) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotCreateError(f"{what}: cannot map {size} bytes: {reason}") from error


def _is_taken(path: Path) -> bool:
    """True where something stands that must not be replaced unasked; an empty file may be."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(found.st_mode) and found.st_size == 0)


def _open_temporary(path: Path, mode: int) -> tuple[int, Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    if path.parent == SHM_DIRECTORY:
        shm = posix_ipc.SharedMemory(f"/{temporary.name}", posix_ipc.O_CREX, mode=mode)
        return shm.fd, temporary
    return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode), temporary


def create(
    path: Path, ring_size: int, *, ephemeral: bool, replace: bool, mode: int = 0o600
) -> Region:
    """A new region, not yet visible under its name (see Region.publish).

    Raises:
        BusyError: the name exists and replace is False.
        CannotCreateError: no room, no such directory, or not allowed.
    """
    check_ring_size(ring_size)
    if not replace and _is_taken(path):
        raise taken(path)
    size = RECORD_AREA_OFF + ring_size
    try:
        fd, temporary = _open_temporary(path, mode)
        try:
            os.posix_fallocate(fd, 0, size)  # a full file system must not become SIGBUS
            memory = _map(fd, size, path)
        except BaseException:
            temporary.unlink()
            raise
        finally:
            os.close(fd)
    except posix_ipc.Error as error:
        raise CannotCreateError(f"cannot create {path}: {error}") from error
    except OSError as error:
        raise from_os_error(error, f"cannot create {path}", creating=True) from error
    replace = replace or path.exists()
    return Region(path, memory, ring_size, temporary, ephemeral, replace)


def check_ring_size(ring_size: int) -> None:
    """Raises UsageError unless it is a power of two that the header's u32 can hold (R1)."""
    if not RING_SIZE_MIN <= ring_size <= RING_SIZE_MAX or ring_size & (ring_size - 1):
        raise UsageError(
            f"--ring-size: found {ring_size} bytes, expected a power of two from "
            f"{RING_SIZE_MIN} to {RING_SIZE_MAX}"
        )


def _largest_ring(size: int) -> int:
    return min(RING_SIZE_MAX, 1 << (size - RECORD_AREA_OFF).bit_length() - 1)


def attach_device(path: Path, ring_size: int | None) -> Region:
    """Memory that exists already: a PCI resource file, a character device, a file.

    Args:
        ring_size: bytes; None takes the largest that fits.

    Raises:
        NoInputError, PermissionDeniedError: it cannot be opened.
        UsageError: its size is unknown and ring_size is None.
        InvalidDataError: it is too small.
    """
    if ring_size is not None:
        check_ring_size(ring_size)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, f"cannot open {path}") from error
    try:
        size = os.fstat(fd).st_size
        if not size and ring_size is None:
            raise UsageError(f"{path}: its size is unknown, give --ring-size")
        if size and size < RECORD_AREA_OFF + (ring_size or 32):
            raise InvalidDataError(
                f"{path}: region found {size} bytes, expected at least "
                f"{RECORD_AREA_OFF + (ring_size or 32)}"
            )
        ring = ring_size or _largest_ring(size)
        return Region(path, _map(fd, RECORD_AREA_OFF + ring, path), ring)
    finally:
        os.close(fd)


@contextlib.contextmanager
def cleaned(region: Region, *, keep: bool) -> Iterator[Region]:
    """Close the mapping at the end; remove the name unless it is to stay."""
    try:
        yield region
    finally:
        if region.temporary is not None:
            region.temporary.unlink(missing_ok=True)
        elif region.published and region.ephemeral and not keep:
            region.unlink()
        region.memory.close()

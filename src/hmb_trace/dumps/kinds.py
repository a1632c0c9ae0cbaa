# SPDX-License-Identifier: Apache-2.0
"""What a path holds, told by its first bytes and never by its name."""

from __future__ import annotations

import enum
import os
import stat
from pathlib import Path

from hmb_trace.dumps import stdin
from hmb_trace.dumps.zstd import is_zstd
from hmb_trace.errors import InvalidDataError, NoInputError, from_os_error

RECORD_MAGIC_BYTES = b"RECT"
_MAGICS = {
    RECORD_MAGIC_BYTES: "dump",
    b"HMBT": "ring",
    b"PCCX": "pccx",
    b"HREJ": "rejects",
}


class Kind(enum.Enum):
    """Kinds of input that hmb-trace knows."""

    DUMP = "dump"
    RING = "ring"
    PCCX = "pccx"
    ZSTD = "zstd"
    REJECTS = "rejects"
    DIRECTORY = "directory"
    STREAM = "stream"


def is_shm_name(path: str) -> bool:
    """Whether this is a POSIX shared memory name (shm:/NAME) rather than a path."""
    return path.startswith("shm:")


def describe_magic(head: bytes) -> str:
    """The first bytes as people know them: hex, and text where it is text."""
    word = head[:4]
    text = f" ({word.decode('ascii')!r})" if word.isascii() and word.decode().isprintable() else ""
    return f"0x{int.from_bytes(word, 'little'):08x}{text}"


def wrong_magic(path: str, head: bytes) -> InvalidDataError:
    """The error for a file that is none of ours."""
    return InvalidDataError(
        f"{path}: magic: found {describe_magic(head)}, expected 'RECT' (dump), 'PCCX' (.pccx), "
        "'HMBT' (ring) or a zstd frame"
    )


def kind_of_head(path: str, head: bytes) -> Kind:
    """The kind that the first bytes tell. Empty, or zeros in a .part: a dump without records.

    Raises:
        InvalidDataError: another magic; the message names it.
    """
    for magic, kind in _MAGICS.items():
        if head[:4] == magic or (len(head) < 4 and magic.startswith(head)):
            return Kind(kind)
    if is_zstd(head):
        return Kind.ZSTD
    if path.endswith(".part") and not any(head):
        return Kind.DUMP
    raise wrong_magic(path, head)


def kind_of(path: str) -> Kind:
    """What lies at path: a file's kind by its magic, a directory, a device or a pipe.

    Of standard input only a .pccx is told apart: it is mapped, and so must be kept first.

    Raises:
        NoInputError: nothing there.
        InvalidDataError: a file that is none of ours.
    """
    if path == "-":
        return Kind.PCCX if stdin.is_package() else Kind.STREAM
    if is_shm_name(path):
        return Kind.RING
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            return Kind.DIRECTORY
        if stat.S_ISCHR(mode):
            return Kind.RING
        if stat.S_ISFIFO(mode):
            return Kind.STREAM
        if not stat.S_ISREG(mode):
            raise NoInputError(f"{path}: neither a file, a directory, a device nor a pipe")
        with Path(path).open("rb") as file:
            head = os.read(file.fileno(), 32)
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    return kind_of_head(path, head)

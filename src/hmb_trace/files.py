# SPDX-License-Identifier: Apache-2.0
"""Output files that appear only when they are whole."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from hmb_trace.errors import CannotCreateError, UsageError, from_os_error


@contextlib.contextmanager
def output_file(path: str | None, *, inputs: Sequence[str] = ()) -> Iterator[BinaryIO]:
    """Binary output: stdout for None and `-`, else a file that appears only when it is whole.

    A symbolic link stays one: what it points to is written. Devices and pipes are written to, and
    never replaced.

    Args:
        inputs: everything that is read: files, also by other names.

    Raises:
        UsageError: the output is one of the inputs.
        CannotCreateError: it cannot be made.
    """
    if path is None or path == "-":
        with binary_stdout() as out:
            yield out
        return
    target = Path(path)
    refuse_inputs(target, inputs)
    target = Path(os.path.realpath(target)) if target.is_symlink() else target
    if not target.exists() or target.is_file():
        yield from _atomic(target)
    else:
        yield from _special(target)


@contextlib.contextmanager
def binary_stdout() -> Iterator[BinaryIO]:
    """Standard output for bytes, flushed at the end.

    Under PYTHONUNBUFFERED Python hands out the bare file, whose write() may take a part and say
    so only in its result: no file for people who write records.
    """
    out = sys.stdout.buffer
    if isinstance(out, io.RawIOBase):
        with open(out.fileno(), "wb", closefd=False) as buffered:
            yield buffered
        return
    yield out
    out.flush()


def refuse_inputs(target: Path, inputs: Sequence[str]) -> None:
    """A capture exists once: nothing is put in its place, whatever name it goes by.

    Raises:
        UsageError: the target is one of the inputs.
    """
    try:
        there = target.stat()
    except OSError:
        return  # a new file
    if any(_is_same(there, name) for name in inputs):
        raise UsageError(f"{target}: is an input too; choose another output")


def _is_same(there: os.stat_result, name: str) -> bool:
    if stat.S_ISCHR(there.st_mode) or stat.S_ISFIFO(there.st_mode):
        return False  # /dev/null, a terminal: nothing to overwrite
    try:
        read = os.fstat(0) if name == "-" else Path(name).stat()  # `< FILE` is a name as well
        return os.path.samestat(there, read)
    except (OSError, ValueError):
        return False


def _special(target: Path) -> Iterator[BinaryIO]:
    """A device or a pipe is written as it is."""
    if target.is_dir():
        raise CannotCreateError(f"cannot create {target}: Is a directory; name a file in it")
    try:
        file = target.open("wb")
    except OSError as error:
        raise from_os_error(error, f"cannot create {target}", creating=True) from error
    with file:
        yield file


def _atomic(target: Path) -> Iterator[BinaryIO]:
    """A temporary file beside the target, renamed once it is whole; removed on any error."""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise from_os_error(error, f"cannot create {target}", creating=True) from error
    made = Path(name)
    try:
        with os.fdopen(fd, "w+b") as file:  # .pccx hashes what it wrote
            yield file
        made.chmod(0o666 & ~_umask())
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

# SPDX-License-Identifier: Apache-2.0
"""Writing .pccx files: streamed, atomic, to files and pipes (SPEC P1-P3).

Length and checksum stand in the header, before the payload, and are known last. A payload
that fits in memory is therefore held back and gets a compact header; a bigger one goes to
its final place behind a header of fixed length, padded with spaces after the object.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hmb_trace.errors import CannotCreateError, from_os_error
from hmb_trace.fnv import BytesLike, as_bytes, fnv1a_64
from hmb_trace.pccx.container import MAGIC, MAJOR, MINOR, PREFIX, WINDOW
from hmb_trace.pccx.header import Header, HeaderError, encode_header

HELD = 32 << 20  # payload bytes held in memory before they go to the file
_WIDEST = 2**64 - 1


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Whether an output path is standard output or another thing that cannot seek."""
    text = os.fspath(path)
    return text == "-" or (Path(text).exists() and not Path(text).is_file())


@contextlib.contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A temporary file beside path that takes its name when the block ends well.

    Raises:
        HmbTraceError: it cannot be created or written (exit 73, 74 or 77).
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        stream = temporary.open("x+b")
    except OSError as error:
        raise from_os_error(error, f"cannot create {target}", creating=True) from None
    try:
        with stream:
            yield stream
        temporary.replace(target)
    except OSError as error:
        raise from_os_error(error, f"cannot write {target}", creating=True) from None
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Output:
    """Where to write: a seekable stream, and a directory for scratch files (None: any)."""

    stream: BinaryIO
    scratch: Path | None


@contextlib.contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[Output]:
    """An output that can seek: a file that appears when it is whole, or a pipe's stand-in.

    Raises:
        HmbTraceError: it cannot be created or written.
    """
    if not is_pipe(path):
        with atomic_output(path) as stream:
            yield Output(stream, Path(path).parent)
        return
    with tempfile.TemporaryFile(prefix="hmb-trace-") as stream:
        yield Output(stream, None)
        stream.seek(0)
        _copy_to_pipe(stream, path)


def _copy_to_pipe(stream: BinaryIO, path: str | os.PathLike[str]) -> None:
    if os.fspath(path) == "-":
        shutil.copyfileobj(stream, sys.stdout.buffer, WINDOW)
        sys.stdout.buffer.flush()
        return
    try:
        with Path(path).open("wb") as pipe:
            shutil.copyfileobj(stream, pipe, WINDOW)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise from_os_error(error, f"cannot write {path}", creating=True) from None


def write_all(stream: BinaryIO, data: BytesLike) -> None:
    """Write every byte, to raw streams too."""
    view = as_bytes(data)
    while view:
        view = view[stream.write(view) :]


def _prefix(length: int) -> bytes:
    return PREFIX.pack(MAGIC, MAJOR, MINOR, 0, length)


class PayloadWriter:
    """Takes a payload piece by piece, then the header, and leaves a .pccx in a seekable file.

    Args:
        stream: empty, seekable, readable and writable.
        room: bytes of JSON kept free for the header; the widest that it can become.
    """

    def __init__(self, stream: BinaryIO, room: int) -> None:
        self._stream = stream
        self._room = room
        self._held: bytearray | None = bytearray()
        self._state: int | None = None
        self._patched = False
        self.length = 0

    @property
    def spilled(self) -> bool:
        """Whether the payload outgrew memory and stands in the file already."""
        return self._held is None

    @property
    def base(self) -> int:
        """File offset of the payload once it is spilled, bytes."""
        return PREFIX.size + self._room

    def write(self, data: BytesLike) -> None:
        """Append to the payload."""
        view = as_bytes(data)
        if self._held is not None and self.length + len(view) > HELD:
            self._spill()
        if self._held is not None:
            self._held += view
        else:
            if not self._patched:
                self._state = fnv1a_64(view, self._state)
            write_all(self._stream, view)
        self.length += len(view)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite payload bytes that were written before."""
        if self._held is not None:
            self._held[offset : offset + len(data)] = data
            return
        self._patched = True
        self._stream.flush()
        os.pwrite(self._stream.fileno(), data, self.base + offset)

    def payload_stream(self) -> BinaryIO:
        """The payload written so far, to be read again; this writer is done with it."""
        if self._held is not None:
            return io.BytesIO(self._held)
        self._stream.flush()
        self._stream.seek(self.base)
        return self._stream

    def _spill(self) -> None:
        held, self._held = self._held or bytearray(), None
        self._state = fnv1a_64(held)
        self._stream.seek(self.base)
        write_all(self._stream, held)

    def _hash(self) -> int:
        if self._held is not None:
            return fnv1a_64(self._held)
        if not self._patched and self._state is not None:
            return self._state
        self._stream.flush()
        return hash_file(self._stream, self.base, self.length)

    def finish(self, header: Header, style: str = "number") -> Header:
        """Write the header; `payload.byte_length` and checksum are filled in here."""
        done = deepcopy(header)
        done.payload.byte_length = self.length
        done.payload.checksum_fnv64 = None if style == "none" else self._hash()
        text = encode_header(done, style)
        self._stream.seek(0)
        self._stream.truncate(0 if self._held is not None else self.base + self.length)
        if self._held is not None:
            write_all(self._stream, _prefix(len(text)) + text)
            write_all(self._stream, self._held)
        else:
            if len(text) > self._room:
                raise HeaderError(f"header: {len(text)} bytes, but {self._room} were kept free")
            write_all(self._stream, _prefix(self._room) + text.ljust(self._room))
        self._stream.flush()
        return done


def hash_file(stream: BinaryIO, offset: int, length: int) -> int:
    """FNV-1a-64 of a file's bytes, in bounded memory."""
    state, buffer = None, bytearray(min(WINDOW, max(length, 1)))
    stream.seek(offset)
    while length:
        got = stream.readinto(memoryview(buffer)[: min(length, len(buffer))])  # type: ignore[attr-defined]
        if not got:
            raise CannotCreateError("output file: shorter than what was written to it")
        state = fnv1a_64(memoryview(buffer)[:got], state)
        length -= got
    return fnv1a_64(b"") if state is None else state


def widest_header(header: Header, style: str) -> int:
    """Bytes that the header takes when every number in it is as long as it can be."""
    widest = deepcopy(header)
    widest.payload.byte_length = widest.payload.checksum_fnv64 = _WIDEST
    widest.trace.cycles, widest.trace.cores = _WIDEST, 2**32 - 1
    return len(encode_header(widest, style))

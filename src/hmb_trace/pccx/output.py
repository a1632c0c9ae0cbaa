# SPDX-License-Identifier: Apache-2.0
"""Writing .pccx files: streamed, atomic, to files and pipes (SPEC P1-P3).

Length and checksum stand in the header, before the payload, and are known last. A payload
that fits in memory is therefore held back and gets a compact header; a bigger one goes to
its final place behind a header of fixed length, padded with spaces after the object.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hmb_trace.errors import CannotCreateError, from_os_error
from hmb_trace.files import output_file
from hmb_trace.fnv import BytesLike, as_bytes, fnv1a_64
from hmb_trace.pccx.behind import WriteBehind
from hmb_trace.pccx.container import MAGIC, MAJOR, MINOR, PREFIX, WINDOW
from hmb_trace.pccx.header import Header, HeaderError, encode_header

HELD = 32 << 20  # payload bytes held in memory before they go to the file
_WIDEST = 2**64 - 1


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Whether an output path is standard output or another thing that cannot seek."""
    text = os.fspath(path)
    return text == "-" or (Path(text).exists() and not Path(text).is_file())


@dataclass
class Output:
    """Where to write: a seekable stream, and a directory for scratch files (None: any)."""

    stream: BinaryIO
    scratch: Path | None
    behind: WriteBehind | None = None

    def write_behind(self) -> WriteBehind:
        """A thread that writes to the stream from where it stands; ended with the output."""
        self.settle()
        self.behind = WriteBehind(self.stream)
        return self.behind

    def settle(self) -> None:
        """Wait until the stream holds all that was written behind."""
        behind, self.behind = self.behind, None
        if behind:
            behind.close()

    def abandon(self) -> None:
        """End the thread, whatever became of its bytes."""
        with contextlib.suppress(Exception):
            self.settle()


@contextlib.contextmanager
def _output(stream: BinaryIO, scratch: Path | None) -> Iterator[Output]:
    output = Output(stream, scratch)
    try:
        yield output
        output.settle()
    finally:
        output.abandon()


@contextlib.contextmanager
def open_output(
    path: str | os.PathLike[str], inputs: Sequence[str | os.PathLike[str]] = ()
) -> Iterator[Output]:
    """An output that can seek: a file that appears when it is whole, or a pipe's stand-in.

    Raises:
        UsageError: the output is one of the inputs.
        HmbTraceError: it cannot be created or written.
    """
    names = tuple(os.fspath(one) for one in inputs)
    try:
        if is_pipe(path):
            with _stand_in(os.fspath(path), names) as output:
                yield output
            return
        with (
            output_file(os.fspath(path), inputs=names) as stream,
            _output(stream, Path(path).parent) as output,
        ):
            yield output
    except BrokenPipeError:
        raise
    except OSError as error:
        raise from_os_error(error, f"cannot write {os.fspath(path)}", creating=True) from None


@contextlib.contextmanager
def _stand_in(path: str, inputs: tuple[str, ...]) -> Iterator[Output]:
    """A temporary file whose bytes go to the pipe once they are whole."""
    with tempfile.TemporaryFile(prefix="hmb-trace-") as stream:
        with _output(stream, None) as output:
            yield output
        stream.seek(0)
        with output_file(path, inputs=inputs) as out:
            shutil.copyfileobj(stream, out, WINDOW)


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
        target: empty, readable and writable.
        room: bytes of JSON kept free for the header; the widest that it can become.
        checksum: number, hex or none (SPEC P1).
        patched: bytes will be overwritten later, so the hash must wait until the end.
    """

    def __init__(self, target: Output, room: int, checksum: str, *, patched: bool = False) -> None:
        self._target = target
        # On a page, records can be mapped and blocks be shared with the dump's.
        self._room = room + -(PREFIX.size + room) % mmap.PAGESIZE
        self._checksum = checksum
        self._patched = patched
        self._held: bytearray | None = bytearray()
        self._behind: WriteBehind | None = None
        self._state: int | None = None
        self.length = 0

    @property
    def base(self) -> int:
        """File offset of the payload once it outgrew memory, bytes."""
        return PREFIX.size + self._room

    def write(self, data: BytesLike) -> None:
        """Append to the payload."""
        view = as_bytes(data)
        if self._held is not None and self.length + len(view) > HELD:
            self._spill()
        if self._behind is not None:
            self._append(self._behind, view)
        elif self._held is not None:
            self._held += view
        self.length += len(view)

    def _append(self, behind: WriteBehind, view: memoryview) -> None:
        behind.write(view)
        if not self._patched and self._checksum != "none":
            self._state = fnv1a_64(view, self._state)

    def _spill(self) -> None:
        held, self._held = self._held or bytearray(), None
        self._target.stream.seek(self.base)
        self._behind = self._target.write_behind()
        self._append(self._behind, memoryview(held))

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite payload bytes that were written before."""
        if self._behind is not None:
            self._behind.patch(self.base + offset, data)
        elif self._held is not None:
            self._held[offset : offset + len(data)] = data

    def payload_stream(self) -> BinaryIO:
        """The payload written so far, to be read again; this writer is done with it."""
        if self._held is not None:
            return io.BytesIO(self._held)
        self._target.settle()
        self._target.stream.seek(self.base)
        return self._target.stream

    def _hash(self) -> int | None:
        if self._checksum == "none":
            return None
        if self._held is not None:
            return fnv1a_64(self._held)
        if not self._patched and self._state is not None:
            return self._state
        return hash_file(self._target.stream, self.base, self.length)

    def finish(self, header: Header) -> Header:
        """Write the header; `payload.byte_length` and checksum are filled in here."""
        self._target.settle()
        done = deepcopy(header)
        done.payload.byte_length = self.length
        done.payload.checksum_fnv64 = self._hash()
        text = encode_header(done, self._checksum)
        stream = self._target.stream
        stream.seek(0)
        if self._held is not None:
            stream.truncate(0)
            write_all(stream, _prefix(len(text)) + text)
            write_all(stream, self._held)
        else:
            stream.truncate(self.base + self.length)
            if len(text) > self._room:
                raise HeaderError(f"header: {len(text)} bytes, but {self._room} were kept free")
            write_all(stream, _prefix(self._room) + text.ljust(self._room))
        stream.flush()
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

# SPDX-License-Identifier: Apache-2.0
"""The .pccx container: magic, version, header, payload (seeds 000 and 001; SPEC P1-P5)."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from hmb_trace.dumps.packaged import (
    MAGIC,
    MAJOR,
    MINOR,
    PREFIX,
    PccxError,
    Prefix,
    parse_prefix,
)
from hmb_trace.dumps.stdin import spooled_stdin
from hmb_trace.errors import HmbTraceError, InvalidDataError, from_os_error
from hmb_trace.fnv import fnv1a_64
from hmb_trace.pccx.header import Header, parse_header

__all__ = [
    "MAGIC",
    "MAJOR",
    "MINOR",
    "PREFIX",
    "ChecksumError",
    "PccxError",
    "PccxFile",
    "Prefix",
    "open_input",
    "parse_prefix",
    "read",
]

WINDOW = 4 << 20  # bytes looked at before their pages are given back

U8Array = NDArray[np.uint8]


class ChecksumError(HmbTraceError):
    """The payload is not what the header's checksum says (--strict; exit 1)."""


@dataclass
class PccxFile:
    """An open .pccx file.

    Attributes:
        name: for messages.
        prefix: version and reserved bytes.
        header: typed; `header.extra` keeps unknown keys.
        raw_header: the JSON object as it was read.
        payload: uint8 array of shape (byte_length,), mapped read-only, not read yet.
        warnings: what is odd but no error (SPEC P2, P4, P5), one line each.
    """

    name: str
    prefix: Prefix
    header: Header
    raw_header: dict[str, Any]
    payload: U8Array
    warnings: list[str]
    _map: mmap.mmap | None = None
    _offset: int = 0
    _cache: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping; arrays made from it keep it alive until they are gone."""
        self.payload = np.empty(0, np.uint8)
        self._cache.clear()
        if self._map is not None:
            with contextlib.suppress(BufferError):  # somebody still holds an array
                self._map.close()
            self._map = None

    def drop_pages(self, start: int, end: int) -> None:
        """Give back the memory of payload bytes start..end: a big file must not fill it."""
        if self._map is None:
            return
        page = mmap.PAGESIZE
        first = (self._offset + start) // page * page
        last = (self._offset + end) // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def checksum(self) -> str:
        """'ok', 'mismatch' or 'absent'; hashes the payload once (SPEC P1, P5)."""
        if self.header.payload.checksum_fnv64 is None:
            return "absent"
        same = self.payload_hash() == self.header.payload.checksum_fnv64
        return "ok" if same else "mismatch"

    def payload_hash(self) -> int:
        """FNV-1a-64 of the payload, in bounded memory; computed once."""
        if "hash" not in self._cache:
            state = None
            for start in range(0, len(self.payload), WINDOW):
                state = fnv1a_64(self.payload[start : start + WINDOW], state)
                self.drop_pages(start, start + WINDOW)
            self._cache["hash"] = fnv1a_64(b"") if state is None else state
        return int(self._cache["hash"])

    def note_hash(self, value: int) -> None:
        """The payload's hash, for a caller that has computed it on its way."""
        self._cache["hash"] = value

    def checksum_warning(self) -> str | None:
        """One line if the checksum does not fit the payload (SPEC P5), else None."""
        if self.checksum() != "mismatch":
            return None
        found, expected = self.payload_hash(), self.header.payload.checksum_fnv64
        return f"checksum_fnv64: payload has {found:#018x}, header says {expected:#018x}"


def _spooled(stream: BinaryIO) -> BinaryIO:
    """A pipe's bytes as a temporary file without a name: the payload is mapped, not held."""
    with tempfile.TemporaryFile(prefix="hmb-trace-") as spool:
        shutil.copyfileobj(stream, spool, WINDOW)
        spool.seek(0)
        return os.fdopen(os.dup(spool.fileno()), "rb")


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for mapping; `-` (standard input) and pipes are spooled first.

    Raises:
        HmbTraceError: what the system said, with its exit code.
    """
    try:
        if os.fspath(path) == "-":
            return spooled_stdin().open("rb")
        opened = Path(path).open("rb")  # noqa: SIM115 - handed to the caller
        if not opened.seekable():
            with opened:
                return _spooled(opened)
        return opened
    except OSError as error:
        raise from_os_error(error, f"cannot open {path}") from None


def _read_header(stream: BinaryIO, prefix: Prefix, size: int, name: str) -> bytes:
    room = size - PREFIX.size
    if prefix.header_length > room:
        raise PccxError(
            f"{name}: header length: found {prefix.header_length}, but only {room} bytes follow"
        )
    return stream.read(prefix.header_length)


def _container_warnings(prefix: Prefix, left: int, length: int) -> list[str]:
    found = []
    if prefix.reserved:
        found.append(f"reserved: found {prefix.reserved:#06x}, expected 0")
    if left > length:
        found.append(f"{left - length} bytes after the payload are ignored")
    return found


def read(path: str | os.PathLike[str]) -> PccxFile:
    """Open a .pccx file: header parsed, payload mapped. Takes the same time for any size.

    Args:
        path: a file, or `-` for standard input.

    Returns:
        A PccxFile; use it in a `with` statement, or close() it.

    Raises:
        PccxError: another magic or major version, torn, or a payload shorter than
            `payload.byte_length` (SPEC P2-P4).
        HeaderError: the JSON header is wrong; names the field's path.
        HmbTraceError: the file cannot be opened or read.
    """
    name = "standard input" if os.fspath(path) == "-" else os.fspath(path)
    with open_input(path) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            prefix = parse_prefix(stream.read(PREFIX.size), name)
            text = _read_header(stream, prefix, size, name)
            mapped = mmap.mmap(stream.fileno(), size, prot=mmap.PROT_READ)
        except OSError as error:
            raise from_os_error(error, f"cannot read {name}") from None
    try:
        header, raw = parse_header(text)
    except InvalidDataError as error:
        raise type(error)(f"{name}: {error}") from None
    start, length = PREFIX.size + prefix.header_length, header.payload.byte_length
    if size - start < length:
        raise PccxError(
            f"{name}: payload.byte_length: header says {length}, "
            f"but only {size - start} bytes follow"
        )
    payload = np.frombuffer(mapped, np.uint8, length, start) if length else np.empty(0, np.uint8)
    warnings = _container_warnings(prefix, size - start, length)
    return PccxFile(name, prefix, header, raw, payload, warnings, mapped, start)

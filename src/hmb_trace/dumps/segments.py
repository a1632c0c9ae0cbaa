# SPDX-License-Identifier: Apache-2.0
"""The files of a dump: one, several, or a dump set's segments in the order of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from hmb_trace.dumps import sidecar, sources
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.sources import Source
from hmb_trace.dumps.stdin import spooled_stdin
from hmb_trace.errors import HmbTraceError, InvalidDataError, NoInputError, from_os_error

_NAME = re.compile(r"(?P<label>.+)-(?P<number>\d{6,})-(?P<start>[0-9A-Za-z:.+-]+?)\.bin")
_ENDINGS = (".bin", ".bin.zst", ".bin.part")  # the better one of two copies first


@dataclass(frozen=True)
class Segment:
    """One file of a dump.

    Attributes:
        name: for messages: the path, or "standard input".
        path: None for pipes and file objects.
        kind: DUMP, ZSTD, PCCX (encoding raw) or STREAM.
        file: the object to read, where there is no path.
    """

    name: str
    path: Path | None
    kind: Kind
    file: BinaryIO | None = field(default=None, compare=False)

    @property
    def partial(self) -> bool:
        """Still written, or left by a host that died: zeros are its end (SPEC R14)."""
        return self.name.endswith(".part")

    @cached_property
    def known(self) -> sidecar.Sidecar | None:
        """The sidecar, where there is a good one; read once."""
        try:
            return sidecar.find(self.path) if self.path else None
        except HmbTraceError:
            return None  # who needs the sidecar itself says what is wrong with it

    @property
    def series(self) -> tuple[str, int] | None:
        """(directory and label, number) where the name is that of a dump set's segment."""
        if self.path is None:
            return None
        match = _NAME.match(self.path.name)
        return (str(self.path.parent / match["label"]), int(match["number"])) if match else None

    def continues(self, before: Segment) -> bool:
        """Whether this file's sequence goes on from the file before."""
        mine, theirs = self.series, before.series
        if not (mine and theirs and mine[0] == theirs[0] and mine[1] > theirs[1]):
            return False
        epochs = {one.known.epoch for one in (self, before) if one.known}
        return len(epochs) <= 1  # after a re-initialisation (R6) seq starts anew

    def open(self) -> Source:
        """The bytes of the records, decompressed.

        Raises:
            HmbTraceError: cannot be opened, or a .pccx whose payload is no dump.
        """
        if self.file is not None:
            return sources.from_file_object(self.file, self.name)
        assert self.path is not None
        if self.kind is Kind.ZSTD:
            return sources.from_zstd(self.path)
        if self.kind is Kind.PCCX:
            return _raw_payload(self.path)
        if self.partial or self.kind is Kind.STREAM:
            return sources.from_growing(self.path)
        return sources.MappedSource(self.path)


def _raw_payload(path: Path) -> Source:
    # The package around it packs dumps, and so needs this module first.
    from hmb_trace.pccx import container  # noqa: PLC0415 - see above

    with container.read(path) as file:
        payload = file.header.payload
        if payload.encoding != "raw":
            raise InvalidDataError(
                f"{path}: payload.encoding: found {payload.encoding!r}, expected 'raw'; "
                "only raw payloads hold the records themselves"
            )
        begin = container.PREFIX.size + file.prefix.header_length
        return sources.MappedSource(path, begin, payload.byte_length)


def of_directory(directory: Path) -> list[Segment]:
    """The segments of a dump-set directory, in the order of their numbers.

    Raises:
        NoInputError: no segment in it.
    """
    try:
        names = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError as error:
        raise from_os_error(error, f"cannot read {directory}") from error
    chosen: dict[str, str] = {}
    for ending in reversed(_ENDINGS):
        for name in names:
            if name.endswith(ending) and not name.startswith("."):
                chosen[name.removesuffix(ending)] = name
    if not chosen:
        raise NoInputError(f"{directory}: no dump segments (*.bin, *.bin.zst, *.bin.part) in it")
    return [of_file(str(directory / name)) for name in sorted(chosen.values(), key=_order)]


def _order(name: str) -> tuple[str, int, str]:
    match = _NAME.match(name)
    return (match["label"], int(match["number"]), name) if match else (name, 0, name)


def of_file(path: str) -> Segment:
    """The segment that one file is.

    Raises:
        InvalidDataError: not a dump; NoInputError: not there.
    """
    kind = kind_of(path)
    if kind is Kind.RING:
        raise InvalidDataError(
            f"{path}: is a ring or a device, not a dump (magic 'HMBT' instead of 'RECT'); "
            "drain it with hmb-trace-daemon"
        )
    if kind is Kind.REJECTS:
        raise InvalidDataError(
            f"{path}: magic: found 'HREJ', a rejects file and not a dump; see hmb-trace info {path}"
        )
    return Segment(path, Path(path), kind)


def of_paths(paths: Iterable[str]) -> list[Segment]:
    """All segments of files, directories and `-` (standard input), in the order given."""
    import sys  # noqa: PLC0415 - only here

    found: list[Segment] = []
    for path in paths:
        if path == "-" and kind_of(path) is Kind.PCCX:
            found.append(Segment("standard input", spooled_stdin(), Kind.PCCX))
        elif path == "-":
            found.append(Segment("standard input", None, Kind.STREAM, sys.stdin.buffer))
        elif Path(path).is_dir():
            found += of_directory(Path(path))
        else:
            found.append(of_file(path))
    return found

# SPDX-License-Identifier: Apache-2.0
"""The files of a dump: one, several, or a dump set's segments in the order of their numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from hmb_trace.dumps import packaged, segment_names, sidecar, sources
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.packaged import Packaged
from hmb_trace.dumps.sidecar import Damaged, Missing, Sidecar
from hmb_trace.dumps.sources import Source
from hmb_trace.dumps.stdin import spooled_stdin
from hmb_trace.errors import InvalidDataError, NoInputError, from_os_error

log = logging.getLogger("hmb_trace")


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
    def sidecar(self) -> Sidecar | Missing | Damaged:
        """What lies beside the file, read once; what to make of it is the caller's decision."""
        if self.path is None or self.kind is Kind.PCCX:
            return Missing()
        found = sidecar.look(self.path)
        if isinstance(found, Damaged):
            log.warning("%s; going on without it", found.error)
        return found

    @property
    def known(self) -> Sidecar | None:
        """The sidecar, where there is a good one."""
        return self.sidecar if isinstance(self.sidecar, Sidecar) else None

    @property
    def rejected_bytes(self) -> int:
        """Bytes that its capture set aside, which may have been records (R12)."""
        side = self.known
        return side.rejects.bytes if side and side.rejects else 0

    @cached_property
    def packaged(self) -> Packaged | None:
        """Where the dump lies in a .pccx, and what its header says; None: it is none.

        Raises:
            HmbTraceError: torn, or not to be read.
        """
        return packaged.look(self.path) if self.path and self.kind is Kind.PCCX else None

    @property
    def series(self) -> tuple[str, int] | None:
        """(directory and label, number): by the name, or the sidecar, which outlives a rename."""
        if self.path is None:
            return None
        name = segment_names.parse(self.path.name)
        if name:
            return str(self.path.parent / name.label), name.number
        known = self.known
        if known and known.label and not known.filtered:
            return str(self.path.parent / known.label), known.number
        return None

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
            return self._raw_payload(self.path)
        if self.partial or self.kind is Kind.STREAM:
            return sources.from_growing(self.path)
        return sources.MappedSource(self.path)

    def _raw_payload(self, path: Path) -> Source:
        found = self.packaged
        assert found is not None
        if found.encoding != "raw":
            raise InvalidDataError(
                f"{path}: payload.encoding: found {found.encoding!r}, expected 'raw'; "
                "only raw payloads hold the records themselves"
            )
        return sources.MappedSource(path, found.begin, found.length)


def of_directory(directory: Path) -> list[Segment]:
    """The segments of a dump-set directory, in the order of their numbers.

    Dumps of other names are read too, in natural order, unless there are segments: then they are
    no part of the set (a note says so), except where a sidecar shows a segment that was renamed.

    Raises:
        NoInputError: no segment in it. InvalidDataError: its only dumps are none.
    """
    try:
        names = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError as error:
        raise from_os_error(error, f"cannot read {directory}") from error
    chosen = sorted(_best_copies(names), key=segment_names.natural_key)
    if not chosen:
        raise NoInputError(f"{directory}: no dump segments (*.bin, *.bin.zst, *.bin.part) in it")
    found = [_member(directory / name, alone=len(chosen) == 1) for name in chosen]
    members = _of_one_set([segment for segment in found if segment])
    if not members:
        raise InvalidDataError(f"{directory}: none of its *.bin files is a dump")
    return _in_order(members)


def _best_copies(names: Iterable[str]) -> Iterable[str]:
    """One name for each dump: a segment may be there compressed and not, or as a .part still."""
    chosen: dict[str, str] = {}
    dumps = [name for name in names if segment_names.is_dump(name)]
    for ending in reversed(segment_names.ENDINGS):
        chosen |= {segment_names.stem_of(n): n for n in dumps if n.endswith(ending)}
    return chosen.values()


def _member(path: Path, *, alone: bool) -> Segment | None:
    """A file of a directory. One that is no dump is part of a set only by its name or sidecar."""
    try:
        return of_file(str(path))
    except InvalidDataError as error:
        damaged = Segment(str(path), path, Kind.ZSTD if path.suffix == ".zst" else Kind.DUMP)
        if damaged.series:
            return damaged
        if alone:
            raise
        log.warning("%s; left out", error)
        return None


def _of_one_set(found: list[Segment]) -> list[Segment]:
    """Without the files that are no segments, where there are segments."""
    if not any(segment.series for segment in found):
        return found
    for segment in found:
        if not segment.series:
            log.warning("%s: not a segment of the set beside it; left out", segment.name)
    return [segment for segment in found if segment.series]


def _in_order(found: Sequence[Segment]) -> list[Segment]:
    if not all(segment.series for segment in found):
        return list(found)
    return sorted(found, key=lambda segment: segment.series or ("", 0))


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

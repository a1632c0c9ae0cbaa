# SPDX-License-Identifier: Apache-2.0
"""Cutting a dump after its last good record, the rest kept aside (SPEC R13, R14)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hmb_trace.dumps.dump import Dump, DumpError
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment, of_paths
from hmb_trace.dumps.walker import Walker
from hmb_trace.errors import UsageError, from_os_error
from hmb_trace.files import output_file

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Cut:
    """Where a dump file stops being good.

    Attributes:
        good_bytes: whole records, from the start.
        cut_bytes: what follows them; None where only reading it all would tell.
        reason: what is wrong there; None: nothing, the file is whole.
    """

    segment: Segment
    good_bytes: int
    cut_bytes: int
    reason: str | None


def find_cut(path: str) -> Cut:
    """Look for the first fault of one dump file.

    Raises:
        UsageError: a directory or a pipe. HmbTraceError: not a dump, or not readable.
    """
    if Path(path).is_dir():
        raise UsageError(f"{path}: is a directory; repair takes dump files, one by one")
    segments = of_paths([path])
    if segments[0].kind is Kind.STREAM:
        raise UsageError(f"{segments[0].name}: repair takes files, not pipes")
    dump = Dump(segments)
    walker = Walker()
    reason = None
    try:
        dump.scan(walker)
    except DumpError as error:
        reason = error.reason
    good: int = walker.offset
    cut = _size(segments[0], path) - good
    if reason is None and cut > 0 and segments[0].partial:
        reason = f"preallocated space that was never written begins at byte {good}"
    return Cut(segments[0], good, max(cut, 0), reason)


def _size(segment: Segment, path: str) -> int:
    """Bytes of the dump as it stands; for compressed files only as far as they were good."""
    return Path(path).stat().st_size if segment.kind is Kind.DUMP else 0


def cut(found: Cut) -> Path | None:
    """Truncate the file in place; the bytes cut are in FILE.cut, synced before the cut.

    Returns:
        Where the cut bytes are; None if they were all zero and nothing was kept.

    Raises:
        UsageError: compressed or .pccx: give an output file instead.
        HmbTraceError: the files cannot be written.
    """
    path = found.segment.path
    if found.segment.kind is not Kind.DUMP or path is None:
        raise UsageError(f"{found.segment.name}: cannot be cut in place; use -o FILE")
    try:
        with path.open("r+b") as file:
            aside = None if _all_zero(file, found.good_bytes) else _keep(file, found, path)
            file.truncate(found.good_bytes)
            os.fsync(file.fileno())
    except OSError as error:
        raise from_os_error(error, f"cannot repair {path}") from error
    return aside


def _all_zero(file: BinaryIO, start: int) -> bool:
    file.seek(start)
    while chunk := file.read(_CHUNK):
        if any(chunk):
            return False
    return True


def _keep(file: BinaryIO, found: Cut, path: Path) -> Path:
    aside = _free_name(path)
    file.seek(found.good_bytes)
    with aside.open("xb") as out:
        while chunk := file.read(_CHUNK):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return aside


def _free_name(path: Path) -> Path:
    number = 0
    while True:
        ending = ".cut" if number == 0 else f".cut.{number}"
        candidate = path.with_name(path.name + ending)
        if not candidate.exists():
            return candidate
        number += 1


def copy_good(found: Cut, output: str) -> None:
    """Write the good part to another file, decompressed.

    Raises:
        HmbTraceError: as output files go.
    """
    with output_file(output, inputs=Dump([found.segment]).files()) as file:
        try:
            Dump([found.segment]).scan(Walker(), on_bytes=file.write)
        except DumpError:
            return

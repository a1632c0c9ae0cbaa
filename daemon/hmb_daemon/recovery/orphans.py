# SPDX-License-Identifier: Apache-2.0
"""Segments that outlived their host (SPEC R14): cut at the first invalid byte and sealed."""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any

import xxhash

from hmb_daemon.spool.causes import Cause
from hmb_daemon.spool.journal import COUNTER_NAMES, HEADER
from hmb_daemon.writing import names
from hmb_daemon.writing import sidecar_builder as describe
from hmb_daemon.writing.segment import publish
from hmb_daemon.writing.sidecar_builder import Beginning
from hmb_daemon.writing.walk import begin_walk, walk_on
from hmb_trace.dumps import rejects
from hmb_trace.dumps.sidecar import RejectsSummary, Sidecar
from hmb_trace.errors import BusyError, InvalidDataError
from hmb_trace.live.ring import lock_holder

_CHUNK = 4 << 20


def recover(
    directory: Path,
    label: str,
    origin: describe.Origin,
    log: Any,
    *,
    keep: str = "",
    cause: Cause = Cause.HOST_DIED,
) -> int | None:
    """Seal every .part of this label that no daemon and no spool stands behind.

    Args:
        keep: name of a segment that a spool continues; left alone.
        cause: why no spool stands behind them.

    Returns:
        The last sequence number of the last one that had records, else None.

    Raises:
        BusyError: another daemon writes segments of this label here.
    """
    last_seq = None
    for found in names.scan(directory, label):
        if found.suffix.endswith(names.PART) and found.name != keep:
            sealed = _recover_one(directory, found, origin, log, cause)
            if sealed is not None and sealed.last_seq is not None:
                last_seq = sealed.last_seq
    _sweep(directory, label, keep)
    return last_seq


def _recover_one(
    directory: Path, found: names.Found, origin: describe.Origin, log: Any, cause: Cause
) -> Sidecar | None:
    path = directory / (found.name + names.BIN + names.PART)
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = lock_holder(file.fileno())
            raise BusyError(
                f"{path} is being written by {f'pid {pid}' if pid else 'another daemon'}; two "
                "captures in one directory need different names: give another --label"
            ) from error
        walk, digest = _walk(file.fileno())
        cut = os.fstat(file.fileno()).st_size - walk.offset
        file.truncate(walk.offset)
        os.fsync(file.fileno())
        summary = _cut_rejects(directory, found.name)
        if not walk.offset and summary is None:
            _remove(directory, found.name)
            return None
        side = _describe(directory, found, origin, walk, summary)
        side.cause, side.xxh3 = cause.text, digest
        publish(directory, found.name, side.encode(), rejects=summary is not None)
    log.warning(
        "segment-recovered",
        segment=side.segment,
        cause=side.cause,
        records=side.records,
        bytes=side.bytes,
        cut_bytes=cut,
    )
    return side


def _walk(fd: int) -> tuple[Any, str]:
    """Walk to the first invalid byte; what was walked, and the hash of the valid bytes."""
    walk = begin_walk()
    digest = xxhash.xxh3_64()
    while True:
        chunk = os.pread(fd, _CHUNK, walk.offset)
        used = walk_on(walk, chunk)
        if not used:
            return walk, digest.hexdigest()
        digest.update(memoryview(chunk)[:used])


def _cut_rejects(directory: Path, name: str) -> RejectsSummary | None:
    """Keep the whole entries of the rejects file; None where there are none."""
    path = directory / (name + names.REJECTS_PART)
    entries, size, end = 0, 0, 0
    try:
        for entry in rejects.read(path):
            entries += 1
            size += len(entry.data)
            end = entry.offset + rejects.HEADER.size + len(entry.data) + -len(entry.data) % 8
    except InvalidDataError:
        pass  # the torn end is cut off
    except Exception:
        if path.exists():
            raise
    if not entries:
        return None
    os.truncate(path, end)
    return RejectsSummary(file=name + names.REJECTS, entries=entries, records=entries, bytes=size)


def _read_log(directory: Path, name: str, end: int) -> tuple[describe.Lists, Beginning]:
    """What the event log still says up to byte `end` of the dump."""
    path = directory / (name + names.EVENTS_PART)
    try:
        with path.open("rb") as file:
            begin = Beginning.unpack(file.read(HEADER.size))
            if begin is None:
                return describe.Lists(0), Beginning()
            size, pos = os.fstat(file.fileno()).st_size, begin.segment_pos
            return describe.read_log(file.fileno(), size, pos, pos + end), begin
    except FileNotFoundError:
        return describe.Lists(0), Beginning()


def _describe(
    directory: Path,
    found: names.Found,
    origin: describe.Origin,
    walk: Any,
    summary: RejectsSummary | None,
) -> Sidecar:
    lists, begin = _read_log(directory, found.name, walk.offset)
    rejected = sum(gap.rejected for gap in lists.gaps)
    counted = dict.fromkeys(COUNTER_NAMES, 0)
    for name in ("records", "wrap_markers", "truncated", "gaps", "duplicates", "sequence_resets"):
        counted[name] = int(getattr(walk, name))
    counted["bytes"] = int(walk.offset)
    counted["lost"] = max(0, int(walk.lost) - rejected)
    side = Sidecar(
        segment=found.name + names.BIN,
        number=found.number,
        label=origin.label,
        device=origin.device,
        ring_size=begin.ring_size or origin.ring_size,
        epoch=begin.epoch,
        started_ns=begin.started_ns,
        sealed_ns=time.time_ns(),
        complete=False,
        bytes=int(walk.offset),
        rejects=summary,
    )
    describe.fill_counts(side, counted)
    describe.fill_lists(side, lists)
    if walk.records:
        side.first_seq, side.last_seq = int(walk.first_seq), int(walk.last_record_seq)
        side.first_ts_ns, side.last_ts_ns = int(walk.first_ts_ns), int(walk.last_ts_ns)
    return side


def _remove(directory: Path, name: str) -> None:
    for suffix in (names.BIN + names.PART, names.EVENTS_PART, names.REJECTS_PART):
        (directory / (name + suffix)).unlink(missing_ok=True)


def _sweep(directory: Path, label: str, keep: str) -> None:
    """What is left of a seal whose last step the host did not live to see."""
    pattern = re.compile(rf"({re.escape(label)}-\d{{6,}}-\d{{8}}T\d{{6}}Z)")
    for path in list(directory.iterdir()):
        match = pattern.match(path.name)
        if not match or match[1] == keep:
            continue
        rest = path.name.removeprefix(match[1])
        torn = rest in (names.EVENTS_PART, names.REJECTS_PART, names.SIDECAR + ".tmp")
        if torn and not (directory / (match[1] + names.BIN + names.PART)).exists():
            path.unlink(missing_ok=True)
        if rest == names.ZST + ".tmp" or rest.endswith(names.PART + ".tmp"):
            path.unlink(missing_ok=True)

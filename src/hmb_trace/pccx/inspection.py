# SPDX-License-Identifier: Apache-2.0
"""What `hmb-trace info` and `verify` say about a .pccx file (SPEC P2-P5; keys: DESIGN)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmb_trace.dumps.account import ACCOUNT_KEY, Account
from hmb_trace.dumps.account import account as account_of
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.walker import End, Walker
from hmb_trace.pccx.container import WINDOW, ChecksumError, PccxError, PccxFile, read
from hmb_trace.pccx.events import (
    BincodeReader,
    event_batches,
    flat_payload,
    flatbuf_size_problem,
    type_name,
)

KNOWN_ENCODINGS = ("bincode", "flatbuf", "raw")


@dataclass(frozen=True)
class Payload:
    """What lies in a payload.

    Attributes:
        encoding: as it was read: raw also for what cannot be understood (SPEC P5).
        events: records for raw (wrap markers not counted); None if it is no dump.
        warnings: one line each.
    """

    encoding: str
    events: int | None
    warnings: list[str]


def _walk_raw(file: PccxFile) -> tuple[Walker, End]:
    walker, start, size = Walker(), 0, WINDOW
    while True:
        piece = file.payload[start : start + size]
        last = start + len(piece) == len(file.payload)
        end, used, _ = walker.walk(piece.data)
        start += used
        file.drop_pages(start - used, start)
        if (end is End.DONE and last) or (end is not End.DONE and (last or not end.short)):
            return walker, end


def _raw(file: PccxFile) -> Payload:
    """A raw payload is nobody's business but its owner's; if it is a dump, its records count."""
    if len(file.payload) == 0:
        return Payload("raw", 0, [])
    walker, end = _walk_raw(file)
    found = walker.records + walker.wrap_markers > 0
    if end is End.DONE:
        return Payload("raw", walker.records, [])
    if not found:
        return Payload("raw", None, [])
    problem = f"payload: dump ends at byte {walker.offset}: {_why(end)}"
    return Payload("raw", walker.records, [problem])


def _why(end: End) -> str:
    texts = {
        End.SHORT_HEADER: "inside a record header",
        End.SHORT_PAYLOAD: "inside a payload",
        End.BAD_MAGIC: "no record there",
        End.BAD_LENGTH: "payload_len over 4064",
    }
    return texts[end]


def _bincode(file: PccxFile) -> Payload:
    reader = BincodeReader(file)
    for _ in reader.batches(strings=False):
        pass
    left = len(file.payload) - reader.position
    warnings = [f"payload: {left} bytes after the last event are ignored"] if left else []
    return Payload("bincode", reader.count, warnings)


def look_at_payload(file: PccxFile) -> Payload:
    """Decode as much of a payload as its encoding asks for.

    Raises:
        PccxError: a bincode payload that is torn or lies (SPEC P5).
    """
    encoding = file.header.payload.encoding
    if encoding == "bincode":
        return _bincode(file)
    if encoding == "flatbuf":
        flat = flat_payload(file)
        if flat is not None:
            return Payload("flatbuf", len(flat.events), [])
        problem = flatbuf_size_problem(file)
        return Payload("raw", None, [f"{problem}; shown as raw"])
    raw = _raw(file)
    if encoding == "raw":
        return raw
    unknown = f"payload.encoding: found {encoding!r}, expected one of {', '.join(KNOWN_ENCODINGS)}"
    return Payload("raw", raw.events, [f"{unknown}; shown as raw", *raw.warnings])


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `info --json` prints for a .pccx file.

    Returns:
        kind "pccx", major, minor, header (the JSON object as read), encoding, events (None
        for raw that is not a dump), checksum ("ok", "mismatch" or "absent"), warnings; where the
        header or the records tell: verdict, reasons, lost, lost_exact, epochs, clock_steps.

    Raises:
        PccxError, HeaderError: not a valid .pccx, or a torn or lying bincode payload.
    """
    with read(path) as file:
        payload = look_at_payload(file)
        mismatch = file.checksum_warning()
        return {
            "kind": "pccx",
            "major": file.prefix.major,
            "minor": file.prefix.minor,
            "header": file.raw_header,
            "encoding": payload.encoding,
            "events": payload.events,
            "checksum": file.checksum(),
            "warnings": file.warnings + payload.warnings + ([mismatch] if mismatch else []),
            **_told(file, payload, path),
        }


def _told(file: PccxFile, payload: Payload, path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the capture is missing: as the header says, or for a bare dump as its records do."""
    carried = file.header.hmb_trace.get(ACCOUNT_KEY)
    if isinstance(carried, dict):
        account = Account.from_dict(carried)
    elif file.header.payload.encoding == "raw" and payload.events is not None:
        account = account_of(open_dump(os.fspath(path)))
    else:
        return {}
    told = account.as_dict()
    keys = ("verdict", "reasons", "lost", "lost_exact", "epochs", "clock_steps")
    return {key: told[key] for key in keys}


def verify(path: str | os.PathLike[str], strict: bool = False) -> dict[str, Any]:
    """Check a .pccx file; what inspect() returns.

    Args:
        strict: a checksum mismatch is an error, not a warning (SPEC P5).

    Raises:
        PccxError, HeaderError: as inspect().
        ChecksumError: strict, and the checksum does not fit.
    """
    found = inspect(path)
    if strict and found["checksum"] == "mismatch":
        text = next(line for line in found["warnings"] if line.startswith("checksum_fnv64"))
        raise ChecksumError(f"{path}: {text}")
    return found


def statistics(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Counts over the events of a flatbuf or bincode file, in bounded memory.

    Returns:
        events, first_cycle, last_cycle (largest start + duration), busy_cycles (sum of the
        durations), by_type and by_core (events each), api_names; cycles None without events.

    Raises:
        PccxError: not a valid .pccx, or an encoding without events.
    """
    with read(path) as file:
        if file.header.payload.encoding not in ("flatbuf", "bincode"):
            raise PccxError(
                f"{file.name}: payload.encoding: found {file.header.payload.encoding!r}, "
                "expected 'flatbuf' or 'bincode'"
            )
        counts = _EventCounts()
        for batch in event_batches(file):
            counts.add(batch.events, batch.type_names, batch.api_names)
        return counts.as_dict()


class _EventCounts:
    def __init__(self) -> None:
        self.events = self.busy = self.api_names = 0
        self.first: int | None = None
        self.last: int | None = None
        self.types: Counter[str] = Counter()
        self.cores: Counter[int] = Counter()

    def add(self, events: Any, free: dict[int, str], api_names: dict[int, str]) -> None:
        starts, spans = events["start_cycle"], events["duration"]
        first = int(starts.min())
        last = max(int(starts.max()), int((starts + np.minimum(spans, ~starts)).max()))
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self.events += len(events)
        self.busy += int(spans.sum(dtype=object)) if spans.max() > 2**40 else int(spans.sum())
        self.api_names += len(api_names)
        self.types.update(free.values())
        ids = np.delete(events["event_type_id"], list(free)) if free else events["event_type_id"]
        for number, count in zip(*np.unique(ids, return_counts=True), strict=True):
            self.types[type_name(int(number))] += int(count)
        for core, count in zip(*np.unique(events["core_id"], return_counts=True), strict=True):
            self.cores[int(core)] += int(count)

    def as_dict(self) -> dict[str, Any]:
        return {
            "events": self.events,
            "first_cycle": self.first,
            "last_cycle": self.last,
            "busy_cycles": self.busy,
            "by_type": dict(self.types.most_common()),
            "by_core": dict(sorted(self.cores.items())),
            "api_names": self.api_names,
        }

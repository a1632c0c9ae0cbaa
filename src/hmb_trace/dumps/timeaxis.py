# SPDX-License-Identifier: Apache-2.0
"""Time axes: the firmware's own clock, time since the first record, or the host's clock."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.sidecar import ClockPair
from hmb_trace.errors import UsageError
from hmb_trace.units import parse_duration

CLOCKS = ("fw", "relative", "host")
Times = npt.NDArray[np.int64]


class Axis(Protocol):
    """Turns firmware times of a batch into times of another clock, nanoseconds."""

    def __call__(self, batch: RecordBatch) -> Times:
        """One time per row."""


def firmware_axis(batch: RecordBatch) -> Times:
    """ts_ns as it is."""
    return batch.ts_ns.view("i8")


class RelativeAxis:
    """Nanoseconds since a moment of the firmware clock; None: since the first record asked."""

    def __init__(self, origin: int | None = None) -> None:
        self._origin = origin

    def __call__(self, batch: RecordBatch) -> Times:
        if self._origin is None and len(batch):
            self._origin = int(batch.ts_ns[0])
        return (batch.ts_ns - np.uint64(self._origin or 0)).view("i8")


class HostAxis:
    """Host time by clock pairs: between two pairs the offset runs straight, outside it stands.

    Args:
        pairs: by segment index; a segment without pairs uses those of the one before.
    """

    def __init__(self, pairs: Sequence[Sequence[ClockPair]]) -> None:
        self._maps: list[tuple[Times, Times]] = []
        known: list[ClockPair] = next((list(p) for p in pairs if p), [])
        if not known:
            raise UsageError(
                "clock host: no clock pairs found; they stand in the sidecars (.json) that "
                "hmb-trace-daemon writes beside its dumps"
            )
        for own in pairs:
            known = list(own) or known
            ordered = sorted(known, key=lambda pair: pair.ts_ns)
            at = np.array([p.ts_ns for p in ordered], "u8").view("i8")
            self._maps.append((at, np.array([p.host_ns - p.ts_ns for p in ordered], "i8")))

    def __call__(self, batch: RecordBatch) -> Times:
        at, offset = self._maps[batch.segment]
        ts = batch.ts_ns.view("i8")
        # Floats hold the small differences exactly enough; the large parts stay integers.
        drift = np.interp((ts - at[0]).astype("f8"), (at - at[0]).astype("f8"), offset - offset[0])
        moved: Times = ts + offset[0] + np.rint(drift).astype("i8")
        return moved

    def to_firmware(self, host_ns: int) -> int:
        """The firmware time that a host time stands for; of several epochs the first that fits."""
        for at, offset in self._maps:
            host = at + offset
            if host_ns <= host[-1] or at is self._maps[-1][0]:
                shift = np.interp(
                    float(host_ns - int(host[0])),
                    (host - host[0]).astype("f8"),
                    (offset - offset[0]).astype("f8"),
                )
                return host_ns - int(offset[0]) - round(float(shift))
        raise AssertionError("the last map always fits")


def host_axis(dump: Dump) -> HostAxis:
    """The host axis that the sidecars of a dump give.

    Raises:
        UsageError: no sidecar has clock pairs.
    """
    known = [segment.known for segment in dump.segments]
    return HostAxis([one.clock if one else [] for one in known])


def axis_of(name: str, dump: Dump) -> Axis:
    """The axis of that name (see CLOCKS). Raises UsageError."""
    if name == "host":
        return host_axis(dump)
    if name == "relative":
        return RelativeAxis(first_time(dump) if can_read_twice(dump) else None)
    return firmware_axis


def can_read_twice(dump: Dump) -> bool:
    """Whether every part is a file, not a pipe."""
    return bool(dump.segments) and all(s.kind is not Kind.STREAM for s in dump.segments)


def first_time(dump: Dump) -> int:
    """ts_ns of the first record, 0 if there is none."""
    for segment in dump.segments:
        known = segment.known
        if known and known.first_ts_ns is not None:
            return known.first_ts_ns
        break
    if not can_read_twice(dump):
        raise UsageError("a time since the first record needs a file; a pipe cannot be read twice")
    for batch in dump.batches(1 << 16, partial=True):
        return int(batch.ts_ns[0]) if len(batch) else 0
    return 0


_ISO = re.compile(r"\d{4}-\d\d-\d\d")


def parse_moment(text: str) -> tuple[str, int]:
    """A moment as people write it.

    Returns:
        (clock, nanoseconds): "+1.5s" or "1.5s" is relative to the first record,
        "123456789" is firmware nanoseconds, "2026-01-31T12:00:00" (UTC unless it
        says otherwise) is host time.

    Raises:
        UsageError: none of these.
    """
    if re.fullmatch(r"\d+", text):
        return "fw", int(text)
    if _ISO.match(text):
        return "host", _parse_iso(text)
    try:
        return "relative", parse_duration(text.removeprefix("+"))
    except UsageError:
        raise UsageError(
            f"moment: found {text!r}, expected firmware nanoseconds (123456), a time since "
            "the first record (+1.5s) or a host time (2026-01-31T12:00:00)"
        ) from None


def _parse_iso(text: str) -> int:
    whole, _, fraction = text.partition(".")
    digits = re.match(r"\d*", fraction)
    decimals = digits[0] if digits else ""
    zone = fraction[len(decimals) :]
    try:
        moment = datetime.datetime.fromisoformat(whole + zone)
    except ValueError as error:
        raise UsageError(f"moment: {text!r}: {error}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    seconds = round(moment.timestamp())
    return seconds * 10**9 + int((decimals + "0" * 9)[:9])

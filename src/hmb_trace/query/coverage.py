# SPDX-License-Identifier: Apache-2.0
"""What a dump covers, in words: for a selection that found nothing."""

from __future__ import annotations

import datetime

from hmb_trace.dumps.clocks import clock_facts
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.timeaxis import can_read_twice, host_axis
from hmb_trace.errors import HmbTraceError


def total_records(dump: Dump, read: int) -> int:
    """Records of the dump: as sidecars count them, or at least those that were read."""
    known = [segment.known for segment in dump.segments]
    return sum(one.records for one in known if one) if all(known) else read


def covers(dump: Dump) -> str:
    """ "; the dump covers seq .., firmware time .. and host time .."; "" where it is not known."""
    if not can_read_twice(dump):
        return ""
    try:
        parts = _parts(dump)
    except HmbTraceError:
        return ""
    return f"; the dump covers {', '.join(parts)}" if parts else ""


def _parts(dump: Dump) -> list[str]:
    first = next((b for b in dump.batches(1 << 16, partial=True) if len(b)), None)
    if first is None:
        return []
    last = first
    for batch in dump.batches(partial=True, spans=dump.whole()[-1:]):
        last = batch if len(batch) else last
    parts = [
        f"seq {int(first.seq[0])}..{int(last.seq[-1])}",
        f"firmware time {int(first.ts_ns[0])}..{int(last.ts_ns[-1])} ns",
    ]
    if any(told and told.pairs for told in map(clock_facts, dump.segments)):
        axis = host_axis(dump)
        parts.append(f"host time {_utc(int(axis(first)[0]))}..{_utc(int(axis(last)[-1]))}")
    return parts


def _utc(host_ns: int) -> str:
    moment = datetime.datetime.fromtimestamp(host_ns // 10**9, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{host_ns % 10**9 // 10**6:03}Z"

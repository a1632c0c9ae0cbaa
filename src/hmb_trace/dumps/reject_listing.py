# SPDX-License-Identifier: Apache-2.0
"""Rejected bytes for people: the header fields they would have had, their neighbours, hex.

A damaged record is often the firmware bug that somebody looks for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hmb_trace.dumps import rejects, segment_names, sidecar
from hmb_trace.dumps.rejects import Reject
from hmb_trace.dumps.sidecar import Note, Sidecar

_ROW = 16  # bytes in a line of hex


class Neighbours:
    """The good records around rejected bytes, as far as the sidecar of the dump knows them."""

    def __init__(self, path: str) -> None:
        stem = segment_names.stem_of(Path(path).name)
        found = sidecar.look(Path(path).with_name(stem + segment_names.BIN))
        self._side = found if isinstance(found, Sidecar) else None
        gaps = self._side.gap_list if self._side else []
        self._gaps = sorted((gap for gap in gaps if gap.host_ns), key=lambda gap: gap.host_ns)
        self._notes = _reject_offsets(self._side)

    def of(self, entry: Reject) -> dict[str, int | None]:
        """seq_before, seq_after and the offset in the dump; None where nothing says."""
        offset = self._notes.get(entry.cursor)
        at = bisect_right([gap.host_ns for gap in self._gaps], entry.host_ns) - 1
        gap = self._gaps[at] if at >= 0 and self._gaps[at].host_ns == entry.host_ns else None
        return {
            "seq_before": gap.seq_before if gap else None,
            "seq_after": gap.seq_after if gap else None,
            "offset": offset if offset is not None else gap.offset if gap else None,
        }


def _reject_offsets(side: Sidecar | None) -> dict[int, int]:
    notes: list[Note] = side.events if side else []
    found: dict[int, int] = {}
    for note in notes:
        cursor = note.detail.get("cursor")
        if isinstance(cursor, int):
            found.setdefault(cursor, note.offset)
    return found


def entries(path: str) -> Iterator[dict[str, Any]]:
    """Each entry of a rejects file with everything that is known of it, in order.

    Keys: reason, epoch, cursor, host_ns, length, offset, seq_before, seq_after, fields (of the
    header it would be, null when it is too short), is_record (it begins with the magic), data.

    Raises:
        HmbTraceError: as rejects.read.
    """
    neighbours = Neighbours(path)
    for entry in rejects.read(path):
        fields = entry.fields
        yield {
            "reason": entry.reason,
            "epoch": entry.epoch,
            "cursor": entry.cursor,
            "host_ns": entry.host_ns,
            "length": len(entry.data),
            **neighbours.of(entry),
            "fields": fields._asdict() if fields else None,
            "is_record": entry.has_magic,
            "data": entry.data.hex(),
        }


def lines(made: dict[str, Any]) -> Iterator[str]:
    """An entry as text: a heading, the fields, the bytes."""
    yield (
        f"{made['reason']}: {made['length']} bytes at ring cursor {made['cursor']}, "
        f"epoch {made['epoch']}{_between(made)}"
    )
    fields = made["fields"]
    if fields:
        known = "" if made["is_record"] else " (no record magic)"
        yield f"  as a header{known}: " + " ".join(
            f"{name}={value:#x}" if name in ("magic", "opcode", "flags") else f"{name}={value}"
            for name, value in fields.items()
        )
    data = bytes.fromhex(made["data"])
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  {at:04x}  {row.hex(' '):<{3 * _ROW}} {text}"


def _between(made: dict[str, Any]) -> str:
    if made["seq_before"] is None:
        return ""
    return f", between seq {made['seq_before']} and {made['seq_after']}"

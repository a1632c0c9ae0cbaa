# SPDX-License-Identifier: Apache-2.0
"""What `hmb-trace info` says about a dump: counts, ends, losses (SPEC R12, R13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmb_trace.dumps.dump import Dump, DumpError
from hmb_trace.dumps.knowledge import known_losses
from hmb_trace.dumps.walker import Walker


@dataclass(frozen=True)
class Summary:
    """The account of one pass over a dump; times in ns of the firmware clock."""

    records: int
    wrap_markers: int
    truncated: int
    bytes: int
    first_ts_ns: int | None
    last_ts_ns: int | None
    first_seq: int | None
    last_seq: int | None
    gaps: int
    lost: int
    duplicates: int
    sequence_resets: int
    fnv64: int | None
    problem: DumpError | None

    @property
    def complete(self) -> bool:
        """Whether every byte belongs to a whole record."""
        return self.problem is None

    def as_json(self) -> dict[str, Any]:
        """The keys of `info --json` in their documented order."""
        keys = (
            "records wrap_markers truncated bytes first_ts_ns last_ts_ns first_seq last_seq "
            "gaps lost duplicates sequence_resets"
        )
        found = {"kind": "dump", **{key: getattr(self, key) for key in keys.split()}}
        if self.fnv64 is not None:
            found["fnv64"] = f"0x{self.fnv64:016x}"  # as the simulator's ledger writes it
        found["complete"] = self.complete
        if self.problem is not None:
            found["error"] = self.problem.reason
            found["offset"] = self.problem.offset
        return found


class _Hash:
    def __init__(self) -> None:
        from hmb_trace.fnv import fnv1a_64  # noqa: PLC0415 - only --checksum needs it

        self._hash = fnv1a_64
        self.value = fnv1a_64(b"")

    def __call__(self, piece: memoryview) -> None:
        self.value = self._hash(piece, self.value)


def summarise(dump: Dump, *, checksum: bool = False) -> Summary:
    """One pass over all of the dump.

    Args:
        checksum: compute fnv64, FNV-1a-64 of every record byte, wrap markers included.

    Returns:
        The account. A truncated or damaged end is its `problem`, not an exception; numbers
        are those of the whole records before it.

    Raises:
        HmbTraceError: a file cannot be read.
    """
    walker = Walker()
    digest = _Hash() if checksum else None
    size = [0]

    def count(piece: memoryview) -> None:
        size[0] += len(piece)
        if digest:
            digest(piece)

    dump.scan(walker, partial=True, on_bytes=count)
    some = walker.records > 0
    gaps, lost = known_losses(dump, walker)
    return Summary(
        records=walker.records,
        wrap_markers=walker.wrap_markers,
        truncated=walker.truncated,
        bytes=size[0],
        first_ts_ns=walker.first_ts_ns if some else None,
        last_ts_ns=walker.last_ts_ns if some else None,
        first_seq=walker.first_seq if some else None,
        last_seq=walker.last_record_seq if some else None,
        gaps=gaps,
        lost=lost,
        duplicates=walker.duplicates,
        sequence_resets=walker.sequence_resets,
        fnv64=digest.value if digest else None,
        problem=dump.problems[0] if dump.problems else None,
    )

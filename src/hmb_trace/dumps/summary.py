# SPDX-License-Identifier: Apache-2.0
"""What `hmb-trace info` says about a dump: counts, ends, the account (SPEC R12, R13, R15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmb_trace.dumps.account import Account, Accountant, Verdict, account, is_stream
from hmb_trace.dumps.dump import Dump, DumpError

_COUNTS = [
    "records",
    "wrap_markers",
    "truncated",
    "bytes",
    "first_ts_ns",
    "last_ts_ns",
    "first_seq",
    "last_seq",
    "gaps",
    "lost",
    "lost_exact",
]
_MORE = [
    "rejected_records",
    "rejected_bytes",
    "duplicates",
    "sequence_resets",
    "glitches",
    "begins",
]


@dataclass(frozen=True)
class Summary:
    """The account of a dump, and what only a pass over every byte can add."""

    account: Account
    fnv64: int | None

    @property
    def problem(self) -> DumpError | None:
        """The first file that ends inside a record, or is damaged."""
        return self.account.problems[0] if self.account.problems else None

    def as_json(self) -> dict[str, Any]:
        """The keys of `info --json` in their documented order."""
        made = self.account.as_dict()
        found = {"kind": "dump", **{key: made[key] for key in _COUNTS}, "verdict": made["verdict"]}
        found |= {key: made[key] for key in ("reasons", "epochs", "clock_steps")}
        found |= {key: made[key] for key in _MORE}
        if self.fnv64 is not None:
            found["fnv64"] = f"0x{self.fnv64:016x}"  # as the simulator's ledger writes it
        problem = self.problem
        found["truncated_end"] = problem is not None
        if problem is not None:
            found["error"] = problem.reason
            found["offset"] = problem.offset
        found["complete"] = self.account.verdict is Verdict.WHOLE
        return found


class _Hash:
    def __init__(self) -> None:
        from hmb_trace.fnv import fnv1a_64  # noqa: PLC0415 - only --checksum needs it

        self._hash = fnv1a_64
        self.value = fnv1a_64(b"")

    def __call__(self, piece: memoryview) -> None:
        self.value = self._hash(piece, self.value)


def summarise(dump: Dump, *, checksum: bool = False, deep: bool = False) -> Summary:
    """The account of a dump: from its sidecars where they describe their files, else from a pass.

    Args:
        checksum: compute fnv64, FNV-1a-64 of every record byte, wrap markers included.
        deep: read every file, whatever its sidecar says.

    Returns:
        A truncated or damaged end is its `problem`, not an exception; numbers are those of the
        whole records before it.

    Raises:
        HmbTraceError: a file cannot be read.
    """
    if not checksum and not deep and not is_stream(dump):
        return Summary(account(dump), None)
    accountant = Accountant(dump)
    digest = _Hash() if checksum else None
    dump.scan(accountant.walker, partial=True, on_bytes=digest)
    return Summary(accountant.finish(), digest.value if digest else None)

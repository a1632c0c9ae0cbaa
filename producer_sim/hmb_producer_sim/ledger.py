# SPDX-License-Identifier: Apache-2.0
"""The ledger: what firmware really wrote, for whoever checks a capture against it.

Keys: producer_sim/README.md. A number that nobody can know (see `exact`) is still the
best one: what was written.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmb_trace.errors import from_os_error


def _range(counts: dict[str, int], name: str) -> int | None:
    return counts[name] if counts["records"] else None


def of_counts(counts: dict[str, int], *, hashed: bool) -> dict[str, Any]:
    """One epoch, or all of them, as the ledger shows it. fnv64 is null with --ledger-hash none."""
    shown: dict[str, Any] = {
        "records": counts["records"],
        "dropped": counts["dropped"],
        "dropped_unseen": counts["dropped_unseen"],
        "first_seq": _range(counts, "first_seq"),
        "last_seq": _range(counts, "last_seq"),
        "bytes": counts["bytes"],
        "fnv64": f"0x{counts['fnv64']:016x}" if hashed else None,
        "markers": counts["markers"] + counts["partial_markers"],
        "whole_markers": counts["markers"],
        "first_ts_ns": _range(counts, "first_ts_ns"),
        "last_ts_ns": _range(counts, "last_ts_ns"),
    }
    return shown | {name: value for name, value in counts.items() if name not in shown}


def build(
    total: dict[str, int],
    epochs: Sequence[dict[str, int]],
    *,
    hashed: bool,
    exact: bool,
    faults: Sequence[dict[str, Any]],
    more: dict[str, Any],
) -> dict[str, Any]:
    """The whole ledger.

    Args:
        total, epochs: counts of struct hmb_sim_counts.
        exact: False where an injected fault leaves open what a consumer could save.
        faults: what was injected, in order.
        more: settings and timings, for the reader.
    """
    return {
        "format": "hmb-firmware-sim-ledger",
        "version": 1,
        **of_counts(total, hashed=hashed),
        "exact": exact,
        "epochs": [of_counts(one, hashed=hashed) for one in epochs],
        "faults": list(faults),
        **more,
    }


def check(path: Path) -> None:
    """Refuse a ledger that could not be written, before the run rather than after it.

    Raises:
        CannotCreateError, PermissionDeniedError.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise from_os_error(error, f"cannot create ledger {path}", creating=True) from error


def write(path: Path, ledger: dict[str, Any]) -> None:
    """Write the ledger; whoever sees the file sees all of it.

    Raises:
        CannotCreateError, PermissionDeniedError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as out:
            json.dump(ledger, out, indent=2)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise from_os_error(error, f"cannot create ledger {path}", creating=True) from error

# SPDX-License-Identifier: Apache-2.0
"""What the header of a .pccx says of the capture (SPEC P7): the account, clocks, device, catalog.

Offsets are bytes into the payload: the files follow each other in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hmb_trace import __version__
from hmb_trace.dumps.account import ACCOUNT_KEY, Account, Verdict
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.packaged import CLOCKS_KEY
from hmb_trace.dumps.sidecar import Sidecar
from hmb_trace.dumps.timeaxis import ClockPieces
from hmb_trace.layout import ABI_VERSION

_MOST_CLOCK_PAIRS = 1024
_MOST_SOURCES = 4096
_MOST_REASONS = 4096
_REASON_ROOM = 400  # bytes of JSON for a reason, an epoch, a clock step
_LEAST_ROOM = 32 << 10
_MOST_ROOM = 4 << 20


def sidecars_of(dump: Dump) -> list[Sidecar]:
    """The good ones."""
    return [segment.known for segment in dump.segments if segment.known]


def origin(dump: Dump) -> dict[str, Any]:
    """What is known before the records are read."""
    names = [segment.path.name if segment.path else "-" for segment in dump.segments]
    made: dict[str, Any] = {"version": __version__, "abi_version": ABI_VERSION}
    made["sources"] = names[:_MOST_SOURCES]
    known = sidecars_of(dump)
    if not known:
        return made
    device = known[0].device
    made["abi_version"] = known[0].abi_version
    made["device"] = {
        name: getattr(device, name)
        for name in ("path", "kind", "identity", "serial", "model", "firmware")
    }
    made["epoch"] = known[0].epoch
    made["epochs"] = sorted({one.epoch for one in known})
    pairs = [[p.ts_ns, p.host_ns, p.error_ns] for one in known for p in one.clock]
    made["clock"] = _thinned(pairs, _MOST_CLOCK_PAIRS)
    return made


def _thinned(pairs: list[list[int]], most: int) -> list[list[int]]:
    """At most so many clock pairs, evenly picked, first and last among them."""
    if len(pairs) <= most:
        return pairs
    last = len(pairs) - 1
    return [pairs[i * last // (most - 1)] for i in range(most)]


def clocks(pieces: ClockPieces, bases: Sequence[int]) -> list[dict[str, Any]]:
    """Clock pairs by piece of the firmware's clock, and where in the payload pieces begin."""
    if not pieces.known:
        return []
    found: list[dict[str, Any]] = []
    last = None
    for index, stretches in enumerate(pieces.of_segment):
        for stretch in stretches:
            if stretch.piece is last:
                continue
            last = stretch.piece
            pairs = [[p.ts_ns, p.host_ns, p.error_ns] for p in last.pairs]
            found.append(
                {"offset": bases[index] + stretch.offset, "first_ts_ns": last.first_ts_ns}
                | {"pairs": pairs}
            )
    most = max(2, _MOST_CLOCK_PAIRS // len(found))
    return [one | {"pairs": _thinned(one["pairs"], most)} for one in found[:_MOST_CLOCK_PAIRS]]


def bases_of(dump: Dump, lengths: dict[int, int]) -> list[int]:
    """Where each file's bytes begin in the payload; lengths: bytes taken, by file."""
    sizes = [lengths.get(index, 0) for index in range(len(dump.segments))]
    return list(accumulate(sizes, initial=0))


def account_object(account: Account, dump: Dump, bases: Sequence[int]) -> dict[str, Any]:
    """The account with offsets in the payload."""
    made = account.as_dict()
    index_of = {segment.name: index for index, segment in enumerate(dump.segments)}
    for reason in made["reasons"]:
        index = index_of.get(reason["file"])
        if reason["offset"] is not None and index is not None:
            reason["offset"] += bases[index]
        reason["file"] = _short(reason["file"])
    for one in (*made["epochs"], *made["clock_steps"]):
        one["offset"] += bases[one["segment"]]
        one["segment"] = 0
        if "file" in one:
            one["file"] = _short(one["file"])
    made["reasons"] = _bounded(made["reasons"])
    return made


def _short(name: str | None) -> str | None:
    """Names of files, not where they lay on the machine that packed them."""
    return name.rsplit("/", 1)[-1] if name else name


def _bounded(reasons: list[dict[str, Any]], most: int = _MOST_REASONS) -> list[dict[str, Any]]:
    """The first ones, and a reason for each kind of the rest that says how many there are."""
    if len(reasons) <= most:
        return reasons
    kept, rest = reasons[:most], reasons[most:]
    for (kind, unknown), count in Counter((r["kind"], r["count"] is None) for r in rest).items():
        total = None if unknown else sum(r["count"] or 0 for r in rest if r["kind"] == kind)
        text = f"{count} more, not listed one by one"
        kept.append({"kind": kind, "count": total, "text": text})
    return kept


def room_for(dump: Dump, pieces: ClockPieces) -> int:
    """Bytes of header to keep free for what is known last."""
    widest = clocks(pieces, [1 << 62] * len(dump.segments))
    entries = sum(len(s.gap_list) + len(s.episodes) + len(s.events) for s in sidecars_of(dump))
    entries += 4 * len(dump.segments)
    carried = sum(len(json.dumps(s.packaged.about)) for s in dump.segments if s.packaged)
    wanted = _LEAST_ROOM + _REASON_ROOM * entries + carried
    return min(wanted, _MOST_ROOM) + len(json.dumps(widest))


def fitted(about: dict[str, Any], room: int) -> dict[str, Any]:
    """The same object with a shorter list of reasons, where it would not fit."""
    made = about
    most = len(about[ACCOUNT_KEY]["reasons"])
    while most > 1 and len(json.dumps(made)) > room:
        most //= 2
        reasons = _bounded(about[ACCOUNT_KEY]["reasons"], most)
        made = about | {ACCOUNT_KEY: about[ACCOUNT_KEY] | {"reasons": reasons}}
    return made


def numbers(account: Account) -> dict[str, Any]:
    """The counts that stand beside the account, as files of every version have them."""
    names = (
        *("records", "wrap_markers", "first_seq", "last_seq", "first_ts_ns", "last_ts_ns"),
        *("gaps", "lost", "duplicates", "sequence_resets"),
    )
    found: dict[str, Any] = {name: getattr(account, name) for name in names}
    return found | {"complete": account.verdict is Verdict.WHOLE}


__all__ = [
    "ACCOUNT_KEY",
    "CLOCKS_KEY",
    "account_object",
    "bases_of",
    "clocks",
    "fitted",
    "numbers",
    "origin",
    "room_for",
    "sidecars_of",
]

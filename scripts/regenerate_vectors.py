# SPDX-License-Identifier: Apache-2.0
"""Write docs/test-vectors/v1/ from tests/oracle/vector_cases.py.

Every statement of a case is checked against the oracle first; what the case
does not state (all counters, decoded records) is the oracle's. The output is
the same bytes on every run.

    .venv/bin/python scripts/regenerate_vectors.py [DIRECTORY]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.oracle import vector_cases as cases  # noqa: E402 # the path is set up above
from tests.oracle.collect import Consumer, Reject, joined  # noqa: E402
from tests.oracle.dump import Account, Entry, read_dump  # noqa: E402
from tests.oracle.sequence import Gap  # noqa: E402
from tests.oracle.wire import HEADER, decode  # noqa: E402

HOME = ROOT / "docs" / "test-vectors" / "v1"
EXPECT = ".expect.json"  # not .json: that would be the sidecar of the dumps here
AREA_AT = 0x40
TROUBLE = (
    *("wrap_markers", "partial_markers", "plain_gaps", "straddled", "truncated", "gaps", "lost"),
    *("duplicates", "sequence_resets", "seq_glitches", "resyncs", "lying_lengths", "unknown_flags"),
    *("markers_cleaned", "overflow_episodes", "unknown_losses"),
)
Files = dict[str, bytes]


def u64(region: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(region[at : at + size], "little")


def fnv64(data: bytes) -> str:
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) % (1 << 64)
    return f"0x{state:016x}"


def must(condition: bool, name: str, what: str, found: object, stated: object) -> None:
    if not condition:
        raise SystemExit(f"{name}: {what}: the oracle says {found}, the case states {stated}")


def same(name: str, what: str, found: object, stated: object) -> None:
    must(found == stated, name, what, found, stated)


def entry_json(entry: Entry) -> dict[str, Any]:
    fields = asdict(entry.header)
    del fields["magic"]
    return {"offset": entry.offset, **fields, "payload": entry.payload.hex()}


def gaps_json(gaps: Sequence[Gap]) -> list[dict[str, int]]:
    return [asdict(gap) for gap in gaps]


def reject_json(reject: Reject) -> dict[str, Any]:
    return {"cursor": f"{reject.cursor:#x}", "reason": reject.reason, "bytes": reject.data.hex()}


def ring_json(region: bytes) -> dict[str, Any]:
    return {
        "ring_size": u64(region, 0x08, 4),
        "head": f"{u64(region, 0x10):#x}",
        "tail": f"{u64(region, 0x18):#x}",
        "flags": u64(region, 0x20, 4),
    }


def drain(case: cases.RingVector) -> Consumer:
    """Run the oracle over a ring and hold it against what the case states."""
    region, name = case.region, case.name
    head, tail, flags = u64(region, 0x10), u64(region, 0x18), u64(region, 0x20, 4)
    consumer = Consumer(tail, keep_unknown_flags=case.keep_unknown_flags)
    consumer.collect(region[AREA_AT:], head, flags)
    consumer.take_the_rest(region[AREA_AT:], head, flags)
    consumer.finish()
    stated = {**dict.fromkeys(TROUBLE, 0), **case.counters}
    totals = consumer.totals()
    same(name, "dump", bytes(consumer.dump).hex(), case.dump.hex())
    same(name, "rejects", joined(consumer.rejects), [Reject(*r) for r in case.rejects])
    same(name, "gaps", consumer.gaps, [Gap(*g) for g in case.gaps])
    same(name, "tail", consumer.tail, head if case.tail is None else case.tail)
    same(name, "counters", {key: totals[key] for key in stated}, stated)
    return consumer


def ring_vector(case: cases.RingVector) -> dict[str, Any]:
    consumer = drain(case)
    account = read_dump(bytes(consumer.dump))
    must(account.complete, case.name, "dump", account.error, "whole records")
    return {
        "kind": "ring",
        "options": {"unknown_flags": "keep" if case.keep_unknown_flags else "reject"},
        "ring": ring_json(case.region),
        "expect": {
            "tail": f"{consumer.tail:#x}",
            "dump": [piece.hex() for piece in pieces(bytes(consumer.dump))],
            "dump_fnv64": fnv64(bytes(consumer.dump)),
            "records": [entry_json(entry) for entry in account.records],
            "markers": [entry_json(entry) for entry in account.markers],
            "rejects": [reject_json(reject) for reject in joined(consumer.rejects)],
            "gaps": gaps_json(consumer.gaps),
            "counters": consumer.totals(),
        },
    }


def pieces(dump: bytes) -> list[bytes]:
    """A dump, cut into its records."""
    out = []
    at = 0
    while at < len(dump):
        span = decode(dump[at : at + HEADER]).span
        out.append(dump[at : at + span])
        at += span
    return out


def refused_vector(case: cases.RefusedVector) -> dict[str, Any]:
    refusal: dict[str, Any] = {"field": case.field, "exit_code": case.exit_code}
    if case.found is not None:
        refusal |= {"found": case.found, "expected": case.expected}
    return {"kind": "ring", "expect": {"refusal": refusal}}


def span_of(account: Account) -> dict[str, Any]:
    """first/last of real records, as `hmb-trace info --json` names them."""
    if not account.records:
        return dict.fromkeys(("first_ts_ns", "last_ts_ns", "first_seq", "last_seq"))
    first, last = account.records[0].header, account.records[-1].header
    return {
        "first_ts_ns": first.ts_ns,
        "last_ts_ns": last.ts_ns,
        "first_seq": first.seq,
        "last_seq": last.seq,
    }


def dump_vector(case: cases.DumpVector) -> dict[str, Any]:
    account = read_dump(case.dump)
    quiet = dict.fromkeys(("lost", "duplicates", "sequence_resets", "glitches", "truncated"), 0)
    stated = {**quiet, **case.counters}
    same(case.name, "gaps", account.gaps, [Gap(*g) for g in case.gaps])
    same(case.name, "counters", {key: getattr(account, key) for key in stated}, stated)
    same(case.name, "error", account.error, case.error)
    end = len(case.dump) if case.offset is None else case.offset
    same(case.name, "offset", account.offset, end)
    return {
        "kind": "dump",
        "expect": {
            "info": {
                "records": len(account.records),
                "wrap_markers": len(account.markers),
                "truncated": account.truncated,
                "bytes": account.offset,
                **span_of(account),
                "gaps": len(account.gaps),
                "lost": account.lost,
                "duplicates": account.duplicates,
                "sequence_resets": account.sequence_resets,
                "complete": account.complete,
            },
            "fnv64": fnv64(case.dump[: account.offset]),
            "error": account.error and {"missing": account.error, "offset": account.offset},
            "records": [entry_json(entry) for entry in account.records],
            "markers": [entry_json(entry) for entry in account.markers],
            "gaps": gaps_json(account.gaps),
            "glitches": account.glitches,
        },
    }


def as_file(case: Any, body: dict[str, Any]) -> bytes:
    head = {"name": case.name, "rules": case.rules.split(), "about": case.about}
    return (json.dumps({**head, **body}, indent=1) + "\n").encode()


def build() -> Files:
    """Every file of the vector directory, by name."""
    files: Files = {}
    for ring in cases.rings():
        files |= {
            f"{ring.name}.bin": ring.region,
            f"{ring.name}{EXPECT}": as_file(ring, ring_vector(ring)),
        }
    for refused in cases.refusals():
        body = refused_vector(refused)
        files |= {
            f"{refused.name}.bin": refused.region,
            f"{refused.name}{EXPECT}": as_file(refused, body),
        }
    for dump in cases.dumps():
        files |= {
            f"{dump.name}.bin": dump.dump,
            f"{dump.name}{EXPECT}": as_file(dump, dump_vector(dump)),
        }
    return files


def main(args: Sequence[str]) -> int:
    home = Path(args[0]) if args else HOME
    home.mkdir(parents=True, exist_ok=True)
    files = build()
    for stale in {path.name for path in home.iterdir()}:
        if stale not in files:
            (home / stale).unlink()
    for name, content in files.items():
        (home / name).write_bytes(content)
    print(f"{len(files) // 2} vectors in {home}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

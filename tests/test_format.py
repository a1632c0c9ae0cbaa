# SPDX-License-Identifier: Apache-2.0
"""Every vector of docs/test-vectors/v1/ against the oracle, the library and the programs.

A new pair of files there is a new test here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hmb_daemon.cli import command as daemon_command

from hmb_trace import attach
from hmb_trace._core import ffi, lib
from hmb_trace.cli import main
from hmb_trace.commandline import run
from hmb_trace.dumps import rejects, sidecar
from hmb_trace.errors import HmbTraceError, InvalidDataError
from hmb_trace.testing import without_tail
from tests.oracle.collect import Consumer, InvalidCursorsError, Reject, joined
from tests.oracle.dump import Account, Entry, read_dump
from tests.oracle.native import NativeConsumer
from tests.oracle.sequence import Gap

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "docs" / "test-vectors" / "v1"
EXPECT = ".expect.json"
VECTORS = {
    path.name.removesuffix(EXPECT): json.loads(path.read_text())
    for path in sorted(HOME.glob(f"*{EXPECT}"))
}
AREA_AT = 0x40

RINGS = [name for name, v in VECTORS.items() if "dump" in v["expect"]]
REFUSED = [name for name, v in VECTORS.items() if "refusal" in v["expect"]]
DUMPS = [name for name, v in VECTORS.items() if v["kind"] == "dump"]
FIELDS = {
    "magic": lib.HMB_FIELD_MAGIC,
    "version": lib.HMB_FIELD_VERSION,
    "ring_size": lib.HMB_FIELD_RING_SIZE,
    "record_area_off": lib.HMB_FIELD_RECORD_AREA_OFF,
    "region": lib.HMB_FIELD_REGION,
}


def content(name: str) -> bytes:
    return (HOME / f"{name}.bin").read_bytes()


def expected(name: str) -> Any:
    return VECTORS[name]["expect"]


def rejects_of(name: str) -> list[Reject]:
    return [
        Reject(int(r["cursor"], 16), r["reason"], bytes.fromhex(r["bytes"]))
        for r in expected(name)["rejects"]
    ]


def dump_of(name: str) -> bytes:
    return bytes.fromhex("".join(expected(name)["dump"]))


def keeps_unknown_flags(name: str) -> bool:
    return bool(VECTORS[name]["options"]["unknown_flags"] == "keep")


def as_json(entry: Entry) -> dict[str, Any]:
    fields = {key: value for key, value in vars(entry.header).items() if key != "magic"}
    return {"offset": entry.offset, **fields, "payload": entry.payload.hex()}


def assert_drained(name: str, consumer: Consumer | NativeConsumer) -> None:
    assert bytes(consumer.dump).hex(" ", 32) == dump_of(name).hex(" ", 32)
    assert joined(consumer.rejects) == rejects_of(name)
    assert consumer.gaps == [Gap(**gap) for gap in expected(name)["gaps"]]
    assert consumer.totals() == expected(name)["counters"]
    assert consumer.tail == int(expected(name)["tail"], 16)


def test_every_file_has_its_partner_and_the_kinds_are_all_there() -> None:
    assert {path.stem for path in HOME.glob("*.bin")} == set(VECTORS)
    assert set(RINGS) | set(REFUSED) | set(DUMPS) == set(VECTORS)
    assert {"empty", "single", "wrap"} <= set(RINGS)


def test_regeneration_gives_the_same_bytes() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from regenerate_vectors import build  # noqa: PLC0415 # a script, not a module of ours
    finally:
        sys.path.pop(0)
    assert build() == {path.name: path.read_bytes() for path in HOME.iterdir()}


@pytest.mark.parametrize("name", RINGS)
def test_ring_by_the_oracle(name: str) -> None:
    region = content(name)
    head, tail = (int.from_bytes(region[at : at + 8], "little") for at in (0x10, 0x18))
    flags = int.from_bytes(region[0x20:0x24], "little")
    consumer = Consumer(tail, keep_unknown_flags=keeps_unknown_flags(name))
    consumer.collect(region[AREA_AT:], head, flags)
    consumer.take_the_rest(region[AREA_AT:], head, flags)
    consumer.finish()
    assert_drained(name, consumer)


@pytest.mark.parametrize("name", RINGS)
def test_ring_by_the_library(name: str) -> None:
    region = bytearray(content(name))
    consumer = NativeConsumer(region, keep_unknown_flags=keeps_unknown_flags(name))
    consumer.collect()
    consumer.take_the_rest()
    consumer.finish()
    assert_drained(name, consumer)
    assert without_tail(region) == without_tail(content(name))


@pytest.mark.parametrize("name", [name for name in RINGS if not keeps_unknown_flags(name)])
def test_ring_by_attach(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(content(name))
    dumped, tail = b"", None
    with attach(path) as ring:
        while tail != ring.view().tail:
            tail = ring.view().tail
            dumped += ring.collect()[0]
        dumped += ring.finish()[0]
        counters = {key: ring.counters[key] for key in expected(name)["counters"]}
    assert dumped.hex(" ", 32) == dump_of(name).hex(" ", 32)
    assert counters == expected(name)["counters"]
    assert without_tail(path.read_bytes()) == without_tail(content(name))


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_r1_r2_by_attach(name: str, tmp_path: Path) -> None:
    refusal = expected(name)["refusal"]
    path = tmp_path / "ring"
    path.write_bytes(content(name))
    with pytest.raises(HmbTraceError) as caught, attach(path) as ring:
        ring.collect()
    assert caught.value.exit_code == refusal["exit_code"]
    assert refusal["field"] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content(name)


@pytest.mark.parametrize("name", RINGS)
def test_ring_dump_read_back_by_the_oracle(name: str) -> None:
    account = read_dump(dump_of(name))
    assert account.complete
    assert [as_json(entry) for entry in account.records] == expected(name)["records"]
    assert [as_json(entry) for entry in account.markers] == expected(name)["markers"]


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_r1_r2_by_the_library(name: str) -> None:
    refusal = expected(name)["refusal"]
    region = bytearray(content(name))
    ring, found = ffi.new("struct hmb_ring *"), ffi.new("struct hmb_refusal *")
    result = lib.hmb_ring_attach(ring, ffi.from_buffer(region), len(region), found)
    if refusal["field"] == "cursors":
        assert result == 0
        with pytest.raises(InvalidCursorsError):
            NativeConsumer(region)
    else:
        assert (result < 0, found.field) == (True, FIELDS[refusal["field"]])
        assert (found.found, found.expected) == (refusal["found"], refusal["expected"])
    assert bytes(region) == content(name)


@pytest.mark.parametrize("name", DUMPS)
def test_dump_by_the_oracle(name: str) -> None:
    account = read_dump(content(name))
    want = expected(name)
    assert [as_json(entry) for entry in account.records] == want["records"]
    assert [as_json(entry) for entry in account.markers] == want["markers"]
    assert account.gaps == [Gap(**gap) for gap in want["gaps"]]
    assert account.glitches == want["glitches"]
    assert account_json(account) == {key: want["info"][key] for key in account_json(account)}
    error = want["error"] or {"missing": None, "offset": len(content(name))}
    assert (account.error, account.offset) == (error["missing"], error["offset"])


def account_json(account: Account) -> dict[str, Any]:
    return {
        "records": len(account.records),
        "wrap_markers": len(account.markers),
        "truncated": account.truncated,
        "gaps": len(account.gaps),
        "lost": account.lost,
        "duplicates": account.duplicates,
        "sequence_resets": account.sequence_resets,
        "truncated_end": not account.complete,
    }


@pytest.mark.parametrize("name", DUMPS)
def test_dump_by_info(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    want = expected(name)
    code = main(["info", "--json", "--checksum", str(HOME / f"{name}.bin")])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert {key: found[key] for key in want["info"]} == want["info"]
    assert found["fnv64"] == want["fnv64"]
    assert found["glitches"] == want["glitches"]
    assert code == (InvalidDataError.exit_code if want["error"] else 0)
    if want["error"]:
        assert found["offset"] == want["error"]["offset"]
        assert str(want["error"]["offset"]) in err
        assert err.count("\n") == 1


def drain_by_daemon(ring: Path, folder: Path, *options: str) -> int:
    """In this process: starting a Python for each vector would take most of a minute."""
    args = ["--device", str(ring), "--once", "--output-dir", str(folder / "out")]
    args += ["--spool-dir", str(folder / "spool"), "--spool-size", "1MiB", "--label", "v"]
    return run(daemon_command, "hmb-trace-daemon", [*args, *options])


@pytest.mark.parametrize("name", RINGS)
def test_ring_by_the_daemon(name: str, tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    ring.write_bytes(content(name))
    flags = ["--unknown-flags", "keep"] if keeps_unknown_flags(name) else []
    assert drain_by_daemon(ring, tmp_path, *flags) == 0
    want = expected(name)
    (segment,) = sorted((tmp_path / "out").glob("*.bin")) or [None]
    assert (segment.read_bytes() if segment else b"").hex(" ", 32) == dump_of(name).hex(" ", 32)
    region = ring.read_bytes()
    assert without_tail(region) == without_tail(content(name))
    assert int.from_bytes(region[0x18:0x20], "little") == int(want["tail"], 16)
    if segment is None:
        assert not want["rejects"]
        return
    said = sidecar.find(segment)
    assert said is not None
    assert {key: said.counters[key] for key in want["counters"]} == want["counters"]
    found = [(g.seq_before, g.seq_after, g.lost, g.rejected) for g in said.gap_list]
    keys = ("seq_before", "seq_after", "lost", "rejected")
    assert found == [tuple(gap[key] for key in keys) for gap in want["gaps"]]
    assert daemon_rejects(segment) == rejects_of(name)


def daemon_rejects(segment: Path) -> list[Reject]:
    path = sidecar.rejects_path(segment)
    entries = rejects.read(path) if path.exists() else []
    return joined([Reject(entry.cursor, entry.reason, entry.data) for entry in entries])


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_r1_r2_by_the_daemon(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ring = tmp_path / "ring"
    ring.write_bytes(content(name))
    refusal = expected(name)["refusal"]
    assert drain_by_daemon(ring, tmp_path) == refusal["exit_code"]
    said = capfd.readouterr().err
    assert [line for line in said.splitlines() if refusal["field"] in line]
    assert "Traceback" not in said
    assert ring.read_bytes() == content(name)
    assert not list((tmp_path / "out").glob("*"))


def test_format_text_names_every_key_reason_and_rule() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    structs = (sidecar.Sidecar, sidecar.Device, sidecar.Gap, sidecar.Episode, sidecar.ClockPair)
    named = {field for struct in structs for field in struct.__struct_fields__}
    named |= set(rejects.REASONS.values())
    named |= {rule for vector in VECTORS.values() for rule in vector["rules"]}
    assert [name for name in sorted(named) if not re.search(rf"\b{name}\b", text)] == []

# SPDX-License-Identifier: Apache-2.0
"""Dumps into .pccx and back; records to events by the catalog, against a slow model (P6, P7)."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from hmb_trace import pccx
from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.cli import main
from hmb_trace.dumps import sidecar
from hmb_trace.dumps.dump import DumpError
from hmb_trace.errors import UsageError
from hmb_trace.pccx import PackOptions
from hmb_trace.pccx.sorting import sorted_events
from hmb_trace.testing import marker, record
from tests.conftest import program
from tests.golden.pccx.encode import bincode, container

CATALOG = Catalog.parse(b"""
name = "demo"
clock_mhz = 1500
[[event]]
opcode = 1
name = "GC_BEGIN"
kind = "begin"
pair = "GC_END"
pccx = "DMA_READ"
[[event]]
opcode = 2
name = "GC_END"
kind = "end"
pccx = "DMA_WRITE"
[[event]]
opcode = 3
name = "IO_SUBMIT"
kind = "begin"
pair = "IO_DONE"
key = "tag"
pccx = "MAC_COMPUTE"
[[event.field]]
name = "pad"
type = "u16"
[[event.field]]
name = "tag"
type = "i16"
[[event]]
opcode = 4
name = "IO_DONE"
kind = "end"
key = "tag"
[[event.field]]
name = "tag"
type = "i32"
[[event]]
opcode = 5
name = "NAND_READ"
kind = "complete"
duration = "busy"
duration_unit = "us"
pccx = "SYSTOLIC_STALL"
[[event.field]]
name = "busy"
type = "u32"
[[event]]
opcode = 6
name = "BARRIER"
pccx = "BARRIER_SYNC"
""")
TYPE_OF = {1: 2, 2: 3, 3: 1, 4: 0, 5: 4, 6: 5}

Record = tuple[int, int, int, bytes]  # ts_ns, opcode, cpu, payload


def random_records(dice: random.Random, count: int, back: int = 3000) -> list[Record]:
    """Times step forward, and now and then `back` nanoseconds for one record."""
    made, clock = [], 10**6
    for _ in range(count):
        clock += dice.choice([0, 1, 333, 5000])
        now = clock - (dice.random() < 0.05) * back
        opcode = dice.choice([1, 2, 3, 4, 5, 6, 7, 0xFFFF])
        tag = dice.randrange(-3, 5)
        payload = {
            3: struct.pack("<Hh", 9, tag),
            4: struct.pack("<i", tag),
            5: struct.pack("<I", dice.randrange(2**32)),
        }.get(opcode, dice.randbytes(dice.randrange(9)))
        if dice.random() < 0.05:
            payload = payload[:1]
        made.append((now, opcode, dice.randrange(4), payload))
    return made


def dump_of(records: list[Record]) -> bytes:
    rows = [record(i, p, ts_ns=t, opcode=o, cpu=c) for i, (t, o, c, p) in enumerate(records)]
    return b"".join(rows)


def to_cycles(ts_ns: int, clock: int = 1500) -> int:
    return min(ts_ns * clock // 1000, 2**64 - 1)


def key_of(one: Record) -> Any:
    _, opcode, cpu, payload = one
    if opcode in (1, 2):
        return ("gc", cpu)
    shape = {3: "<xxh", 4: "<i"}[opcode]
    if len(payload) < struct.calcsize(shape):
        return None
    return ("io", *struct.unpack_from(shape, payload))


def model(records: list[Record]) -> tuple[list[list[int]], int, int]:
    """Events, unmatched begins and unmatched ends, the slow way."""
    events: list[list[int]] = []
    waiting: dict[Any, tuple[int, list[int]]] = {}
    lost_begins = lost_ends = 0
    for one in records:
        ts_ns, opcode, cpu, payload = one
        event = [cpu, to_cycles(ts_ns), 0, TYPE_OF.get(opcode, 0)]
        if opcode in (1, 3):
            key = key_of(one)
            lost_begins += key is None or key in waiting
            if key is not None:
                waiting[key] = (ts_ns, event)
        elif opcode in (2, 4):
            began, begin = waiting.get(key_of(one), (None, None))
            if begin is not None and began is not None and ts_ns >= began:
                del waiting[key_of(one)]
                begin[2] = to_cycles(ts_ns) - to_cycles(began)
                continue
            lost_ends += 1
        elif opcode == 5 and len(payload) >= 4:
            event[2] = struct.unpack_from("<I", payload)[0] * 1500
        events.append(event)
    return events, lost_begins + len(waiting), lost_ends


def flat(path: Path) -> list[list[int]]:
    with pccx.read(path) as file:
        assert file.checksum() == "ok"
        return [list(row) for row in pccx.flat_events(file).tolist()]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "x.bin"
    path.write_bytes(dump_of(random_records(random.Random(7), 3000)))
    return path


@pytest.mark.parametrize("held", [1 << 25, 1000])
@pytest.mark.parametrize(("seed", "back"), [(0, 0), (1, 3000), (2, 300_000), (3, 900_000)])
def test_flatbuf_p6_equals_the_model(
    seed: int, back: int, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmb_trace.pccx.output.HELD", held)
    monkeypatch.setattr("hmb_trace.pccx.maker._OUT_EVENTS", 80)  # durations come late
    monkeypatch.setattr("hmb_trace.pccx.sorting.RUN_EVENTS", 500)
    sorts = []
    monkeypatch.setattr(
        "hmb_trace.pccx.packing.sorted_events", lambda *a: sorts.append(a) or sorted_events(*a)
    )
    records = random_records(random.Random(seed), 3000, back)
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(dump_of(records))
    result = pccx.pack([source], out, PackOptions("flatbuf", CATALOG))
    events, lost_begins, lost_ends = model(records)
    assert result.events is not None
    assert (result.events.unmatched_begins, result.events.unmatched_ends) == (
        lost_begins,
        lost_ends,
    )
    assert result.events.events + result.events.pairs == result.records == len(records)
    assert bool(sorts) == (back > 100_000)  # what the buffer could not mend
    assert flat(out) == sorted(events, key=lambda e: e[1])
    assert result.header.trace.cycles == max(e[1] + e[2] for e in events)
    assert result.header.trace.cores == 4


@pytest.mark.parametrize("held", [1 << 25, 1000])
def test_bincode_p6_equals_the_model(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmb_trace.pccx.output.HELD", held)
    records = random_records(random.Random(11), 2000)
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(dump_of(records))
    result = pccx.pack([source], out, PackOptions("bincode", CATALOG))
    events, _, _ = model(records)
    rows = [(c, s, d, pccx.EVENT_TYPES[t], None) for c, s, d, t in events]
    assert out.read_bytes().endswith(bincode(result.header.trace.cycles, rows))
    assert pccx.verify(out, strict=True)["events"] == len(events)


def test_bincode_api_names_are_the_catalogs(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.pccx"
    pccx.pack([dump], out, PackOptions("bincode", CATALOG, api_names=True))
    with pccx.read(out) as file:
        names = {n for b in pccx.event_batches(file) for n in b.api_names.values()}
    assert names == {event.name for event in CATALOG}


def test_unmapped_opcodes_become_unknown(tmp_path: Path) -> None:
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(dump_of([(1000 * i, 60000 + i, i, b"") for i in range(5)]) + marker(9))
    for encoding in ("flatbuf", "bincode"):
        result = pccx.pack([source], out, PackOptions(encoding))
        assert (result.records, result.wrap_markers) == (5, 1)
        assert pccx.inspect(out)["events"] == 5
    pccx.convert(out, tmp_path / "y.pccx", "flatbuf")
    assert flat(tmp_path / "y.pccx") == [[i, 1000 * i, 0, 0] for i in range(5)]


@pytest.mark.parametrize("clock", [1, 999, 1000, 1001, 3333, 2**32 - 1])
def test_cycles_p6_are_exact_and_never_wrap(clock: int, tmp_path: Path) -> None:
    times = sorted([0, 1, 999, 1000, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(dump_of([(t, 0, 0, b"") for t in times]))
    result = pccx.pack([source], out, PackOptions("flatbuf", clock_mhz=clock))
    assert [row[1] for row in flat(out)] == [to_cycles(t, clock) for t in times]
    assert result.events is not None
    beyond = sum(t * clock // 1000 > 2**64 - 1 for t in times)
    assert result.events.saturated == beyond
    assert bool(beyond) == any("beyond 64 bits" in line for line in result.warnings)


@pytest.mark.parametrize("held", [1 << 25, 100])
def test_raw_p6_unpack_gives_back_the_identical_file(
    held: int, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmb_trace.pccx.output.HELD", held)
    out, back = tmp_path / "x.pccx", tmp_path / "y.bin"
    result = pccx.pack([dump], out)
    assert pccx.unpack(out, back) == []
    assert back.read_bytes() == dump.read_bytes()
    assert pccx.inspect(out)["events"] == result.records == 3000


def test_raw_p3_small_file_is_what_the_reference_writer_would_write(
    dump: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x.pccx"
    header = pccx.pack([dump], out).header
    made = {**json.loads(json.dumps(header.extra)), "version": header.pccx_lab_version}
    data = out.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 8)
    text = data[16 : 16 + length]
    assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode() == text
    assert list(json.loads(text)) == [
        *("pccx_lab_version", "arch", "trace", "payload", "format_minor", "hmb_trace")
    ]
    assert made["hmb_trace"]["records"] == 3000


def write_set(folder: Path, parts: list[bytes]) -> None:
    folder.mkdir()
    for number, part in enumerate(parts):
        name = f"nvme0-{number:06d}-20260101T000000Z.bin"
        if number == 1:
            (folder / f"{name}.zst").write_bytes(zstandard.compress(part))
        elif number == 2:
            (folder / f"{name}.part").write_bytes(part + bytes(4096))
        else:
            (folder / name).write_bytes(part)


def test_pack_takes_dump_sets_compressed_and_unfinished_segments(tmp_path: Path) -> None:
    parts = [dump_of(random_records(random.Random(s), 200)) for s in range(3)]
    write_set(tmp_path / "set", parts)
    out, back = tmp_path / "x.pccx", tmp_path / "y.bin"
    pccx.pack([tmp_path / "set"], out)
    pccx.unpack(out, back)
    assert back.read_bytes() == b"".join(parts)
    again = tmp_path / "again.pccx"
    pccx.pack([out, tmp_path / "set"], again)  # a raw .pccx is a dump too
    pccx.unpack(again, back)
    assert back.read_bytes() == b"".join(parts) * 2


def test_pack_p7_header_says_where_it_comes_from(tmp_path: Path) -> None:
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(record(5, ts_ns=10) + marker(6) + record(9, ts_ns=20))
    clock = [sidecar.ClockPair(ts_ns=i, host_ns=2 * i, error_ns=3) for i in range(5000)]
    gap = sidecar.Gap(offset=64, seq_before=5, seq_after=9, lost=1, rejected=1)
    made = sidecar.Sidecar(
        segment="x.bin", number=0, label="x", epoch=3, complete=False, clock=clock, gap_list=[gap],
        device=sidecar.Device(path="/dev/x", serial="S1", firmware="F2"),
    )  # fmt: skip
    source.with_suffix(".json").write_bytes(made.encode())
    pccx.pack([source], out, PackOptions(catalog=CATALOG))
    extra = pccx.inspect(out)["header"]["hmb_trace"]
    assert extra["device"]["serial"] == "S1"
    assert (extra["epoch"], extra["abi_version"], extra["complete"]) == (3, 1, False)
    assert (extra["first_seq"], extra["last_seq"], extra["records"]) == (5, 9, 2)
    assert (extra["gaps"], extra["lost"], extra["sources"]) == (1, 1, ["x.bin"])
    assert len(extra["clock"]) == 1024
    assert (extra["clock"][0], extra["clock"][-1]) == ([0, 0, 3], [4999, 9998, 3])
    assert Catalog.from_dict(extra["catalog"]) == CATALOG


def test_convert_raw_uses_the_catalog_in_the_header(dump: Path, tmp_path: Path) -> None:
    direct, raw, later = (tmp_path / f"{n}.pccx" for n in ("direct", "raw", "later"))
    pccx.pack([dump], direct, PackOptions("flatbuf", CATALOG))
    pccx.pack([dump], raw, PackOptions(catalog=CATALOG))
    pccx.convert(raw, later, "flatbuf")
    assert flat(later) == flat(direct)


def test_raw_to_events_p3_p7_keeps_what_the_header_says(tmp_path: Path) -> None:
    """Keys of others, the hardware, the clock, and what the sidecars said when it was packed."""
    payload = record(5, ts_ns=1000) + marker(6) + record(9, ts_ns=2000)
    capture = {"device": {"serial": "S1"}, "epoch": 3, "clock": [[1, 2, 3]], "sources": ["x.bin"]}
    theirs = {
        "pccx_lab_version": "v9",
        "arch": {"mac_dims": [2, 3], "isa_version": "i", "peak_tops": 2.5, "more": [1]},
        "trace": {"cycles": 1, "cores": 1, "clock_mhz": 200, "x": None},
        "payload": {"encoding": "raw", "byte_length": len(payload), "y": "z"},
        "hmb_trace": {**capture, "records": 2, "lost": 1},
        "zzz": {"a": 1},
    }
    raw, out = tmp_path / "raw.pccx", tmp_path / "out.pccx"
    text = json.dumps(theirs).encode()
    raw.write_bytes(b"PCCX\1\1\0\0" + len(text).to_bytes(8, "little") + text + payload)
    for encoding in ("flatbuf", "bincode", "raw"):
        assert main(["convert", str(raw), "--encoding", encoding, "-o", str(out), "-q"]) == 0
        header = pccx.inspect(out)["header"]
        assert (header["pccx_lab_version"], header["arch"]) == ("v9", theirs["arch"])
        assert (header["trace"]["clock_mhz"], header["trace"]["x"]) == (200, None)
        assert (header["payload"]["y"], header["zzz"]) == ("z", {"a": 1})
        assert header["hmb_trace"].items() >= (capture | {"records": 2, "lost": 1}).items()
        if encoding == "flatbuf":
            assert [row[1] for row in flat(out)] == [200, 400]
    pccx.convert(raw, out, "flatbuf", catalog=CATALOG)
    assert [row[1] for row in flat(out)] == [1500, 3000]


def test_convert_to_pccx_leaves_out_no_record_silently(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pccx"
    assert main(["convert", str(dump), "--cpu", "0", "-o", str(out)]) == 2
    assert not out.exists()


def test_convert_between_event_encodings(dump: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.pccx" for n in "abc")
    pccx.pack([dump], first, PackOptions("flatbuf", CATALOG))
    pccx.convert(first, second, "bincode")
    pccx.convert(second, third, "flatbuf")
    assert flat(third) == flat(first)
    pccx.convert(third, tmp_path / "e.pccx", "flatbuf", checksum="hex")
    assert flat(tmp_path / "e.pccx") == flat(first)
    for encoding in ("flatbuf", "bincode"):
        with pytest.raises(UsageError, match="is an input too"):
            pccx.convert(third, third, encoding)
    with pytest.raises(pccx.PccxError, match="cannot become raw"):
        pccx.convert(second, tmp_path / "d.pccx", "raw")
    assert not (tmp_path / "d.pccx").exists()


def test_convert_says_what_flatbuf_has_no_place_for(tmp_path: Path) -> None:
    source, out = tmp_path / "a.pccx", tmp_path / "b.pccx"
    rows = [(0, 5, 1, "API_CALL", "init"), (0, 6, 1, "free", None), (1, 7, 0, "EVENT_9", None)]
    source.write_bytes(container(bincode(9, rows), "bincode"))
    warnings = pccx.convert(source, out, "flatbuf")
    assert [row[3] for row in flat(out)] == [6, 0, 9]
    assert len(warnings) == 2


def test_damaged_dump_r13_is_refused_or_cut(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.pccx"
    whole = dump.read_bytes()
    dump.write_bytes(whole + whole[:31])
    for encoding in ("raw", "flatbuf"):
        with pytest.raises(DumpError, match=f"byte {len(whole)}"):
            pccx.pack([dump], out, PackOptions(encoding))
        assert list(tmp_path.iterdir()) == [dump]
        result = pccx.pack([dump], out, PackOptions(encoding, partial=True))
        assert any(f"byte {len(whole)}" in line for line in result.warnings)
        assert result.records == 3000
        out.unlink()


def test_unpack_refuses_what_holds_no_dump(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.pccx"
    pccx.pack([dump], out, PackOptions("bincode"))
    with pytest.raises(pccx.PccxError, match="only raw holds the dump"):
        pccx.unpack(out, tmp_path / "y.bin")
    assert not (tmp_path / "y.bin").exists()


def test_unpack_strict_leaves_nothing_behind(tmp_path: Path) -> None:
    source, out = tmp_path / "x.pccx", tmp_path / "y.bin"
    source.write_bytes(container(record(1), "raw", checksum=1))
    assert len(pccx.unpack(source, out)) == 1
    out.unlink()
    with pytest.raises(pccx.ChecksumError):
        pccx.unpack(source, out, strict=True)
    assert list(tmp_path.iterdir()) == [source]


def test_an_input_is_never_overwritten(dump: Path, tmp_path: Path) -> None:
    whole, link, raw = dump.read_bytes(), tmp_path / "link.bin", tmp_path / "x.pccx"
    link.symlink_to(dump)
    with pytest.raises(UsageError, match="is an input too"):
        pccx.pack([dump], link)
    pccx.pack([dump], raw)
    for work in (lambda: pccx.unpack(raw, raw), lambda: pccx.convert(raw, raw, "flatbuf")):
        with pytest.raises(UsageError, match="is an input too"):
            work()
    assert dump.read_bytes() == whole


def test_catalog_of_every_opcode(tmp_path: Path) -> None:
    catalog = Catalog("all", {o: Event(o, f"e{o}", pccx="DMA_READ") for o in range(1 << 16)})
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    source.write_bytes(dump_of([(0, opcode, 0, b"") for opcode in (0, 1, 65_535)]))
    pccx.pack([source], out, PackOptions("flatbuf", catalog))
    assert [row[3] for row in flat(out)] == [2, 2, 2]


def test_pack_options_are_checked() -> None:
    with pytest.raises(UsageError, match="encoding"):
        PackOptions("zip")
    with pytest.raises(UsageError, match="checksum"):
        PackOptions(checksum="md5")


def test_open_begins_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmb_trace.pccx import rules  # noqa: PLC0415 - only here

    small = rules.OpenTable
    monkeypatch.setattr("hmb_trace.pccx.maker.OpenTable", lambda: small(64, 256))
    source, out = tmp_path / "x.bin", tmp_path / "x.pccx"
    begins = [(i, 3, 0, struct.pack("<Hh", 0, i - 16000)) for i in range(32000)]
    ends = [(40_000, 4, 0, struct.pack("<i", i - 16000)) for i in range(31_990, 32_000)]
    source.write_bytes(dump_of(begins + ends))
    result = pccx.pack([source], out, PackOptions("flatbuf", CATALOG))
    assert result.events is not None
    assert result.events.pairs == 10
    assert result.events.unmatched_begins == 31_990
    assert result.events.events == 32_000


# ---- command lines ----


@pytest.fixture
def here(dump: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with x.bin in it, as the current one."""
    monkeypatch.chdir(dump.parent)
    return dump.parent


def test_cli_pack_and_unpack(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = dump.read_bytes()
    assert main(["pack", str(dump)]) == 0
    assert "3000 records" in capsys.readouterr().err
    dump.unlink()
    assert main(["unpack", "-q", str(dump.with_suffix(".pccx"))]) == 0
    assert dump.read_bytes() == whole
    assert capsys.readouterr().err == ""


def test_cli_pipes(dump: Path) -> None:
    whole = dump.read_bytes()
    tool = program("hmb-trace")
    packed = subprocess.run(
        [tool, "pack", "-", "-o", "-"], input=whole, check=False, capture_output=True
    )
    assert packed.returncode == 0, packed.stderr
    unpacked = subprocess.run(
        [tool, "unpack", "-", "-o", "-"], input=packed.stdout, check=False, capture_output=True
    )
    assert unpacked.stdout == whole, unpacked.stderr


@pytest.mark.parametrize(
    ("args", "code", "match"),
    [
        (["pack", "nowhere.bin"], 66, "nowhere.bin"),
        (["pack", "-"], 2, "--output"),
        (["pack", "x.bin", "-e", "zip"], 2, "zip"),
        (["pack", "x.bin", "-o", "no/where.pccx"], 73, "cannot create"),
        (["pack", "x.bin", "-c", "bad.toml"], 78, "event[0].opcode"),
        (["pack", "other"], 65, "magic"),
        (["unpack", "x.bin"], 65, "magic"),
        (["unpack", "nowhere.pccx"], 66, "nowhere.pccx"),
        (["unpack", "-", "-o"], 2, "-o"),
        (["catalog", "check", "bad.toml"], 78, "event[0].opcode"),
        (["catalog", "check", "nowhere.toml"], 66, "nowhere.toml"),
        (["catalog", "import", "other"], 78, "other"),
    ],
)
def test_cli_errors_are_one_line_with_the_right_code(
    args: list[str], code: int, match: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.toml").write_text('name = "x"\n[[event]]\nname = "y"\nopcode = "1"\n')
    (here / "other").write_bytes(b"\x7fELF" + bytes(range(128, 255)))
    assert main(args) == code
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_statistics_of_events(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.pccx"
    pccx.pack([dump], out, PackOptions("flatbuf", CATALOG))
    found = pccx.statistics(out)
    with pccx.read(out) as file:
        events = np.array(pccx.flat_events(file))
    assert found["events"] == len(events) == sum(found["by_type"].values())
    assert found["busy_cycles"] == sum(events["duration"].tolist())
    assert found["first_cycle"] == events["start_cycle"].min()
    with pytest.raises(pccx.PccxError, match=r"payload\.encoding"):
        pccx.pack([dump], out)
        pccx.statistics(out)


def test_cli_stats_of_events(dump: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for encoding in ("flatbuf", "bincode"):
        pccx.pack([dump], here / "e.pccx", PackOptions(encoding, CATALOG))
        assert main(["stats", "--json", "e.pccx"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == json.loads(json.dumps(pccx.statistics(here / "e.pccx")))
        assert main(["stats", "e.pccx"]) == 0
        assert f"{found['events']:,}" in capsys.readouterr().out
    assert main(["stats", "e.pccx", "x.bin"]) == 2
    assert "alone" in capsys.readouterr().err

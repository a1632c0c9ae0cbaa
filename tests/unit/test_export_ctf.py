# SPDX-License-Identifier: Apache-2.0
"""CTF by link, read by babeltrace2 and compared record by record."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.cli import main
from hmb_trace.dumps.dump import DumpError, open_dump, open_dumps
from hmb_trace.dumps.sidecar import ClockPair, Device, Sidecar, sidecar_path
from hmb_trace.errors import CannotCreateError, UsageError
from hmb_trace.exports.ctf import _Opcodes, export
from tests.conftest import require_program
from tests.unit.exporting import CATALOG, Row, record, rows, write_set

_LINE = re.compile(
    r"\[(?P<time>-?[\d.]+)\] \(\S+\) (?P<name>[^:]+): "
    r"\{ (?P<context>.*?) \}, \{ ?(?P<payload>.*?)(?:, padding = \{ \})? ?\}$"
)


def babeltrace(directory: Path) -> list[dict[str, Any]]:
    """Every event that babeltrace2 reads, in its order."""
    tool = require_program("babeltrace2")
    run = subprocess.run(
        [tool, "--clock-seconds", str(directory)], capture_output=True, text=True, check=True
    )
    found = []
    for line in run.stdout.splitlines():
        match = _LINE.match(line)
        assert match, line
        whole, _, fraction = match["time"].partition(".")
        context = dict(pair.split(" = ") for pair in match["context"].split(", "))
        found.append(
            {
                "ts_ns": int(whole) * 10**9 + int(fraction),
                "name": match["name"],
                "cpu": int(context["cpu_id"]),
                "marker": int(context["flags"]) & 1,
                "payload": match["payload"],
            }
        )
    return found


def shown_payload(row: Row, *, typed: bool) -> str:
    """A payload as babeltrace2 prints it."""
    if not typed:
        items = ", ".join(f"[{i}] = 0x{byte:X}" for i, byte in enumerate(row.payload))
        return f"payload = [ {items} ]" if items else "payload = [ ]"
    if row.opcode == 1:
        f = row.fields
        gap = ", ".join(f"[{i}] = 0x0" for i in range(2))
        return f"id = {f['id']}, gap4 = [ {gap} ], die = {f['die']}, lba = {f['lba']}"
    label = json.dumps("OK" if row.fields["status"] == 0 else 'bad "x"')
    return f"id = {row.fields['id']}, status = ( {label} : container = {row.fields['status']} )"


def test_set_of_segments_with_markers(tmp_path: Path) -> None:
    made = rows(6000)
    paths = write_set(tmp_path / "set", made)
    result = export(open_dump(tmp_path / "set"), str(tmp_path / "ctf"), catalog=CATALOG)
    assert (result.records, result.wrap_markers, result.streams) == (6000, 3, 3)
    assert result.linked == 3
    assert result.untyped == ["varying"]
    for path in paths:
        assert Path(path).samefile(tmp_path / "ctf" / Path(path).name)
    found = babeltrace(tmp_path / "ctf")
    markers = [event for event in found if event["marker"]]
    assert [event["name"] for event in markers] == ["wrap_marker"] * 3
    records = [event for event in found if not event["marker"]]
    names = [CATALOG.name_of(row.opcode) for row in made]
    assert [e["name"] for e in records] == [n if n != "0x0009" else "0x0009" for n in names]
    assert [e["ts_ns"] for e in records] == [row.ts_ns for row in made]
    assert [e["cpu"] for e in records] == [row.cpu for row in made]
    for event, row in zip(records, made, strict=True):
        if row.opcode in (1, 2, 5, 9):
            expected = shown_payload(row, typed=row.opcode in (1, 2))
            assert event["payload"].replace("[  ]", "[ ]") == expected
    erase = next(e for e, r in zip(records, made, strict=True) if r.opcode == 4)
    assert 'tag = "ab"' in erase["payload"]


def test_without_catalog_and_from_compressed_and_pipe(tmp_path: Path) -> None:
    made = rows(300)
    data = testing.dump(record(row) for row in made)
    packed = tmp_path / "a.bin.zst"
    packed.write_bytes(zstandard.compress(data))
    result = export(open_dump(packed), str(tmp_path / "ctf"))
    assert (result.streams, result.linked) == (1, 0)
    assert (tmp_path / "ctf" / "a.bin").read_bytes() == data
    assert sorted(p.name for p in (tmp_path / "ctf").iterdir()) == ["a.bin", "metadata"]
    found = babeltrace(tmp_path / "ctf")
    assert [e["payload"].replace("[  ]", "[ ]") for e in found] == [
        shown_payload(row, typed=False) for row in made
    ]


def test_clock_that_goes_back_splits_the_stream(tmp_path: Path) -> None:
    first, second = rows(50), rows(50)
    path = tmp_path / "a.bin"
    path.write_bytes(testing.dump(record(row) for row in first + second))
    result = export(open_dump(path), str(tmp_path / "ctf"))
    assert (result.streams, result.linked) == (2, 0)
    times = [e["ts_ns"] for e in babeltrace(tmp_path / "ctf")]
    assert times == sorted(row.ts_ns for row in first + second)


def test_skewed_cores_need_a_stream_each(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    records = [
        testing.record(i, ts_ns=1000 * i - 1500 * (i % 2) + 2000, cpu=i % 2) for i in range(400)
    ]
    path.write_bytes(testing.dump(records))
    with pytest.raises(UsageError, match="--split-cpu"):
        export(open_dump(path), str(tmp_path / "ctf"))
    assert not (tmp_path / "ctf").exists()
    result = export(open_dump(path), str(tmp_path / "ctf"), split_cpu=True)
    assert result.streams == 2
    assert len(babeltrace(tmp_path / "ctf")) == 400


def test_clock_offset_comes_from_the_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0, ts_ns=500))
    host = 1_767_225_600_123_456_789
    sidecar = Sidecar(
        segment="a.bin",
        number=0,
        label="x",
        device=Device(path="/dev/x", serial='S"1'),
        clock=[ClockPair(ts_ns=400, host_ns=host)],
    )
    sidecar_path(path).write_bytes(sidecar.encode())
    export(open_dump(path), str(tmp_path / "ctf"))
    assert babeltrace(tmp_path / "ctf")[0]["ts_ns"] == host + 100


def test_damage_and_bad_targets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = write_set(tmp_path / "set", rows(90))
    with Path(paths[1]).open("ab") as file:
        file.write(b"garbage!" * 4)
    with pytest.raises(DumpError):
        export(open_dumps(paths), str(tmp_path / "ctf"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]
    code = main(["convert", *paths, "--to", "ctf", "-o", str(tmp_path / "ctf"), "--partial"])
    assert code == 65
    assert "90 records, 3 streams, 2 of them linked" in capfd.readouterr().err
    assert len(babeltrace(tmp_path / "ctf")) == 93
    with pytest.raises(CannotCreateError, match="exists already"):
        export(open_dumps(paths[:1]), str(tmp_path / "ctf"))


def test_scan_knows_the_shortest_and_longest_payload_of_every_opcode() -> None:
    rng = random.Random(3)
    for _ in range(100):
        lengths = [rng.choice([0, 3, 3, 3, 7, 4063, 4064]) for _ in range(rng.randrange(1, 40))]
        opcodes = [rng.randrange(6) for _ in lengths]
        data = testing.dump(
            testing.record(i, bytes(size), opcode=opcode)
            for i, (size, opcode) in enumerate(zip(lengths, opcodes, strict=True))
        )
        found = _Opcodes()
        for batch in open_dump(io.BytesIO(data)).batches():
            found.add(batch)
        for opcode in set(opcodes):
            mine = [size for size, one in zip(lengths, opcodes, strict=True) if one == opcode]
            assert (found.least[opcode], found.most[opcode]) == (min(mine), max(mine))


# ---- names of ours and the catalog's (R25) ----


def _catalog(*fields: tuple[str, str, int], name: str = "odd", opcode: int = 7) -> Catalog:
    made = [{"name": n, "type": t, "offset": o} for n, t, o in fields]
    return Catalog.from_dict(
        {"name": "odd", "event": [{"opcode": opcode, "name": name, "field": made}]}
    )


@pytest.mark.parametrize(
    "fields",
    [
        [("padding", "u8", 0)],
        [("padding", "u8", 0), ("padding_", "u8", 1)],
        [("gap4", "u32", 0), ("x", "u8", 9)],
        [("a", "u32", 0), ("gap4", "u8", 8), ("_gap4", "u8", 9), ("gap10", "u8", 11)],
        [("payload", "u16", 0), ("payload_len", "u16", 1)],  # they overlap: bare bytes
    ],
)
def test_generated_names_never_meet_the_catalogs(
    fields: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    catalog = _catalog(*fields)
    path = tmp_path / "a.bin"
    size = catalog.events[7].payload_size
    path.write_bytes(
        testing.dump(testing.record(i, bytes(range(size)), ts_ns=i, opcode=7) for i in range(3))
    )
    export(open_dump(path), str(tmp_path / "ctf"), catalog=catalog)
    found = babeltrace(tmp_path / "ctf")
    assert len(found) == 3
    if fields[0][0] != "payload":
        for name, _, offset in fields:
            shown = re.search(rf"(?<!\w){name} = (\d+)", found[0]["payload"])
            assert shown, found[0]
            assert int(shown[1]) & 0xFF == offset


def test_generated_event_names_never_meet_the_catalogs(tmp_path: Path) -> None:
    catalog = _catalog(("x", "u8", 0), name="wrap_marker")
    named = _catalog(("x", "u8", 0), name="0x0009")
    path = tmp_path / "a.bin"
    path.write_bytes(
        testing.dump(
            [
                testing.record(0, b"\1", ts_ns=0, opcode=7),
                testing.marker(1, ts_ns=1),
                testing.record(1, b"\2", ts_ns=2, opcode=9),
            ]
        )
    )
    export(open_dump(path), str(tmp_path / "a"), catalog=catalog)
    assert [e["name"] for e in babeltrace(tmp_path / "a")] == [
        *("wrap_marker", "wrap_marker_", "0x0009"),
    ]
    export(open_dump(path), str(tmp_path / "b"), catalog=named)
    assert [e["name"] for e in babeltrace(tmp_path / "b")] == ["0x0009", "wrap_marker", "0x0009_"]


# ---- wrap markers are no events of the firmware (R26) ----


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split_cpu", [False, True])
def test_markers_never_count_as_an_event_of_the_firmware(
    packed: bool, split_cpu: bool, tmp_path: Path
) -> None:
    catalog = _catalog(("x", "u32", 0), opcode=0)
    data = testing.dump(
        [
            testing.record(0, b"\1\0\0\0", ts_ns=10, opcode=0),
            testing.marker(1, ts_ns=20),
            testing.record(1, b"\2\0\0\0", ts_ns=20, opcode=0),
            testing.marker(2, ts_ns=30),
        ]
    )
    path = tmp_path / ("a.bin.zst" if packed else "a.bin")
    path.write_bytes(zstandard.compress(data) if packed else data)
    made = export(open_dump(path), str(tmp_path / "ctf"), catalog=catalog, split_cpu=split_cpu)
    assert (made.records, made.wrap_markers, made.linked) == (2, 2, 0)
    found = babeltrace(tmp_path / "ctf")
    assert [(e["name"], e["payload"]) for e in found] == [("odd", "x = 1"), ("odd", "x = 2")]


def test_metadata_is_utf8_under_an_ascii_locale(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0, b"\1", opcode=7))
    (tmp_path / "c.toml").write_text(
        'name="c"\n[[event]]\nopcode=7\nname="RD"\n'
        'field=[{name="s",type="u8",enum={1="\uc644\ub8cc"}}]\n',
        encoding="utf-8",
    )
    words = ("convert", "a.bin", "--to", "ctf", "-o", "out", "--catalog", "c.toml")
    run = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", "from hmb_trace.cli import main; main()", *words],
        cwd=tmp_path, env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "\uc644\ub8cc" in (tmp_path / "out" / "metadata").read_text(encoding="utf-8")

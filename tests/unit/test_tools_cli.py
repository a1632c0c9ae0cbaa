# SPDX-License-Identifier: Apache-2.0
"""info, verify, repair, decode, filter, gaps, stats as users call them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hmb_trace import attach, pccx, testing
from hmb_trace.cli import main
from hmb_trace.dumps import rejects
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import DumpError, open_dump
from hmb_trace.dumps.follow import follow
from hmb_trace.dumps.sidecar import (
    Device,
    Gap,
    RejectsSummary,
    Sidecar,
    rejects_path,
    sidecar_path,
)
from hmb_trace.errors import UsageError
from tests.conftest import program, wait_until
from tests.unit.exporting import CATALOG, rows
from tests.unit.exporting import record as exporting_record

QUIET = ("info", "verify", "repair", "decode", "filter", "gaps", "stats", "sql", "convert")
COMMANDS = (*QUIET, "view")


def records(count: int, start: int = 0) -> list[bytes]:
    return [
        testing.record(
            start + i, bytes([i % 256] * (i % 40)), ts_ns=1000 * (start + i), opcode=i % 3
        )
        for i in range(count)
    ]


def write(path: Path, *made: bytes) -> str:
    path.write_bytes(testing.dump(made))
    return str(path)


def on_file(command: str, path: str) -> list[str]:
    """The least that a command needs to work on a file."""
    before = ["select * from trace"] if command == "sql" else []
    after = ["-q", "-o", f"{path}.csv"] if command == "convert" else []
    return [command, *before, path, *after]


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capfd.readouterr()
    return code, out, err


INFO_KEYS = [
    *("kind", "records", "wrap_markers", "truncated", "bytes", "first_ts_ns", "last_ts_ns"),
    *("first_seq", "last_seq", "gaps", "lost", "lost_exact", "verdict", "reasons", "epochs"),
    *("clock_steps", "rejected_records", "rejected_bytes", "duplicates", "sequence_resets"),
    *("glitches", "begins", "truncated_end", "complete"),
]


def test_info_json_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.bin", *records(5), testing.marker(5), *records(3, 8))
    code, out, _ = run(capfd, "info", "--json", path)
    found = json.loads(out)
    assert code == 0
    assert list(found) == INFO_KEYS
    assert (found["records"], found["wrap_markers"], found["gaps"], found["lost"]) == (8, 1, 1, 2)
    code, out, _ = run(capfd, "info", "--json", "--checksum", path)
    state = 0xCBF29CE484222325
    for byte in Path(path).read_bytes():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    assert json.loads(out)["fnv64"] == f"0x{state:016x}"


def test_info_truncated_r13(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = testing.dump(records(5))
    path = write(tmp_path / "a.bin", whole[:-3])
    code, out, err = run(capfd, "info", "--json", path)
    found = json.loads(out)
    assert code == 65
    assert (found["complete"], found["records"]) == (False, 4)
    assert found["offset"] == len(whole) - len(records(5)[4])
    assert f"byte {found['offset']}" in err
    assert err.count("\n") == 1


def sidecar(path: str, **fields: object) -> Sidecar:
    data = Path(path).read_bytes()
    base: dict[str, object] = {
        "segment": Path(path).name,
        "number": 1,
        "label": "dev",
        "device": Device(path="/dev/x"),
        "bytes": len(data),
    }
    made = Sidecar(**{**base, **fields})  # type: ignore[arg-type] # a test's own values
    sidecar_path(path).write_bytes(made.encode())
    return made


def test_rejects_are_not_lost_r12(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.bin", *records(5), *records(3, 10), *records(2, 15))
    at = len(testing.dump(records(5)))
    gap = Gap(offset=at, seq_before=4, seq_after=10, lost=3, rejected=2, cause="damage", host_ns=9)
    summary = RejectsSummary(file="a.rejects", entries=1, records=4, bytes=128)
    rejects_path(path).write_bytes(rejects.pack(3, 0, 0, 0, bytes(128)))
    sidecar(path, records=10, gaps=1, lost=3, gap_list=[gap], rejects=summary)
    found = json.loads(run(capfd, "info", "--json", path)[1])
    assert (found["gaps"], found["lost"]) == (1, 3)
    _, out, _ = run(capfd, "gaps", "--json", path)
    first, second = map(json.loads, out.splitlines())
    assert (first["lost"], first["rejected"], first["kind"]) == (3, 2, "rejects")
    assert (second["lost"], second["rejected"]) == (0, 2)  # R10: whole records in the rejects
    sidecar_path(path).unlink()
    found = json.loads(run(capfd, "info", "--json", path)[1])
    assert (found["gaps"], found["lost"]) == (2, 7)


def test_gap_around_rejected_records_r12_r10_counts_them_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """1, (2 lost), 3 rejected, (4..8: one of them damaged), 9: the dump alone sees 1 -> 9."""
    path = write(
        tmp_path / "a.bin", testing.record(1, ts_ns=2**63), testing.record(9, ts_ns=2**63 + 5)
    )
    gaps = [
        Gap(offset=32, seq_before=1, seq_after=3, lost=1),
        Gap(offset=32, seq_before=3, seq_after=9, lost=4, rejected=1, ts_ns=2**63 + 5),
    ]
    summary = RejectsSummary(file="a.rejects", entries=1, records=2, bytes=64)
    rejects_path(path).write_bytes(rejects.pack(3, 0, 0, 0, bytes(64)))
    sidecar(path, records=2, gaps=2, lost=5, gap_list=gaps, rejects=summary)
    rows = [json.loads(line) for line in run(capfd, "gaps", "--json", path)[1].splitlines()]
    assert [(r["seq_before"], r["seq_after"], r["lost"], r["rejected"]) for r in rows] == [
        (1, 3, 1, 0),
        (3, 9, 4, 1),
        (1, 9, 0, 1),
    ]
    text = run(capfd, "gaps", path)[1]
    assert "5 records lost in 2 gaps" in text
    assert " 9223372036.854775813 " in text  # every nanosecond of it


def test_verify(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.bin", *records(5), *records(3, 8))
    assert run(capfd, "verify", path)[0] == 0
    code, _, err = run(capfd, "verify", "--strict", path)
    assert (code, "lossy: 3 records lost in 1 gap" in err) == (1, True)
    dirty = write(tmp_path / "dirty.bin", testing.record(0, b"abc", padding=7))
    code, _, err = run(capfd, "verify", dirty)
    assert (code, "padding" in err) == (1, True)
    cut = write(tmp_path / "cut.bin", testing.dump(records(5))[:-1])
    assert run(capfd, "verify", cut)[0] == 1
    sidecar(path, records=8, xxh3="0" * 16)
    code, _, err = run(capfd, "verify", path)
    assert (code, "xxh3" in err) == (1, True)
    other = tmp_path / "x.txt"
    other.write_text("hello world")
    assert run(capfd, "verify", str(other))[0] == 65


def test_repair_r13_keeps_what_it_cuts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = testing.dump(records(5)), b"garbage" * 9
    path = tmp_path / "a.bin"
    path.write_bytes(good + bad)
    code, out, _ = run(capfd, "repair", "--dry-run", str(path))
    assert (code, "would cut 63 bytes" in out) == (0, True)
    assert path.read_bytes() == good + bad
    assert run(capfd, "repair", str(path))[0] == 0
    assert path.read_bytes() == good
    assert path.with_name("a.bin.cut").read_bytes() == bad
    path.write_bytes(good + b"x")
    run(capfd, "repair", str(path))
    assert path.with_name("a.bin.cut").read_bytes() == bad
    assert path.with_name("a.bin.cut.1").read_bytes() == b"x"
    code, out, _ = run(capfd, "repair", str(path))
    assert "whole" in out


def test_repair_of_compressed_goes_to_another_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = testing.dump(records(5))
    path = tmp_path / "a.bin.zst"
    path.write_bytes(zstandard.compress(good + b"garbage!"))
    code, _, err = run(capfd, "repair", str(path))
    assert (code, "-o FILE" in err) == (2, True)
    assert run(capfd, "repair", str(path), "-o", str(tmp_path / "b.bin"))[0] == 0
    assert (tmp_path / "b.bin").read_bytes() == good


def test_decode_limits_and_partial(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.bin", *records(50))
    code, out, _ = run(capfd, "decode", path, "-n", "3", "--format", "csv")
    assert [row["seq"] for row in csv.DictReader(io.StringIO(out))] == ["0", "1", "2"]
    first = write(tmp_path / "dev-000001-x.bin", *records(5), b"garbage!" * 5)
    second = write(tmp_path / "dev-000002-x.bin", *records(5, 5))
    code, out, err = run(capfd, "decode", first, second)
    assert (code, len(out.splitlines()), err.count("\n")) == (65, 5, 1)
    code, out, err = run(capfd, "decode", "--partial", first, second)
    assert (code, len(out.splitlines()), err.count("\n")) == (65, 10, 2)


def test_decode_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(testing.dump(records(9)))

    monkeypatch.setattr("sys.stdin", Stdin())
    out = tmp_path / "out.csv"
    assert main(["decode", "-", "--format", "csv", "-o", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 10


def test_raw_pccx_brings_its_own_catalog_p7(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = rows(60)
    path = write(tmp_path / "a.bin", *(exporting_record(row) for row in made))
    packed = str(tmp_path / "a.pccx")
    pccx.pack([path], packed, pccx.PackOptions(catalog=CATALOG))
    code, out, _ = run(capfd, "decode", packed, "--format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [one["name"] for one in found] == [CATALOG.name_of(row.opcode) for row in made]
    assert [one["fields"] for one in found if one["opcode"] == 2] == [
        row.fields for row in made if row.opcode == 2
    ]
    code, out, _ = run(capfd, "info", packed)
    assert (code, "header.hmb_trace.catalog.name:" in out) == (0, True)
    assert run(capfd, "verify", packed)[0] == 0


def test_rejects_file_is_listed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.rejects"
    path.write_bytes(rejects.pack(3, 0, 4096, 0, b"abc") + rejects.pack(1, 1, 8, 0, b""))
    code, out, _ = run(capfd, "info", "--json", str(path))
    found = json.loads(out)
    assert (code, found["kind"], found["count"]) == (0, "rejects", 2)
    assert found["entries"][0]["reason"] == "unknown-flags"
    assert "unknown-flags" in run(capfd, "info", str(path))[1]
    code, out, _ = run(capfd, "decode", str(path))
    assert (code, "61 62 63" in out) == (0, True)


def test_filter_to_a_new_dump(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = records(30)
    path = write(tmp_path / "a.bin", *made[:10], testing.marker(10), *made[10:])
    out = tmp_path / "b.bin"
    code, _, err = run(capfd, "filter", path, "--where", "payload_len > 20", "-o", str(out))
    expected = [record for i, record in enumerate(made) if i % 40 > 20]
    assert (code, out.read_bytes()) == (0, testing.dump(expected))
    assert f"{len(expected)} records" in err
    code, _, err = run(capfd, "filter", path, "-o", path)
    assert (code, "is an input too" in err) == (2, True)


def test_failed_output_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.bin", *records(3), b"garbage!" * 5)
    out = tmp_path / "b.bin"
    assert run(capfd, "filter", path, "-o", str(out))[0] == 65
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin"]
    assert run(capfd, "decode", path, "-o", str(tmp_path / "no" / "b"))[0] == 73


def test_gaps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = [*records(3), *records(2, 6), testing.record(7), testing.record(1)]
    path = write(tmp_path / "a.bin", *made)
    code, out, _ = run(capfd, "gaps", "--csv", path)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["kind"], r["seq_before"], r["seq_after"], r["lost"]) for r in rows] == [
        ("unexplained", "2", "6", "3"),
        ("duplicate", "7", "7", "0"),
        ("sequence-reset", "7", "1", "0"),
    ]
    assert code == 0
    assert run(capfd, "gaps", "--strict", path)[0] == 1
    assert run(capfd, "gaps", "--strict", write(tmp_path / "b.bin", *records(3)))[0] == 0


def test_info_only_looks_at_a_ring(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it needs no right to write, and a Ring that only looks refuses to consume."""
    path = tmp_path / "ring"
    ring = testing.RingBuilder(256)
    ring.append(b"x")
    ring.write(path)
    modes: list[int] = []

    def opened(name: str, flags: int, *rest: int, real: Any = os.open) -> int:
        if name == str(path):
            modes.append(flags & os.O_ACCMODE)
        return int(real(name, flags, *rest))

    monkeypatch.setattr(os, "open", opened)
    assert json.loads(run(capfd, "info", "--json", str(path))[1])["unread"] == 40
    assert modes == [os.O_RDONLY]
    with attach(path, exclusive=False) as looking, pytest.raises(UsageError):
        looking.collect()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "case",
    [("missing", 66), ("option", 2), ("binary", 65), ("unreadable", 77), ("bare", 66)],
)
def test_bad_input_is_one_line_and_the_right_code(
    command: str,
    case: tuple[str, int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, code = case
    path = tmp_path / "x"
    args = on_file(command, str(path))
    if kind == "option":
        args.append("--nonsense")
    elif kind == "binary":
        path.write_bytes(b"\x7fELF" + bytes(60))
    elif kind == "bare":
        path.mkdir()
        code = 2 if command == "repair" else code
    elif kind == "unreadable":
        path.write_bytes(testing.record(0))
        monkeypatch.setattr(Path, "open", _denied)  # root, who runs some tests, reads everything
    got, _, err = run(capfd, *args)
    assert (got, err.count("\n")) == (code, 1), err
    assert err.startswith("hmb-trace: ")


def _denied(path: Path, *_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


@pytest.mark.parametrize("command", QUIET)
def test_empty_dump_is_fine(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "empty.bin")
    assert run(capfd, *on_file(command, path))[0] == 0


def test_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", *records(50_000))
    decode = subprocess.Popen(
        [program("hmb-trace"), "decode", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert decode.stdout
    assert decode.stderr
    decode.stdout.readline()
    decode.stdout.close()
    with decode.stderr:
        assert (decode.wait(20), decode.stderr.read()) == (141, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, command, "--help")
    assert (code, "Examples:" in out) == (0, True)


class Follower:
    """Runs follow() in a thread."""

    def __init__(self, folder: Path) -> None:
        self.batches: list[RecordBatch] = []
        self.error: BaseException | None = None
        self.stop = False
        self._thread = threading.Thread(target=self._run, args=(folder,))
        self._thread.start()

    def _run(self, folder: Path) -> None:
        try:
            for batch in follow(folder, stop=lambda: self.stop):
                self.batches.append(batch)
        except DumpError as error:
            self.error = error

    def seqs(self) -> list[int]:
        return [int(seq) for batch in self.batches for seq in batch.seq]

    def end(self) -> None:
        self.stop = True
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_follow_over_preallocated_space_sealing_and_rotation(tmp_path: Path) -> None:
    first = testing.dump(records(100))
    part = tmp_path / "dev-000001-x.bin.part"
    part.write_bytes(first[:3000] + bytes(1 << 16))  # a page written, the rest preallocated
    follower = Follower(tmp_path)
    try:
        before = next(open_dump(io.BytesIO(first)).batches())
        whole = int((before.offset < 3000).sum()) - 1  # the one that crosses is not whole yet
        wait_until(lambda: len(follower.seqs()) >= whole - 1)
        assert follower.seqs() == list(range(len(follower.seqs())))
        assert len(follower.seqs()) <= whole
        with part.open("r+b") as file:
            file.write(first)
        wait_until(lambda: len(follower.seqs()) == 100)  # the last one too, once it is quiet
        with part.open("r+b") as file:
            file.truncate(len(first))
        part.rename(tmp_path / "dev-000001-x.bin")
        (tmp_path / "dev-000002-x.bin.part").write_bytes(testing.dump(records(7, 100)))
        wait_until(lambda: len(follower.seqs()) == 107)
    finally:
        follower.end()
    assert follower.seqs() == list(range(107))
    assert follower.error is None


def test_span_r16_is_the_sum_of_the_pieces(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    times = [10**9, 10**9 + 500, 2**64 - 10**10, 2**64 - 10**10 + 700]  # the clock went below zero
    path = tmp_path / "a.bin"
    path.write_bytes(testing.dump(testing.record(i, ts_ns=ts) for i, ts in enumerate(times)))
    for command in ("info", "stats"):
        assert main([command, str(path)]) == 0
        (line,) = [x for x in capfd.readouterr().out.splitlines() if x.startswith("time span")]
        assert line.split(":")[1].strip() == "1.2 us", command

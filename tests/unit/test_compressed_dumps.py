# SPDX-License-Identifier: Apache-2.0
"""Compressed dumps: frames of a few MiB, the seek table, damage in the container."""

from __future__ import annotations

import io
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hmb_trace import testing
from hmb_trace.cli import main
from hmb_trace.dumps import zstd
from hmb_trace.dumps.dump import DumpError, Span, open_dump
from hmb_trace.dumps.sidecar import Device, IndexEntry, Sidecar, sidecar_path
from tests.conftest import require_program

FRAME = 1 << 16  # small frames: the same code, smaller tests
RECORD = 96  # bytes of each record below
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"hello"


def dump_bytes(count: int) -> bytes:
    return testing.dump(
        testing.record(i, os.urandom(RECORD - 32), ts_ns=1000 * i) for i in range(count)
    )


def compressed(data: bytes, frame: int = FRAME) -> bytes:
    out = io.BytesIO()
    size = zstd.compress_seekable(io.BytesIO(data), out, 1, frame_size=frame)
    assert size == len(out.getvalue())
    return out.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def seqs(path: object, **kwargs: Any) -> list[int]:
    return [int(s) for batch in open_dump(path).batches(**kwargs) for s in batch.seq]  # type: ignore[arg-type]


def bytes_read() -> int:
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.split("rchar: ")[1].split()[0])


@pytest.fixture
def frames_begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Its length is the number of frames that were decompressed."""
    begun: list[int] = []
    real = zstandard.ZstdDecompressor

    def counted(*args: Any, **kwargs: Any) -> Any:
        begun.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(zstd.zstandard, "ZstdDecompressor", counted)
    yield begun


def test_any_zstd_reads_a_seekable_segment(tmp_path: Path) -> None:
    data = dump_bytes(5000)
    path = write(tmp_path / "a.bin.zst", compressed(data))
    with zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True) as r:
        assert r.read() == data
    tool = require_program("zstd")
    assert subprocess.run([tool, "-dc", path], capture_output=True, check=True).stdout == data
    subprocess.run([tool, "-tq", path], check=True)


def test_seek_table_layout_is_that_of_the_seekable_format() -> None:
    data = dump_bytes(2000)
    packed = compressed(data)
    frames, descriptor, magic = struct.unpack("<IBI", packed[-9:])
    assert (magic, descriptor) == (0x8F92EAB1, 0)
    assert frames == -(-len(data) // FRAME)
    begin = len(packed) - 9 - 8 * frames - 8
    assert struct.unpack_from("<II", packed, begin) == (0x184D2A5E, 8 * frames + 9)
    at = 0
    for index in range(frames):
        size, whole = struct.unpack_from("<II", packed, begin + 8 + 8 * index)
        part = data[index * FRAME : (index + 1) * FRAME]
        assert (whole, zstandard.decompress(packed[at : at + size])) == (len(part), part)
        at += size
    assert at == begin


def test_from_near_the_end_reads_only_its_frames(
    tmp_path: Path, frames_begun: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Item 7: 8 MiB in 128 frames; what lies before the last two is neither read nor unpacked."""
    count = (8 << 20) // RECORD
    path = write(tmp_path / "a.bin.zst", compressed(dump_bytes(count)))
    index = [
        IndexEntry(offset=i * RECORD, seq=max(i - 1, 0), ts_ns=1000 * max(i - 1, 0))
        for i in range(0, count, 100)
    ]
    side = Sidecar(
        *(),
        segment="a.bin", number=0, label="a", device=Device(path="x"), index=index,
        records=count, bytes=count * RECORD, first_seq=0, last_seq=count - 1,
        first_ts_ns=0, last_ts_ns=1000 * (count - 1),
    )  # fmt: skip
    sidecar_path(path).write_bytes(side.encode())
    before = bytes_read()
    moment = str(1000 * (count - 100))
    assert main(["decode", str(path), "--from", moment, "--fields", "seq"]) == 0
    spent = bytes_read() - before
    assert len(capfd.readouterr().out.splitlines()) == 100
    assert len(frames_begun) <= 3
    assert spent < path.stat().st_size // 4


def test_a_jump_without_a_table_streams(tmp_path: Path, frames_begun: list[int]) -> None:
    data = dump_bytes(4000)
    begin = 3900 * RECORD
    span = [Span(0, begin)]
    path = write(tmp_path / "a.bin.zst", zstandard.compress(data))
    assert seqs(path, spans=span) == list(range(3900, 4000))
    frames_begun.clear()
    path.write_bytes(compressed(data))
    assert seqs(path, spans=span) == list(range(3900, 4000))
    assert len(frames_begun) <= 2  # the frame and the table behind it


Spoil = Callable[[bytearray, int], None]


def _longer_frame(data: bytearray, entry: int) -> None:
    struct.pack_into("<I", data, entry + 4, FRAME + 96)


def _shifted(data: bytearray, entry: int) -> None:
    first, _, second, _ = struct.unpack_from("<4I", data, entry)
    struct.pack_into("<I", data, entry, first + 8)
    struct.pack_into("<I", data, entry + 8, second - 8)


def _swapped(data: bytearray, entry: int) -> None:
    first, second = bytes(data[entry : entry + 8]), bytes(data[entry + 8 : entry + 16])
    data[entry : entry + 16] = second + first


@pytest.mark.parametrize("spoil", [_longer_frame, _shifted, _swapped])
def test_a_lying_seek_table_is_not_believed(
    spoil: Spoil, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = dump_bytes(4000)
    packed = bytearray(compressed(data))
    (frames,) = struct.unpack_from("<I", packed, len(packed) - 9)
    spoil(packed, len(packed) - 9 - 8 * frames + 8)  # its second entry
    path = write(tmp_path / "a.bin.zst", bytes(packed))
    assert seqs(path, spans=[Span(0, 3900 * RECORD)]) == list(range(3900, 4000))
    assert seqs(path) == list(range(4000))
    assert "seek table: no frame of" in caplog.text


@pytest.mark.parametrize("count", [0, 1, 1 << 20, (1 << 20) + 1, 0xFFFFFFFF])
def test_a_table_with_a_wrong_count_is_no_table(count: int, tmp_path: Path) -> None:
    data = dump_bytes(4000)
    packed = bytearray(compressed(data))
    struct.pack_into("<I", packed, len(packed) - 9, count)
    path = write(tmp_path / "a.bin.zst", bytes(packed))
    assert seqs(path, spans=[Span(0, 3900 * RECORD)]) == list(range(3900, 4000))


def test_skippable_frames_anywhere_r31(tmp_path: Path) -> None:
    data = dump_bytes(400)
    frames = [zstandard.compress(data[i : i + 9600]) for i in range(0, len(data), 9600)]
    for name, packed in {
        "first": SKIPPABLE + frames[0] + b"".join(frames[1:]),
        "between": frames[0] + SKIPPABLE + b"".join(frames[1:]),
        "last": b"".join(frames) + SKIPPABLE,
        "pzstd": b"".join(struct.pack("<III", 0x184D2A50, 4, len(f)) + f for f in frames),
    }.items():
        path = write(tmp_path / f"{name}.bin.zst", packed)
        assert seqs(path) == list(range(400)), name
        assert seqs(io.BytesIO(packed)) == list(range(400)), name


def test_stopping_ends_the_compression() -> None:
    asked = iter([False, False, True])
    out = io.BytesIO()
    data = io.BytesIO(bytes(5 << 20))
    assert zstd.compress_seekable(data, out, 1, frame_size=1 << 20, stop=lambda: next(asked)) == 0


# ---- torn and damaged: as a torn dump (R13, R30) ----

DATA = dump_bytes(4000)
PACKED = compressed(DATA)
TORN = {
    "inside a frame": (PACKED[: len(PACKED) // 2], "ends inside a zstd frame"),
    "seven bytes of garbage": (PACKED + b"garbage", "damaged before byte"),
    "seven bytes of a frame": (PACKED + PACKED[:7], "ends inside a zstd frame"),
    "a damaged block": (
        PACKED[:200_000] + bytes(64) + PACKED[200_064:],
        "damaged before byte",
    ),
}


@pytest.mark.parametrize("name", TORN)
def test_torn_container_is_a_torn_dump_r13(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    packed, words = TORN[name]
    path = write(tmp_path / "a.bin.zst", packed)
    dump = open_dump(path)
    found = [int(s) for batch in dump.batches(partial=True) for s in batch.seq]
    (problem,) = dump.problems
    assert found == list(range(len(found)))
    assert len(found) > 1000
    assert problem.offset == len(found) * RECORD
    assert words in problem.reason
    assert f"whole records end at byte {problem.offset}" in str(problem)
    with pytest.raises(DumpError, match=words):
        seqs(path)
    good = tmp_path / "good.bin"
    assert main(["repair", str(path), "-o", str(good)]) == 0
    assert good.read_bytes() == DATA[: problem.offset]
    capfd.readouterr()


def test_partial_goes_on_behind_a_torn_segment_r30(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [DATA[:9600], DATA[9600:19200], DATA[19200:28800]]
    for number, part in enumerate(parts, 1):
        packed = compressed(part, 1 << 11)
        if number == 2:
            packed = packed[: len(packed) // 2]
        write(tmp_path / f"d-00000{number}-20260101T000000Z.bin.zst", packed)
    assert main(["decode", str(tmp_path), "--partial", "--fields", "seq"]) == 65
    out, err = capfd.readouterr()
    shown = [int(line) for line in out.split()]
    assert shown[:100] == list(range(100)) and shown[-100:] == list(range(200, 300))
    assert 200 < len(shown) < 300
    assert "d-000002" in err and "zstd frame" in err

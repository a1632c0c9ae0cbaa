# SPDX-License-Identifier: Apache-2.0
"""open_dump: every kind of input, and how dumps may end (seed 003 section 6.5; R13, R14)."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import zstandard

import hmb_trace
from hmb_trace import testing
from hmb_trace.dumps.dump import DumpError, Span, open_dump, open_dumps
from hmb_trace.dumps.sidecar import Device, Sidecar, sidecar_path
from hmb_trace.dumps.summary import summarise
from hmb_trace.dumps.walker import Tally, Walker
from hmb_trace.errors import InvalidDataError, NoInputError
from tests.oracle.dump import read_dump


def some_records(count: int = 20, start: int = 0) -> bytes:
    made = [
        testing.record(
            start + i, bytes([i % 251]) * (i * 7 % 90), ts_ns=1000 + i, opcode=i % 5, cpu=i % 3
        )
        for i in range(count)
    ]
    made.insert(count // 2, testing.marker(start + count // 2, ts_ns=1000 + count // 2))
    return testing.dump(made)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    path.write_bytes(some_records())
    return path


def seqs(path: object, **how: object) -> list[int]:
    dump = open_dump(path)  # type: ignore[arg-type] # whatever a test gives
    return [int(s) for batch in dump.batches(**how) for s in batch.seq]  # type: ignore[arg-type]


def test_columns_and_payloads_equal_the_records(plain: Path) -> None:
    expected = read_dump(plain.read_bytes()).records
    rows = [
        (
            *(int(b.offset[i]), int(b.seq[i]), int(b.ts_ns[i])),
            *(int(b.opcode[i]), int(b.cpu[i]), bytes(b.payload(i))),
        )
        for b in open_dump(plain).batches()
        for i in range(len(b))
    ]
    assert rows == [
        (e.offset, e.header.seq, e.header.ts_ns, e.header.opcode, e.header.cpu, e.payload)
        for e in expected
    ]


def test_markers_r13_skipped_unless_asked_for(plain: Path) -> None:
    assert seqs(plain) == list(range(20))
    assert len(seqs(plain, markers=True)) == 21


def test_zstd_pipe_file_object_and_package_name_give_the_same(plain: Path, tmp_path: Path) -> None:
    data = plain.read_bytes()
    packed = tmp_path / "a.bin.zst"
    half = len(data) // 2
    frames = [zstandard.compress(data[:half]), zstandard.compress(data[half:])]
    packed.write_bytes(b"".join(frames))
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(data,))
    writer.start()
    assert seqs(fifo) == list(range(20))
    writer.join()
    assert seqs(packed) == seqs(io.BytesIO(data)) == list(range(20))
    assert seqs(io.BytesIO(packed.read_bytes())) == list(range(20))
    assert hmb_trace.open_dump is open_dump


def test_zstd_cut_inside_a_frame_is_an_error(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "a.bin.zst"
    whole = zstandard.compress(plain.read_bytes())
    packed.write_bytes(whole[:-5])
    with pytest.raises(InvalidDataError, match="inside a zstd frame"):
        seqs(packed)


def test_directory_is_one_stream_in_the_order_of_numbers(tmp_path: Path) -> None:
    for number, start in ((10, 40), (2, 20), (1, 0)):
        name = f"dev-{number:06d}-20260101T000000Z.bin"
        (tmp_path / name).write_bytes(some_records(20, start))
    for other in ("json", "rejects", "events.part"):
        (tmp_path / f"dev-000001-20260101T000000Z.{other}").write_text("HMEV")
    dump = open_dump(tmp_path)
    assert seqs(tmp_path) == list(range(60))
    assert summarise(dump).gaps == 0


def test_segments_missing_between_are_a_gap_but_other_files_are_not(tmp_path: Path) -> None:
    first = tmp_path / "dev-000001-20260101T000000Z.bin"
    third = tmp_path / "dev-000003-20260101T000000Z.bin"
    other = tmp_path / "other.bin"
    for path, start in ((first, 0), (third, 40), (other, 900)):
        path.write_bytes(some_records(20, start))
    assert summarise(open_dumps([first, third])).lost == 20
    assert summarise(open_dumps([first, other])).lost == 0


def test_new_epoch_r6_starts_a_sequence_of_its_own(tmp_path: Path) -> None:
    for number, epoch in ((1, 0), (2, 0), (3, 1)):
        path = tmp_path / f"dev-{number:06d}-20260101T000000Z.bin"
        path.write_bytes(some_records(20, 20 * number if epoch == 0 else 3))
        made = Sidecar(
            segment=path.name, number=number, label="dev", device=Device(path="x"), epoch=epoch
        )
        sidecar_path(path).write_bytes(made.encode())
    found = summarise(open_dump(tmp_path))
    assert (found.records, found.gaps, found.sequence_resets) == (60, 0, 0)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    assert summarise(open_dump(tmp_path)).sequence_resets == 1


def test_directory_without_segments(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match="no dump segments"):
        open_dump(tmp_path)


def test_part_r14_zeros_are_the_end(tmp_path: Path) -> None:
    path = tmp_path / "dev-000001-x.bin.part"
    path.write_bytes(some_records() + bytes(8192))
    assert seqs(path) == list(range(20))
    path.write_bytes(bytes(4096))
    assert seqs(path) == []
    sealed = tmp_path / "sealed.bin"
    sealed.write_bytes(some_records() + bytes(8192))
    with pytest.raises(DumpError, match="magic"):
        seqs(sealed)


def test_empty_dump_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "empty.bin"
    path.touch()
    found = summarise(open_dump(path))
    assert (found.records, found.complete, found.first_seq) == (0, True, None)


def test_not_a_dump_names_the_magic(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InvalidDataError, match="magic: found 0x474e5089"):
        open_dump(path)
    ring = tmp_path / "ring"
    testing.RingBuilder(4096).write(ring)
    with pytest.raises(InvalidDataError, match="ring"):
        open_dump(ring)


def test_cut_anywhere_r13(tmp_path: Path) -> None:
    """Cut at every byte: what comes before the cut, then one error with the right offset."""
    data = some_records(8)
    path = tmp_path / "cut.bin"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        expected = read_dump(data[:cut])
        got: list[int] = []
        error = None
        try:
            for batch in open_dump(path).batches():
                got += [int(s) for s in batch.seq]
        except DumpError as caught:
            error = caught
        assert got == [e.header.seq for e in expected.records], cut
        assert (error is None) == expected.complete, cut
        if error:
            assert error.offset == expected.offset
            assert f"byte {expected.offset}" in str(error)
            assert error.exit_code == 65


def test_small_batches_cover_everything_once(plain: Path) -> None:
    data = plain.read_bytes() * 40
    whole = io.BytesIO(data)
    batches = list(open_dump(whole).batches(max_bytes=1))
    assert len(batches) > 1
    assert b"".join(batch.buffer for batch in batches) == data


class _Dribble(io.RawIOBase):
    """Gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 7))


def test_slow_pipe(plain: Path) -> None:
    assert seqs(_Dribble(plain.read_bytes())) == list(range(20))
    assert seqs(_Dribble(zstandard.compress(plain.read_bytes()))) == list(range(20))
    assert seqs(_Dribble(b"")) == []
    with pytest.raises(DumpError, match="found 2 bytes"):
        seqs(_Dribble(b"RE"))


def test_spans_are_record_boundaries(plain: Path) -> None:
    offset = read_dump(plain.read_bytes()).records[13].offset
    assert seqs(plain, spans=[Span(0, offset)]) == list(range(13, 20))
    assert seqs(plain, spans=[Span(0, 0, offset)]) == list(range(13))


def test_partial_goes_on_with_the_next_file(tmp_path: Path) -> None:
    for number, tail in ((1, b"garbage!" * 8), (2, b"")):
        name = f"dev-{number:06d}-20260101T000000Z.bin"
        (tmp_path / name).write_bytes(some_records(5, number * 5 - 5) + tail)
    dump = open_dump(tmp_path)
    got = [int(s) for batch in dump.batches(partial=True) for s in batch.seq]
    assert got == list(range(10))
    assert [problem.segment for problem in dump.problems] == [0]


def test_field_select_and_to_bytes(tmp_path: Path) -> None:
    records = [testing.record(i, i.to_bytes(8, "little") + b"xyz") for i in range(10)]
    batch = next(open_dump(io.BytesIO(testing.dump(records))).batches())
    assert batch.field(0, "<u8").tolist() == list(range(10))
    assert batch.field(8, "S3").tolist() == [b"xyz"] * 10
    picked = batch.select(batch.seq % 3 == 0)
    assert picked.to_bytes() == b"".join(records[::3])
    assert bytes(picked.payload(1)) == (3).to_bytes(8, "little") + b"xyz"
    assert bytes(picked.record(1)) == records[3]
    with pytest.raises(ValueError, match="beyond"):
        batch.field(8, "<u8")


def test_tally_counts(plain: Path) -> None:
    tally = Tally()
    walker = Walker(tally=tally)
    open_dump(plain).scan(walker)
    records = read_dump(plain.read_bytes()).records
    ops = np.bincount([e.header.opcode for e in records], minlength=5)
    assert tally.opcode_records[:5].tolist() == ops.tolist()
    assert int(tally.opcode_bytes.sum()) == sum(len(e.payload) for e in records)
    assert int(tally.interval_log2[1]) == 19  # neighbours are 1 ns apart
    assert int(tally.payload_log2[0]) == sum(not e.payload for e in records)

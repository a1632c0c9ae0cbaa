# SPDX-License-Identifier: Apache-2.0
"""The parts of hmb-trace top: the tail of a growing segment, rates over time, frames of text."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.errors import InputOutputError
from hmb_trace.top.frame import ASCII, UNICODE, Framer, glyphs_for, spark
from hmb_trace.top.model import Model
from hmb_trace.top.sources import Sample, source_of
from hmb_trace.top.tail import LAST, Seen, Tail, find_record, written_size
from tests.conftest import require_module

RESERVED = b"\0" * (1 << 20)


def records(count: int, start: int = 0, size: int = 24) -> list[bytes]:
    return [
        testing.record(
            start + i,
            bytes([i % 251 + 1]) * size,
            ts_ns=1000 * (start + i),
            opcode=i % 3 + 1,
            cpu=i % 2,
        )
        for i in range(count)
    ]


def seqs(seen: Seen) -> list[int]:
    return [int(seq) for seq in seen.last.seq] if seen.last is not None else []


# ---- the tail


def test_tail_counts_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "a-000001-20260101T000000Z.bin.part"
    first, second = testing.dump(records(9)), testing.dump([testing.marker(9), *records(6, 9)])
    path.write_bytes(first + RESERVED)
    tail = Tail()
    assert tail.look(str(path)).records == 9
    assert tail.look(str(path)).new_bytes == 0
    path.write_bytes(first + second + RESERVED)
    seen = tail.look(str(path))
    assert (seen.records, seen.new_bytes, seen.skipped) == (6, len(second), 0)
    assert seen.opcodes == {1: 2, 2: 2, 3: 2}
    assert seen.cpus == {0: 3, 1: 3}
    assert seqs(seen) == list(range(9, 15))


def test_tail_takes_no_more_than_its_limit_and_finds_a_record_again(tmp_path: Path) -> None:
    path = tmp_path / "a-000001-20260101T000000Z.bin.part"
    # Payloads that look like records: the middle of one must not be taken for a start.
    decoy = testing.record(7, b"", opcode=99)
    made = [testing.record(i, decoy + bytes([1 + i % 200] * 40), opcode=5) for i in range(4000)]
    whole = testing.dump(made)
    path.write_bytes(whole[:0] + RESERVED)
    tail = Tail(limit=64 << 10)
    tail.look(str(path), 0)
    path.write_bytes(whole + RESERVED)
    seen = tail.look(str(path), len(whole))
    assert seen.new_bytes == len(whole)
    assert seen.skipped == len(whole) - (64 << 10)
    assert set(seen.opcodes) == {5}
    assert 0 <= (64 << 10) - seen.records * len(made[0]) < len(made[0])
    assert seqs(seen) == list(range(4000 - LAST, 4000))


def test_tail_reads_a_segment_to_its_end_and_goes_on_in_the_next(tmp_path: Path) -> None:
    one, two = (str(tmp_path / f"a-00000{n}-20260101T000000Z.bin.part") for n in (1, 2))
    Path(one).write_bytes(testing.dump(records(5)) + RESERVED)
    tail = Tail()
    assert tail.look(one).records == 5
    with Path(one).open("r+b") as file:  # what sealing does: written, cut, renamed
        file.write(testing.dump(records(8)))
        file.truncate()
    Path(one).rename(tmp_path / "a-000001-20260101T000000Z.bin")
    Path(two).write_bytes(testing.dump(records(4, 8)) + RESERVED)
    seen = tail.look(two)
    assert seen.records == 3 + 4
    assert seqs(seen) == list(range(8, 12))
    assert tail.look(None).records == 0
    assert tail.look(str(tmp_path / "gone")).records == 0
    assert tail.look(two).records in (0, 4)


def test_tail_waits_at_a_page_that_is_not_written_yet(tmp_path: Path) -> None:
    path = tmp_path / "a-000001-20260101T000000Z.bin.part"
    made = testing.dump(records(200))
    path.write_bytes(made[:5000] + RESERVED)
    tail = Tail()
    before = tail.look(str(path), len(made)).records  # the daemon counts more than is there
    path.write_bytes(made + RESERVED)
    assert 80 <= before < 100
    assert before + tail.look(str(path), len(made)).records in (199, 200)


@pytest.mark.parametrize("length", [0, 8, 32, 56, 8192, 100_000])
def test_written_size_ends_before_the_zeros(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\1" * length + RESERVED)
    with path.open("rb") as file:
        assert written_size(file.fileno()) == length


def test_find_record_in_a_cut() -> None:
    made = testing.dump(records(10))
    size = len(made) // 10
    assert find_record(made) == 0
    assert find_record(made[8:]) == size - 8
    decoy = testing.record(7, b"", opcode=99)
    real = [testing.record(i, decoy + b"x" * 40) for i in range(5)]
    assert find_record(testing.dump(real)[32:]) == len(real[0]) - 32  # not the payload's
    assert find_record(b"\0" * 4096) is None
    assert find_record(b"abc") is None


# ---- the model


def sample(at: float, **fields: Any) -> Sample:
    made = Sample("running", "shm:/x", at=at, pid=1, ring_size=1 << 20, head=0, tail=0)
    return replace(made, **{"records": 0, "bytes": 0, "lost": 0, "gaps": 0, **fields})


def pushed(*samples: Sample) -> Model:
    model = Model()
    for one in samples:
        model.push(one)
    return model


def test_rates_are_differences_over_time() -> None:
    model = pushed(sample(10.0, records=100, bytes=1000), sample(12.0, records=300, bytes=5000))
    assert (model.record_rate, model.byte_rate) == (100.0, 2000.0)
    assert pushed(sample(1.0)).record_rate is None
    assert pushed(sample(1.0, records=50), sample(2.0, records=10)).record_rate == 0.0


def test_sampled_counts_stand_for_everything_written() -> None:
    seen = Seen(records=10, opcodes={1: 8, 2: 2}, cpus={0: 10}, new_bytes=1000, skipped=750)
    model = pushed(sample(0.0), sample(2.0, seen=seen))
    assert model.sampled
    assert model.opcodes.by_rate() == [(1, 16.0), (2, 4.0)]  # 10 of 40 seen, in 2 seconds
    model.push(sample(4.0))
    assert model.opcodes.rates == {1: 8.0, 2: 2.0}  # they fade


def test_log_takes_each_entry_once_and_tells_what_the_source_does_not() -> None:
    entry = {"timestamp": "2026-01-01T10:11:12.5Z", "level": "warning", "event": "gap", "lost": 4}
    model = pushed(sample(0.0, log=[entry]), sample(1.0, log=[entry]))
    assert list(model.log) == [("10:11:12", "warning", "gap lost=4")]
    model.lost_source("/x: the daemon has gone")
    model.lost_source("/x: the daemon has gone")
    model.push(sample(2.0, log=[entry]))
    assert [text for _, _, text in model.log][1:] == ["the daemon has gone", "it is back"]
    bare = pushed(replace(sample(0.0), head=4096), replace(sample(1.0), head=64))
    assert [text for _, _, text in bare.log] == ["the ring was initialised again"]


# ---- frames


def busy_model() -> Model:
    made = testing.dump(records(40))
    seen = Seen(
        records=40, opcodes={n: 100 - n for n in range(30)}, cpus=dict.fromkeys(range(6), 9)
    )
    seen.new_bytes = len(made)
    entry = {
        "timestamp": "2026-01-01T10:11:12.5Z",
        "level": "error",
        "event": "disk",
        "x": "a\x1b[2J",
    }
    fields: dict[str, Any] = {
        "spool_size": 1 << 24,
        "spool_fill": 1 << 20,
        "spool_most": 1 << 21,
        "uptime": 93784.0,
        "segment": "x\x1b]0;evil\x07",
        "segment_bytes": 5000,
        "sealed": 3,
        "disk": "No space",
        "ring_flags": 0x81,
        "ring_most": 1 << 19,
        "epoch": 2,
        "lost": 7,
        "unknown_losses": 1,
    }
    return pushed(sample(0.0), sample(1.0, seen=seen, log=[entry], **fields))


@pytest.mark.parametrize("width", [1, 20, 71, 72, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 24, 60])
def test_every_frame_fits_its_screen(width: int, height: int) -> None:
    lines = Framer().frame(busy_model(), width, height)
    assert 0 < len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    assert all(line.plain.isprintable() for line in lines)


def test_a_frame_of_80_by_24_says_everything() -> None:
    text = "\n".join(line.plain for line in Framer().frame(busy_model(), 80, 23))
    for word in (
        *("shm:/x", "OVERFLOWED", "0x80", "RUNNING", "up 1d 2:03:04", "ring ", "at most 50%"),
        *("spool", "6.2% ", "lost     7 + 1 unknown", "epoch 2", "No space", "3 sealed"),
        *("0x0000", "others", "cpu0", "log", r"disk x=a\x1b[2J"),
    ):
        assert word in text, word


def test_names_come_from_the_catalog() -> None:
    catalog = Catalog("x", {0: Event(0, "NAND\x1b_READ")})
    text = "\n".join(line.plain for line in Framer(catalog).frame(busy_model(), 80, 23))
    assert r"NAND\x1b_READ" in text


def test_plain_characters_where_the_terminal_has_no_others() -> None:
    assert glyphs_for("ascii") is glyphs_for(None) is glyphs_for("nonsense") is ASCII
    assert glyphs_for("utf-8") is UNICODE
    lines = Framer(glyphs=ASCII).frame(busy_model(), 100, 30)
    assert all(line.plain.isascii() for line in lines)


def test_curves_are_scaled_to_their_maximum() -> None:
    assert spark([0, 1, 2, 8], 4, UNICODE.ramp) == "▁▁▂█"
    assert spark([5, 1, 8], 2, UNICODE.ramp) == "▁█"
    assert spark([0, 0], 9, UNICODE.ramp) == "▁▁"
    assert spark([], 9, UNICODE.ramp) == spark([1.0], 0, UNICODE.ramp) == ""


# ---- the application


class Scripted:
    """A source that gives what it is told to."""

    def __init__(self) -> None:
        self.taken = 0
        self.broken = False

    def sample(self) -> Sample:
        if self.broken:
            raise InputOutputError("/x: the daemon has gone")
        self.taken += 1
        return sample(float(self.taken), records=1000 * self.taken)

    def close(self) -> None:
        pass


def test_app_pauses_survives_its_source_and_quits() -> None:
    require_module("textual", "ui")
    from hmb_trace.top.app import Top  # noqa: PLC0415 - optional

    source = Scripted()
    app = Top(source, Framer(), 0.05)

    async def until(condition: Any) -> None:
        for _ in range(400):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("waited too long")

    async def session() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: app._model.record_rate == 1000.0)
            source.broken = True
            await until(lambda: app._model.gone)
            source.broken = False
            await until(lambda: not app._model.gone)
            await pilot.press("minus")
            assert app._interval == 0.1
            await pilot.press("space")
            assert app._paused
            await pilot.press("q")

    asyncio.run(session())
    assert app._ended.is_set()


def test_source_of_a_directory_and_a_ring(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    source = source_of(str(tmp_path / "set"))
    assert source.sample().problem == "no segment yet"
    name = "x-000001-20260101T000000Z.bin.part"
    (tmp_path / "set" / name).write_bytes(testing.dump(records(7)) + RESERVED)
    found = source.sample()
    assert (found.state, found.segment, found.records) == ("writing", name, 7)
    source.close()
    builder = testing.RingBuilder(4096)
    (tmp_path / "ring").write_bytes(bytes(builder.region()))
    ring = source_of(str(tmp_path / "ring"))
    assert (ring.sample().ring_size, ring.sample().unread) == (4096, 0)
    ring.close()

# SPDX-License-Identifier: Apache-2.0
"""The record browser, driven without a terminal; and its index."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.cli import main
from hmb_trace.dumps.account import account
from hmb_trace.dumps.dump import DumpError, open_dump
from hmb_trace.dumps.timeaxis import firmware_axis
from hmb_trace.query.expression import Expression
from hmb_trace.query.select import Selection
from hmb_trace.text.listing import Listing, Style
from hmb_trace.view.browse import RecordIndex
from tests.conftest import require_module
from tests.unit.exporting import CATALOG, record, rows, write_set


def seqs(index: RecordIndex, first: int, count: int) -> list[int]:
    return [int(seq) for batch in index.rows(first, count) for seq in batch.seq]


def test_index_numbers_the_selected_records(tmp_path: Path) -> None:
    made = rows(5000)
    write_set(tmp_path / "set", made)
    dump = open_dump(tmp_path / "set")
    index = RecordIndex(dump)
    index.build()
    assert (index.count, index.done) == (5000, True)
    assert seqs(index, 1660, 20) == list(range(1660, 1680))  # over a file's end
    assert seqs(index, 4990, 50) == list(range(4990, 5000))
    picked = RecordIndex(dump, Selection(where=[Expression("die == 2", CATALOG)]))
    picked.build()
    expected = [row.seq for row in made if row.fields.get("die") == 2]
    assert picked.count == len(expected)
    assert seqs(picked, 100, 100) == expected[100:200]


def test_index_finds_places_and_keeps_what_precedes_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    records = [testing.record(i + 10 * (i >= 70), b"x" * (i % 30)) for i in range(100)]
    path.write_bytes(testing.dump(records) + b"garbage!" * 5)
    index = RecordIndex(open_dump(path))
    with pytest.raises(DumpError):
        index.build()
    assert (index.count, index.done) == (100, True)
    assert index.number_at(0, index.breaks[0].offset) == 70
    assert index.number_at(0, 0) == 0
    assert index.number_at(0, 1 << 40) == 99


def test_index_finds_sequence_numbers_and_moments(tmp_path: Path) -> None:
    # A sequence that wraps, has a gap, and starts again; piece after piece of the file.
    numbers = [*range(2**32 - 3000, 2**32), *range(9000), *range(9500, 12000), *range(5, 40)]
    path = tmp_path / "a.bin"
    path.write_bytes(
        testing.dump(testing.record(seq, b"x" * 200, ts_ns=10 * i) for i, seq in enumerate(numbers))
    )
    index = RecordIndex(open_dump(path))
    index.build()
    assert len(index._pieces) > 3
    for seq in (2**32 - 3000, 2**32 - 1, 0, 8999, 9500, 11999):
        assert index.number_of_seq(seq) == numbers.index(seq)
    assert index.number_of_seq(9200) is None
    for ts_ns, number in (
        (0, 0),
        (1, 1),
        (70_000, 7000),
        (70_001, 7001),
        (10**12, index.count - 1),
    ):
        assert index.number_of_time(ts_ns) == number


def test_notes_beside_records_say_what_is_missing(tmp_path: Path) -> None:
    require_module("textual", "ui")
    from hmb_trace.view.viewer import notes_of  # noqa: PLC0415 - needs the extra

    path = tmp_path / "a.bin"
    times = [(0, 5 * 10**9), (1, 5 * 10**9), (9, 6 * 10**9), (10, 10**9)]
    path.write_bytes(testing.dump(testing.record(seq, ts_ns=ts) for seq, ts in times))
    notes = notes_of(account(open_dump(path)))
    assert notes[0, 64].startswith("7 lost before (")
    assert notes[0, 96] == "the clock was set: 6000000000 -> 1000000000 ns"


def drive(path: Path, keys: list[str]) -> dict[str, Any]:
    """Press keys in the viewer; what it shows at the end."""
    require_module("textual", "ui")
    from textual.widgets import Static  # noqa: PLC0415 - optional

    from hmb_trace.view.viewer import Viewer  # noqa: PLC0415 - optional

    async def session() -> dict[str, Any]:
        app = Viewer(open_dump(path), Listing(Style(), CATALOG), firmware_axis)
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot, app)
            for key in keys:
                await pilot.press(key)
            await settle(pilot, app)
            return {
                "status": str(app.query_one("#status", Static).render()),
                "record": str(app.query_one("#record", Static).render()),
                "cursor": app._list.cursor,
                "line": app._list._line(app._list.cursor),
            }

    async def settle(pilot: Any, app: Viewer) -> None:
        while not app._index.done:
            await pilot.pause(0.01)
        app._tick()
        await pilot.pause()

    return asyncio.run(session())


def test_viewer_moves_filters_and_shows_the_record(tmp_path: Path) -> None:
    made = rows(2000)
    path = tmp_path / "a.bin"
    left_out = {500, 501}
    path.write_bytes(testing.dump(record(row) for row in made if row.seq not in left_out))
    shown = drive(path, ["down", "down", "up"])
    assert "2 of 1,998 records, 1 gaps" in shown["status"]
    assert "seq 1 " in shown["record"]
    assert shown["line"].split()[2] == "1"
    shown = drive(path, ["G"])
    assert shown["cursor"] == 1997
    shown = drive(path, ["n"])
    assert "seq 502 " in shown["record"]
    shown = drive(path, ["slash", *"cpu==3", "enter"])
    third = [row for row in made if row.cpu == 3 and row.seq not in left_out]
    assert f"of {len(third):,} records" in shown["status"]
    assert f"seq {third[0].seq} " in shown["record"]
    shown = drive(path, ["colon", *"#700", "enter"])
    assert "seq 700 " in shown["record"]
    shown = drive(path, ["colon", *f"{made[900].ts_ns}", "enter"])
    assert f"ts_ns {made[900].ts_ns} " in shown["record"]
    shown = drive(path, ["colon", *"#500", "enter", "escape", "down"])
    assert shown["cursor"] == 1  # it was left out: nothing to go to
    begin = next(i for i, row in enumerate(made) if row.opcode == 1)
    shown = drive(path, ["down"] * begin)
    assert f"lba                  {made[begin].fields['lba']}" in shown["record"]


def test_view_needs_a_terminal_and_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(testing.record(0))
    assert main(["view", str(path)]) == 2
    assert main(["view", "-"]) == 2
    assert main(["view", str(tmp_path / "none")]) == 66
    err = capfd.readouterr().err
    assert err.count("\n") == 3
    assert "needs a terminal" in err

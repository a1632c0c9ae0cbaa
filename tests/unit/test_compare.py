# SPDX-License-Identifier: Apache-2.0
"""hmb-trace diff: what chance explains is not told, what was planted is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.cli import main
from hmb_trace.compare.blocks import BLOCKS, Blocked, Clockwork
from hmb_trace.compare.findings import Losses
from hmb_trace.compare.measure import BUCKETS, bucket_edge, bucket_of
from hmb_trace.compare.run import compare_captures
from hmb_trace.compare.significance import adjusted_p

CATALOG = """
name = "c"
[[event]]
opcode = 1
name = "READ"
kind = "begin"
pair = "READ_DONE"
key = "die"
field = [{ name = "die", type = "u16" }, { name = "lba", type = "u32" }]
[[event]]
opcode = 2
name = "READ_DONE"
kind = "end"
pair = "READ"
key = "die"
field = [{ name = "die", type = "u16" }, { name = "status", type = "u16" }]
[[event]]
opcode = 3
name = "TICK"
"""


def records(
    seed: int, *, slow_die: int = -1, rate: float = 1.0, bit: int = 0, rows: int = 6000
) -> Iterator[dict[str, object]]:
    """Reads of eight dies, one after the other, and ticks now and then."""
    random = np.random.default_rng(seed)
    ts = 1000.0
    for i in range(rows // 2):
        die = int(random.integers(8))
        ts += float(random.exponential(2000)) / rate
        lba = int(random.integers(1 << 20)) | bit
        yield {
            "opcode": 1,
            "ts_ns": int(ts),
            "payload": die.to_bytes(2, "little") + b"\0\0" + lba.to_bytes(4, "little"),
        }
        ts += float(random.normal(500, 50)) * (1.1 if die == slow_die else 1.0)
        yield {"opcode": 2, "ts_ns": int(ts), "payload": die.to_bytes(2, "little") + b"\0\0"}
        if i % 50 == 0:
            yield {"opcode": 3, "ts_ns": int(ts), "payload": b""}


def write(path: Path, rows: Iterator[dict[str, object]], *, skip: range = range(0)) -> str:
    """A dump of these records; those in `skip` are lost."""
    made = [
        testing.record(seq, row["payload"], ts_ns=row["ts_ns"], opcode=row["opcode"])
        for seq, row in enumerate(rows)
        if seq not in skip
    ]
    path.write_bytes(b"".join(made))
    return str(path)


@pytest.fixture(scope="module")
def catalog_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("catalog") / "c.toml"
    path.write_text(CATALOG)
    return str(path)


def test_blocks_merge_without_losing_a_count() -> None:
    clock, counts = Clockwork(), Blocked()
    clock.on_merge(counts.merge)
    total = 5 * BLOCKS * clock.rows + 17
    left = total
    while left:
        step = min(left, clock.room())
        counts.add("x", clock.block, float(step))
        clock.advance(step)
        left -= step
    column = counts.get("x")[:, 0]
    assert column.sum() == total and BLOCKS // 2 <= clock.whole < BLOCKS
    assert set(column[: clock.whole]) == {clock.rows}


def test_buckets_are_found_by_their_edges() -> None:
    for bucket in range(1, BUCKETS - 16):
        edge = bucket_edge(bucket)
        if edge < 1 << 50:  # beyond, doubles round
            assert bucket_of(np.array([edge - 1, edge], "u8")).tolist() == [bucket - 1, bucket]


def test_noise_is_no_difference_and_a_shift_is_one() -> None:
    random = np.random.default_rng(1)
    base, new = random.normal(size=(300, 40)), random.normal(size=(300, 40))
    assert adjusted_p(base, new)[1].min() > 0.01
    new[7] += 3
    statistics, p = adjusted_p(base, new)
    assert np.flatnonzero(p <= 0.01).tolist() == [7] and statistics[7] > 5


def test_a_wandering_level_is_not_mistaken_for_a_difference() -> None:
    random = np.random.default_rng(2)
    alarms = 0
    for _ in range(20):
        noise = random.normal(size=(2, 50, 80))
        for i in range(1, 80):  # each block is like the one before it
            noise[:, :, i] += 0.5 * noise[:, :, i - 1]
        alarms += bool((adjusted_p(noise[0, :, 40:], noise[1, :, 40:])[1] <= 0.01).any())
    assert alarms <= 4  # 20 without the correction


def test_two_seeds_of_the_same_firmware_are_the_same(tmp_path: Path, catalog_file: str) -> None:
    base, new = write(tmp_path / "a.bin", records(1)), write(tmp_path / "b.bin", records(2))
    assert main(["diff", base, new, "--catalog", catalog_file, "-q"]) == 0


@pytest.mark.parametrize(
    ("change", "kind", "subject"),
    [
        ({"slow_die": 3}, "duration", "READ die 3"),
        ({"rate": 0.7}, "rate", "all records"),
        ({"bit": 4}, "bit", "READ.lba"),
    ],
)
def test_what_was_planted_is_found_first(
    change: dict[str, float], kind: str, subject: str, tmp_path: Path
) -> None:
    base = write(tmp_path / "a.bin", records(1))
    new = write(tmp_path / "b.bin", records(2, **change))  # type: ignore[arg-type] # one of three
    found = compare_captures([base], [new], Catalog.parse(CATALOG.encode()))
    assert [(f.kind, f.subject) for f in found.findings][:1] == [(kind, subject)]


def test_an_event_that_only_one_side_has(
    tmp_path: Path, catalog_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write(tmp_path / "a.bin", (r for r in records(1) if r["opcode"] != 3))
    new = write(tmp_path / "b.bin", records(2))
    assert main(["diff", base, "--", new, "--catalog", catalog_file, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "changed"
    assert [(f["kind"], f["subject"]) for f in found["findings"]] == [("new", "TICK")]
    assert main(["diff", new, base, "--catalog", catalog_file, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "gone"


def test_what_may_have_been_lost_is_never_called_gone(tmp_path: Path, catalog_file: str) -> None:
    base = write(tmp_path / "a.bin", records(1))
    ticks = {i for i, r in enumerate(records(2)) if r["opcode"] == 3}
    new = write(tmp_path / "b.bin", records(2), skip=ticks)  # type: ignore[arg-type] # `in` is all it needs
    catalog = Catalog.parse(CATALOG.encode())
    found = compare_captures([base], [new], catalog)
    assert not [f for f in found.findings if f.kind == "gone"]
    assert any("TICK" in text for text in found.unsure)


def test_losses_hide_only_as_many_as_were_lost() -> None:
    assert Losses(100).could_hide(90) and not Losses(100).could_hide(1000)
    assert Losses(0, exact=False).could_hide(1e9)


def test_sides_are_parted_by_two_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "a.bin", records(1, rows=10))
    for words in ([one], [one, one, one], [one, "--"], ["--", one], [one, "--", one, "--", one]):
        assert main(["diff", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_page_stands_alone_and_spares_its_inputs(tmp_path: Path, catalog_file: str) -> None:
    base = write(tmp_path / "a.bin", records(1))
    new = write(tmp_path / "b.bin", records(2, slow_die=3))
    page = tmp_path / "d.html"
    assert main(["diff", base, new, "--catalog", catalog_file, "-o", str(page)]) == 1
    text = page.read_text()
    assert "READ die 3" in text and "src=" not in text and "<script" not in text
    before = Path(base).read_bytes()
    assert main(["diff", base, new, "-o", base]) == 2 and Path(base).read_bytes() == before

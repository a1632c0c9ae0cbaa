# SPDX-License-Identifier: Apache-2.0
"""Retention: by number and not by any clock, never the newest, at a constant cost a seal."""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from hmb_daemon.collecting import spool_size
from hmb_daemon.writing import names, retention
from hmb_daemon.writing.compression import Compressor
from hmb_daemon.writing.retention import Retention

HOUR = 3600 * 10**9
START = 1_767_225_600 * 10**9  # 2026-01-01


def segment(folder: Path, number: int, size: int = 1000, started_ns: int = START) -> str:
    name = names.segment_name("x", number, started_ns)
    (folder / f"{name}.bin").write_bytes(bytes(size))
    return name


def left(folder: Path) -> list[int]:
    return [found.number for found in names.scan(folder, "x")]


def kept(folder: Path, now: list[int], **limits: int) -> Retention:
    made = Retention(folder, "x", structlog.get_logger(), now_ns=lambda: now[0])
    made.max_total_size, made.max_age_ns = limits.get("size", 0), limits.get("age", 0)
    return made


def test_a_wall_clock_that_was_wrong_deletes_nothing(tmp_path: Path) -> None:
    """Captured before the clock was set, before and after a step, and touched: none is old."""
    now = [5 * HOUR]
    segment(tmp_path, 1, started_ns=0)
    for number in range(2, 6):
        name = segment(tmp_path, number)
        os.utime(tmp_path / f"{name}.bin", (0, 0))
    subject = kept(tmp_path, now, age=7 * 24 * HOUR)
    subject.scan()
    subject.retain()
    assert left(tmp_path) == [1, 2, 3, 4, 5]


def test_age_counts_on_the_clock_that_nobody_sets(tmp_path: Path) -> None:
    now = [0]
    subject = kept(tmp_path, now, age=HOUR)
    for number in range(1, 4):
        subject.sealed(segment(tmp_path, number), number)
        now[0] += HOUR // 2 - 1
    now[0] -= HOUR // 4
    subject.retain()
    assert left(tmp_path) == [2, 3]
    now[0] += 10 * HOUR
    subject.retain()
    assert left(tmp_path) == [3]  # the newest stays, however old it is


def test_old_captures_are_old_against_the_newest(tmp_path: Path) -> None:
    segment(tmp_path, 1)
    segment(tmp_path, 2, started_ns=START + 48 * HOUR)
    subject = kept(tmp_path, [0], age=24 * HOUR)
    subject.scan()
    subject.retain()
    assert left(tmp_path) == [2]


def test_size_counts_every_file_and_spares_the_newest(tmp_path: Path) -> None:
    for number in range(1, 5):
        name = segment(tmp_path, number, 100)
        (tmp_path / f"{name}.rejects").write_bytes(bytes(5000))
    subject = kept(tmp_path, [0], size=11_000)
    subject.scan()
    subject.retain()
    assert left(tmp_path) == [3, 4]
    subject.max_total_size = 1
    subject.retain()
    assert left(tmp_path) == [4]
    assert subject.make_room() is None


def test_a_seal_costs_the_same_with_10000_segments(tmp_path: Path, monkeypatch: object) -> None:
    """No scan, and a look at the files of the new segment only."""
    subject = kept(tmp_path, [0], size=1 << 40)
    for number in range(10_000):
        subject._append(retention.Kept(number, f"gone-{number}", 10, 0))
    looked: list[str] = []
    measure = subject._size
    subject._size = lambda name: looked.append(name) or measure(name)  # type: ignore[method-assign,func-returns-value]
    subject.sealed(segment(tmp_path, 10_001), 10_001)
    subject.retain()
    assert len(looked) == 1


def test_what_was_recovered_late_takes_its_place_in_the_order(tmp_path: Path) -> None:
    subject = kept(tmp_path, [0], size=1500)
    subject.sealed(segment(tmp_path, 8), 8)
    subject.sealed(segment(tmp_path, 7), 7)
    subject.retain()
    assert left(tmp_path) == [8]


def test_a_failed_compression_leaves_no_file_and_is_tried_again(tmp_path: Path) -> None:
    subject = kept(tmp_path, [0])
    name = segment(tmp_path, 1)
    subject.sealed(name, 1)
    compressor = Compressor(tmp_path, subject, structlog.get_logger())
    compressor.level = 1
    (tmp_path / f"{name}.bin.zst.tmp").mkdir()  # in the way
    compressor.offer(name)
    compressor.finish()
    compressor.run()
    assert (tmp_path / f"{name}.bin").exists()
    (tmp_path / f"{name}.bin.zst.tmp").rmdir()
    compressor._offer_failed()
    compressor.finish()
    compressor.run()
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.bin.zst"]


def test_default_spool_knows_cgroup_and_siblings(tmp_path: Path) -> None:
    gib, mib = 1 << 30, 1 << 20
    assert spool_size.default_size(24 * gib, 100 * gib) == 768 * mib
    assert spool_size.default_size(256 * mib, 100 * gib) == 32 * mib
    free = 2 * gib
    for _ in range(6):  # services that begin one after the other in one /run
        size = spool_size.default_size(24 * gib, free)
        assert 0 < size <= free // 4
        free -= size
    (tmp_path / "memory.max").write_text("268435456\n")
    assert spool_size.memory_limit(tmp_path) == 256 * mib
    (tmp_path / "memory.max").write_text("max\n")
    assert spool_size.memory_limit(tmp_path) > 0


def test_labels_never_become_the_same() -> None:
    given = ["실험가", "시험나", "...", "é", "run 1/2", "run 1:2", "-rf", "a" * 85 + "b", "a" * 120]
    clean = [names.clean_label(label) for label in given]
    assert len(set(clean)) == len(given)
    assert all(label and label[0] not in "-." and "/" not in label for label in clean)
    assert all(len(label.encode()) < 120 for label in clean)
    assert clean[0] == "실험가"

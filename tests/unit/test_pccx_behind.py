# SPDX-License-Identifier: Apache-2.0
"""Writing in a thread: order, what is copied and what is lent, errors, memory."""

from __future__ import annotations

import mmap
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hmb_trace.pccx.behind import WriteBehind


def mapped_file(path: Path, size: int) -> mmap.mmap:
    path.write_bytes(random.Random(1).randbytes(1 << 20) * (size >> 20))
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)


def resident(path: Path) -> int:
    """Bytes of the file's mappings that are in this process's memory."""
    maps = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    found = (re.search(r"Rss:\s+(\d+) kB", text) for text in maps)
    return sum(int(match[1]) << 10 for match in found if match)


def test_pieces_of_all_kinds_keep_their_order(tmp_path: Path) -> None:
    dice = random.Random(2)
    mapped = mapped_file(tmp_path / "in", 9 << 20)
    expected = bytearray(b"head")
    with (tmp_path / "out").open("x+b") as stream:
        stream.write(b"head")
        behind = WriteBehind(stream)
        for _ in range(40):
            begin, size = dice.randrange(8 << 20), dice.choice([0, 1, 4095, 100_000, 5 << 20])
            piece = memoryview(mapped)[begin : begin + size]
            kind = dice.choice([memoryview, bytes, bytearray])
            behind.write(memoryview(kind(piece)))
            expected += piece
        behind.close()
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize("make", [bytearray, lambda size: mmap.mmap(-1, size)])
def test_what_may_change_is_copied(
    tmp_path: Path, make: Callable[[int], bytearray | mmap.mmap]
) -> None:
    size = 12 << 20  # three pieces, so that the last waits when it is overwritten
    data = make(size)
    with (tmp_path / "out").open("x+b") as stream:
        behind = WriteBehind(stream)
        behind.write(memoryview(data).toreadonly())
        data[-1000:] = b"x" * 1000
        behind.close()
    assert (tmp_path / "out").read_bytes() == bytes(size)
    assert data[-1000:] == b"x" * 1000, "memory of others was given back"


def test_a_patch_comes_after_everything_before(tmp_path: Path) -> None:
    with (tmp_path / "out").open("x+b") as stream:
        behind = WriteBehind(stream)
        behind.write(memoryview(bytes(20 << 20)))
        behind.patch(5, b"late")
        behind.write(memoryview(b"end"))
        behind.close()
    written = (tmp_path / "out").read_bytes()
    assert (written[:5], written[5:9], written[-3:]) == (bytes(5), b"late", b"end")
    assert len(written) == (20 << 20) + 3


def test_pages_of_a_mapped_file_are_given_back(tmp_path: Path) -> None:
    source = tmp_path / "in"
    mapped = mapped_file(source, 64 << 20)
    with (tmp_path / "out").open("x+b") as stream:
        behind = WriteBehind(stream)
        for begin in range(0, len(mapped), 1 << 20):
            behind.write(memoryview(mapped)[begin : begin + (1 << 20)])
        behind.close()
    assert resident(source) < 8 << 20
    assert (tmp_path / "out").read_bytes() == source.read_bytes()


def test_an_error_comes_out_of_a_later_call_and_nothing_hangs(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with (tmp_path / "out").open("rb") as stream:
        behind = WriteBehind(stream)
        with pytest.raises(OSError, match="Bad file descriptor"):
            for _ in range(100):
                behind.write(memoryview(b"x"))
        with pytest.raises(OSError, match="Bad file descriptor"):
            behind.close()

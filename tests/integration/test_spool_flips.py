# SPDX-License-Identifier: Apache-2.0
"""One changed byte in a killed daemon's spool: never a duplicate, never a wrong record unsaid."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Programs
from tests.integration.daemonlib import Rig, segments, sidecars

RECORDS = 1500
SMALL = ("--spool-size", "1MiB", "--log-level", "error", "--fsync", "never")
HEADER = 65536
RECORD = "<IIQHBBH"
USED = (*range(64), *range(4096, 5000), *range(8192, 10600), *range(12288, 14500))
SEED = int(os.environ.get("HMB_TRACE_TORTURE_SEED", "20"))
# Where the daemon dies: with a pass in spool and ring, with all of it in the spool only, with
# some of it in the file, sealing.
STEPS = ("collector-after-commit", "segment-opened", "data-written", "seal-committed")


@dataclass
class Left:
    """What a killed daemon left, put back before every flip."""

    rig: Rig
    kept: Path

    @property
    def spool(self) -> Path:
        return next((self.rig.folder / "spool").glob("*.spool"))

    def restore(self) -> None:
        for name in ("spool", "out"):
            shutil.rmtree(self.rig.folder / name)
            shutil.copytree(self.kept / name, self.rig.folder / name)
        with self.rig.ring_file.open("r+b") as file:  # in place: the inode is its identity
            file.write((self.kept / "ring.bin").read_bytes())

    def flip(self, at: int, mask: int) -> None:
        self.restore()
        with self.spool.open("r+b") as file:
            (byte,) = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte ^ mask]), at)
        self.rig.drain(*SMALL)


@pytest.fixture(params=STEPS)
def left(request: pytest.FixtureRequest, programs: Programs, tmp_path: Path) -> Left:
    rig = Rig(programs, tmp_path / "left")
    rig.folder.mkdir()
    rig.fill("--count", str(RECORDS), "--ring-size", "256KiB", "--payload", "0..120")
    kill = {"HMB_TRACE_TEST_KILL": request.param}
    rig.daemon("--once", *SMALL, env=kill).expect(-signal.SIGKILL)
    kept = tmp_path / "kept"
    shutil.copytree(rig.folder, kept)
    return Left(rig, kept)


def seqs(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Every record: number and bytes; wrap markers not."""
    for path in segments(folder):
        data, at = path.read_bytes(), 0
        while at < len(data):
            _, seq, _, _, _, flags, length = struct.unpack_from(RECORD, data, at)
            size = 32 + (0 if flags & 1 else length + -length % 8)
            if not flags & 1:
                yield seq, data[at : at + size]
            at += size


def expect_honest(left: Left, truth: dict[int, bytes], where: str) -> None:
    out = left.rig.out
    found = list(seqs(out))
    numbers = [seq for seq, _ in found]
    assert len(set(numbers)) == len(numbers), f"{where}: a record twice"
    sides = sidecars(out)
    assert sum(side.duplicates for side in sides) == 0, where
    whole = all(side.complete and not side.lost for side in sides)
    wrong = [seq for seq, record in found if truth.get(seq) != record]
    assert not wrong, f"{where}: record {wrong[:3]} is not what was emitted"
    if whole:
        assert sorted(numbers) == sorted(truth), f"{where}: whole, and yet records are missing"


def try_all(left: Left, places: Iterable[int]) -> None:
    chance = random.Random(SEED)
    left.flip(0, 0)
    truth = dict(seqs(left.rig.out))
    assert sorted(truth) == list(range(min(truth), min(truth) + RECORDS))
    for at in places:
        left.flip(at, 1 << chance.randrange(8))
        expect_honest(left, truth, f"byte {at}")


def sampled(size: int, count: int) -> list[int]:
    """Half of it where the header says something, half of it anywhere."""
    chance = random.Random(SEED + 1)
    return [*chance.sample(USED, count // 2), *(chance.randrange(size) for _ in range(count // 2))]


def where_bytes_stand(left: Left) -> list[int]:
    """Places in the spool that are not zero: header, sums, journal and data."""
    return [at for at, byte in enumerate(left.spool.read_bytes()) if byte]


def test_a_flipped_byte_is_never_published_as_whole(left: Left) -> None:
    chance = random.Random(SEED + 2)
    places = sampled(left.spool.stat().st_size, 16)
    try_all(left, [*places, *chance.sample(where_bytes_stand(left), 10)])


@pytest.mark.soak
def test_every_byte_of_the_header_and_thousands_elsewhere(left: Left) -> None:
    chance = random.Random(SEED + 3)
    standing = [at for at in where_bytes_stand(left) if at >= HEADER]
    unused = range(14500, HEADER, 64)  # nothing reads it
    try_all(left, [*USED, *unused, *chance.choices(standing, k=5000 // len(STEPS))])

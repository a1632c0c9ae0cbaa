# SPDX-License-Identifier: Apache-2.0
"""errors_table.py, held against the daemon: every errno into every step, and what became of it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hmb_daemon.errors_table import Answer, Step, answer

from hmb_trace.dumps import sidecar
from hmb_trace.testing import RingBuilder
from tests.conftest import ROOT, native_build

ERRNOS = ("EIO", "ENOSPC", "EDQUOT", "EFBIG", "EINVAL", "ENOSYS", "EMFILE", "ESTALE")
PAYLOAD = 1000
RECORDS = 600


@dataclass(frozen=True)
class Place:
    """A system call at a step."""

    call: str
    pattern: str
    step: Step
    errnos: tuple[str, ...] = ERRNOS
    first: int = 1

    @property
    def id(self) -> str:
        return f"{self.call}({self.pattern or '-'})"


PLACES = (
    Place("open", ".bin.part", Step.OPEN),
    Place("open", ".events.part", Step.OPEN),
    Place("flock", ".bin.part", Step.LOCK),
    Place("fallocate", ".bin.part", Step.RESERVE),
    # EINVAL of a direct write is the way a file system says that it has none: see the sink's tests.
    Place("pwrite", ".bin.part", Step.WRITE, tuple(n for n in ERRNOS if n != "EINVAL"), first=2),
    Place("pwrite", ".events.part", Step.EVENT_LOG, first=3),
    Place("fdatasync", ".bin.part", Step.SYNC),
    Place("fdatasync", ".events.part", Step.SYNC),
    Place("ftruncate", ".bin.part", Step.TRUNCATE),
    Place("pread", ".bin.part", Step.SIDECAR),
    Place("pread", ".events.part", Step.SIDECAR),
    Place("open", "Z.json.tmp", Step.RENAME),
    Place("pwrite", "Z.json.tmp", Step.RENAME),
    Place("fsync", "Z.json.tmp", Step.RENAME),
    Place("rename", "Z.json$", Step.RENAME),
    Place("rename", ".bin$", Step.RENAME),
    Place("fsync", "/out$", Step.SYNC_DIRECTORY),
    Place("unlink", ".events.part", Step.RENAME),
    Place("unlink", "Z.json$", Step.DELETE, ("EIO", "EROFS", "ESTALE")),
    Place("open", ".zst.tmp", Step.COMPRESS, ("EIO", "ENOSPC", "EMFILE", "EROFS")),
    Place("write", ".zst.tmp", Step.COMPRESS, ("EIO", "ENOSPC", "EFBIG")),
    Place("fsync", ".zst.tmp", Step.COMPRESS, ("EIO", "ENOSPC")),
    Place("mmap", "", Step.OPEN, ("ENOMEM", "EAGAIN"), first=2),
    Place("pthread_create", "", Step.THREAD, ("EAGAIN",), first=2),
)
CASES = [(place, name) for place in PLACES for name in place.errnos]


@dataclass
class Ran:
    """What came of a case."""

    code: int
    stderr: str
    out: Path

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stderr.splitlines() if line[:1] == "{"]

    def sides(self) -> list[sidecar.Sidecar]:
        return [sidecar.load(path) for path in sorted(self.out.glob("*.json"))]


def ring_bytes() -> tuple[bytes, bytes]:
    """A ring full of records, and the dump that it makes."""
    ring = RingBuilder(1 << 20)
    for number in range(RECORDS):
        ring.append(bytes([number & 255]) * PAYLOAD)
    return ring.region(), ring.expected_dump


def prepare(folder: Path, place: Place, name: str, region: bytes) -> dict[str, Any]:
    """One case for the server."""
    folder.mkdir()
    (folder / "ring").write_bytes(region)
    args = ["--device", folder / "ring", "--output-dir", folder / "out", "--once"]
    args += ["--spool-dir", folder / "spool", "--spool-size", "4MiB", "--rotate-size", "256KiB"]
    if place.step is Step.COMPRESS:
        args += ["--compress", "zstd:1"]
    if place.step is Step.DELETE:
        args += ["--max-total-size", "1KiB"]
    fault = f"{place.call}:{getattr(errno, name)}:{place.first}:1:{place.pattern}"
    return {
        "fault": fault,
        "args": [str(arg) for arg in args],
        "stderr": str(folder / "log"),
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Place, str], Ran]:
    """All cases, run once."""
    preload = native_build("faults.so")
    base = tmp_path_factory.mktemp("errors")
    region, _ = ring_bytes()
    folders = {case: base / str(number) for number, case in enumerate(CASES)}
    cases = [prepare(folders[case], *case, region) for case in CASES]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.fault_server"],
        input="\n".join(json.dumps(case) for case in cases),
        env={**os.environ, "LD_PRELOAD": str(preload)},
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        timeout=240,
        check=True,
    )
    codes = json.loads(done.stdout)
    return {
        case: Ran(code, (folders[case] / "log").read_text(), folders[case] / "out")
        for case, code in zip(CASES, codes, strict=True)
    }


def stream(found: Ran) -> bytes:
    """The dump set's bytes."""
    import zstandard  # noqa: PLC0415 - only here

    parts = []
    for path in sorted([*found.out.glob("*.bin"), *found.out.glob("*.bin.zst")]):
        data = path.read_bytes()
        packed = path.suffix == ".zst"
        parts.append(zstandard.ZstdDecompressor().decompress(data) if packed else data)
    return b"".join(parts)


TOLD = {
    Answer.RETRY: "disk-error",
    Answer.DISK_FULL: "disk-full",
    Answer.NEXT_SEGMENT: "file-too-large",
    Answer.SYNC_FAILED: "fsync-failed",
}
TOLD_LATER = {
    Step.COMPRESS: "compression-failed",
    Step.DELETE: "retention-failed",
    Step.THREAD: "thread-failed",
}


@pytest.mark.parametrize(
    ("place", "name"), CASES, ids=[f"{place.id}-{name}" for place, name in CASES]
)
def test_errno_at_a_step_gets_the_tables_answer(
    ran: dict[tuple[Place, str], Ran], place: Place, name: str
) -> None:
    found = ran[place, name]
    assert found.code == 0, found.stderr
    assert "Traceback" not in found.stderr
    _, expected = ring_bytes()
    kept = stream(found)
    if place.step is Step.DELETE:
        assert expected.endswith(kept) and kept
    else:
        assert kept == expected
    expects = answer(place.step, getattr(errno, name))
    told = TOLD_LATER[place.step] if expects is Answer.LATER else TOLD.get(expects)
    events = found.events()
    if told:
        assert told in events, found.stderr
    if expects is Answer.WITHOUT:
        assert not {"disk-error", "disk-full"} & set(events)
        assert place.step is Step.RESERVE or events.count("not-supported") == 1
    synced = [r.kind for side in found.sides() for r in side.reasons or []]
    assert synced == (["sync-failed"] if expects is Answer.SYNC_FAILED else [])
    assert all(side.complete for side in found.sides()) is (expects is not Answer.SYNC_FAILED)


def test_the_table_prints(ran: dict[tuple[Place, str], Ran]) -> None:
    """errno x step -> answer, and what the daemon said; shown by pytest -s."""
    names = sorted({name for _, name in CASES})
    print("\n" + " ".join([f"{'':24}", *(f"{name:13}" for name in names)]))
    for place in PLACES:
        cells = [
            answer(place.step, getattr(errno, name)).value if (place, name) in ran else ""
            for name in names
        ]
        print(" ".join([f"{place.id:24}", *(f"{cell:13}" for cell in cells)]))

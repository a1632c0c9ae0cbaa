# SPDX-License-Identifier: Apache-2.0
"""The spool file: who may use it, what a torn one means, commits that come back as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hmb_daemon.spool import file as spool
from hmb_daemon.spool.file import Manifest, Spool, WriterState

from hmb_trace.errors import (
    BusyError,
    CannotCreateError,
    InvalidDataError,
    PermissionDeniedError,
)

MANIFEST = Manifest(device="shm:/x", identity="id", directory="/out", prefix="x", ring_size=4096)


def make(folder: Path) -> Spool:
    fd = spool.prepare_directory(folder, private=True)
    return Spool.create(folder, "x.spool", fd, 1 << 20, MANIFEST)


def reopen(folder: Path) -> Spool | None:
    return Spool.open_leftover(folder, "x.spool", spool.prepare_directory(folder, private=True))


def test_commit_and_manifest_survive(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    first = make(folder)
    state = WriterState(
        segment=3,
        file_offset=5,
        rejects_offset=6,
        events_offset=7,
        started_ns=8,
        phase=1,
        cause=9,
        name="a-name",
        planned=10,
        epoch=11,
        planned_counters=bytes(range(200)),
        base_counters=bytes(reversed(range(200))),
    )
    first.commit_writer(state)
    first.close(remove=False)
    again = reopen(folder)
    assert again is not None
    assert again.read_writer() == state
    assert again.manifest() == MANIFEST
    assert again.identity == "id"
    again.close(remove=True)
    assert list(folder.iterdir()) == []


def test_no_leftover_is_none(tmp_path: Path) -> None:
    assert reopen(tmp_path / "spool") is None


def test_torn_spool_is_removed(tmp_path: Path) -> None:
    """Killed while it was made: nothing had been collected."""
    folder = tmp_path / "spool"
    make(folder).close(remove=False)
    (folder / "x.spool").write_bytes(bytes(100))
    assert reopen(folder) is None
    assert list(folder.iterdir()) == []


def test_damaged_spool_is_kept_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    make(folder).close(remove=False)
    with (folder / "x.spool").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 4)
    with pytest.raises(InvalidDataError, match="another version"):
        reopen(folder)
    assert (folder / "x.spool").exists()


def test_spool_in_use_is_busy(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    first = make(folder)
    with pytest.raises(BusyError, match=str(os.getpid())):
        reopen(folder)
    first.close(remove=True)


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "x.spool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotCreateError):
        reopen(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(CannotCreateError):
        spool.prepare_directory(link, private=True)


def test_private_directory_must_be_ours_alone(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(PermissionDeniedError, match="0755"):
        spool.prepare_directory(folder, private=True)
    os.close(spool.prepare_directory(folder, private=False))


def test_no_room_is_said_with_the_size(tmp_path: Path) -> None:
    fd = spool.prepare_directory(tmp_path / "spool", private=True)
    with pytest.raises(CannotCreateError, match="--spool-size"):
        Spool.create(tmp_path / "spool", "x.spool", fd, 1 << 60, MANIFEST)
    assert list((tmp_path / "spool").iterdir()) == []


def test_names_differ_for_different_rings_of_one_name(tmp_path: Path) -> None:
    one, two = spool.file_name(str(tmp_path / "a/ring")), spool.file_name(str(tmp_path / "b/ring"))
    assert one != two
    assert spool.file_name("shm:/ring") == spool.file_name("/dev/shm/ring")


def test_default_size_is_bounded() -> None:
    assert 64 << 20 <= spool.default_size() <= 1 << 30

# SPDX-License-Identifier: Apache-2.0
"""The writer's thread, held against a spool that a test fills."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
from hmb_daemon.settings import Settings
from hmb_daemon.spool import file as spool
from hmb_daemon.spool.file import Manifest, Spool
from hmb_daemon.writing import sidecar_builder as describe
from hmb_daemon.writing.output import Output
from hmb_daemon.writing.retry import GiveUpError
from hmb_daemon.writing.sink import BOUNCE, Sink
from hmb_daemon.writing.writer import Writer

from hmb_trace._core import ffi
from hmb_trace.dumps.sidecar import Device

MANIFEST = Manifest(device="shm:/x", identity="id", directory="/out", prefix="x", ring_size=4096)
ORIGIN = describe.Origin(label="x", device=Device(path="shm:/x"), ring_size=4096)


@pytest.fixture
def filled(tmp_path: Path) -> Spool:
    """A spool with more than two buffers of bytes in it."""
    fd = spool.prepare_directory(tmp_path / "spool", private=True)
    opened = Spool.create(tmp_path / "spool", "x.spool", fd, 4 * BOUNCE, MANIFEST)
    commit = ffi.new("struct hmb_commit *")
    commit.data_head = 2 * BOUNCE + 4096
    opened.commit(commit)
    return opened


def test_writer_that_gives_up_leaves_nobody_behind_who_reads_the_spool(
    tmp_path: Path, filled: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is unmapped next: the thread that fills the second buffer must be through."""
    begun, go_on, copied = threading.Event(), threading.Event(), threading.Event()
    move = Sink._move

    def slow_move(sink: Sink, buffer: Any, *args: Any) -> int:
        if buffer is sink._spare:
            begun.set()
            go_on.wait(5)
            copied.set()
        return move(sink, buffer, *args)

    def full(fd: int, data: Any, offset: int) -> int:
        begun.wait(5)
        threading.Timer(0.2, go_on.set).start()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Sink, "_move", slow_move)
    output = Output(directory=tmp_path / "out", prefix="x", pwrite=full)
    settings = Settings(device="shm:/x")
    writer = Writer(filled, output, settings, describe.Origins(ORIGIN), structlog.get_logger())
    writer.retrier.give_up.set()
    writer.start()
    writer.join(10)
    assert isinstance(writer.failure, GiveUpError)
    assert begun.is_set()
    assert copied.is_set()
    filled.close(remove=True)

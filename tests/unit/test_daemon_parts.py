# SPDX-License-Identifier: Apache-2.0
"""The daemon's small parts: the sink, names, configuration types, events, rejects."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
import xxhash
from hmb_daemon import settings as config
from hmb_daemon.settings import FSYNC_ALWAYS, FSYNC_NEVER, FSYNC_SEAL, Mode
from hmb_daemon.spool import journal as events
from hmb_daemon.spool.causes import Cause
from hmb_daemon.writing import names, output
from hmb_daemon.writing import sidecar_builder as describe
from hmb_daemon.writing.event_log import LogEntry
from hmb_daemon.writing.housekeeping import Housekeeper
from hmb_daemon.writing.retention import Retention
from hmb_daemon.writing.sink import BOUNCE, PAGE, Sink

from hmb_trace._core import ffi, lib
from hmb_trace.dumps import rejects, sidecar
from hmb_trace.errors import InvalidDataError, UsageError


class Source:
    """A struct hmb_spool whose data is a buffer of the test's."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._buffer = ffi.new("uint8_t[]", data + data)
        self.c = ffi.new("struct hmb_spool *")
        self.c.data, self.c.data_size = self._buffer, len(data)


def fill(sink: Sink, source: Source, rng: random.Random, *, stop: int) -> None:
    while sink.taken < stop:
        size = min(sink.room, stop - sink.taken, rng.randrange(1, 2 * BOUNCE))
        sink.take(source.c, sink.taken, size)
        ahead = min(stop - sink.taken, rng.randrange(1, BOUNCE + 1))
        if not sink.room and ahead and rng.random() < 0.8:
            sink.take_ahead(source.c, sink.taken, ahead)
        again(sink.flush)
        if rng.random() < 0.3:
            again(sink.flush_odd)


def again(action: Any) -> None:
    while True:
        try:
            action()
        except OSError:
            continue
        return


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_sink_writes_every_byte_once_whatever_the_disk_does(
    tmp_path: Path, direct: bool, seed: int
) -> None:
    """Short writes, errors at random; closed and resumed in the middle of a page."""
    rng = random.Random(seed)
    source = Source(rng.randbytes(5 * BOUNCE + 12345))
    total, middle = len(source.data), 2 * BOUNCE + 777

    def shaky(fd: int, data: Any, offset: int) -> int:
        if rng.random() < 0.2:
            raise OSError(rng.choice([errno.EIO, errno.ENOSPC]), "no")
        if rng.random() < 0.3:
            return os.pwrite(fd, data[: max(PAGE, len(data) // 3 & ~(PAGE - 1))], offset)
        return os.pwrite(fd, data, offset)

    path = tmp_path / "data"
    for start, stop in ((0, middle), (middle, total)):
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        sink = Sink(fd, start, direct=direct, pwrite=shaky, reserve=1 << 30)
        if start:
            sink.resume()
        sink.go_direct()
        fill(sink, source, rng, stop=stop)
        again(sink.flush_odd)
        assert sink.in_file == sink.taken == stop
        os.ftruncate(fd, sink.in_file)
        digest = sink.hash.hexdigest()
        sink.close()
        os.close(fd)
    assert path.read_bytes() == source.data
    assert digest == xxhash.xxh3_64_hexdigest(source.data)


def test_sink_falls_back_where_direct_writes_are_refused(tmp_path: Path) -> None:
    source = Source(bytes(range(256)) * 64)
    calls = []

    def refuse_direct(fd: int, data: Any, offset: int) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return os.pwrite(fd, data, offset)

    fd = os.open(tmp_path / "data", os.O_CREAT | os.O_RDWR)
    sink = Sink(fd, 0, direct=True, pwrite=refuse_direct)
    sink.go_direct()
    sink.take(source.c, 0, 5000)
    sink.flush()
    sink.flush_odd()
    assert not sink.direct
    assert (tmp_path / "data").read_bytes()[:5000] == source.data[:5000]
    os.close(fd)


def test_sink_does_without_a_second_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on tasks that is reached while a capture runs must not end it."""

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = Source(random.Random(1).randbytes(3 * BOUNCE + 999))
    fd = os.open(tmp_path / "data", os.O_CREAT | os.O_RDWR)
    sink = Sink(fd, 0, direct=False)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    while sink.taken < len(source.data):
        if sink.room:
            sink.take(source.c, sink.taken, min(sink.room, len(source.data) - sink.taken))
        sink.take_ahead(source.c, sink.taken, 4096)
        monkeypatch.undo()  # there are threads again: what was queued must not come twice
        sink.flush()
    sink.close()
    os.close(fd)
    assert (tmp_path / "data").read_bytes() == source.data
    assert sink.hash.hexdigest() == xxhash.xxh3_64_hexdigest(source.data)


def test_names_order_by_number_and_clean_labels() -> None:
    assert names.label_of_device("/dev/nvme0-hmbtrace") == "nvme0"
    assert names.label_of_device("shm:/ring") == "ring"
    assert names.clean_label("../a b\n").startswith("a_b-")
    assert names.clean_label("run-7") == "run-7"
    name = names.segment_name("x", 7, 1_700_000_000 * 10**9)
    assert name == "x-000007-20231114T221320Z"


def test_scan_sees_only_segments_of_the_label(tmp_path: Path) -> None:
    for name in (
        *("x-000002-20231114T221320Z.bin", "x-000010-20231114T221320Z.bin.zst"),
        *("x-000011-20231114T221320Z.bin.part", "x-000001-20231114T221320Z.json"),
        *("xy-000099-20231114T221320Z.bin", "x-y-000099-20231114T221320Z.bin", "x-1.bin"),
    ):
        (tmp_path / name).touch()
    assert [found.number for found in names.scan(tmp_path, "x")] == [2, 10, 11]
    assert names.next_number(tmp_path, "x") == 12
    assert names.next_number(tmp_path, "z") == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("never", FSYNC_NEVER), ("seal", FSYNC_SEAL), ("always", FSYNC_ALWAYS)),
        *(("1s", 10**9), ("250ms", 250 * 10**6), ("0", FSYNC_ALWAYS)),
    ],
)
def test_fsync_words_and_times(text: str, value: int) -> None:
    assert config.parse_fsync(text) == value


@pytest.mark.parametrize(("text", "level"), [("none", 0), ("zstd", 3), ("zstd:19", 19)])
def test_compress_levels(text: str, level: int) -> None:
    assert config.parse_compress(text) == level


@pytest.mark.parametrize("text", ["gzip", "zstd:0", "zstd:99", "zstd:x"])
def test_compress_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="zstd"):
        config.parse_compress(text)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output_dir": Path("a"), "output": "b"},
        {"output": "-", "mode": Mode.SNAPSHOT},
        {"output": "x", "compress": 3},
    ],
)
def test_settings_that_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        config.Settings(device="x", **options).check()


def test_output_probe_leaves_nothing(tmp_path: Path) -> None:
    output.prepare_directory(tmp_path / "a/b")
    assert list((tmp_path / "a/b").iterdir()) == []


def packed(kind: int, *, epoch: int, pos: int, body: bytes = b"", **values: int) -> bytes:
    """One event as the journal holds it, padding included; values: cursor, a, b, c, d."""
    fields = ("cursor", "host_ns", "ts_ns", "seq", "a", "b", "c", "d", "reserved")
    rest = [values.get(name, 0) for name in fields]
    header = events.HEADER.pack(events.MAGIC, kind, 0, len(body), epoch, pos, *rest)
    return header + body + bytes(-len(body) % 8)


def test_events_survive_packing() -> None:
    first = packed(lib.HMB_EV_GAP, epoch=1, pos=64, a=1, b=5, c=3)
    second = packed(lib.HMB_EV_REJECT, epoch=1, pos=64, cursor=128, body=b"12345")
    one, two = events.parse(first + second, 1000)
    assert (one.start, one.end, two.start) == (1000, 1096, 1096)
    assert one.detail == {"seq_before": 1, "seq_after": 5, "lost": 3, "rejected": 0}
    assert (two.body, two.end) == (b"12345", 1096 + 96 + 8)
    with pytest.raises(events.TornEventError):
        list(events.parse(first + second[:100]))


def test_lists_stay_bounded_and_say_so() -> None:
    lists = describe.Lists(0)
    for number in range(describe.LIST_MAX + 5):
        (event,) = events.parse(packed(lib.HMB_EV_GAP, epoch=0, pos=number * 8))
        lists.add(LogEntry.of_event(event))
        (event,) = events.parse(packed(lib.HMB_EV_INDEX, epoch=0, pos=number * 8))
        lists.add(LogEntry.of_event(event))
    assert len(lists.gaps) == describe.LIST_MAX and lists.truncated
    assert 2000 < len(lists.index) <= 4097
    offsets = [entry.offset for entry in lists.index]
    assert offsets == sorted(offsets)


def test_causes_have_the_names_of_the_contract() -> None:
    said = {cause.text for cause in Cause}
    assert {"rotate-size", "rotate-time", "rotate-request", "host-died", "disk-full"} <= said


def test_rejects_file_round_trip_and_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "x.rejects"
    path.write_bytes(
        rejects.pack(1, 0, 64, 1, b"abc") + rejects.pack(3, 2, 128, 2, b"") + b"\x48\x52"
    )
    found = rejects.read(path)
    one, two = next(found), next(found)
    assert (one.reason, one.cursor, one.data) == ("damaged", 64, b"abc")
    assert (two.reason, two.epoch, two.offset) == ("unknown-flags", 2, 48)
    with pytest.raises(InvalidDataError, match="byte 88"):
        next(found)


def test_sidecar_paths_and_unknown_keys(tmp_path: Path) -> None:
    for name in ("a.bin", "a.bin.zst", "a.bin.part", "a"):
        assert sidecar.sidecar_path(tmp_path / name) == tmp_path / "a.json"
    side = sidecar.Sidecar(
        segment="a.bin", number=1, label="a", device=sidecar.Device(path="/dev/x")
    )
    text = side.encode().replace(b'"number": 1', b'"number": 1, "later": [1]')
    assert sidecar.decode(text, "a.json") == side
    with pytest.raises(InvalidDataError, match="number"):
        sidecar.decode(text.replace(b'"number": 1', b'"number": "one"'), "a.json")
    with pytest.raises(InvalidDataError, match="upgrade"):
        sidecar.decode(text.replace(b'"version": 1', b'"version": 9'), "a.json")


def test_housekeeping_goes_on_where_nobody_may_change_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's system call filter refuses even to stand further back."""

    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    name = names.segment_name("x", 1, 0)
    (tmp_path / (name + names.BIN)).write_bytes(bytes(1000))
    keeper = Housekeeper(tmp_path, "x", structlog.get_logger())
    keeper.apply(config.Settings(device="x", compress=1))
    keeper.start()
    keeper.stop(10)
    assert [path.suffix for path in tmp_path.iterdir()] == [".zst"]


def test_retention_counts_a_segment_once_that_was_killed_while_compressed(tmp_path: Path) -> None:
    """Both copies of the newest one: it must stay, and its size is not that of two."""
    name = "x-000001-20260101T000000Z"
    (tmp_path / f"{name}.bin").write_bytes(bytes(3000))
    (tmp_path / f"{name}.bin.zst").write_bytes(bytes(1000))
    retention = Retention(tmp_path, "x", structlog.get_logger())
    retention.scan()
    retention.max_total_size = 100
    retention.retain()
    assert retention.deleted == 0
    assert (tmp_path / f"{name}.bin").exists()

# SPDX-License-Identifier: Apache-2.0
"""Ring, spool and collector of a capture: begun afresh, or where an earlier daemon was killed."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hmb_daemon import damaged, describe, events, names, spool, sysio, testhook
from hmb_daemon.causes import Cause
from hmb_daemon.config import Settings
from hmb_daemon.orders import Request, WriterOptions
from hmb_daemon.spool import DamagedSpoolError, EarlierRing, Manifest, Spool
from hmb_daemon.writer import Writer
from hmb_trace._core import ffi, lib
from hmb_trace.errors import InputOutputError
from hmb_trace.ring import Ring, invalid_cursors
from hmb_trace.sidecar import Device

_MS = 10**6
_INVALID_NS = 100 * _MS
_BATCH_MAX = 256 << 10
_BATCH_MIN = 8 << 10
_INDEX_MAX = 512 << 10
_INDEX_MIN = 4 << 10
_IDLE_MAX_NS = 50 * _MS
_IDLE_MIN_NS = 100_000
COLLECTOR_NICE = -15
_POPULATE_CHUNK = 4 << 20
_SYSFS = Path("/sys/class/nvme")


def _shown(path: str) -> str:
    """A path for the sidecar, which is UTF-8; a file's name need not be."""
    return path.encode(errors="backslashreplace").decode()


def device_of(ring: Ring) -> Device:
    """What the system knows about the drive behind a ring."""
    kind = "char" if stat.S_ISCHR(os.fstat(ring.fd).st_mode) else "file"
    drive = ring.drive
    said = {}
    for field, attribute in (
        ("serial", "serial"),
        ("model", "model"),
        ("firmware", "firmware_rev"),
    ):
        try:
            said[field] = (_SYSFS / drive / attribute).read_text().strip() if drive else ""
        except OSError:
            said[field] = ""
    return Device(path=_shown(ring.path), kind=kind, identity=ring.identity, **said)


def waits(settings: Settings, ring_size: int) -> tuple[int, int]:
    """Longest waits while active and while idle, ns: half a ring at peak rate bounds both."""
    half = ring_size * 10**9 // (2 * settings.peak_rate)
    idle = max(_IDLE_MIN_NS, min(_IDLE_MAX_NS, half))
    return min(settings.latency, idle), idle


def sustained_rate(ring_size: int, wait_ns: int) -> int:
    """Bytes a second that a ring holds between two looks of the collector."""
    return ring_size * 10**9 // max(1, wait_ns)


def new_collector(settings: Settings, ring: Ring, opened: Spool) -> Any:
    """A struct hmb_collector for the ring and the spool, not yet begun or resumed."""
    c = ffi.new("struct hmb_collector *")
    c.ring, c.spool = ring.c[0], opened.c[0]
    rotate = settings.rotate_size or 1 << 62
    c.options.index_bytes = min(max(rotate // 16, _INDEX_MIN), _INDEX_MAX)
    c.options.keep_unknown_flags = settings.unknown_flags == "keep"
    c.options.stop_on_corrupt = settings.on_corrupt == "stop"
    c.latency_ns, c.idle_ns = waits(settings, int(ring.c.ring_size))
    c.invalid_ns = _INVALID_NS
    c.batch_bytes = min(max(rotate // 8, _BATCH_MIN), _BATCH_MAX)
    c.once = settings.once
    testhook.arm_collector(c)
    return c


def spool_place(settings: Settings) -> tuple[Path, bool]:
    """The spool directory, and whether it must be ours alone."""
    if settings.spool_dir is not None:
        return settings.spool_dir, False
    return spool.default_directory(), not os.environ.get("RUNTIME_DIRECTORY")


def spool_size(settings: Settings, ring_size: int) -> int:
    """Data bytes of a new spool: at least the ring, and room for a few passes."""
    wanted = settings.spool_size or spool.default_size()
    return max(wanted, ring_size, 4 * (_BATCH_MAX + int(lib.hmb_collect_min_data())))


def origins_of(manifest: Manifest, now: describe.Origin) -> describe.Origins:
    """What a leftover's sidecars say: `now`, but of earlier rings what the manifest knows."""
    return describe.Origins(
        now,
        [
            (ring.last_epoch, describe.Origin(manifest.prefix, ring.device, ring.ring_size))
            for ring in manifest.earlier
        ],
    )


def finish_leftover(leftover: Spool, options: WriterOptions, log: Any, cause: Cause) -> Any:
    """Write a leftover's records where they belong and remove it; its last state.

    Raises:
        InputOutputError: they cannot be written there; the spool stays.
    """
    manifest = leftover.manifest()
    to_stream = manifest.single == "-"
    options = replace(
        options,
        # What a stream did not take any more goes to the stream of now, or becomes a segment.
        directory=options.directory if to_stream else Path(manifest.directory),
        prefix=manifest.prefix,
        single="" if to_stream else manifest.single,
        pipe_fd=options.pipe_fd if to_stream else -1,
    )
    origin = describe.Origin(
        label=manifest.prefix,
        device=Device(path=_shown(manifest.device), identity=manifest.identity),
        ring_size=manifest.ring_size,
    )
    writer = Writer(leftover, options, origins_of(manifest, origin), log)
    writer.request(Request(cause, last=True))
    # At a start nobody waits for a disk: say at once what is wrong with it.
    writer.patience.give_up.set()
    try:
        writer.run_to_end()
    except Exception as error:
        leftover.close(remove=False)
        raise InputOutputError(
            f"spool {leftover.path} holds records for {options.directory} that cannot be "
            f"written there: {error}; make that possible, or move the spool away"
        ) from error
    state = ffi.new("struct hmb_state *", leftover.read_commit().state)
    leftover.close(remove=True)
    return state


def finish_without_ring(
    settings: Settings, make_options: Callable[[], WriterOptions], log: Any
) -> None:
    """The ring is not there: seal what an earlier daemon left of it, if anything."""
    directory, private = spool_place(settings)
    if not directory.is_dir():
        return
    fd = spool.prepare_directory(directory, private=private)
    try:
        leftover = Spool.open_leftover(directory, spool.file_name(settings.device), fd)
    except DamagedSpoolError as error:
        # Set aside by the start that has a sidecar to say so in.
        log.error("spool-damaged", error=str(error), action="kept until the ring is there")
        return
    if leftover is not None:
        log.warning("spool-without-ring", spool=str(leftover.path))
        finish_leftover(leftover, make_options(), log, Cause.HANGUP)


class Opener:
    """Opens the spool for a ring and says where the collector goes on."""

    def __init__(
        self,
        settings: Settings,
        ring: Ring,
        options: WriterOptions,
        log: Any,
    ) -> None:
        self._settings = settings
        self._ring = ring
        self._options = options
        self._log = log
        directory, private = spool_place(settings)
        self._directory = directory
        self._private = private
        self._name = spool.file_name(ring.path)
        self.resumed = False
        self.counters_before = events.NO_COUNTERS  # what earlier daemons counted

    def open(self) -> tuple[Spool, Any]:
        """Spool and collector, ready to run.

        Raises:
            BusyError, CannotCreateError, PermissionDeniedError: about the spool.
            InvalidDataError: the ring's cursors are invalid and --once may not wait (R2).
            InputOutputError: an earlier daemon's records cannot be written where they belong.
        """
        carried = None
        leftover = self._leftover()
        if leftover is not None:
            collector = new_collector(self._settings, self._ring, leftover)
            continues = self._continues(leftover, collector)
            if continues and leftover.manifest().fits(self.manifest_for(self._ring)):
                return self._resume(leftover, collector)
            carried = self._finish(leftover, continues=continues)
        return self._fresh(carried)

    def _leftover(self) -> Spool | None:
        fd = spool.prepare_directory(self._directory, private=self._private)
        try:
            return Spool.open_leftover(self._directory, self._name, fd)
        except DamagedSpoolError as error:
            damaged.set_aside(self._directory, self._name, error, self._log)
            return None

    def manifest_for(
        self, ring: Ring, earlier: Sequence[tuple[int, describe.Origin]] = ()
    ) -> Manifest:
        """What stands beside a spool for this ring."""
        options = self._options
        return Manifest(
            device=ring.path,
            identity=ring.identity,
            directory="" if options.pipe_fd >= 0 else str(options.directory.resolve()),
            prefix=options.prefix,
            ring_size=int(ring.c.ring_size),
            single="-" if options.pipe_fd >= 0 else options.single,
            earlier=[
                EarlierRing(last_epoch=last, device=origin.device, ring_size=origin.ring_size)
                for last, origin in earlier
            ],
        )

    def _continues(self, leftover: Spool, collector: Any) -> bool:
        """Whether the spool goes on with this ring; then `tail` is made what it says."""
        if leftover.identity != self._ring.identity[:255]:
            return False
        ring, options = self._ring.c, ffi.addressof(collector.options)
        answer = lib.hmb_spool_continues(leftover.c, ring, options)
        if answer == 2:
            commit = leftover.read_commit()
            testhook.point("recover-before-tail")
            if lib.hmb_ring_store_tail(ring, commit.tail_before, commit.tail_after):
                return False
        return bool(answer)

    def _resume(self, leftover: Spool, collector: Any) -> tuple[Spool, Any]:
        lib.hmb_collector_resume(collector)
        self.resumed = True
        self.counters_before = events.counters_bytes(collector.state.counters)
        state = leftover.read_writer()
        self._log.warning(
            "spool-resumed",
            spool=str(leftover.path),
            bytes=leftover.data_head() - state.data_tail,
            segment=state.name,
        )
        return leftover, collector

    def _finish(self, leftover: Spool, *, continues: bool) -> tuple[Any, bool]:
        """Seal a leftover; the state to carry on with, and whether the ring goes on with it."""
        cause = Cause.RESTART if continues else Cause.REINITIALISED
        state = finish_leftover(leftover, self._options, self._log, cause)
        if not continues:
            lib.hmb_state_next_epoch(state, 0)
        return state, continues

    def _fresh(self, carried: Any) -> tuple[Spool, Any]:
        fd = spool.prepare_directory(self._directory, private=self._private)
        size = spool_size(self._settings, int(self._ring.c.ring_size))
        opened = Spool.create(self._directory, self._name, fd, size, self.manifest_for(self._ring))
        collector = new_collector(self._settings, self._ring, opened)
        try:
            self._begin(collector, opened, carried)
        except BaseException:
            opened.close(remove=True)
            raise
        return opened, collector

    def _begin(self, collector: Any, opened: Spool, carried: Any) -> None:
        deadline = time.monotonic_ns() + _INVALID_NS
        while lib.hmb_collector_begin(collector) == -errno.EILSEQ:
            if self._settings.once:
                raise invalid_cursors(self._ring.path, self._ring.view())
            if time.monotonic_ns() >= deadline:
                lib.hmb_collector_new_epoch(collector, 1)
                break
            time.sleep(0.002)
        if carried is not None:
            self.counters_before = events.counters_bytes(carried[0].counters)
            _carry(collector, opened, *carried)
        number = names.next_number(self._options.directory, self._options.prefix) - 1
        state = opened.read_writer()
        state.segment = number
        state.epoch = int(collector.state.epoch)
        state.base_counters = state.planned_counters = self.counters_before
        opened.commit_writer(state)


def _carry(collector: Any, opened: Spool, old: Any, continues: bool) -> None:
    """Go on with an earlier spool's books in a fresh one."""
    state = collector.state
    state.epoch, state.counters = old.epoch, old.counters
    if continues:
        tail = int(state.tail)
        collector.state = old[0]
        state = collector.state
        state.tail, state.pos, state.index_pos = tail, 0, 0
    commit = opened.read_commit()
    commit.state = collector.state
    opened.commit(commit)


def continue_sequence(collector: Any, opened: Spool, last_seq: int) -> None:
    """R14: count on from the last record of a segment that outlived its host."""
    collector.state.have_seq, collector.state.last_seq = 1, last_seq
    commit = opened.read_commit()
    commit.state = collector.state
    opened.commit(commit)


class Populator:
    """Touches the spool ahead of the collector, which then meets no page faults.

    A fresh tmpfs page costs a fault and 4 KiB of zeroing at its first touch: four times what
    the collector itself needs for the bytes that go there.
    """

    def __init__(self, opened: Spool) -> None:
        self._spool = opened
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="populate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sysio.name_thread("hmb-populate")
        size = self._spool.data_size
        data = int(ffi.cast("uintptr_t", self._spool.c.data))
        for offset in range(0, size, _POPULATE_CHUNK):
            length = min(_POPULATE_CHUNK, size - offset)
            for mapping in (data, data + size):
                if self._stop.is_set() or not sysio.populate(mapping + offset, length):
                    return

    def stop(self) -> None:
        """End it; the spool may be unmapped afterwards."""
        self._stop.set()
        self._thread.join()


class CollectorThread:
    """Runs the C loop; each run ends with one enum hmb_stop, told by a callback."""

    def __init__(self, collector: Any, ended: Callable[[int], None]) -> None:
        self.c = collector
        self._ended = ended
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the C loop runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Run until something is to be decided."""
        self.join()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sysio.name_thread("hmb-collector")
        sysio.prefer_thread(COLLECTOR_NICE)  # firmware waits for nobody
        sysio.real_time_thread()
        self._ended(int(lib.hmb_collector_run(self.c)))

    def join(self) -> None:
        """Wait for the end of a run."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

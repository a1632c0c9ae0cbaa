# SPDX-License-Identifier: Apache-2.0
"""Ring, spool and collector of a capture: begun afresh, or where an earlier daemon was killed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmb_daemon.collecting import spool_size as sizing
from hmb_daemon.collecting.collector import BATCH_MAX, INVALID_NS, new_struct
from hmb_daemon.host import sysio
from hmb_daemon.host import testpoints as testhook
from hmb_daemon.recovery import damaged_spool as damaged
from hmb_daemon.recovery import leftover as leftovers
from hmb_daemon.recovery.leftover import shown
from hmb_daemon.settings import OnCorrupt, Settings, UnknownFlags
from hmb_daemon.spool import file as spool
from hmb_daemon.spool import journal as events
from hmb_daemon.spool.causes import Cause, Note
from hmb_daemon.spool.file import DamagedSpoolError, EarlierRing, Manifest, Spool
from hmb_daemon.writing import names
from hmb_daemon.writing.event_log import Remark
from hmb_daemon.writing.output import Output
from hmb_daemon.writing.sidecar_builder import Origin
from hmb_trace._core import ffi, lib
from hmb_trace.dumps.sidecar import CatalogCopy, Device
from hmb_trace.errors import CannotCreateError, InvalidDataError, from_os_error
from hmb_trace.live.ring import Ring, invalid_cursors
from hmb_trace.units import format_size

_MS = 10**6
_IDLE_MAX_NS = 50 * _MS
_IDLE_MIN_NS = 100_000
_POPULATE_CHUNK = 4 << 20
_KNOWN = 1 << 20  # more than a pass takes
_CATALOG_MAX = 4 << 20
_SYSFS = Path("/sys/class/nvme")


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
    return Device(path=shown(ring.path), kind=kind, identity=ring.identity, **said)


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
    return new_struct(
        ring.c,
        opened.c,
        rotate_size=settings.rotate_size,
        keep_unknown_flags=settings.unknown_flags is UnknownFlags.KEEP,
        stop_on_corrupt=settings.on_corrupt is OnCorrupt.STOP,
        waits=waits(settings, int(ring.c.ring_size)),
        once=settings.once,
    )


def catalog_copy(path: Path | None) -> CatalogCopy | None:
    """What every sidecar keeps of --catalog FILE.

    Raises:
        NoInputError, PermissionDeniedError: it cannot be read. InvalidDataError: no TOML.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_CATALOG_MAX + 1)
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    if len(data) > _CATALOG_MAX:
        raise InvalidDataError(f"{path}: a catalog is at most {format_size(_CATALOG_MAX)}")
    try:
        text = data.decode()
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDataError(f"{path}: not TOML: {error}") from error
    build = found.get("firmware_build", "")
    return CatalogCopy(
        name=shown(path.name),
        firmware_build=build if isinstance(build, str) else str(build),
        sha256=hashlib.sha256(data).hexdigest(),
        text=text,
    )


def least_spool(ring_size: int) -> int:
    """Data bytes below which a spool is of no use: the ring, and room for a few passes."""
    return max(ring_size, 4 * (BATCH_MAX + int(lib.hmb_collect_min_data())))


class CannotAdoptError(Exception):
    """The collector that runs writes for another output, or is another version: it has to end."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self.spool = spool


class _FinishedError(Exception):
    """A leftover that cannot be gone on with was finished: what to carry on with instead."""

    def __init__(self, carried: tuple[Any, bool]) -> None:
        super().__init__()
        self.carried = carried


class Opener:
    """Opens the spool for a ring and says where the collector goes on."""

    def __init__(
        self,
        settings: Settings,
        ring: Ring,
        output: Output,
        log: Any,
    ) -> None:
        self._settings = settings
        self._ring = ring
        self._output = output
        self._log = log
        directory, private = spool.place(settings)
        self._directory = directory
        self._private = private
        self._name = spool.file_name(ring.path)
        self.resumed = False
        self.counters_before = events.NO_COUNTERS  # what earlier daemons counted
        self.remarks: list[Remark] = []  # what the next segment has to say

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
            try:
                return self._go_on(leftover)
            except DamagedSpoolError as error:
                leftover.close(remove=False)
                damaged.set_aside(self._directory, self._name, error, self._log)
            except _FinishedError as finished:
                carried = finished.carried
        return self._fresh(carried)

    def _adopt(self, leftover: Spool, collector: Any) -> tuple[Spool, Any]:
        """A collector runs on it: its last commit says where, and goes on saying it."""
        wanted = self.manifest_for(self._ring)
        if leftover.unbound:  # a collector that began before any daemon was there
            leftover.bind(wanted)
            self._number(leftover, collector)
        elif not leftover.manifest().fits(wanted) or not self._speaks(leftover, collector):
            raise CannotAdoptError(leftover)
        return self._resume(leftover, collector)

    def _speaks(self, leftover: Spool, collector: Any) -> bool:
        """Whether it is of our version and judges records as we are told to."""
        live = lib.hmb_spool_live(leftover.c)
        if live.layout != lib.hmb_live_layout():
            return False
        theirs, ours = live.shown.options, collector.options
        return bool(
            theirs.keep_unknown_flags == ours.keep_unknown_flags
            and theirs.stop_on_corrupt == ours.stop_on_corrupt
        )

    def _go_on(self, leftover: Spool) -> tuple[Spool, Any]:
        """Resume a leftover.

        Raises:
            DamagedSpoolError: it is not what was collected, and the ring cannot mend it.
            _FinishedError: it was of another ring or another output, and is in its files now.
        """
        collector = new_collector(self._settings, self._ring, leftover)
        if leftover.collected:
            return self._adopt(leftover, collector)
        continues = self._continues(leftover, collector)
        if leftover.unbound:
            leftover.bind(self.manifest_for(self._ring))
            self._number(leftover, collector)
        if continues and leftover.manifest().fits(self.manifest_for(self._ring)):
            return self._resume(leftover, collector)
        raise _FinishedError(self._finish(leftover, continues=continues))

    def _leftover(self) -> Spool | None:
        fd = spool.prepare_directory(self._directory, private=self._private)
        try:
            return Spool.open_leftover(self._directory, self._name, fd)
        except DamagedSpoolError as error:
            damaged.set_aside(self._directory, self._name, error, self._log)
            return None

    def manifest_for(self, ring: Ring, earlier: Sequence[tuple[int, Origin]] = ()) -> Manifest:
        """What stands beside a spool for this ring."""
        output = self._output
        return Manifest(
            device=ring.path,
            identity=ring.identity,
            directory="" if output.pipe_fd >= 0 else str(output.directory.resolve()),
            prefix=output.prefix,
            ring_size=int(ring.c.ring_size),
            single="-" if output.pipe_fd >= 0 else output.single,
            earlier=[
                EarlierRing(last_epoch=last, device=origin.device, ring_size=origin.ring_size)
                for last, origin in earlier
            ],
        )

    def _continues(self, leftover: Spool, collector: Any) -> bool:
        """Whether the spool goes on with this ring; then `tail` is made what it says."""
        if leftover.identity != self._ring.identity[:255]:
            leftover.verify()
            return False
        ring, options = self._ring.c, ffi.addressof(collector.options)
        answer = lib.hmb_spool_continues(leftover.c, ring, options)
        if answer < 0:
            leftover.verify()
            raise DamagedSpoolError(
                f"spool {leftover.path}: its last commit but one is damaged, so that it cannot be "
                "told which records the ring and it both have"
            )
        if answer == 2:
            commit = leftover.read_commit()
            testhook.point("recover-before-tail")
            if lib.hmb_ring_store_tail(ring, commit.tail_before, commit.tail_after):
                return False
        return bool(answer)

    def _resume(self, leftover: Spool, collector: Any) -> tuple[Spool, Any]:
        lib.hmb_collector_resume(collector)
        self.resumed = True
        self.remarks.append(Remark(Note.RESUMED, time.time_ns()))
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
        state, self.remarks = leftovers.finish(
            leftover, self._output, self._settings, self._log, cause
        )
        if continues:
            self.remarks.append(Remark(Note.RESUMED, time.time_ns()))
        else:
            lib.hmb_state_next_epoch(state, 0)
        return state, continues

    def _fresh(self, carried: Any) -> tuple[Spool, Any]:
        opened = self._create()
        collector = new_collector(self._settings, self._ring, opened)
        try:
            self._begin(collector, opened, carried)
        except BaseException:
            opened.close(remove=True)
            raise
        return opened, collector

    def _create(self) -> Spool:
        """A fresh spool; where nobody gave a size, as much as there is room for."""
        least = least_spool(int(self._ring.c.ring_size))
        given = self._settings.spool_size
        size = max(given, least) if given else self._default_size(least)
        while True:
            fd = spool.prepare_directory(self._directory, private=self._private)
            manifest = self.manifest_for(self._ring)
            try:
                return Spool.create(self._directory, self._name, fd, size, manifest)
            except CannotCreateError:
                if given or size <= least:
                    raise
            smaller = max(size // 2, least)
            self._log.warning(
                "spool-smaller",
                wanted=size,
                size=smaller,
                directory=str(self._directory),
                action="free memory there, or give --spool-size or --spool-dir",
            )
            size = smaller

    def _default_size(self, least: int) -> int:
        os.close(spool.prepare_directory(self._directory, private=self._private))
        limit, free = sizing.memory_limit(), sizing.free_in(self._directory)
        size = sizing.default_size(limit, free)
        unbounded = sizing.default_size(limit, 1 << 62)
        if size < unbounded and size < unbounded // 2:
            self._log.warning(
                "spool-smaller",
                wanted=unbounded,
                size=max(size, least),
                free=free,
                directory=str(self._directory),
                action="a quarter of what the file system has left; give --spool-size for another",
            )
        return max(size, least)

    def _begin(self, collector: Any, opened: Spool, carried: Any) -> None:
        deadline = time.monotonic_ns() + INVALID_NS
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
        self._number(opened, collector)

    def _number(self, opened: Spool, collector: Any) -> None:
        """Where the segments of a fresh spool are counted on from."""
        number = names.next_number(self._output.directory, self._output.prefix) - 1
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


def skip_known(collector: Any, opened: Spool, fd: int, size: int) -> int:
    """Hand back what the ring still offers though a file of `size` bytes ends with it.

    After a spool was set aside: a daemon killed before it stored `tail` may have written the
    records all the same.
    """
    start = max(0, size - _KNOWN)
    end = os.pread(fd, size - start, start)
    known = lib.hmb_recover_known(
        ffi.addressof(collector.ring), ffi.addressof(collector.options), end, len(end)
    )
    tail = int(collector.state.tail)
    after = (tail + known) % (1 << 64)
    if known <= 0 or lib.hmb_ring_store_tail(ffi.addressof(collector.ring), tail, after):
        return 0
    commit = opened.read_commit()
    collector.state.tail = commit.tail_before = commit.tail_after = after
    commit.state = collector.state
    opened.commit(commit)
    return int(known)


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
        try:
            self._thread.start()
        except RuntimeError:  # no thread to be had: the collector meets the faults itself
            self._stop.set()

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
        if self._thread.ident is not None:
            self._thread.join()

# SPDX-License-Identifier: Apache-2.0
"""The C engine behind plain Python values."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any

from hmb_producer_sim._engine import ffi, lib
from hmb_producer_sim.workload import Event, Workload
from hmb_trace.errors import UsageError

SLICE, REACHED, STOPPED, END = range(4)
_WRAPS = {
    "marker": lib.HMB_SIM_WRAP_MARKER,
    "straddle": lib.HMB_SIM_WRAP_STRADDLE,
    "seq-marker": lib.HMB_SIM_WRAP_SEQ_MARKER,
}
UNLIMITED = (1 << 64) - 1


@dataclass(frozen=True)
class Settings:
    """How the firmware behaves; sizes in bytes, times in nanoseconds, rates per second."""

    ring_size: int
    rate: int | None = None
    seed: int = 1
    start_seq: int = 0
    start_cursor: int = 0
    start_ts_ns: int = 1_000_000_000
    block: bool = False
    wrap: str = "marker"
    drops_keep_seq: bool = False
    hash: bool = True
    real_clock: bool = False
    keep_log: bool = False
    keep_unknown_flags: bool = False
    renumber: bool = False
    by_clock: bool = False  # records come when the firmware clock says so


@dataclass
class _Tables:
    """C arrays and the Python objects that keep them alive."""

    events: Any
    fields: Any
    event_count: int
    field_count: int
    keep: list[Any] = field(default_factory=list)


def _fill_event(slot: Any, event: Event, first_field: int) -> None:
    slot.opcode, slot.weight = event.opcode, event.weight
    slot.flags = 2 if event.truncated else 0
    slot.cpus = event.cpus
    slot.payload_min, slot.payload_max = event.payload
    slot.first_field, slot.fields = first_field, len(event.fields)
    slot.end = event.end
    slot.duration_min, slot.duration_max = event.duration


def _tables(events: tuple[Event, ...]) -> _Tables:
    count = sum(len(event.fields) for event in events)
    made = _Tables(
        ffi.new("struct hmb_sim_event[]", len(events) or 1),
        ffi.new("struct hmb_sim_field[]", count or 1),
        len(events),
        count,
    )
    at = 0
    for index, event in enumerate(events):
        _fill_event(made.events[index], event, at)
        for one in event.fields:
            slot = made.fields[at]
            slot.offset, slot.size = one.offset, one.size
            slot.kind = getattr(lib, f"HMB_SIM_FIELD_{one.kind}")
            slot.min, slot.max = one.minimum, one.maximum
            at += 1
    return made


def _source(workload: Workload, replay: memoryview | None) -> int:
    if replay is not None:
        return int(lib.HMB_SIM_REPLAY)
    return int(lib.HMB_SIM_FTL if workload.source == "ftl" else lib.HMB_SIM_TABLE)


def _as_dict(counts: Any) -> dict[str, int]:
    return {name: int(getattr(counts, name)) for name, _ in ffi.typeof(counts[0]).fields}


def slice_ring_size(mark: bytes, slice_size: int, dma_addr: int) -> int:
    """The size of the ring in a slice that carries this mark; 0: it is no slice for tracing."""
    return int(lib.hmb_sim_slice_ring(ffi.from_buffer("uint8_t[]", mark), slice_size, dma_addr))


def make_slice_mark(slice_size: int, dma_addr: int) -> bytes:
    """The mark that a host writes into the last bytes of a slice."""
    mark = ffi.new("uint8_t[64]")
    lib.hmb_sim_make_mark(mark, slice_size, dma_addr)
    return bytes(ffi.buffer(mark))


class Engine:
    """Firmware that writes into a mapped region. Call close() before the region is unmapped."""

    def __init__(
        self,
        memory: mmap.mmap | bytearray,
        settings: Settings,
        workload: Workload,
        replay: memoryview | None = None,
    ) -> None:
        """Write the ring header.

        Raises:
            UsageError: a ring size that is no power of two, a cursor that is no multiple of 8.
        """
        self.ring_size = settings.ring_size
        self._lent: Any = None  # memory of a host, see settle()
        self._shadow: Any = None
        self._base = ffi.from_buffer("uint8_t[]", memory, require_writable=True)
        self._replay = ffi.from_buffer("uint8_t[]", replay) if replay is not None else None
        self._tables = _tables(workload.events)
        config = self._config(settings, workload)
        config.source = _source(workload, replay)
        self._sim = lib.hmb_sim_new(config)
        if self._sim == ffi.NULL:
            self._release()
            raise UsageError(
                f"--ring-size {settings.ring_size} --start-cursor {settings.start_cursor}: "
                "expected a power of two of at least 32, and a multiple of 8"
            )

    def _config(self, settings: Settings, workload: Workload) -> Any:
        config = ffi.new("struct hmb_sim_config *")
        config.base = self._base
        config.events, config.event_count = self._tables.events, self._tables.event_count
        config.fields, config.field_count = self._tables.fields, self._tables.field_count
        if self._replay is not None:
            config.replay, config.replay_size = self._replay, len(self._replay)
        config.gap_ns, config.burst = workload.gap_ns, workload.burst
        config.rate = settings.rate or 0
        config.wrap = _WRAPS[settings.wrap]
        for name in ("ring_size", "seed", "start_seq", "start_cursor", "start_ts_ns"):
            setattr(config, name, getattr(settings, name))
        for name in (
            "block",
            "drops_keep_seq",
            "hash",
            "real_clock",
            "keep_log",
            "keep_unknown_flags",
            "renumber",
            "by_clock",
        ):
            setattr(config, name, int(getattr(settings, name)))
        return config

    def run(self, until: int, slice_ns: int) -> int:
        """Produce up to a total of `until` records, for at most slice_ns. The GIL is released."""
        return int(lib.hmb_sim_run(self._sim, until, slice_ns))

    def stop(self) -> None:
        """Make run() return, from a signal handler or another thread."""
        lib.hmb_sim_stop(self._sim)

    def stats(self) -> dict[str, int]:
        """Where firmware stands now: the fields of struct hmb_sim_stats."""
        stats = ffi.new("struct hmb_sim_stats *")
        lib.hmb_sim_stats(self._sim, stats)
        return _as_dict(stats)

    def is_drained(self) -> bool:
        """True when the consumer has taken everything."""
        stats = self.stats()
        return stats["head"] == stats["tail"]

    def _counts(self, read: Any) -> dict[str, int]:
        counts = ffi.new("struct hmb_sim_counts *")
        read(self._sim, counts)
        return _as_dict(counts)

    def total(self) -> dict[str, int]:
        """Counts over all epochs: the fields of struct hmb_sim_counts."""
        return self._counts(lib.hmb_sim_total)

    def epoch(self) -> dict[str, int]:
        """Counts of the present epoch."""
        return self._counts(lib.hmb_sim_epoch)

    def close_epoch(self) -> None:
        """Drops that no record followed become unseen ones."""
        lib.hmb_sim_close_epoch(self._sim)

    def set_flags(self, set_bits: int, clear_bits: int = 0) -> None:
        """Set and clear bits of the ring's flags."""
        lib.hmb_sim_set_flags(self._sim, set_bits, clear_bits)

    def twist(self, kind: int, argument: int = 0) -> None:
        """Spoil the next record that stands in a plain place (enum hmb_sim_twist)."""
        lib.hmb_sim_twist(self._sim, kind, argument)

    def twist_pending(self) -> bool:
        """True until the twist has happened."""
        return bool(lib.hmb_sim_twist_pending(self._sim))

    def last_fault(self) -> dict[str, Any]:
        """Where the last fault was put: cursor, seq, bytes that must be rejected, record number."""
        cursor, seq, size = ffi.new("uint64_t *"), ffi.new("uint32_t *"), ffi.new("uint64_t *")
        record = ffi.new("uint64_t *")
        lib.hmb_sim_last_fault(self._sim, cursor, seq, size, record)
        return {"cursor": cursor[0], "seq": seq[0], "bytes": size[0], "at": record[0]}

    def drop(self, records: int) -> None:
        """Drop so many records as if the ring were full."""
        lib.hmb_sim_drop(self._sim, records)

    def garbage(self, size: int) -> bool:
        """Write random bytes that are no records; False where they do not fit now."""
        return bool(lib.hmb_sim_garbage(self._sim, size) == 0)

    def reset(self, version: int = 1) -> None:
        """Power-on again: header, cursors, seq and clock; a new epoch."""
        lib.hmb_sim_reset(self._sim, version)

    def discard_unread(self) -> int:
        """Take back from the counts what nobody has read; how many records."""
        return int(lib.hmb_sim_discard(self._sim))

    def move_head(self, by: int, *, go_on: bool) -> None:
        """Move the head cursor without writing; go_on: continue there, in a new epoch."""
        lib.hmb_sim_move_head(self._sim, by, int(go_on))

    def overrun(self, size: int) -> int:
        """Write records over unread ones for so many bytes; how many records."""
        return int(lib.hmb_sim_overrun(self._sim, size))

    def shift_clock(self, by_ns: int) -> None:
        """Let the firmware clock jump."""
        lib.hmb_sim_shift_clock(self._sim, by_ns)

    def park(self) -> None:
        """Leave the lent memory alone: firmware stands on its own copy until settle()."""
        lib.hmb_sim_park(self._sim)
        if self._lent is not None:
            ffi.release(self._lent)
            self._lent = None

    def settle(self, memory: memoryview, shadow: bytearray, ring_size: int, seq: int) -> None:
        """Begin an empty ring in lent memory, in a new epoch.

        Args:
            memory, shadow: header and record area; the shadow becomes the engine's copy.
        """
        lent = ffi.from_buffer("uint8_t[]", memory, require_writable=True)
        own = ffi.from_buffer("uint8_t[]", shadow, require_writable=True)
        error = lib.hmb_sim_settle(self._sim, lent, own, ring_size, seq)
        if error:
            raise MemoryError(f"a ring of {ring_size} bytes: error {error}")
        self._lent, self._shadow, self.ring_size = lent, own, ring_size

    def foreign_write(self) -> int | None:
        """Where in the lent ring, tail not counted, the host wrote; None: nowhere."""
        at = int(lib.hmb_sim_foreign(self._sim))
        return None if at < 0 else at

    def _release(self) -> None:
        if self._lent is not None:
            ffi.release(self._lent)
            self._lent = None
        ffi.release(self._base)
        if self._replay is not None:
            ffi.release(self._replay)

    def close(self) -> None:
        """Free the engine and let go of the region."""
        lib.hmb_sim_free(self._sim)
        self._sim = ffi.NULL
        self._release()

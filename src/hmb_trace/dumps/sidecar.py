# SPDX-License-Identifier: Apache-2.0
"""The sidecar of a dump segment: everything about a capture that is not a record (SPEC R11).

X.bin (or X.bin.zst, X.bin.part) is described by X.json; docs/format.md explains every field.
Unknown keys are ignored, so that newer daemons can say more.
"""

from __future__ import annotations

import builtins
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hmb_trace.errors import HmbTraceError, InvalidDataError, from_os_error

FORMAT = "hmb-trace-sidecar"
VERSION = 1
_DUMP_SUFFIXES = (".part", ".zst", ".bin")
# Why records are missing, as far as a daemon can know it (gap_list[].cause, reasons[].kind).
GAP_KINDS = frozenset(
    {
        "ring-overflow",  # the ring was full
        "firmware-skipped",  # the ring had room
        "daemon-down",  # nobody drained the ring between two runs
        "host-died",
        "spool-lost",
        "rejects",  # nothing is missing: the records lie in the rejects file
        "unexplained",
    }
)
REASON_KINDS = frozenset(
    {
        "before-attach",  # OVERFLOWED was set when the capture began
        "overflow-unknown",  # a loss whose extent firmware did not tell
        "daemon-down",
        "host-died",
        "segment-vanished",  # somebody took a segment away while it was open
        "spool-lost",
        "sync-failed",  # the disk refused to confirm what was written
        "disk-full-deleted",  # --disk-full drop-oldest
    }
)
_FORMER_CAUSES = {"overflow": "ring-overflow", "damage": "rejects", "gap": "unexplained"}
# Anyone may have written the file: what cannot be is refused by name, here and nowhere else.
_Word = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0)]


class Device(msgspec.Struct, kw_only=True, frozen=True):
    """Where the records came from; empty strings where the system does not know."""

    path: str
    kind: str = ""  # "char" or "file"
    identity: str = ""
    serial: str = ""
    model: str = ""
    firmware: str = ""


class Gap(msgspec.Struct, kw_only=True, frozen=True):
    """Records missing by sequence number just before `offset` (R12)."""

    offset: int  # bytes into the dump
    seq_before: int
    seq_after: int
    lost: int  # records that nobody has
    rejected: int = 0  # records of the gap that lie in the rejects file
    ts_ns: int = 0  # firmware clock of the record after the gap
    host_ns: int = 0  # host clock when the gap was seen
    cause: str = "unexplained"  # a kind of REASON_KINDS, as far as the daemon could tell
    confirmed: bool = True  # false: no record followed that could have confirmed it (R12)

    def __post_init__(self) -> None:
        """Sidecars of the first format version's early days had words of their own."""
        if self.cause in _FORMER_CAUSES:
            msgspec.structs.force_setattr(self, "cause", _FORMER_CAUSES[self.cause])


class Episode(msgspec.Struct, kw_only=True, frozen=True):
    """An overflow episode (R5); lost is null where nobody can tell (at least one)."""

    host_ns: int
    offset: int
    last_seq_before: int | None = None
    first_seq_after: int | None = None
    lost: int | None = None


class Note(msgspec.Struct, kw_only=True, frozen=True):
    """A transition or an anomaly; `id` is the stable event id of the daemon's log."""

    id: str
    host_ns: int
    offset: int
    detail: dict[str, int | str] = {}


class ClockPair(msgspec.Struct, kw_only=True, frozen=True):
    """Firmware clock and host CLOCK_REALTIME at one moment, in nanoseconds."""

    ts_ns: _Time
    host_ns: _Count
    error_ns: _Count = 0


class Reason(msgspec.Struct, kw_only=True, frozen=True):
    """Something that is missing and is no gap of gap_list; count is null where nobody can tell."""

    kind: str  # of REASON_KINDS
    count: int | None = None  # records
    epoch: int | None = None
    seq_before: int | None = None
    seq_after: int | None = None
    offset: int | None = None  # bytes into the dump
    fw_ns: int | None = None
    host_ns: int | None = None
    text: str = ""


class ClockStep(msgspec.Struct, kw_only=True, frozen=True):
    """Firmware's clock moved against the host's by more than the error bound (R16)."""

    offset: _Count  # of the first record of the new piece, bytes into the dump
    ts_before: _Time
    ts_after: _Time
    host_ns: int | None = None
    step_ns: int | None = None
    error_ns: int | None = None


class CatalogCopy(msgspec.Struct, kw_only=True, frozen=True):
    """The opcode catalog that the daemon was given (--catalog)."""

    name: str
    firmware_build: str = ""
    sha256: str = ""
    text: str = ""  # the TOML as it was read


class Filtered(msgspec.Struct, kw_only=True, frozen=True):
    """Records were left out on purpose (hmb-trace filter)."""

    expression: str
    source: str


class IndexEntry(msgspec.Struct, kw_only=True, frozen=True):
    """A record boundary in the dump; `seq` and `ts_ns` are those of the record before it.

    Both are 0 where no record stands before it.
    """

    offset: _Count
    seq: int
    ts_ns: _Time


class RejectsSummary(msgspec.Struct, kw_only=True, frozen=True):
    """What the rejects file beside the dump holds."""

    file: str
    entries: int
    records: int
    bytes: int


class Sidecar(msgspec.Struct, kw_only=True):
    """One sealed segment. Offsets are bytes into the dump, times nanoseconds.

    first_seq .. last_ts_ns are those of real records, null when there are none.
    `counters` are the collector's, for this segment alone (libhmbtrace/api/journal.h).
    """

    format: str = FORMAT
    version: int = VERSION
    segment: str
    number: _Count
    label: str
    device: Device
    abi_version: int = 1
    ring_size: int = 0
    epoch: _Word = 0
    started_ns: _Count = 0
    sealed_ns: _Count = 0
    cause: str = ""
    complete: bool = True
    bytes: _Count = 0
    records: _Count = 0
    wrap_markers: int = 0  # whole and completed partial ones
    partial_markers: int = 0
    straddled: int = 0
    truncated: int = 0
    first_seq: _Word | None = None
    last_seq: _Word | None = None
    first_ts_ns: _Time | None = None
    last_ts_ns: _Time | None = None
    gaps: _Count = 0
    lost: _Count = 0
    duplicates: int = 0
    sequence_resets: int = 0
    glitches: int = 0  # records whose seq field alone was damaged (R12)
    counters: dict[str, int] = {}
    gap_list: list[Gap] = []
    episodes: list[Episode] = []
    events: list[Note] = []
    clock: list[ClockPair] = []
    index: list[IndexEntry] = []
    reasons: list[Reason] | None = None  # null: written before there was this key
    clock_steps: list[ClockStep] | None = None  # null: of a daemon that looked for none
    catalog: CatalogCopy | None = None
    filtered: Filtered | None = None
    account: dict[str, Any] | None = None  # of a dump made from others: what they were missing
    list_truncated: bool = False  # the lists above were cut; the counts were not
    rejects: RejectsSummary | None = None
    xxh3: str = ""  # XXH3-64 of the dump before compression, 16 hexadecimal digits

    def encode(self) -> builtins.bytes:
        """The file's bytes: JSON, indented, with a line feed at the end."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def stem(dump: str | os.PathLike[str]) -> Path:
    """X of X.bin, X.bin.zst or X.bin.part; a path with none of these suffixes as it is."""
    path = Path(dump)
    for suffix in _DUMP_SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            path = path.with_name(path.name.removesuffix(suffix))
    return path


def sidecar_path(dump: str | os.PathLike[str]) -> Path:
    """Where the sidecar of a dump lies, whether it exists or not."""
    base = stem(dump)
    return base.with_name(base.name + ".json")


def rejects_path(dump: str | os.PathLike[str]) -> Path:
    """Where the rejects file of a dump lies, whether it exists or not."""
    base = stem(dump)
    return base.with_name(base.name + ".rejects")


def decode(data: bytes, name: str) -> Sidecar:
    """A sidecar from its JSON text.

    Raises:
        InvalidDataError: not JSON, not a sidecar, or a field missing or mistyped (named).
    """
    try:
        found = msgspec.json.decode(data, type=Sidecar)
    except msgspec.MsgspecError as error:
        raise InvalidDataError(f"{name}: not a sidecar: {error}") from error
    if found.format != FORMAT:
        raise InvalidDataError(f"{name}: format is {found.format!r}, expected {FORMAT!r}")
    if found.version != VERSION:
        raise InvalidDataError(
            f"{name}: version is {found.version}, expected {VERSION}; upgrade hmb-trace"
        )
    return found


def load(path: str | os.PathLike[str]) -> Sidecar:
    """Read a sidecar file.

    Raises:
        NoInputError, InputOutputError, PermissionDeniedError: as the system says.
        InvalidDataError: see decode().
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise from_os_error(error, f"cannot read {os.fspath(path)}") from error
    return decode(data, os.fspath(path))


def find(dump: str | os.PathLike[str]) -> Sidecar | None:
    """The sidecar beside a dump, or None where there is none.

    Raises:
        InvalidDataError: there is one, but it cannot be understood.
    """
    path = sidecar_path(dump)
    return load(path) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no sidecar beside the dump."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """There is one, but it cannot be read or understood; `error` says why."""

    error: HmbTraceError


def look(dump: str | os.PathLike[str]) -> Sidecar | Missing | Damaged:
    """What lies beside a dump; what to make of it is the caller's decision."""
    try:
        found = find(dump)
    except HmbTraceError as error:
        return Damaged(error)
    return Missing() if found is None else found

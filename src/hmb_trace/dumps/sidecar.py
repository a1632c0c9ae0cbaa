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
from typing import Any

import msgspec

from hmb_trace.errors import HmbTraceError, InvalidDataError, from_os_error

FORMAT = "hmb-trace-sidecar"
VERSION = 1
OLDER_GAP_KINDS = {"overflow": "ring-overflow", "damage": "rejects", "gap": "unexplained"}
_DUMP_SUFFIXES = (".part", ".zst", ".bin")


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
    cause: str = "gap"  # see GAP_KINDS; sidecars of older daemons: a key of OLDER_GAP_KINDS
    confirmed: bool = True  # false: the capture ended before a second record bore it out (R12)

    @property
    def kind(self) -> str:
        """The cause in today's words."""
        return OLDER_GAP_KINDS.get(self.cause, self.cause)


class Reason(msgspec.Struct, kw_only=True, frozen=True):
    """Something missing that is no entry of `gap_list`, because only the daemon saw it.

    kind: before-attach, overflow-unknown, daemon-down, host-died, segment-vanished, spool-lost,
    sync-failed or disk-full-deleted. count: records, null where nobody can tell.
    """

    kind: str
    count: int | None = None
    epoch: int | None = None
    seq_before: int | None = None
    seq_after: int | None = None
    offset: int | None = None
    fw_ns: int | None = None
    host_ns: int | None = None
    text: str = ""


class ClockStep(msgspec.Struct, kw_only=True, frozen=True):
    """The firmware clock moved against the host's: a new piece begins at `offset` (R16)."""

    offset: int
    ts_before: int
    ts_after: int
    host_ns: int | None = None
    step_ns: int | None = None
    error_ns: int | None = None


class CatalogText(msgspec.Struct, kw_only=True, frozen=True):
    """The catalog that the capture was made with; `text` is its TOML, unchanged."""

    name: str = ""
    firmware_build: str = ""
    sha256: str = ""
    text: str = ""


class Filtered(msgspec.Struct, kw_only=True, frozen=True):
    """The dump is a selection (`hmb-trace filter -o`): seqs left out on purpose are no losses."""

    expression: str
    source: str


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

    ts_ns: int
    host_ns: int
    error_ns: int = 0


class IndexEntry(msgspec.Struct, kw_only=True, frozen=True):
    """A record boundary in the dump; `seq` and `ts_ns` are those of the record before it.

    Both are 0 where no record stands before it.
    """

    offset: int
    seq: int
    ts_ns: int


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
    number: int
    label: str
    device: Device
    abi_version: int = 1
    ring_size: int = 0
    epoch: int = 0
    started_ns: int = 0
    sealed_ns: int = 0
    cause: str = ""
    complete: bool = True
    bytes: int = 0
    records: int = 0
    wrap_markers: int = 0  # whole and completed partial ones
    partial_markers: int = 0
    straddled: int = 0
    truncated: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    gaps: int = 0
    lost: int = 0
    duplicates: int = 0
    sequence_resets: int = 0
    glitches: int = 0  # records whose seq field alone was damaged; they are in the dump (R12)
    counters: dict[str, int] = {}
    gap_list: list[Gap] = []
    episodes: list[Episode] = []
    events: list[Note] = []
    reasons: list[Reason] | None = None  # null: an older daemon, see `complete` and `events`
    clock_steps: list[ClockStep] | None = None  # null: an older daemon, which looked for none
    clock: list[ClockPair] = []
    index: list[IndexEntry] = []
    list_truncated: bool = False  # the lists above were cut; the counts were not
    rejects: RejectsSummary | None = None
    catalog: CatalogText | None = None
    filtered: Filtered | None = None
    account: dict[str, Any] | None = None  # of a dump made from others: what they were missing
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

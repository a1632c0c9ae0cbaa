# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF009 - the calls make fields: each is dataclasses.field() with an option in it
"""What the daemon can be told: one field an option, with its type, its default and its help.

The command line, the environment, the configuration files and the manual are all made
from these fields. Sizes are bytes, times nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hmb_trace import units
from hmb_trace.errors import UsageError

MIN_ROTATE_SIZE = 64 << 10
FSYNC_NEVER = -2
FSYNC_SEAL = -1
FSYNC_ALWAYS = 0


class DiskFull(enum.StrEnum):
    """What to do when the disk is full."""

    PAUSE = "pause"
    DROP_OLDEST = "drop-oldest"


class OnFrozen(enum.StrEnum):
    """What to do once firmware has set FROZEN and the ring is drained."""

    WAIT = "wait"
    EXIT = "exit"


class OnCorrupt(enum.StrEnum):
    """What to do with bytes that are no record."""

    RESYNC = "resync"
    STOP = "stop"


class UnknownFlags(enum.StrEnum):
    """Where records with unknown flag bits go."""

    REJECT = "reject"
    KEEP = "keep"


class Io(enum.StrEnum):
    """How segments are written."""

    AUTO = "auto"
    DIRECT = "direct"
    BUFFERED = "buffered"


class Mode(enum.StrEnum):
    """Whether records are written at once."""

    STREAM = "stream"
    SNAPSHOT = "snapshot"


class CollectorKind(enum.StrEnum):
    """Who takes records from the ring."""

    INTERNAL = "internal"
    PROCESS = "process"


class LogFormat(enum.StrEnum):
    """How log lines look."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """How severe a log line must be to be written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def parse_fsync(text: str) -> int:
    """never, seal, always, or an interval in nanoseconds.

    Raises:
        UsageError: none of these.
    """
    words = {"never": FSYNC_NEVER, "seal": FSYNC_SEAL, "always": FSYNC_ALWAYS}
    if text in words:
        return words[text]
    try:
        interval = units.parse_duration(text)
    except UsageError as error:
        raise UsageError(
            f"fsync: found {text!r}, expected never, seal, always or a time such as 1s"
        ) from error
    return interval or FSYNC_ALWAYS


def parse_compress(text: str) -> int:
    """zstd[:LEVEL] -> level; none -> 0.

    Raises:
        UsageError: another method, or a level that zstd does not have.
    """
    if text in ("none", ""):
        return 0
    method, _, level = text.partition(":")
    if method != "zstd" or (level and not (level.isdigit() and 1 <= int(level) <= 19)):
        raise UsageError(f"compress: found {text!r}, expected zstd or zstd:1 to zstd:19")
    return int(level or 3)


def parse_peak_rate(text: str) -> int:
    """'1GB/s' -> bytes per second."""
    return max(1, units.parse_size(text.strip().removesuffix("/s")))


def parse_rotate_size(text: str) -> int:
    """Bytes; 0 never rotates.

    Raises:
        UsageError: no size, or less than a segment can be cut by.
    """
    size = units.parse_size(text)
    if 0 < size < MIN_ROTATE_SIZE:
        raise UsageError(f"rotate-size: found {text!r}, expected 0 (never) or at least 64KiB")
    return size


def parse_metrics(text: str) -> str:
    """[HOST]:PORT, as it is.

    Raises:
        UsageError: no port in it.
    """
    _, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"metrics: found {text!r}, expected [HOST]:PORT such as :9464")
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """How a field looks on the command line.

    Args:
        help: one sentence.
        parse: from text; None: a plain string, a path, a flag or a choice, by the field's type.
        metavar: what stands for the value.
        default: as a person would write it; None: there is none.
        reloadable: a running daemon takes it from a reloaded configuration.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str = ""
    default: str | None = None
    reloadable: bool = False


def _option(help: str, **more: Any) -> Any:
    """A field with its option; the field's own default is what the option's default text means."""
    option = Option(help, **more)
    value: Any = None
    if option.default is not None:
        value = option.parse(option.default) if option.parse else option.default
    return field(default=value, metadata={"option": option})


def _choice(help: str, default: enum.StrEnum, **more: Any) -> Any:
    option = Option(help, default=default.value, **more)
    return field(default=default, metadata={"option": option})


def _flag(help: str) -> Any:
    return field(default=False, metadata={"option": Option(help)})


def _size(help: str, **more: Any) -> Any:
    return _option(help, **{"parse": units.parse_size, "metavar": "SIZE", **more})


def _time(help: str, **more: Any) -> Any:
    return _option(help, **{"parse": units.parse_duration, "metavar": "TIME", **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the command line, the environment and the files said."""

    device: str = field(
        metadata={"option": Option("Device node, ring file or shm:/NAME.", metavar="PATH")}
    )
    output_dir: Path | None = _option(
        "Directory of the dump set; made when missing.", metavar="DIR"
    )
    output: str | None = _option("One dump file instead of a set; - is stdout.", metavar="FILE|-")
    wait: bool = _flag("Where there is no ring yet, wait for one instead of exit 65 or 66.")
    once: bool = _flag("Drain what is there, seal, exit.")
    duration: int | None = _time("Stop after so long.")
    rotate_size: int = _size(
        "New segment before its files (records, rejects, events) take more; at least 64KiB, "
        "0: never.",
        parse=parse_rotate_size,
        default="1GiB",
        reloadable=True,
    )
    rotate_interval: int = _time(
        "New segment after so long; 0: never.", default="0", reloadable=True
    )
    max_total_size: int = _size(
        "Delete the oldest sealed segments while the files of all take more; 0: never.",
        default="0",
        reloadable=True,
    )
    max_age: int = _time(
        "Delete sealed segments older than it, but never the newest; 0: never.",
        default="0",
        reloadable=True,
    )
    max_rejects: int = _size(
        "Rejected bytes that a segment keeps; what is beyond is only counted. 0: no limit.",
        default="64MiB",
        reloadable=True,
    )
    compress: int = _option(
        "Compress sealed segments.",
        parse=parse_compress,
        metavar="none|zstd[:LEVEL]",
        default="none",
        reloadable=True,
    )
    catalog: Path | None = _option(
        "Opcode catalog (TOML) that every sidecar keeps a copy of.", metavar="FILE"
    )
    spool_size: int | None = _size(
        "Memory for records that the disk has not taken yet. Default: 1/32 of what this process "
        "may use, from 64MiB to 1GiB, and at most a quarter of the free tmpfs."
    )
    spool_dir: Path | None = _option(
        "A directory in a tmpfs; default: the service's runtime directory or /dev/shm.",
        metavar="DIR",
    )
    fsync: int = _option(
        "When written data is forced to the disk: never, when a segment is sealed, every so "
        "often (and at the seal), or before the spool forgets it.",
        parse=parse_fsync,
        metavar="never|seal|TIME|always",
        default="1s",
        reloadable=True,
    )
    io: Io = _choice(
        "Direct I/O keeps the page cache out of it; auto: where the file system takes it.", Io.AUTO
    )
    disk_full: DiskFull = _choice(
        "On a full disk, wait for room (records go to the spool), or delete the oldest sealed "
        "segments of this label.",
        DiskFull.PAUSE,
        reloadable=True,
    )
    on_frozen: OnFrozen = _choice(
        "Once firmware has set FROZEN and the ring is drained, wait for a new capture or exit.",
        OnFrozen.WAIT,
        reloadable=True,
    )
    on_corrupt: OnCorrupt = _choice(
        "On bytes that are no record, go on at the next record (the bytes go to the rejects), or "
        "stop with the ring untouched.",
        OnCorrupt.RESYNC,
    )
    unknown_flags: UnknownFlags = _choice(
        "Keep records with unknown flag bits in the rejects or in the dump.", UnknownFlags.REJECT
    )
    latency: int = _time("Longest wait while records come.", default="2ms")
    peak_rate: int = _option(
        "What firmware can emit: waits never take longer than half a ring at this rate.",
        parse=parse_peak_rate,
        metavar="RATE",
        default="1GB/s",
    )
    mode: Mode = _choice(
        "snapshot: a flight recorder that writes only on USR2, on control or at the end.",
        Mode.STREAM,
    )
    collector: CollectorKind = _choice(
        "Collect in a process of its own, which goes on while this one is restarted, or in a "
        "thread (where no second process may be).",
        CollectorKind.INTERNAL,
    )
    orphan_linger: int = _time(
        "A collector without a daemon ends after so long; 0: it stays.", default="1m"
    )
    metrics: str | None = _option(
        "Prometheus endpoint (extra: fleet); without HOST it listens on all addresses.",
        parse=parse_metrics,
        metavar="[HOST]:PORT",
    )
    control: Path | None = _option("Unix socket for hmb-trace ctl.", metavar="PATH")
    label: str | None = _option(
        "First part of segment names; default: from the device.", metavar="NAME"
    )
    log_format: LogFormat = _choice(
        "Log lines for people, or JSON; auto: JSON unless stderr is a terminal.", LogFormat.AUTO
    )
    log_level: LogLevel = _choice(
        "Least severe log lines to write.", LogLevel.INFO, reloadable=True
    )

    def changed(self, fresh: Settings) -> list[str]:
        """The names of the options that differ, in their order."""
        return [f.name for f in fields(self) if getattr(fresh, f.name) != getattr(self, f.name)]

    def check(self) -> None:
        """Refuse what cannot go together.

        Raises:
            UsageError: naming both options.
        """
        if (self.output_dir is None) == (self.output is None):
            raise UsageError("give either --output-dir DIR or --output FILE (- for stdout)")
        if self.output == "-" and self.mode is Mode.SNAPSHOT:
            raise UsageError("--mode snapshot writes files: give --output-dir")
        if self.wait and self.once:
            raise UsageError("--wait and --once exclude each other")
        if self.once and self.mode is Mode.SNAPSHOT:
            raise UsageError("--once and --mode snapshot exclude each other")
        if self.output is not None and self.compress:
            raise UsageError("--compress works on a dump set: give --output-dir")


OPTIONS: dict[str, Option] = {f.name: f.metadata["option"] for f in fields(Settings)}
# What a running daemon takes from a reloaded configuration; the rest needs a restart.
RELOADABLE = frozenset(name for name, option in OPTIONS.items() if option.reloadable)

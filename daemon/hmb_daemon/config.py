# SPDX-License-Identifier: Apache-2.0
"""Options of hmb-trace-daemon: their types, the TOML files behind them, the settings they make."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hmb_daemon.orders import FSYNC_ALWAYS, FSYNC_NEVER, FSYNC_SEAL
from hmb_trace import units
from hmb_trace.commandline import Parsed
from hmb_trace.errors import ConfigError, UsageError

DEFAULT_FILE = Path("/etc/hmb-trace/daemon.toml")
MIN_ROTATE_SIZE = 64 << 10
LOG_LEVELS = ("debug", "info", "warning", "error")
# What a running daemon takes from a reloaded configuration; the rest needs a restart.
RELOADABLE = frozenset(
    {
        "rotate_size",
        "rotate_interval",
        "max_total_size",
        "max_age",
        "compress",
        "fsync",
        "disk_full",
        "on_frozen",
        "log_level",
    }
)


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


FSYNC = Parsed("never|seal|TIME|always", parse_fsync)
COMPRESS = Parsed("zstd[:LEVEL]", parse_compress)
ROTATE_SIZE = Parsed("size", parse_rotate_size)
PEAK_RATE = Parsed("rate", parse_peak_rate)


@dataclass(slots=True, kw_only=True)
class Settings:
    """Everything the command line, the environment and the files said. Bytes, nanoseconds."""

    device: str
    output_dir: Path | None = None
    output: str | None = None
    wait: bool = False
    once: bool = False
    duration: int | None = None
    rotate_size: int = 0
    rotate_interval: int = 0
    max_total_size: int = 0
    max_age: int = 0
    compress: int = 0
    spool_size: int | None = None
    spool_dir: Path | None = None
    fsync: int = 10**9
    io: str = "auto"
    disk_full: str = "pause"
    on_frozen: str = "wait"
    on_corrupt: str = "resync"
    unknown_flags: str = "reject"
    latency: int = 2 * 10**6
    peak_rate: int = 10**9
    mode: str = "stream"
    metrics: str | None = None
    control: Path | None = None
    label: str | None = None
    log_format: str = "auto"
    log_level: str = "info"

    def take_over(self, fresh: Settings) -> list[str]:
        """Take what may change while running from fresh settings; the names of all that differ."""
        changed = [
            name
            for name in self.__dataclass_fields__
            if getattr(fresh, name) != getattr(self, name)
        ]
        for name in RELOADABLE.intersection(changed):
            setattr(self, name, getattr(fresh, name))
        return changed

    def check(self) -> None:
        """Refuse what cannot go together.

        Raises:
            UsageError: naming both options.
        """
        if (self.output_dir is None) == (self.output is None):
            raise UsageError("give either --output-dir DIR or --output FILE (- for stdout)")
        if self.output == "-" and self.mode == "snapshot":
            raise UsageError("--mode snapshot writes files: give --output-dir")
        if self.wait and self.once:
            raise UsageError("--wait and --once exclude each other")
        if self.once and self.mode == "snapshot":
            raise UsageError("--once and --mode snapshot exclude each other")
        if self.output is not None and self.compress:
            raise UsageError("--compress works on a dump set: give --output-dir")


def read_files(main: Path, *, required: bool) -> dict[str, Any]:
    """A TOML file and the *.toml of its drop-in directory (daemon.d of daemon.toml), merged.

    Raises:
        ConfigError: missing though asked for, unreadable, or not TOML; names file and place.
    """
    merged: dict[str, Any] = {}
    if main.exists() or required:
        merged.update(_read_file(main))
    drop_ins = main.with_suffix(".d")
    if drop_ins.is_dir():
        for path in sorted(drop_ins.glob("*.toml")):
            merged.update(_read_file(path))
    return merged


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # tomllib: also for an integer of 5000 digits
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return {key.replace("-", "_"): (path, value) for key, value in found.items()}


def defaults_from(found: dict[str, Any], command: click.Command) -> dict[str, Any]:
    """click's default_map of what the files say.

    Raises:
        ConfigError: an unknown key, or a value that its option does not take.
    """
    known = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}
    for name in ("config", "check_config", "print_config", "version", "help"):
        known.pop(name, None)
    defaults: dict[str, Any] = {}
    for key, (path, value) in found.items():
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}, expected one of: {', '.join(known)}")
        if isinstance(value, dict | list):
            raise ConfigError(f"{path}: {key} is a {type(value).__name__}, expected one value")
        defaults[key] = _checked(known[key], path, key, value)
    return defaults


def _checked(option: click.Option, path: Path, key: str, value: Any) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} is {value!r}, expected true or false")
        return value
    if isinstance(value, bool):
        raise ConfigError(f"{path}: {key} is {value!r}, expected {option.type.name}")
    text = str(value)
    try:
        option.type.convert(text, option, None)
    except click.BadParameter as error:
        raise ConfigError(f"{path}: {key}: {error.message}") from error
    return text


def as_toml(values: dict[str, Any]) -> str:
    """The effective options as a file that says the same again."""
    lines = []
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            text = f'"{escaped}"'
        lines.append(f"{key.replace('_', '-')} = {text}")
    return "\n".join(lines) + "\n"

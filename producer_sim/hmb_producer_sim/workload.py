# SPDX-License-Identifier: Apache-2.0
"""Workloads: an event catalog (docs/catalog.md) with a [workload] table for the simulator.

[workload]
cpus = 4                   # records come from cpu 0..3
gap = "100ns"              # firmware clock between records at --rate max
burst = 10000              # records that come together (--rate is then the average)
rate = "1M/s"              # the default of --rate

[workload.events.NAND_READ]
weight = 10                # how often, against the others; 0 or absent: never by itself
payload = [16, 64]         # bytes; absent: the size of its fields
duration = ["60us", "90us"]  # a begin: until its end comes
cpus = 2
truncated = true           # carries HMB_REC_FLAG_TRUNCATED

[workload.events.NAND_READ.fields.lba]
min = 0
max = 1000000
draw = "uniform"           # uniform, skewed or counter
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmb_trace import units
from hmb_trace.catalog import model as catalogs
from hmb_trace.errors import ConfigError, UsageError, from_os_error
from hmb_trace.layout import RECORD_MAX_PAYLOAD

BUILT_IN = ("ftl", "uniform", "burst")
DIRECTORY = Path(__file__).with_name("workloads")
_DRAWS = {"uniform": "RANDOM", "skewed": "SKEWED", "counter": "COUNTER"}
_UNSIGNED_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Field:
    """A payload field as the engine fills it: kind is a name of enum hmb_sim_field_kind."""

    offset: int
    size: int
    kind: str
    minimum: int
    maximum: int


@dataclass(frozen=True)
class Event:
    """An event as the engine draws it: sizes in bytes, durations in nanoseconds."""

    name: str
    opcode: int
    weight: int
    payload: tuple[int, int]
    cpus: int = 1
    truncated: bool = False
    end: int = -1
    duration: tuple[int, int] = (0, 0)
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Workload:
    """What the engine emits."""

    name: str
    path: Path
    source: str = "table"
    events: tuple[Event, ...] = ()
    gap_ns: int = 100
    burst: int = 0
    rate: int | None = None  # records a second, None: as fast as it goes
    settings: Mapping[str, Any] = field(default_factory=dict)


class _Reader:
    """Values of one TOML file, with errors that name file and key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, key: str, found: object, expected: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key}: found {found!r}, expected {expected}")

    def integer(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, value, f"a whole number from {low} to {high}")
        return value

    def duration(self, key: str, value: object) -> int:
        try:
            return units.parse_duration(str(value))
        except UsageError as error:
            raise ConfigError(f"{self.path}: {key}: {error}") from error

    def table(self, key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, value, "a table")
        return value

    def pair(self, key: str, value: object) -> tuple[object, object]:
        if isinstance(value, list) and len(value) == 2:
            return value[0], value[1]
        if isinstance(value, (int, str)):
            return value, value
        raise self.error(key, value, "one value, or [least, most]")


def resolve(name: str) -> Path:
    """'ftl' -> the built-in file; anything else is a path."""
    return DIRECTORY / f"{name}.toml" if name in BUILT_IN else Path(name)


def _limits(made: catalogs.Field) -> tuple[int, int]:
    if made.type[0] == "f":
        return 0, 100
    # A signed field stays positive unless asked: what it means is unknown here.
    return 0, (1 << (8 * made.size - made.is_signed)) - 1


def _kind(
    reader: _Reader, key: str, event: catalogs.Event, made: catalogs.Field, draw: object
) -> str:
    if draw not in _DRAWS:
        raise reader.error(f"{key}.draw", draw, f"one of {', '.join(_DRAWS)}")
    if made.type.startswith("char"):
        return "TEXT"
    if made.type[0] == "f":
        return "FLOAT"
    if event.pair and event.key == made.name:
        return "KEY"
    if event.kind == "end" and event.duration == made.name:
        return "ELAPSED"
    return _DRAWS[str(draw)]


def _field(
    reader: _Reader, key: str, event: catalogs.Event, made: catalogs.Field, given: dict[str, Any]
) -> Field:
    low, high = _limits(made)
    low = reader.integer(f"{key}.min", given.get("min", low), 0, high)
    high = reader.integer(f"{key}.max", given.get("max", high), low, _UNSIGNED_MAX)
    kind = _kind(reader, key, event, made, given.get("draw", "uniform"))
    return Field(made.offset, made.size, kind, low, high)


def _fields(
    reader: _Reader, event: catalogs.Event, settings: dict[str, Any], key: str
) -> tuple[Field, ...]:
    """The fields that the engine fills; bytes[N] stay random."""
    given = reader.table(f"{key}.fields", settings.get("fields", {}))
    for name in given:
        if event.field(name) is None:
            raise reader.error(f"{key}.fields", name, "a field of this event")
    filled = [made for made in event.fields if not made.type.startswith("bytes")]
    keys = [f"{key}.fields.{made.name}" for made in filled]
    return tuple(
        _field(reader, where, event, made, reader.table(where, given.get(made.name, {})))
        for where, made in zip(keys, filled, strict=True)
    )


def _payload(
    reader: _Reader,
    key: str,
    settings: dict[str, Any],
    least: int,
    override: tuple[int, int] | None,
) -> tuple[int, int]:
    if override is not None:
        return max(least, override[0]), max(least, override[1])
    first, last = reader.pair(f"{key}.payload", settings.get("payload", least))
    low = reader.integer(f"{key}.payload", first, least, RECORD_MAX_PAYLOAD)
    return low, reader.integer(f"{key}.payload", last, low, RECORD_MAX_PAYLOAD)


def _duration(reader: _Reader, key: str, settings: dict[str, Any]) -> tuple[int, int]:
    first, last = reader.pair(f"{key}.duration", settings.get("duration", ["10us", "100us"]))
    low, high = reader.duration(f"{key}.duration", first), reader.duration(f"{key}.duration", last)
    if high < low:
        raise reader.error(f"{key}.duration", [first, last], "the shorter one first")
    return low, high


def _event(
    reader: _Reader,
    event: catalogs.Event,
    settings: dict[str, Any],
    *,
    end: int,
    cpus: int,
    payload: tuple[int, int] | None,
) -> Event:
    key = f"workload.events.{event.name}"
    return Event(
        name=event.name,
        opcode=event.opcode,
        weight=reader.integer(f"{key}.weight", settings.get("weight", 0), 0, 1 << 32),
        payload=_payload(reader, key, settings, event.payload_size, payload),
        cpus=reader.integer(f"{key}.cpus", settings.get("cpus", cpus), 1, 255),
        truncated=bool(settings.get("truncated", False)),
        end=end,
        duration=_duration(reader, key, settings) if end >= 0 else (0, 0),
        fields=_fields(reader, event, settings, key),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = f"cannot open workload {path} (built in: {', '.join(BUILT_IN)})"
        raise from_os_error(error, hint) from error
    except (ValueError, RecursionError) as error:  # tomllib: also for an integer of 5000 digits
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _rate(reader: _Reader, value: object) -> int | None:
    try:
        return None if value is None else units.parse_rate(str(value))
    except UsageError as error:
        raise ConfigError(f"{reader.path}: workload.rate: {error}") from error


def _events(
    reader: _Reader,
    catalog: catalogs.Catalog,
    settings: dict[str, Any],
    payload: tuple[int, int] | None,
) -> tuple[Event, ...]:
    per_event = reader.table("workload.events", settings.get("events", {}))
    for name in per_event:
        if name not in catalog.by_name:
            raise reader.error("workload.events", name, "the name of an [[event]]")
    cpus = reader.integer("workload.cpus", settings.get("cpus", 1), 1, 255)
    index = {event.name: i for i, event in enumerate(catalog)}
    return tuple(
        _event(
            reader,
            event,
            reader.table(f"workload.events.{event.name}", per_event.get(event.name, {})),
            end=index[event.pair] if event.kind == "begin" and event.pair else -1,
            cpus=cpus,
            payload=payload,
        )
        for event in catalog
    )


def load(name: str, payload: tuple[int, int] | None = None) -> Workload:
    """A built-in workload or a TOML file.

    Args:
        name: ftl, uniform, burst, or a path.
        payload: replaces the payload ranges of all events, bytes.

    Raises:
        NoInputError: no such file.
        ConfigError: it does not say what it must.
        UsageError: payload given for a workload whose payloads have a fixed meaning.
    """
    path = resolve(name)
    raw = _read_toml(path)
    reader = _Reader(path)
    settings = reader.table("workload", raw.get("workload", {}))
    source = settings.get("source", "table")
    if source not in ("table", "ftl"):
        raise reader.error("workload.source", source, "table or ftl")
    if source == "ftl" and payload is not None:
        raise UsageError(f"--payload: the payloads of workload {name} have a fixed layout")
    catalog = catalogs.Catalog.from_dict(raw, str(path))
    events = _events(reader, catalog, settings, payload) if source == "table" else ()
    if source == "table" and not any(event.weight for event in events):
        raise reader.error("workload.events", "no weight above 0", "at least one")
    return Workload(
        name=catalog.name,
        path=path,
        source=source,
        events=events,
        gap_ns=reader.duration("workload.gap", settings.get("gap", "100ns")),
        burst=reader.integer("workload.burst", settings.get("burst", 0), 0, 1 << 32),
        rate=_rate(reader, settings.get("rate")),
        settings=settings,
    )

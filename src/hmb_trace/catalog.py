# SPDX-License-Identifier: Apache-2.0
"""The opcode catalog: what a firmware's event ids mean (TOML; docs/catalog.md).

Opcodes are defined by firmware. A catalog gives them names, kinds, payload fields, message
templates, begin/end pairing and an event type in .pccx files. Everything works without one.
"""

from __future__ import annotations

import os
import re
import string
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace.errors import ConfigError, from_os_error
from hmb_trace.layout import RECORD_MAX_PAYLOAD

KINDS = ("instant", "begin", "end", "complete", "counter")
PCCX_TYPES = (
    "UNKNOWN",
    "MAC_COMPUTE",
    "DMA_READ",
    "DMA_WRITE",
    "SYSTOLIC_STALL",
    "BARRIER_SYNC",
)
DURATION_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "cycles": 0}
HEADER_NAMES = ("seq", "ts_ns", "opcode", "cpu", "flags", "name")
_DEFAULT_CLOCK_MHZ = 1000
_NUMBER_TYPES = {
    **{f"{kind}{8 * size}": f"<{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)},
    "f32": "<f4",
    "f64": "<f8",
}
_ARRAY_TYPE = re.compile(r"(char|bytes)\[(\d+)\]\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class CatalogError(ConfigError):
    """A catalog is wrong; the message carries the path of the wrong key (exit 78)."""


@dataclass(frozen=True)
class Field:
    """One field of a payload.

    Attributes:
        type: u8..u64, i8..i64, f32, f64, char[N] (text up to the first NUL), bytes[N].
        offset: in the payload, bytes.
        size: bytes.
        unit: for people, "" if none.
        enum: labels of values.
    """

    name: str
    type: str
    offset: int
    size: int
    unit: str = ""
    enum: Mapping[int, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """numpy's name of the type: "<u4", "S8" (char), "V16" (bytes)."""
        if self.type in _NUMBER_TYPES:
            return _NUMBER_TYPES[self.type]
        return ("S" if self.type.startswith("char") else "V") + str(self.size)

    @property
    def is_integer(self) -> bool:
        return self.type[0] in "ui"

    @property
    def is_signed(self) -> bool:
        return self.type[0] == "i"

    def value(self, payload: bytes | memoryview) -> int | float | str | bytes | None:
        """The value in a payload: a number, text, or bytes; None if the payload is too short."""
        raw = bytes(payload[self.offset : self.offset + self.size])
        if len(raw) < self.size:
            return None
        if self.type.startswith("char"):
            return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
        if self.type.startswith("bytes"):
            return raw
        if self.type[0] == "f":
            return float(np.frombuffer(raw, self.dtype)[0])
        return int.from_bytes(raw, "little", signed=self.is_signed)

    def label(self, value: object) -> object:
        """The label of a value where the catalog has one, else the value."""
        return self.enum.get(value, value) if isinstance(value, int) else value


@dataclass(frozen=True)
class Event:
    """What the catalog says about one opcode.

    Attributes:
        kind: instant, begin, end, complete or counter.
        format: message template over field and header names, "" if none.
        pair: name of the partner (begin and end only), "" if none.
        key: payload field that pairs a begin with its end; "cpu": the cpu column.
        duration: payload field with the duration (complete only), "" if none.
        duration_unit: ns, us, ms, s or cycles.
        value: payload field with the counter's value, "" if none.
        pccx: event type in .pccx files, one of PCCX_TYPES.
        track: payload field that tells tracks apart (die, queue), "" if none.
        fields: of the payload, in the catalog's order.
    """

    opcode: int
    name: str
    kind: str = "instant"
    format: str = ""
    pair: str = ""
    key: str = "cpu"
    duration: str = ""
    duration_unit: str = "ns"
    value: str = ""
    pccx: str = "UNKNOWN"
    track: str = ""
    fields: tuple[Field, ...] = ()

    def field(self, name: str) -> Field | None:
        """The payload field of that name."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def payload_size(self) -> int:
        """Bytes a payload must have to hold every field."""
        return max((f.offset + f.size for f in self.fields), default=0)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Structured dtype of the payload's fields, payload_size bytes."""
        return np.dtype(
            {
                "names": [f.name for f in self.fields],
                "formats": [f.dtype for f in self.fields],
                "offsets": [f.offset for f in self.fields],
                "itemsize": self.payload_size,
            }
        )

    def values(self, payload: bytes | memoryview) -> dict[str, Any]:
        """Every field's value; None where the payload is too short for it."""
        return {f.name: f.value(payload) for f in self.fields}

    def message(self, payload: bytes | memoryview, **header: Any) -> str:
        """The message template filled in; "" if there is none.

        Args:
            payload: of the record.
            header: seq, ts_ns, opcode, cpu, flags, as far as the template uses them.
        """
        values = {"name": self.name, "opcode": self.opcode, **header, **self.values(payload)}
        return _render(self.format, values, {f.name: f for f in self.fields})


class _Missing:
    """A field that the payload is too short for, in a message."""

    def __format__(self, spec: str) -> str:
        return "?"


def _render(template: str, values: Mapping[str, Any], fields: Mapping[str, Field]) -> str:
    out = []
    for text, name, spec, _ in string.Formatter().parse(template):
        out.append(text)
        if name is None:
            continue
        value = values.get(name)
        if name in fields and not spec:
            value = fields[name].label(value)
        if isinstance(value, bytes):
            value = value.hex()
        out.append(format(_Missing() if value is None else value, spec or ""))
    return "".join(out)


@dataclass(frozen=True)
class Catalog:
    """Opcodes and their meaning.

    Attributes:
        name: of the firmware or workload.
        events: by opcode.
        firmware_build: build id that a dump can be bound to, "" if none.
        clock_mhz: of the cycle counts in .pccx files.
    """

    name: str
    events: Mapping[int, Event]
    firmware_build: str = ""
    clock_mhz: int = _DEFAULT_CLOCK_MHZ

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Catalog:
        """Read a catalog file.

        Raises:
            CatalogError: not TOML, or a wrong key; the message carries file and key path.
            HmbTraceError: the file cannot be read.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise from_os_error(error, f"cannot read {os.fspath(path)}") from None
        return Catalog.parse(data, os.fspath(path))

    @staticmethod
    def parse(data: bytes, name: str = "catalog") -> Catalog:
        """A catalog from TOML text. Raises CatalogError."""
        try:
            made = tomllib.loads(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CatalogError(f"{name}: byte {error.start} is not UTF-8") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise CatalogError(f"{name}: not valid TOML: {error}") from None
        return Catalog.from_dict(made, name)

    @staticmethod
    def from_dict(made: Mapping[str, Any], name: str = "catalog") -> Catalog:
        """A catalog from what TOML (or the JSON of a .pccx header) holds. Raises CatalogError."""
        from hmb_trace.catalog_reader import read_catalog  # noqa: PLC0415 - it needs these classes

        return read_catalog(made, name)

    def to_dict(self) -> dict[str, Any]:
        """The catalog as plain values; from_dict() takes them back."""
        head: dict[str, Any] = {"name": self.name, "clock_mhz": self.clock_mhz}
        if self.firmware_build:
            head["firmware_build"] = self.firmware_build
        return head | {"event": [_event_dict(event) for event in self]}

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events.values())

    def __len__(self) -> int:
        return len(self.events)

    def get(self, opcode: int) -> Event | None:
        """The event of an opcode."""
        return self.events.get(opcode)

    @cached_property
    def by_name(self) -> dict[str, Event]:
        """Events by name."""
        return {event.name: event for event in self}

    def name_of(self, opcode: int) -> str:
        """The event's name, or the opcode in hex."""
        event = self.events.get(opcode)
        return event.name if event else f"{opcode:#06x}"

    def names(self) -> NDArray[np.object_]:
        """Names by opcode, an object array of shape (65536,), for vectorised look-up."""
        table = np.array([f"{opcode:#06x}" for opcode in range(1 << 16)], dtype=object)
        for event in self:
            table[event.opcode] = event.name
        return table


def _field_dict(made: Field) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": made.name, "type": made.type, "offset": made.offset}
    if made.unit:
        plain["unit"] = made.unit
    if made.enum:
        plain["enum"] = {str(value): label for value, label in made.enum.items()}
    return plain


def _event_dict(event: Event) -> dict[str, Any]:
    plain: dict[str, Any] = {"opcode": event.opcode, "name": event.name, "kind": event.kind}
    defaults = Event(event.opcode, event.name)
    for key in ("format", "pair", "key", "duration", "duration_unit", "value", "pccx", "track"):
        if getattr(event, key) != getattr(defaults, key):
            plain[key] = getattr(event, key)
    if event.fields:
        plain["field"] = [_field_dict(made) for made in event.fields]
    return plain


def field_size(type_name: str) -> int | None:
    """Bytes of a field type; None if there is no such type."""
    if type_name in _NUMBER_TYPES:
        return int(_NUMBER_TYPES[type_name][2:])
    match = _ARRAY_TYPE.match(type_name)
    size = int(match[2]) if match and len(match[2]) <= 4 else 0
    return size if 0 < size <= RECORD_MAX_PAYLOAD else None


def is_name(text: str) -> bool:
    """Whether text can be the name of a field."""
    return bool(_NAME.match(text))

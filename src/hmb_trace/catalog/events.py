# SPDX-License-Identifier: Apache-2.0
"""Events and their payload fields, as a catalog describes them (docs/catalog.md)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hmb_trace.errors import ConfigError
from hmb_trace.layout import RECORD_MAX_PAYLOAD

SEVERITIES = ("", "info", "warning", "error")
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
        errors: values that mean an error.
    """

    name: str
    type: str
    offset: int
    size: int
    unit: str = ""
    enum: Mapping[int, str] = field(default_factory=dict)
    errors: tuple[int, ...] = ()

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
        severity: info, warning, error, or "": nothing is said about it.
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
    severity: str = ""
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

# SPDX-License-Identifier: Apache-2.0
"""The opcode catalog: what a firmware's event ids mean (TOML; docs/catalog.md).

Opcodes are defined by firmware. A catalog gives them names, kinds, payload fields, message
templates, begin/end pairing and an event type in .pccx files. Everything works without one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmb_trace.catalog.events import DURATION_UNITS, PCCX_TYPES, CatalogError, Event, Field
from hmb_trace.catalog.reader import DEFAULT_CLOCK_MHZ, read_catalog
from hmb_trace.errors import from_os_error

__all__ = ["DURATION_UNITS", "PCCX_TYPES", "Catalog", "CatalogError", "Event", "Field"]


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
    clock_mhz: int = DEFAULT_CLOCK_MHZ

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
        except (ValueError, RecursionError) as error:  # ValueError: an integer of 5000 digits
            raise CatalogError(f"{name}: not valid TOML: {error}") from None
        return Catalog.from_dict(made, name)

    @staticmethod
    def from_dict(made: Mapping[str, Any], name: str = "catalog") -> Catalog:
        """A catalog from what TOML (or the JSON of a .pccx header) holds. Raises CatalogError."""
        return Catalog(**read_catalog(made, name)._asdict())

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
    if made.errors:
        plain["errors"] = list(made.errors)
    return plain


def _event_dict(event: Event) -> dict[str, Any]:
    plain: dict[str, Any] = {"opcode": event.opcode, "name": event.name, "kind": event.kind}
    defaults = Event(event.opcode, event.name)
    keys = "format pair key duration duration_unit value pccx track severity"
    for key in keys.split():
        if getattr(event, key) != getattr(defaults, key):
            plain[key] = getattr(event, key)
    if event.fields:
        plain["field"] = [_field_dict(made) for made in event.fields]
    return plain

# SPDX-License-Identifier: Apache-2.0
"""Checks a catalog key by key; every error carries the path of the wrong key."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hmb_trace.catalog.events import (
    DURATION_UNITS,
    HEADER_NAMES,
    KINDS,
    PCCX_TYPES,
    SEVERITIES,
    CatalogError,
    Event,
    Field,
    field_size,
    is_name,
)
from hmb_trace.layout import RECORD_MAX_PAYLOAD

DEFAULT_CLOCK_MHZ = 1000
_U32_MAX = 2**32 - 1
_WIDTH_MAX = 1000  # of a value in a message; without a limit a catalog could ask for gigabytes
_INTEGERS = (0, 2**64 - 1)
_DIGITS_MAX = 4
_NUMBER = re.compile(r"[0-9]+")
_HEAD_KEYS = ("name", "firmware_build", "clock_mhz", "event", "workload")
_FIELD_KEYS = ("name", "type", "offset", "unit", "enum", "errors")
_EVENT_KEYS = (
    *("opcode", "name", "kind", "format", "pair", "key", "duration", "duration_unit"),
    *("value", "pccx", "track", "severity", "field"),
)


class _Table:
    """One TOML table and its path."""

    def __init__(self, made: Any, file: str, path: str) -> None:
        self.file = file
        self.path = path
        if not isinstance(made, Mapping):
            raise self.wrong("", made, "a table")
        self.made = made

    def where(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

    def error(self, key: str, text: str) -> CatalogError:
        return CatalogError(f"{self.file}: {self.where(key)}: {text}")

    def wrong(self, key: str, found: object, expected: str) -> CatalogError:
        shown = repr(found)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return self.error(key, f"found {shown}, expected {expected}")

    def check_keys(self, known: Iterable[str]) -> None:
        for key in self.made:
            if key not in known:
                raise self.error(str(key), f"unknown key, expected one of {', '.join(known)}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.made.get(key, default)
        if value is None:
            raise self.error(key, "missing, expected a string")
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def choice(self, key: str, known: Iterable[str], default: str) -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.wrong(key, value, f"one of {', '.join(known)}")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.made.get(key, default)
        if value is None:
            raise self.error(key, "missing, expected an integer")
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(key, value, f"an integer from {low} to {high}")
        return value

    def tables(self, key: str) -> list[_Table]:
        value = self.made.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, value, f"an array of tables, [[{self.where(key)}]]")
        return [_Table(v, self.file, f"{self.where(key)}[{i}]") for i, v in enumerate(value)]


def _enum(table: _Table) -> dict[int, str]:
    made = table.made.get("enum", {})
    child = _Table(made, table.file, table.where("enum"))
    labels: dict[int, str] = {}
    for key, label in made.items():
        try:
            value = int(key, 0)
        except ValueError:
            raise child.error(
                key, "found a key that is no integer, expected value = label"
            ) from None
        if not isinstance(label, str):
            raise child.wrong(key, label, "a string")
        if value in labels:
            raise child.error(key, f"is {value} again, which is {labels[value]!r} already")
        labels[value] = label
    return labels


def _field(table: _Table, packed_at: int) -> Field:
    table.check_keys(_FIELD_KEYS)
    name, type_name = table.text("name"), table.text("type")
    if not is_name(name):
        raise table.wrong("name", name, "letters, digits and underscores")
    if name in HEADER_NAMES:
        raise table.wrong("name", name, f"another name than {', '.join(HEADER_NAMES)}")
    size = field_size(type_name)
    if size is None:
        expected = f"u8..u64, i8..i64, f32, f64, char[N] or bytes[N] (N up to {RECORD_MAX_PAYLOAD})"
        raise table.wrong("type", type_name, expected)
    offset = table.integer("offset", 0, RECORD_MAX_PAYLOAD, packed_at)
    if offset + size > RECORD_MAX_PAYLOAD:
        raise table.error("offset", f"field ends at {offset + size}, beyond {RECORD_MAX_PAYLOAD}")
    made = Field(
        name, type_name, offset, size, table.text("unit", ""), _enum(table), _errors(table)
    )
    _check_enum(table, made)
    if made.errors and not made.is_integer:
        raise table.error("errors", f"found on a {made.type}, expected an integer type")
    return made


def _errors(table: _Table) -> tuple[int, ...]:
    found = table.made.get("errors", [])
    if not isinstance(found, list) or not all(type(value) is int for value in found):
        raise table.wrong("errors", found, "a list of integers: the values that mean an error")
    return tuple(found)


def _check_enum(table: _Table, made: Field) -> None:
    if not made.enum:
        return
    if not made.is_integer:
        raise table.error("enum", f"found on a {made.type}, expected an integer type")
    low = -(1 << 8 * made.size - 1) if made.is_signed else 0
    high = low + (1 << 8 * made.size)
    for value in made.enum:
        if not low <= value < high:
            raise table.wrong("enum", value, f"values of a {made.type}, {low} to {high - 1}")


def _fields(table: _Table) -> tuple[Field, ...]:
    made: list[Field] = []
    packed_at = 0
    for child in table.tables("field"):
        one = _field(child, packed_at)
        if any(one.name == other.name for other in made):
            raise child.wrong("name", one.name, "a name that no other field of the event has")
        made.append(one)
        packed_at = one.offset + one.size
    return tuple(made)


def _check_template(table: _Table, event: Event) -> None:
    known: dict[str, tuple[int | float | str, ...]] = {
        **dict.fromkeys(HEADER_NAMES, _INTEGERS),
        "name": ("",),
        **{f.name: _samples(f) for f in event.fields},
    }
    try:
        parts = list(string.Formatter().parse(event.format))
    except ValueError as error:
        raise table.error(
            "format", f"{error}, expected a template such as 'lba={{lba:#x}}'"
        ) from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in known or conversion:
            shown = name + (f"!{conversion}" if conversion else "")
            raise table.error("format", f"found {{{shown}}}, expected one of {', '.join(known)}")
        numbers = _NUMBER.findall(spec or "")
        if any(len(number) > _DIGITS_MAX or int(number) > _WIDTH_MAX for number in numbers):
            raise table.error(
                "format", f"{{{name}:{spec}}}: expected a width or precision up to {_WIDTH_MAX}"
            )
        try:
            for value in known[name]:
                format(value, spec or "")
        except (ValueError, OverflowError) as error:  # such as {tag:c}
            raise table.error("format", f"{{{name}:{spec}}}: {error}") from None


def _samples(made: Field) -> tuple[int | float | str, ...]:
    return _INTEGERS if made.is_integer else (0.0,) if made.type[0] == "f" else ("",)


def _check_reference(table: _Table, event: Event, key: str, *, integer: bool) -> None:
    name = getattr(event, key)
    found = event.field(name)
    if found is None:
        names = ", ".join(f.name for f in event.fields) or "none is defined"
        raise table.wrong(key, name, f"the name of a payload field ({names})")
    if integer and not found.is_integer:
        raise table.error(key, f"field {name} is {found.type}, expected an integer type")


def _check_number(table: _Table, event: Event) -> None:
    field = event.field(event.value)
    if field is not None and field.type[0] not in "uif":
        raise table.error("value", f"field {field.name} is {field.type}, expected a number")


def _event(table: _Table) -> Event:
    table.check_keys(_EVENT_KEYS)
    event = Event(
        opcode=table.integer("opcode", 0, 0xFFFF),
        name=table.text("name"),
        kind=table.choice("kind", KINDS, "instant"),
        format=table.text("format", ""),
        pair=table.text("pair", ""),
        key=table.text("key", "cpu"),
        duration=table.text("duration", ""),
        duration_unit=table.choice("duration_unit", DURATION_UNITS, "ns"),
        value=table.text("value", ""),
        pccx=table.choice("pccx", PCCX_TYPES, "UNKNOWN"),
        track=table.text("track", ""),
        severity=table.choice("severity", SEVERITIES, ""),
        fields=_fields(table),
    )
    if not event.name:
        raise table.wrong("name", event.name, "a name")
    _check_event(table, event)
    return event


def _check_event(table: _Table, event: Event) -> None:
    _check_template(table, event)
    if event.duration:
        _check_reference(table, event, "duration", integer=True)
    if event.value:
        _check_reference(table, event, "value", integer=False)
        _check_number(table, event)
    if event.track and event.track != "cpu":
        _check_reference(table, event, "track", integer=False)
    if event.key != "cpu":
        _check_reference(table, event, "key", integer=True)
    if event.pair and event.kind not in ("begin", "end"):
        raise table.error("pair", f"found on kind {event.kind!r}, expected kind begin or end")
    if event.kind == "complete" and not event.duration:
        raise table.error("duration", "missing, expected a payload field (kind is complete)")
    if event.kind == "counter" and not event.value:
        raise table.error("value", "missing, expected a payload field (kind is counter)")


class _Pairs:
    """Finds the partner of every begin and end; either side may name the other."""

    def __init__(self, events: dict[int, Event], tables: dict[int, _Table]) -> None:
        self.events = events
        self.tables = tables
        self.by_name = {event.name: event for event in events.values()}

    def link(self) -> dict[int, Event]:
        partners: dict[str, str] = {}
        for event in self.events.values():
            if event.pair:
                self._add(partners, event)
        named = {o: partners.get(e.name, "") for o, e in self.events.items()}
        return {
            o: e if e.pair == named[o] else replace(e, pair=named[o])
            for o, e in self.events.items()
        }

    def _add(self, partners: dict[str, str], event: Event) -> None:
        table, other = self.tables[event.opcode], self.by_name.get(event.pair)
        wanted = "end" if event.kind == "begin" else "begin"
        if other is None:
            raise table.wrong("pair", event.pair, "the name of an event in this catalog")
        if other.kind != wanted:
            raise table.error("pair", f"{other.name} is of kind {other.kind}, expected {wanted}")
        for one, two in ((event.name, other.name), (other.name, event.name)):
            if partners.setdefault(one, two) != two:
                raise table.error("pair", f"{one} is paired with {partners[one]} already")
        if (
            event.key != other.key
            and "key" in table.made
            and "key" in self.tables[other.opcode].made
        ):
            raise table.error("key", f"found {event.key!r}, but {other.name} has {other.key!r}")


def _share_keys(catalog_events: dict[int, Event], tables: dict[int, _Table]) -> dict[int, Event]:
    """A key named on one side of a pair holds for both."""
    by_name = {event.name: event for event in catalog_events.values()}
    made = dict(catalog_events)
    for event in catalog_events.values():
        other = by_name.get(event.pair)
        if other is None or event.key != "cpu" or other.key == "cpu":
            continue
        shared = replace(event, key=other.key)
        _check_reference(tables[event.opcode], shared, "key", integer=True)
        made[event.opcode] = shared
    return made


class Parts(NamedTuple):
    """What a Catalog is made of, checked."""

    name: str
    events: dict[int, Event]
    firmware_build: str
    clock_mhz: int


def read_catalog(made: Any, file: str) -> Parts:
    """The parts of a catalog from plain values.

    Raises:
        CatalogError: the message carries file and path of the wrong key.
    """
    top = _Table(made, file, "")
    top.check_keys(_HEAD_KEYS)
    events: dict[int, Event] = {}
    tables: dict[int, _Table] = {}
    names: dict[str, int] = {}
    for table in top.tables("event"):
        event = _event(table)
        if event.opcode in events:
            other = events[event.opcode].name
            raise table.wrong("opcode", event.opcode, f"an opcode that is not {other}'s")
        if event.name in names:
            raise table.wrong("name", event.name, "a name that no other event has")
        events[event.opcode], tables[event.opcode] = event, table
        names[event.name] = event.opcode
    events = _share_keys(_Pairs(events, tables).link(), tables)
    return Parts(
        name=top.text("name"),
        events=events,
        firmware_build=top.text("firmware_build", ""),
        clock_mhz=top.integer("clock_mhz", 1, _U32_MAX, DEFAULT_CLOCK_MHZ),
    )

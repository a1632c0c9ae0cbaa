# SPDX-License-Identifier: Apache-2.0
"""Catalog skeletons: from the opcodes of a dump, from a C enum, from CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hmb_trace.catalog.model import Catalog, CatalogError, Event, Field
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.walker import Walker

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ENUM = re.compile(r"\benum\b[^;{}]*\{(?P<body>[^{}]*)\}")
_DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(0[xX][0-9A-Fa-f]+|\d+)[uUlL]*\)?[ \t]*$", re.M
)
_NUMBER = re.compile(r"\(?\s*(0[xX][0-9A-Fa-f]+|\d+)[uUlL]*\s*\)?\Z")
_SUM = re.compile(r"\(?\s*(\w+)\s*\+\s*(0[xX][0-9A-Fa-f]+|\d+)[uUlL]*\s*\)?\Z")
_BEGIN = re.compile(r"(?<![A-Za-z])(BEGIN|START|ENTER|SUBMIT)(?![A-Za-z])", re.I)
_END_WORDS = {"BEGIN": "END", "START": "END DONE STOP FINISH", "ENTER": "EXIT LEAVE"}
_END_WORDS["SUBMIT"] = "COMPLETE DONE"
_OPCODE_MAX = 0xFFFF


def _number(text: str) -> int:
    return int(text, 16) if text.lower().startswith("0x") else int(text)


def _enumerator(text: str, known: dict[str, int], name: str) -> tuple[str, int | None]:
    """Name and value of one enumerator; None: one more than the one before."""
    label, _, value = (part.strip() for part in text.partition("="))
    if not re.fullmatch(r"\w+", label):
        raise CatalogError(f"{name}: enum: found {text.strip()!r}, expected NAME or NAME = VALUE")
    if not value:
        return label, None
    number, plus = _NUMBER.match(value), _SUM.match(value)
    if number:
        return label, _number(number[1])
    if value in known:
        return label, known[value]
    if plus and plus[1] in known:
        return label, known[plus[1]] + _number(plus[2])
    raise CatalogError(
        f"{name}: enum: {label}: found {value!r}, expected a number, a name, or NAME + number"
    )


def from_c(text: str, name: str) -> Catalog:
    """A skeleton from C: every enumerator of every enum, and plain numeric #defines.

    Names that pair up (X_BEGIN and X_END, X_START and X_DONE, ...) become begin and end;
    enumerators above 65535 (counts, masks) are left out.

    Raises:
        CatalogError: a value that is no number, or two names for one opcode.
    """
    plain = _COMMENT.sub(" ", text)
    values: dict[str, int] = {m[1]: _number(m[2]) for m in _DEFINE.finditer(plain)}
    for match in _ENUM.finditer(plain):
        following = 0
        for part in match["body"].split(","):
            if part.strip():
                label, value = _enumerator(part, values, name)
                values[label] = following if value is None else value
                following = values[label] + 1
    return _skeleton(values.items(), name)


def _skeleton(values: Iterable[tuple[str, int]], name: str) -> Catalog:
    events: dict[int, Event] = {}
    for label, opcode in values:
        if opcode > _OPCODE_MAX:
            continue
        if opcode in events:
            other = events[opcode].name
            raise CatalogError(f"{name}: {label}: opcode {opcode:#x} is {other}'s already")
        events[opcode] = Event(opcode, label)
    if not events:
        raise CatalogError(f"{name}: no opcodes in it, expected an enum, #defines or CSV rows")
    return Catalog(name, pair_by_name(events))


def pair_by_name(events: dict[int, Event]) -> dict[int, Event]:
    """Make begin and end of instants whose names say so, one to one."""
    by_name = {event.name: event for event in events.values()}
    made = dict(events)
    for event in events.values():
        match = _BEGIN.search(event.name)
        if not match or event.kind != "instant":
            continue
        for word in _END_WORDS[match[1].upper()].split():
            end = word if match[1].isupper() else word.lower()
            other = by_name.get(event.name[: match.start()] + end + event.name[match.end() :])
            if other and made[other.opcode].kind == "instant":
                made[event.opcode] = replace(event, kind="begin", pair=other.name)
                made[other.opcode] = replace(other, kind="end", pair=event.name)
                break
    return made


_CSV_KEYS = ("opcode", "name", "kind", "format", "pair", "key", "pccx", "track", "value")
_CSV_MORE = ("duration", "duration_unit")


def from_csv(text: str, name: str) -> Catalog:
    """A catalog from CSV with a header line: opcode, name, and any of the other event keys.

    Raises:
        CatalogError: a column that is no key, a row without opcode or name, or a wrong value.
    """
    rows = csv.DictReader(io.StringIO(text))
    columns = [column.strip().lower() for column in rows.fieldnames or []]
    for column in columns:
        if column not in _CSV_KEYS + _CSV_MORE:
            known = ", ".join(_CSV_KEYS + _CSV_MORE)
            raise CatalogError(f"{name}: column {column!r}: unknown, expected one of {known}")
    events = []
    for row in rows:
        cells = zip(columns, row.values(), strict=False)
        made = {key: value.strip() for key, value in cells if value and value.strip()}
        events.append({**made, "opcode": _csv_opcode(made, rows.line_num, name)})
    return Catalog.from_dict({"name": name, "event": events}, name)


def _csv_opcode(made: dict[str, str], line: int, name: str) -> int:
    text = made.get("opcode", "")
    try:
        return int(text, 0)
    except ValueError:
        raise CatalogError(
            f"{name}: line {line}: opcode: found {text!r}, expected a number such as 17 or 0x11"
        ) from None


@dataclass
class _Seen:
    """What a dump shows of one opcode."""

    records: int = 0
    shortest: int = _OPCODE_MAX


def from_dump(dump: Dump, name: str) -> tuple[Catalog, dict[int, int]]:
    """A skeleton with every opcode that a dump holds, and how many records each has.

    Payload fields are a guess that is only meant to be edited: 8-byte words up to the
    shortest payload of the opcode, then what is left.

    Raises:
        DumpError, HmbTraceError: the dump is damaged or cannot be read.
    """
    seen: dict[int, _Seen] = {}
    for batch in dump.batches(walker=Walker()):
        for opcode, length, count in _length_counts(batch.opcode, batch.payload_len):
            entry = seen.setdefault(opcode, _Seen())
            entry.records += count
            entry.shortest = min(entry.shortest, length)
    events = {
        opcode: Event(opcode, f"op_{opcode:04x}", fields=_words(entry.shortest))
        for opcode, entry in sorted(seen.items())
    }
    return Catalog(name, events), {opcode: s.records for opcode, s in seen.items()}


def _length_counts(
    opcode: NDArray[np.uint16], length: NDArray[np.uint16]
) -> Iterable[tuple[int, int, int]]:
    both = opcode.astype(np.uint32) << np.uint32(16) | length
    for value, count in zip(*np.unique(both, return_counts=True), strict=True):
        yield int(value) >> 16, int(value) & 0xFFFF, int(count)


def _words(size: int) -> tuple[Field, ...]:
    made: list[Field] = []
    at = 0
    for width in (8, 4, 2, 1):
        while size - at >= width and len(made) < 16:
            made.append(Field(f"word{at}", f"u{8 * width}", at, width))
            at += width
    return tuple(made)


def _toml_value(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_field(made: Field, packed_at: int) -> list[str]:
    lines = ["", "  [[event.field]]", f"  name = {_toml_value(made.name)}"]
    lines.append(f"  type = {_toml_value(made.type)}")
    if made.offset != packed_at:
        lines.append(f"  offset = {made.offset}")
    if made.unit:
        lines.append(f"  unit = {_toml_value(made.unit)}")
    if made.enum:
        pairs = ", ".join(f'"{value}" = {_toml_value(text)}' for value, text in made.enum.items())
        lines.append(f"  enum = {{ {pairs} }}")
    if made.errors:
        lines.append(f"  errors = [{', '.join(map(str, made.errors))}]")
    return lines


def _toml_event(event: Event, note: str) -> list[str]:
    lines = ["", f"[[event]]{note}", f"opcode = {event.opcode:#06x}"]
    defaults = Event(event.opcode, "")
    keys = ("name", "kind", "severity", "pair", "key", "duration", "duration_unit", "value")
    for key in (*keys, "track", "pccx", "format"):
        value = getattr(event, key)
        if value != getattr(defaults, key) or key in ("name", "kind"):
            lines.append(f"{key} = {_toml_value(value)}")
    at = 0
    for made in event.fields:
        lines += _toml_field(made, at)
        at = made.offset + made.size
    return lines


def to_toml(catalog: Catalog, counts: dict[int, int] | None = None) -> str:
    """The catalog as TOML that Catalog.parse() reads back; counts become comments."""
    lines = [f"name = {_toml_value(catalog.name)}"]
    if catalog.firmware_build:
        lines.append(f"firmware_build = {_toml_value(catalog.firmware_build)}")
    lines.append(f"clock_mhz = {catalog.clock_mhz}")
    for event in catalog:
        note = f" # {counts[event.opcode]} records" if counts and event.opcode in counts else ""
        lines += _toml_event(event, note)
    return "\n".join(lines) + "\n"

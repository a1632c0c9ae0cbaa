# SPDX-License-Identifier: Apache-2.0
"""Message templates and payload fields of a catalog as cells of a line."""

from __future__ import annotations

import re
import string
from dataclasses import replace

from hmb_trace._core import lib
from hmb_trace.catalog.model import Event, Field
from hmb_trace.escapes import printable, printable_json
from hmb_trace.layout import RECORD_HDR_SIZE
from hmb_trace.text.cells import (
    ALT,
    ESCAPE_CSV,
    ESCAPE_JSON,
    HEX_MARK,
    JSON_FLOAT,
    LEFT,
    UPPER,
    ZERO,
    Cell,
    header,
    literal,
    payload_hex,
)

_SPEC = re.compile(
    r"(?P<align>[<>])?(?P<alt>#)?(?P<zero>0)?(?P<width>\d+)?(?:\.(?P<precision>\d+))?"
    r"(?P<type>[bdoxXfegs]?)\Z"
)
_BASES = {"": 10, "d": 10, "x": 16, "X": 16, "o": 8, "b": 2}
_MISSING = "?"


def escape(text: str, how: int) -> str:
    """Text made ready for its place: JSON string, quoted CSV, or a plain line."""
    if how == ESCAPE_JSON:
        return printable_json(text.replace("\\", "\\\\").replace('"', '\\"'))
    if how == ESCAPE_CSV:
        text = text.replace('"', '""')
    return printable(text)


def field_cell(
    field: Field, *, missing: str = "", how: int = 0, labels: bool = False, marked: bool = False
) -> Cell:
    """A payload field as its plain value.

    Args:
        missing: put where the payload is too short for it.
        how: escape of text.
        labels: put labels instead of values where the catalog has them.
        marked: bytes begin with `hex:`, so that no reader takes them for a number.
    """
    at, needs = RECORD_HDR_SIZE + field.offset, field.offset + field.size
    cell = Cell(_put_of(field), at, field.size, needs, text=missing, escape=how)
    if labels and field.is_integer:
        return replace(cell, labels={v: escape(t, how) for v, t in field.enum.items()})
    if marked and field.type[0] == "b":
        return replace(cell, flags=HEX_MARK)
    if how == ESCAPE_JSON and field.type[0] == "f":
        return replace(cell, flags=JSON_FLOAT)
    return cell


def _put_of(field: Field) -> int:
    kinds = {
        "u": lib.HMB_PUT_UINT,
        "i": lib.HMB_PUT_INT,
        "f": lib.HMB_PUT_FLOAT,
        "c": lib.HMB_PUT_CHARS,
        "b": lib.HMB_PUT_HEX,
    }
    found: int = kinds[field.type[0]]
    return found


def message_cells(event: Event, how: int) -> list[Cell] | None:
    """The event's message; None if its template asks for more than cells can do."""
    if not event.format:
        return _plain_message(event, how)
    cells: list[Cell] = []
    for text, name, spec, conversion in string.Formatter().parse(event.format):
        if text:
            cells.append(literal(escape(text, how)))
        if name is None:
            continue
        cell = None if conversion else _value(event, name, spec or "", how)
        if cell is None:
            return None
        cells.append(cell)
    return cells


def _plain_message(event: Event, how: int) -> list[Cell]:
    """Without a template: name=value pairs, or the bytes."""
    if not event.fields:
        return [payload_hex(marked=how == ESCAPE_CSV)]
    cells: list[Cell] = []
    for index, field in enumerate(event.fields):
        space = " " if index else ""
        cells.append(literal(escape(f"{space}{field.name}=", how)))
        cells.append(field_cell(field, missing=_MISSING, how=how, labels=True))
    return cells


def _value(event: Event, name: str, spec: str, how: int) -> Cell | None:
    field = event.field(name)
    if field is not None:
        base = field_cell(field, missing=_MISSING, how=how, labels=not spec)
        return base if not spec else _with_spec(base, field.type[0], spec)
    if name == "name":
        return literal(escape(format(event.name, spec), how))
    if name in ("seq", "ts_ns", "opcode", "cpu", "flags"):
        return _with_spec(header(name), "u", spec)
    return None


def _with_spec(cell: Cell, kind: str, spec: str) -> Cell | None:
    match = _SPEC.match(spec)
    if match is None or (match["width"] and int(match["width"]) > 64):
        return None
    flags = (ALT if match["alt"] else 0) | (ZERO if match["zero"] else 0)
    flags |= LEFT if match["align"] == "<" else 0
    if match["align"] and match["zero"]:
        return None
    made = replace(cell, min_width=int(match["width"] or 0), flags=cell.flags | flags)
    if kind in "ui":
        return _integer_spec(made, match)
    return _float_spec(made, match) if kind == "f" else None


def _integer_spec(cell: Cell, match: re.Match[str]) -> Cell | None:
    base = _BASES.get(match["type"])
    if base is None or match["precision"]:
        return None
    return replace(cell, base=base, flags=cell.flags | (UPPER if match["type"] == "X" else 0))


def _float_spec(cell: Cell, match: re.Match[str]) -> Cell | None:
    if match["type"] not in ("f", "e", "g") or match["zero"] or match["alt"]:
        return None
    precision = int(match["precision"] or 6)
    if precision > 100 or (match["type"] == "g" and precision == 0):
        return None
    return replace(cell, precision=precision, style=match["type"])

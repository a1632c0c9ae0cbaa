# SPDX-License-Identifier: Apache-2.0
"""Listings of records: text, CSV and JSONL, by one renderer (hmb-trace decode, convert)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hmb_trace._core import lib
from hmb_trace.catalog.columns import payload_columns
from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.errors import UsageError
from hmb_trace.layout import RecordFlag
from hmb_trace.text.cells import (
    ALT,
    ESCAPE_CSV,
    ESCAPE_JSON,
    ESCAPE_TEXT,
    LEFT,
    ZERO,
    Cell,
    Renderer,
    RowText,
    guarded,
    header,
    literal,
    payload_hex,
)
from hmb_trace.text.message import escape, field_cell, message_cells

FORMATS = ("text", "csv", "jsonl")
PAYLOADS = ("auto", "message", "fields", "hex", "none")
HEADER_COLUMNS = ("seq", "ts_ns", "opcode", "cpu", "flags", "payload_len")
COLUMNS = ("offset", "time", *HEADER_COLUMNS, "name", "payload", "message")
_ESCAPES = {"text": ESCAPE_TEXT, "csv": ESCAPE_CSV, "jsonl": ESCAPE_JSON}
_QUOTE = literal('"')
_NAME_WIDTH = 20


@dataclass(frozen=True)
class Style:
    """How a listing looks.

    Attributes:
        format: text, csv or jsonl.
        clock: fw, relative or host: what the time column shows.
        payload: see PAYLOADS; auto: message for text; fields where the catalog has any,
            else hex, for the others.
        fields: the columns wanted, in order; empty: the usual ones.
        csv_safe: CSV texts that a spreadsheet would take for formulas get an apostrophe.
    """

    format: str = "text"
    clock: str = "fw"
    payload: str = "auto"
    fields: Sequence[str] = ()
    csv_safe: bool = False


class Listing:
    """Renders batches in one style.

    Raises:
        UsageError: a column that nobody knows.
    """

    def __init__(self, style: Style, catalog: Catalog | None = None) -> None:
        self.style = style
        self.catalog = catalog
        self._how = _ESCAPES[style.format]
        self._payload_columns = {c.name: c for c in payload_columns(catalog or ())}
        self.columns = self._wanted()
        events = {event.opcode: event for event in catalog or ()}
        programs = {opcode: self._program(event) for opcode, event in events.items()}
        by_hand = [o for o, cells in programs.items() if _needs_row_text(cells)]
        self.renderer = Renderer(
            programs,
            self._program(None),
            {o: self._row_text(events[o]) for o in by_hand},
            trim=style.format == "text",
        )

    def heading(self) -> bytes:
        """The line before all others, or nothing."""
        if self.style.format == "csv":
            return (",".join(_csv_name(name) for name in self.columns) + "\n").encode()
        return b""

    def _wanted(self) -> list[str]:
        wanted = list(self.style.fields) or self._usual()
        known = [*COLUMNS, *self._payload_columns]
        for name in wanted:
            if name not in known:
                hint = "" if self.catalog else "; payload fields need a --catalog"
                raise UsageError(
                    f"field: found {name!r}, expected some of {', '.join(known)}{hint}"
                )
        return wanted

    def _usual(self) -> list[str]:
        payload = self.style.payload
        if payload == "auto":
            payload = "fields" if self._payload_columns else "hex"
        tail = {
            "hex": ["payload"],
            "message": ["message"],
            "none": [],
            # JSONL has an object of its own for them (_json_fields), text its own line.
            "fields": list(self._payload_columns) if self.style.format == "csv" else [],
        }[payload]
        clock = [] if self.style.clock == "fw" else ["time"]
        return ["seq", "ts_ns", *clock, "opcode", "name", "cpu", "flags", "payload_len", *tail]

    def _program(self, event: Event | None) -> list[Cell]:
        if self.style.format == "text" and not self.style.fields:
            return [*self._text_line(event), literal("\n")]
        make: Callable[[Event | None], list[Cell]] = {
            "text": self._plain_row,
            "csv": self._csv_row,
            "jsonl": self._json_row,
        }[self.style.format]
        return [*make(event), literal("\n")]

    # ---- text ----

    def _text_line(self, event: Event | None) -> list[Cell]:
        return [
            self._time(),
            literal("  cpu"),
            header("cpu", min_width=3, flags=LEFT),
            literal(" "),
            header("seq", min_width=10),
            literal("  "),
            *self._text_name(event),
            *self._text_payload(event),
            header("flags", labels=_FLAG_TEXTS),
        ]

    def _text_name(self, event: Event | None) -> list[Cell]:
        """In a field of its own, so that messages stand below each other."""
        if event is None:
            return [self._name(None), literal(" " * (_NAME_WIDTH - len("0x0000")))]
        return [literal(escape(event.name, self._how).ljust(_NAME_WIDTH))]

    def _text_payload(self, event: Event | None) -> list[Cell]:
        payload = self.style.payload
        if payload == "none":
            return []
        if payload == "hex" or event is None:
            return [literal("  "), payload_hex()]
        if payload == "fields":
            event = Event(event.opcode, event.name, fields=event.fields)
        return [literal("  "), *self._message(event)]

    def _plain_row(self, event: Event | None) -> list[Cell]:
        cells: list[Cell] = []
        for name in self.columns:
            cells += [literal("  ")] if cells else []
            cells += self._column(name, event, missing="-")
        return cells

    # ---- CSV ----

    def _csv_row(self, event: Event | None) -> list[Cell]:
        cells: list[Cell] = []
        for index, name in enumerate(self.columns):
            cells += [literal(",")] if index else []
            value = self._column(name, event, missing="")
            if not self._is_text(name, event):
                cells += value
                continue
            cells += [_QUOTE, *(guarded(value) if self.style.csv_safe else value), _QUOTE]
        return cells

    # ---- JSONL ----

    def _json_row(self, event: Event | None) -> list[Cell]:
        cells = [literal("{")]
        for index, name in enumerate(self.columns):
            comma = ", " if index else ""
            cells.append(literal(f"{comma}{json.dumps(name)}: "))
            value = self._column(name, event, missing="null")
            cells += [_QUOTE, *value, _QUOTE] if self._is_text(name, event) else value
        if not self.style.fields and self.style.payload in ("auto", "fields"):
            cells += self._json_fields(event)
        return [*cells, literal("}")]

    def _json_fields(self, event: Event | None) -> list[Cell]:
        """The payload of the usual line: an object of typed values, or hex."""
        if not self._payload_columns:
            return []
        if event is None or not event.fields:
            return [literal(', "payload": "'), payload_hex(), _QUOTE]
        cells = [literal(', "fields": {')]
        for index, one in enumerate(event.fields):
            comma = ", " if index else ""
            cells.append(literal(f"{comma}{json.dumps(one.name)}: "))
            cell = field_cell(one, missing="null", how=self._how)
            cells += [_QUOTE, cell, _QUOTE] if one.type[0] in "cb" else [cell]
        return [*cells, literal("}")]

    # ---- columns ----

    def _column(self, name: str, event: Event | None, missing: str) -> list[Cell]:
        if name == "message":
            return self._message(event) if event else [self._payload_hex()]
        if name in HEADER_COLUMNS:
            return [header(name)]
        if name in COLUMNS:
            return [
                {
                    "offset": lambda: Cell(lib.HMB_PUT_OFFSET),
                    "time": self._time,
                    "name": lambda: self._name(event),
                    "payload": self._payload_hex,
                }[name]()
            ]
        field = self._field(name, event)
        if field is None:
            return [literal("" if self._is_text(name, event) else missing)]
        text, csv = self._how == ESCAPE_TEXT, self._how == ESCAPE_CSV
        return [field_cell(field, missing=missing, how=self._how, labels=text, marked=csv)]

    def _is_text(self, name: str, event: Event | None) -> bool:
        """Whether the value stands in quotes."""
        if name in ("name", "message", "payload"):
            return self.style.format == "jsonl" or name != "payload"
        if name == "time":
            return self.style.clock == "host" and self.style.format == "jsonl"
        if name in COLUMNS:
            return False
        field = self._field(name, event)
        return bool(field and field.type[0] in "cb")

    def _field(self, name: str, event: Event | None) -> Field | None:
        """The field that a payload column shows of an event."""
        return self._payload_columns[name].fields.get(event.opcode) if event else None

    def _message(self, event: Event) -> list[Cell]:
        cells = message_cells(event, self._how)
        return [Cell(lib.HMB_PUT_ROW_TEXT)] if cells is None else cells

    def _row_text(self, event: Event) -> RowText:
        def make(batch: RecordBatch, row: int) -> str:
            names = ("seq", "ts_ns", "opcode", "cpu", "flags")
            values = {name: int(getattr(batch, name)[row]) for name in names}
            try:
                text = event.message(batch.payload(row), **values)
            except (ValueError, TypeError, KeyError) as error:
                text = f"{event.format} [{error}]"
            return escape(text, self._how)

        return make

    def _time(self) -> Cell:
        if self.style.clock == "host":
            return Cell(lib.HMB_PUT_ISO)
        if self.style.format == "text":
            return Cell(lib.HMB_PUT_SECONDS, min_width=16)
        return Cell(lib.HMB_PUT_NS)

    def _payload_hex(self) -> Cell:
        return payload_hex(marked=self._how == ESCAPE_CSV)

    def _name(self, event: Event | None) -> Cell:
        if event is None:
            return header("opcode", base=16, flags=ALT | ZERO, min_width=6)
        return literal(escape(event.name, self._how))


def _needs_row_text(cells: Sequence[Cell]) -> bool:
    return any(cell.put == lib.HMB_PUT_ROW_TEXT for cell in cells)


def _flag_text(flags: int) -> str:
    names = [
        flag.name.lower().replace("_", " ") for flag in RecordFlag if flags & flag and flag.name
    ]
    unknown = flags & ~sum(RecordFlag)
    if unknown:
        names.append(f"flags {unknown:#04x}")
    return f"  [{', '.join(names)}]" if names else ""


_FLAG_TEXTS = {flags: _flag_text(flags) for flags in range(256)}


def _csv_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n') else name

# SPDX-License-Identifier: Apache-2.0
"""Expressions over header columns and payload fields, evaluated on whole batches.

    lba >= 0x1000 and name == "nand_read" and die in (0, 2) and busy_ns > 1.5ms

A small part of Python's grammar: numbers, strings, names, arithmetic, comparisons, `in`,
and/or/not; and times with a unit. Integers are exact, however large. A comparison with a value
that a record does not have is false.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmb_trace.catalog.columns import payload_columns
from hmb_trace.catalog.events import DURATION_UNITS
from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.query import exact
from hmb_trace.query.exact import Mask, Numbers
from hmb_trace.query.grammar import COMPARISONS, HEADER, SIGNS, Grammar

__all__ = ["Expression", "Mask"]


class _Missing:
    """The value of a field that a record does not have."""


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class _Labelled:
    """An integer field's values, and the labels that may stand for them in a comparison."""

    numbers: Numbers
    field: Field


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of rows: char[N] and bytes[N], as bytes."""

    values: Any
    hexadecimal: bool = False  # bytes[N]: a text stands for its digits, as listings show them


class Expression:
    """A compiled expression.

    Args:
        text: see the module's docstring.
        catalog: gives payload fields and names; None: header columns only.

    Raises:
        UsageError: not an expression of this grammar, an unknown name, or a comparison that can
            hold for no record.
    """

    def __init__(self, text: str, catalog: Catalog | None = None) -> None:
        self.text = text
        self._catalog = catalog
        self._events = {event.opcode: event for event in catalog or ()}
        self._columns = {
            column.name: {opcode: field.name for opcode, field in column.fields.items()}
            for column in payload_columns(catalog or ())
        }
        self._grammar = Grammar(text, catalog, self._columns)
        self._tree = self._grammar.tree
        self._fields = self._grammar.fields
        self._by_event = bool(self._fields) or "name" in self._grammar.used

    def mask(self, batch: RecordBatch) -> Mask:
        """Which rows it is true for."""
        found = np.zeros(len(batch), bool)
        with np.errstate(all="ignore"):
            for rows, event in self._groups(batch):
                part = batch.select(rows) if self._by_event else batch
                found[rows] = _Evaluation(self, part, event).truth(self._tree)
        return found

    def _groups(self, batch: RecordBatch) -> Iterator[tuple[Any, Event | None]]:
        """Rows of one opcode that all have the same fields."""
        if not self._by_event:
            yield slice(None), None
            return
        for opcode in np.flatnonzero(np.bincount(batch.opcode, minlength=1)):
            rows = np.flatnonzero(batch.opcode == opcode)
            event = self._events.get(int(opcode))
            needs = self._needs(event)
            whole = batch.payload_len[rows] >= needs
            if whole.any():
                yield rows[whole], event
            for length in np.unique(batch.payload_len[rows[~whole]]):
                yield rows[batch.payload_len[rows] == length], event

    def _needs(self, event: Event | None) -> int:
        found = [self.field(name, event) for name in self._fields]
        return max((f.offset + f.size for f in found if f), default=0)

    def field(self, name: str, event: Event | None) -> Field | None:
        """What a name means in an event: one of its fields, or a column's name for one."""
        if event is None:
            return None
        own = event.field(name)
        if own is not None and name not in HEADER:
            return own
        column = self._columns.get(name, {}).get(event.opcode)
        return event.field(column) if column else None

    def unit_ns(self, node: ast.AST, field: Field | None, name: str) -> int:
        """How many nanoseconds one is, for a name in a comparison with a time; else 1."""
        if node not in self._grammar.timed or name in HEADER:
            return 1
        return DURATION_UNITS.get(field.unit, 1) or 1 if field else 1

    def duration(self, name: str) -> int | None:
        """The nanoseconds of a time literal that this name stands for."""
        return self._grammar.durations.get(name)


class _Evaluation:
    """One expression over rows of one opcode that all have the same fields."""

    def __init__(self, expression: Expression, batch: RecordBatch, event: Event | None) -> None:
        self._of = expression
        self._batch = batch
        self._event = event
        self._n = len(batch)

    def truth(self, node: ast.expr) -> Mask:
        value = _plain(self._eval(node))
        if isinstance(value, Numbers):
            truth = np.broadcast_to(np.asarray(value.values).astype(bool), (self._n,))
            return truth if value.have is None else truth & value.have
        if isinstance(value, np.ndarray):
            return np.broadcast_to(value.astype(bool), (self._n,))
        if isinstance(value, _Texts):
            return np.array([bool(text) for text in value.values], bool)
        return np.full(self._n, value is not _MISSING and bool(value))

    def _eval(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(bool(value)):
                return Numbers(int(value))
            case ast.Constant(int(value)) | ast.Constant(float(value)):
                return Numbers(value)
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._name(node, name)
            case ast.BoolOp(op, values):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce([self.truth(value) for value in values])
            case ast.UnaryOp(ast.Not(), operand):
                return ~self.truth(operand)
            case ast.UnaryOp(op, operand):
                return self._unary(op, self._number(operand))
            case ast.BinOp(left, op, right):
                a, b = self._number(left), self._number(right)
                missing = a is None or b is None
                return _MISSING if missing else exact.arithmetic(SIGNS[type(op)], a, b)
            case ast.Compare(left, ops, comparators):
                return self._compare(left, ops, comparators)
        raise AssertionError(ast.dump(node))  # Grammar lets nothing else through

    def _name(self, node: ast.expr, name: str) -> Any:
        duration = self._of.duration(name)
        if duration is not None:
            return Numbers(duration)
        if name in HEADER:
            return exact.of_column(getattr(self._batch, name))
        if name == "name":
            event = self._event
            return event.name if event else f"{int(self._batch.opcode[0]):#06x}"
        field = self._of.field(name, self._event)
        if field is None or not self._n:
            return _MISSING
        if int(self._batch.payload_len[0]) < field.offset + field.size:
            return _MISSING
        return self._field_values(node, name, field)

    def _field_values(self, node: ast.expr, name: str, field: Field) -> Any:
        values = self._batch.field(field.offset, field.dtype)
        if field.type.startswith("bytes"):
            return _Texts(np.array([value.tobytes() for value in values], "O"), True)
        if field.type.startswith("char"):
            return _Texts(_until_nul(values))
        numbers = exact.of_column(values)
        unit = self._of.unit_ns(node, field, name)
        if unit != 1:
            return exact.arithmetic("*", numbers, Numbers(unit))
        return _Labelled(numbers, field) if field.is_integer else numbers

    def _number(self, node: ast.expr) -> Numbers | None:
        """An operand of arithmetic; None: the record has no such value, or it is text."""
        value = _plain(self._eval(node))
        if isinstance(value, np.ndarray):
            return exact.of_column(value)
        return value if isinstance(value, Numbers) else None

    def _unary(self, op: ast.unaryop, value: Numbers | None) -> Any:
        if value is None:
            return _MISSING
        if isinstance(op, ast.UAdd):
            return value
        return exact.negative(value) if isinstance(op, ast.USub) else exact.inverted(value)

    # ---- comparisons ----

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]) -> Mask:
        result = np.ones(self._n, bool)
        a = self._eval(left)
        for op, right in zip(ops, comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                result &= self._member(a, op, right)
                continue
            b = self._eval(right)
            result &= self._two(COMPARISONS[type(op)], a, b)
            a = b
        return result

    def _member(self, a: Any, op: ast.cmpop, right: ast.expr) -> Mask:
        assert isinstance(right, (ast.Tuple, ast.List, ast.Set))
        found = np.zeros(self._n, bool)
        if a is _MISSING:
            return found
        for item in right.elts:
            found |= self._two("==", a, self._eval(item))
        return ~found if isinstance(op, ast.NotIn) else found

    def _two(self, sign: str, a: Any, b: Any) -> Mask:
        if a is _MISSING or b is _MISSING:
            return np.zeros(self._n, bool)
        made = np.broadcast_to(self._holds(sign, a, b), (self._n,))
        for one in (_plain(a), _plain(b)):
            if isinstance(one, Numbers) and one.have is not None:
                made = made & one.have
        return made

    def _holds(self, sign: str, a: Any, b: Any) -> Any:
        a, b = _label_value(a, b), _label_value(b, a)
        a, b = _as_numbers(_plain(a)), _as_numbers(_plain(b))
        if isinstance(a, Numbers) and isinstance(b, Numbers):
            return exact.compare(sign, a, b)
        if isinstance(a, Numbers) or isinstance(b, Numbers):
            return np.asarray(sign == "!=")  # a text and a number are never equal, nor in order
        one, two = _text_values(a, b), _text_values(b, a)
        return np.asarray(exact.SIGNS[sign](one, two)).astype(bool)


def _as_numbers(value: Any) -> Any:
    return exact.of_column(value) if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    return value.numbers if isinstance(value, _Labelled) else value


def _until_nul(values: Any) -> Any:
    """char[N]: the text up to the first NUL, as everywhere else."""
    if not any(b"\0" in value for value in values):
        return values
    return np.array([value.split(b"\0", 1)[0] for value in values], values.dtype)


def _label_value(value: Any, other: Any) -> Any:
    """A string compared with a labelled field stands for the label's value, if it has it."""
    if not (isinstance(value, str) and isinstance(other, _Labelled)):
        return value
    for number, label in other.field.enum.items():
        if label == value:
            return Numbers(number)
    return value


def _text_values(value: Any, other: Any) -> Any:
    """Texts for a comparison: both str, or both bytes."""
    if isinstance(value, _Texts):
        return value.values
    if isinstance(value, str) and isinstance(other, _Texts):
        return bytes.fromhex(value) if other.hexadecimal else value.encode()
    if isinstance(value, bytes) and isinstance(other, str):
        return value.decode("utf-8", "replace")
    return value

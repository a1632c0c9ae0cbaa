# SPDX-License-Identifier: Apache-2.0
"""Expressions over header columns and payload fields, evaluated on whole batches.

    lba >= 0x1000 and name == "nand_read" and die in (0, 2)

A small part of Python's grammar: numbers, strings, names, arithmetic, comparisons, `in`,
and/or/not. A comparison with a field that a record does not have is false.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.errors import UsageError

Mask = npt.NDArray[np.bool_]
_HEADER = ("seq", "ts_ns", "opcode", "cpu", "flags", "payload_len", "offset")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


class _Missing:
    """The value of a field that a record does not have."""


_MISSING = _Missing()


class _Labelled:
    """A field's values, and the labels that may stand for them in a comparison."""

    def __init__(self, values: Any, field: Field) -> None:
        self.values = values
        self.field = field


class Expression:
    """A compiled expression.

    Args:
        text: see the module's docstring.
        catalog: gives payload fields and names; None: header columns only.

    Raises:
        UsageError: not an expression of this grammar, or a name that nobody knows.
    """

    def __init__(self, text: str, catalog: Catalog | None = None) -> None:
        self.text = text
        self._events = {event.opcode: event for event in catalog or ()}
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise UsageError(f"expression {text!r}: {reason}") from None
        _check_nodes(self._tree, text)
        self._fields = self._check_names()
        self._by_event = bool(self._fields) or "name" in self._used

    @property
    def _used(self) -> set[str]:
        return {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}

    def _check_names(self) -> set[str]:
        fields = {f.name for event in self._events.values() for f in event.fields}
        known = {*_HEADER, "name", *fields}
        for name in sorted(self._used - known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            more = "" if self._events else "; payload fields need a --catalog"
            raise UsageError(f"expression: no field {name!r}; {hint}{more}")
        return self._used - {*_HEADER, "name"}

    def mask(self, batch: RecordBatch) -> Mask:
        """Which rows it is true for."""
        found = np.zeros(len(batch), bool)
        with np.errstate(all="ignore"):
            for rows, event in self._groups(batch):
                part = batch.select(rows) if self._by_event else batch
                found[rows] = _truth(self._eval(self._tree, part, event), len(part))
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
        used = [f for f in event.fields if f.name in self._fields] if event else []
        return max((f.offset + f.size for f in used), default=0)

    def _eval(self, node: ast.expr, batch: RecordBatch, event: Event | None) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return _column(name, batch, event)
            case ast.BoolOp(op, values):
                parts = [_truth(self._eval(v, batch, event), len(batch)) for v in values]
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(parts)
            case ast.UnaryOp(ast.Not(), operand):
                return ~_truth(self._eval(operand, batch, event), len(batch))
            case ast.UnaryOp(op, operand):
                value = _plain(self._eval(operand, batch, event))
                return value if value is _MISSING else self._apply(_UNARY[type(op)], value)
            case ast.BinOp(left, op, right):
                a = _plain(self._eval(left, batch, event))
                b = _plain(self._eval(right, batch, event))
                missing = a is _MISSING or b is _MISSING
                return _MISSING if missing else self._apply(_ARITHMETIC[type(op)], a, b)
            case ast.Compare(left, ops, comparators):
                return self._compare(left, ops, comparators, batch, event)
        raise AssertionError(ast.dump(node))  # _check_nodes lets nothing else through

    def _compare(
        self,
        left: ast.expr,
        ops: list[ast.cmpop],
        comparators: list[ast.expr],
        batch: RecordBatch,
        event: Event | None,
    ) -> Mask:
        result = np.ones(len(batch), bool)
        a = self._eval(left, batch, event)
        for op, right in zip(ops, comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                result &= self._member(a, op, right, batch, event)
                continue
            b = self._eval(right, batch, event)
            result &= self._compare_two(_COMPARISONS[type(op)], a, b, len(batch))
            a = b
        return result

    def _member(
        self, a: Any, op: ast.cmpop, right: ast.expr, batch: RecordBatch, event: Event | None
    ) -> Mask:
        assert isinstance(right, (ast.Tuple, ast.List, ast.Set))
        found = np.zeros(len(batch), bool)
        if a is _MISSING:
            return found
        for item in right.elts:
            value = self._eval(item, batch, event)
            found |= self._compare_two(operator.eq, a, value, len(batch))
        return ~found if isinstance(op, ast.NotIn) else found

    def _compare_two(self, compare: Callable[[Any, Any], Any], a: Any, b: Any, n: int) -> Mask:
        if a is _MISSING or b is _MISSING:
            return np.zeros(n, bool)
        a, b = _label_value(a, b), _label_value(b, a)
        a, b = _text_like(_plain(a), b), _text_like(_plain(b), a)
        return _truth(self._apply(compare, a, b), n)

    def _apply(self, function: Callable[..., Any], *values: Any) -> Any:
        try:
            return function(*values)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
            raise UsageError(f"expression {self.text!r}: {error}") from None


def _check_nodes(tree: ast.expr, text: str) -> None:
    members = {
        id(right)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for op, right in zip(node.ops, node.comparators, strict=True)
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set))
    }
    for node in ast.walk(tree):
        if not _is_allowed(node, members):
            raise UsageError(
                f"expression {text!r}: {type(node).__name__} is not allowed; expected comparisons "
                'of fields and values with and, or, not, in, as in: lba >= 4096 and name == "x"'
            )


def _is_allowed(node: ast.AST, members: set[int]) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str, bytes))
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return id(node) in members
    if isinstance(node, ast.Compare):
        kinds = [(op, right) for op, right in zip(node.ops, node.comparators, strict=True)]
        return all(
            type(op) in _COMPARISONS or (isinstance(op, (ast.In, ast.NotIn)) and id(r) in members)
            for op, r in kinds
        )
    if isinstance(node, ast.BinOp):
        return type(node.op) in _ARITHMETIC
    return isinstance(
        node,
        (
            *(ast.BoolOp, ast.UnaryOp, ast.Name, ast.boolop, ast.unaryop),
            *(ast.operator, ast.cmpop, ast.expr_context),
        ),
    )


def _column(name: str, batch: RecordBatch, event: Event | None) -> Any:
    field = event.field(name) if event else None
    if name in _HEADER:
        return _widened(getattr(batch, name))
    if name == "name":
        return event.name if event else f"{int(batch.opcode[0]):#06x}"
    if field is None or not len(batch) or int(batch.payload_len[0]) < field.offset + field.size:
        return _MISSING
    values = batch.field(field.offset, field.dtype)
    if field.type.startswith("bytes"):
        return np.array([value.tobytes() for value in values], "O")
    return _Labelled(_widened(values) if field.is_integer else values, field)


def _widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers as int64, so that arithmetic does not wrap; uint64 only where it must be."""
    if values.dtype == np.uint64 and len(values) and int(values.max()) >= 1 << 63:
        return values
    return values.astype("i8")


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, _Labelled) else value


def _label_value(value: Any, other: Any) -> Any:
    """A string compared with a labelled field stands for the label's value."""
    if not (isinstance(value, str) and isinstance(other, _Labelled) and other.field.is_integer):
        return value
    for number, label in other.field.enum.items():
        if label == value:
            return number
    labels = ", ".join(other.field.enum.values()) or "none"
    raise UsageError(f"expression: {other.field.name} has no label {value!r}; it has {labels}")


def _text_like(value: Any, other: Any) -> Any:
    """A string compared with char[N] is its bytes."""
    if isinstance(value, str) and isinstance(_plain(other), np.ndarray):
        return value.encode()
    return value


def _truth(value: Any, n: int) -> Mask:
    if value is _MISSING:
        return np.zeros(n, bool)
    return np.broadcast_to(np.asarray(_plain(value)).astype(bool), (n,))

# SPDX-License-Identifier: Apache-2.0
"""What an expression may say, checked before the first record is read."""

from __future__ import annotations

import ast
import difflib
import logging
import re
from collections.abc import Iterator, Mapping

from hmb_trace.catalog.columns import RECORD_COLUMNS
from hmb_trace.catalog.model import Catalog, Field
from hmb_trace.errors import UsageError
from hmb_trace.units import parse_duration

log = logging.getLogger("hmb_trace")

HEADER = (*RECORD_COLUMNS, "offset")
SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_UNARY = (ast.USub, ast.UAdd, ast.Invert, ast.Not)
_LISTS = (ast.Tuple, ast.List, ast.Set)
_EXAMPLE = 'lba >= 4096 and name == "x"'
_STRING = r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_TIME = re.compile(
    _STRING + r"|(?<![\w.])(?P<time>\d+(?:\.\d+)?(?:ns|us|ms|s|min|h))(?![\w.])", re.ASCII
)
_FOREIGN = re.compile(_STRING + r"|(?P<sign>(?<![=!<>:])=(?!=)|&&|\|\||!(?!=)|<>)")
_MEANT = {"=": "==", "&&": "and", "||": "or", "!": "not", "<>": "!="}
_NO_TIME = ("", "cycles")  # units of which it is not known how long one lasts
_TIME_NAME = "_time_literal_{}"


class Grammar:
    """A parsed expression.

    Args:
        columns: payload column names, and the field that each means by opcode.

    Attributes:
        used: names in it.
        fields: those that are payload fields.
        durations: names that stand for time literals, and their nanoseconds.
        timed: names (nodes) in comparisons with a time: their values count in nanoseconds.

    Raises:
        UsageError: see Expression.
    """

    def __init__(
        self, text: str, catalog: Catalog | None, columns: Mapping[str, Mapping[int, str]]
    ) -> None:
        self.text = text
        self.durations: dict[str, int] = {}
        self.timed: set[ast.AST] = set()
        self._catalog = catalog
        self._columns = columns
        self.tree = self._parse(text)
        self._check_nodes()
        self.used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        self.fields = self._check_names()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare):
                self._check_comparison(node)
            elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
                self._check_arithmetic(node)

    def _error(self, reason: str) -> UsageError:
        return UsageError(f"expression {self.text!r}: {reason}")

    # ---- text to tree ----

    def _parse(self, text: str) -> ast.expr:
        for match in _FOREIGN.finditer(text):
            sign = match["sign"]
            if sign:
                raise self._error(f"found {sign!r}, expected {_MEANT[sign]!r}")
        try:
            return ast.parse(_TIME.sub(self._literal, text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            if not text.strip():
                reason = f"is empty, expected a condition such as {_EXAMPLE}"
            raise self._error(reason) from None

    def _literal(self, match: re.Match[str]) -> str:
        if match["string"]:
            return match["string"]
        name = _TIME_NAME.format(len(self.durations))
        self.durations[name] = parse_duration(match["time"])
        return name

    def _check_nodes(self) -> None:
        members = {id(right) for _, _, right in self._memberships()}
        for node in ast.walk(self.tree):
            if not _is_allowed(node, members):
                raise self._error(
                    f"{type(node).__name__} is not allowed; expected comparisons of fields and "
                    f"values with and, or, not, in, as in: {_EXAMPLE}"
                )

    def _memberships(self) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare):
                for left, op, right in _pairs(node):
                    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, _LISTS):
                        yield left, op, right

    # ---- names ----

    def _check_names(self) -> set[str]:
        fields = {f.name for event in self._catalog or () for f in event.fields}
        known = {*HEADER, "name", *fields, *self._columns}
        for name in sorted(self.used - known - set(self.durations)):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            more = "" if self._catalog else "; payload fields need a --catalog"
            raise UsageError(f"expression: no field {name!r}; {hint}{more}")
        for name in sorted(self.used & fields & set(HEADER)):
            log.warning(
                "expression: %s is the record's own; the payload field of that name is payload_%s",
                name,
                name,
            )
        return self.used - {*HEADER, "name"} - set(self.durations)

    def _fields_of(self, name: str) -> list[Field]:
        """The payload fields that a name can mean."""
        if name in HEADER or name == "name":
            return []
        column = self._columns.get(name, {})
        found = []
        for event in self._catalog or ():
            one = event.field(name) or event.field(column.get(event.opcode, ""))
            found += [one] if one else []
        return found

    # ---- comparisons and arithmetic that cannot be meant ----

    def _check_comparison(self, node: ast.Compare) -> None:
        for left, _, right in _pairs(node):
            items = right.elts if isinstance(right, _LISTS) else [right]
            for item in items:
                self._check_two(left, item)
                self._check_two(item, left)
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        if any(n.id in self.durations for n in names):
            self.timed |= set(names)
            for one in names:
                self._check_unit(one.id)

    def _check_two(self, one: ast.expr, other: ast.expr) -> None:
        if not isinstance(one, ast.Name):
            return
        name = one.id
        if isinstance(other, ast.Constant) and isinstance(other.value, (str, bytes)):
            self._check_text(name, other.value)
        elif name == "name" and not isinstance(other, ast.Name):
            raise self._error("name is text; compare it with a text in quotes")
        elif self._is_text(name) and isinstance(other, ast.Constant):
            raise self._error(f"{name} is text; compare it with a text in quotes")

    def _is_text(self, name: str) -> bool:
        found = self._fields_of(name)
        return bool(found) and all(f.type[0] in "cb" for f in found)

    def _check_text(self, name: str, text: str | bytes) -> None:
        if name == "name":
            self._check_event_name(text)
            return
        fields = self._fields_of(name)
        if any(f.type.startswith("char") for f in fields):
            return
        if any(f.type.startswith("bytes") for f in fields):
            if isinstance(text, str) and not re.fullmatch(r"(?:[0-9A-Fa-f]{2})*", text):
                raise self._error(f"{name} is bytes; expected pairs of hexadecimal digits")
            return
        labels = list(dict.fromkeys(label for f in fields for label in f.enum.values()))
        if not labels:
            raise self._error(f"{name} is a number; compare it with a number, found {text!r}")
        if text not in labels:
            raise self._error(f"{name} has no label {text!r}; it has {', '.join(labels)}")

    def _check_event_name(self, text: str | bytes) -> None:
        """An unknown name is no error: one catalog may have it, the next may not."""
        known = self._catalog.by_name if self._catalog else {}
        if not known or not isinstance(text, str) or text in known or text.startswith("0x"):
            return
        near = difflib.get_close_matches(text.lower(), {k.lower(): k for k in known}, n=1)
        meant = next((k for k in known if near and k.lower() == near[0]), None)
        hint = f"; did you mean {meant!r}?" if meant else ""
        log.warning("expression: the catalog has no event %r%s", text, hint)

    def _check_unit(self, name: str) -> None:
        """Whether it is known how long a one of this name lasts."""
        if name in self.durations or name in HEADER or name.endswith("_ns"):
            return
        for one in self._fields_of(name):
            if one.unit in _NO_TIME:
                raise self._error(
                    f"{name} has no unit in the catalog, so it cannot be compared with a time; "
                    "give it one (ns, us, ms, s) or compare it with a plain number"
                )

    def _check_arithmetic(self, node: ast.BinOp | ast.UnaryOp) -> None:
        operands = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return
        for one in operands:
            text = isinstance(one, ast.Constant) and isinstance(one.value, (str, bytes))
            if text or (isinstance(one, ast.Name) and (one.id == "name" or self._is_text(one.id))):
                raise self._error("text can be compared, not calculated with")


def _pairs(node: ast.Compare) -> list[tuple[ast.expr, ast.cmpop, ast.expr]]:
    lefts = [node.left, *node.comparators]
    return list(zip(lefts, node.ops, node.comparators, strict=False))


def _is_allowed(node: ast.AST, members: set[int]) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str, bytes))
    if isinstance(node, _LISTS):
        return id(node) in members
    if isinstance(node, ast.Compare):
        return all(
            type(op) in COMPARISONS or (isinstance(op, (ast.In, ast.NotIn)) and id(r) in members)
            for _, op, r in _pairs(node)
        )
    if isinstance(node, ast.BinOp):
        return type(node.op) in SIGNS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, _UNARY)
    return isinstance(
        node,
        (ast.BoolOp, ast.Name, ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
    )

# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on columns as exact as Python's: no wrap, whatever else a batch holds.

Integers stand in the narrowest of int64, uint64 and Python's own that holds operands and result;
which one that is changes the speed and never the result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace.errors import UsageError

Mask = npt.NDArray[np.bool_]
Bounds = tuple[int, int]
_I64: Bounds = (-(1 << 63), (1 << 63) - 1)
_U64: Bounds = (0, (1 << 64) - 1)
_MOST_BITS = 4096  # of a result; an expression that goes beyond is a mistake
_MOST_SHIFT = 255


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number per row, or one for all rows.

    Attributes:
        values: int64, uint64, float or object (Python's int) array, or a Python number.
        have: rows that have a value; None: all of them.
        limits: what no integer exceeds, known without a look at them.
    """

    values: Any
    have: Mask | None = None
    limits: Bounds | None = None

    @property
    def is_float(self) -> bool:
        """Whether it holds floats and not integers."""
        if isinstance(self.values, np.ndarray):
            return bool(self.values.dtype.kind == "f")
        return isinstance(self.values, float)

    def bounds(self, *, exact: bool = False) -> Bounds:
        """What no integer exceeds; exact: the least and the greatest."""
        if self.limits is not None and not exact:
            return self.limits
        if not isinstance(self.values, np.ndarray):
            return int(self.values), int(self.values)
        if not len(self.values):
            return 0, 0
        return int(self.values.min()), int(self.values.max())


def of_column(values: npt.NDArray[Any]) -> Numbers:
    """A column of any number type."""
    if values.dtype.kind == "b":
        return Numbers(values.astype("i8"), limits=(0, 1))
    if values.dtype.kind in "ui" and values.dtype.itemsize < 8:
        known = np.iinfo(values.dtype)
        return Numbers(values.astype("i8"), limits=(int(known.min), int(known.max)))
    return Numbers(values)


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """Rows that both have."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _fits(bounds: Bounds, into: Bounds) -> bool:
    return into[0] <= bounds[0] and bounds[1] <= into[1]


def _as(numbers: Numbers, kind: str) -> Any:
    """The values in int64, uint64 or Python's integers."""
    if isinstance(numbers.values, np.ndarray):
        return numbers.values.astype(kind, copy=False)
    value = int(numbers.values)
    return np.array(value, "O") if kind == "O" else np.dtype(kind).type(value)


def _kind(*bounds: Bounds) -> str:
    """The narrowest type that holds all of these."""
    for kind, into in (("i8", _I64), ("u8", _U64)):
        if all(_fits(one, into) for one in bounds):
            return kind
    return "O"


def _floats(numbers: Numbers) -> Any:
    if isinstance(numbers.values, np.ndarray):
        return numbers.values.astype("f8")
    try:
        return np.float64(numbers.values)
    except OverflowError:
        return np.float64(math.inf if numbers.values > 0 else -math.inf)


# ---- what a result can be ----


def _corners(function: Callable[[int, int], int]) -> Callable[[Bounds, Bounds], Bounds]:
    def bounds(a: Bounds, b: Bounds) -> Bounds:
        found = [function(x, y) for x in a for y in b]
        return min(found), max(found)

    return bounds


def _divided(a: Bounds, b: Bounds) -> Bounds:
    most = max(abs(a[0]), abs(a[1]))
    return (0 if a[0] >= 0 and b[0] >= 0 else -most), most


def _rest(a: Bounds, b: Bounds) -> Bounds:
    most = max(abs(b[0]), abs(b[1]))
    return (0 if a[0] >= 0 and b[0] >= 0 else -most), most


def _bitwise(a: Bounds, b: Bounds) -> Bounds:
    most = (1 << max(x.bit_length() for x in (*a, *b))) - 1
    return (0 if min(a[0], b[0]) >= 0 else -most - 1), most


def _anded(a: Bounds, b: Bounds) -> Bounds:
    if a[0] >= 0 and b[0] >= 0:
        return 0, min(a[1], b[1])
    return _bitwise(a, b)


_RESULTS: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "+": _corners(operator.add),
    "-": _corners(operator.sub),
    "*": _corners(operator.mul),
    "//": _divided,
    "%": _rest,
    "&": _anded,
    "|": _bitwise,
    "^": _bitwise,
    "<<": _corners(operator.lshift),
    ">>": _divided,
}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
_INTEGERS_ONLY = ("&", "|", "^", "<<", ">>")


def arithmetic(sign: str, a: Numbers, b: Numbers) -> Numbers:
    """a sign b, row by row; a division by zero and a shift that makes no sense have no value.

    Raises:
        UsageError: bits of a float, or a result of more than 4096 bits.
    """
    if a.is_float or b.is_float:
        if sign in _INTEGERS_ONLY:
            raise UsageError(f"expression: {sign} takes integers, found a floating-point value")
        return _float_arithmetic(sign, a, b)
    if sign == "/":
        return _float_arithmetic(sign, a, b)
    b = _sensible(sign, b)
    in_a, in_b = a.bounds(), b.bounds()
    result = _RESULTS[sign](in_a, in_b)
    kind = _kind(in_a, in_b, result)
    if kind == "O":  # a closer look may save the slow way
        in_a, in_b = a.bounds(exact=True), b.bounds(exact=True)
        result = _RESULTS[sign](in_a, in_b)
        kind = _kind(in_a, in_b, result)
    if max(abs(result[0]), abs(result[1])).bit_length() > _MOST_BITS:
        raise UsageError(f"expression: a result has more than {_MOST_BITS} bits")
    if sign in ("<<", ">>") and in_b[1] >= 64:
        kind = "O"  # the machine has no such shift
    values = _FUNCTIONS[sign](_as(a, kind), _as(b, kind))
    return Numbers(_plain(values), both(a.have, b.have), result)


def _sensible(sign: str, b: Numbers) -> Numbers:
    """The right side, where it makes no sense replaced by 1 and marked as no value."""
    low, high = b.bounds()
    if sign in ("<<", ">>") and high > _MOST_SHIFT:
        low, high = b.bounds(exact=True)
    if sign in ("//", "%") and low <= 0 <= high:
        bad = np.asarray(b.values == 0)
    elif sign in ("<<", ">>") and (low < 0 or high > _MOST_SHIFT):
        bad = np.asarray(b.values < 0) | np.asarray(b.values > _MOST_SHIFT)
    else:
        return b
    values = np.where(bad, np.asarray(1, np.asarray(b.values).dtype), b.values)
    return Numbers(_plain(values), both(b.have, np.asarray(~bad.astype(bool))))


def _float_arithmetic(sign: str, a: Numbers, b: Numbers) -> Numbers:
    left, right = _floats(a), _floats(b)
    have = both(a.have, b.have)
    if sign in ("/", "//", "%"):
        have = both(have, np.asarray(right != 0))
    return Numbers(_plain(_FUNCTIONS[sign](left, right)), have)


def _plain(values: Any) -> Any:
    """A result without rows as Python's number."""
    if isinstance(values, np.ndarray):
        return values if values.ndim else values.item()
    return values.item() if isinstance(values, np.generic) else values


def negative(a: Numbers) -> Numbers:
    """-a."""
    return Numbers(-a.values, a.have) if a.is_float else arithmetic("-", Numbers(0), a)


def inverted(a: Numbers) -> Numbers:
    """~a, which is -a - 1."""
    if a.is_float:
        raise UsageError("expression: ~ takes integers, found a floating-point value")
    return arithmetic("-", Numbers(-1), a)


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def compare(sign: str, a: Numbers, b: Numbers) -> Any:
    """Where a sign b holds; rows without a value are not looked at."""
    if isinstance(a.values, float) and not b.is_float:
        return compare(_MIRRORED[sign], b, a)
    if isinstance(b.values, float) and not a.is_float:
        return _with_float(sign, a, b.values)
    if a.is_float or b.is_float:
        return SIGNS[sign](_floats(a), _floats(b))
    kind = _kind(a.bounds(), b.bounds())
    if kind == "O":
        kind = _kind(a.bounds(exact=True), b.bounds(exact=True))
    return np.asarray(SIGNS[sign](_as(a, kind), _as(b, kind))).astype(bool)


def _with_float(sign: str, a: Numbers, b: float) -> Any:
    """Integers against one float, without rounding the integers."""
    if math.isnan(b) or math.isinf(b):
        return SIGNS[sign](_floats(a), np.float64(b))
    if b == int(b):
        return compare(sign, a, Numbers(int(b)))
    if sign in ("==", "!="):
        return np.full(np.shape(a.values), sign == "!=")
    if sign in ("<", "<="):
        return compare("<=", a, Numbers(math.floor(b)))
    return compare(">=", a, Numbers(math.ceil(b)))

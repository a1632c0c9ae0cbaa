# SPDX-License-Identifier: Apache-2.0
"""Durations: those that records carry, and what the halves of a pair are called together.

The rule for what a carried value means is C's (hmb_durations_ns), which packs .pccx files too.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi, lib
from hmb_trace.catalog.model import Catalog, Event, Field
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.walker import pointer
from hmb_trace.query.rules import duration_ratio

U64 = npt.NDArray[np.uint64]


class Carried(NamedTuple):
    """Durations of a batch.

    Attributes:
        rows: of the batch, those with a duration.
        ns: one for each of these rows.
        invalid: how many records have a value that is no duration.
    """

    rows: npt.NDArray[np.intp]
    ns: U64
    invalid: int


class DurationRule:
    """Takes durations from records of one event of kind `complete`.

    A value that is negative, that is 2^64 - 1 (which firmware writes for "not finished"), or
    that has more nanoseconds than 64 bits hold is no duration: it is counted, and nothing else.
    """

    def __init__(self, event: Event, clock_mhz: int) -> None:
        self.event = event
        self._field = duration_field(event)
        self._mul, self._div = duration_ratio(event.duration_unit, clock_mhz)

    def of(self, batch: RecordBatch) -> Carried:
        """The durations; records too short for the field have none."""
        field = self._field
        if field is None:
            return Carried(np.empty(0, np.intp), np.empty(0, "u8"), 0)
        rows = np.flatnonzero(
            (batch.opcode == self.event.opcode) & (batch.payload_len >= field.offset + field.size)
        )
        if not len(rows):
            return Carried(rows, np.empty(0, "u8"), 0)
        values = batch.select(rows).field(field.offset, f"<u{field.size}").astype("u8")
        ns, valid, invalid = self._convert(values, field)
        return Carried(rows, ns, 0) if not invalid else Carried(rows[valid], ns[valid], invalid)

    def of_value(self, value: int) -> int | None:
        """One duration in ns; None if it is none."""
        assert self._field is not None
        bits = np.array([value & ((1 << 8 * self._field.size) - 1)], "u8")
        ns, _, invalid = self._convert(bits, self._field)
        return None if invalid else int(ns[0])

    def _convert(self, values: U64, field: Field) -> tuple[U64, npt.NDArray[np.bool_], int]:
        ns, valid = np.empty(len(values), "u8"), np.empty(len(values), "u1")
        invalid = lib.hmb_durations_ns(
            *(pointer(values), len(values), field.size, field.is_signed, self._mul, self._div),
            *(pointer(ns), ffi.cast("uint8_t *", valid.ctypes.data)),
        )
        return ns, valid.astype(bool), int(invalid)


def duration_field(event: Event) -> Field | None:
    """The field that carries the duration, if the event has one."""
    found = event.field(event.duration) if event.kind == "complete" else None
    return found if found is not None and found.is_integer else None


def duration_rules(catalog: Catalog | None) -> list[DurationRule]:
    """One for each event that carries durations."""
    found = [e for e in catalog or () if duration_field(e)]
    return [DurationRule(event, catalog.clock_mhz) for event in found if catalog]


_SEPARATORS = "_-.: "


def pair_name(begin: str, end: str) -> str:
    """What begin and end are both called: nand_read of nand_read_begin and nand_read_end."""
    equal = itertools.takewhile(lambda ab: ab[0] == ab[1], zip(begin, end, strict=False))
    same = sum(1 for _ in equal)
    if not all(_is_word_end(name, same) for name in (begin, end)):
        same = max(begin.rfind(one, 0, same) for one in _SEPARATORS)
    common = begin[: max(same, 0)].rstrip(_SEPARATORS)
    return common if len(common) >= 2 else f"{begin} to {end}"


def _is_word_end(name: str, at: int) -> bool:
    """Whether a word ends before this place, by a separator or by case."""
    if at in (0, len(name)) or name[at] in _SEPARATORS or name[at - 1] in _SEPARATORS:
        return True
    return name[at].isupper() and not name[at - 1].isupper()


def pair_names(catalog: Catalog) -> dict[int, str]:
    """Name of what each opcode is a half of, or carries the duration of.

    Two pairs of one name are told apart by their begins.
    """
    halves = {e.opcode: pair_name(e.name, e.pair) for e in catalog if e.kind == "begin" and e.pair}
    names = [*halves.values(), *(e.name for e in catalog if duration_field(e))]
    found: dict[int, str] = {}
    for event in catalog:
        if event.opcode in halves:
            name = halves[event.opcode]
            name = name if names.count(name) == 1 else event.name
            found[event.opcode] = found[catalog.by_name[event.pair].opcode] = name
        elif duration_field(event):
            found[event.opcode] = event.name
    return found


def as_dict(histogram: Any) -> dict[str, Any]:
    """count, min, mean, p50, p90, p99, p999, max of a LogHistogram (ns); null without values."""
    some = bool(histogram.count)
    quantiles = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
    return {
        "count": histogram.count,
        "min_ns": histogram.minimum if some else None,
        "mean_ns": histogram.mean if some else None,
        **{key: histogram.quantile(q) if some else None for key, q in quantiles.items()},
        "max_ns": histogram.maximum if some else None,
    }

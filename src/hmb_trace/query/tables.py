# SPDX-License-Identifier: Apache-2.0
"""Tables that SQL sees: Arrow data made while it is scanned, and only the columns it asks for.

DuckDB binds a query against a table's schema and then asks for the columns that the plan needs.
Which those are is its knowledge, not ours: no query text is looked at. A table can be scanned as
often as a plan likes, since every scan reads the dump anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hmb_trace.exports.arrow import pyarrow


class _Scan:
    """What DuckDB takes a scanner for."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def projected_schema(self) -> Any:
        """Of the batches."""
        return self._reader.schema

    def to_reader(self) -> Any:
        """The batches, to be read once."""
        return self._reader


@functools.cache
def _lazy_class() -> Any:
    """A pyarrow Dataset: the one kind of object that DuckDB hands projections and filters to."""
    import pyarrow.dataset  # noqa: PLC0415 - heavy and optional

    class Lazy(pyarrow.dataset.Dataset):  # type: ignore[misc, unused-ignore] # pyarrow may be untyped
        def __init__(self, schema: Any, batches: Batches) -> None:
            self._columns = schema
            self._batches = batches

        @property
        def schema(self) -> Any:
            return self._columns

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any
        ) -> _Scan:
            names = self._columns.names
            shown = names if columns is None else list(columns)
            # The text of a filter has the name of each column that it looks at; it may have the
            # names of others too, which then are made in vain.
            text = "" if filter is None else str(filter)
            made = [name for name in names if name in shown or name in text]
            found = _filtered(self._batches(made), shown, filter)
            schema = pyarrow.schema([self._columns.field(name) for name in shown])
            return _Scan(pyarrow.RecordBatchReader.from_batches(schema, found))

    return Lazy


def _filtered(batches: Iterator[Any], shown: list[str], wanted: Any) -> Iterator[Any]:
    for batch in batches:
        rows = batch if wanted is None else batch.filter(wanted)
        yield rows.select(shown)


Batches = Callable[[list[str]], Iterator[Any]]


def lazy_table(schema: Any, batches: Batches) -> Any:
    """A table for DuckDB.

    Args:
        schema: of all its columns.
        batches: gives pyarrow record batches of the columns named, from the begin.
    """
    pyarrow()
    return _lazy_class()(schema, batches)


def lazy_rows(schema: Any, rows: Callable[[], list[dict[str, Any]]]) -> Any:
    """A small table, made when it is scanned.

    Args:
        rows: gives column names and values.
    """
    pa = pyarrow()

    def batches(names: list[str]) -> Iterator[Any]:
        table = pa.Table.from_pylist(rows(), schema=schema)
        yield from table.select(names).to_batches()

    return lazy_table(schema, batches)

# SPDX-License-Identifier: Apache-2.0
"""SQL over dumps: DuckDB reads Arrow batches that are made while it asks for them.

Tables: `trace` (every record), `gaps` (every loss), and one per catalog event with its typed
payload fields. A table that a query scans once is streamed; one that it scans more often is
copied into DuckDB first (on disk where memory does not do), since a stream can be read only once.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import Loss, losses
from hmb_trace.dumps.timeaxis import can_read_twice
from hmb_trace.errors import HmbTraceError, MissingExtraError, UsageError
from hmb_trace.exports.arrow import ArrowMaker, column_names_in, pyarrow, reader
from hmb_trace.query.select import Selection

_MEMORY = "60MB"  # of DuckDB; with Python, numpy and pyarrow the process stays below 250 MB
_RESERVED = frozenset(["trace", "gaps"])


def _duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415 - heavy and optional
    except ImportError:
        raise MissingExtraError(
            "duckdb is not installed: pip install 'hmb-trace[analysis]'"
        ) from None
    return duckdb


class Session:
    """A DuckDB connection over one dump.

    Args:
        partial: read damaged dumps up to the fault.

    Raises:
        MissingExtraError: duckdb or pyarrow is not installed.
    """

    def __init__(
        self,
        dump: Dump,
        *,
        catalog: Catalog | None = None,
        selection: Selection | None = None,
        partial: bool = False,
    ) -> None:
        self._dump = dump
        self._catalog = catalog
        self._selection = selection or Selection()
        self._partial = partial
        self._duckdb = _duckdb()
        pyarrow()
        self._errors: list[HmbTraceError] = []
        self._folder = tempfile.TemporaryDirectory(prefix="hmb-trace-sql-")
        database = Path(self._folder.name) / "tables.duckdb"
        self._connection = self._duckdb.connect(str(database))
        self._connection.execute(f"SET memory_limit = '{_MEMORY}'")
        self._connection.execute("SET preserve_insertion_order = true")
        self._events = {_table_name(event): event for event in catalog or ()}
        self._ready: set[str] = set()

    @property
    def tables(self) -> list[str]:
        """Names that a query may use."""
        return ["trace", "gaps", *self._events]

    def execute(self, query: str) -> Any:
        """Run one SQL statement; returns the DuckDB result (fetchmany, description).

        Raises:
            UsageError: SQL that DuckDB refuses.
            DumpError: the dump is damaged (without partial).
        """
        wanted = self._wanted(query)
        for name, table_text in wanted.items():
            self._offer(name, table_text)
        try:
            for name, scans in self._scans(query, wanted).items():
                if scans > 1:
                    self._materialise(name, wanted[name])
            return self._connection.execute(query)
        except self._duckdb.Error as error:
            raise self._meaning(error) from None

    def fetch(self, result: Any, size: int = 4096) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a result, block by block. Raises as execute."""
        while True:
            try:
                rows = result.fetchmany(size)
            except self._duckdb.Error as error:
                raise self._meaning(error) from None
            if not rows:
                return
            yield rows

    def _meaning(self, error: Exception) -> HmbTraceError:
        """Our own error if reading the dump failed, else what is wrong with the SQL."""
        if self._errors:
            return self._errors[0]
        text = " ".join(str(error).split())
        return UsageError(f"sql: {text}; tables: {', '.join(self.tables)}")

    def _wanted(self, query: str) -> dict[str, str]:
        """Our tables that the query names, and the text to look for column names in."""
        text = query.lower()
        return {name: query for name in self.tables if name.lower() in text}

    def _scans(self, query: str, wanted: dict[str, str]) -> dict[str, int]:
        """How often the plan reads each stream."""
        streams = [name for name in wanted if name not in self._ready]
        if not streams:
            return {}
        rows = self._connection.execute(f"EXPLAIN {query}").fetchall()
        plan = "\n".join(str(row[-1]) for row in rows)
        total = len(re.findall(r"ARROW_SCAN", plan))
        if total <= len(streams) == 1 or not total:
            return dict.fromkeys(streams, 1)
        # Which scan belongs to which stream the plan does not say: count the names instead.
        named = {
            name: len(re.findall(rf"\b{re.escape(name)}\b", query, re.IGNORECASE))
            for name in streams
        }
        return named if total <= len(streams) else dict.fromkeys(streams, 2)

    def _offer(self, name: str, query: str) -> None:
        if name in self._ready:
            return
        if name == "gaps":
            self._connection.register(name, _gaps_table(losses(self._dump, partial=True)))
            self._ready.add(name)
            return
        self._connection.register(name, self._stream(name, column_names_in(query)))

    def _stream(self, name: str, only: frozenset[str] | None) -> Any:
        event = self._events.get(name)
        maker = ArrowMaker(self._catalog, only=only, event=event)
        return reader(maker, self._batches(event))

    def _batches(self, event: Event | None) -> Iterator[RecordBatch]:
        found = self._selection.batches(self._dump, partial=self._partial)
        try:
            for batch in found:
                rows = batch if event is None else batch.select(batch.opcode == event.opcode)
                if len(rows):
                    yield rows
        except HmbTraceError as error:
            self._errors.append(error)  # DuckDB would hide it in an error of its own
            raise

    def _materialise(self, name: str, query: str) -> None:
        if not can_read_twice(self._dump):
            raise UsageError(f"sql: {name} is read more than once, which a pipe cannot be")
        stream = self._stream(name, column_names_in(query))
        self._connection.unregister(name)
        self._connection.register("_stream", stream)
        self._connection.execute(f'CREATE TEMP TABLE "{name}" AS SELECT * FROM _stream')
        self._connection.unregister("_stream")
        self._ready.discard(name)

    def close(self) -> None:
        """Drop everything, temporary files too."""
        self._connection.close()
        self._folder.cleanup()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _table_name(event: Event) -> str:
    """The event's name, clear of our own tables."""
    return f"{event.name}_event" if event.name.lower() in _RESERVED else event.name


def _gaps_table(found: list[Loss]) -> Any:
    pa = pyarrow()
    kinds = {
        **dict.fromkeys(("file", "kind", "cause"), pa.string()),
        **dict.fromkeys(("offset", "ts_ns"), pa.uint64()),
        **dict.fromkeys(("seq_before", "seq_after"), pa.uint32()),
        **dict.fromkeys(("lost", "rejected", "host_ns"), pa.int64()),
    }
    schema = pa.schema([(name, kinds[name]) for name in Loss.__slots__])
    return pa.Table.from_pylist([loss.as_dict() for loss in found], schema=schema)

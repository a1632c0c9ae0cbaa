# SPDX-License-Identifier: Apache-2.0
"""SQL over dumps: DuckDB reads Arrow batches that are made while it asks for them.

Tables: `trace` (every record), `gaps` (every loss), and one per catalog event with its typed
payload fields. A query sees nothing but these: files and extensions are out of its reach unless
the session allows them.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.knowledge import Loss, losses
from hmb_trace.dumps.segments import Segment
from hmb_trace.errors import HmbTraceError, MissingExtraError, UsageError
from hmb_trace.exports.arrow import ArrowMaker, pyarrow
from hmb_trace.query.places import place_columns
from hmb_trace.query.select import Selection
from hmb_trace.query.tables import lazy_rows, lazy_table

_OWN = ("trace", "gaps")
_LEAST_MEMORY = 256 << 20
_TABLES_AT_ONCE = 500  # beyond that only those are registered that the query names
_TABLES_TOLD = 8
_MOST_ERROR = 300  # characters


def default_memory() -> int:
    """What DuckDB may use, bytes: a quarter of the machine's memory, at least 256 MiB."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(whole // 4, _LEAST_MEMORY)


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
        memory: for DuckDB, bytes; beyond it, it writes to a directory under TMPDIR.
        allow_files: queries may read and write files, and load extensions.

    Attributes:
        dump: what is read; pipes are copied to a file first.

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
        memory: int | None = None,
        allow_files: bool = False,
    ) -> None:
        self._duckdb = _duckdb()
        pyarrow()
        self._folder = tempfile.TemporaryDirectory(prefix="hmb-trace-sql-")
        self.dump = _on_disk(dump, Path(self._folder.name))
        self._catalog = catalog
        self._selection = selection or Selection()
        self._partial = partial
        self._errors: list[HmbTraceError] = []
        self._connection = self._connect(memory or default_memory(), allow_files)
        self._events = _table_names(catalog)
        self._registered: set[str] = set()
        self._places = place_columns(self.dump)

    def _connect(self, memory: int, allow_files: bool) -> Any:
        connection = self._duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{memory}B",
                "temp_directory": str(Path(self._folder.name) / "spill"),
                "python_enable_replacements": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "preserve_insertion_order": "true",
            },
        )
        if not allow_files:
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        return connection

    @property
    def tables(self) -> list[str]:
        """Names that a query may use."""
        return [*_OWN, *self._events]

    def execute(self, query: str) -> Any:
        """Run SQL; returns the DuckDB result (fetchmany, description) of its last statement.

        Raises:
            UsageError: SQL that DuckDB refuses, or more than one statement with an answer.
            DumpError: the dump is damaged (without partial).
        """
        try:
            statements = self._duckdb.extract_statements(query)
            self._check(statements)
            self._offer(query)
            for statement in statements:
                result = self._connection.execute(statement)
            return result
        except self._duckdb.Error as error:
            raise self._meaning(error) from None

    def _check(self, statements: list[Any]) -> None:
        if not statements:
            raise UsageError("sql: the query is empty, expected something like: select ... ")
        answer = self._duckdb.ExpectedResultType.QUERY_RESULT
        early = [s for s in statements[:-1] if list(s.expected_result_type) == [answer]]
        if early:
            raise UsageError(
                f"sql: {len(early) + 1} statements that answer; ask them one at a time "
                "(statements that only prepare, such as CREATE, may come before)"
            )

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

    # ---- what went wrong ----

    def _meaning(self, error: Exception) -> HmbTraceError:
        """Our own error if reading the dump failed, else what is wrong with the SQL."""
        if self._errors:
            return self._errors[0]
        return UsageError(f"sql: {_short(str(error))}{self._advice(str(error))}")

    def _advice(self, text: str) -> str:
        missing = re.search(r"Table with name (.+?) does not exist", text)
        if missing:
            near = difflib.get_close_matches(missing[1].lower(), self.tables, n=1)
            if near:
                return f"; did you mean {near[0]}?"
            names = self.tables[:_TABLES_TOLD]
            more = ", ... (show tables lists all)" if len(self.tables) > len(names) else ""
            return f"; tables: {', '.join(names)}{more}"
        if "Out of Memory" in text:
            return "; give it more with --memory"
        if "disabled" in text and ("file system" in text or "external" in text):
            return "; --allow-files lets a query use files and extensions"
        return ""

    # ---- tables ----

    def _offer(self, query: str) -> None:
        for name in self._named(query):
            if name not in self._registered:
                self._connection.register(name, self._table(name))
                self._registered.add(name)

    def _named(self, query: str) -> list[str]:
        if len(self.tables) <= _TABLES_AT_ONCE:
            return self.tables
        found = {name.lower() for name in self._connection.get_table_names(query)}
        return [name for name in self.tables if name in _OWN or name.lower() in found]

    def _table(self, name: str) -> Any:
        if name == "gaps":
            return lazy_rows(_gaps_schema(), self._gaps)
        event = self._events.get(name)
        maker = self._maker(event, None)
        return lazy_table(maker.schema, lambda columns: self._scan(event, columns))

    def _maker(self, event: Event | None, columns: list[str] | None) -> ArrowMaker:
        only = None if columns is None else frozenset(name.lower() for name in columns)
        return ArrowMaker(self._catalog, only=only, event=event, labels=True, extra=self._places)

    def _scan(self, event: Event | None, columns: list[str]) -> Iterator[Any]:
        maker = self._maker(event, columns)
        try:
            for batch in self._selection.batches(self.dump, partial=self._partial):
                rows = batch if event is None else batch.select(batch.opcode == event.opcode)
                if len(rows):
                    yield maker.make(rows)
        except HmbTraceError as error:
            self._errors.append(error)  # DuckDB would hide it in an error of its own
            raise

    def _gaps(self) -> list[dict[str, Any]]:
        return [loss.as_dict() for loss in losses(self.dump, partial=True)]

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


def _short(text: str) -> str:
    """The first line of what DuckDB says, without the kind of the error and without a drawing."""
    lines = [
        line.strip() for line in text.split("\n\nLINE ", maxsplit=1)[0].splitlines() if line.strip()
    ]
    kept = [line for line in lines[1:] if line.startswith("Candidate bindings")]
    first = re.sub(r"^[A-Z][A-Za-z]*(?: [A-Z][A-Za-z]*)* Error: ", "", lines[0] if lines else text)
    made = "; ".join([first.rstrip("!"), *(line[0].lower() + line[1:] for line in kept)])
    return made if len(made) <= _MOST_ERROR else made[: _MOST_ERROR - 3] + "..."


def _on_disk(dump: Dump, folder: Path) -> Dump:
    """The dump, with a copy of each pipe: a query may read a table more than once."""
    if all(segment.kind is not Kind.STREAM for segment in dump.segments):
        return dump
    return Dump([_copied(segment, folder / str(i)) for i, segment in enumerate(dump.segments)])


def _copied(segment: Segment, to: Path) -> Segment:
    if segment.kind is not Kind.STREAM:
        return segment
    with to.open("wb") as out:
        if segment.file is not None:
            shutil.copyfileobj(segment.file, out)
        else:
            assert segment.path is not None
            with segment.path.open("rb") as pipe:
                shutil.copyfileobj(pipe, out)
    return Segment(segment.name, to, kind_of(str(to)))


def _table_names(catalog: Catalog | None) -> dict[str, Event]:
    """Events by their table's name, which differs from the others in more than the case."""
    found: dict[str, Event] = {}
    taken = set(_OWN)
    for event in catalog or ():
        name = event.name
        if name.lower() in _OWN:
            name = f"{name}_event"
        if name.lower() in taken:
            name = f"{event.name}_{event.opcode:#06x}"
        found[name] = event
        taken.add(name.lower())
    return found


def _gaps_schema() -> Any:
    pa = pyarrow()
    kinds = {
        **dict.fromkeys(("file", "kind", "cause"), pa.string()),
        **dict.fromkeys(("offset", "ts_ns"), pa.uint64()),
        **dict.fromkeys(("seq_before", "seq_after"), pa.uint32()),
        **dict.fromkeys(("lost", "rejected", "host_ns"), pa.int64()),
    }
    return pa.schema([(name, kinds[name]) for name in Loss.__slots__])

# SPDX-License-Identifier: Apache-2.0
"""Record batches as Arrow: typed columns, payload fields by catalog. Parquet and IPC files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from hmb_trace.catalog.columns import Column, payload_columns
from hmb_trace.catalog.model import Catalog, Event
from hmb_trace.dumps.account import Account
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.timeaxis import Axis
from hmb_trace.errors import MissingExtraError

ROW_GROUP = 1 << 19  # rows
_HEADER = {
    "seq": "u4",
    "ts_ns": "u8",
    "opcode": "u2",
    "cpu": "u1",
    "flags": "u1",
    "payload_len": "u2",
}


Maker = tuple[Any, Callable[[RecordBatch], Any]]  # of a column: its Arrow type, and its arrays


def pyarrow() -> Any:
    """The pyarrow module.

    Raises:
        MissingExtraError: not installed.
    """
    try:
        import pyarrow as module  # noqa: PLC0415 - heavy and optional
        import pyarrow.compute  # noqa: PLC0415 - becomes module.compute
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed: pip install 'hmb-trace[analysis]'"
        ) from None
    return module


class ArrowMaker:
    """Turns batches into pyarrow record batches of one schema.

    Args:
        catalog: adds `name` and a typed column for every payload field; fields that a record
            lacks are null. `payload` is then null where the fields say it all.
        axis: adds `host_time` (timestamp, ns, UTC), or with `relative` `relative_ns`.
        only: names of the columns wanted, in lower case; None: all.
        event: one event's own table: no `name`, no other event's fields.
        labels: a column FIELD_label beside every field that has labels.
        extra: further columns: Arrow type, and what makes the array of a batch.
    """

    def __init__(
        self,
        catalog: Catalog | None = None,
        *,
        axis: Axis | None = None,
        relative: bool = False,
        only: frozenset[str] | None = None,
        event: Event | None = None,
        labels: bool = False,
        extra: Mapping[str, Maker] | None = None,
    ) -> None:
        self._pa = pyarrow()
        self._labels = labels
        self._extra = dict(extra or {})
        self._axis = axis
        self._relative = relative
        self._event = event
        self._events = (
            {e.opcode: e for e in catalog or ()} if event is None else {event.opcode: event}
        )
        self._columns = payload_columns(self._events.values())
        self._names = catalog.names() if catalog and event is None else _hex_names()
        makers = self._makers()
        self._makers_used = {
            name: made for name, made in makers.items() if only is None or name.lower() in only
        }
        if not self._makers_used:
            self._makers_used = {"seq": makers["seq"]}  # count(*) needs rows, not columns
        fields = [(name, kind) for name, (kind, _) in self._makers_used.items()]
        self.schema = self._pa.schema(fields)

    def _makers(self) -> dict[str, Maker]:
        pa = self._pa
        makers: dict[str, Maker] = {}
        for name, kind in _HEADER.items():
            if self._event is None or name not in ("opcode", "payload_len"):
                makers[name] = (pa.from_numpy_dtype(np.dtype(kind)), self._header(name))
        if self._axis is not None and self._relative:
            makers["relative_ns"] = (pa.int64(), self._axis_time)
        elif self._axis is not None:
            makers["host_time"] = (pa.timestamp("ns", tz="UTC"), self._host_time)
        if self._event is None:
            makers["name"] = (pa.dictionary(pa.int32(), pa.string()), self._name)
        for column in self._columns:
            makers[column.name] = (self._type(column.type), self._payload_column(column))
        if self._event is None or not self._event.fields:
            makers["payload"] = (pa.binary(), self._payload)
        if self._labels:
            self._add_labels(makers)
        return makers | self._extra

    def _add_labels(self, makers: dict[str, Maker]) -> None:
        taken = {name.lower() for name in makers}
        for column in self._columns:
            name = f"{column.name}_label"
            if name.lower() not in taken and any(f.enum for f in column.fields.values()):
                makers[name] = (self._pa.string(), self._label_column(column))

    def _type(self, kind: str) -> Any:
        pa = self._pa
        if kind.startswith("char"):
            return pa.string()
        if kind.startswith("bytes"):
            return pa.binary()
        number = {"u": "uint", "i": "int", "f": "float"}[kind[0]] + kind[1:]
        return getattr(pa, number)()

    def make(self, batch: RecordBatch) -> Any:
        """The pyarrow.RecordBatch of a batch."""
        arrays = [make(batch) for _, make in self._makers_used.values()]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _header(self, name: str) -> Callable[[RecordBatch], Any]:
        return lambda batch: self._pa.array(np.ascontiguousarray(getattr(batch, name)))

    def _host_time(self, batch: RecordBatch) -> Any:
        return self._axis_time(batch).cast(self._makers_used["host_time"][0])

    def _axis_time(self, batch: RecordBatch) -> Any:
        assert self._axis is not None
        return self._pa.array(self._axis(batch))

    def _name(self, batch: RecordBatch) -> Any:
        used = np.flatnonzero(np.bincount(batch.opcode, minlength=1))
        index = np.zeros(1 << 16, "i4")
        index[used] = np.arange(len(used))
        names = self._pa.array([str(self._names[opcode]) for opcode in used], self._pa.string())
        return self._pa.DictionaryArray.from_arrays(index[batch.opcode], names)

    def _payload(self, batch: RecordBatch) -> Any:
        pa = self._pa
        data, ends = batch.joined_payloads()
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        plain = pa.Array.from_buffers(pa.binary(), len(batch), buffers)
        if not self._columns:
            return plain
        told = np.zeros(len(batch), bool)
        for event in self._events.values():
            if event.fields:
                told |= (batch.opcode == event.opcode) & (batch.payload_len == event.payload_size)
        return pa.compute.if_else(pa.array(~told), plain, pa.scalar(None, pa.binary()))

    def _payload_column(self, column: Column) -> Callable[[RecordBatch], Any]:
        def make(batch: RecordBatch) -> Any:
            have = np.zeros(len(batch), bool)
            parts: list[tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]] = []
            for opcode, field in column.fields.items():
                rows = batch.opcode == opcode
                rows &= batch.payload_len >= field.offset + field.size
                if rows.any():
                    parts.append((rows, batch.select(rows).field(field.offset, field.dtype)))
                    have |= rows
            return self._assemble(column.type, parts, have)

        return make

    def _label_column(self, column: Column) -> Callable[[RecordBatch], Any]:
        def make(batch: RecordBatch) -> Any:
            texts: npt.NDArray[np.object_] = np.full(len(batch), None, "O")
            for opcode, field in column.fields.items():
                rows = np.flatnonzero(
                    (batch.opcode == opcode) & (batch.payload_len >= field.offset + field.size)
                )
                values = batch.select(rows).field(field.offset, field.dtype)
                for value in np.unique(values).tolist() if field.enum else ():
                    if value in field.enum:
                        texts[rows[values == value]] = field.enum[value]
            return self._pa.array(texts, self._pa.string())

        return make

    def _assemble(
        self,
        kind: str,
        parts: Sequence[tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]],
        have: npt.NDArray[np.bool_],
    ) -> Any:
        if not parts:
            return self._pa.nulls(len(have), self._type(kind))
        if kind[0] in "cb":
            return self._texts(kind, parts, have)
        values = np.zeros(len(have), parts[0][1].dtype)
        for rows, found in parts:
            values[rows] = found
        mask = None if have.all() else ~have
        return self._pa.array(values, type=self._type(kind), mask=mask)

    def _texts(
        self,
        kind: str,
        parts: Sequence[tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]],
        have: npt.NDArray[np.bool_],
    ) -> Any:
        values: npt.NDArray[np.object_] = np.full(len(have), None, "O")
        for rows, found in parts:
            made = [value.tobytes() for value in found]
            if kind.startswith("char"):
                made = [_text(value) for value in made]
            values[rows] = made
        return self._pa.array(values, type=self._type(kind))


def _text(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace")


@cache
def _hex_names() -> npt.NDArray[np.object_]:
    return np.array([f"{opcode:#06x}" for opcode in range(1 << 16)], dtype=object)


def write_parquet(
    out: BinaryIO,
    maker: ArrowMaker,
    batches: Iterable[RecordBatch],
    account: Account | None = None,
    *,
    level: int = 1,
) -> int:
    """Write a Parquet file (zstd, row groups of about ROW_GROUP rows); returns the rows.

    Args:
        account: of the dump; goes into the schema's metadata, which the file begins with.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - heavy and optional

    schema = maker.schema.with_metadata(account_metadata(account) if account else None)
    rows = 0
    with pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=level,
        use_dictionary=_dictionary_columns(maker),
        column_encoding=_delta_columns(maker),
        write_statistics=True,
    ) as writer:
        for table in _row_groups(maker, batches):
            writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)
            rows += table.num_rows
    return rows


def account_metadata(account: Account) -> dict[str, str]:
    """What the schema of a file says the capture is missing."""
    return {
        "hmb_trace": json.dumps({"account": account.as_dict()}),
        "hmb_trace.verdict": account.line(),
    }


def _dictionary_columns(maker: ArrowMaker) -> list[str]:
    """Columns of few values; a dictionary on counters would only be thrown away again."""
    few = ("name", "opcode", "cpu", "flags", "payload_len", "epoch", "file")
    return [name for name in maker.schema.names if name in few]


def _delta_columns(maker: ArrowMaker) -> dict[str, str]:
    """Columns that count up: differences are all that needs storing."""
    return {name: "DELTA_BINARY_PACKED" for name in maker.schema.names if name in ("seq", "ts_ns")}


def _row_groups(maker: ArrowMaker, batches: Iterable[RecordBatch]) -> Iterator[Any]:
    pa = pyarrow()
    held: list[Any] = []
    rows = 0
    for batch in batches:
        held.append(maker.make(batch))
        rows += len(batch)
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(held, maker.schema)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, maker.schema)


def write_ipc(
    out: BinaryIO,
    maker: ArrowMaker,
    batches: Iterable[RecordBatch],
    account: Account | None = None,
) -> int:
    """Write an Arrow IPC file (Feather V2, zstd); returns the rows.

    Dictionaries differ from batch to batch, which the file format forbids: they are plain text.

    Args:
        account: of the dump; goes into the schema's metadata, which the file begins with.
    """
    pa = pyarrow()
    fields = [
        pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type)
        for f in maker.schema
    ]
    schema = pa.schema(fields, account_metadata(account) if account else None)
    rows = 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(maker.make(batch).cast(schema))
            rows += len(batch)
    return rows


def reader(maker: ArrowMaker, batches: Iterable[RecordBatch]) -> Any:
    """A pyarrow.RecordBatchReader over batches: can be read once."""
    pa = pyarrow()
    return pa.RecordBatchReader.from_batches(maker.schema, (maker.make(batch) for batch in batches))

# SPDX-License-Identifier: Apache-2.0
"""Records to lines of text: programs of cells, run by C (struct hmb_render)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmb_trace._core import ffi, lib
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.walker import byte_pointer, pointer
from hmb_trace.layout import RECORD_HDR_DTYPE, RECORD_HDR_SIZE

_CHUNK = 1 << 20
_OPCODES = 1 << 16

ALT, ZERO, UPPER, LEFT, JSON_FLOAT, HEX_MARK, UNSIGNED = (
    lib.HMB_CELL_ALT,
    lib.HMB_CELL_ZERO,
    lib.HMB_CELL_UPPER,
    lib.HMB_CELL_LEFT,
    lib.HMB_CELL_JSON_FLOAT,
    lib.HMB_CELL_HEX_MARK,
    lib.HMB_CELL_UNSIGNED,
)
ESCAPE_TEXT, ESCAPE_JSON, ESCAPE_CSV = (
    lib.HMB_ESCAPE_TEXT,
    lib.HMB_ESCAPE_JSON,
    lib.HMB_ESCAPE_CSV,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of a line (struct hmb_cell).

    Attributes:
        at: byte offset in the record; 32 is the payload's begin.
        width: bytes of the field.
        needs: payload bytes without which `text` is put instead.
        text: what to put where `put` is TEXT, or where the payload is too short.
        labels: texts that stand for values of an integer.
    """

    put: int
    at: int = 0
    width: int = 0
    needs: int = 0
    base: int = 10
    flags: int = 0
    min_width: int = 0
    precision: int = -1
    escape: int = ESCAPE_TEXT
    style: str = "g"
    text: str = ""
    labels: Mapping[int, str] = field(default_factory=dict)


def literal(text: str) -> Cell:
    """Text as it is."""
    return Cell(lib.HMB_PUT_TEXT, text=text)


def header(name: str, **how: Any) -> Cell:
    """An integer of the record header, by its name in struct hmb_record_hdr."""
    fields = RECORD_HDR_DTYPE.fields
    assert fields is not None
    kind, at = fields[name][:2]
    return Cell(lib.HMB_PUT_UINT, at, kind.itemsize, **how)


def payload_hex(*, marked: bool = False) -> Cell:
    """The whole payload as hexadecimal digits; marked: with `hex:` before them."""
    return Cell(lib.HMB_PUT_HEX, RECORD_HDR_SIZE, flags=HEX_MARK if marked else 0)


def guarded(cells: Sequence[Cell]) -> list[Cell]:
    """Text that no spreadsheet takes for a formula: an apostrophe stands before = + - @."""
    return [Cell(lib.HMB_PUT_MARK), *cells, Cell(lib.HMB_PUT_GUARD)]


Program = Sequence[Cell]
RowText = Callable[[RecordBatch, int], str]


@dataclass(frozen=True, slots=True)
class Line:
    """How the records of one opcode are shown.

    Attributes:
        row_text: makes the text of a ROW_TEXT cell, for what cells cannot do.
    """

    program: Program
    row_text: RowText | None = None


class Renderer:
    """Runs programs over batches; they are made when an opcode turns up.

    Args:
        opcodes: those with a program of their own.
        make: gives it.
        other: the program of every other opcode.
        trim: no spaces before a line's end.
    """

    def __init__(
        self,
        opcodes: Iterable[int],
        make: Callable[[int], Line],
        other: Program,
        *,
        trim: bool = False,
    ) -> None:
        self._trim = trim
        self._keep: list[Any] = []
        self._make = make
        self._waiting = np.zeros(_OPCODES, bool)
        self._waiting[list(opcodes)] = True
        self._row_text: dict[int, RowText] = {}
        self._program_of = np.zeros(_OPCODES, "u2")
        self._programs = ffi.new("struct hmb_program[]", 1 + int(self._waiting.sum()))
        self._made = 0
        self._set(0, other)
        self._out = bytearray(_CHUNK)

    def _learn(self, batch: RecordBatch) -> None:
        """Make the programs that a batch needs."""
        if not self._waiting.any():
            return
        met = np.flatnonzero(np.bincount(batch.opcode))
        for opcode in met[self._waiting[met]].tolist():
            line = self._make(opcode)
            # When every opcode has one, the last can take the place of `other`.
            self._made = (self._made + 1) % _OPCODES
            self._program_of[opcode] = self._made
            self._set(self._made, line.program)
            if line.row_text is not None:
                self._row_text[opcode] = line.row_text
            self._waiting[opcode] = False

    def _set(self, index: int, program: Program) -> None:
        cells = ffi.new("struct hmb_cell[]", [self._c_cell(cell) for cell in program])
        self._keep.append(cells)
        self._programs[index].cells = cells
        self._programs[index].count = len(program)

    def _c_cell(self, cell: Cell) -> dict[str, Any]:
        text, length = self._c_text(cell.text)
        labels = ffi.new(
            "struct hmb_label[]", [self._c_label(v, t) for v, t in cell.labels.items()]
        )
        self._keep.append(labels)
        plain = ("put", "at", "width", "needs", "base", "flags", "min_width", "precision", "escape")
        return {
            **{name: getattr(cell, name) for name in plain},
            "style": cell.style.encode(),
            "text": text,
            "text_length": length,
            "labels": labels,
            "label_count": len(cell.labels),
        }

    def _c_label(self, value: int, text: str) -> dict[str, Any]:
        made, length = self._c_text(text)
        signed = value - (1 << 64) if value >= 1 << 63 else value
        return {"value": signed, "text": made, "length": length}

    def _c_text(self, text: str) -> tuple[Any, int]:
        data = text.encode("utf-8", "replace")
        made = ffi.new("char[]", data)
        self._keep.append(made)
        return made, len(data)

    def render(
        self,
        batch: RecordBatch,
        times: npt.NDArray[np.int64] | None = None,
        values: Sequence[npt.NDArray[np.int64]] = (),
        file: str = "",
    ) -> Iterator[memoryview]:
        """Whole lines, piece by piece; each piece is valid until the next is asked for.

        Args:
            times: one per row, for time cells; None: the batch's ts_ns.
            values: one per row, for each column of value cells; NO_VALUE: there is none.
            file: for file cells, escaped.
        """
        self._learn(batch)
        offsets = np.ascontiguousarray(batch.offset)
        clock = np.ascontiguousarray(batch.ts_ns.view("i8") if times is None else times, "i8")
        text, begins = self._texts(batch)
        buffer = byte_pointer(batch.buffer)
        job = ffi.new("struct hmb_render *")
        job.data, job.base, job.n = buffer, batch.base, len(batch)
        job.offsets, job.trim = pointer(offsets), self._trim
        job.times = ffi.cast("int64_t *", clock.ctypes.data)
        job.program_of, job.programs = pointer(self._program_of), self._programs
        columns = np.ascontiguousarray(np.concatenate([np.empty(0, "i8"), *values]), "i8")
        name = file.encode("utf-8", "replace")
        held = ffi.from_buffer("char[]", name)
        job.values, job.file = ffi.cast("int64_t *", columns.ctypes.data), held
        job.file_length = len(name)
        row_text = ffi.from_buffer("char[]", text)
        job.row_text, job.row_begin = row_text, pointer(begins)
        while job.next < job.n:
            yield self._piece(job)

    def _piece(self, job: Any) -> memoryview:
        while True:
            job.out, job.out_cap = ffi.from_buffer("char[]", self._out), len(self._out)
            if lib.hmb_render(job) == 0:
                return memoryview(self._out)[: job.out_len]
            self._out = bytearray(2 * len(self._out))

    def _texts(self, batch: RecordBatch) -> tuple[bytes, npt.NDArray[np.uint64]]:
        if not self._row_text:
            return b"", np.zeros(1, "u8")
        texts = [b""] * len(batch)
        for opcode, make in self._row_text.items():
            for row in np.flatnonzero(batch.opcode == opcode):
                texts[row] = make(batch, int(row)).encode("utf-8", "replace")
        lengths = np.fromiter(map(len, texts), "u8", len(texts))
        return b"".join(texts), np.concatenate([np.zeros(1, "u8"), np.cumsum(lengths, dtype="u8")])

# SPDX-License-Identifier: Apache-2.0
"""Every command on dumps cut or with garbage anywhere: right up to the fault, one line (R13)."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hmb_trace import testing
from hmb_trace.cli import main
from tests.oracle.dump import read_dump
from tests.unit.exporting import record, rows

WHOLE = testing.dump(record(row) for row in rows(12))
CATALOG = """
name = "wrong"
[[event]]
opcode = 1
name = "one"
format = "{a} {b:#x} {s}"
field = [{name = "a", type = "u64"}, {name = "b", type = "u32"}, {name = "s", type = "char[9]"}]
[[event]]
opcode = 9
name = "nine"
kind = "complete"
duration = "d"
field = [{name = "d", type = "u64"}]
"""
COMMANDS = (
    ["decode"],
    ["decode", "--format", "jsonl"],
    ["stats"],
    ["gaps"],
    ["filter", "--where", "a > 3 or d < 5"],
    ["verify"],
    ["info"],
)


def run(args: list[str]) -> tuple[int, str, str]:
    """In this process, with text streams that have a binary side, as standard output has."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    out.flush()
    data = out.buffer.getvalue()  # type: ignore[attr-defined] # a BytesIO, see above
    return code, data.decode(), err.getvalue()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(WHOLE)
    at = draw(st.integers(4, len(data)))
    if draw(st.booleans()):
        return bytes(data[:at])
    data[at:at] = draw(st.binary(min_size=1, max_size=40))
    return bytes(data)


@settings(max_examples=60, deadline=None)
@given(data=damaged(), command=st.sampled_from(COMMANDS))
def test_commands_r13(data: bytes, command: list[str]) -> None:
    account = read_dump(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.bin"
        path.write_bytes(data)
        catalog = Path(folder) / "c.toml"
        catalog.write_text(CATALOG)
        takes_catalog = command[0] not in ("gaps", "verify", "info")
        args = [*command, str(path), *(["--catalog", str(catalog)] if takes_catalog else [])]
        code, _, err = run(args)
        if account.complete:
            assert code in (0, 1)  # verify: padding that is not zero
        else:
            assert code == (1 if command[0] == "verify" else 65)
            assert f"byte {account.offset}" in err
        code, out, _ = run(["decode", str(path), "--partial", "--format", "csv"])
        listed = [int(row["seq"]) for row in csv.DictReader(io.StringIO(out))]
        assert listed == [entry.header.seq for entry in account.records]
        assert code == (0 if account.complete else 65)

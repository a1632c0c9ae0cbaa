# SPDX-License-Identifier: Apache-2.0
"""No output of an exporting command takes the place of something that it reads (R3)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hmb_trace import testing
from hmb_trace.cli import main

CATALOG = 'name="c"\n[[event]]\nopcode=1\nname="RD"\n'
COMMANDS = {
    "report": ["report", "{in}", "-o", "{out}", "--catalog", "{catalog}"],
    "diff": ["diff", "{in}", "{in}", "-o", "{out}", "--catalog", "{catalog}"],
    "pack": ["pack", "{in}", "-o", "{out}", "-c", "{catalog}"],
    "pack-flatbuf": ["pack", "-e", "flatbuf", "{in}", "-o", "{out}", "-c", "{catalog}"],
    "csv": ["convert", "{in}", "--to", "csv", "-o", "{out}", "--catalog", "{catalog}"],
    "parquet": ["convert", "{in}", "--to", "parquet", "-o", "{out}", "--catalog", "{catalog}"],
    "perfetto": ["convert", "{in}", "--to", "perfetto", "-o", "{out}", "--catalog", "{catalog}"],
    "pccx": ["convert", "{in}", "--to", "pccx", "-o", "{out}", "--catalog", "{catalog}"],
}


def words(name: str, given: str, out: Path | str, catalog: Path) -> list[str]:
    return [w.format(**{"in": given, "out": out, "catalog": catalog}) for w in COMMANDS[name]]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for number in (1, 2):
        records = [testing.record(10 * number + i, b"ab", ts_ns=i, opcode=1) for i in range(10)]
        name = f"d-00000{number}-20260101T000000Z.bin"
        (folder / name).write_bytes(testing.dump(records))
    (tmp_path / "c.toml").write_text(CATALOG, encoding="utf-8")
    return folder


@pytest.mark.parametrize("how", ["same", "hard link", "symlink", "set member", "catalog"])
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_none_of_the_inputs(
    name: str, how: str, capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = capture.parent / "c.toml"
    first = min(capture.glob("*.bin"))
    out = capture.parent / "out"
    given = str(capture) if how == "set member" else str(first)
    if how == "hard link":
        os.link(first, out)
    elif how == "symlink":
        out.symlink_to(first)
    else:
        out = catalog if how == "catalog" else first
    before = {path: path.read_bytes() for path in (*capture.iterdir(), catalog)}
    assert main(words(name, given, out, catalog)) == 2
    assert "is an input too" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_is_written_to_and_never_replaced(name: str, capture: Path) -> None:
    """S2: as root, a rename would put a file in the place of /dev/null."""
    null = capture.parent / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.open("wb").close()
    except OSError:
        pytest.skip("making a device node needs root and a file system that allows it")
    cannot_say = 2  # of so few records
    code = main(words(name, str(capture), null, capture.parent / "c.toml"))
    assert code == (cannot_say if name == "diff" else 0)
    assert null.is_char_device()


@pytest.mark.parametrize("name", ["report", "pack", "csv", "filter"])
def test_output_is_not_the_file_on_standard_input(name: str, capture: Path) -> None:
    first = min(capture.glob("*.bin"))
    before = first.read_bytes()
    more = ["--to", "csv"] if name == "csv" else []
    run = "import sys; from hmb_trace.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", run, "convert" if name == "csv" else name]
    with first.open("rb") as file:
        made = subprocess.run(
            [*command, *more, "-", "-o", str(first)], stdin=file, capture_output=True, check=False
        )
    assert (made.returncode, b"is an input too" in made.stderr) == (2, True), made.stderr
    assert first.read_bytes() == before

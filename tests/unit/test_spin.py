# SPDX-License-Identifier: Apache-2.0
"""formal/spool.pml checked by spin over all interleavings, and mutants of it that spin must catch.

Each mutant is the model with one swap or one missing precaution, made here by replacing text:
what it replaces is in the table below, so that the model stays free of switches.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, require_program

Bounds = tuple[int, int, int]  # records, crashes, resets

MODEL = ROOT / "formal" / "spool.pml"

# name: (the model's text, the mutant's text)
MUTANTS = {
    "tail is stored before the commit": (
        "publish();\n\t\t\t\tstore_tail_of_pass();",
        "store_tail_of_pass();\n\t\t\t\tpublish();",
    ),
    "commit is published before its slot is written": (
        "write_slot(mine, mine + n, h, n);\n\t\t\t\tpublish();",
        "publish();\n\t\t\t\twrite_slot(mine, mine + n, h, n);",
    ),
    "compare-exchange alone guards tail": (
        "atomic { RING_IS_SAME -> store_tail",
        "atomic { tail == mine -> store_tail",
    ),
    "no look at the ring after the copy": (
        "atomic { n && RING_IS_SAME -> taken_in",
        "atomic { n && tail == mine -> taken_in",
    ),
    "head is loaded before the first bytes are read": (
        "first = cell[mine % RING];\n\t\t\th = head;",
        "h = head;\n\t\t\tfirst = cell[mine % RING];",
    ),
    "recovery believes tail alone": (
        "tail == LAST.before && head >= LAST.head_seen && same",
        "tail == LAST.before",
    ),
    "recovery takes the pass again": (
        "head >= LAST.head_seen && same ->\n\t\t\t\tstore_tail(LAST.after)",
        "head >= LAST.head_seen && same ->\n\t\t\t\tmine = tail",
    ),
    "the writer frees before it writes": (
        "file[data_tail] = data[data_tail % SPOOL];\n\t\t\tdata_tail++;",
        "data_tail++;\n\t\t\tfile[data_tail - 1] = data[(data_tail - 1) % SPOOL];",
    ),
    "the collector does not wait for room": (
        "LAST.data_head + n - data_tail <= SPOOL;",
        "LAST.data_head + n - data_tail <= SPOOL + 1;",
    ),
    "the slot that is current is rewritten": (
        "#define OTHER slot[1 - current]",
        "#define OTHER slot[current]",
    ),
}


TWO = ROOT / "formal" / "two_processes.pml"
TWO_NAMES = ("RECORDS", "KILLS", "CRASHES", "HANDOVERS")
# of formal/two_processes.pml, with the bounds that show it
TWO_MUTANTS = {
    "a successor goes on without a look at tail": (
        ":: takes_over && tail == LAST.after -> mine",
        ":: takes_over -> mine",
        (2, 1, 0, 1),
    ),
    "what stands in ring and spool is taken again": (
        "tail == LAST.before -> store_tail(LAST.after)",
        "tail == LAST.before -> mine = tail",
        (2, 1, 0, 0),
    ),
    "a collector does not ask for the lock": (
        ":: lock == 0 -> lock = me\n\t\t\t:: lock != 0 -> goto over",
        ":: true -> lock = me\n\t\t\t:: lock == 99 -> goto over",
        (2, 0, 0, 1),
    ),
    "the daemon frees before it writes": (
        "file[data_tail] = data[data_tail % SPOOL];\n\t\t\tdata_tail++",
        "data_tail++;\n\t\t\tfile[data_tail - 1] = data[(data_tail - 1) % SPOOL]",
        (2, 0, 1, 0),
    ),
}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, timeout=600
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, f"{command[0]}: {text[-3000:]}"
    return text


def verify(
    folder: Path,
    text: str,
    bounds: tuple[int, ...],
    optimise: str = "-O2",
    names: tuple[str, ...] = ("RECORDS", "CRASHES", "RESETS"),
) -> str:
    """The verifier's report about this model under these bounds."""
    spin, gcc = require_program("spin"), require_program("gcc")
    (folder / "spool.pml").write_text(text)
    defines = [f"-D{name}={value}" for name, value in zip(names, bounds, strict=True)]
    said = run(folder, spin, *defines, "-a", "spool.pml")
    assert "Error" not in said, said
    run(folder, gcc, optimise, "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
    return run(folder, "./pan", "-E", "-m100000")  # -E: to be blocked at the end is no error


def expect_proof(report: str) -> None:
    assert "errors: 0" in report, report
    assert "max search depth too small" not in report, report
    assert "Search not completed" not in report, report


@pytest.mark.parametrize("bounds", [(4, 1, 1), (3, 2, 0)], ids=str)
def test_spool_protocol_holds_exactly_once_r6(tmp_path: Path, bounds: Bounds) -> None:
    expect_proof(verify(tmp_path, MODEL.read_text(), bounds))


@pytest.mark.soak
@pytest.mark.parametrize("bounds", [(3, 2, 1), (4, 0, 2), (4, 1, 2)], ids=str)
def test_spool_protocol_holds_in_a_larger_space(tmp_path: Path, bounds: Bounds) -> None:
    """The last takes a minute and 700 MB."""
    expect_proof(verify(tmp_path, MODEL.read_text(), bounds))


@pytest.mark.parametrize("name", MUTANTS)
def test_spin_catches_the_mutant(tmp_path: Path, name: str) -> None:
    found, put = MUTANTS[name]
    text = MODEL.read_text()
    assert text.count(found) == 1, f"the model no longer says {found!r} once: adapt the table"
    report = verify(tmp_path, text.replace(found, put), (4, 1, 1), "-O0")
    assert "assertion violated" in report, report


@pytest.mark.parametrize("bounds", [(2, 1, 0, 1), (2, 0, 1, 1)], ids=str)
def test_two_processes_hold_exactly_once(tmp_path: Path, bounds: tuple[int, ...]) -> None:
    """Adoption, hand-over, and a death of either process at any step."""
    expect_proof(verify(tmp_path, TWO.read_text(), bounds, names=TWO_NAMES))


@pytest.mark.soak
@pytest.mark.parametrize("bounds", [(2, 1, 1, 1), (3, 1, 0, 1), (2, 2, 0, 1)], ids=str)
def test_two_processes_hold_in_a_larger_space(tmp_path: Path, bounds: tuple[int, ...]) -> None:
    expect_proof(verify(tmp_path, TWO.read_text(), bounds, names=TWO_NAMES))


@pytest.mark.parametrize("name", TWO_MUTANTS)
def test_spin_catches_the_mutant_of_two_processes(tmp_path: Path, name: str) -> None:
    found, put, bounds = TWO_MUTANTS[name]
    text = TWO.read_text()
    assert text.count(found) == 1, f"the model no longer says {found!r} once: adapt the table"
    report = verify(tmp_path, text.replace(found, put), bounds, "-O0", TWO_NAMES)
    assert "assertion violated" in report, report


def test_models_stay_short() -> None:
    for model in (MODEL, TWO):
        assert len(model.read_text().splitlines()) < 150

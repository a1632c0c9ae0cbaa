# SPDX-License-Identifier: Apache-2.0
"""Every command says the same about every capture (SPEC R12-R16)."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hmb_trace.cli import main
from hmb_trace.dumps import account as accounts
from hmb_trace.dumps import sidecar
from hmb_trace.dumps.dump import open_dumps
from hmb_trace.errors import EXIT_INVALID
from tests.consistency.captures import CAPTURES, Truth, made

_LINE = re.compile(r"^(?:hmb-trace: )?(whole|damaged|lossy|incomplete|unverified): (.*)$", re.M)
_LOST = re.compile(r"([\d,]+) records? lost")


@dataclass(frozen=True)
class Said:
    """What a command said of a capture; None: it does not say that."""

    verdict: str
    lost: int | None = None
    records: int | None = None
    kinds: frozenset[str] | None = None
    epochs: int | None = None
    steps: int | None = None
    glitches: int | None = None


class Runner:
    """Runs commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path, truth: Truth) -> None:
        self._capfd = capfd
        self.truth = truth
        self.folder = folder
        self.inputs = [str(p) for p in truth.paths or (folder,)]

    def run(self, *args: object, strict: bool = False) -> tuple[int, str, str]:
        self._capfd.readouterr()
        words = [str(a) for a in args] + ["--strict"] * strict
        code = main(words)
        return (code, *self._capfd.readouterr())


def of_json(found: dict[str, Any]) -> Said:
    return Said(
        found["verdict"],
        found["lost"],
        found["records"],
        frozenset(r["kind"] for r in found["reasons"]),
        len(found["epochs"]),
        len(found["clock_steps"]),
        found["glitches"],
    )


def of_line(text: str) -> Said:
    """The closing line; without one nothing is missing."""
    found = _LINE.findall(text)
    if not found:
        return Said("whole", 0)
    verdict, rest = found[-1]
    lost = _LOST.search(rest)
    return Said(verdict, int(lost[1].replace(",", "")) if lost else 0)


def by_info(run: Runner) -> Said:
    if len(run.inputs) > 1:
        pytest.skip("info speaks of each file by itself")
    return of_json(json.loads(run.run("info", "--json", *run.inputs)[1]))


def by_info_deep(run: Runner) -> Said:
    if len(run.inputs) > 1:
        pytest.skip("info speaks of each file by itself")
    return of_json(json.loads(run.run("info", "--deep", "--json", *run.inputs)[1]))


def by_info_text(run: Runner) -> Said:
    if len(run.inputs) > 1:
        pytest.skip("info speaks of each file by itself")
    line = next(t for t in run.run("info", *run.inputs)[1].splitlines() if "verdict: " in t)
    return of_line(line.split("verdict:")[1].strip())


def by_stats(run: Runner) -> Said:
    return of_json(json.loads(run.run("stats", "--json", "--partial", *run.inputs)[1]))


def by_stats_of_a_part(run: Runner) -> Said:
    """R7 of the review: a selection does not change what the dump is missing."""
    out = run.run("stats", "--json", "--partial", "--to", "3000", *run.inputs)[1]
    found = of_json(json.loads(out))
    return Said(found.verdict, found.lost, None, found.kinds, found.epochs, found.steps)


def by_gaps(run: Runner) -> Said:
    return of_line(run.run("gaps", "--partial", *run.inputs)[1])


def by_gaps_json(run: Runner) -> Said:
    rows = [
        json.loads(t) for t in run.run("gaps", "--partial", "--json", *run.inputs)[1].splitlines()
    ]
    kinds = [row["kind"] for row in rows]
    return Said(
        run.truth.verdict,
        sum(row["lost"] or 0 for row in rows),
        epochs=1 + kinds.count("epoch"),
        steps=kinds.count("clock-step"),
    )


def by_why(run: Runner) -> Said:
    code, out, err = run.run("why", *run.inputs)
    said = of_line(err)
    assert code == int("nothing is wrong" not in out)
    return said


def by_decode(run: Runner) -> Said:
    _, out, err = run.run("decode", "--partial", "--format", "csv", *run.inputs)
    said = of_line(err)
    return Said(said.verdict, said.lost, len(out.splitlines()) - 1)


def by_filter(run: Runner) -> Said:
    _, out, err = run.run("filter", "--partial", "--format", "csv", "--cpu", "0..255", *run.inputs)
    said = of_line(err)
    return Said(said.verdict, said.lost, len(out.splitlines()) - 1)


def by_filter_to_a_dump(run: Runner) -> Said:
    """A selection does not accuse itself; it carries what its source was missing."""
    out = run.folder.parent / "filtered" / "part.bin"
    out.parent.mkdir()
    run.run("filter", "--partial", "--opcode", "1..2", *run.inputs, "-o", out)
    found = of_json(json.loads(run.run("info", "--json", out)[1]))
    deep = of_json(json.loads(run.run("info", "--deep", "--json", out)[1]))
    assert found == deep
    return Said(found.verdict, found.lost, None, found.kinds, found.epochs, found.steps)


def by_verify(run: Runner) -> Said:
    if len(run.inputs) > 1:
        pytest.skip("verify checks each file by itself")
    _, _, err = run.run("verify", *run.inputs)
    found = re.findall(r"warning: (.*)", err)
    return of_line("\n".join(found))


def by_sql(run: Runner) -> Said:
    pytest.importorskip("duckdb")
    out = run.run("sql", "--json", "select sum(lost) as lost from gaps", *run.inputs)[1]
    return Said(run.truth.verdict, int(json.loads(out)["lost"] or 0))


def by_pack(run: Runner) -> Said:
    """A .pccx carries the account of what was packed."""
    out = run.folder.parent / "made.pccx"
    run.run("pack", "--partial", *run.inputs, "-o", out)
    found = json.loads(run.run("info", "--json", out)[1])
    said = of_line(run.run("gaps", out)[1])
    assert (found["verdict"], found["lost"]) == (said.verdict, said.lost)
    return Said(
        found["verdict"], found["lost"], kinds=frozenset(r["kind"] for r in found["reasons"])
    )


def by_convert(run: Runner) -> Said:
    _, out, err = run.run("convert", "--partial", "--to", "csv", *run.inputs, "-o", "-")
    said = of_line(err)
    return Said(said.verdict, said.lost, len(out.splitlines()) - 1)


def by_arrow(run: Runner) -> Said:
    """The metadata of a Parquet file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    out = run.folder.parent / "made.parquet"
    run.run("convert", "--partial", *run.inputs, "-o", out)
    found = json.loads(parquet.read_schema(out).metadata[b"hmb_trace"])
    return of_json(found["account"])


def by_report(run: Runner) -> Said:
    out = run.run("report", *run.inputs, "-o", "-")[1]
    found = re.search(r'id="verdict" data-verdict="(\w+)">([^<]*)</p>', out)
    assert found
    said = of_line(html.unescape(found[2]))
    assert said.verdict == found[1]
    return said


def by_python(run: Runner) -> Said:
    return of_json(accounts.account(open_dumps(run.inputs)).as_dict())


COMMANDS: tuple[Callable[[Runner], Said], ...] = (
    *(by_info, by_info_deep, by_info_text, by_stats, by_stats_of_a_part, by_gaps, by_gaps_json),
    *(by_why, by_decode, by_filter, by_filter_to_a_dump, by_verify, by_sql, by_python),
    *(by_pack, by_convert, by_arrow, by_report),
)
STRICT = (
    ("gaps", "--partial"),
    ("stats", "--partial"),
    ("decode", "--partial"),
    ("filter", "--partial"),
    ("info",),
)


@pytest.fixture(params=CAPTURES)
def runner(
    request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Runner:
    folder = tmp_path / "capture"
    return Runner(capfd, folder, made(request.param, folder))


def test_there_are_enough_captures() -> None:
    assert len(CAPTURES) >= 40


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_one_truth_r15(command: Callable[[Runner], Said], runner: Runner) -> None:
    truth = runner.truth
    said = command(runner)
    assert (said.verdict, said.lost) == (truth.verdict, truth.lost)
    if said.kinds is not None:
        assert truth.kinds <= said.kinds
    if said.epochs is not None:
        assert (said.epochs, said.steps) == (truth.epochs, truth.steps)
    if said.glitches is not None:
        assert said.glitches == truth.glitches
    if said.records is not None:
        assert said.records == accounts.account(open_dumps(runner.inputs), deep=True).records


def test_strict_exits_as_the_table_says(runner: Runner) -> None:
    truth = runner.truth
    expected = 0 if truth.verdict in ("whole", "unverified") else 1
    if truth.torn:
        expected = EXIT_INVALID
    for command in STRICT:
        if command == ("info",) and len(runner.inputs) > 1:
            continue
        code, _, _ = runner.run(*command, *runner.inputs, strict=True)
        assert code == expected, command


def test_a_sidecar_is_parsed_once_per_command(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = sidecar.decode

    def counted(data: bytes, name: str) -> sidecar.Sidecar:
        seen.append(name)
        return real(data, name)

    monkeypatch.setattr(sidecar, "decode", counted)
    for command in (["gaps"], ["stats"], ["decode"], ["info"]):
        if command == ["info"] and len(runner.inputs) > 1:
            continue
        if runner.truth.paths and len(set(runner.truth.paths)) < len(runner.truth.paths):
            continue  # one file named twice is read twice
        seen.clear()
        runner.run(*command, *runner.inputs)
        assert len(seen) == len(set(seen)), (command, seen)

# SPDX-License-Identifier: Apache-2.0
"""No command puts its output in the place of something that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hmb_trace import testing
from hmb_trace.cli import main
from hmb_trace.dumps.sidecar import rejects_path, sidecar_path
from hmb_trace.errors import EXIT_USAGE
from tests.consistency.captures import Set, retell

CATALOG = """name = "t"
[[event]]
opcode = 1
name = "one"
"""

COMMANDS: dict[str, tuple[str, ...]] = {
    "decode": ("decode",),
    "filter": ("filter", "--cpu", "0"),
    "filter as csv": ("filter", "--format", "csv"),
    "convert csv": ("convert", "--to", "csv"),
    "convert jsonl": ("convert", "--to", "jsonl"),
    "convert parquet": ("convert", "--to", "parquet"),
    "convert perfetto": ("convert", "--to", "perfetto"),
    "report": ("report",),
    "pack": ("pack",),
    "pack flatbuf": ("pack", "-e", "flatbuf"),
    "repair": ("repair",),
}
TAKE_NO_CATALOG = ("repair",)
TAKE_NO_SETS = ("repair",)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A set of one segment with sidecar and rejects, and a catalog beside it."""
    folder = tmp_path / "set"
    folder.mkdir()
    made = Set(folder)
    path = made.add([0, 1, 4, 5], told=False)
    retell(path, rejects=made.reject(path, 2))
    (tmp_path / "c.toml").write_text(CATALOG, encoding="utf-8")
    return path


def _names(path: Path, what: str) -> Path:
    return {
        "the dump": path,
        "its sidecar": sidecar_path(path),
        "its rejects": rejects_path(path),
        "the catalog": path.parent.parent / "c.toml",
    }[what]


def _by_another_name(path: Path, how: str, folder: Path) -> Path:
    other = folder / "other"
    if how == "hard link":
        os.link(path, other)
    elif how == "symbolic link":
        other.symlink_to(path)
    else:
        return path
    return other


def _cases() -> Iterator[tuple[str, str, str, bool]]:
    for command in COMMANDS:
        for what in ("the dump", "its sidecar", "its rejects", "the catalog"):
            if what == "the catalog" and command in TAKE_NO_CATALOG:
                continue
            for how in ("its name", "hard link", "symbolic link"):
                for whole_set in (False, True):
                    if not (whole_set and command in TAKE_NO_SETS):
                        yield command, what, how, whole_set


@pytest.mark.parametrize(("command", "what", "how", "whole_set"), _cases())
def test_an_input_is_never_overwritten(  # noqa: PLR0917 - cases and fixtures
    command: str,
    what: str,
    how: str,
    whole_set: bool,
    capture: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target = _names(capture, what)
    before = target.read_bytes()
    args = [*COMMANDS[command], str(capture.parent if whole_set else capture)]
    if command not in TAKE_NO_CATALOG:
        args += ["--catalog", str(tmp_path / "c.toml")]
    code = main([*args, "-o", str(_by_another_name(target, how, tmp_path))])
    err = capfd.readouterr().err
    assert (code, "is an input too" in err, target.read_bytes()) == (EXIT_USAGE, True, before), err


@pytest.mark.parametrize("command", COMMANDS)
def test_devices_and_pipes_are_written_to_and_not_replaced(command: str, capture: Path) -> None:
    if "pack" in command or "parquet" in command:
        pytest.skip("needs a file that it can go back in")
    null = Path("/dev/null").stat()
    assert main([*COMMANDS[command], str(capture), "-o", "/dev/null"]) == 0
    assert os.path.samestat(null, Path("/dev/null").stat())


def test_a_link_to_an_output_stays_a_link(capture: Path, tmp_path: Path) -> None:
    there, link = tmp_path / "there.csv", tmp_path / "link.csv"
    there.write_text("old", encoding="utf-8")
    link.symlink_to(there)
    assert main(["decode", str(capture), "--format", "csv", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert there.read_text(encoding="utf-8").startswith("offset") or "seq" in there.read_text()


def test_an_output_with_another_name_is_fine(capture: Path, tmp_path: Path) -> None:
    copy: Callable[[str], Path] = lambda name: tmp_path / name  # noqa: E731 - one use
    copy("d.bin").write_bytes(testing.record(1))
    assert main(["decode", str(capture), "-o", str(copy("d.bin"))]) == 0

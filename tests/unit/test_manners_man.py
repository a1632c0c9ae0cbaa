# SPDX-License-Identifier: Apache-2.0
"""The manual: a page for every command, and no page that groff complains about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, require_program
from tests.unit.test_manners import COMMANDS, find

EXPECTED = {
    *("hmb-trace-format.5", "hmb-trace-catalog.5", "hmb-trace-daemon.toml.5"),
    *("hmb-trace-concepts.7", "hmb-trace-durability.7", "hmb-trace-daemon.8"),
}


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    command = [sys.executable, str(ROOT / "scripts" / "build_docs.py"), "--man", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    return folder


def page_of(words: tuple[str, ...], manual: Path) -> Path:
    name = "-".join(words[:2])
    section = 8 if name == "hmb-trace-daemon" else 1
    return manual / f"man{section}" / f"{name}.{section}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_in_the_manual(words: tuple[str, ...], manual: Path) -> None:
    text = page_of(words, manual).read_text(encoding="utf-8").replace("\\-", "-")
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", '"EXIT STATUS"', '"SEE ALSO"'):
        assert f".SH {section}\n" in text
    for parameter in find(words).params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert option in text, option


def test_the_manual_has_its_sections_and_no_dead_end(manual: Path) -> None:
    pages = {path.name for path in manual.glob("man*/*")}
    assert pages >= EXPECTED
    for path in manual.glob("man*/*"):
        text = path.read_text(encoding="utf-8").replace("\\-", "-")
        assert re.search(r"\.SH NAME\n\S+ - \S", text), path.name
        for name, section in re.findall(r"\b(hmb-[\w.-]+)\((\d)\)", text):
            assert f"{name}.{section}" in pages, f"{path.name} refers to {name}({section})"


def test_groff_has_nothing_to_complain_about(manual: Path) -> None:
    require_program("groff")
    require_program("preconv", "groff")
    for path in sorted(manual.glob("man*/*")):
        done = subprocess.run(
            ["groff", "-k", "-ww", "-z", "-man", "-Tutf8", str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stderr == "", path.name


def test_man_shows_a_page(manual: Path) -> None:
    require_program("man", "man-db")
    shown = subprocess.run(
        ["man", "-l", "-P", "cat", str(manual / "man1" / "hmb-trace-top.1")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "TERM": "dumb"},
    ).stdout
    for word in ("NAME", "hmb-trace top", "THE SCREEN", "EXIT STATUS", "--once"):
        assert word in shown

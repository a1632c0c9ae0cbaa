# SPDX-License-Identifier: Apache-2.0
"""The interface that the build parsed is used if it is the library's own, and only then."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hmb_trace
from hmb_trace import _core
from hmb_trace._binding import carried_text, open_library
from tests.conftest import ROOT

ABI = Path(hmb_trace.__file__).with_name("_libhmbtrace_abi.py")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a copy of the library and of what the build parsed."""
    folder = tmp_path / "bound"
    folder.mkdir()
    shutil.copy(_core._PATH, folder)
    shutil.copy(ABI, folder)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield folder
    for name in [n for n in sys.modules if n.partition(".")[0] == "bound"]:
        del sys.modules[name]


def opened(folder: Path) -> tuple[Any, Any]:
    ffi, lib = open_library("bound", folder / _core._PATH.name, "hmb_api_text")
    entry = ffi.new("struct hmb_layout_entry *")
    assert lib.hmb_layout(0, entry) == 0, "it can be called, whichever way it was opened"
    return ffi, lib


def was_parsed(ffi: Any) -> bool:
    return type(ffi).__module__ == "cffi.api"


def test_a_start_parses_no_c() -> None:
    both = "hmb_trace._core, hmb_producer_sim._engine"
    code = f"import sys, {both}; print('pycparser' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert found.strip() == "False"


def test_what_the_build_parsed_is_used(package: Path) -> None:
    assert not was_parsed(opened(package)[0])


def test_both_ways_know_the_same_types(package: Path) -> None:
    made = opened(package)[0]
    (package / ABI.name).unlink()
    del sys.modules["bound._libhmbtrace_abi"]
    parsed = opened(package)[0]
    assert was_parsed(parsed)
    structs = parsed.list_types()[1]
    assert structs
    for name in structs:
        kinds = [ffi.typeof(f"struct {name}") for ffi in (made, parsed)]
        assert ffi_sizes(made, kinds[0]) == ffi_sizes(parsed, kinds[1]), name


def ffi_sizes(ffi: Any, kind: Any) -> tuple[int, list[tuple[str, int]]] | None:
    if kind.fields is None:  # declared, and never told to Python
        return None
    return ffi.sizeof(kind), [(name, field.offset) for name, field in kind.fields]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("INTERFACE = b'", "INTERFACE = b'/* older */"),
        lambda text: text.replace("INTERFACE =", "OTHER ="),
        lambda text: "raise ImportError('made for another cffi')",
    ],
    ids=["another text", "no text", "another cffi"],
)
def test_what_is_not_of_this_library_is_passed_over(package: Path, spoil: Any) -> None:
    abi = package / ABI.name
    text = abi.read_text(encoding="utf-8")
    abi.write_text(spoil(text), encoding="utf-8")
    assert abi.read_text(encoding="utf-8") != text
    assert was_parsed(opened(package)[0])


def test_a_missing_file_costs_nothing_but_time(package: Path) -> None:
    (package / ABI.name).unlink()
    assert was_parsed(opened(package)[0])


def test_a_library_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"absent\.so is missing: build it"):
        open_library("bound", tmp_path / "absent.so", "hmb_api_text")


def test_the_text_kept_is_the_text_carried() -> None:
    made = importlib.import_module("hmb_trace._libhmbtrace_abi")
    assert carried_text(_core._PATH, "hmb_api_text") == made.INTERFACE

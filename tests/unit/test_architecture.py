# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the rules of ARCHITECTURE.md, held against the code itself."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hmb_trace import _core
from tests.conftest import ROOT, require_program

PACKAGES = {
    "hmb_trace": ROOT / "src/hmb_trace",
    "hmb_daemon": ROOT / "daemon/hmb_daemon",
    "hmb_producer_sim": ROOT / "producer_sim/hmb_producer_sim",
    "hmb_kmod_shim": ROOT / "kmod_shim/hmb_kmod_shim",
}
# Which modules of other packages each may use; "*" stands for all of a package.
MAY_USE = {
    "hmb_trace": set(),
    "hmb_daemon": {"hmb_trace.*"},
    "hmb_producer_sim": {"hmb_trace.*"},
    "hmb_kmod_shim": {"hmb_trace.live.device"},
}
# The modules that open a shared library, and which (what the build generates is not asked).
OPENERS = {
    "hmb_trace._binding": "ours, for _core and _engine",
    "hmb_daemon.host.sysio": "libc",
}
# The wings of hmb_trace from the bottom up; a module may import its own floor and those below.
FLOORS = (
    ("",),  # the core: modules of the package itself
    ("catalog", "dumps"),
    ("live",),
    ("query", "text"),
    ("pccx", "exports"),
    ("compare",),
    ("report", "top", "view", "why"),
    ("cli",),
)
# SQL reads dumps as Arrow tables, so it stands on the exporter that makes these.
ON_THE_EXPORTS = frozenset(f"hmb_trace.query.{name}" for name in ("sql", "tables", "places"))
ABOVE_THE_WINGS = frozenset(("hmb_trace", "hmb_trace.testing"))  # public names; for tests of others
EXPORTERS = ("hmb_trace.exports.arrow", "hmb_trace.exports.ctf", "hmb_trace.exports.perfetto")
HEAVY = ("pyarrow", "duckdb", "textual", "perfetto", "jinja2", "prometheus_client")


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def _statements(tree: ast.AST, *, deferred: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        only_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if deferred or not (only_types or is_function):
            yield from _statements(node, deferred=deferred)


def _named(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    assert statement.level == 0 and statement.module, "imports are absolute here"
    for alias in statement.names:
        inner = f"{statement.module}.{alias.name}"
        yield inner if inner in modules() else statement.module


@cache
def imports(module: str, *, deferred: bool = True) -> frozenset[str]:
    """What a module imports; deferred=False: only what its own import brings along."""
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    return frozenset(n for s in _statements(tree, deferred=deferred) for n in _named(s))


def package_of(module: str) -> str:
    return module.partition(".")[0]


def offenders(wrong: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{module} imports {name}" for module, name in sorted(wrong))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_uses_only_what_architecture_allows(package: str) -> None:
    allowed = MAY_USE[package]
    wrong = [
        (module, name)
        for module in modules()
        if package_of(module) == package
        for name in imports(module)
        if package_of(name) in PACKAGES
        and package_of(name) != package
        and name not in allowed
        and f"{package_of(name)}.*" not in allowed
    ]
    assert not wrong, offenders(wrong)


def test_only_the_openers_touch_a_shared_library() -> None:
    found = {m for m in modules() if {"cffi", "ctypes"} & {package_of(n) for n in imports(m)}}
    assert found - {m for m in modules() if m.endswith("_abi")} == set(OPENERS)
    users = {m for m in modules() if any(n.startswith("hmb_trace._binding") for n in imports(m))}
    assert users == {"hmb_trace._core", "hmb_producer_sim._engine"}


def test_the_kernel_side_is_imported_by_the_ring_alone() -> None:
    users = {m for m in modules() if "hmb_trace.live.device" in imports(m)}
    assert users == {"hmb_trace.live.ring", "hmb_kmod_shim"}


def wing_of(module: str) -> str:
    """dumps of hmb_trace.dumps.account; "" for the core."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (modules()[module].name == "__init__.py") else ""


def floor_of(module: str) -> int:
    wing = "exports" if module in ON_THE_EXPORTS else wing_of(module)
    return next(i for i, wings in enumerate(FLOORS) if wing in wings)


def test_every_wing_has_a_floor() -> None:
    ours = [m for m in modules() if package_of(m) == "hmb_trace" and m != "hmb_trace"]
    known = {wing for wings in FLOORS for wing in wings}
    assert {wing_of(module) for module in ours} <= known


def test_wings_import_downwards_only() -> None:
    ours = [
        module
        for module in modules()
        if package_of(module) == "hmb_trace" and module not in ABOVE_THE_WINGS
    ]
    wrong = [
        (module, name)
        for module in ours
        for name in imports(module)
        if name in ours and floor_of(name) > floor_of(module)
    ]
    assert not wrong, offenders(wrong)


def test_dumps_do_not_know_packages() -> None:
    wrong = [
        (module, name)
        for module in modules()
        if module.startswith("hmb_trace.dumps")
        for name in imports(module)
        if name.startswith(("hmb_trace.pccx", "hmb_trace.exports", "hmb_trace.query"))
    ]
    assert not wrong, offenders(wrong)


def test_exporters_do_not_know_each_other() -> None:
    assert set(EXPORTERS) <= set(modules())
    wrong = [(m, n) for m in EXPORTERS for n in imports(m) if n in EXPORTERS]
    assert not wrong, offenders(wrong)


@pytest.mark.parametrize("deferred", [False, True])
def test_no_circle_of_imports(deferred: bool) -> None:
    ours = set(modules())
    if deferred:
        ours.remove("hmb_trace")  # its public names are imported on first use
    graph = {module: imports(module, deferred=deferred) & ours for module in ours}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def loaded_by(names: Iterable[str]) -> set[str]:
    """The modules that a fresh Python holds once these are imported."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {sorted(names)!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_heavy_libraries_wait_for_the_command_that_needs_them() -> None:
    names = [m for m in modules() if m.startswith("hmb_trace.cli") or m == "hmb_daemon.cli"]
    assert not set(HEAVY) & loaded_by(names)


def test_the_daemon_does_without_numpy() -> None:
    names = [m for m in modules() if package_of(m) == "hmb_daemon"]
    assert "numpy" not in loaded_by(names)


def test_the_interface_has_no_preprocessor_lines() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "libhmbtrace/api").glob("*.h")]
    assert texts
    assert not re.findall(r"^\s*#.*", "".join(texts), re.MULTILINE)


def test_the_interface_is_carried_whole_and_in_the_order_that_c_compiles() -> None:
    compiled, carried = (
        re.findall(r'"?api/(\w+\.h)', (ROOT / "libhmbtrace" / name).read_text(encoding="utf-8"))
        for name in ("core.h", "api_text.c")
    )
    assert compiled == carried
    assert sorted(carried) == sorted(p.name for p in (ROOT / "libhmbtrace/api").glob("*.h"))


def declared() -> set[str]:
    """Functions of the interface, and the text that declares them."""
    text = re.sub(r"/\*.*?\*/", "", _core._api_text(), flags=re.DOTALL)
    text = re.sub(r"(?:struct|enum) \w+ \{.*?\n\};", "", text, flags=re.DOTALL)
    return {*re.findall(r"\b(hmb_\w+)\s*\(", text), "hmb_api_text"}


def dynamic_symbols(*options: str) -> set[str]:
    nm = require_program("nm", "binutils")
    listing = subprocess.check_output([nm, "-D", *options, _core._PATH], text=True)
    return {line.split()[-1].partition("@")[0] for line in listing.splitlines()}


def test_the_core_shows_its_interface_and_nothing_else() -> None:
    shown = {name for name in dynamic_symbols("--defined-only") if not name.startswith("LIB")}
    assert shown == declared()


def test_the_core_is_hardened_as_a_distribution_would() -> None:
    readelf = require_program("readelf", "binutils")
    dynamic = subprocess.check_output([readelf, "-Wdl", _core._PATH], text=True)
    assert "GNU_RELRO" in dynamic
    assert re.search(r"\bNOW\b", dynamic)
    assert "__stack_chk_fail" in dynamic_symbols("--undefined-only")


def test_the_core_neither_prints_nor_opens_files_nor_knows_python() -> None:
    wanted = dynamic_symbols("--undefined-only")
    assert "memcpy" in wanted or "__memcpy_chk" in wanted, "nm shows what the core takes from libc"
    banned = re.compile(
        r"(?:f?open(?:at)?(?:64)?|f?puts|v?[fd]?printf|f?write|syslog|Py\w+|_Py\w+)\Z"
    )
    assert not sorted(name for name in wanted if banned.match(name))


def test_the_firmware_knows_the_one_header_alone() -> None:
    found = set()
    for path in (ROOT / "producer_sim/firmware").glob("*.[ch]"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)', text, re.MULTILINE))
    own = {name for name in found if name.startswith(("hmb_producer", "hmb_slice"))}
    assert found - own == {"linux/hmb_trace.h"}


def test_test_modules_have_names_of_their_own() -> None:
    # pytest imports them by bare name: two of one name stop the whole run.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_shared_test_helpers_come_from_tests_conftest() -> None:
    # tests/vm has a conftest.py too: which one a bare "conftest" is depends on the order.
    bare = re.compile(r"^\s*(?:from|import) conftest\b", re.MULTILINE)
    paths = (ROOT / "tests").rglob("*.py")
    assert not [p.name for p in paths if bare.search(p.read_text(encoding="utf-8"))]

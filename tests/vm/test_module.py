# SPDX-License-Identifier: Apache-2.0
"""Behaviour of the module: guest/module_checks.py in one boot, one test a check."""

from __future__ import annotations

import ast
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vmkit

CHECKS = vmkit.GUEST / "module_checks.py"
OUTSIDE = b"from outside"
INSIDE = b"from here"

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


def _check_names() -> list[str]:
    tree = ast.parse(CHECKS.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any(ast.unparse(d) == "check" for d in f.decorator_list)]


@pytest.fixture(scope="module", params=["6.1", "6.12", "7"])
def results(machine: None, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """One boot per kernel for all checks: problem by check, and what was seen from outside."""
    kernel = vmkit.KERNELS[request.param]
    module = vmkit.build_module(kernel)
    shared = Path(f"/dev/shm/hmb-vm-module-{os.getpid()}-{kernel}")
    memory = bytearray(1 << 20)
    struct.pack_into("<IIII", memory, 0, 0x54424D48, 1, 1 << 19, 64)
    memory[2048 : 2048 + len(OUTSIDE)] = OUTSIDE
    shared.write_bytes(memory)
    try:
        fake = vmkit.build_fake_nvme(kernel)
        with vmkit.Guest(shared=shared, kernel=kernel) as guest:
            code, text = guest.sh(f"/usr/bin/python3 {CHECKS} {module} {fake}", 500)
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            found: dict[str, Any] = {line["check"]: line["problem"] for line in lines}
            found["exit"] = (code, text if code else "")
            found["splats"] = guest.splats()
            found["memory"] = shared.read_bytes()
        yield found
    finally:
        shared.unlink()


@pytest.mark.parametrize("name", _check_names())
def test_module(results: dict[str, Any], name: str) -> None:
    assert name in results, f"never ran: {results['exit']}"
    assert not results[name], results[name]


def test_host_sees_what_the_guest_wrote(results: dict[str, Any]) -> None:
    assert results["memory"][3072 : 3072 + len(INSIDE)] == INSIDE


def test_kernel_log_is_free_of_splats(results: dict[str, Any]) -> None:
    assert results["exit"] == (0, "")
    assert results["splats"] == []

# SPDX-License-Identifier: Apache-2.0
"""The VM suite takes minutes and QEMU: `make test-vm` runs it, `make test` does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import vmkit

# The longest first: the last ones then fill what is left of both halves.
ORDER = ("test_drive", "test_chain", "test_docs", "test_module", "test_nvme", "test_build")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order; make test-vm gives whole files to its two processes (--dist loadfile)."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    if len(ours) == len(items):
        items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="session")
def machine() -> None:
    """QEMU and what belongs to it; skipped where it is missing, failed where CI says so."""
    reason = vmkit.missing()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def module(machine: None) -> Path:
    """The module, built against the installed 6.1 headers."""
    return vmkit.build_module()


@pytest.fixture
def region() -> Iterator[Path]:
    """A file in memory that becomes the guest's PCI shared memory."""
    path = Path(f"/dev/shm/hmb-vm-{os.getpid()}")
    with path.open("wb") as file:
        file.truncate(4 << 20)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)

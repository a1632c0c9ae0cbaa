# SPDX-License-Identifier: Apache-2.0
"""The nvme driver with our patch still drives a disk, and offers itself to the module.

QEMU's own nvme device has no Host Memory Buffer: what a slice does is proven by
fake_nvme (test_module.py) around the same code, and the layout by tests/unit.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import vmkit

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]


@pytest.mark.parametrize("series", ["6.1", "6.12", "7"])
def test_patched_nvme_drives_a_disk(machine: None, series: str, tmp_path: Path) -> None:
    kernel = vmkit.KERNELS[series]
    module, driver = vmkit.build_module(kernel), vmkit.build_patched_nvme(kernel)
    disk = tmp_path / "disk"
    disk.write_bytes(os.urandom(1 << 20))
    extra = ("-drive", f"file={disk},format=raw,if=none,id=d", "-device", "nvme,drive=d,serial=x")
    needed = [path for path in kernel.modules("nvme") if path.name != "nvme.ko"]
    with vmkit.Guest(extra=extra, kernel=kernel) as guest:
        for path in needed:
            guest.sh(f"insmod {path}")  # some are loaded already
        guest.check(f"insmod {driver} trace_drives=x")
        guest.wait("[ -b /dev/nvme0n1 ]")
        guest.check(f"cmp /dev/nvme0n1 {disk}")
        guest.check("dd if=/dev/zero of=/dev/nvme0n1 bs=4096 count=1 conv=fsync")
        guest.check(f"insmod {module}")
        log = guest.check("dmesg")
        assert "is not patched" not in log
        assert guest.sh("rmmod nvme")[0] != 0
        guest.check("rmmod nvme_hmb_trace && rmmod nvme")
        assert guest.splats() == []
    assert disk.read_bytes()[:4096] == bytes(4096)

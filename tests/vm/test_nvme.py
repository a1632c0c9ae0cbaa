# SPDX-License-Identifier: Apache-2.0
"""The nvme driver with our patch still drives a disk, and offers itself to the module.

QEMU's own nvme device has no Host Memory Buffer. How the driver lays one out is seen here with
a driver that takes the device's refusal for consent; what a slice does is proven by fake_nvme
(test_module.py) around the same code.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import vmkit

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


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


@vmkit.alone
def consenting_driver(kernel: vmkit.Kernel) -> Path:
    """The patched driver, but for a drive that asks for 64 MiB and takes what it is given."""
    patched = vmkit.build_patched_nvme(kernel).parent
    target = vmkit.CACHE / f"nvme-consenting-{kernel.release}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(patched, target, ignore=shutil.ignore_patterns("*.o", "*.ko", ".*.cmd"))
    source = target / "pci.c"
    text = source.read_text()
    text, asked = re.subn(
        r"(static int nvme_setup_host_mem\(struct nvme_dev \*dev\)\n{\n)",
        r"\1\tu32 wish = dev->ctrl.hmpre = 16384;\n",
        text,
    )
    text, taken = re.subn(
        r"\tret = nvme_set_host_mem\(dev, enable_bits\);\n\tif \(ret\)",
        "\tret = nvme_set_host_mem(dev, enable_bits) < 0 || !wish;\n\tif (ret)",
        text,
    )
    text = text.replace("if (dev->ctrl.hmpre)", "if (1)")  # where 6.1 asks
    assert (asked, taken) == (1, 1)
    source.write_text(text)
    off = [f"CONFIG_NVME_{name}=" for name in ("CORE", "FABRICS", "RDMA", "FC", "TCP")]
    vmkit.kbuild(target, kernel.headers, "CONFIG_BLK_DEV_NVME=m", *off, *kernel.settings)
    return target / "nvme.ko"


# Ring sizes in KiB that fit, and one that does not; 64 MiB leave 32 MiB to a slice at most.
PLAIN = ((2048,), 4096, "more than this host allocates in one piece")
MERGING = ((2048, 16384), 65536, "less than half of the buffer")


@pytest.mark.parametrize(("series", "iommu"), [("6.1", False), ("6.1", True), ("7", True)])
def test_layout_of_the_slice_h8(machine: None, series: str, *, iommu: bool) -> None:
    """Without an IOMMU 2 MiB is the largest ring; behind one it is half of the buffer."""
    kernel = vmkit.KERNELS[series]
    driver, module = consenting_driver(kernel), vmkit.build_module(kernel)
    extra = ("-device", "nvme,serial=abc,addr=5")
    if iommu:
        extra = ("-device", "intel-iommu", *extra)
    needed = [path for path in kernel.modules("nvme") if path.name != "nvme.ko"]
    fits, too_large, why = MERGING if iommu else PLAIN
    append = "intel_iommu=on iommu=nopt" if iommu else ""
    with vmkit.Guest(extra=extra, kernel=kernel, append=append) as guest:
        for path in needed:
            guest.sh(f"insmod {path}")
        guest.check(f"insmod {module}")
        guest.check("rmmod nvme_hmb_trace")
        for size in fits:
            guest.check(f"insmod {driver} trace_drives=abc trace_ring_kb={size}")
            guest.check(f"insmod {module}")
            guest.wait("[ -c /dev/nvme0-hmbtrace ]")
            region = int(guest.check("cat /sys/class/hmbtrace/nvme0-hmbtrace/region_size"))
            assert region == size * 1024 + 4096
            guest.check("echo 1 > /sys/class/nvme/nvme0/reset_controller")
            guest.wait('[ "$(cat /sys/class/hmbtrace/nvme0-hmbtrace/generation)" -gt 0 ]')
            guest.check("rmmod nvme_hmb_trace && rmmod nvme")
        for options in (f"trace_drives=abc trace_ring_kb={too_large}", "trace_drives=other"):
            guest.check(f"insmod {driver} {options} && insmod {module}")
            guest.wait("dmesg | tail -n 4 | grep -q 'host memory buffer'")
            assert guest.sh("ls /dev/nvme0-hmbtrace")[0] != 0
            guest.check("rmmod nvme_hmb_trace && rmmod nvme")
        assert why in guest.check("dmesg | grep 'no trace slice'")
        assert guest.splats() == []

# SPDX-License-Identifier: Apache-2.0
"""`hmb-trace doctor` on made-up machines: a tree of sysfs attributes in a temporary folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hmb_trace.cli import main
from hmb_trace.live.diagnosis import Finding, Status, System, default_spool, diagnose
from hmb_trace.testing import ring_header

NODE = "nvme0-hmbtrace"


class Machine:
    """A root directory in which all is well."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("/sys/class/nvme/nvme0/model", "SuperSSD")
        self.write("/sys/class/nvme/nvme0/firmware_rev", "1.2")
        self.write("/sys/class/nvme/nvme0/hmb", "1")
        self.write("/sys/module/nvme/parameters/max_host_mem_size_mb", "128")
        self.write("/sys/module/nvme/parameters/trace_ring_kb", "2048")
        self.write("/sys/module/nvme_hmb_trace/version", "0.1.0")
        for name, value in {
            "ring_size": str(2 << 20),
            "abi_version": "1",
            "overflow_count": "0",
            "consumer": "4711",
            "fill": "0",
        }.items():
            self.write(f"/sys/class/hmbtrace/{NODE}/{name}", value)
        self.write(f"/dev/{NODE}", "")
        self.write("/etc/group", "root:x:0:\nhmb-trace:x:995:")
        self.write("/usr/lib/systemd/system/hmb-trace-daemon@.service", "")
        self.write("/proc/meminfo", "MemTotal:       2097152 kB")
        self.write("/proc/mounts", "/ / ext4 rw 0 0\nt /run tmpfs rw 0 0\nt /dev/shm tmpfs rw 0 0")
        for folder in ("run", "dev/shm", "out"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        if target.is_dir():
            for child in sorted(target.rglob("*"), reverse=True):
                child.rmdir() if child.is_dir() else child.unlink()
            target.rmdir()
        else:
            target.unlink()

    def findings(self, device: str | None = None) -> dict[str, Finding]:
        system = System(self.root, self.root / "out", kernel="6.1.0-57-amd64", machine="x86_64")
        return {finding.check: finding for finding in diagnose(system, device)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_whole_machine_has_nothing_to_fix(machine: Machine) -> None:
    found = machine.findings()
    assert {f.status for f in found.values()} == {Status.OK}, found
    assert "SuperSSD 1.2" in found["drive nvme0"].found
    assert "2.0 MiB" in found[f"device {NODE}"].found
    assert "4711" in found[f"device {NODE}: consumer"].found


@pytest.mark.parametrize(
    ("path", "value", "check", "status", "words"),
    [
        ("/sys/class/nvme/nvme0/hmb", None, "drive nvme0", Status.NOTE, "no Host Memory Buffer"),
        ("/sys/class/nvme/nvme0/hmb", "0", "drive nvme0", Status.WARN, "is off"),
        ("/sys/module/nvme/parameters/trace_ring_kb", None, "nvme driver", Status.WARN, "patched"),
        ("/sys/module/nvme/parameters/trace_ring_kb", "0", "nvme driver", Status.WARN, "is 0"),
        (
            *("/sys/module/nvme/parameters/max_host_mem_size_mb", "2"),
            *("nvme driver", Status.FAIL, "at most 2 MiB"),
        ),
        ("/sys/module/nvme_hmb_trace", None, "module", Status.FAIL, "not installed"),
        (f"/sys/class/hmbtrace/{NODE}", None, "device", Status.FAIL, "no region"),
        (f"/sys/class/hmbtrace/{NODE}/ring_size", "0", f"device {NODE}", Status.FAIL, "no ring"),
        (
            f"/sys/class/hmbtrace/{NODE}/abi_version",
            "2",
            f"device {NODE}",
            Status.FAIL,
            "version 2",
        ),
        (
            *(f"/sys/class/hmbtrace/{NODE}/overflow_count", "3"),
            *(f"device {NODE}: losses", Status.WARN, "3 times"),
        ),
        (
            *(f"/sys/class/hmbtrace/{NODE}/consumer", "0"),
            *(f"device {NODE}: consumer", Status.NOTE, "nobody"),
        ),
        (f"/dev/{NODE}", None, f"device {NODE}: access", Status.FAIL, "is missing"),
        ("/etc/group", "root:x:0:", "group", Status.WARN, "no group"),
        (
            *("/usr/lib/systemd/system/hmb-trace-daemon@.service", None),
            *("service", Status.NOTE, "not installed"),
        ),
        ("/proc/mounts", "/ / ext4 rw 0 0", "spool in /run", Status.NOTE, "not tmpfs"),
        ("/dev/shm", None, "spool in /dev/shm", Status.NOTE, "no such"),
    ],
)
def test_every_lack_is_named(
    *, machine: Machine, path: str, value: str | None, check: str, status: Status, words: str
) -> None:
    if value is None:
        machine.remove(path)
    else:
        machine.write(path, value)
    finding = machine.findings()[check]
    assert finding.status is status
    assert words in finding.found
    assert finding.advice or status is Status.NOTE


def test_hmb_off_by_limit_says_so(machine: Machine) -> None:
    machine.write("/sys/class/nvme/nvme0/hmb", "0")
    machine.write("/sys/module/nvme/parameters/max_host_mem_size_mb", "0")
    assert "max_host_mem_size_mb" in machine.findings()["drive nvme0"].advice


def test_installed_but_not_loaded(machine: Machine) -> None:
    machine.remove("/sys/module/nvme_hmb_trace")
    machine.write("/lib/modules/6.1.0-57-amd64/updates/dkms/nvme_hmb_trace.ko.xz", "")
    assert machine.findings()["module"].advice == "modprobe nvme_hmb_trace"


def test_ivshmem_function_without_driver(machine: Machine) -> None:
    machine.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x1af4")
    machine.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x1110")
    assert "no driver" in machine.findings()["ivshmem 0000:01:00.0"].found
    machine.write("/sys/bus/pci/devices/0000:01:00.0/driver/bind", "")
    assert "ivshmem 0000:01:00.0" not in machine.findings()


def test_a_machine_without_drives(machine: Machine) -> None:
    machine.remove("/sys/class/nvme")
    assert machine.findings()["drives"].status is Status.NOTE


def test_unknown_machine(machine: Machine) -> None:
    system = System(machine.root, machine.root, machine="sparc64")
    assert diagnose(system)[0].status is Status.FAIL


def test_named_device(machine: Machine) -> None:
    assert f"device {NODE}" in machine.findings(f"/dev/{NODE}")
    assert machine.findings("/dev/nvme9-hmbtrace")["device nvme9-hmbtrace"].status is Status.FAIL


@pytest.mark.parametrize(
    ("memory", "spool"), [(0, 64 << 20), (16 << 30, 512 << 20), (1 << 40, 1 << 30)]
)
def test_default_spool(memory: int, spool: int) -> None:
    assert default_spool(memory) == spool


def test_command_judges_a_ring_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = tmp_path / "ring"
    ring.write_bytes(bytes(8192))
    assert main(["doctor", str(ring), "--json", "--output-dir", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert "magic" in answer["findings"][0]["found"]
    assert main(["doctor", str(ring), "--output-dir", os.fspath(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "to fix before a capture can work" in text
    ring.write_bytes(ring_header(ring_size=4096, head=64) + bytes(4096))
    assert main(["doctor", str(ring), "--output-dir", os.fspath(tmp_path)]) == 0
    assert "ring of 4.0 KiB, 64 B unread" in capsys.readouterr().out


def test_a_collector_that_runs_is_explained(tmp_path: Path) -> None:
    """Whoever finds one is told what it does and how to end it."""
    folder = tmp_path / "proc/4711"
    folder.mkdir(parents=True)
    words = ("/usr/lib/x/hmb-trace-collector", "--device", "/dev/nvme0-hmbtrace", "")
    (folder / "cmdline").write_text("\0".join(words))
    found = [f for f in diagnose(System(root=tmp_path)) if f.check == "collector 4711"]
    assert len(found) == 1
    assert "/dev/nvme0-hmbtrace" in found[0].found
    assert "kill -TERM 4711" in str(found[0].advice)

# SPDX-License-Identifier: Apache-2.0
"""`hmb-trace doctor` on made-up machines: a tree of sysfs attributes in a temporary folder."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from hmb_trace import nvme
from hmb_trace.cli import main
from hmb_trace.diagnosis import Finding, Status, System, default_spool, diagnose, verdict
from hmb_trace.diagnosis_service import of_daemon
from hmb_trace.nvme import HostMemory
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
        self.write("/sys/class/nvme/nvme0/address", "0000:01:00.0")
        self.write("/sys/class/nvme/nvme0/serial", "S4EW")
        self.write("/sys/class/nvme/nvme0/state", "live")
        self.write("/sys/module/nvme/parameters/trace_drives", "S4EW")
        self.write("/sys/module/nvme/parameters/trace_ring_kb", "2048")
        self.write("/sys/module/nvme_hmb_trace/version", "0.1.0")
        for name, value in {
            "ring_size": str(2 << 20),
            "abi_version": "1",
            "overflow_count": "0",
            "consumer": "4711",
            "fill": "0",
            "generation": "0",
            "provider": "nvme",
            "origin": "0000:01:00.0",
        }.items():
            self.write(f"/sys/class/hmbtrace/{NODE}/{name}", value)
        self.memory: HostMemory | None = None
        self.log: list[str] | None = []
        device = root / "dev" / NODE
        device.parent.mkdir()
        device.write_bytes(ring_header(ring_size=4096, head=64) + bytes(4096))
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
        found = diagnose(self.system, device)
        named = {finding.check: finding for finding in found}
        assert len(named) == len(found), "two answers to one question"
        return named

    @property
    def system(self) -> System:
        return System(
            self.root,
            self.root / "out",
            kernel="6.1.0-57-amd64",
            machine="x86_64",
            ask_drive=self.ask,
            messages=lambda: self.log,
        )

    def ask(self, path: Path) -> HostMemory:
        if self.memory is None:
            raise PermissionError(13, "Permission denied", str(path))
        return self.memory


MEMORY = HostMemory(64 << 20, 2 << 20, 0, 0, enabled=True, granted=64 << 20, descriptors=17)


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
        ("/sys/class/nvme/nvme0/hmb", None, "drive nvme0", Status.NOTE, "unknown whether"),
        ("/sys/class/nvme/nvme0/hmb", "0", "drive nvme0", Status.WARN, "is off"),
        ("/sys/class/nvme/nvme0/state", "dead", "drive nvme0", Status.WARN, "is dead"),
        ("/sys/module/nvme/parameters/trace_drives", None, "nvme driver", Status.NOTE, "patched"),
        ("/sys/module/nvme/parameters/trace_drives", "", "nvme driver", Status.NOTE, "no drive"),
        (
            *("/sys/module/nvme/parameters/trace_drives", "S4EW,typo"),
            *("nvme.trace_drives typo", Status.WARN, "no drive has"),
        ),
        ("/sys/module/nvme", None, "nvme driver", Status.NOTE, "cannot tell"),
        ("/sys/module/nvme_hmb_trace", None, "module", Status.FAIL, "not installed"),
        (f"/sys/class/hmbtrace/{NODE}", None, "slice of nvme0", Status.FAIL, "none"),
        (
            f"/sys/class/hmbtrace/{NODE}/ring_size",
            "0",
            f"device {NODE}",
            Status.FAIL,
            "not tracing",
        ),
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
            *(f"device {NODE}: consumer", Status.NOTE, "no daemon"),
        ),
        (f"/dev/{NODE}", None, f"device {NODE}: access", Status.FAIL, "is missing"),
        (
            *(f"/sys/class/hmbtrace/{NODE}/generation", "7"),
            *(f"device {NODE}: resets", Status.NOTE, "7 times"),
        ),
        ("/etc/group", "root:x:0:", "service", Status.FAIL, "no group"),
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
    assert "pci_regions=0000:01:00.0" in machine.findings()["ivshmem 0000:01:00.0"].advice
    machine.write("/sys/bus/pci/devices/0000:01:00.0/driver/bind", "")
    assert "ivshmem 0000:01:00.0" not in machine.findings()


def test_a_machine_without_drives_or_module_has_nothing_to_fix(machine: Machine) -> None:
    """H23: shared-memory rings work all the same, so nothing may say otherwise."""
    for path in ("/sys/class/nvme", "/sys/module/nvme", "/sys/module/nvme_hmb_trace"):
        machine.remove(path)
    machine.remove("/sys/class/hmbtrace")
    found = machine.findings()
    assert found["drives"].status is Status.NOTE
    assert found["module"].status is Status.NOTE
    assert Status.FAIL not in {finding.status for finding in found.values()}
    said = verdict(machine.system, list(found.values()))
    assert said == "no trace device on this machine; rings in files and shared memory work"


def test_identify_is_believed_before_sysfs(machine: Machine) -> None:
    """Older kernels have no attribute hmb: its absence says nothing."""
    machine.remove("/sys/class/nvme/nvme0/hmb")
    machine.memory = MEMORY
    assert "64.0 MiB in 17 descriptors" in machine.findings()["drive nvme0"].found
    machine.memory = replace(MEMORY, preferred=0, enabled=False)
    assert "HMPRE 0" in machine.findings()["drive nvme0"].found
    machine.memory = replace(MEMORY, enabled=False)
    assert "is off" in machine.findings()["drive nvme0"].found


def test_why_a_slice_did_not_fit(machine: Machine) -> None:
    machine.remove(f"/sys/class/hmbtrace/{NODE}")
    reason = "header, ring and mark are more than this host allocates in one piece"
    machine.log = ["x", f"nvme nvme0: no trace slice for a ring of 4096 KiB: {reason}", "y"]
    assert machine.findings()["slice of nvme0"].found == f"none: {reason}"
    machine.log = None
    assert machine.findings()["slice of nvme0"].advice == "run as root"
    machine.memory = replace(MEMORY, most_descriptors=1)
    assert "HMMAXD 1" in machine.findings()["slice of nvme0"].found


def test_several_drives_and_only_those_named_need_a_slice(machine: Machine) -> None:
    for number in (1, 2):
        base = f"/sys/class/nvme/nvme{number}"
        machine.write(f"{base}/address", f"0000:0{number + 1}:00.0")
        machine.write(f"{base}/hmb", "1")
    machine.write("/sys/module/nvme/parameters/trace_drives", "0000:01:00.0,0000:03:00.0")
    found = machine.findings()
    assert found["slice of nvme0"].found == f"is /dev/{NODE}"
    assert "slice of nvme1" not in found
    assert found["slice of nvme2"].status is Status.FAIL


def test_the_node_of_a_drive_may_have_another_number(machine: Machine) -> None:
    machine.write("/sys/class/hmbtrace/nvme3-hmbtrace/origin", "0000:01:00.0")
    machine.write(f"/sys/class/hmbtrace/{NODE}/origin", "")
    assert machine.findings()["slice of nvme0"].found == "is /dev/nvme3-hmbtrace"


@pytest.mark.parametrize(
    ("head", "flags", "words"),
    [(0, 0, "nothing yet"), (64, 0, "silent at the moment"), (64, 2, "has frozen")],
)
def test_whether_firmware_is_tracing(machine: Machine, head: int, flags: int, words: str) -> None:
    header = ring_header(ring_size=4096, head=head, flags=flags)
    (machine.root / "dev" / NODE).write_bytes(header + bytes(4096))
    assert words in machine.findings()[f"device {NODE}"].found


def test_the_spool_budget_is_that_of_all_rings(machine: Machine) -> None:
    for number in range(3):
        machine.write(f"/sys/class/hmbtrace/nvme{number}-hmbtrace/consumer", "0")
    assert "3 spools take 192.0 MiB" in machine.findings()["spool in /dev/shm"].found


def test_one_metrics_port_for_two_daemons(machine: Machine) -> None:
    machine.write("/etc/hmb-trace/nvme0.env", "HMB_TRACE_METRICS=:9463")
    assert machine.findings()["metrics :9463"].status is Status.OK
    machine.write("/etc/hmb-trace/nvme1.env", "HMB_TRACE_METRICS=:9463")
    assert machine.findings()["metrics :9463"].status is Status.WARN
    machine.remove("/etc/hmb-trace/nvme1.env")
    machine.write("/sys/class/hmbtrace/nvme1-hmbtrace/consumer", "0")
    machine.write("/etc/hmb-trace/daemon.toml", 'metrics = ":9464"')
    assert machine.findings()["metrics :9464"].status is Status.WARN


def test_running_daemons_tell_their_losses() -> None:
    status = {"state": "running", "counters": {"records": 7, "lost": 3, "unknown_losses": 1}}
    found = of_daemon(Path("/run/hmb-trace/nvme0/control"), status)
    assert (found.check, found.status) == ("daemon nvme0", Status.WARN)
    assert "3 lost, 1 unknown_losses" in found.found
    status["disk"] = "No space left on device"
    assert "No space" in of_daemon(Path("/x/y/control"), status).found
    assert of_daemon(Path("/x/y/control"), {"state": "running"}).status is Status.OK


def test_remove_ipc_is_named_to_those_it_hits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / "run/systemd/seats").mkdir(parents=True)
    assert "logind" not in machine.findings()  # root's objects stay
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.findings()["logind"].status is Status.WARN
    machine.write("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no")
    assert "logind" not in machine.findings()


def test_identify_and_get_features_as_bytes() -> None:
    identity, granted = bytearray(4096), bytearray(4096)
    struct.pack_into("<II", identity, 272, 16384, 512)
    struct.pack_into("<IH", identity, 332, 2, 8)
    struct.pack_into("<IIII", granted, 0, 16384, 0, 0, 5)
    found = nvme._parsed(bytes(identity), bytes(granted), True)
    assert found == HostMemory(64 << 20, 2 << 20, 8192, 8, True, 64 << 20, 5)


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

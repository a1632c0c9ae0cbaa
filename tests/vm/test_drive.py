# SPDX-License-Identifier: Apache-2.0
"""A real NVMe controller in the loop: `hmb-firmware-sim --vfio-user` under the patched driver.

The drive's firmware writes into the Host Memory Buffer that the guest lends; module, unit and
daemon in the guest take it out. Resets, power states and removal come in between, and the dumps
must be what the drive's ledger says. The drive fails the run itself if firmware touches memory
that it must leave alone, or if the host writes anything there but `tail`.

Debian has no kernel with lockdep or KASAN: what is looked for in the kernel log are the splats
of its usual kernels.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import suites
import vmkit
from test_chain import account

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
RECORDS = 1_000_000
RESETS, FUNCTION_RESETS = 50, 20
MEMORY = "1G"
HOST_LIMIT_MIB = 48  # nvme.max_host_mem_size_mb: less than the drives ask for
MIB = 1 << 20
TRACED = "TRACED01"
# Drives beside the traced one, in the same machine: serial, options, what firmware must say.
OTHERS = {
    "NOTASKED": ((), "no slice mark"),  # not among nvme.trace_drives
    "SMALL002": (("--hmb-size", "2MiB"), "no slice mark"),
    "ONEPIECE": (("--hmb-max-descriptors", "1"), "no slice mark"),
    "BIGPIECE": (("--hmb-min-descriptor", "8MiB"), ""),  # more than the allocator has in a piece
    "GREEDY05": (("--hmb-size", "128MiB", "--hmb-min", "96MiB"), ""),  # over the host's limit
    "PLAIN006": (("--hmb-size", "0"), ""),
}


def rate() -> str:
    """So that firmware still writes at the last reset: a busy host is slower at everything else."""
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return f"{max(3, round(16 / busy))}k/s"


@dataclass
class Drive:
    """A simulated drive outside the guest."""

    serial: str
    folder: Path
    process: subprocess.Popen[bytes]
    verdict: tuple[int, str] = (-1, "still running")

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.json"

    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def qemu(self) -> tuple[str, str]:
        address = {"type": "unix", "path": str(self.socket)}
        return ("-device", json.dumps({"driver": "vfio-user-pci", "socket": address}))


@contextlib.contextmanager
def drive(serial: str, *options: str) -> Iterator[Drive]:
    """Start one; it ends by itself when QEMU has gone."""
    folder = Path(tempfile.mkdtemp(prefix="hmb-drive-"))  # a socket's path must be short
    command = [str(BIN / "hmb-firmware-sim"), "--vfio-user", str(folder / "socket")]
    command += ["--serial", serial, "--ledger", str(folder / "ledger.json"), *options]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(["nice", *command], stdin=subprocess.DEVNULL, stderr=said)
    try:
        yield Drive(serial, folder, process)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def wait(condition: Any, seconds: float, what: Any) -> None:
    """On the host; `what` is called for the message."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class Loop:
    """The guest with its drives, and what it does with the traced one."""

    def __init__(self, guest: vmkit.Guest, drives: dict[str, Drive], state: Path) -> None:
        self.guest = guest
        self.drives = drives
        self.traced = drives[TRACED]
        self.state = state

    def load(self) -> None:
        """The patched driver and the module, as after a boot with both installed."""
        kernel = self.guest.kernel
        driver, module = vmkit.build_patched_nvme(kernel), vmkit.build_module(kernel)
        for path in kernel.modules("nvme"):
            if path.name != "nvme.ko":
                self.guest.sh(f"insmod {path}")  # some are loaded already
        named = ",".join((TRACED, *(serial for serial in OTHERS if serial != "NOTASKED")))
        self.guest.check(
            f"insmod {driver} trace_drives={named} max_host_mem_size_mb={HOST_LIMIT_MIB}"
        )
        self.guest.check(f"insmod {module}")
        self.guest.wait(f"grep -q {TRACED} /sys/class/nvme/nvme*/serial")
        found = self.guest.check(f"grep -l {TRACED} /sys/class/nvme/nvme*/serial").split("/")
        self.name = found[4]
        self.guest.check(f"(sh {vmkit.GUEST}/keep_daemon {BIN} /dev/{self.name}-hmbtrace &)")
        self.wait_draining()

    @property
    def sysfs(self) -> str:
        return f"/sys/class/nvme/{self.name}"

    @property
    def node(self) -> str:
        return f"/sys/class/hmbtrace/{self.name}-hmbtrace"

    @property
    def dumps(self) -> Path:
        return self.state / "dumps"

    def consumer(self) -> int:
        """The daemon's pid, 0 while it has not attached."""
        return int(self.guest.sh(f"cat {self.node}/consumer")[1].strip() or 0)

    def live(self) -> str:
        return f'[ "$(cat {self.sysfs}/state)" = live ]'

    def repeat(self, command: str, times: int, timeout: float = 400) -> None:
        """A command so often, each time until the controller is live again."""
        until = f"until {self.live()}; do sleep 0.02; done"
        self.guest.check(
            f"for i in $(seq {times}); do {command} || echo failed $i; {until}; done", timeout
        )

    def kill_daemon(self) -> None:
        pid = self.consumer()
        self.guest.check(f"kill -9 {pid}")
        self.wait_draining(unlike=pid)

    def wait_draining(self, unlike: int = 0) -> None:
        """A daemon has attached, under another pid than `unlike`."""
        seen = f"$(cat {self.node}/consumer 2>/dev/null || echo 0)"
        self.guest.wait(f'pid={seen}; [ "$pid" != 0 ] && [ "$pid" != {unlike} ]')

    def finish(self) -> dict[str, Any]:
        """Firmware has written everything and the daemon has taken it: the ledger."""
        wait(self.traced.ledger.exists, 400, self.explain)
        self.guest.wait(f'[ "$(cat {self.node}/fill)" = 0 ]')
        self.guest.check("touch /run/stop; kill $(cat /run/daemon.pid)")
        self.guest.wait("[ -e /run/stopped ]")
        ledger: dict[str, Any] = json.loads(self.traced.ledger.read_text())
        return ledger

    def segments(self) -> list[Path]:
        assert not list(self.dumps.glob("*.part"))
        return sorted(self.dumps.glob("*.bin"))

    def explain(self) -> str:
        return f"{self.traced.said()[-2000:]}\n{self.guest.log()[-4000:]}"


@contextlib.contextmanager
def looped(series: str, state: Path) -> Iterator[Loop]:
    """A guest with all the drives; what they say at the end is judged by the caller."""
    vmkit.precompile()
    work = ("--payload", "0..64", "--on-full", "block", "--drain", "60s", "--restrict-idle")
    main = (*work, "--count", str(RECORDS), "--rate", rate())
    with contextlib.ExitStack() as stack:
        drives = {TRACED: stack.enter_context(drive(TRACED, *main))}
        for serial, (options, _) in OTHERS.items():
            drives[serial] = stack.enter_context(drive(serial, *options))
        wait(lambda: all(d.socket.exists() for d in drives.values()), 60, lambda: "no socket")
        memory = f"memory-backend-memfd,id=m0,size={MEMORY},share=on"
        extra = ("-object", memory, *(word for d in drives.values() for word in d.qemu))
        guest = vmkit.Guest(
            exchange=state,
            memory=MEMORY,
            extra=extra,
            kernel=vmkit.KERNELS[series],
            qemu=suites.new_qemu(),
            machine="q35,memory-backend=m0",
        )
        with guest:
            yield Loop(guest, drives, state)
        for one in drives.values():  # QEMU has gone, so they end
            one.verdict = (one.process.wait(30), one.said())


def switch_buffer_off_and_on(loop: Loop) -> None:
    """By sysfs, where the kernel has the attribute (6.16 and later)."""
    attribute = f"{loop.sysfs}/hmb"
    if loop.guest.sh(f"[ -e {attribute} ]")[0]:
        assert loop.guest.kernel.series in ("6.1", "6.12")
        return
    for _ in range(2):
        loop.guest.check(f"echo 0 >{attribute}")
        loop.guest.wait(f"[ ! -e {loop.node} ]")
        loop.guest.check(f"echo 1 >{attribute}")
        loop.guest.wait(f"[ -e {loop.node} ]")
        loop.wait_draining()


def remove_and_rescan(loop: Loop) -> None:
    loop.guest.check(f"echo 1 >$(readlink -f {loop.sysfs}/device)/remove")
    loop.guest.wait(f"[ ! -e {loop.node} ]")
    loop.guest.check("echo 1 >/sys/bus/pci/rescan")
    loop.guest.wait(f"grep -q {TRACED} {loop.sysfs}/serial")
    loop.wait_draining()


def rest_in_a_power_state(loop: Loop) -> None:
    script = vmkit.GUEST / "power_states.py"
    answer = loop.guest.check(f"/usr/bin/python3 {script} /dev/{loop.name} {loop.node} 1")
    seen = json.loads(answer.splitlines()[-1])
    assert (seen["state"], seen["idle"]) == (2, 0), seen
    assert seen["awake"] > 0, seen
    assert "firmware leaves the HMB alone" in loop.traced.said()


def check_namespace(loop: Loop) -> None:
    """I/O queues carry data: what was written is read back, past the page cache."""
    disk = f"/dev/{loop.name}n1"
    loop.guest.check(
        "head -c 1048576 /dev/urandom >/run/block && "
        f"/usr/bin/dd if=/run/block of={disk} bs=64k oflag=direct && "
        f"/usr/bin/dd if={disk} bs=128k iflag=direct count=8 | cmp - /run/block"
    )


def check_others(loop: Loop) -> None:
    """Drives that must not be traced are drives all the same."""
    serials = loop.guest.check("cat /sys/class/nvme/nvme*/serial")
    for serial, (_, said) in OTHERS.items():
        assert serial in serials
        assert said in loop.drives[serial].said(), serial
        assert "workload" not in loop.drives[serial].said(), serial
    states = loop.guest.check("cat /sys/class/nvme/nvme*/state").split()
    assert states == ["live"] * (len(OTHERS) + 1)
    assert loop.guest.check("ls /sys/class/hmbtrace").split() == [f"{loop.name}-hmbtrace"]


@pytest.mark.parametrize("series", list(vmkit.KERNELS))
def test_a_million_records_over_resets(machine: None, series: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with looped(series, state) as loop:
        loop.load()
        check_others(loop)
        check_namespace(loop)
        loop.repeat(f"echo 1 >{loop.sysfs}/reset_controller", RESETS)
        loop.kill_daemon()
        loop.repeat(f"echo 1 >{loop.sysfs}/device/reset", FUNCTION_RESETS)
        switch_buffer_off_and_on(loop)
        rest_in_a_power_state(loop)
        loop.kill_daemon()
        remove_and_rescan(loop)
        check_namespace(loop)
        assert not loop.traced.ledger.exists(), "all was written before the last reset"
        ledger = loop.finish()
        assert loop.guest.splats() == []
    assert ledger["exact"]
    assert ledger["records"] == RECORDS
    assert len(ledger["epochs"]) > RESETS + FUNCTION_RESETS
    seen = account(loop.segments(), tmp_path / "joined")
    for key in ("records", "bytes"):
        assert seen[key] == ledger[key], (key, seen, ledger)
    assert int(str(seen["fnv64"]), 0) == int(ledger["fnv64"], 0)
    for one in loop.drives.values():
        assert one.verdict[0] == 0, one.verdict

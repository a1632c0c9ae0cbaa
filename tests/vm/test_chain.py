# SPDX-License-Identifier: Apache-2.0
"""The whole chain, (b) and (c) of the VM suite.

A simulator outside the guest writes the shared region; inside, udev finds the device,
systemd starts the daemon, and what it dumps must be what the ledger says.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import vmkit

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
UNIT = "hmb-trace-daemon@nvme0.service"
NODE = "/dev/nvme0-hmbtrace"
SYSFS = "/sys/class/hmbtrace/nvme0-hmbtrace"
RING = 2 << 20


def tool(*arguments: str | Path, check: bool = True) -> dict[str, Any]:
    """Run `hmb-trace ... --json` on the host."""
    result = subprocess.run(
        [str(BIN / "hmb-trace"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 or not check, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@dataclass
class Chain:
    """A guest whose region the simulator outside writes, and the dump directory both see."""

    guest: vmkit.Guest
    region: Path
    state: Path
    ledger: Path
    module: Path

    @property
    def dumps(self) -> Path:
        return self.state / "nvme0"

    def simulate(self, *arguments: str, ring: int = RING) -> subprocess.Popen[bytes]:
        """Firmware begins: a fresh ring, and records."""
        self.ledger.unlink(missing_ok=True)
        return subprocess.Popen(
            [
                *(str(BIN / "hmb-firmware-sim"), "--device", str(self.region), "--quiet"),
                *("--ring-size", str(ring), "--ledger", str(self.ledger), *arguments),
            ]
        )

    def load(self, options: str = "") -> None:
        self.guest.check(f"insmod {self.module} pci_regions=all {options}")

    def restart(self, collector: str = "internal") -> None:
        """The service anew, with its collector as a thread or as a process."""
        pid = self.main_pid()
        setting = f"HMB_TRACE_COLLECTOR={collector}"
        self.guest.check(f"echo {setting} >/etc/hmb-trace/nvme0.env")
        self.guest.check(f"systemctl restart {UNIT}")
        self.wait_active(unlike=pid)
        assert int(self.attribute("consumer")) > 0

    def consumer_maps(self) -> str:
        """The mappings of the ring in the process that reads it."""
        children = f"$(cat /proc/{self.main_pid()}/task/*/children)"
        places = f"for p in {self.main_pid()} {children}; do cat /proc/$p/maps; done"
        return self.guest.check(f"{places} | grep {NODE}")

    def attribute(self, name: str) -> str:
        return self.guest.check(f"cat {SYSFS}/{name}").strip()

    def main_pid(self) -> int:
        return int(self.guest.check(f"systemctl show -P MainPID {UNIT}"))

    def wait_active(self, unlike: int = 0) -> None:
        """The service is up, under another pid than `unlike`."""
        self.guest.wait(
            f"systemctl is-active --quiet {UNIT} && "
            f'[ "$(systemctl show -P MainPID {UNIT})" != {unlike} ]'
        )

    def finish(self, firmware: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait until firmware has ended and the guest has drained the ring; the ledger."""
        assert firmware.wait(300) == 0
        self.guest.wait(self.is_drained())
        ledger: dict[str, Any] = json.loads(self.ledger.read_text())
        return ledger

    def is_drained(self) -> str:
        """A shell condition that holds once nothing is unread and the file is written."""
        return f'[ "$(cat {SYSFS}/fill)" = 0 ]'

    def sealed(self) -> list[Path]:
        return sorted(self.dumps.glob("*.bin"))

    def rotate_and_take(self, known: set[Path], seconds: float = 60) -> list[Path]:
        """Seal what is open; the segments that were not known before, in order."""
        self.guest.check(f"systemctl kill -s USR1 {UNIT}")
        deadline = time.monotonic() + seconds
        while list(self.dumps.glob("*.part")) or not set(self.sealed()) - known:
            assert time.monotonic() < deadline, self.journal()
            time.sleep(0.1)
        return [path for path in self.sealed() if path not in known]

    def journal(self) -> str:
        return self.guest.log()[-6000:]


def sidecar(path: Path) -> dict[str, Any]:
    side: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return side


def account(paths: list[Path], folder: Path) -> dict[str, Any]:
    """The segments as one stream."""
    folder.mkdir(exist_ok=True)
    joined = folder / "joined.bin"
    with joined.open("wb") as out:
        for path in paths:
            out.write(path.read_bytes())
    return tool("info", "--json", "--checksum", joined)


def assert_equals_ledger(seen: dict[str, Any], ledger: dict[str, Any]) -> None:
    for key in ("records", "bytes", "first_seq", "last_seq"):
        assert seen[key] == ledger[key], (key, seen, ledger)
    assert int(str(seen["fnv64"]), 0) == int(ledger["fnv64"], 0)
    assert seen["lost"] == ledger["dropped"]


@pytest.fixture(scope="module")
def chain(machine: None, module: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    vmkit.package("udev")
    vmkit.precompile()
    folder = tmp_path_factory.mktemp("chain")
    state = folder / "state"
    state.mkdir()
    region = Path(f"/dev/shm/hmb-vm-chain-{folder.stat().st_ino}")
    with region.open("wb") as file:
        file.truncate(4 << 20)
    try:
        with vmkit.Guest(mode="systemd", shared=region, exchange=state, memory="1G") as guest:
            yield Chain(guest, region, state, folder / "ledger.json", module)
    finally:
        region.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def largest(maps: str) -> int:
    """Bytes of the largest mapping in lines of /proc/PID/maps."""
    ranges = [line.split()[0].split("-") for line in maps.splitlines()]
    return max(int(end, 16) - int(start, 16) for start, end in ranges)


COLLECTORS = pytest.mark.parametrize("collector", ["internal", "process"])
BLOCK = ("--on-full", "block", "--payload", "0..64")


def test_unit_starts_by_itself_and_a_million_records_arrive(chain: Chain, tmp_path: Path) -> None:
    firmware = chain.simulate("--count", "1000000", "--rate", "max", *BLOCK)
    chain.load("pages_regions=1")
    chain.wait_active()
    ledger = chain.finish(firmware)
    seen = account(chain.rotate_and_take(set()), tmp_path)
    assert ledger["records"] == 1_000_000
    assert ledger["dropped"] == 0
    assert_equals_ledger(seen, ledger)


def test_threads_have_their_places_under_the_hardening(chain: Chain) -> None:
    """Bytes first, compression last: the unit leaves the daemon what that takes."""
    tasks = f"/proc/{chain.main_pid()}/task/*"
    show = f'for t in {tasks}; do echo "$(cat $t/comm) $(cut -d" " -f19 $t/stat)"; done'
    nice = dict(line.split() for line in chain.guest.check(show).splitlines())
    places = {name: nice.get(name) for name in ("hmb-collector", "hmb-writer", "hmb-compress")}
    assert places == {"hmb-collector": "-15", "hmb-writer": "-10", "hmb-compress": "10"}


def test_a_busy_ring_can_be_looked_at_but_not_drained(chain: Chain) -> None:
    pid = chain.main_pid()
    seen = json.loads(chain.guest.check(f"hmb-trace info --json {NODE}"))
    assert (seen["kind"], seen["ring_size"], seen["consumer"]) == ("ring", RING, pid)
    code, text = chain.guest.sh(f"hmb-trace-daemon --device {NODE} --output-dir /run/x")
    assert code == 69
    assert f"pid {pid}" in text


def test_own_pages_are_a_second_instance_with_firmware_in_the_guest(
    chain: Chain, tmp_path: Path
) -> None:
    unit, dumps = "hmb-trace-daemon@nvme1.service", chain.state / "nvme1"
    chain.guest.wait(f"systemctl is-active --quiet {unit}")
    chain.guest.check(
        f"{BIN}/hmb-firmware-sim --device {NODE.replace('0', '1')}-fw --ring-size {RING} --quiet "
        "--count 30000 --on-full block --ledger /mnt/exchange/inside.json"
    )
    chain.guest.wait(f'[ "$(cat {SYSFS.replace("nvme0", "nvme1")}/fill)" = 0 ]')
    chain.guest.check(f"systemctl stop {unit}")
    ledger = json.loads((chain.state / "inside.json").read_text())
    assert ledger["records"] == 30_000
    assert_equals_ledger(account(sorted(dumps.glob("*.bin")), tmp_path), ledger)


def test_kill_9_in_the_guest_loses_and_repeats_nothing(chain: Chain, tmp_path: Path) -> None:
    known = set(chain.sealed())
    firmware = chain.simulate("--count", "400000", "--rate", "20k/s", *BLOCK)
    for _ in range(2):
        pid = chain.main_pid()
        chain.guest.check(f"kill -9 {pid}")
        chain.wait_active(unlike=pid)
    ledger = chain.finish(firmware)
    seen = account(chain.rotate_and_take(known), tmp_path)
    assert ledger["dropped"] == 0
    assert_equals_ledger(seen, ledger)


def test_controller_reset_begins_a_new_epoch(chain: Chain, tmp_path: Path) -> None:
    """R6: the same memory, another ring in it."""
    generation = int(chain.attribute("generation"))
    epochs = []
    for seed in ("11", "12"):
        known = set(chain.sealed())
        firmware = chain.simulate("--count", "50000", "--rate", "max", "--seed", seed, *BLOCK)
        ledger = chain.finish(firmware)
        segments = chain.rotate_and_take(known)
        assert_equals_ledger(account(segments, tmp_path / seed), ledger)
        epochs.append(sidecar(segments[-1])["epoch"])
    assert epochs[0] < epochs[1]
    assert int(chain.attribute("generation")) == generation + 2


@COLLECTORS
def test_ring_comes_back_larger_r6_and_is_taken_again(
    chain: Chain, tmp_path: Path, collector: str
) -> None:
    """Mapped is what the ring had at first: a larger one needs another mapping."""
    known = set(chain.sealed())
    small = chain.finish(chain.simulate("--count", "2000", *BLOCK, ring=64 << 10))
    chain.restart(collector)
    assert int(chain.attribute("ring_size")) == 64 << 10
    assert largest(chain.consumer_maps()) < RING
    assert small["dropped"] == 0
    known |= set(chain.sealed())
    ledger = chain.finish(chain.simulate("--count", "50000", "--rate", "max", *BLOCK))
    assert largest(chain.consumer_maps()) > RING
    assert_equals_ledger(account(chain.rotate_and_take(known), tmp_path), ledger)


@COLLECTORS
def test_read_only_policy_drains_through_the_ioctl(
    chain: Chain, tmp_path: Path, collector: str
) -> None:
    """(c): the daemon speaks both ways of moving tail."""
    policy = "/sys/module/nvme_hmb_trace/parameters/mmap_readonly"
    chain.guest.check(f"echo 1 >{policy}")
    chain.restart(collector)
    known = set(chain.sealed())
    maps = chain.consumer_maps()
    assert " r--s " in maps
    assert " rw-s " not in maps
    ledger = chain.finish(chain.simulate("--count", "100000", "--rate", "max", *BLOCK))
    assert_equals_ledger(account(chain.rotate_and_take(known), tmp_path), ledger)
    chain.guest.check(f"echo 0 >{policy}")


def test_removed_device_stops_the_unit_in_order(chain: Chain, tmp_path: Path) -> None:
    known = set(chain.sealed())
    ledger = chain.finish(chain.simulate("--count", "20000", "--rate", "max", *BLOCK))
    chain.guest.check(f"echo 1 >$(readlink -f {SYSFS}/device)/remove")
    chain.guest.wait(f"! systemctl is-active --quiet {UNIT}")
    chain.guest.wait(f'[ "$(systemctl show -P ActiveState {UNIT})" = inactive ]')
    assert not list(chain.dumps.glob("*.part"))
    segments = [path for path in chain.sealed() if path not in known]
    assert_equals_ledger(account(segments, tmp_path / "before"), ledger)
    chain.guest.check("echo 1 >/sys/bus/pci/rescan")
    chain.wait_active()
    known = set(chain.sealed())
    ledger = chain.finish(chain.simulate("--count", "20000", "--rate", "max", *BLOCK))
    assert_equals_ledger(account(chain.rotate_and_take(known), tmp_path / "after"), ledger)


def test_unload_is_refused_while_the_daemon_drains_and_nothing_splats(chain: Chain) -> None:
    assert chain.guest.sh("rmmod nvme_hmb_trace")[0] != 0
    assert chain.guest.splats() == []


def test_host_death_r14_at_the_next_boot(chain: Chain, tmp_path: Path) -> None:
    """QEMU dies in mid-capture: memory is gone, what reached the disk is sealed by itself."""
    known = set(chain.sealed())
    firmware = chain.simulate("--rate", "20k/s", *BLOCK)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 1 << 20 for path in chain.dumps.glob("*.part")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    chain.guest.kill()
    firmware.terminate()
    firmware.wait(20)
    assert list(chain.dumps.glob("*.part"))
    last = sidecar(max(known))["number"]
    again = vmkit.Guest(mode="systemd", shared=chain.region, exchange=chain.state, memory="1G")
    with again:
        chain.guest = again
        ledger_of_next = chain.simulate("--count", "20000", "--rate", "max", *BLOCK)
        chain.load()
        chain.wait_active()
        ledger = chain.finish(ledger_of_next)
        fresh = chain.rotate_and_take(known)
    orphan = [path for path in fresh if sidecar(path)["cause"] == "host-died"]
    assert len(orphan) == 1
    side = sidecar(orphan[0])
    assert side["complete"] is False
    assert side["number"] == last + 1
    seen = account(orphan, tmp_path / "orphan")
    assert not seen["truncated_end"]
    assert seen["verdict"] in ("whole", "unverified")  # a joined stream has no sidecar
    assert seen["records"] == side["records"] > 0
    assert (seen["lost"], seen["gaps"]) == (0, 0)
    after = [path for path in fresh if path not in orphan]
    assert_equals_ledger(account(after, tmp_path / "after"), ledger)

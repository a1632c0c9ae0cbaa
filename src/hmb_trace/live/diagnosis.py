# SPDX-License-Identifier: Apache-2.0
"""What stands between a drive and its trace: the findings of `hmb-trace doctor`.

Every check looks at sysfs, /proc and file systems only; nothing is opened for
writing, nothing is changed.  "No HMB" is a normal state of a normal drive, so it
is explained rather than held against anybody.
"""

from __future__ import annotations

import enum
import grp
import os
import platform
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hmb_trace.errors import HmbTraceError
from hmb_trace.units import format_duration, format_size

MODULE = "nvme_hmb_trace"
GROUP = "hmb-trace"
ABI_VERSION = 1
SPOOL_MIN, SPOOL_MAX = 64 << 20, 1 << 30
DISK_LOW = 1 << 30
PEAK_RATE = 1 << 30  # bytes a second: the daemon's default --peak-rate


class Status(enum.StrEnum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"  # good to know, nothing to do
    WARN = "warn"  # works, but not as well as it could
    FAIL = "fail"  # capture cannot work


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis: what was looked at, what was found, what to do."""

    check: str
    status: Status
    found: str
    advice: str = ""


@dataclass(frozen=True)
class System:
    """Where to look; tests put a made-up tree below root.

    Args:
        root: of /sys, /proc, /dev, /lib, /run.
        output_dir: where dumps would go.
    """

    root: Path = Path("/")
    output_dir: Path = Path("/var/lib/hmb-trace")
    kernel: str = field(default_factory=platform.release)
    machine: str = field(default_factory=platform.machine)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """A sysfs attribute without its newline; None where there is none."""
        try:
            return self.at(path).read_text().strip()
        except OSError:
            return None

    def names(self, folder: str, prefix: str = "") -> list[str]:
        try:
            found = [path.name for path in self.at(folder).iterdir()]
        except OSError:
            return []
        return sorted(name for name in found if name.startswith(prefix))


def diagnose(system: System, device: str | None = None) -> list[Finding]:
    """All findings, in the order in which a person would fix them.

    Args:
        system: where to look.
        device: judge this ring alone (device node, file or shm:/NAME), and what it needs.
    """
    if device is not None and not device.startswith("/dev/nvme"):
        return [
            *_ring_file(device),
            *_collectors(system),
            *_spool(system),
            *_disk(system),
        ]
    checks: list[Callable[[System], Iterator[Finding]]] = [
        _machine,
        _drives,
        _module,
        _devices,
        _group,
        _service,
        _collectors,
        _spool,
        _disk,
    ]
    found = [finding for check in checks for finding in check(system)]
    if device is None:
        return found
    name = Path(device).name
    if not system.at(f"/sys/class/hmbtrace/{name}").exists():
        missing = Finding(
            f"device {name}", Status.FAIL, "no such trace device", "see the findings above"
        )
        return [*found, missing]
    return [f for f in found if not f.check.startswith("device ") or name in f.check]


def _machine(system: System) -> Iterator[Finding]:
    if system.machine in ("x86_64", "aarch64"):
        yield Finding("machine", Status.OK, f"{system.machine}, kernel {system.kernel}")
    else:
        yield Finding(
            "machine", Status.FAIL, system.machine, "expected x86_64 or aarch64: no DMA barriers"
        )


# ---- drives and their Host Memory Buffer ----


def _drives(system: System) -> Iterator[Finding]:
    drives = system.names("/sys/class/nvme", "nvme")
    if not drives:
        yield Finding("drives", Status.NOTE, "no NVMe drive; shared-memory rings work all the same")
        return
    for name in drives:
        yield _drive(system, name)
    yield from _nvme_driver(system)


def _drive(system: System, name: str) -> Finding:
    base = f"/sys/class/nvme/{name}"
    label = " ".join(
        filter(None, (system.read(f"{base}/{part}") for part in ("model", "firmware_rev")))
    )
    hmb = system.read(f"{base}/hmb")
    check = f"drive {name}"
    if hmb is None:
        return Finding(
            check,
            Status.NOTE,
            f"{label}: asks for no Host Memory Buffer",
            "normal for drives with DRAM of their own: no ring can live there",
        )
    if hmb == "0":
        limit = system.read("/sys/module/nvme/parameters/max_host_mem_size_mb")
        advice = f"echo 1 >{base}/hmb"
        if limit == "0":
            advice = "boot without nvme.max_host_mem_size_mb=0"
        return Finding(check, Status.WARN, f"{label}: Host Memory Buffer is off", advice)
    return Finding(check, Status.OK, f"{label}: Host Memory Buffer is on")


def _nvme_driver(system: System) -> Iterator[Finding]:
    ring = system.read("/sys/module/nvme/parameters/trace_ring_kb")
    limit = system.read("/sys/module/nvme/parameters/max_host_mem_size_mb")
    if ring is None:
        yield Finding(
            "nvme driver",
            Status.WARN,
            "not patched: no slice of an HMB becomes a ring",
            "kmod_shim/nvme-pci/apply.sh (docs/hardware.md)",
        )
    elif ring == "0":
        yield Finding(
            "nvme driver",
            Status.WARN,
            "patched, but nvme.trace_ring_kb is 0",
            "boot with nvme.trace_ring_kb=2048",
        )
    elif limit is not None and int(limit) << 10 < 2 * int(ring):
        yield Finding(
            "nvme driver",
            Status.FAIL,
            f"ring of {ring} KiB in a Host Memory Buffer of at most {limit} MiB",
            "raise nvme.max_host_mem_size_mb: the slice may take half of it",
        )
    else:
        yield Finding("nvme driver", Status.OK, f"carves rings of {ring} KiB")


# ---- module and device nodes ----


def _module(system: System) -> Iterator[Finding]:
    if system.at(f"/sys/module/{MODULE}").exists():
        version = system.read(f"/sys/module/{MODULE}/version") or "unknown version"
        yield Finding("module", Status.OK, f"{MODULE} {version} is loaded")
        return
    folder = system.at(f"/lib/modules/{system.kernel}")
    if any(folder.rglob(f"{MODULE}.ko*")):
        yield Finding("module", Status.FAIL, "installed, not loaded", f"modprobe {MODULE}")
    else:
        yield Finding(
            "module",
            Status.FAIL,
            f"{MODULE} is not installed for kernel {system.kernel}",
            "kmod_shim/README.md: dkms install, then modprobe",
        )


def _devices(system: System) -> Iterator[Finding]:
    nodes = [
        name for name in system.names("/sys/class/hmbtrace", "nvme") if not name.endswith("-fw")
    ]
    yield from _unbound_functions(system)
    if not nodes and system.at(f"/sys/module/{MODULE}").exists():
        yield Finding(
            "device",
            Status.FAIL,
            "the module has no region",
            "no provider found one: patched nvme driver, ivshmem function, or pages_regions=1",
        )
    for name in nodes:
        yield from _device(system, name)


def _unbound_functions(system: System) -> Iterator[Finding]:
    """Shared-memory functions that the module did not take."""
    for slot in system.names("/sys/bus/pci/devices"):
        base = f"/sys/bus/pci/devices/{slot}"
        identity = (system.read(f"{base}/vendor"), system.read(f"{base}/device"))
        if identity == ("0x1af4", "0x1110") and not system.at(f"{base}/driver").exists():
            yield Finding(
                f"ivshmem {slot}",
                Status.WARN,
                "no driver holds it",
                f"modprobe {MODULE}; if dmesg says its BAR is not write-back, move it above 4 GiB",
            )


def _device(system: System, name: str) -> Iterator[Finding]:
    base = f"/sys/class/hmbtrace/{name}"
    size = int(system.read(f"{base}/ring_size") or 0)
    version = int(system.read(f"{base}/abi_version") or 0)
    check = f"device {name}"
    if not size:
        yield Finding(
            check,
            Status.FAIL,
            "no ring in the region: firmware has not initialised it",
            "check that the firmware has trace enabled and knows the slice (docs/hardware.md)",
        )
    elif version > ABI_VERSION:
        yield Finding(
            check,
            Status.FAIL,
            f"ABI version {version}, expected {ABI_VERSION}",
            "upgrade hmb-trace",
        )
    else:
        holds = format_duration(size / PEAK_RATE * 1e9)
        yield Finding(check, Status.OK, f"ring of {format_size(size)}: {holds} at 1 GiB/s")
    yield from _history(system, name)
    yield from _access(system, name)


def _history(system: System, name: str) -> Iterator[Finding]:
    base = f"/sys/class/hmbtrace/{name}"
    overflows = int(system.read(f"{base}/overflow_count") or 0)
    if overflows:
        yield Finding(
            f"device {name}: losses",
            Status.WARN,
            f"firmware has overflowed the ring at least {overflows} times",
            "larger ring, shorter --latency, or systemd/realtime.conf",
        )
    pid = int(system.read(f"{base}/consumer") or 0)
    if pid:
        yield Finding(f"device {name}: consumer", Status.OK, f"pid {pid} drains it")
    else:
        yield Finding(
            f"device {name}: consumer",
            Status.NOTE,
            "nobody drains it",
            f"systemctl start hmb-trace-daemon@{name.removesuffix('-hmbtrace')}",
        )


def _access(system: System, name: str) -> Iterator[Finding]:
    node = system.at(f"/dev/{name}")
    check = f"device {name}: access"
    try:
        status = node.stat()
    except OSError:
        yield Finding(check, Status.FAIL, f"/dev/{name} is missing", "is udev running?")
        return
    if os.access(node, os.R_OK | os.W_OK):
        yield Finding(check, Status.OK, "you may drain it")
        return
    try:
        owner = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        owner = str(status.st_gid)
    mode = stat.filemode(status.st_mode)
    yield Finding(
        check,
        Status.FAIL,
        f"you may not drain it: group {owner}, {mode}",
        f"usermod -aG {GROUP} $USER and log in again; udev rule: systemd/99-hmb-trace.rules",
    )


# ---- the rest of the installation ----


def _group(system: System) -> Iterator[Finding]:
    text = system.read("/etc/group") or ""
    if any(line.startswith(f"{GROUP}:") for line in text.splitlines()):
        yield Finding("group", Status.OK, f"group {GROUP} exists")
    else:
        yield Finding(
            "group",
            Status.WARN,
            f"no group {GROUP}: the service cannot start",
            "install systemd/hmb-trace.sysusers.conf, run systemd-sysusers",
        )


def _service(system: System) -> Iterator[Finding]:
    folders = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
    unit = "hmb-trace-daemon@.service"
    if any(system.at(f"{folder}/{unit}").exists() for folder in folders):
        yield Finding("service", Status.OK, f"{unit} is installed")
    else:
        yield Finding(
            "service",
            Status.NOTE,
            f"{unit} is not installed",
            "start hmb-trace-daemon by hand, or install systemd/",
        )


def _collectors(system: System) -> Iterator[Finding]:
    """Collector processes, each with what it does and how to end it."""
    for pid in filter(str.isdigit, system.names("/proc")):
        words = (system.read(f"/proc/{pid}/cmdline") or "").split("\0")
        if not words[0].endswith("/hmb-trace-collector") or "--device" not in words[:-1]:
            continue
        device = words[words.index("--device") + 1]
        yield Finding(
            f"collector {pid}",
            Status.NOTE,
            f"takes records from {device} into its spool; a daemon that is killed leaves it "
            "running, so that nothing is lost",
            f"hmb-trace-daemon --collector process --device {device} goes on with it; "
            f"kill -TERM {pid} ends it, and its spool keeps what it took",
        )


def _memory(system: System) -> int:
    for line in (system.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def default_spool(memory: int) -> int:
    """Bytes of spool that the daemon takes by default with so much RAM (DESIGN)."""
    return min(max(memory // 32, SPOOL_MIN), SPOOL_MAX)


def _filesystem(system: System, folder: str) -> str:
    """The type of the file system at folder, by the longest mount point above it."""
    best = ("", "unknown")
    for line in (system.read("/proc/mounts") or "").splitlines():
        _, point, kind, *_ = line.split()
        if Path(folder).is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _spool(system: System) -> Iterator[Finding]:
    wanted = default_spool(_memory(system))
    for folder in ("/run", "/dev/shm"):
        free = _free(system.at(folder))
        kind = _filesystem(system, folder)
        check = f"spool in {folder}"
        if free is None:
            yield Finding(check, Status.NOTE, "no such directory")
        elif kind != "tmpfs":
            yield Finding(check, Status.NOTE, f"{kind}, not tmpfs: no place for a spool")
        elif free < wanted:
            yield Finding(
                check,
                Status.WARN,
                f"{format_size(free)} free, the default spool takes {format_size(wanted)}",
                "make room, or give --spool-size or --spool-dir",
            )
        else:
            yield Finding(
                check, Status.OK, f"{format_size(free)} free, a spool takes {format_size(wanted)}"
            )


def _disk(system: System) -> Iterator[Finding]:
    folder = system.output_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = _free(folder)
    check = f"disk for {system.output_dir}"
    if free is None:
        yield Finding(check, Status.FAIL, "cannot be looked at", "give another --output-dir")
    elif free < DISK_LOW:
        yield Finding(
            check,
            Status.WARN,
            f"{format_size(free)} free: {format_duration(free / PEAK_RATE * 1e9)} at 1 GiB/s",
            "give --max-total-size, --compress, or another disk",
        )
    else:
        yield Finding(check, Status.OK, f"{format_size(free)} free")
    if free is not None and folder == system.output_dir and not os.access(folder, os.W_OK):
        yield Finding(check, Status.WARN, "you may not write there", "the service's user may")


def _free(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


# ---- a ring without a device node ----


def _ring_file(path: str) -> Iterator[Finding]:
    from hmb_trace.live.ring import attach  # noqa: PLC0415 - only where a ring was named

    check = f"ring {path}"
    try:
        with attach(path, exclusive=False) as ring:
            view = ring.view()
    except HmbTraceError as error:
        yield Finding(check, Status.FAIL, str(error))
        return
    if not view.valid:
        yield Finding(
            check,
            Status.FAIL,
            f"cursors are invalid: head {view.head}, tail {view.tail}",
            "the producer must re-initialise the ring",
        )
        return
    flags = f", {' '.join(view.flag_names)}" if view.flags else ""
    size, unread = format_size(view.ring_size), format_size(view.unread)
    yield Finding(check, Status.OK, f"ring of {size}, {unread} unread{flags}")

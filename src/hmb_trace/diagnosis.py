# SPDX-License-Identifier: Apache-2.0
"""What stands between a drive and its trace: the findings of `hmb-trace doctor`.

Nothing is changed: sysfs, /proc, file systems, the rings' headers, and questions to drives
(Identify, Get Features) and running daemons where that is permitted.  One line answers one
question, and "fail" is for what was set up, or asked for, and does not work: a machine
without drives, or a drive without a Host Memory Buffer, is normal.
"""

from __future__ import annotations

import grp
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hmb_trace import diagnosis_service as service
from hmb_trace.diagnosis_drives import drives
from hmb_trace.diagnosis_service import GROUP, PEAK_RATE, default_spool
from hmb_trace.errors import HmbTraceError
from hmb_trace.findings import MODULE, Finding, Status, System
from hmb_trace.units import format_duration, format_size

__all__ = ["Finding", "Status", "System", "default_spool", "diagnose", "verdict"]

ABI_VERSION = 1
_WATCH_S = 0.2  # between two looks at a ring's head


def diagnose(system: System, device: str | None = None) -> list[Finding]:
    """All findings, in the order in which a person would fix them.

    Args:
        system: where to look.
        device: judge this ring alone (device node, file or shm:/NAME), and what it needs.
    """
    if device is not None and not device.startswith("/dev/nvme"):
        return [*_ring_file(device), *service.spool(system), *service.disk(system)]
    checks: list[Callable[[System], Iterator[Finding]]] = [
        _machine,
        drives,
        _module,
        _devices,
        service.installation,
        service.daemons,
        service.metrics,
        service.extras,
        service.spool,
        service.disk,
    ]
    found = [finding for check in checks for finding in check(system)]
    if device is None:
        return found
    return _only(system, found, Path(device).name)


def _only(system: System, found: list[Finding], name: str) -> list[Finding]:
    """What concerns one device, other drives and devices left out."""
    if name not in system.nodes:
        advice = f"there are: {', '.join(system.nodes) or 'none'}"
        return [*found, Finding(f"device {name}", Status.FAIL, "no such trace device", advice)]
    others = {other for other in system.nodes if other != name}
    return [f for f in found if not any(other in f.check for other in others)]


def verdict(system: System, findings: list[Finding], device: str | None = None) -> str:
    """The last line, from the findings alone and what there is to capture from."""
    failed = sum(finding.status is Status.FAIL for finding in findings)
    warned = sum(finding.status is Status.WARN for finding in findings)
    look = f"; {warned} to look at" if warned else ""
    if failed:
        return f"{failed} to fix before a capture can work{look}"
    if device is None and not system.nodes:
        return f"no trace device on this machine; rings in files and shared memory work{look}"
    return f"a capture can work{look}" if warned else "all is well"


def _machine(system: System) -> Iterator[Finding]:
    if system.machine in ("x86_64", "aarch64"):
        yield Finding("machine", Status.OK, f"{system.machine}, kernel {system.kernel}")
    else:
        yield Finding(
            "machine", Status.FAIL, system.machine, "expected x86_64 or aarch64: no DMA barriers"
        )


# ---- module and device nodes ----


def _module(system: System) -> Iterator[Finding]:
    """Needed where a drive is named for tracing; otherwise its absence is no fault."""
    if system.has_module:
        version = system.read(f"/sys/module/{MODULE}/version") or "unknown version"
        yield Finding("module", Status.OK, f"{MODULE} {version} is loaded")
        return
    absent = Status.FAIL if system.traced_drives else Status.NOTE
    folder = system.at(f"/lib/modules/{system.kernel}")
    if any(folder.rglob(f"{MODULE}.ko*")):
        yield Finding("module", absent, "installed, not loaded", f"modprobe {MODULE}")
    else:
        text = f"{MODULE} is not installed for kernel {system.kernel}"
        yield Finding("module", absent, text, "docs/hardware.md, section 4: only for device nodes")


def _devices(system: System) -> Iterator[Finding]:
    if system.has_module and not system.nodes:
        text = "the module shows no region"
        advice = "a drive with a slice, pci_regions=... or pages_regions=1 (docs/hardware.md)"
        yield Finding("devices", Status.NOTE, text, advice)
    yield from _unbound_functions(system)
    for name in system.nodes:
        yield _device(system, name)
        yield from _history(system, name)
        yield _consumer(system, name)
        yield _access(system, name)


def _unbound_functions(system: System) -> Iterator[Finding]:
    """Shared-memory functions that the module did not take; most are for something else."""
    for slot in system.names("/sys/bus/pci/devices") if system.has_module else ():
        base = f"/sys/bus/pci/devices/{slot}"
        identity = (system.read(f"{base}/vendor"), system.read(f"{base}/device"))
        if identity == ("0x1af4", "0x1110") and not system.at(f"{base}/driver").exists():
            advice = f"for a ring in it: modprobe {MODULE} pci_regions={slot}; see dmesg then"
            yield Finding(f"ivshmem {slot}", Status.NOTE, "no driver holds it", advice)


def _device(system: System, name: str) -> Finding:
    """Whether firmware is tracing at all."""
    base = f"/sys/class/hmbtrace/{name}"
    size, version = system.number(f"{base}/ring_size"), system.number(f"{base}/abi_version")
    check = f"device {name}"
    if not size:
        return Finding(
            check,
            Status.FAIL,
            "firmware is not tracing: it has not initialised a ring in this region",
            "enable trace in the firmware; it must know the slice mark (docs/hardware.md)",
        )
    if version > ABI_VERSION:
        text = f"ABI version {version}, expected {ABI_VERSION}"
        return Finding(check, Status.FAIL, text, "upgrade hmb-trace")
    holds = format_duration(size / PEAK_RATE * 1e9)
    text = f"ring of {format_size(size)}: {holds} at 1 GiB/s"
    return Finding(check, Status.OK, f"{text}; {_activity(system, name)}")


def _activity(system: System, name: str) -> str:
    """What firmware does with its ring, by two looks at head."""
    from hmb_trace.ring import attach  # noqa: PLC0415 - needs the C library

    try:
        with attach(system.at(f"/dev/{name}"), exclusive=False) as ring:
            first = ring.view()
            time.sleep(_WATCH_S)
            second = ring.view()
    except HmbTraceError:
        return "what firmware does may not be looked at"
    moved = (second.head - first.head) % (1 << 64)
    if "FROZEN" in second.flag_names:
        return "firmware has frozen it"
    if moved:
        return f"firmware writes {format_size(int(moved / _WATCH_S))}/s"
    return "firmware is silent at the moment" if second.head else "firmware has written nothing yet"


def _history(system: System, name: str) -> Iterator[Finding]:
    base = f"/sys/class/hmbtrace/{name}"
    overflows = system.number(f"{base}/overflow_count")
    if overflows:
        yield Finding(
            f"device {name}: losses",
            Status.WARN,
            f"firmware has overflowed the ring at least {overflows} times",
            "larger ring, shorter --latency, or systemd/realtime.conf",
        )
    generation = system.number(f"{base}/generation")
    if generation:
        text = f"initialised anew at least {generation} times (resets of drive or firmware)"
        yield Finding(f"device {name}: resets", Status.NOTE, text)


def _consumer(system: System, name: str) -> Finding:
    check = f"device {name}: consumer"
    pid = system.number(f"/sys/class/hmbtrace/{name}/consumer")
    if pid:
        return Finding(check, Status.OK, f"pid {pid} drains it")
    unit = f"hmb-trace-daemon@{name.removesuffix('-hmbtrace')}"
    return Finding(check, Status.NOTE, "no daemon drains it", f"systemctl start {unit}")


def _access(system: System, name: str) -> Finding:
    node = system.at(f"/dev/{name}")
    check = f"device {name}: access"
    try:
        status = node.stat()
    except OSError:
        return Finding(check, Status.FAIL, f"/dev/{name} is missing", "is udev running?")
    if os.access(node, os.R_OK | os.W_OK):
        return Finding(check, Status.OK, "you may drain it")
    try:
        owner = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        owner = str(status.st_gid)
    text = f"you may not drain it (group {owner}, {stat.filemode(status.st_mode)})"
    if owner == GROUP:  # the service may, which is what it is for
        advice = f"to drain by hand: usermod -aG {GROUP} $USER, and log in again"
        return Finding(check, Status.NOTE, text, advice)
    return Finding(check, Status.WARN, text, "install systemd/99-hmb-trace.rules, udevadm trigger")


# ---- a ring without a device node ----


def _ring_file(path: str) -> Iterator[Finding]:
    from hmb_trace.ring import attach  # noqa: PLC0415 - only where a ring was named

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

# SPDX-License-Identifier: Apache-2.0
"""Drives: their Host Memory Buffer, their slice, and why there is none. One line per question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hmb_trace.findings import MODULE, Finding, Status, System
from hmb_trace.nvme import HostMemory
from hmb_trace.units import format_size

_PARAMETERS = "/sys/module/nvme/parameters"
_SLICE = "no trace slice"  # as the patched driver says it, with the reason behind


@dataclass(frozen=True)
class _Drive:
    """One controller as sysfs shows it, and what it answered itself."""

    name: str
    address: str
    serial: str
    label: str
    state: str
    switch: str | None  # sysfs hmb: "1", "0", or no such file (also on older kernels)
    memory: HostMemory | None
    refused: str  # why it was not asked


def drives(system: System) -> Iterator[Finding]:
    """All drives, then the driver that carves them."""
    names = system.names("/sys/class/nvme", "nvme")
    if not names:
        yield Finding("drives", Status.NOTE, "no NVMe drive; rings of other memory need none")
        return
    found = [_look(system, name) for name in names]
    for drive in found:
        yield _host_memory(system, drive)
    yield from _driver(system, found)
    for drive in found:
        yield from _slice(system, drive)


def _look(system: System, name: str) -> _Drive:
    base = f"/sys/class/nvme/{name}"

    def said(part: str) -> str:
        return system.read(f"{base}/{part}") or ""

    memory, refused = None, ""
    try:
        memory = system.ask_drive(system.at(f"/dev/{name}"))
    except OSError as error:
        refused = error.strerror or str(error)
    return _Drive(
        name,
        said("address"),
        said("serial"),
        " ".join(filter(None, (said("model"), said("firmware_rev")))),
        said("state"),
        system.read(f"{base}/hmb"),
        memory,
        refused,
    )


def _host_memory(system: System, drive: _Drive) -> Finding:
    check, memory = f"drive {drive.name}", drive.memory
    if drive.state not in ("", "live"):
        advice = "see dmesg; a ring of this drive stands still meanwhile"
        return Finding(
            check, Status.WARN, f"{drive.label}: the controller is {drive.state}", advice
        )
    if memory and not memory.preferred:
        text = f"{drive.label}: asks for no Host Memory Buffer (Identify: HMPRE 0)"
        return Finding(check, Status.NOTE, text, "normal for drives with DRAM of their own")
    if memory and memory.enabled:
        text = f"{drive.label}: Host Memory Buffer of {format_size(memory.granted)}"
        return Finding(check, Status.OK, f"{text} in {memory.descriptors} descriptors")
    if memory or drive.switch == "0":
        return Finding(
            check,
            Status.WARN if _is_named(system, drive) else Status.NOTE,
            f"{drive.label}: Host Memory Buffer is off",
            _how_to_enable(system, drive),
        )
    if drive.switch == "1":
        return Finding(check, Status.OK, f"{drive.label}: Host Memory Buffer is on")
    text = f"{drive.label}: unknown whether it has a Host Memory Buffer ({drive.refused})"
    return Finding(check, Status.NOTE, text, "run as root: Identify tells")


def _how_to_enable(system: System, drive: _Drive) -> str:
    if system.read(f"{_PARAMETERS}/max_host_mem_size_mb") == "0":
        return "boot without nvme.max_host_mem_size_mb=0"
    if drive.switch is not None:
        return f"echo 1 >/sys/class/nvme/{drive.name}/hmb"
    return "see dmesg for why the driver did not enable it"


def _is_named(system: System, drive: _Drive) -> bool:
    named = system.traced_drives
    return drive.address in named or drive.serial in named


def _driver(system: System, found: list[_Drive]) -> Iterator[Finding]:
    """The one place that says whether the driver can carve, and for whom."""
    check = "nvme driver"
    if not system.at(_PARAMETERS).exists():
        yield Finding(check, Status.NOTE, "nvme is not loaded as a module: cannot tell")
    elif not system.at(f"{_PARAMETERS}/trace_drives").exists():
        yield Finding(
            check,
            Status.NOTE,
            "not patched: no drive's memory becomes a ring",
            "docs/hardware.md, section 5",
        )
    elif not system.traced_drives:
        yield Finding(
            check,
            Status.NOTE,
            "patched; nvme.trace_drives names no drive",
            f"boot with nvme.trace_drives={found[0].address or 'SERIAL'} (or another of the above)",
        )
    else:
        known = {name for drive in found for name in (drive.address, drive.serial)}
        absent = [name for name in system.traced_drives if name not in known]
        ring = system.read(f"{_PARAMETERS}/trace_ring_kb")
        yield Finding(check, Status.OK, f"patched; rings of {ring} KiB for the drives named")
        for name in absent:
            yield Finding(
                f"nvme.trace_drives {name}",
                Status.WARN,
                "no drive has this address or serial number",
                "compare with /sys/class/nvme/*/address and serial",
            )


def _slice(system: System, drive: _Drive) -> Iterator[Finding]:
    """Only for drives that were named: others are not meant to have one."""
    if not _is_named(system, drive):
        return
    check = f"slice of {drive.name}"
    node = node_of(system, drive.address)
    if node:
        yield Finding(check, Status.OK, f"is /dev/{node}")
    elif not system.has_module:
        yield Finding(check, Status.FAIL, f"not shown: {MODULE} is not loaded", "see module")
    else:
        why, advice = _why_no_slice(system, drive)
        yield Finding(check, Status.FAIL, f"none: {why}", advice)


def node_of(system: System, address: str) -> str:
    """The trace device of the drive with this address, or nothing."""
    base = "/sys/class/hmbtrace"
    found = (n for n in system.nodes if system.read(f"{base}/{n}/origin") == address)
    return next(found, "")


def _why_no_slice(system: System, drive: _Drive) -> tuple[str, str]:
    memory = drive.memory
    if memory and not memory.preferred:
        return "the drive asks for no Host Memory Buffer", "name another drive"
    messages = system.messages()
    mark = f"{drive.name}: {_SLICE}"
    said = [line for line in messages or () if mark in line]
    if said:
        reason = said[-1].partition(_SLICE)[2].partition(": ")[2]
        return reason, "docs/hardware.md, section 7"
    if memory and not memory.enabled:
        return "its Host Memory Buffer is off", _how_to_enable(system, drive)
    if memory and memory.most_descriptors == 1:
        return "it takes one descriptor only (HMMAXD 1)", "ask the drive's maker"
    if messages is None:
        return "the kernel log tells, and may not be read", "run as root"
    return "the kernel log does not say why", "echo 0, then 1 into its hmb, and run this again"

# SPDX-License-Identifier: Apache-2.0
"""The installation around a capture: group, service, spool, disk, daemons that run, extras."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hmb_trace.findings import Finding, Status, System
from hmb_trace.units import format_duration, format_size

GROUP = "hmb-trace"
SPOOL_MIN, SPOOL_MAX = 64 << 20, 1 << 30
DISK_LOW = 1 << 30
PEAK_RATE = 1 << 30  # bytes a second: the daemon's default --peak-rate
_UNIT = "hmb-trace-daemon@.service"
_UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_EXTRAS = {
    "analysis": ("pyarrow", "duckdb", "perfetto"),
    "ui": ("textual",),
    "fleet": ("prometheus_client",),
}
_METRICS = re.compile(r"""^\s*(?:HMB_TRACE_METRICS|metrics)\s*=\s*["']?([^"'\s#]+)""", re.M)
_LOSSES = ("lost", "unknown_losses", "rejected_records", "overruns")


def installation(system: System) -> Iterator[Finding]:
    """Group and service."""
    text = system.read("/etc/group") or ""
    has_group = any(line.startswith(f"{GROUP}:") for line in text.splitlines())
    has_unit = any(system.at(f"{folder}/{_UNIT}").exists() for folder in _UNIT_FOLDERS)
    if not has_unit:
        advice = "start hmb-trace-daemon by hand, or: make deb, apt install ./dist/hmb-trace_*.deb"
        yield Finding("service", Status.NOTE, f"{_UNIT} is not installed", advice)
    elif not has_group:
        text = f"{_UNIT} is installed, but there is no group {GROUP}: it cannot start"
        yield Finding("service", Status.FAIL, text, "systemd-sysusers")
    else:
        yield Finding("service", Status.OK, f"{_UNIT} and group {GROUP} are installed")


# ---- daemons that run ----


def daemons(system: System) -> Iterator[Finding]:
    """What each running daemon says of its losses; only on the machine itself."""
    if system.root != Path("/"):
        return
    from hmb_trace import control  # noqa: PLC0415 - sockets are looked for only here
    from hmb_trace.errors import HmbTraceError  # noqa: PLC0415 - as above

    for path in sorted(control.running_sockets()):
        try:
            with control.Link(path, timeout=2.0) as link:
                yield of_daemon(path, link.status())
        except HmbTraceError as error:
            advice = f"be root or in group {GROUP} to ask it"
            yield Finding(f"daemon {path}", Status.NOTE, str(error), advice)


def of_daemon(path: Path, status: dict[str, Any]) -> Finding:
    """Losses, a disk in trouble, or all well."""
    counters = status.get("counters", {})
    losses = [f"{counters[name]} {name}" for name in _LOSSES if counters.get(name)]
    check = f"daemon {path.parent.name}"
    where = f"{status.get('state', 'unknown state')}, {counters.get('records', 0)} records"
    disk = status.get("disk", "ok")
    if disk != "ok":
        return Finding(check, Status.WARN, f"{where}; disk: {disk}", "make room on the disk")
    if losses:
        advice = "larger ring, shorter --latency, systemd/realtime.conf (docs/hardware.md)"
        return Finding(check, Status.WARN, f"{where}; {', '.join(losses)}", advice)
    return Finding(check, Status.OK, f"{where}, nothing lost")


# ---- extras and the metrics port ----


def extras(_system: System) -> Iterator[Finding]:
    """Which optional parts are installed: notes only, since none is needed for a capture."""
    for extra, modules in _EXTRAS.items():
        absent = [name for name in modules if importlib.util.find_spec(name) is None]
        if absent:
            text = f"not installed ({', '.join(absent)})"
            advice = f"pip install 'hmb-trace[{extra}]'"
            yield Finding(f"extra {extra}", Status.NOTE, text, advice)
        else:
            yield Finding(f"extra {extra}", Status.OK, "installed")


def metrics(system: System) -> Iterator[Finding]:
    """Ports that the configuration gives to more than one daemon, or without the library."""
    ports: dict[str, list[str]] = {}
    for source, text in _settings(system):
        for address in _METRICS.findall(text):
            ports.setdefault(address, []).append(source)
    if ports and importlib.util.find_spec("prometheus_client") is None:
        advice = "pip install 'hmb-trace[fleet]'"
        yield Finding("metrics", Status.FAIL, "configured, but prometheus_client is absent", advice)
        return
    for address, sources in ports.items():
        yield _port(system, address, sources)


def _settings(system: System) -> Iterator[tuple[str, str]]:
    for folder, prefix in (("/etc/hmb-trace", ""), ("/etc/hmb-trace/daemon.d", "")):
        for name in system.names(folder, prefix):
            if name.endswith((".env", ".toml")):
                yield f"{folder}/{name}", system.read(f"{folder}/{name}") or ""
    for folder in ("/etc/systemd/system",):
        for unit in system.names(folder, "hmb-trace-daemon@"):
            for name in system.names(f"{folder}/{unit}"):
                text = system.read(f"{folder}/{unit}/{name}") or ""
                yield f"{folder}/{unit}/{name}", text.replace("Environment=", "")


def _port(system: System, address: str, sources: list[str]) -> Finding:
    check = f"metrics {address}"
    shared = any("/hmb-trace-daemon@.service.d" in s or s.endswith(".toml") for s in sources)
    if len(sources) > 1 or (shared and len(system.nodes) > 1):
        advice = "give each its own: HMB_TRACE_METRICS in /etc/hmb-trace/nvme<N>.env"
        return Finding(check, Status.WARN, "one port for several daemons: one gets it", advice)
    if system.root == Path("/") and not _answers(address):
        return Finding(check, Status.NOTE, "configured, nothing listens there now")
    return Finding(check, Status.OK, f"configured by {sources[0]}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host or "127.0.0.1", int(port)), timeout=0.5):
            return True
    except (OSError, ValueError):
        return False


# ---- spool and disk ----


def default_spool(memory: int) -> int:
    """Bytes of spool that the daemon takes by default with so much RAM (DESIGN)."""
    return min(max(memory // 32, SPOOL_MIN), SPOOL_MAX)


def _memory(system: System) -> int:
    for line in (system.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def _filesystem(system: System, folder: str) -> str:
    """The type of the file system at folder, by the longest mount point above it."""
    best = ("", "unknown")
    for line in (system.read("/proc/mounts") or "").splitlines():
        _, point, kind, *_ = line.split()
        if Path(folder).is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def spool(system: System) -> Iterator[Finding]:
    """Room for the spools of all rings that nobody drains yet (a running daemon has its own)."""
    idle = [n for n in system.nodes if not system.number(f"/sys/class/hmbtrace/{n}/consumer")]
    count = max(1, len(idle))
    wanted = count * default_spool(_memory(system))
    text = f"{count} spools take {format_size(wanted)}"
    if count == 1:
        text = f"a spool takes {format_size(wanted)}"
    for folder in ("/run", "/dev/shm"):
        yield _spool_in(system, folder, wanted, text)
    yield from _remove_ipc(system)


def _spool_in(system: System, folder: str, wanted: int, text: str) -> Finding:
    free = free_bytes(system.at(folder))
    kind = _filesystem(system, folder)
    check = f"spool in {folder}"
    if free is None:
        return Finding(check, Status.NOTE, "no such directory")
    if kind != "tmpfs":
        return Finding(check, Status.NOTE, f"{kind}, not tmpfs: no place for a spool")
    if free < wanted:
        advice = "make room, or give --spool-size or --spool-dir"
        return Finding(check, Status.WARN, f"{format_size(free)} free, {text}", advice)
    return Finding(check, Status.OK, f"{format_size(free)} free, {text}")


def _remove_ipc(system: System) -> Iterator[Finding]:
    """logind empties /dev/shm of an ordinary user at logout: rings and spools of rehearsals."""
    if os.geteuid() < 1000 or not system.at("/run/systemd/seats").exists():
        return
    text = system.read("/etc/systemd/logind.conf") or ""
    for name in system.names("/etc/systemd/logind.conf.d"):
        text += "\n" + (system.read(f"/etc/systemd/logind.conf.d/{name}") or "")
    said = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", text, re.M)
    if (said[-1] if said else "yes").lower() in ("no", "false", "off", "0"):
        return
    yield Finding(
        "logind",
        Status.WARN,
        "RemoveIPC=yes: your rings and spools in /dev/shm go when you log out",
        "RemoveIPC=no in /etc/systemd/logind.conf, loginctl enable-linger, or the service",
    )


def disk(system: System) -> Iterator[Finding]:
    """Room where dumps are to go, and whether the caller may write there."""
    folder = system.output_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = free_bytes(folder)
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
    elif folder == system.output_dir and not os.access(folder, os.W_OK):
        text = f"{format_size(free)} free; you may not write there, the service's user may"
        yield Finding(check, Status.NOTE, text)
    else:
        yield Finding(check, Status.OK, f"{format_size(free)} free")


def free_bytes(folder: Path) -> int | None:
    """What is free in a file system for others than root."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize

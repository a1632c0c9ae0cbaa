# SPDX-License-Identifier: Apache-2.0
"""What `hmb-trace doctor` finds, and where it looks."""

from __future__ import annotations

import enum
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hmb_trace.nvme import HostMemory, host_memory

MODULE = "nvme_hmb_trace"


class Status(enum.StrEnum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"  # good to know, nothing to do
    WARN = "warn"  # works, but not as well as it could
    FAIL = "fail"  # something that was set up, or asked for, does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis: what was looked at, what was found, what to do."""

    check: str
    status: Status
    found: str
    advice: str = ""


def kernel_log() -> list[str] | None:
    """The kernel's messages, oldest first; None where they are not ours to read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    lines: list[str] = []
    try:
        while True:
            try:
                line = os.read(fd, 8192)
            except BrokenPipeError:  # overwritten while we read
                continue
            except OSError:
                return lines
            lines.append(line.decode(errors="replace").partition(";")[2].split("\n")[0])
    finally:
        os.close(fd)


@dataclass(frozen=True)
class System:
    """Where to look; tests put a made-up tree below root.

    Args:
        root: of /sys, /proc, /dev, /lib, /run.
        output_dir: where dumps would go.
        ask_drive: Identify and Get Features of /dev/nvme<N>; OSError where it may not.
        messages: of the kernel, or None.
    """

    root: Path = Path("/")
    output_dir: Path = Path("/var/lib/hmb-trace")
    kernel: str = field(default_factory=platform.release)
    machine: str = field(default_factory=platform.machine)
    ask_drive: Callable[[Path], HostMemory] = host_memory
    messages: Callable[[], list[str] | None] = kernel_log

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """A sysfs attribute without its newline; None where there is none."""
        try:
            return self.at(path).read_text().strip()
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int:
        """An attribute as a number; 0 where there is none."""
        text = self.read(path) or ""
        return int(text) if text.isdigit() else 0

    def names(self, folder: str, prefix: str = "") -> list[str]:
        """What is in a folder, sorted as people count."""
        try:
            found = [path.name for path in self.at(folder).iterdir()]
        except OSError:
            return []
        kept = [name for name in found if name.startswith(prefix)]
        return sorted(kept, key=lambda name: (len(name), name))

    @property
    def nodes(self) -> list[str]:
        """Trace devices, those for a process that plays firmware left out."""
        found = self.names("/sys/class/hmbtrace", "nvme")
        return [name for name in found if not name.endswith("-fw")]

    @property
    def has_module(self) -> bool:
        return self.at(f"/sys/module/{MODULE}").exists()

    @property
    def traced_drives(self) -> list[str]:
        """What nvme.trace_drives names; empty also where the driver is not patched."""
        text = self.read("/sys/module/nvme/parameters/trace_drives") or ""
        return [name for name in text.split(",") if name and name != "(null)"]

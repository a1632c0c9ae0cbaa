# SPDX-License-Identifier: Apache-2.0
"""Boots a Debian kernel under QEMU, without KVM, around the host's own root file system.

The guest sees the host's root read-only over 9p (below an overlay where systemd is
wanted), so that the interpreter, the venv and the checkout are there as they are.  The
host drives it through a shell on the second serial port.  Nothing is installed, and
nothing of the running system changes: kernel image and modules are unpacked into cache/.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from kernels import KERNELS, Kernel, installed_headers
from suites import CACHE, SYSTEM_QEMU, Qemu, VmError, alone, package, run

__all__ = ["CACHE", "HOME", "KERNELS", "Guest", "Kernel", "VmError", "alone", "package", "run"]

REPO = Path(__file__).resolve().parents[2]
HOME = KERNELS["6.1"]  # the kernel whose headers are installed
GUEST = Path(__file__).parent / "guest"
# An emulated processor on a busy host: what takes a second may take a hundred.
PATIENCE_S = 180.0
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "autofs4")
SPLATS = re.compile(
    r"BUG:|WARNING:|Oops|Call Trace|general protection|use-after-free|Busy inodes|"
    r"possible recursive|unable to handle|scheduling while atomic|hung_task|Bad page"
)


def kernel_version() -> str:
    """Of the newest 6.1 headers that are installed."""
    return installed_headers()


def module_files(name: str) -> list[Path]:
    """A module of the installed 6.1 kernel and what it needs, in the order of loading."""
    return HOME.modules(name)


def _copy_changed(sources: dict[Path, Path]) -> None:
    """Copy files, but leave alone what is the same: make goes by the time."""
    for source, copy in sources.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)


def headers() -> Path:
    """The build directory of the installed 6.1 headers."""
    return HOME.headers


@alone
def kbuild(folder: Path, kdir: Path | None = None, *settings: str) -> str:
    """Build a directory of out-of-tree modules; what make said."""
    return run("make", "-C", kdir or headers(), f"M={folder}", "W=1", *settings, "modules")


@alone
def module_sources(name: str) -> Path:
    """A copy of kmod_shim in the cache: builds leave no litter in the checkout."""
    target = CACHE / name
    shim = REPO / "kmod_shim"
    sources = [*shim.glob("*.[ch]"), shim / "Kbuild", *(shim / "nvme-pci").glob("*.h")]
    copies = {path: target / path.relative_to(shim) for path in sources}
    copies[REPO / "include/uapi/linux/hmb_trace.h"] = target / "uapi/linux/hmb_trace.h"
    _copy_changed(copies)
    return target


@alone
def build_module(kernel: Kernel = HOME) -> Path:
    """nvme_hmb_trace.ko for a kernel, by default the installed 6.1 headers."""
    target = module_sources(_build_folder("module", kernel))
    kbuild(target, kernel.headers, *kernel.settings)
    return target / "nvme_hmb_trace.ko"


@alone
def build_fake_nvme(kernel: Kernel = HOME) -> Path:
    """fake_nvme.ko: a drive with a trace slice and nothing else."""
    target = CACHE / _build_folder("fake_nvme", kernel)
    patch = REPO / "kmod_shim/nvme-pci"
    sources = [*(Path(__file__).parent / "fake_nvme").iterdir(), *patch.glob("*.[ch]")]
    _copy_changed({path: target / path.name for path in sources})
    kbuild(target, kernel.headers, *kernel.settings)
    return target / "fake_nvme.ko"


def linux_source() -> Path:
    """Parts of linux-source-6.1: the nvme driver and checkpatch."""
    return HOME.source


def _build_folder(name: str, kernel: Kernel) -> str:
    return name if kernel is HOME else f"{name}-{kernel.release}"


@alone
def build_patched_nvme(kernel: Kernel = HOME) -> Path:
    """The nvme driver of a kernel's source package with our patch: its nvme.ko."""
    patch = REPO / "kmod_shim/nvme-pci"
    target = CACHE / _build_folder("nvme", kernel)
    stamp = target / ".patched"
    mark = "".join(f"{path.name}{path.read_text()}" for path in sorted(patch.iterdir()))
    host = target / "drivers/nvme/host"
    if not stamp.exists() or stamp.read_text() != mark:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(kernel.source, target)
        run(patch / "apply.sh", "--kernel", "any", target)
        stamp.write_text(mark)
    # nvme.ko alone: Debian's nvme-core.ko fits, its symbols are in the headers.
    off = [f"CONFIG_NVME_{name}=" for name in ("CORE", "FABRICS", "RDMA", "FC", "TCP")]
    kbuild(host, kernel.headers, "CONFIG_BLK_DEV_NVME=m", *off, *kernel.settings)
    return host / "nvme.ko"


@alone
def precompile() -> None:
    """Byte-compile the checkout: the guest cannot keep what it compiles, and is slow at it."""
    folders = [REPO / part for part in ("src", "daemon", "producer_sim", "kmod_shim")]
    run(sys.executable, "-m", "compileall", "-q", *folders)


def _newc(name: str, data: bytes, mode: int) -> bytes:
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


@functools.cache
@alone
def initramfs(kernel: Kernel = HOME) -> Path:
    """busybox, /init and the modules that reach the host's root."""
    modules = kernel.modules(*BOOT_MODULES)
    parts = [_newc(folder, b"", 0o40755) for folder in ("bin", "mods", "proc", "sys", "dev")]
    parts += [_newc(folder, b"", 0o40755) for folder in ("host", "over", "new")]
    parts.append(_newc("bin/busybox", Path("/bin/busybox").read_bytes(), 0o100755))
    parts.append(_newc("init", (GUEST / "init").read_bytes(), 0o100755))
    parts += [_newc(f"mods/{path.name}", path.read_bytes(), 0o100644) for path in modules]
    order = "".join(f"{path.name}\n" for path in modules)
    parts += [_newc("mods/order", order.encode(), 0o100644), _newc("TRAILER!!!", b"", 0)]
    target = CACHE / f"initramfs-{kernel.release}.gz"
    target.write_bytes(gzip.compress(b"".join(parts), 1))
    return target


@dataclass
class Guest:
    """A running virtual machine; use as a context manager.

    Args:
        mode: "plain" (a shell in the chroot) or "systemd" (the whole chain).
        shared: the file behind the ivshmem region (BAR 2, write-back above 4 GiB), if any.
        exchange: a host directory, writable in the guest as /mnt/exchange.
        extra: more QEMU arguments.
        kernel: what boots.
        qemu: which QEMU; suites.new_qemu() for one that speaks vfio-user.
    """

    mode: str = "plain"
    shared: Path | None = None
    exchange: Path | None = None
    extra: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    memory: str = "768M"
    kernel: Kernel = HOME
    qemu: Qemu = SYSTEM_QEMU
    machine: str = "q35"
    append: str = ""  # to the kernel's command line

    def __enter__(self) -> Guest:
        self._folder = Path(tempfile.mkdtemp(prefix="hmb-vm-"))
        self.console = self._folder / "console"
        self._qmp_path = self._folder / "qmp"
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=(self._folder / "qemu").open("wb"),
            stderr=subprocess.STDOUT,
            env=self.qemu.environment or None,
        )
        try:
            self._shell = self._connect(self._folder / "shell")
            self._wait_for(b"GUEST READY\n", PATIENCE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        with contextlib.suppress(AttributeError):
            self._shell.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        append = (
            "console=ttyS0 panic=-1 oops=panic rdinit=/init quiet cryptomgr.notests "
            f"tsc=unstable hmb.mode={self.mode} hmb.repo={REPO} hmb.cache={CACHE} "
            f"hmb.python={Path(sys.base_prefix).resolve()} {self.append}"
        )
        command = [
            *(*self.qemu.command, "-nodefaults", "-no-user-config", "-display", "none"),
            *("-no-reboot", "-machine", self.machine, "-cpu", "max", "-accel", "tcg"),
            *("-smp", "2", "-m", self.memory, "-kernel", str(self.kernel.vmlinux)),
            *("-initrd", str(initramfs(self.kernel))),
            *("-append", append, "-serial", f"file:{self.console}"),
            *("-serial", f"unix:{self._folder / 'shell'},server=on,wait=off"),
            *("-qmp", f"unix:{self._qmp_path},server=on,wait=off"),
            *("-fsdev", "local,id=hr,path=/,security_model=none,readonly=on,multidevs=remap"),
            *("-device", "virtio-9p-pci,fsdev=hr,mount_tag=hostroot"),
            *self.extra,
        ]
        if self.exchange:
            command += ["-fsdev", f"local,id=ex,path={self.exchange},security_model=none"]
            command += ["-device", "virtio-9p-pci,fsdev=ex,mount_tag=exchange"]
        if self.shared:
            size = self.shared.stat().st_size
            backend = f"memory-backend-file,id=sh,share=on,mem-path={self.shared},size={size}"
            command += ["-object", backend, "-device", "pcie-root-port,id=rp0,slot=1"]
            command += ["-device", "ivshmem-plain,memdev=sh,id=ivs,bus=rp0"]
            command += ["-device", "pci-testdev,membar=4G"]
        return command

    def _connect(self, path: Path) -> socket.socket:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._process.poll() is None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(path))
                return connection
            except OSError:
                connection.close()
                time.sleep(0.05)
        raise VmError(f"QEMU did not start: {(self._folder / 'qemu').read_text()}")

    def _wait_for(self, mark: bytes, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        got = b""
        while mark not in got:
            left = deadline - time.monotonic()
            if left <= 0:
                raise VmError(f"guest silent for {timeout:.0f} s; {self._tail(got)}")
            self._shell.settimeout(min(left, 1))
            try:
                data = self._shell.recv(65536)
            except TimeoutError:
                if self._process.poll() is None:
                    continue
                data = b""
            if not data:
                raise VmError(f"the guest is gone; {self._tail(got)}")
            got += data.replace(b"\r", b"")
        return got

    def _tail(self, got: bytes) -> str:
        return f"said {got[-2000:].decode(errors='replace')!r}; console: {self.log()[-3000:]}"

    def log(self) -> str:
        """What the guest's console has printed so far."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def sh(self, command: str, timeout: float = PATIENCE_S) -> tuple[int, str]:
        """Run a shell command in the guest: its exit code, and stdout with stderr."""
        mark = f"HMB{time.monotonic_ns()}"
        self._shell.sendall(
            f"{{ {command}; }} 2>&1 </dev/null; echo {mark[:3]}''{mark[3:]} $?\n".encode()
        )
        return self._wait_for_rc(mark, timeout)

    def _wait_for_rc(self, mark: str, timeout: float) -> tuple[int, str]:
        text = ""
        deadline = time.monotonic() + timeout
        while not (match := re.search(rf"{mark} (\d+)\n", text)):
            try:
                got = self._wait_for(b"\n", deadline - time.monotonic())
            except VmError as error:
                raise VmError(f"{error}; before that: {text[-4000:]}") from error
            text += got.decode(errors="replace")
        return int(match[1]), text[: match.start()]

    def check(self, command: str, timeout: float = PATIENCE_S) -> str:
        """Like sh(), but the command must succeed."""
        code, text = self.sh(command, timeout)
        if code:
            raise AssertionError(f"{command!r} ended with {code}: {text}\n{self.log()[-2000:]}")
        return text

    def wait(self, command: str, timeout: float = PATIENCE_S) -> str:
        """Run the command in the guest until it succeeds."""
        return self.check(
            f"n={int(timeout * 10)}; until {command}; do n=$((n-1)); "
            "[ $n -gt 0 ] || { echo condition never held; break; }; sleep 0.1; done; "
            "[ $n -gt 0 ]",
            timeout * 3 + 30,  # a look takes longer than the sleep between two
        )

    def qmp(self, *commands: str) -> None:
        """Send QMP commands (JSON texts)."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10)
            control.connect(str(self._qmp_path))
            stream = control.makefile("rwb")
            stream.readline()
            for text in ('{"execute": "qmp_capabilities"}', *commands):
                stream.write(text.encode() + b"\n")
                stream.flush()
                answer = stream.readline()
                while b'"event"' in answer:
                    answer = stream.readline()
                if b'"error"' in answer:
                    raise VmError(f"{text}: {answer.decode()}")

    def kill(self) -> None:
        """End QEMU at once: to the guest, the host has died."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def splats(self) -> list[str]:
        """Lines of the kernel log that no test may leave behind."""
        return [line for line in self.check("dmesg").splitlines() if SPLATS.search(line)]


def missing() -> str | None:
    """What this machine lacks for the suite, as a sentence, or None."""
    for program, name in (
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
        ("zstd", "zstd"),
        ("apt-get", "apt"),
    ):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/sbin:/usr/sbin"):
            return f"needs {program}: apt-get install {name}"
    try:
        kernel_version()
    except VmError as error:
        return str(error)
    return None

# SPDX-License-Identifier: Apache-2.0
"""The Debian kernels that the suite boots and builds for, each unpacked beside the system.

KERNELS["6.1"]    the system's own release, its headers are installed
KERNELS["6.12"]   trixie
KERNELS["7"]      trixie-backports, whatever the newest is there
"""

from __future__ import annotations

import functools
import lzma
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from suites import (
    CACHE,
    SYSTEM,
    TRIXIE_BACKPORTS,
    Suite,
    VmError,
    alone,
    make_runnable,
    package,
    run,
)

# What is taken out of a kernel's source package.
SOURCES = (
    "*/Makefile",
    "*/drivers/nvme/host",
    "*/drivers/nvme/common",
    "*/include/linux/nvme*.h",
    "*/scripts/checkpatch.pl",
    "*/scripts/spelling.txt",
    "*/scripts/const_structs.checkpatch",
)


@functools.cache
def installed_headers() -> str:
    """The version of the newest 6.1 headers that are installed, such as 6.1.0-57."""
    found = [
        match[1]
        for path in Path("/usr/src").glob("linux-headers-*-amd64")
        if (match := re.fullmatch(r"linux-headers-(6\.1\.0-\d+)-amd64", path.name))
    ]
    if not found:
        raise VmError("no 6.1 kernel headers: apt-get install linux-headers-amd64")
    return max(found, key=lambda version: int(version.rsplit("-", 1)[1]))


def elf_of(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage (offsets: the x86 boot protocol)."""
    start = (image[0x1F1] + 1) * 512 + int.from_bytes(image[0x248:0x24C], "little")
    packed = image[start : start + int.from_bytes(image[0x24C:0x250], "little")]
    tools = {b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
    for magic, tool in tools.items():
        if packed.startswith(magic):
            # The build appends the unpacked size: 4 bytes that the tools may grumble about.
            done = subprocess.run(
                [tool, "-dc"], input=packed[:-4], capture_output=True, check=False
            )
            if done.stdout.startswith(b"\x7fELF"):
                return done.stdout
    raise VmError(f"cannot unpack the kernel image (payload begins with {packed[:6]!r})")


@dataclass(frozen=True)
class Kernel:
    """A Debian kernel. `release` is what uname -r says in the guest."""

    series: str
    suite: Suite | None = None
    meta: str = ""  # the package that depends on the newest headers of the series
    settings: tuple[str, ...] = ()  # for kbuild

    def __str__(self) -> str:
        return self.series

    @property
    def folder(self) -> Path:
        """Where builds for this kernel may be put."""
        return CACHE / "kernels" / self.release

    @functools.cached_property
    def release(self) -> str:
        if self.suite is None:
            return f"{installed_headers()}-amd64"
        depends = self.suite.newest(self.meta)["Depends"]
        found = re.search(r"linux-headers-(\d\S*-amd64)", depends)
        if not found:
            raise VmError(f"no kernel among the dependencies of {self.meta}: {depends}")
        return found[1]

    @functools.cached_property
    @alone
    def tree(self) -> Path:
        """The unpacked image and its modules, with the modules indexed."""
        if self.suite is None:
            tree = package(f"linux-image-{self.release}")
        else:
            tree = self.suite.packages(*self._image_packages())
        # Newer packages have everything below usr.
        for name in ("lib", "boot"):
            if not (tree / name).exists() and (tree / "usr" / name).exists():
                (tree / name).symlink_to(f"usr/{name}")
        if not (tree / "lib/modules" / self.release / "modules.dep.bin").exists():
            run("depmod", "-b", tree, self.release)
        return tree

    def _image_packages(self) -> list[str]:
        """The image; since 7.3 it is in several packages."""
        assert self.suite is not None
        image = f"linux-image-{self.release}"
        depends = self.suite.newest(image)["Depends"]
        parts = re.findall(rf"linux-(?:base|binary|modules)-{re.escape(self.release)}", depends)
        return [image, *parts]

    @functools.cached_property
    @alone
    def vmlinux(self) -> Path:
        """The kernel, decompressed: it boots seconds faster than the bzImage."""
        target = CACHE / f"vmlinux-{self.release}"
        if not target.exists():
            names = (f"boot/vmlinuz-{self.release}", f"lib/modules/{self.release}/vmlinuz")
            image = next(path for name in names if (path := self.tree / name).exists())
            temporary = target.with_suffix(".tmp")
            temporary.write_bytes(elf_of(image.read_bytes()))
            temporary.rename(target)
        return target

    @alone
    def modules(self, *names: str) -> list[Path]:
        """Kernel modules and what they need, unpacked, in the order of loading."""
        found: list[Path] = []
        for name in names:
            show = ("modprobe", "-d", self.tree, "-S", self.release, "--show-depends", name)
            lines = run(*show).splitlines()
            files = [Path(line.split()[1]) for line in lines if line.startswith("insmod")]
            found += map(_unpacked, files)
        return list(dict.fromkeys(found))

    @functools.cached_property
    @alone
    def headers(self) -> Path:
        """A build directory (KDIR) for out-of-tree modules."""
        if self.suite is None:
            return Path(f"/lib/modules/{self.release}/build")
        version = self.release.removesuffix("-amd64")
        common = f"linux-headers-{version}-common"
        kbuild = f"linux-kbuild-{version}"
        tree = self.suite.packages(f"linux-headers-{self.release}", common)
        build = tree / f"usr/src/linux-headers-{self.release}"
        programs = self.suite.closure(kbuild)
        tools = programs / f"usr/lib/{kbuild}"
        make_runnable([path for path in tools.rglob("*") if path.is_file()], programs)
        for name in ("scripts", "tools"):
            for folder in (build, tree / "usr/src" / common):
                if not (folder / name).exists():
                    (folder / name).unlink(missing_ok=True)
                    (folder / name).symlink_to(tools / name)
        for old in ("include /usr/src/", "KBUILD_OUTPUT=/usr/src/"):
            _rewrite(build / "Makefile", old, old.replace("/usr/src", str(build.parent)))
        return build

    @functools.cached_property
    @alone
    def source(self) -> Path:
        """Parts of its source package: the nvme driver and checkpatch."""
        target = CACHE / f"linux-{self.release}"
        if (target / ".done").exists():
            return target
        series = ".".join(self.release.split(".")[:2])
        find = package if self.suite is None else self.suite.packages
        tree = find(f"linux-source-{series}")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        wanted = ("--strip-components=1", "--wildcards", "--no-wildcards-match-slash")
        archive = tree / f"usr/src/linux-source-{series}.tar.xz"
        run("tar", "-C", target, *wanted, "-xJf", archive, *SOURCES)
        shutil.rmtree(tree)  # all of it is twenty times what is wanted
        (target / ".done").touch()
        return target


def _rewrite(path: Path, old: str, new: str) -> None:
    if path.exists() and old in (text := path.read_text()):
        path.write_text(text.replace(old, new))


def _unpacked(path: Path) -> Path:
    """A module without its compression: the guest's busybox need not know it."""
    if path.suffix != ".xz":
        return path
    plain = path.with_suffix("")
    if not plain.exists():
        plain.write_bytes(lzma.decompress(path.read_bytes()))
    return plain


# Built by a newer gcc than Debian 12 has: without what only that one can do. None of it
# changes an interface between kernel and module.
OLDER_COMPILER = (
    "CC=gcc",
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=",
    "CONFIG_DEBUG_INFO_BTF_MODULES=",
)
KERNELS = {
    kernel.series: kernel
    for kernel in (
        Kernel("6.1"),
        Kernel("6.12", SYSTEM, "linux-headers-6.12-amd64", ("CONFIG_DEBUG_INFO_BTF_MODULES=",)),
        Kernel("7", TRIXIE_BACKPORTS, "linux-headers-amd64", OLDER_COMPILER),
    )
}

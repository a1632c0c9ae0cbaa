# SPDX-License-Identifier: Apache-2.0
"""Packages of a Debian suite that is not the system's own, unpacked beside it.

apt works on lists, a cache and a status of its own, all below cache/: nothing of the running
system changes, and a cache that is kept from one run to the next saves the downloads.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

CACHE = Path(__file__).parent / "cache"
LISTS_FRESH_S = 7 * 86400.0
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class VmError(Exception):
    """The machinery failed, not the thing under test."""


P = ParamSpec("P")
R = TypeVar("R")
_held: list[int] = []  # the lock, while this process has it


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """One process at a time downloads, unpacks and builds in the cache; calls may nest."""

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        if _held:
            return function(*args, **kwargs)
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _held.append(lock.fileno())
            try:
                return function(*args, **kwargs)
            finally:
                _held.clear()

    return locked


def run(*command: str | Path, cwd: Path | None = None, quiet: bool = True) -> str:
    """Run a command; its stdout, or VmError with all that it said."""
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=quiet, check=False
    )
    if result.returncode:
        raise VmError(f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}")
    return result.stdout or ""


@functools.cache
def mirror() -> str:
    """The Debian archive that the system uses."""
    listed = run(
        *("apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)"),
        "Created-By: Packages",
    )
    found = re.search(r"^(\S+/debian/?) main$", listed, re.M)
    if not found:
        raise VmError("no Debian archive among the apt sources")
    return found[1]


def unpack(debs: list[Path], target: Path) -> Path:
    """Unpack packages into one tree; nothing where a tree of that name is whole already."""
    if not (target / ".done").exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for deb in debs:
            run("dpkg", "-x", deb, target)
        (target / ".done").touch()
    return target


@alone
def package(name: str, suite: Suite | None = None) -> Path:
    """A package of the system's own release, downloaded once and unpacked into the cache."""
    target = CACHE / "x" / name.replace(":", "_")
    if (target / ".done").exists():
        return target
    debs = CACHE / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    stem = name.partition(":")[0]
    if not list(debs.glob(f"{stem}_*.deb")):
        (suite or SYSTEM).apt("apt-get", "download", name, cwd=debs)
    return unpack([next(debs.glob(f"{stem}_*.deb"))], target)


@dataclass(frozen=True)
class Suite:
    """One or more suites of the archive, the first one preferred; without names, the system's."""

    names: tuple[str, ...]
    foreign: str = ""  # another architecture

    @property
    def folder(self) -> Path:
        return CACHE / "suites" / (self.names[0] if self.names else self.foreign or "system")

    def _write_sources(self) -> None:
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        lines = [f"deb {signed}{mirror()} {name} main\n" for name in self.names]
        (self.folder / "sources.list").write_text("".join(lines))
        (self.folder / "status").write_text("")

    def _options(self) -> list[str]:
        settings: dict[str, str | Path] = {
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "debs",
            "APT::Sandbox::User": "root",
        }
        if self.names:
            settings |= self._own_sources()
        if self.foreign:
            settings["APT::Architectures::"] = self.foreign
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def _own_sources(self) -> dict[str, str | Path]:
        return {
            "Dir::State::status": self.folder / "status",
            "Dir::Etc::sourcelist": self.folder / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Default-Release": self.names[0],
            "APT::Architecture": "amd64",
        }

    @alone
    def apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        """Run apt-get or apt-cache on this suite; the lists are fetched when first needed."""
        stamp = self.folder / "lists/updated"
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > LISTS_FRESH_S:
            for part in ("lists/partial", "debs/archives/partial", "x"):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
            if self.names:
                self._write_sources()
            run("apt-get", *self._options(), "-qq", "update")
            stamp.touch()
        return run(tool, *self._options(), *arguments, cwd=cwd)

    def newest(self, meta: str) -> dict[str, str]:
        """The fields of the newest package of this name, "Depends" and "Version" among them."""
        shown = self.apt("apt-cache", "show", "--no-all-versions", meta)
        return dict(re.findall(r"^([\w-]+): (.*)$", shown, re.M))

    @alone
    def packages(self, *names: str) -> Path:
        """These packages in one tree, without what they depend on."""
        target = self.folder / "x" / names[0]
        if (target / ".done").exists():
            return target
        debs = self.folder / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not list(debs.glob(f"{name}_*.deb")):
                self.apt("apt-get", "download", name, cwd=debs)
        found = [next(debs.glob(f"{name}_*.deb")) for name in names]
        unpack(found, target)
        for deb in found:
            deb.unlink()
        return target

    @alone
    def closure(self, name: str) -> Path:
        """A package and all that it depends on in one tree: programs that run by themselves."""
        if not self.names:
            return self.packages(name)  # the system has the rest, or can install it
        target = self.folder / "x" / name
        if (target / ".done").exists():
            return target
        install = ("-y", "--no-install-recommends", "--download-only", "install", name)
        self.apt("apt-get", "-qq", *install)
        archives = self.folder / "debs/archives"
        debs = sorted(archives.glob("*.deb"))
        unpack(debs, target)
        for deb in debs:
            deb.unlink()
        return target


SYSTEM = Suite(())
SYSTEM_ARM64 = Suite((), "arm64")
TRIXIE_BACKPORTS = Suite(("trixie-backports", "trixie"))


@dataclass(frozen=True)
class Qemu:
    """A QEMU command with what it needs to run from where it lies."""

    command: tuple[str, ...]
    environment: dict[str, str]


SYSTEM_QEMU = Qemu(("qemu-system-x86_64",), {})


def loader(root: Path) -> tuple[str, ...]:
    """The command in front of a program of another release: its own loader and libraries."""
    libraries = [root / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
    name = "ld-linux-x86-64.so.2"
    found = next(path for folder in libraries if (path := folder / name).exists())
    return (str(found), "--library-path", ":".join(map(str, libraries)))


@alone
def make_runnable(programs: list[Path], root: Path) -> None:
    """Put a script before each program that asks for a newer libc than this machine has."""
    have = int(os.confstr("CS_GNU_LIBC_VERSION").rpartition(".")[2])  # type: ignore[union-attr]  # glibc has it
    for path in programs:
        if path.suffix == ".elf":
            continue  # done before
        code = path.read_bytes()
        wants = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", code)]
        if not code.startswith(b"\x7fELF") or max(wants, default=0) <= have:
            continue
        real = path.rename(path.with_name(f"{path.name}.elf"))
        words = " ".join(f"'{word}'" for word in (*loader(root), str(real)))
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)


@functools.cache
def new_qemu() -> Qemu:
    """QEMU of trixie-backports (it speaks vfio-user), with the libraries of its own suite."""
    root = TRIXIE_BACKPORTS.closure("qemu-system-x86")
    command = (
        *(*loader(root), str(root / "usr/bin/qemu-system-x86_64")),
        *("-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios")),
    )
    modules = root / "usr/lib/x86_64-linux-gnu/qemu"
    return Qemu(command, {**os.environ, "QEMU_MODULE_DIR": str(modules)})

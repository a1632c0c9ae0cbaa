# SPDX-License-Identifier: Apache-2.0
"""The two C libraries, plain shared objects that cffi opens, no Python.h; and the C program."""

import os
import platform
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# One file's loop calls another's small functions for every record: let them be inlined.
INLINE = ["-O3", "-flto=auto", "-fno-semantic-interposition"]
# What a distribution hardens its packages with: this code parses bytes that nobody vouches for.
HARDEN = [
    *("-fstack-protector-strong", "-fstack-clash-protection"),
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    *(["-fcf-protection"] if platform.machine() == "x86_64" else []),
]
LINK = ["-pthread", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-z,defs"]
WARN = ["-Wall", "-Wextra", *(["-Werror"] if os.environ.get("CI") == "true" else [])]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", *INLINE, *HARDEN, "-g", *WARN, "-Iinclude/uapi"]


def _files(pattern: str, folders: tuple[str, ...]) -> list[str]:
    return sorted(str(path) for folder in folders for path in Path(folder).glob(pattern))


def library(name: str, *folders: str) -> Extension:
    """A library of all C files in some folders, with the symbol map that lies there."""
    maps = _files("*.map", folders)
    hide = ["-fvisibility=hidden"] if maps else []
    headers = _files("*.h", (*folders, f"{folders[0]}/api"))
    return Extension(
        name,
        sources=_files("*.c", folders),
        depends=[*headers, *maps, "include/uapi/linux/hmb_trace.h"],
        extra_compile_args=[*FLAGS, *hide, *(f"-I{f}" for f in folders), f"-Wa,-I{folders[0]}"],
        extra_link_args=[*LINK, *INLINE, *(f"-Wl,--version-script={path}" for path in maps)],
    )


def _version() -> str:
    with Path("pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


class Program(Extension):
    """An executable that is installed beside the modules of its package."""


def program(name: str, *folders: str) -> Program:
    flags = [*FLAGS, "-fPIE", *(f"-I{f}" for f in folders)]
    return Program(
        name,
        sources=_files("*.c", folders),
        depends=[*_files("*.h", (*folders, "libhmbtrace", "libhmbtrace/api"))],
        define_macros=[("HMB_TRACE_VERSION", f'"{_version()}"')],
        extra_compile_args=[*flags, "-Ilibhmbtrace"],
        extra_link_args=[*LINK, "-pie", *INLINE],
    )


class BuildExtensions(build_ext):
    """build_ext that links a Program as one."""

    def get_ext_filename(self, fullname: str) -> str:
        programs = {ext.name for ext in self.extensions or [] if isinstance(ext, Program)}
        if fullname in programs or any(name.endswith(f".{fullname}") for name in programs):
            return fullname.replace(".", "/")
        return str(super().get_ext_filename(fullname))

    def build_extension(self, ext: Extension) -> None:
        if not isinstance(ext, Program):
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name))
        objects = self.compiler.compile(
            ext.sources,
            output_dir=f"{self.build_temp}/{target.name}",
            macros=ext.define_macros,
            extra_postargs=ext.extra_compile_args,
            depends=ext.depends,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_executable(
            objects, target.name, output_dir=str(target.parent), extra_postargs=ext.extra_link_args
        )


setup(
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=[
        library(
            "hmb_trace._libhmbtrace",
            "libhmbtrace",
            *(f"libhmbtrace/{part}" for part in ("capture", "dump", "pccx", "fnv")),
        ),
        program(
            "hmb_daemon.hmb-trace-collector",
            "daemon/collector",
            "libhmbtrace/capture",
            "libhmbtrace/fnv",
        ),
        library("hmb_producer_sim._libhmbsim", "producer_sim/engine", "producer_sim/firmware"),
    ],
)

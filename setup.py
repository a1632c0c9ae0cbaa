# SPDX-License-Identifier: Apache-2.0
"""The two C libraries, plain shared objects that cffi opens, no Python.h; and the C program."""

import contextlib
import ctypes
import os
import platform
import tomllib
from pathlib import Path

from cffi import FFI
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


class Library(Extension):
    """A shared object that carries the text of its interface, to be read by cffi."""

    interface: str  # the symbol of that text


def library(name: str, interface: str, *folders: str) -> Library:
    """A library of all C files in some folders, with the symbol map that lies there."""
    maps = _files("*.map", folders)
    hide = ["-fvisibility=hidden"] if maps else []
    headers = _files("*.h", (*folders, f"{folders[0]}/api"))
    made = Library(
        name,
        sources=_files("*.c", folders),
        depends=[*headers, *maps, "include/uapi/linux/hmb_trace.h"],
        extra_compile_args=[*FLAGS, *hide, *(f"-I{f}" for f in folders), f"-Wa,-I{folders[0]}"],
        extra_link_args=[*LINK, *INLINE, *(f"-Wl,--version-script={path}" for path in maps)],
    )
    made.interface = interface
    return made


def write_parsed(name: str, path: Path, symbol: str) -> None:
    """NAME_abi.py beside a library: its interface as cffi parsed it, and the text it was made of.

    hmb_trace._binding takes it in place of parsing, if the library still carries that text.
    """
    carried = ctypes.c_char.in_dll(ctypes.CDLL(str(path.resolve())), symbol)
    text = ctypes.string_at(ctypes.addressof(carried))
    api = FFI()
    api.cdef(f"{text.decode()}extern const char {symbol}[];")
    api.set_source(f"{name}_abi", None)
    target = path.with_name(f"{name.rpartition('.')[2]}_abi.py")
    target.unlink(missing_ok=True)
    with contextlib.redirect_stdout(None):  # it says what it writes, -q or not
        api.emit_python_code(str(target))
    with target.open("a") as file:
        file.write(f"INTERFACE = {text!r}\n")


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
    """build_ext that links a Program as one, and parses a Library's interface once for all."""

    def run(self) -> None:
        super().run()
        for ext in self.extensions or []:
            if isinstance(ext, Library):
                write_parsed(ext.name, Path(self.get_ext_fullpath(ext.name)), ext.interface)

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
            "hmb_api_text",
            "libhmbtrace",
            *(f"libhmbtrace/{part}" for part in ("capture", "dump", "pccx", "fnv")),
        ),
        program(
            "hmb_daemon.hmb-trace-collector",
            "daemon/collector",
            "libhmbtrace/capture",
            "libhmbtrace/fnv",
        ),
        library(
            "hmb_producer_sim._libhmbsim",
            "hmb_sim_api_text",
            "producer_sim/engine",
            "producer_sim/firmware",
        ),
    ],
)

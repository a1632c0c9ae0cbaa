# SPDX-License-Identifier: Apache-2.0
"""The two C libraries: plain shared objects that cffi opens, no Python.h."""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup

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


setup(
    ext_modules=[
        library(
            "hmb_trace._libhmbtrace",
            "libhmbtrace",
            *(f"libhmbtrace/{part}" for part in ("capture", "dump", "pccx", "fnv")),
        ),
        library("hmb_producer_sim._libhmbsim", "producer_sim/engine", "producer_sim/firmware"),
    ]
)

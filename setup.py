# SPDX-License-Identifier: Apache-2.0
"""The two C libraries: plain shared objects that cffi opens, no Python.h."""

from pathlib import Path

from setuptools import Extension, setup

# One file's loop calls another's small functions for every record: let them be inlined.
INLINE = ["-O3", "-flto=auto", "-fno-semantic-interposition"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", *INLINE, "-g", "-Wall", "-Wextra", "-Iinclude/uapi"]


def _files(pattern: str, folders: tuple[str, ...]) -> list[str]:
    return sorted(str(path) for folder in folders for path in Path(folder).glob(pattern))


def library(name: str, *folders: str) -> Extension:
    return Extension(
        name,
        sources=_files("*.c", folders),
        depends=[*_files("*.h", (*folders, f"{folders[0]}/api")), "include/uapi/linux/hmb_trace.h"],
        extra_compile_args=[*FLAGS, *(f"-I{f}" for f in folders), f"-Wa,-I{folders[0]}"],
        extra_link_args=["-pthread", *INLINE],
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

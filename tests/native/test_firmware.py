# SPDX-License-Identifier: Apache-2.0
"""The reference producer: freestanding on every processor it knows, clean under sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, require, require_program

FIRMWARE = ROOT / "producer_sim" / "firmware"
ENGINE = ROOT / "producer_sim" / "engine"
SOURCE = FIRMWARE / "hmb_producer.c"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include' / 'uapi'}"]
FREESTANDING = ["-nostdinc", "-ffreestanding", "-U__linux__"]
BARRIERS = {
    "x86_64-none-elf": "",  # its stores stay in order
    "aarch64-none-elf": "dmb\toshst",
    "riscv64-none-elf": "fence\tow, ow",
}


def run(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
def test_firmware_needs_no_library(tmp_path: Path, level: str) -> None:
    """No libc, no memcpy that a compiler slips in: the object has no undefined symbol."""
    obj = tmp_path / "producer.o"
    run(require_program("gcc"), *STRICT, *FREESTANDING, level, "-c", SOURCE, "-o", obj)
    assert run(require_program("nm", "binutils"), "-u", obj).split() == []


@pytest.mark.parametrize("target", BARRIERS)
def test_firmware_compiles_for(tmp_path: Path, target: str) -> None:
    clang = next((c for c in ("clang", "clang-19", "clang-14") if shutil.which(c)), None)
    require(clang, "no clang (apt install clang-14)")
    code = tmp_path / "producer.s"
    flags = [f"--target={target}", *STRICT, *FREESTANDING, "-O2"]
    run(clang, *flags, "-S", SOURCE, "-o", code)
    assert BARRIERS[target] in code.read_text()


def test_firmware_publishes_head_once_and_last() -> None:
    """Every store of head but the header's own goes through the one release store."""
    text = SOURCE.read_text()
    assert text.count("hmb_port_store_release64(&p->hdr->head") == 1
    assert text.count("&hdr->head") == 1 + text.count("&p->hdr->head") - 1


@pytest.mark.parametrize("name", ["firmware_test", "firmware_engine_test"])
def test_firmware_under_sanitizers(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    sanitize = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    folders = [f"-I{FIRMWARE}", f"-I{ENGINE}", f"-Wa,-I{ENGINE}", "-D_GNU_SOURCE"]
    engine = sorted(ENGINE.glob("*.c")) if "engine" in name else []
    firmware = sorted(FIRMWARE.glob("*.c")) if engine else [SOURCE]
    sources = [Path(__file__).with_name(f"{name}.c"), *firmware, *engine]
    run(require_program("gcc"), *STRICT, *sanitize, *folders, *sources, "-o", program)
    run(program)


def test_firmware_names_its_partners() -> None:
    """Each barrier says which barrier of the host it pairs with, and that one exists."""
    host = (ROOT / "libhmbtrace/capture/barrier.h").read_text()
    port = (FIRMWARE / "hmb_producer_port.h").read_text()
    for partner in ("hmb_dma_rmb()", "hmb_dma_mb()"):
        assert f"#define {partner}" in host
        assert f"pairs with {partner}" in port

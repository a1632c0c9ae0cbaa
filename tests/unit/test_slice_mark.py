# SPDX-License-Identifier: Apache-2.0
"""The handshake over HMB descriptor 0: what the driver writes, firmware knows, and nothing else."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import require

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
SIZE, ADDRESS = 2 * MIB + 4096, 0x1_2345_6000

SOURCE = """
#include "nvme-pci/hmb_carve.h"
void driver_mark(__u64 slice, __u64 addr, __u32 *words) { hmb_mark_words(slice, addr, words); }
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The reference firmware's function, freestanding, and the driver's writer."""
    compiler = shutil.which("gcc")
    assert compiler, "apt-get install gcc"
    folder = tmp_path_factory.mktemp("mark")
    (folder / "driver.c").write_text(SOURCE)
    firmware = ROOT / "producer_sim/firmware"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-O2"]
    includes = [f"-I{ROOT / part}" for part in ("include/uapi", "kmod_shim")]
    free = [*flags, "-ffreestanding", "-nostdinc", "-U__linux__", f"-I{ROOT / 'include/uapi'}"]
    objects = [folder / "firmware.o", folder / "driver.o"]
    for command in (
        [*free, "-c", firmware / "hmb_slice.c", "-o", objects[0]],
        [*flags, *includes, "-c", folder / "driver.c", "-o", objects[1]],
        ["-shared", *objects, "-o", folder / "mark.so"],
    ):
        subprocess.run([compiler, *command], check=True)
    library = ctypes.CDLL(str(folder / "mark.so"))
    library.hmb_slice_ring_size.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    library.hmb_slice_ring_size.restype = ctypes.c_uint32
    for name in ("hmb_slice_make_mark", "driver_mark"):
        getattr(library, name).restype = None
    library.hmb_slice_make_mark.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    library.driver_mark.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p)
    return library


def driver_mark(code: ctypes.CDLL, size: int = SIZE, address: int = ADDRESS) -> bytes:
    mark = ctypes.create_string_buffer(64)
    code.driver_mark(size, address, mark)
    return mark.raw


def ring_size(code: ctypes.CDLL, mark: bytes, size: int = SIZE, address: int = ADDRESS) -> int:
    return int(code.hmb_slice_ring_size(mark, size, address))


def test_firmware_knows_what_the_driver_writes(code: ctypes.CDLL) -> None:
    mark = driver_mark(code)
    assert struct.unpack("<IIQQ36xI", mark)[:4] == (0x53424D48, 1, SIZE, ADDRESS)
    assert sum(struct.unpack("<16I", mark)) % (1 << 32) == 0
    assert ring_size(code, mark) == 2 * MIB


@given(size=st.integers(1, 1 << 18).map(lambda units: units * 4096), address=st.integers(0, 2**52))
@settings(max_examples=200, deadline=None)
def test_both_hands_write_one_mark_and_the_largest_ring_fits(
    code: ctypes.CDLL, size: int, address: int
) -> None:
    mark = driver_mark(code, size, address)
    simulated = ctypes.create_string_buffer(b"\xff" * 64, 64)
    code.hmb_slice_make_mark(simulated, size, address)
    assert simulated.raw == mark
    ring = ring_size(code, mark, size, address)
    assert ring & (ring - 1) == 0
    assert 64 + ring + 64 <= size
    assert 64 + 2 * ring + 64 > size or ring == 1 << 31


@pytest.mark.parametrize("bit", range(0, 512, 7))
def test_a_damaged_mark_is_no_mark(code: ctypes.CDLL, bit: int) -> None:
    mark = bytearray(driver_mark(code))
    mark[bit // 8] ^= 1 << bit % 8
    assert ring_size(code, bytes(mark)) == 0


def test_a_stale_copy_speaks_of_another_slice(code: ctypes.CDLL) -> None:
    mark = driver_mark(code)
    assert ring_size(code, mark, address=ADDRESS + 4096) == 0
    assert ring_size(code, mark, size=4 * MIB) == 0


@pytest.mark.parametrize("mark", [bytes(64), b"\xff" * 64])
def test_memory_of_a_host_without_slices(code: ctypes.CDLL, mark: bytes) -> None:
    assert ring_size(code, mark) == 0


@pytest.mark.parametrize("size", [0, 63, 64, 128, 159])
def test_a_descriptor_too_small_for_any_ring(code: ctypes.CDLL, size: int) -> None:
    assert ring_size(code, driver_mark(code, size), size) == 0


@pytest.mark.parametrize("compiler", ["g++", "clang++-14"])
def test_the_uapi_header_is_clean_c_plus_plus(compiler: str, tmp_path: Path) -> None:
    require(shutil.which(compiler), f"no {compiler}")
    source = tmp_path / "user.cc"
    source.write_text(
        "#include <linux/hmb_trace.h>\n"
        "unsigned long a = NVME_HMB_TRACE_GET_INFO, b = NVME_HMB_TRACE_ADVANCE_TAIL;\n"
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [compiler, *flags, f"-I{ROOT / 'include/uapi'}", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

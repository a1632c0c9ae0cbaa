# SPDX-License-Identifier: Apache-2.0
"""FNV-1a-64: known values, the fast variant against the byte loop, streaming (SPEC P1)."""

from __future__ import annotations

import mmap
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from cffi import FFI

from hmb_trace._core import ffi, lib
from hmb_trace.errors import UsageError
from hmb_trace.fnv import BASIS, fnv1a_64
from tests.conftest import native_build

# libhmbtrace/fnv/fnv.h: not part of the interface, for the choice is the library's
inside: Any = FFI()
inside.cdef("""
struct hmb_fnv_variant {
    const char *name;
    int (*supported)(void);
    uint64_t (*hash_blocks)(const uint8_t *data, uint64_t blocks, uint64_t state);
};
extern const struct hmb_fnv_variant hmb_fnv_variants[];
uint64_t hmb_fnv_by(const struct hmb_fnv_variant *variant, const void *data, uint64_t n,
                    uint64_t state);
""")
library = inside.dlopen(str(native_build("inside.so")))


def variants() -> dict[str, Any]:
    """What runs on this processor, by name."""
    found, index = {"bytes": inside.NULL}, 0
    while (one := library.hmb_fnv_variants[index]).name:
        if one.supported():
            found[inside.string(one.name).decode()] = inside.addressof(one)
        index += 1
    return found


VARIANTS = variants()


def by_bytes(data: bytes, state: int = BASIS) -> int:
    """The byte loop of the texts, in C."""
    return int(lib.hmb_fnv1a_64_plain(data, len(data), state))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_fnv_p1_published_values(text: bytes, expected: int) -> None:
    assert fnv1a_64(text) == expected
    assert by_bytes(text) == expected


def test_fnv_p1_python_byte_loop() -> None:
    data = random.Random(1).randbytes(9000)
    state = BASIS
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    assert fnv1a_64(data) == by_bytes(data) == state


def test_fnv_p1_every_length_around_blocks() -> None:
    data = random.Random(2).randbytes(3 * 4096 + 64)
    lengths = [n + d for n in (0, 1024, 4096, 8192, 12288) for d in range(-20, 21) if n + d >= 0]
    for length in lengths:
        assert fnv1a_64(data[:length]) == by_bytes(data[:length]), length


def test_fnv_p1_random_states_offsets_and_contents() -> None:
    dice = random.Random(3)
    data = memoryview(dice.randbytes(40_000))
    for _ in range(3000):
        start, size = dice.randrange(64), dice.randrange(20_000)
        state = dice.getrandbits(64)
        piece = data[start : start + size]
        assert fnv1a_64(piece, state) == by_bytes(bytes(piece), state)


@pytest.mark.parametrize("name", VARIANTS)
def test_fnv_p1_each_variant_random_states_offsets_and_chunks(name: str) -> None:
    dice = random.Random(5)
    data = memoryview(dice.randbytes(40_000))
    for _ in range(1000):
        start, size = dice.randrange(64), dice.randrange(20_000)
        piece, state = bytes(data[start : start + size]), dice.getrandbits(64)
        expected, cut = by_bytes(piece, state), dice.randrange(size + 1)
        whole = inside.from_buffer(data[start : start + size]) if size else inside.NULL
        state = library.hmb_fnv_by(VARIANTS[name], whole, cut, state)
        rest = whole + cut if size else whole
        assert library.hmb_fnv_by(VARIANTS[name], rest, size - cut, state) == expected


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F, 0x55])
def test_fnv_p1_each_variant_extreme_contents(name: str, fill: int) -> None:
    # the largest differences in one direction: the 32-bit sums must hold them
    data = bytes([fill]) * 20_000
    for state in (0, BASIS, 2**64 - 1, 0x80, 0xFF):
        found = library.hmb_fnv_by(VARIANTS[name], data, len(data), state)
        assert found == by_bytes(data, state)


def test_fnv_p1_streaming_in_random_pieces() -> None:
    dice = random.Random(4)
    data = dice.randbytes(1 << 20)
    state, at = None, 0
    while at < len(data):
        size = dice.choice([1, 7, 100, 1023, 1024, 4096, 5000, 70_000])
        state = fnv1a_64(data[at : at + size], state)
        at += size
    assert state == by_bytes(data)


def test_fnv_takes_what_holds_bytes() -> None:
    data = bytes(range(256)) * 20
    expected = by_bytes(data)
    assert fnv1a_64(bytearray(data)) == expected
    assert fnv1a_64(memoryview(data)) == expected
    assert fnv1a_64(np.frombuffer(data, "<u4")) == expected
    with mmap.mmap(-1, len(data)) as mapped:
        mapped.write(data)
        assert fnv1a_64(mapped) == expected


@pytest.mark.parametrize("state", [-1, 2**64])
def test_fnv_state_must_be_64_bits(state: int) -> None:
    with pytest.raises(UsageError, match="state"):
        fnv1a_64(b"x", state)


def test_fnv_releases_the_gil() -> None:
    data = bytes(64 << 20)
    ticks = 0
    done = threading.Event()

    def hash_it() -> None:
        lib.hmb_fnv1a_64_plain(ffi.from_buffer(data), len(data), BASIS)
        done.set()

    worker = threading.Thread(target=hash_it)
    worker.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    worker.join()
    assert ticks > 3

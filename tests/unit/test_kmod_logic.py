# SPDX-License-Identifier: Apache-2.0
"""The module's pure functions, compiled in user space: geometry, watch, advance, carve."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
MAGIC = 0x54424D48
MIB = 1 << 20

SOURCE = """
#include "hmb_logic.h"
#include "nvme-pci/hmb_carve.h"
void geometry(const struct hmb_snapshot *s, __u64 size, struct nvme_hmb_trace_info *info)
{ hmb_geometry(s, size, info); }
__u32 fill(const struct hmb_snapshot *s, __u64 size) { return hmb_fill(s, size); }
void observe(struct hmb_watch *w, const struct hmb_snapshot *s, __u64 size)
{ hmb_observe(w, s, size); }
int advance(const struct hmb_snapshot *s, const struct nvme_hmb_trace_advance *a)
{ return hmb_judge_advance(s, a); }
__s64 slice(__u64 ring, const struct hmb_carve_limits *l) { return hmb_carve_slice(ring, l); }
__u32 entries(__u64 slice, __u64 chunk, const struct hmb_carve_limits *l)
{ return hmb_carve_entries(slice, chunk, l); }
__u64 next_(__u64 slice, __u64 chunk, __u64 done, const struct hmb_carve_limits *l)
{ return hmb_carve_next(slice, chunk, done, l); }
int list_has(const char *list, const char *entry) { return hmb_list_has(list, entry); }
void mark_words(__u64 slice, __u64 addr, __u32 *words) { hmb_mark_words(slice, addr, words); }
int ready(const struct hmb_snapshot *s, __u64 size) { return hmb_is_ready(s, size); }
"""


class Snapshot(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("magic", "version", "ring_size")),
        *((name, ctypes.c_uint32) for name in ("record_area_off", "flags")),
        *((name, ctypes.c_uint64) for name in ("head", "tail")),
    )


class Info(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("size", "flags", "abi_version", "ring_size")),
        *((name, ctypes.c_uint32) for name in ("record_area_off", "total_mmap_size")),
        ("generation", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 4),
    )


class Watch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("head", "overflows", "generation")),
        ("ring_size", ctypes.c_uint32),
        *((name, ctypes.c_uint8) for name in ("seen", "present", "overflowed")),
    )


class Advance(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("size", "flags")),
        *((name, ctypes.c_uint64) for name in ("expected", "new_tail", "reserved")),
    )


class Limits(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("total", "page", "contiguous", "smallest")),
        ("descriptors", ctypes.c_uint32),
    )


@pytest.fixture(scope="module")
def logic(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("gcc")
    assert compiler, "apt-get install gcc"
    folder = tmp_path_factory.mktemp("logic")
    (folder / "logic.c").write_text(SOURCE)
    includes = [f"-I{ROOT / 'kmod_shim'}", f"-I{ROOT / 'include/uapi'}"]
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    flags += ["-fno-sanitize-recover=undefined", "-static-libubsan"]
    subprocess.run(
        [compiler, *flags, *includes, folder / "logic.c", "-o", folder / "logic.so"], check=True
    )
    library = ctypes.CDLL(str(folder / "logic.so"))
    library.slice.restype = ctypes.c_int64
    library.next_.restype = ctypes.c_uint64
    for name, types in {
        "geometry": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p),
        "fill": (ctypes.c_void_p, ctypes.c_uint64),
        "observe": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
        "slice": (ctypes.c_uint64, ctypes.c_void_p),
        "entries": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
        "list_has": (ctypes.c_char_p, ctypes.c_char_p),
        "mark_words": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
        "ready": (ctypes.c_void_p, ctypes.c_uint64),
        "next_": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
    }.items():
        getattr(library, name).argtypes = types
    return library


def snapshot(**changes: int) -> Snapshot:
    fields = {"magic": MAGIC, "version": 1, "ring_size": 4096, "record_area_off": 64, **changes}
    return Snapshot(**fields)


def geometry(logic: ctypes.CDLL, seen: Snapshot, size: int) -> tuple[int, ...]:
    info = Info()
    logic.geometry(ctypes.byref(seen), size, ctypes.byref(info))
    return (info.abi_version, info.ring_size, info.record_area_off, info.total_mmap_size)


# ---- geometry (GET_INFO) ----


def test_geometry_is_the_header_that_fits(logic: ctypes.CDLL) -> None:
    assert geometry(logic, snapshot(), 4160) == (1, 4096, 64, 4160)
    assert geometry(logic, snapshot(version=9), 8192)[0] == 9
    assert geometry(logic, snapshot(ring_size=1 << 31), 1 << 40)[3] == (1 << 31) + 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"magic": 0},
        {"version": 0},
        {"ring_size": 8192},
        {"ring_size": 4096 + 8},
        {"ring_size": 16},
        {"ring_size": 0},
        {"ring_size": 0xFFFFFFFF},
        {"record_area_off": 128},
    ],
)
def test_geometry_r1_of_a_bad_header_is_the_largest_ring(
    logic: ctypes.CDLL, wrong: dict[str, int]
) -> None:
    assert geometry(logic, snapshot(**wrong), 8192) == (1, 4096, 64, 4160)


@given(size=st.integers(96, 1 << 40), fields=st.tuples(*[st.integers(0, 2**32 - 1)] * 4))
@settings(max_examples=300, deadline=None)
def test_geometry_never_promises_more_than_the_region(
    logic: ctypes.CDLL, size: int, fields: tuple[int, int, int, int]
) -> None:
    _, ring, offset, total = geometry(logic, Snapshot(*fields), size)
    assert offset + ring == total <= size
    assert ring & (ring - 1) == 0


def test_fill_r2(logic: ctypes.CDLL) -> None:
    def fill(head: int, tail: int, **changes: int) -> int:
        return int(logic.fill(ctypes.byref(snapshot(head=head, tail=tail, **changes)), 8192))

    assert fill(64, 0) == 64
    assert fill(8, 2**64 - 8) == 16
    assert fill(0, 8) == 4096  # invalid cursors: no number to trust, but not nothing
    assert fill(64, 0, magic=1) == 0


def test_only_a_valid_ring_is_ready(logic: ctypes.CDLL) -> None:
    def ready(**changes: int) -> bool:
        return bool(logic.ready(ctypes.byref(snapshot(**changes)), 8192))

    assert ready(head=64)
    assert not ready(head=64, tail=64)
    assert not ready(head=64, magic=0)
    assert not ready(head=64, ring_size=8192)


# ---- watch (generation, overflow count) ----


def test_watch_r5_r6_counts_overflow_edges_and_new_rings(logic: ctypes.CDLL) -> None:
    watch = Watch()

    def see(**changes: int) -> tuple[int, int]:
        logic.observe(ctypes.byref(watch), ctypes.byref(snapshot(**changes)), 8192)
        return int(watch.generation), int(watch.overflows)

    assert see(magic=0) == (0, 0)
    assert see(head=2**64 - 64) == (0, 0)  # the first ring is no re-initialisation
    assert see(head=64) == (0, 0)  # a cursor that wraps goes on
    assert see(head=64, flags=1) == (0, 1)
    assert see(head=128, flags=3) == (0, 1)
    assert see(head=128) == (0, 1)
    assert see(head=128, flags=1) == (0, 2)
    assert see(head=0, flags=1) == (1, 3)
    assert see(head=0, ring_size=2048) == (2, 3)
    assert see(magic=0) == (2, 3)
    assert see(head=8, ring_size=2048) == (3, 3)


# ---- ADVANCE_TAIL ----


@pytest.mark.parametrize(
    ("head", "tail", "expected", "new", "verdict"),
    [
        (128, 0, 0, 128, 0),
        (128, 0, 0, 0, 0),
        (128, 8, 0, 64, 1),
        (128, 0, 0, 136, 2),
        (128, 0, 0, 4, 2),
        (64, 2**64 - 64, 2**64 - 64, 0, 0),
        (64, 2**64 - 64, 2**64 - 64, 72, 2),
        (5000 * 8, 0, 0, 4999 * 8, 0),  # R7: an overrun tail moves on all the same
        (4096, 2048, 2048, 1024, 2),  # a step back
        (4096, 2048, 2048, 4096 - (1 << 40), 2),  # the ring would look full for ever
        (5000 * 8, 0, 0, 8, 2),  # R7: not to where the ring is still overrun
    ],
)
def test_advance_r2(
    *, logic: ctypes.CDLL, head: int, tail: int, expected: int, new: int, verdict: int
) -> None:
    seen, argument = snapshot(head=head, tail=tail), Advance(32, 0, expected, new)
    assert logic.advance(ctypes.byref(seen), ctypes.byref(argument)) == verdict


# ---- carving a slice out of the HMB ----


def limits(**changes: int) -> Limits:
    fields = {"total": 64 * MIB, "page": 4096, "contiguous": 4 * MIB, "smallest": 8192}
    return Limits(**{**fields, "descriptors": 0, **changes})


def carve(logic: ctypes.CDLL, ring: int, **changes: int) -> int:
    return int(logic.slice(ring, ctypes.byref(limits(**changes))))


def test_slice_holds_header_and_ring_in_whole_pages(logic: ctypes.CDLL) -> None:
    assert carve(logic, 2 * MIB) == 2 * MIB + 4096
    assert carve(logic, 4096, page=64, smallest=0) == 4096 + 64 + 64
    assert carve(logic, 4096) == 8192
    assert carve(logic, 4096, page=65536) == 65536
    assert carve(logic, 65536, smallest=MIB) == MIB


@pytest.mark.parametrize(
    ("ring", "changes", "error"),
    [
        (0, {}, -22),
        (3 * MIB, {}, -22),
        (2048, {}, -22),
        (1 << 31, {}, -22),
        (4 * MIB, {}, -7),  # header + ring is more than one contiguous chunk
        (2 * MIB, {"total": 4 * MIB}, -28),
        (2 * MIB, {"descriptors": 1}, -31),
        (65536, {"total": 0}, -28),
    ],
)
def test_slice_that_does_not_fit(
    logic: ctypes.CDLL, ring: int, changes: dict[str, int], error: int
) -> None:
    assert carve(logic, ring, **changes) == error


def lay_out(logic: ctypes.CDLL, piece: int, chunk: int, limit: Limits) -> list[int]:
    """The descriptors as the patched driver allocates them."""
    most = logic.entries(piece, chunk, ctypes.byref(limit))
    sizes: list[int] = []
    done = 0
    while done < limit.total and len(sizes) < most:
        size = int(logic.next_(piece, chunk, done, ctypes.byref(limit)))
        if not size:
            break
        sizes.append(size)
        done += size
    return sizes


@given(
    ring=st.sampled_from([0, *(4096 << n for n in range(10))]),
    total=st.integers(1, 16384).map(lambda pages: pages * 4096),
    chunk=st.sampled_from([65536 << n for n in range(7)]),
    smallest=st.sampled_from([0, 4096, 8192, MIB]),
    descriptors=st.integers(0, 300),
)
@settings(max_examples=300, deadline=None)
def test_layout_covers_the_buffer_and_puts_the_slice_first(
    *, logic: ctypes.CDLL, ring: int, total: int, chunk: int, smallest: int, descriptors: int
) -> None:
    limit = limits(total=total, smallest=smallest, descriptors=descriptors)
    piece = max(0, int(logic.slice(ring, ctypes.byref(limit))))
    sizes = lay_out(logic, piece, chunk, limit)
    assert sum(sizes) <= total
    assert all(size % 4096 == 0 for size in sizes)
    assert not descriptors or len(sizes) <= descriptors
    if piece:
        assert sizes[0] == piece >= ring + 128
        assert len(sizes) > 1
        assert all(size >= min(smallest, chunk) for size in sizes[1:])
        assert descriptors or total - sum(sizes) < max(smallest, 1)
    elif not descriptors:  # without a slice: what the driver did before
        assert sum(sizes) == total
        assert len(sizes) == -(-total // chunk)


@pytest.mark.parametrize(
    ("drives", "entry", "has"),
    [
        (b"0000:01:00.0", b"0000:01:00.0", True),
        (b"0000:01:00.0,S4EW", b"S4EW", True),
        (b"S4EW", b"S4EW      ", True),  # serial numbers come padded
        (b"S4EWX", b"S4EW", False),
        (b"S4E", b"S4EW", False),
        (b"xS4EW,S4", b"S4EW", False),
        (b"", b"S4EW", False),
        (b",,", b"", False),
        (b"", b"   ", False),
        (b"a,b", b"b", True),
    ],
)
def test_drives_are_named_one_by_one(
    logic: ctypes.CDLL, drives: bytes, entry: bytes, has: bool
) -> None:
    assert bool(logic.list_has(drives, entry)) is has

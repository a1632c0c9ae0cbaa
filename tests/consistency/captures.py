# SPDX-License-Identifier: Apache-2.0
"""The captures that every command must say the same about, and what that is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from hmb_trace import testing
from hmb_trace.dumps import rejects
from hmb_trace.dumps import sidecar as sidecars
from hmb_trace.dumps.sidecar import (
    ClockPair,
    ClockStep,
    Device,
    Episode,
    Gap,
    IndexEntry,
    Note,
    Reason,
    RejectsSummary,
    Sidecar,
    sidecar_path,
)
from hmb_trace.dumps.walker import BreakKind, Walker
from hmb_trace.dumps.zstd import compress_seekable

HOST = 1_780_000_000_000_000_000  # ns since 1970, when firmware's clock stood at 0
STEP = 1000  # ns between records
START = "20260101T000000Z"


@dataclass(frozen=True)
class Truth:
    """What must be said of a capture.

    paths: what a command is given; empty: the folder itself.
    kinds: reasons that must be among those given.
    """

    verdict: str
    lost: int = 0
    kinds: frozenset[str] = frozenset()
    paths: tuple[Path, ...] = ()
    epochs: int = 1
    steps: int = 0
    glitches: int = 0
    torn: bool = False  # reading it ends with exit code 65


@dataclass
class Set:
    """Writes the segments of a dump set as the daemon would."""

    folder: Path
    label: str = "dev"
    number: int = 0
    last: tuple[int, int] | None = None  # epoch and last seq
    paths: list[Path] = field(default_factory=list)

    def add(
        self,
        seqs: Sequence[int],
        *,
        ts: Callable[[int], int] = lambda seq: (seq + 1) * STEP,
        epoch: int = 0,
        cause: str = "rotate-time",
        told: bool = True,
        payload: bytes = b"payload!",
        markers: dict[int, bytes] | None = None,
        gap_kind: str = "ring-overflow",
        offset_ns: int = 0,
        **more: Any,
    ) -> Path:
        """Append a segment; told: its sidecar lists the gaps that can be seen."""
        self.number += 1
        path = self.folder / f"{self.label}-{self.number:06d}-{START}.bin"
        data = b"".join(
            (markers or {}).get(at, b"")
            + testing.record(seq, payload, ts_ns=ts(seq), opcode=seq % 3)
            for at, seq in enumerate(seqs)
        )
        path.write_bytes(data)
        side = self._describe(path, data, epoch, cause, offset_ns)
        if told:
            self._tell(side, data, epoch, gap_kind)
        for name, value in more.items():
            setattr(side, name, value)
        sidecar_path(path).write_bytes(side.encode())
        self.last = (epoch, seqs[-1]) if len(seqs) else self.last
        self.paths.append(path)
        return path

    def _describe(self, path: Path, data: bytes, epoch: int, cause: str, offset_ns: int) -> Sidecar:
        walker = Walker()
        walker.walk(data)
        some = bool(walker.records)
        clock = [
            ClockPair(ts_ns=ts, host_ns=HOST + ts + offset_ns, error_ns=100)
            for ts in (walker.first_ts_ns, walker.last_ts_ns)
        ]
        return Sidecar(
            segment=path.name,
            number=self.number,
            label=self.label,
            device=Device(path="/dev/x"),
            ring_size=1 << 20,
            epoch=epoch,
            started_ns=HOST,
            sealed_ns=HOST,
            cause=cause,
            bytes=len(data),
            records=walker.records,
            wrap_markers=walker.wrap_markers,
            first_seq=walker.first_seq if some else None,
            last_seq=walker.last_record_seq if some else None,
            first_ts_ns=walker.first_ts_ns if some else None,
            last_ts_ns=walker.last_ts_ns if some else None,
            reasons=[],
            clock_steps=[],
            clock=clock if some else [],
            index=[IndexEntry(offset=len(data), seq=walker.last_seq, ts_ns=walker.last_ts_ns)]
            if some
            else [],
            xxh3=xxhash.xxh3_64_hexdigest(data),
        )

    def _tell(self, side: Sidecar, data: bytes, epoch: int, kind: str) -> None:
        walker = Walker(keep_breaks=True)
        if self.last is not None and self.last[0] == epoch:
            walker.c.have_seq, walker.c.last_seq = 1, self.last[1]
        walker.walk(data)
        for found in walker.breaks or ():
            self._tell_break(side, found, kind)
        side.gaps, side.lost = walker.gaps, walker.lost
        side.duplicates, side.sequence_resets = walker.duplicates, walker.sequence_resets

    @staticmethod
    def _tell_break(side: Sidecar, found: Any, kind: str) -> None:
        if found.kind is BreakKind.GAP:
            gap = Gap(
                offset=found.offset,
                seq_before=found.seq_before,
                seq_after=found.seq_after,
                lost=found.lost,
                ts_ns=found.ts_ns,
                host_ns=HOST,
                cause=kind,
            )
            side.gap_list = [*side.gap_list, gap]
            return
        duplicate = found.kind is BreakKind.DUPLICATE
        detail: dict[str, int | str] = (
            {"seq": found.seq_after}
            if duplicate
            else {"seq_before": found.seq_before, "seq_after": found.seq_after}
        )
        note = Note(
            id="duplicate" if duplicate else "sequence-reset",
            host_ns=HOST,
            offset=found.offset,
            detail=detail,
        )
        side.events = [*side.events, note]

    def reject(self, path: Path, records: int) -> RejectsSummary:
        """A rejects file beside a segment."""
        data = b"".join(testing.record(900 + i, flags=0x80) for i in range(records))
        name = path.name.removesuffix(".bin") + ".rejects"
        path.with_name(name).write_bytes(rejects.pack(3, 0, 4096, HOST, data))
        return RejectsSummary(file=name, entries=1, records=records, bytes=len(data))


Maker = Callable[[Path], Truth]
CAPTURES: dict[str, Maker] = {}


def capture(make: Maker) -> Maker:
    """Puts a maker into the table."""
    CAPTURES[make.__name__] = make
    return make


def three(folder: Path, **more: Any) -> Set:
    """0..29 in three segments of ten."""
    made = Set(folder)
    for begin in (0, 10, 20):
        made.add(range(begin, begin + 10), **more)
    return made


def without_sidecars(folder: Path) -> None:
    for path in folder.glob("*.json"):
        path.unlink()


def known(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


# ---- nothing missing


@capture
def whole(folder: Path) -> Truth:
    three(folder)
    return Truth("whole")


@capture
def whole_one_file(folder: Path) -> Truth:
    path = Set(folder).add(range(20), cause="once")
    return Truth("whole", paths=(path,))


@capture
def seq_wraps(folder: Path) -> Truth:
    made = Set(folder)
    seqs = [(2**32 - 15 + i) % 2**32 for i in range(30)]
    for begin in (0, 10, 20):
        made.add(seqs[begin : begin + 10], ts=lambda seq: ((seq + 15) % 2**32 + 1) * STEP)
    return Truth("whole")


@capture
def retention_removed_the_first(folder: Path) -> Truth:
    made = three(folder)
    made.paths[0].unlink()
    sidecar_path(made.paths[0]).unlink()
    return Truth("whole")


@capture
def retention_left_a_sidecar(folder: Path) -> Truth:
    three(folder).paths[0].unlink()
    return Truth("whole")


@capture
def empty_segment_between(folder: Path) -> Truth:
    made = Set(folder)
    for seqs in (range(10), range(0), range(10, 20)):
        made.add(seqs)
    return Truth("whole")


@capture
def given_in_any_order(folder: Path) -> Truth:
    paths = three(folder).paths
    return Truth("whole", paths=(paths[2], paths[0], paths[1]))


@capture
def renamed_with_sidecars(folder: Path) -> Truth:
    for path, name in zip(three(folder).paths, ("b.bin", "c.bin", "a.bin"), strict=True):
        sidecar_path(path).rename(sidecar_path(folder / name))
        path.rename(folder / name)
    return Truth("whole")


@capture
def two_labels(folder: Path) -> Truth:
    three(folder)
    Set(folder, "other").add(range(500, 520), cause="once")
    return Truth("whole", epochs=2)


@capture
def compressed(folder: Path) -> Truth:
    for path in three(folder).paths:
        compress(path)
    return Truth("whole")


@capture
def compressed_and_not(folder: Path) -> Truth:
    paths = three(folder).paths
    original = paths[1].read_bytes()
    compress(paths[1])
    paths[1].write_bytes(original)
    return Truth("whole")


@capture
def two_epochs(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(100, 120), cause="reinitialised")
    made.add(range(15), epoch=1, offset_ns=10**9)
    return Truth("whole", epochs=2)


@capture
def two_runs_of_the_daemon(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), cause="stop")
    made.add(range(10, 20), cause="stop")
    return Truth("whole")


@capture
def a_run_after_a_reset(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(50, 60), cause="stop")
    made.last = None
    made.add(range(10), cause="stop", offset_ns=10**9)
    return Truth("whole", epochs=2)


@capture
def duplicates_and_resets(folder: Path) -> Truth:
    made = Set(folder)
    made.add([0, 1, 1, 2, 3, 1000, 7, 8], ts=lambda seq: 5000)
    return Truth("lossy", 996, known("ring-overflow"))


@capture
def one_seq_damaged(folder: Path) -> Truth:
    made = Set(folder)
    made.add([0, 1, 2, 77, 4, 5], told=False, ts=lambda seq: 5000, glitches=1)
    return Truth("whole", glitches=1)


@capture
def markers_with_seqs(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(5), markers={3: testing.marker(3)})
    made.add([6, 7, 8], told=False, markers={0: testing.marker(5)})
    return Truth("whole")


@capture
def clock_steps_forward(folder: Path) -> Truth:
    made = Set(folder)
    step = ClockStep(offset=5 * 40, ts_before=5 * STEP, ts_after=10**12, step_ns=10**12)
    made.add(
        range(10),
        ts=lambda seq: (seq + 1) * STEP if seq < 5 else 10**12 + seq,
        clock_steps=[step],
        clock=[],
    )
    return Truth("whole", steps=1)


@capture
def clock_steps_back(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), ts=lambda seq: 10**10 + seq if seq < 5 else seq, clock_steps=None, clock=[])
    return Truth("whole", steps=1)


@capture
def last_segments_removed_with_their_sidecars(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), cause="rotate-size")  # which the daemon does where more follows
    return Truth("incomplete")


@capture
def clock_goes_below_zero(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), ts=lambda seq: 10**9 + seq if seq < 5 else 2**64 - 10**10 + seq, clock=[])
    return Truth("whole", steps=1)


@capture
def clock_steps_back_in_a_sidecar_that_saw_none(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), ts=lambda seq: 10**10 + seq if seq < 5 else seq, clock_steps=[], clock=[])
    return Truth("whole", steps=1)


@capture
def clock_steps_between_files(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10))
    made.add(range(10, 20), ts=lambda seq: 10**12 + seq * STEP, offset_ns=-(10**12))
    return Truth("whole", steps=1)


@capture
def foreign_dump_beside_the_set(folder: Path) -> Truth:
    three(folder)
    (folder / "part.bin").write_bytes(testing.record(7))
    return Truth("whole")


@capture
def stray_file_beside_the_set(folder: Path) -> Truth:
    three(folder)
    (folder / "notes.bin").write_bytes(b"hello world, no dump at all")
    return Truth("whole")


# ---- rejects


@capture
def rejects_only(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 4, 5], told=False)
    retell(path, rejects=made.reject(path, 2))
    return Truth("damaged", 0, known("rejects"))


@capture
def one_seq_damaged_amid_rejects(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 77, 4, 5], told=False, ts=lambda seq: 5000, glitches=1)
    retell(path, rejects=made.reject(path, 1))
    return Truth("damaged", 0, known("rejects"), glitches=1)


@capture
def rejects_at_a_seam(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add(range(5))
    made.add(range(7, 12), told=False)
    retell(path, rejects=made.reject(path, 2))
    return Truth("damaged", 0, known("rejects"))


@capture
def rejects_cannot_cover(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 12, 13], told=False)
    retell(path, rejects=made.reject(path, 2))
    return Truth("lossy", 8, known("rejects", "unexplained"))


@capture
def rejects_and_a_gap(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 12, 13], told=False)
    at = 2 * 40
    gap = Gap(offset=at, seq_before=1, seq_after=12, lost=7, rejected=3, cause="ring-overflow")
    retell(path, rejects=made.reject(path, 3), gap_list=[gap], gaps=1, lost=7)
    return Truth("lossy", 7, known("rejects", "ring-overflow"))


@capture
def rejects_file_gone(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 4, 5], told=False)
    gap = Gap(offset=80, seq_before=1, seq_after=4, lost=0, rejected=2, cause="rejects")
    retell(path, rejects=made.reject(path, 2), gap_list=[gap])
    path.with_suffix(".rejects").unlink()
    return Truth("lossy", 2, known("rejects"))


# ---- lost, and it is known how many


def _gap_of(kind: str) -> Maker:
    def make(folder: Path) -> Truth:
        made = Set(folder)
        made.add(range(10))
        made.add([*range(10, 15), *range(25, 30)], gap_kind=kind)
        return Truth("lossy", 10, known(kind))

    make.__name__ = f"gap_{kind.replace('-', '_')}"
    return make


for _kind in ("ring-overflow", "firmware-skipped", "daemon-down", "host-died", "spool-lost"):
    capture(_gap_of(_kind))


@capture
def gap_between_files(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10))
    made.add(range(15, 30))
    return Truth("lossy", 5, known("ring-overflow"))


@capture
def gap_of_an_older_daemon(folder: Path) -> Truth:
    made = Set(folder)
    made.add([0, 1, 5, 6], gap_kind="overflow", reasons=None, clock_steps=None)
    return Truth("lossy", 3, known("ring-overflow"))


@capture
def gap_that_no_sidecar_tells(folder: Path) -> Truth:
    Set(folder).add([0, 1, 5, 6], told=False)
    return Truth("lossy", 3, known("unexplained"))


@capture
def gap_while_no_daemon_ran(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10), cause="stop")
    made.last = None
    made.add(range(25, 30), cause="stop")
    return Truth("lossy", 15, known("daemon-down"))


@capture
def segment_missing(folder: Path) -> Truth:
    path = three(folder).paths[1]
    path.unlink()
    sidecar_path(path).unlink()
    return Truth("lossy", 10, known("missing-segment"))


@capture
def segment_missing_without_sidecars(folder: Path) -> Truth:
    three(folder).paths[1].unlink()
    without_sidecars(folder)
    return Truth("lossy", 10, known("missing-segment", "no-sidecar"))


@capture
def segment_missing_sidecar_left(folder: Path) -> Truth:
    three(folder).paths[1].unlink()
    return Truth("lossy", 10, known("missing-segment"))


@capture
def last_segment_missing_sidecar_left(folder: Path) -> Truth:
    three(folder).paths[2].unlink()
    return Truth("lossy", 10, known("missing-segment"))


@capture
def segment_cut_between_records(folder: Path) -> Truth:
    path = three(folder).paths[1]
    path.write_bytes(path.read_bytes()[: 4 * 40])
    return Truth("lossy", 6, known("cut-segment"))


@capture
def segment_cut_in_a_record(folder: Path) -> Truth:
    path = three(folder).paths[2]
    path.write_bytes(path.read_bytes()[: 4 * 40 + 11])
    return Truth("lossy", 6, known("cut-segment"), torn=True)


@capture
def segment_cut_to_nothing(folder: Path) -> Truth:
    three(folder).paths[1].write_bytes(b"")
    return Truth("lossy", 10, known("cut-segment"))


@capture
def segment_cut_after_a_gap(folder: Path) -> Truth:
    made = Set(folder)
    path = made.add([0, 1, 5, 6, 7, 10, 11])
    made.add(range(12, 20))
    path.write_bytes(path.read_bytes()[: 4 * 40])
    return Truth("lossy", 3 + 3 + 2, known("cut-segment", "ring-overflow"))


@capture
def first_record_is_none(folder: Path) -> Truth:
    path = three(folder).paths[1]
    path.write_bytes(b"\xff" * 32 + path.read_bytes()[32:])
    return Truth("lossy", 10, known("cut-segment"), torn=True)


@capture
def compressed_and_torn(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10))
    path = made.add(range(10, 20))
    packed = compress(path)
    packed.write_bytes(packed.read_bytes()[:-60])
    return Truth("lossy", 10, known("cut-segment"), torn=True)


@capture
def sets_mixed(folder: Path) -> Truth:
    paths = three(folder).paths
    other = Set(folder, "other")
    other.add(range(500, 510))
    return Truth("lossy", 10, known("missing-segment"), (paths[2], *other.paths, paths[0]), 3)


@capture
def bare_gap(folder: Path) -> Truth:
    path = folder / "x.bin"
    path.write_bytes(b"".join(testing.record(seq) for seq in (1, 2, 6)))
    return Truth("lossy", 3, known("unexplained", "no-sidecar"), (path,))


@capture
def bare_files_with_a_hole(folder: Path) -> Truth:
    paths = bare(folder, range(10), range(14, 20))
    return Truth("lossy", 4, known("unexplained"), (paths[1], paths[0]))


# ---- the extent cannot be known


@capture
def overflow_without_a_gap(folder: Path) -> Truth:
    episode = Episode(host_ns=HOST, offset=80, last_seq_before=1)
    Set(folder).add(range(9), reasons=None, episodes=[episode], complete=False)
    return Truth("incomplete", 0, known("overflow-unknown"))


@capture
def loss_before_attach(folder: Path) -> Truth:
    note = Note(id="loss-before-attach", host_ns=HOST, offset=0)
    Set(folder).add([0, 1, 5], reasons=None, events=[note], complete=False, gaps=1, lost=3)
    return Truth("incomplete", 3, known("before-attach", "ring-overflow"))


def _reason_of(kind: str, count: int | None) -> Maker:
    def make(folder: Path) -> Truth:
        made = Set(folder)
        made.add(range(10))
        reason = Reason(kind=kind, count=count, offset=40, host_ns=HOST, text=f"because of {kind}")
        made.add(range(10, 20), reasons=[reason], complete=count is not None)
        return Truth("incomplete" if count is None else "lossy", count or 0, known(kind))

    make.__name__ = f"reason_{kind.replace('-', '_')}_{count}"
    return make


for _kind in (
    *("before-attach", "overflow-unknown", "daemon-down", "host-died", "segment-vanished"),
    *("spool-lost", "sync-failed", "disk-full-deleted"),
):
    capture(_reason_of(_kind, None))
capture(_reason_of("disk-full-deleted", 17))
capture(_reason_of("daemon-down", 4))


@capture
def host_died_of_an_older_daemon(folder: Path) -> Truth:
    Set(folder).add(range(10), cause="host-died", complete=False, reasons=None)
    return Truth("incomplete", 0, known("host-died"))


@capture
def not_complete_and_nothing_says_why(folder: Path) -> Truth:
    Set(folder).add(range(10), complete=False, reasons=None)
    return Truth("incomplete", 0, known("unexplained"))


@capture
def bare_torn(folder: Path) -> Truth:
    path = folder / "x.bin"
    path.write_bytes(b"".join(testing.record(seq) for seq in range(5))[:-3])
    return Truth("incomplete", 0, known("cut-segment"), (path,), torn=True)


@capture
def segment_missing_between_epochs(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(100, 120))
    gone = made.add(range(120, 130))
    made.add(range(15), epoch=1)
    gone.unlink()
    sidecar_path(gone).unlink()
    return Truth("incomplete", 0, known("missing-segment"), epochs=2)


# ---- nobody can say more


@capture
def bare_file(folder: Path) -> Truth:
    return Truth("unverified", paths=tuple(bare(folder, range(10))), kinds=known("no-sidecar"))


@capture
def bare_set(folder: Path) -> Truth:
    three(folder)
    without_sidecars(folder)
    return Truth("unverified", kinds=known("no-sidecar"))


@capture
def bare_files_in_any_order(folder: Path) -> Truth:
    paths = bare(folder, range(10), range(10, 20), range(20, 30))
    return Truth("unverified", paths=(paths[1], paths[2], paths[0]))


@capture
def bare_files_without_an_order(folder: Path) -> Truth:
    paths = bare(folder, range(10), range(5, 15))
    return Truth("unverified", paths=tuple(paths), epochs=2)


@capture
def the_same_file_twice(folder: Path) -> Truth:
    path = bare(folder, range(10))[0]
    return Truth("unverified", paths=(path, path), epochs=2)


@capture
def one_sidecar_missing(folder: Path) -> Truth:
    sidecar_path(three(folder).paths[1]).unlink()
    return Truth("unverified", kinds=known("no-sidecar"))


@capture
def one_sidecar_damaged(folder: Path) -> Truth:
    sidecar_path(three(folder).paths[1]).write_bytes(b'{"format": "hmb-trace-sidecar", ')
    return Truth("unverified", kinds=known("bad-sidecar"))


@capture
def sidecars_exchanged(folder: Path) -> Truth:
    one, two, _ = three(folder).paths
    text = sidecar_path(one).read_bytes()
    sidecar_path(one).write_bytes(sidecar_path(two).read_bytes())
    sidecar_path(two).write_bytes(text)
    return Truth("unverified", kinds=known("bad-sidecar"))


@capture
def grew_after_sealing(folder: Path) -> Truth:
    path = Set(folder).add(range(10))
    with path.open("ab") as file:
        file.write(testing.record(10, ts_ns=11 * STEP))
    return Truth("unverified", kinds=known("bad-sidecar"))


@capture
def still_written(folder: Path) -> Truth:
    made = Set(folder)
    made.add(range(10))
    path = made.add(range(10, 20))
    sidecar_path(path).unlink()
    path.rename(path.with_name(path.name + ".part"))
    with path.with_name(path.name + ".part").open("ab") as file:
        file.write(bytes(8192))
    return Truth("unverified", kinds=known("no-sidecar"))


@capture
def renamed_segment_without_sidecars(folder: Path) -> Truth:
    paths = three(folder).paths
    without_sidecars(folder)
    paths[1].rename(folder / "third.bin")
    return Truth(
        "unverified", kinds=known("no-sidecar"), paths=(paths[0], folder / "third.bin", paths[2])
    )


# ---- helpers


def bare(folder: Path, *files: Sequence[int]) -> list[Path]:
    """Files without sidecars and without names of a set."""
    paths = []
    for number, seqs in enumerate(files):
        path = folder / f"{chr(97 + number)}.bin"
        path.write_bytes(b"".join(testing.record(s, ts_ns=(s + 1) * STEP) for s in seqs))
        paths.append(path)
    return paths


def compress(path: Path) -> Path:
    """As the daemon does; the sidecar stays."""
    packed = path.with_name(path.name + ".zst")
    with path.open("rb") as raw, packed.open("wb") as out:
        compress_seekable(raw, out, 3)
    path.unlink()
    return packed


def retell(path: Path, **more: Any) -> None:
    """Change keys of a sidecar."""
    side = sidecars.load(sidecar_path(path))
    for name, value in more.items():
        setattr(side, name, value)
    sidecar_path(path).write_bytes(side.encode())


def made(name: str, folder: Path) -> Truth:
    """One capture of the table, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return CAPTURES[name](folder)

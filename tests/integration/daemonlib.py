# SPDX-License-Identifier: Apache-2.0
"""What the daemon's integration tests share: programs in pairs, dump sets held against ledgers."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmb_daemon import cli

from hmb_trace._core import ffi, lib
from hmb_trace.commandline import run
from hmb_trace.dumps import sidecar
from tests.conftest import Programs, Running, native_build, wait_until

SPOOL = ("--spool-size", "16MiB")


@dataclass
class Done:
    """What a daemon said that ran in this process."""

    stderr: str


@dataclass
class Rig:
    """A place for one ring, its ledger, its spool and its dump set."""

    programs: Programs
    folder: Path
    shm: str = ""

    @property
    def ring(self) -> str:
        return f"shm:{self.shm}" if self.shm else str(self.folder / "ring.bin")

    @property
    def ring_file(self) -> Path:
        return Path("/dev/shm") / self.shm[1:] if self.shm else self.folder / "ring.bin"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def ledger_file(self) -> Path:
        return self.folder / "ledger.json"

    @property
    def ledger(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ledger_file.read_text())
        return found

    def _sim_args(self, args: tuple[object, ...]) -> list[object]:
        where = ["--shm", self.shm] if self.shm else ["--file", str(self.folder / "ring.bin")]
        return [*where, "--ledger", str(self.ledger_file), "--quiet", *args]

    def simulate(self, *args: object) -> Running:
        """Start the simulator; back as soon as the ring is there."""
        running = self.programs.start("hmb-firmware-sim", *self._sim_args(args))
        wait_until(
            lambda: self.ring_file.exists() or running.process.poll() is not None, "the ring"
        )
        return running

    def fill(self, *args: object) -> Running:
        """Run the simulator to its end; the ring stays."""
        keep = ["--keep"] if self.shm else []
        return self.programs.run(
            "hmb-firmware-sim", *self._sim_args((*keep, "--linger", "0", *args))
        )

    def _daemon_args(self, args: tuple[object, ...]) -> list[object]:
        spool_dir = self.folder / "spool"
        output = () if "--output" in args else ("--output-dir", self.out)
        return ["--device", self.ring, *output, "--spool-dir", spool_dir, *SPOOL, *args]

    def daemon(self, *args: object, env: dict[str, str] | None = None) -> Running:
        """Start the daemon; back at once."""
        if (env or {}).get("HMB_TRACE_TEST_KILL", "").startswith("collector-"):
            env = {**(env or {}), "LD_PRELOAD": str(native_build("testpoint.so"))}
        return self.programs.start("hmb-trace-daemon", *self._daemon_args(args), env=env)

    def drain(self, *args: object, code: int = 0) -> Done:
        """Run the daemon with --once in this process: most of a short run would be imports."""
        said = io.StringIO()
        command = [str(arg) for arg in self._daemon_args(("--once", *args))]
        with contextlib.redirect_stderr(said):
            found = run(cli.command, cli.PROGRAM, command)
        assert found == code, said.getvalue()
        return Done(said.getvalue())


def log(running: Running | Done) -> list[dict[str, Any]]:
    """The JSON lines of a daemon's log."""
    return [json.loads(line) for line in running.stderr.splitlines() if line.startswith("{")]


def logged(running: Running | Done, event: str) -> list[dict[str, Any]]:
    """Its lines of one event id."""
    return [line for line in log(running) if line["event"] == event]


def summary(running: Running | Done) -> dict[str, Any]:
    """Its closing line."""
    (line,) = logged(running, "summary")
    return line


def segments(folder: Path) -> list[Path]:
    """Sealed segments in order."""
    return sorted(folder.glob("*.bin"))


def sidecars(folder: Path) -> list[sidecar.Sidecar]:
    """The sidecars of the sealed segments, in order."""
    return [sidecar.load(sidecar.sidecar_path(path)) for path in segments(folder)]


def leftovers(folder: Path) -> list[str]:
    """Files of a dump set that a clean end must not leave."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name.endswith((".part", ".tmp")) or path.name.startswith(".")
    )


def walk(paths: list[Path]) -> Any:
    """All segments as one stream, walked by the library: a struct hmb_walk, and FNV of it all."""
    state = ffi.new("struct hmb_walk *")
    fnv = lib.hmb_fnv1a_64_basis()
    size = 0
    for path in paths:
        data = path.read_bytes()
        view = ffi.from_buffer(data)
        fnv = lib.hmb_fnv1a_64(view, len(data), fnv)
        lib.hmb_walk(state, view, len(data), ffi.NULL, ffi.NULL, ffi.NULL)
        size += len(data)
        assert state.offset == size, f"{path.name}: no whole records up to its end"
    return state, fnv


def assert_equals_ledger(folder: Path, ledger: dict[str, Any]) -> None:
    """The dump set is the ledger's record stream: bytes, counts, order; nothing left open."""
    assert leftovers(folder) == []
    found, fnv = walk(segments(folder))
    assert found.records == ledger["records"]
    assert found.offset == ledger["bytes"]
    assert f"{fnv:#018x}" == ledger["fnv64"]
    assert found.wrap_markers == ledger["markers"]
    assert (found.first_seq, found.last_record_seq) == (ledger["first_seq"], ledger["last_seq"])
    sides = sidecars(folder)
    for name in ("records", "bytes", "wrap_markers", "partial_markers", "straddled"):
        expected = ledger["markers"] if name == "wrap_markers" else ledger[name]
        assert sum(getattr(side, name) for side in sides) == expected, name

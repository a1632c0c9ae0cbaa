# SPDX-License-Identifier: Apache-2.0
"""A leftover spool whose ring does not go on: its records are written where they belong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hmb_daemon.collecting import choice
from hmb_daemon.settings import Settings
from hmb_daemon.spool import file as spool
from hmb_daemon.spool.causes import Cause
from hmb_daemon.spool.file import DamagedSpoolError, Manifest, Spool
from hmb_daemon.writing.event_log import Remark
from hmb_daemon.writing.output import Output
from hmb_daemon.writing.requests import Request
from hmb_daemon.writing.sidecar_builder import Origin, Origins
from hmb_daemon.writing.writer import Writer
from hmb_trace._core import ffi, lib
from hmb_trace.dumps.sidecar import Device
from hmb_trace.errors import InputOutputError


def shown(path: str) -> str:
    """A path for the sidecar, which is UTF-8; a file's name need not be."""
    return path.encode(errors="backslashreplace").decode()


def origins_of(manifest: Manifest, now: Origin) -> Origins:
    """What a leftover's sidecars say: `now`, but of earlier rings what the manifest knows."""
    return Origins(
        now,
        [
            (ring.last_epoch, Origin(manifest.prefix, ring.device, ring.ring_size, now.catalog))
            for ring in manifest.earlier
        ],
    )


def _output_of(manifest: Manifest, output: Output) -> Output:
    """Where the leftover's records belong.

    What a stream did not take any more goes to the stream of now, or becomes a segment.
    """
    if manifest.single == "-":
        return replace(output, prefix=manifest.prefix, single="")
    return replace(
        output,
        directory=Path(manifest.directory),
        prefix=manifest.prefix,
        single=manifest.single,
        pipe_fd=-1,
    )


def _close_books(leftover: Spool) -> None:
    """Its ring does not go on: a break that waits for the next record, or an episode, is told.

    A journal without room for it is left as it is: what it holds matters more.
    """
    collector = ffi.new("struct hmb_collector *")
    collector.spool = leftover.c[0]
    lib.hmb_collector_resume(collector)
    lib.hmb_collector_finish(collector)


def finish(
    leftover: Spool, output: Output, settings: Settings, log: Any, cause: Cause
) -> tuple[Any, list[Remark]]:
    """Write a leftover's records where they belong and remove it.

    Returns:
        Its last state, and what there was no segment to say in.

    Raises:
        InputOutputError: they cannot be written there; the spool stays.
    """
    manifest = leftover.manifest()
    if cause is not Cause.RESTART:
        _close_books(leftover)
    origin = Origin(
        label=manifest.prefix,
        device=Device(path=shown(manifest.device), identity=manifest.identity),
        ring_size=manifest.ring_size,
    )
    output = _output_of(manifest, output)
    if not output.is_set:
        settings = replace(settings, rotate_size=0, rotate_interval=0)
    writer = Writer(
        leftover, output, settings, origins_of(manifest, origin), log, has_successor=True
    )
    writer.request(Request(cause, last=True))
    # At a start nobody waits for a disk: say at once what is wrong with it.
    writer.retrier.give_up.set()
    try:
        writer.run_to_end()
    except Exception as error:
        leftover.close(remove=False)
        raise InputOutputError(
            f"spool {leftover.path} holds records for {output.directory} that cannot be "
            f"written there: {error}; make that possible, or move the spool away"
        ) from error
    state = ffi.new("struct hmb_state *", leftover.read_commit().state)
    leftover.close(remove=True)
    return state, writer.remarks


def finish_without_ring(
    settings: Settings,
    place: tuple[Path, bool],
    open_output: Callable[[], Output],
    log: Any,
) -> None:
    """The ring is not there: seal what an earlier daemon left of it, if anything."""
    directory, private = place
    if not directory.is_dir():
        return
    fd = spool.prepare_directory(directory, private=private)
    try:
        leftover = Spool.open_leftover(directory, spool.file_name(settings.device), fd)
        if leftover is not None and not leftover.collected:
            leftover.verify()
    except DamagedSpoolError as error:
        # Set aside by the start that has a sidecar to say so in.
        log.error("spool-damaged", error=str(error), action="kept until the ring is there")
        return
    if leftover is not None and leftover.collected:
        choice.end(lib.hmb_spool_live(leftover.c))  # it has nothing more to collect
    if leftover is not None:
        log.warning("spool-without-ring", spool=str(leftover.path))
        finish(leftover, open_output(), settings, log, Cause.HANGUP)

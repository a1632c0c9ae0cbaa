# SPDX-License-Identifier: Apache-2.0
"""A leftover spool that is damaged: set aside, never deleted, and its loss told in a sidecar.

NAME.spool becomes NAME.spool.damaged, and once the next spool's journal says that something
is missing, NAME.spool.damaged-<UTC>.  A daemon that is killed in between finds the first name
and tells it again: rather twice than never.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from hmb_daemon.spool import journal as events
from hmb_daemon.spool.causes import Note
from hmb_daemon.spool.file import DamagedSpoolError, Spool
from hmb_daemon.writing.event_log import Remark
from hmb_trace._core import lib
from hmb_trace.errors import from_os_error

_UNTOLD = ".damaged"
_MANIFEST = ".json"


def set_aside(directory: Path, name: str, reason: DamagedSpoolError, log: Any) -> None:
    """Move a damaged spool and its manifest out of the way.

    Raises:
        PermissionDeniedError, CannotCreateError: they cannot be renamed.
    """
    path = directory / name
    try:
        _settle(directory, name)  # one that a killed daemon had no time to tell of
        _rename(path, path.with_name(name + _UNTOLD))
    except OSError as error:
        raise from_os_error(error, f"cannot set {path} aside", creating=True) from error
    log.error(
        "spool-set-aside",
        spool=str(path),
        found=str(reason),
        kept_as=f"{name}{_UNTOLD}-<UTC>",
        action="records that only this spool held are missing: the next sidecar says complete: "
        "false; delete it when nobody wants to look at it any more",
    )


def is_untold(path: Path) -> bool:
    """Whether a spool of this path was set aside and no journal says so yet."""
    return path.with_name(path.name + _UNTOLD).exists()


def tell(opened: Spool, collector: Any, log: Any) -> None:
    """Let the journal say that what a spool set aside held is missing, if there is one.

    To be called once nothing can keep the capture from starting: a fresh spool that was never
    used is removed, with what its journal says.
    """
    if not is_untold(opened.path):
        return
    state = collector.state
    state.counters.unknown_losses += 1
    if not opened.append_journal(_entries(state), state):
        state.counters.unknown_losses -= 1
        return  # the next start has room
    with contextlib.suppress(OSError):  # told again by the next start
        kept = _settle(opened.path.parent, opened.path.name)
        log.warning("spool-set-aside", kept=str(kept))


def _entries(state: Any) -> bytes:
    now, tail = time.time_ns(), int(state.tail)
    loss = events.HEADER.pack(
        *(events.MAGIC, lib.HMB_EV_LOSS_UNKNOWN, 0, 0, state.epoch, state.pos, tail, now),
        *(0, 0, tail, tail, 0, 0, 0),
    )
    return loss + Remark(Note.SPOOL_SET_ASIDE, now).pack(int(state.pos))


def _settle(directory: Path, name: str) -> Path | None:
    """Give a spool set aside its last name."""
    untold = directory / (name + _UNTOLD)
    try:
        changed = untold.stat().st_mtime
    except FileNotFoundError:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(changed))
    target, more = directory / f"{untold.name}-{stamp}", 1
    while target.exists():
        more += 1
        target = directory / f"{untold.name}-{stamp}-{more}"
    _rename(untold, target)
    return target


def _rename(source: Path, target: Path) -> None:
    """Manifest first: a new spool of the old name would overwrite it."""
    with contextlib.suppress(FileNotFoundError):
        source.with_name(source.name + _MANIFEST).rename(target.with_name(target.name + _MANIFEST))
    source.rename(target)

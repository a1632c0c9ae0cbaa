# SPDX-License-Identifier: Apache-2.0
"""The segment that a killed daemon had open: what became of it, and going on without it."""

from __future__ import annotations

import enum
from pathlib import Path

from hmb_daemon.spool.file import WriterState
from hmb_daemon.writing import names
from hmb_daemon.writing.planner import Plan
from hmb_trace._core import lib


class Left(enum.Enum):
    """How a segment was found."""

    NOTHING = enum.auto()  # none was open
    RENAMED = enum.auto()  # sealed but for the steps after the rename
    VANISHED = enum.auto()  # somebody took it away, or cut it short
    OPEN = enum.auto()


def look(state: WriterState, directory: Path, suffix: str) -> Left:
    """What became of the segment that the writer's commit speaks of.

    Args:
        suffix: of the dump once it is sealed.
    """
    if state.phase == lib.HMB_PHASE_IDLE:
        return Left.NOTHING
    whole = directory / (state.name + suffix)
    part = whole.with_name(whole.name + names.PART)
    if state.phase == lib.HMB_PHASE_SEALING and whole.exists() and not part.exists():
        return Left.RENAMED
    if state.file_offset and _size_of(part) < state.file_offset:
        return Left.VANISHED
    return Left.OPEN


def skip(state: WriterState, to: Plan) -> None:
    """Go on at a later place: what lies before it is in no file."""
    state.data_tail = state.segment_pos = state.planned = to.pos
    state.journal_tail, state.epoch = to.journal, to.epoch
    state.planned_counters = to.counters


def drop_events(state: WriterState, directory: Path, suffix: str) -> None:
    """Remove the event log of a segment that is gone; of one cut short it is still wanted (R14)."""
    if not (directory / (state.name + suffix + names.PART)).exists():
        (directory / (state.name + names.EVENTS_PART)).unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

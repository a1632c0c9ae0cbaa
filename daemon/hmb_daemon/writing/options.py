# SPDX-License-Identifier: Apache-2.0
"""What the control thread orders of the writer: how to write, and when to seal."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from hmb_daemon.spool.causes import Cause
from hmb_daemon.writing.sink import Write

FSYNC_NEVER = -2
FSYNC_SEAL = -1
FSYNC_ALWAYS = 0


@dataclass(slots=True)
class WriterOptions:
    """How segments are written. Sizes in bytes, times in nanoseconds."""

    directory: Path
    prefix: str
    single: str = ""  # the one output file's name, instead of a set
    pipe_fd: int = -1  # records only, to a stream
    rotate_size: int = 0
    rotate_interval: int = 0
    fsync: int = 10**9  # interval, or FSYNC_*
    drop_oldest: bool = False
    direct: bool = True
    snapshot: bool = False
    pwrite: Write = os.pwrite


@dataclass(slots=True)
class Request:
    """Asked by the control thread: seal what is committed by now."""

    cause: Cause
    last: bool = False
    done: threading.Event = field(default_factory=threading.Event)

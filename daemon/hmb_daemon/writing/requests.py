# SPDX-License-Identifier: Apache-2.0
"""What the control thread asks of the writer: to seal."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from hmb_daemon.spool.causes import Cause


@dataclass(slots=True)
class Request:
    """Seal what is committed by now; `done` is set once it has happened."""

    cause: Cause
    last: bool = False
    segment: str = ""  # name of what was sealed for it; empty: there was nothing to seal
    done: threading.Event = field(default_factory=threading.Event)

# SPDX-License-Identifier: Apache-2.0
"""hmb_trace: the decoder library of hmb-trace.

Public names are imported on first use, so that `import hmb_trace` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hmb_trace.errors import HmbTraceError

if TYPE_CHECKING:
    from hmb_trace.batch import RecordBatch
    from hmb_trace.dump import Dump, DumpError, open_dump, open_dumps
    from hmb_trace.ring import Ring, attach

__all__ = [
    "Dump",
    "DumpError",
    "HmbTraceError",
    "RecordBatch",
    "Ring",
    "attach",
    "open_dump",
    "open_dumps",
]
__version__ = "0.1.0"

_HOMES = {
    "Dump": "hmb_trace.dump",
    "DumpError": "hmb_trace.dump",
    "RecordBatch": "hmb_trace.batch",
    "Ring": "hmb_trace.ring",
    "attach": "hmb_trace.ring",
    "open_dump": "hmb_trace.dump",
    "open_dumps": "hmb_trace.dump",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(home), name)

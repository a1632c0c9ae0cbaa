# SPDX-License-Identifier: Apache-2.0
"""hmb_trace: the decoder library of hmb-trace.

Public names are imported on first use, so that `import hmb_trace` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hmb_trace.errors import HmbTraceError

if TYPE_CHECKING:
    from hmb_trace import pccx, testing
    from hmb_trace.catalog.model import Catalog, CatalogError
    from hmb_trace.dumps.batch import RecordBatch
    from hmb_trace.dumps.dump import Dump, DumpError, open_dump, open_dumps
    from hmb_trace.fnv import fnv1a_64
    from hmb_trace.live.ring import Ring, attach
    from hmb_trace.query.pairing import Pairing

__all__ = [
    "Catalog",
    "CatalogError",
    "Dump",
    "DumpError",
    "HmbTraceError",
    "Pairing",
    "RecordBatch",
    "Ring",
    "attach",
    "fnv1a_64",
    "open_dump",
    "open_dumps",
    "pccx",
    "testing",
]
__version__ = "0.1.0"

_SUBMODULES = ("pccx", "testing")
_HOMES = {
    "Catalog": "hmb_trace.catalog.model",
    "CatalogError": "hmb_trace.catalog.model",
    "Dump": "hmb_trace.dumps.dump",
    "DumpError": "hmb_trace.dumps.dump",
    "Pairing": "hmb_trace.query.pairing",
    "RecordBatch": "hmb_trace.dumps.batch",
    "Ring": "hmb_trace.live.ring",
    "attach": "hmb_trace.live.ring",
    "fnv1a_64": "hmb_trace.fnv",
    "open_dump": "hmb_trace.dumps.dump",
    "open_dumps": "hmb_trace.dumps.dump",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(home), name)

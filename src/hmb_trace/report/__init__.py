# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one self-contained file about any number of dumps."""

from __future__ import annotations

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.dump import Dump
from hmb_trace.report.gather import Gatherer
from hmb_trace.report.names import Names
from hmb_trace.report.page import render

__all__ = ["build"]


def build(dump: Dump, *, title: str, catalog: Catalog | None = None) -> str:
    """The report on a dump as one HTML page.

    Args:
        dump: read once, in bounded memory.
        title: the heading.
        catalog: names opcodes and pairs events.

    Raises:
        HmbTraceError: a file cannot be read. A dump that is
            truncated or damaged gives a page that says so.
    """
    found = Gatherer(dump, catalog).run()
    return render(found, Names(catalog), title)

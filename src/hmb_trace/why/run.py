# SPDX-License-Identifier: Apache-2.0
"""A capture, read and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.account import Account, account
from hmb_trace.dumps.dump import open_dumps
from hmb_trace.why.finding import Finding
from hmb_trace.why.rules import findings
from hmb_trace.why.watch import Watch


def explain(
    paths: Sequence[str],
    catalog: Catalog | None,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[Account, list[Finding]]:
    """The account of a capture, and what is wrong in it, the most important first.

    Raises:
        HmbTraceError: a file cannot be read.
    """
    dump = open_dumps(paths)
    known = account(dump)
    watch = Watch(catalog, known.records)
    for batch in dump.batches(partial=True):
        watch.add(batch)
        advance(len(batch.buffer))
    watch.finish()
    return known, findings(dump, known, watch)

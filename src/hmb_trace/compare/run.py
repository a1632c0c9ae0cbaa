# SPDX-License-Identifier: Apache-2.0
"""Two sides of captures, read and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hmb_trace.catalog.model import Catalog
from hmb_trace.compare.findings import Comparison, Losses, compare
from hmb_trace.compare.measure import Measurement
from hmb_trace.compare.metrics import Sides
from hmb_trace.dumps.account import Verdict, account
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import open_dumps

Advance = Callable[[int], None]


def measure(
    paths: Sequence[str | Path], catalog: Catalog | None, advance: Advance = lambda done: None
) -> tuple[Measurement, Losses]:
    """Read the captures of one side; each is a capture of its own.

    Raises:
        DumpError, HmbTraceError: as Dump.batches.
    """
    dumps = [open_dumps([path]) for path in paths]
    found = Measurement(catalog, sum(account(dump).records for dump in dumps))
    lost, exact = 0, True
    for dump in dumps:
        found.begin_capture()
        for batch in dump.batches():
            _add(found, batch)
            advance(len(batch.buffer))
        missing = account(dump)
        lost += missing.lost
        exact = exact and missing.verdict is not Verdict.INCOMPLETE
    return found, Losses(lost, exact)


def _add(found: Measurement, batch: RecordBatch) -> None:
    """The batch, piece by piece (SPEC R16)."""
    clocks = {step.offset for step in batch.steps}
    begin = 0
    for row, offset in zip(batch.cut_rows().tolist(), batch.cuts.tolist(), strict=True):
        found.add(batch.select(slice(begin, row)))
        found.begin_piece()
        if offset not in clocks:
            found.mark_loss()
        begin = row
    found.add(batch.select(slice(begin, None)) if begin else batch)


def compare_captures(
    base: Sequence[str | Path],
    new: Sequence[str | Path],
    catalog: Catalog | None,
    advance: Advance = lambda done: None,
) -> Comparison:
    """What differs between the captures of base and those of new. Raises as measure()."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(measure, base, catalog, advance)
        second = pool.submit(measure, new, catalog, advance)
        (mine, mine_lost), (theirs, theirs_lost) = first.result(), second.result()
    return compare(Sides(mine, theirs), catalog, (mine_lost, theirs_lost))

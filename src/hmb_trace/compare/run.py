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
from hmb_trace.dumps.dump import Dump, open_dumps
from hmb_trace.dumps.walker import Walker

Advance = Callable[[int], None]


def measure(
    paths: Sequence[str | Path], catalog: Catalog | None, advance: Advance = lambda done: None
) -> tuple[Measurement, Losses]:
    """Read the captures of one side; each is a capture of its own.

    Raises:
        DumpError, HmbTraceError: as Dump.batches.
    """
    dumps = [open_dumps([path]) for path in paths]
    found = Measurement(catalog, sum(_records(dump) for dump in dumps))
    lost = 0
    for dump in dumps:
        walker = Walker(keep_breaks=True)
        found.begin_capture()
        seen = 0
        for batch in dump.batches(walker=walker):
            for broken in (walker.breaks or [])[seen:]:
                found.mark_loss()
                found.begin_piece()
                seen += 1
                del broken
            found.add(batch)
            advance(len(batch.buffer))
        lost += walker.lost
    return found, Losses(lost)


def _records(dump: Dump) -> int:
    walker = Walker()
    dump.scan(walker, partial=True)
    return walker.records


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

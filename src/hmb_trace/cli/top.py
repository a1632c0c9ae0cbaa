# SPDX-License-Identifier: Apache-2.0
"""hmb-trace top."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hmb_trace.cli._options import CATALOG, load_catalog
from hmb_trace.cli._shared import notes_to_stderr, print_json
from hmb_trace.commandline import DURATION
from hmb_trace.errors import HmbTraceError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from hmb_trace.top.frame import Framer
    from hmb_trace.top.model import Model
    from hmb_trace.top.sources import Source

_WIDTH, _HEIGHT = 100, 40  # of a frame that no terminal bounds


@click.command()
@click.argument("target", required=False, metavar="[DEVICE|SOCKET|DIR]")
@CATALOG
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="Between looks.")
@click.option("--once", is_flag=True, help="Print one frame as text, over one interval.")
@click.option("--batch", is_flag=True, help="Print a frame as text at every interval.")
@click.option("-n", "--count", type=click.IntRange(1), help="Frames of --batch.  [default: no end]")
@click.option("--json", "as_json", is_flag=True, help="--once, --batch: JSON with stable keys.")
def command(
    *,
    target: str | None,
    catalog_path: str | None,
    interval: int,
    once: bool,
    batch: bool,
    count: int | None,
    as_json: bool,
) -> None:
    """Watch a capture: rates, ring and spool fill, losses, opcodes, cpus, the last records.

    The target is a daemon's control socket, the service's instance or device (nvme0,
    /dev/nvme0-hmbtrace), a ring (path or shm:/NAME) or a dump-set directory; it may be left out
    while one daemon runs. Everything is only read. Opcodes and cpus come from the end of the
    segment being written; of fast traces a part is looked at ("sampled").

    Keys: q quits, space pauses, + and - change the interval.

    \b
    Examples:
      hmb-trace top
      hmb-trace top /dev/nvme0-hmbtrace --catalog ftl.toml
      hmb-trace top capture/ --once
      hmb-trace top nvme0 --batch --json | jq .lost
    """
    notes_to_stderr()
    if interval < 50_000_000:
        raise UsageError("--interval: found less than 50 ms, expected at least 50ms")
    catalog = load_catalog(catalog_path)
    printing = once or batch
    if as_json and not printing:
        raise UsageError("--json needs --once or --batch")
    if count and not batch:
        raise UsageError("--count needs --batch")
    if not printing and not all(f.isatty() for f in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("top needs a terminal; use --once or --batch for text output")
    from hmb_trace.top.frame import Framer, glyphs_for  # noqa: PLC0415 - rich takes its time
    from hmb_trace.top.sources import source_of  # noqa: PLC0415 - numpy takes its time

    source = source_of(target)
    framer = Framer(catalog, glyphs_for(sys.stdout.encoding))
    try:
        if printing:
            _print_frames(source, framer, interval / 1e9, count if batch else 1, as_json)
        else:
            _show(source, framer, interval / 1e9)
    finally:
        source.close()


def _show(source: Source, framer: Framer, interval: float) -> None:
    try:
        from hmb_trace.top.app import Top  # noqa: PLC0415 - heavy and optional
    except ImportError:
        raise MissingExtraError("textual is not installed: pip install 'hmb-trace[ui]'") from None
    Top(source, framer, interval).run()


def _print_frames(
    source: Source, framer: Framer, interval: float, count: int | None, as_json: bool
) -> None:
    """Each frame covers one interval; a source that goes away ends it with its error."""
    from hmb_trace.top.model import Model  # noqa: PLC0415 - numpy takes its time

    model = Model()
    model.push(source.sample())
    for number in itertools.count() if count is None else range(count):
        time.sleep(interval)
        model.push(source.sample())
        if as_json:
            print_json(_as_json(model))
        else:
            _print_frame(framer, model, blank=number > 0)
        sys.stdout.flush()


def _print_frame(framer: Framer, model: Model, *, blank: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - only here

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((_WIDTH, _HEIGHT)).columns if terminal else _WIDTH
    console = Console(
        width=width, no_color="NO_COLOR" in os.environ, force_terminal=terminal, highlight=False
    )
    if blank:
        click.echo()
    for line in framer.frame(model, width, _HEIGHT):
        if terminal and "NO_COLOR" not in os.environ:
            console.print(line, no_wrap=True, crop=True)
        else:
            click.echo(line.plain.rstrip())


def _as_json(model: Model) -> dict[str, Any]:
    """The sample and what was derived from it; null where the source does not know."""
    sample = model.sample
    if sample is None:
        raise HmbTraceError("no sample")
    names = (
        *("state", "subject", "pid", "uptime", "epoch", "ring_size", "head", "tail", "unread"),
        *("ring_flags", "ring_most", "overflow", "spool_size", "spool_fill", "spool_most"),
        *("records", "bytes", "lost", "unknown_losses", "gaps", "rejected", "disk"),
        *("output", "segment", "segment_bytes", "sealed", "verdict"),
    )
    return {
        **{name: getattr(sample, name) for name in names},
        "records_per_s": model.record_rate,
        "bytes_per_s": model.byte_rate,
        "sampled": model.sampled,
        "opcodes_per_s": {str(k): round(v, 1) for k, v in model.opcodes.by_rate()},
        "cpus_per_s": {str(k): round(v, 1) for k, v in sorted(model.cpus.rates.items())},
    }

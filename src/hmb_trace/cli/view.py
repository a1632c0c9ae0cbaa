# SPDX-License-Identifier: Apache-2.0
"""hmb-trace view."""

from __future__ import annotations

import sys
from typing import Any

import click

from hmb_trace.cli._options import (
    CATALOG,
    CLOCK,
    load_catalog,
    make_selection,
    open_files,
    selection_options,
)
from hmb_trace.cli._shared import FILES, notes_to_stderr
from hmb_trace.dumps.timeaxis import axis_of, can_read_twice
from hmb_trace.errors import MissingExtraError, UsageError
from hmb_trace.text.listing import Listing, Style


@click.command()
@FILES
@CATALOG
@CLOCK
@selection_options
def command(*, files: tuple[str, ...], catalog_path: str | None, clock: str, **chosen: Any) -> None:
    """Browse the records of dumps in the terminal: scroll, filter, jump to gaps, see every field.

    Keys: arrows, page up and down, g and G, / filters by an expression, : goes to a sequence
    number (#1234) or a moment (+1.5s), n and p go to the next and the previous gap, Enter shows
    or hides the detail, q quits.

    \b
    Examples:
      hmb-trace view capture/ --catalog ftl.toml
      hmb-trace view x.bin --opcode 'nand_*' --catalog ftl.toml --clock relative
    """
    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    dump = open_files(files)
    if not can_read_twice(dump):
        raise UsageError("view needs files; save the pipe first, or use hmb-trace decode -")
    selection = make_selection(dump, catalog, chosen)
    axis = axis_of(clock, dump)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("view needs a terminal; use hmb-trace decode for text output")
    try:
        from hmb_trace.view.viewer import Viewer  # noqa: PLC0415 - heavy and optional
    except ImportError:
        raise MissingExtraError("textual is not installed: pip install 'hmb-trace[ui]'") from None
    Viewer(dump, Listing(Style(clock=clock), catalog), axis, selection).run()

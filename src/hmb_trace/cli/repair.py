# SPDX-License-Identifier: Apache-2.0
"""hmb-trace repair."""

from __future__ import annotations

import click

from hmb_trace.cli._shared import FILES, notes_to_stderr, say
from hmb_trace.dumps import repair


@click.command()
@FILES
@click.option("-o", "--output", metavar="FILE", help="Write the good part there; leave FILE alone.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be cut.")
def command(files: tuple[str, ...], output: str | None, dry_run: bool) -> None:
    """Cut torn or damaged dumps after their last good record (SPEC R13).

    The bytes cut off are kept in FILE.cut, so nothing is lost.

    \b
    Examples:
      hmb-trace repair --dry-run x.bin
      hmb-trace repair x.bin
      hmb-trace repair x.bin.zst -o good.bin
    """
    notes_to_stderr()
    if output and len(files) > 1:
        raise click.UsageError("--output takes one FILE")
    for name in files:
        found = repair.find_cut(name)
        if found.reason is None:
            say(f"{name}: whole, nothing to cut")
            if output:
                repair.copy_good(found, output)
            continue
        say(f"{name}: {found.reason}")
        if dry_run:
            say(f"{name}: would cut {found.cut_bytes} bytes at byte {found.good_bytes}")
        elif output:
            repair.copy_good(found, output)
            say(f"{output}: {found.good_bytes} good bytes")
        else:
            aside = repair.cut(found)
            kept = f", kept in {aside}" if aside else " (all zero)"
            say(f"{name}: cut {found.cut_bytes} bytes at byte {found.good_bytes}{kept}")

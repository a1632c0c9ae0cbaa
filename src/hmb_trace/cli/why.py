# SPDX-License-Identifier: Apache-2.0
"""hmb-trace why."""

from __future__ import annotations

import click

from hmb_trace.cli._options import CATALOG, load_catalog
from hmb_trace.cli._progress import input_bytes, progress_bar
from hmb_trace.cli._shared import FILES, JSON, note, notes_to_stderr, print_json, say


@click.command()
@FILES
@CATALOG
@JSON
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no closing line.")
def command(files: tuple[str, ...], catalog_path: str | None, as_json: bool, quiet: bool) -> int:
    """Say what is wrong in a capture, the most important first.

    Losses and their cause, damage, resets, clock steps, records that report errors, commands that
    never ended or took far too long, silence, bursts, counters that ran away. Every finding has
    numbers, the place of its first or worst example, and a command that shows more.

    Exit status: 0 nothing found, 1 something is wrong.

    \b
    Examples:
      hmb-trace why capture/ --catalog ftl.toml
      hmb-trace why capture/ --json | jq '.findings[0]'
    """
    from hmb_trace.why.run import explain  # noqa: PLC0415 - numpy only when it runs

    notes_to_stderr()
    catalog = load_catalog(catalog_path, files)
    with progress_bar("looking", input_bytes(files), quiet=quiet) as advance:
        account, found = explain(files, catalog, advance)
    if as_json:
        findings = [finding.as_dict() for finding in found]
        print_json({"kind": "why", "verdict": str(account.verdict), "findings": findings})
        return bool(found)
    for number, finding in enumerate(found, 1):
        say(f"{number:3}. {finding.subject}: {finding.text}  [{finding.kind}]")
        place = finding.place
        parts = [f"{n} {v}" for n, v in (("seq", place.seq), ("ts", place.ts_ns)) if v is not None]
        if place.file:
            parts.append(f"{place.file}{'' if place.offset is None else f' +{place.offset}'}")
        if parts:
            say(f"       at {', '.join(parts)}")
        for line in finding.also:
            say(f"       {line}")
        if finding.look:
            say(f"       look: {finding.look}")
    if not found:
        say("nothing is wrong as far as can be seen")
    if not quiet:
        note(account.line())
    return int(bool(found))

# SPDX-License-Identifier: Apache-2.0
"""hmb-trace diff."""

from __future__ import annotations

from typing import Any

import click

from hmb_trace.cli._options import CATALOG, load_catalog
from hmb_trace.cli._progress import input_bytes, progress_bar
from hmb_trace.cli._shared import JSON, inputs_of, note, notes_to_stderr, print_json, say
from hmb_trace.errors import UsageError

_BETWEEN = "\0--"  # no path


class _TwoSides(click.Command):
    """`--` parts the two sides; click would take it for the end of the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_BETWEEN if word == "--" else word for word in args])


@click.command(cls=_TwoSides)
@click.argument("captures", nargs=-1, required=True, metavar="BASE... -- NEW...")
@CATALOG
@JSON
@click.option("-o", "--output", metavar="FILE", help="Write one self-contained HTML page.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no closing line.")
def command(
    *,
    captures: tuple[str, ...],
    catalog_path: str | None,
    as_json: bool,
    output: str | None,
    quiet: bool,
) -> int:
    """Say what changed between captures: events, rates, durations, order, payloads.

    BASE and NEW are dumps or dump sets, two plain arguments or several on each side of `--`. Only
    what differs by more than chance is told: blocks of records are dealt to the two sides at random
    and compared in the same way. Records that were lost never make an event "gone".

    Exit status: 0 the same, 1 changed, 2 cannot say.

    \b
    Examples:
      hmb-trace diff fw-1.2/ fw-1.3/ --catalog ftl.toml
      hmb-trace diff monday/ tuesday/ -- wednesday/ -o changed.html
      hmb-trace diff good.bin bad.bin --json | jq '.findings[0]'
    """
    from hmb_trace.compare.run import compare_captures  # noqa: PLC0415 - numpy only when it runs

    notes_to_stderr()
    mine, theirs = _sides(list(captures))
    catalog = load_catalog(catalog_path, [*mine, *theirs])
    with progress_bar("comparing", input_bytes([*mine, *theirs]), quiet=quiet) as advance:
        found = compare_captures(mine, theirs, catalog, advance)
    if output:
        _write_page(output, found, mine, theirs, catalog_path)
    if as_json:
        print_json({**found.as_dict(), "base": mine, "new": theirs})
    elif not output:
        _print(found)
    if not quiet and not as_json:
        note(f"{found.verdict}: {len(found.findings)} findings from {found.tests:,} comparisons")
    return found.exit_code


def _sides(captures: list[str]) -> tuple[list[str], list[str]]:
    if _BETWEEN not in captures:
        if len(captures) != 2:
            raise UsageError(
                f"{len(captures)} captures and no --: give two, or BASE... -- NEW... for several"
            )
        return captures[:1], captures[1:]
    place = captures.index(_BETWEEN)
    base, new = captures[:place], captures[place + 1 :]
    if not base or not new or _BETWEEN in new:
        raise UsageError("found nothing on one side of --, expected BASE... -- NEW...")
    return base, new


def _write_page(
    output: str, found: Any, base: list[str], new: list[str], catalog_path: str | None
) -> None:
    from hmb_trace.compare import page  # noqa: PLC0415 - only for pages
    from hmb_trace.dumps.dump import open_dumps  # noqa: PLC0415 - the same
    from hmb_trace.files import output_file  # noqa: PLC0415 - the same

    text = page.render(found, base, new)
    inputs = [one for path in (*base, *new) for one in inputs_of([path], open_dumps([path]))]
    with output_file(output, inputs=inputs_of(inputs, None, catalog_path)) as file:
        file.write(text.encode(errors="backslashreplace"))


def _print(found: Any) -> None:
    for number, finding in enumerate(found.findings, 1):
        say(f"{number:3}. {finding.subject}: {finding.text}  [{finding.kind}]")
        for other in finding.also[:3]:
            say(f"       also {other}")
        if finding.seqs:
            say(f"       records: seq {', '.join(map(str, finding.seqs[:4]))}")
    for text in found.unsure:
        say(f"  ?  cannot say: {text}")
    if not found.findings and not found.unsure:
        say("nothing differs by more than chance")

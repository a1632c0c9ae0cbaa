# SPDX-License-Identifier: Apache-2.0
"""hmb-trace doctor: what stands between a drive and its trace."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from hmb_trace.commandline import printable
from hmb_trace.diagnosis import Finding, Status, System, diagnose, verdict
from hmb_trace.errors import EXIT_DATA_PROBLEM, EXIT_OK

_COLOURS = {Status.OK: "green", Status.NOTE: "blue", Status.WARN: "yellow", Status.FAIL: "red"}


def _print(findings: list[Finding]) -> None:
    width = max(len(printable(finding.check)) for finding in findings)
    for finding in findings:
        mark = click.style(f"{finding.status.value:<4}", fg=_COLOURS[finding.status], bold=True)
        click.echo(f"{mark}  {printable(finding.check):<{width}}  {printable(finding.found)}")
        if finding.advice and finding.status is not Status.OK:
            click.echo(f"      {'':<{width}}  -> {printable(finding.advice)}")


@click.command(name="doctor")
@click.argument("device", required=False)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/hmb-trace"),
    show_default=True,
    help="Where dumps are to go.",
)
@click.option("--json", "as_json", is_flag=True, help="One object on stdout, for scripts.")
def command(device: str | None, output_dir: Path, as_json: bool) -> int:
    """Explain what is missing for a capture: drive, module, rights, space.

    Changes nothing. Run as root, it also asks the drives (Identify, Get Features) and
    reads the kernel log. DEVICE limits it to one ring: a device node, a file or shm:/NAME.

    Exit code 1 if something that was set up or asked for does not work; 0 otherwise,
    also where there is nothing to capture from.

    \b
    Examples:
      hmb-trace doctor
      hmb-trace doctor /dev/nvme0-hmbtrace --output-dir /srv/traces
      hmb-trace doctor shm:/hmb0 --json
    """
    system = System(output_dir=output_dir)
    findings = diagnose(system, device)
    said = verdict(system, findings, device)
    if as_json:
        listed = [asdict(finding) for finding in findings]
        click.echo(json.dumps({"verdict": said, "findings": listed}))
    else:
        _print(findings)
        click.echo(said)
    failed = any(finding.status is Status.FAIL for finding in findings)
    return EXIT_DATA_PROBLEM if failed else EXIT_OK

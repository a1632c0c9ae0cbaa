# SPDX-License-Identifier: Apache-2.0
"""hmb-trace verify."""

from __future__ import annotations

import click

from hmb_trace.cli._options import open_files
from hmb_trace.cli._shared import FILES, note, notes_to_stderr, say
from hmb_trace.dumps.account import Account, account
from hmb_trace.dumps.dump import open_dump
from hmb_trace.dumps.kinds import Kind, kind_of
from hmb_trace.dumps.verify import Verdict, verify
from hmb_trace.errors import EXIT_DATA_PROBLEM, EXIT_OK, HmbTraceError


@click.command()
@FILES
@click.option("--strict", is_flag=True, help="Warnings (losses, checksum mismatch) count too.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what is in order.")
def command(files: tuple[str, ...], strict: bool, quiet: bool) -> int:
    """Check dumps, dump sets and .pccx files, against their sidecars too.

    Exit code 1 when something is wrong with the data, 65 when a FILE is none of ours.

    \b
    Examples:
      hmb-trace verify capture/
      hmb-trace verify --strict x.pccx && echo good
    """
    notes_to_stderr()
    bad = False
    for name in files:
        found = _verdict(name, strict)
        failing = strict and _counts_warnings(found)
        for warning in found.warnings:
            note(f"{name}: {'problem' if failing else 'warning'}: {warning}")
        for problem in found.problems:
            note(f"problem: {problem}")
        failed = bool(found.problems or failing)
        bad = bad or failed
        if not failed and not quiet:
            say(f"{name}: ok, {_size(found)}")
    return EXIT_DATA_PROBLEM if bad else EXIT_OK


def _counts_warnings(found: Verdict) -> bool:
    """Under --strict: of a dump its verdict decides, of a .pccx every warning does."""
    return bool(found.account.exit_code) if found.account else bool(found.warnings)


def _verdict(name: str, strict: bool) -> Verdict:
    if kind_of(name) is Kind.PCCX:
        return _pccx(name, strict)
    return verify(open_dump(name))


def _pccx(name: str, strict: bool) -> Verdict:
    from hmb_trace import pccx  # noqa: PLC0415 - only for .pccx

    try:
        found = pccx.verify(name, strict)
    except pccx.ChecksumError as error:
        return Verdict(problems=[str(error)])
    told = _account_of(name)
    missing = [told.line()] if told and told.exit_code else []
    warnings = [*missing, *found["warnings"]]
    return Verdict(records=found["events"] or 0, warnings=warnings, unit="events")


def _account_of(name: str) -> Account | None:
    """What the capture in a .pccx is missing, as its header or its records tell (SPEC P7)."""
    try:
        return account(open_files([name]))
    except HmbTraceError:
        return None  # a payload that is no dump: pccx.verify() has said what is wrong with it


def _size(found: Verdict) -> str:
    if found.unit == "events":
        return f"{found.records} events"
    return f"{found.records} records, {found.wrap_markers} wrap markers, {found.bytes} bytes"

# SPDX-License-Identifier: Apache-2.0
"""--check-config: what a start would refuse, without touching ring and spool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hmb_daemon.collecting.start import catalog_copy
from hmb_daemon.settings import Settings
from hmb_trace.errors import HmbTraceError


def problems(settings: Settings) -> Iterator[str]:
    """One line for each."""
    if not settings.device:
        yield "no device: give --device PATH"
    try:
        settings.check()
        catalog_copy(settings.catalog)
        if settings.metrics:
            from hmb_daemon.host.metrics import require_client  # noqa: PLC0415 - optional package

            require_client()
    except HmbTraceError as error:
        yield str(error)
    for option, directory in (
        ("output-dir", settings.output_dir),
        ("spool-dir", settings.spool_dir),
        ("control", settings.control.parent if settings.control else None),
        ("output", Path(settings.output).parent if settings.output not in (None, "-") else None),
    ):
        if directory is not None:
            yield from _unwritable(option, directory)


def _unwritable(option: str, directory: Path) -> Iterator[str]:
    """A directory, or the nearest one above it that is there, has to take files."""
    place = directory.absolute()
    while not place.exists() and place.parent != place:
        place = place.parent
    if not place.is_dir():
        yield f"--{option}: {place} is no directory"
    elif not os.access(place, os.W_OK | os.X_OK):
        yield f"--{option}: {place} cannot be written"

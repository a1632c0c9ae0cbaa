# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error, only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def input_bytes(paths: Sequence[str]) -> int | None:
    """Bytes of all inputs together; None where that cannot be known (pipes, compressed files)."""
    total = 0
    for path in map(Path, paths):
        files = [f for f in path.iterdir() if f.is_file()] if path.is_dir() else [path]
        for file in files:
            if not file.is_file() or file.name.endswith(".zst"):
                return None
            total += file.stat().st_size if file.suffix != ".json" else 0
    return total


@contextmanager
def progress_bar(title: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the bytes done since the last call."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import (  # noqa: PLC0415 - only a terminal needs it
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    console = Console(stderr=True)
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)

# SPDX-License-Identifier: Apache-2.0
"""Where the records go: a directory of segments, one file, or a stream."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from hmb_daemon.config import Settings
from hmb_daemon.host import testpoints as testhook
from hmb_daemon.writing import names
from hmb_daemon.writing.options import WriterOptions
from hmb_trace.errors import CannotCreateError, from_os_error


def prepare_directory(directory: Path) -> None:
    """Make a directory when missing, and insist that segments can be made in it.

    Raises:
        CannotCreateError, PermissionDeniedError: naming the directory.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".hmb-trace-{os.getpid()}"
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as error:
        raise from_os_error(error, f"cannot write to {directory}", creating=True) from error


def _is_stream(output: str) -> bool:
    if output == "-":
        return True
    try:
        mode = Path(output).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _open_stream(output: str) -> int:
    if output == "-":
        if sys.stdout is None:
            raise CannotCreateError("stdout is closed: nothing can be written to --output -")
        if sys.stdout.isatty():
            raise CannotCreateError("stdout is a terminal: records are binary, redirect them")
        return sys.stdout.fileno()
    try:
        return os.open(output, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, f"cannot open {output}", creating=True) from error


def _single_file(output: str) -> Path:
    path = Path(output)
    if path.exists():
        raise CannotCreateError(
            f"{path} exists already; captures are never overwritten, give another --output"
        )
    return path


def refuse_unfinished(path: Path) -> None:
    """A .part that no spool stands behind is another capture's: it stays.

    Raises:
        CannotCreateError: there is one.
    """
    part = path.with_name(path.name + names.PART)
    if part.exists():
        raise CannotCreateError(
            f"{part} is there already, of a capture that did not end; rename it "
            "(hmb-trace repair cuts it where records end), or give another --output"
        )


def apply(settings: Settings, options: WriterOptions) -> None:
    """Put what may change while running into the writer's options."""
    options.rotate_size = settings.rotate_size
    options.rotate_interval = settings.rotate_interval
    options.fsync = settings.fsync
    options.drop_oldest = settings.disk_full == "drop-oldest"


def writer_options(settings: Settings) -> WriterOptions:
    """The writer's options; directories are made, streams opened.

    Raises:
        CannotCreateError, PermissionDeniedError: the output cannot be written.
    """
    label = names.clean_label(settings.label) if settings.label else ""
    prefix = label or names.label_of_device(settings.device)
    options = WriterOptions(directory=Path(), prefix=prefix)
    options.direct = settings.io != "buffered"
    options.snapshot = settings.mode == "snapshot"
    options.pwrite = testhook.pwrite()
    apply(settings, options)
    if settings.output is not None and _is_stream(settings.output):
        options.pipe_fd = _open_stream(settings.output)
    elif settings.output is not None:
        path = _single_file(settings.output)
        options.directory, options.single = path.parent, path.name
        options.rotate_size = options.rotate_interval = 0
    else:
        assert settings.output_dir is not None
        options.directory = settings.output_dir
    if options.pipe_fd < 0:
        prepare_directory(options.directory)
    return options

# SPDX-License-Identifier: Apache-2.0
"""Where the records go: a directory of segments, one file, or a stream."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from hmb_daemon.host import testpoints as testhook
from hmb_daemon.settings import Io, Settings
from hmb_daemon.writing import names
from hmb_daemon.writing.sink import Write
from hmb_trace.errors import CannotCreateError, from_os_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where segments are made, or the stream that takes the records."""

    directory: Path
    prefix: str
    single: str = ""  # the one output file's name, instead of a set
    pipe_fd: int = -1  # records only, to a stream
    direct: bool = True
    pwrite: Write = os.pwrite

    @property
    def suffix(self) -> str:
        """What the sealed file is called after its name: .bin, or the end of --output."""
        return names.BIN if not self.single or self.single.endswith(names.BIN) else ""

    @property
    def is_set(self) -> bool:
        """Whether segments of a dump set are made."""
        return self.pipe_fd < 0 and not self.single

    def segment_name(self, number: int, started_ns: int) -> str:
        """The name of a segment without suffix."""
        if self.single:
            return self.single.removesuffix(names.BIN) or self.single
        return names.segment_name(self.prefix, number, started_ns)


def prepare_directory(directory: Path) -> None:
    """Make a directory when missing, and insist that segments can be made in it.

    Raises:
        CannotCreateError, PermissionDeniedError: naming the directory.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".hmb-trace-{os.getpid()}"
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
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


def label_of(settings: Settings) -> str:
    """The first part of segment names."""
    if settings.label:
        return names.clean_label(settings.label)
    return names.label_of_device(settings.device)


def open_output(settings: Settings) -> Output:
    """The output; directories are made, streams opened.

    Raises:
        CannotCreateError, PermissionDeniedError: the output cannot be written.
    """
    directory, single, pipe_fd = Path(), "", -1
    if settings.output is not None and _is_stream(settings.output):
        pipe_fd = _open_stream(settings.output)
    elif settings.output is not None:
        path = _single_file(settings.output)
        directory, single = path.parent, path.name
    else:
        assert settings.output_dir is not None
        directory = settings.output_dir
    if pipe_fd < 0:
        prepare_directory(directory)
    return Output(
        directory=directory,
        prefix=label_of(settings),
        single=single,
        pipe_fd=pipe_fd,
        direct=settings.io is not Io.BUFFERED,
        pwrite=testhook.pwrite(),
    )

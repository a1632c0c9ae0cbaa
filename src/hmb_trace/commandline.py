# SPDX-License-Identifier: Apache-2.0
"""What the three programs share: parameter types, and errors mapped to exit codes."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from hmb_trace import units
from hmb_trace.errors import EXIT_OK, HmbTraceError, UsageError, from_os_error
from hmb_trace.escapes import printable

# No command of ours does linear algebra, but numpy's would start, and spin, a thread a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

EXIT_INTERRUPTED = 128 + signal.SIGINT
_STDERR = 2
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class Parsed(click.ParamType[Any]):
    """A parameter type around a function that raises UsageError."""

    def __init__(self, name: str, parse: Callable[[str], int | None]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


SIZE = Parsed("size", units.parse_size)  # bytes
DURATION = Parsed("time", units.parse_duration)  # nanoseconds
RATE = Parsed("rate", units.parse_rate)  # events per second, None for "max"


class SuggestingGroup(click.Group):
    """A group that names the nearest subcommand when somebody mistypes one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


def fail(program: str, message: str) -> None:
    """One line on stderr, whatever the message holds: no control character reaches a terminal."""
    if sys.stderr is None:  # closed by whoever started us; print() would take stdout instead
        return
    try:
        print(f"{program}: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads it, or its disk is full: the exit code still tells
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def hold_standard_files() -> None:
    """Put /dev/null where 0, 1 or 2 is closed, so that no file we open is taken for stderr."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def replace_closed_files() -> None:
    """Stand-ins for a standard input or output that is closed: to use one is an error (EBADF).

    Python leaves None there, which prints into nothing, or has no attribute that we ask for.
    """
    hold_standard_files()
    if sys.stdin is None:
        sys.stdin = _refusing(0, os.O_WRONLY, "r")
    if sys.stdout is None:
        sys.stdout = _refusing(1, os.O_RDONLY, "w")


def _escape_what_cannot_be_encoded() -> None:
    """A name that the terminal's encoding has no letters for is shown as escapes, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refusing(fd: int, flags: int, mode: str) -> Any:
    opened = os.open(os.devnull, flags)
    os.dup2(opened, fd)
    os.close(opened)
    return open(fd, mode, encoding="utf-8", closefd=False)  # for as long as the process lives


def run(command: click.Command, program: str, args: Sequence[str] | None = None) -> int:
    """Run a click command; return the exit code. Errors become one line on stderr.

    The codes are those of hmb_trace.errors; 130 on Ctrl-C, 141 on a closed pipe.
    """
    settings: dict[str, Any] = {"color": False} if "NO_COLOR" in os.environ else {}
    asked = os.environ.get(complete_variable(program))
    if asked:
        return complete(command, program, asked)
    hold_standard_files()
    _escape_what_cannot_be_encoded()
    try:
        result = command.main(args=args, prog_name=program, standalone_mode=False, **settings)
        if sys.stdout is not None:
            sys.stdout.flush()
    except HmbTraceError as error:
        fail(program, str(error))
        return error.exit_code
    except click.exceptions.Exit as done:
        return int(done.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else program
        fail(program, f"{error.format_message()} (see {path} --help)")
        return int(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        fail(program, "interrupted")
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # click makes SystemExit of a broken pipe; nothing else here raises it.
        # The reader has gone: nothing more to say, and nothing to flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        mapped = from_os_error(error, str(error.filename or "I/O"))
        fail(program, str(mapped))
        _forget_unwritten()
        return mapped.exit_code
    return result if isinstance(result, int) else EXIT_OK


def _forget_unwritten() -> None:
    """Python flushes stdout at exit; where that cannot work it would speak, and exit with 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- completion in shells


def complete_variable(program: str) -> str:
    """The environment variable by which a shell's completion asks the program."""
    return f"_{program.replace('-', '_')}_COMPLETE".upper()


def complete(command: click.Command, program: str, asked: str) -> int:
    """Answer a shell. Where we know no word that fits it offers files: most arguments are some."""
    from click import shell_completion as shells  # noqa: PLC0415 - only when a shell asks

    for base in (shells.BashComplete, shells.ZshComplete, shells.FishComplete):
        shells.add_completion_class(type(base.__name__, (_OrFiles, base), {}))
    return shells.shell_complete(command, {}, program, complete_variable(program), asked)


class _OrFiles:
    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - as above

        found: list[Any] = super().get_completions(args, incomplete)  # type: ignore[misc] # a mixin
        if found or incomplete.startswith("-"):
            return found
        return [CompletionItem(incomplete, type="file")]

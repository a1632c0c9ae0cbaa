# SPDX-License-Identifier: Apache-2.0
"""What the three programs share: parameter types, and errors mapped to exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from hmb_trace import units
from hmb_trace.errors import EXIT_OK, HmbTraceError, UsageError, from_os_error

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class _Parsed(click.ParamType[Any]):
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


SIZE = _Parsed("size", units.parse_size)  # bytes
DURATION = _Parsed("time", units.parse_duration)  # nanoseconds
RATE = _Parsed("rate", units.parse_rate)  # events per second, None for "max"


def fail(program: str, message: str) -> None:
    """One line on stderr, whatever the message holds."""
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr)


def run(command: click.Command, program: str, args: Sequence[str] | None = None) -> int:
    """Run a click command; return the exit code. Errors become one line on stderr.

    The codes are those of hmb_trace.errors; 130 on Ctrl-C, 141 on a closed pipe.
    """
    try:
        result = command.main(args=args, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except HmbTraceError as error:
        fail(program, str(error))
        return error.exit_code
    except click.exceptions.Exit as done:
        return int(done.exit_code)
    except click.ClickException as error:
        fail(program, f"{error.format_message()} (see {program} --help)")
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
        return mapped.exit_code
    return result if isinstance(result, int) else EXIT_OK

# SPDX-License-Identifier: Apache-2.0
"""What ended the writer, in one line for whoever started the daemon."""

from __future__ import annotations

from pathlib import Path

from hmb_daemon.spool.journal import TornEventError
from hmb_daemon.writing.retry import GiveUpError
from hmb_trace.errors import HmbTraceError, InputOutputError, InvalidDataError, from_os_error


def of_writer(
    failure: BaseException, *, target: object, spool: Path | None, undelivered: int
) -> HmbTraceError:
    """The error to end with.

    Args:
        target: where the records were to go.
        spool: keeps what did not get there; None: somebody deleted it.
        undelivered: bytes of it.

    Raises:
        BaseException: the failure itself, where it is none of the world outside.
    """
    if isinstance(failure, BrokenPipeError):
        return InputOutputError(
            f"the reader of the output has gone; {undelivered} bytes were not delivered"
        )
    if isinstance(failure, GiveUpError):
        kept = (
            f"spool {spool} keeps the rest, the next start finishes it"
            if spool is not None
            else f"its spool was deleted while it ran: {undelivered} bytes are lost"
        )
        return InputOutputError(f"cannot write to {target}: {failure}; {kept}")
    if isinstance(failure, TornEventError):
        return InvalidDataError(
            f"spool {spool} is damaged: {failure}; the next start sets it aside "
            "and seals what the open .part file holds"
        )
    if isinstance(failure, OSError):
        return from_os_error(failure, "cannot write the output")
    raise failure


def no_thread(error: RuntimeError) -> HmbTraceError:
    """The system has no thread for us."""
    return InputOutputError(
        f"cannot start a thread: {error}; raise the limit on tasks (ulimit -u, TasksMax=, pids.max)"
    )

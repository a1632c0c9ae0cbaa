# SPDX-License-Identifier: Apache-2.0
"""One exception base; the class carries the exit code (docs: man hmb-trace, EXIT STATUS).

Messages are one line: what, found, expected, what to do.
"""

from __future__ import annotations

import errno

EXIT_OK = 0
EXIT_DATA_PROBLEM = 1
EXIT_USAGE = 2
EXIT_INVALID = 65
EXIT_NO_INPUT = 66
EXIT_BUSY = 69
EXIT_CANNOT_CREATE = 73
EXIT_IO = 74
EXIT_ABI_TOO_NEW = 76
EXIT_PERMISSION = 77
EXIT_CONFIG = 78


class HmbTraceError(Exception):
    """Base of every error that hmb-trace raises on purpose."""

    exit_code = EXIT_DATA_PROBLEM


class UsageError(HmbTraceError):
    """The request makes no sense (exit 2)."""

    exit_code = EXIT_USAGE


class MissingExtraError(UsageError):
    """An optional package is not installed; the message names the extra."""


class InvalidDataError(HmbTraceError):
    """Not a valid ring, dump or .pccx (exit 65)."""

    exit_code = EXIT_INVALID


class NoInputError(HmbTraceError):
    """No such device or file (exit 66)."""

    exit_code = EXIT_NO_INPUT


class BusyError(HmbTraceError):
    """Another consumer holds the device (exit 69)."""

    exit_code = EXIT_BUSY


class CannotCreateError(HmbTraceError):
    """An output cannot be created (exit 73)."""

    exit_code = EXIT_CANNOT_CREATE


class InputOutputError(HmbTraceError):
    """A read or write failed (exit 74)."""

    exit_code = EXIT_IO


class AbiTooNewError(HmbTraceError):
    """The ring speaks a newer ABI version than this library (exit 76)."""

    exit_code = EXIT_ABI_TOO_NEW


class PermissionDeniedError(HmbTraceError):
    """Permission denied (exit 77)."""

    exit_code = EXIT_PERMISSION


class ConfigError(HmbTraceError):
    """Bad configuration (exit 78)."""

    exit_code = EXIT_CONFIG


def from_os_error(error: OSError, what: str, *, creating: bool = False) -> HmbTraceError:
    """The error class that fits an OSError.

    Args:
        error: what the system said.
        what: the thing acted on, for the message ("cannot open /dev/x").
        creating: True where an output was to be made (exit 73 rather than 74).
    """
    reason = error.strerror or str(error)
    kinds: dict[int, type[HmbTraceError]] = {
        errno.ENOENT: NoInputError,
        errno.ENXIO: NoInputError,
        errno.ENODEV: NoInputError,
        errno.EISDIR: NoInputError,
        errno.EBUSY: BusyError,
        errno.EACCES: PermissionDeniedError,
        errno.EPERM: PermissionDeniedError,
    }
    fallback = CannotCreateError if creating else InputOutputError
    kind = kinds.get(error.errno or 0, fallback)
    if creating and kind is NoInputError:
        kind = CannotCreateError
    return kind(f"{what}: {reason}")

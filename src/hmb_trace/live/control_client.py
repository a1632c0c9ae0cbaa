# SPDX-License-Identifier: Apache-2.0
"""Talk to a running daemon: find its control socket, ask, get an answer.

The protocol is one JSON object a line each way (hmb_daemon.host.control_socket serves it).
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hmb_trace.errors import (
    HmbTraceError,
    InputOutputError,
    InvalidDataError,
    NoInputError,
    PermissionDeniedError,
    UsageError,
    from_os_error,
)
from hmb_trace.live.ring import lock_holder, open_ring

SERVICE_DIRECTORY = Path("/run/hmb-trace")  # the systemd unit listens at <instance>/control
_SOCKET_NAME = "control"
_DEVICE_SUFFIX = "-hmbtrace"
_COMM = "hmb-trace-daemon"[:15]  # as the kernel cuts it
_LISTENING = 1 << 16  # __SO_ACCEPTCON in /proc/net/unix
_ANSWER_MAX = 1 << 20


class Link:
    """A connection to one daemon; use it in a with block or close it.

    Raises:
        NoInputError: nobody listens there. PermissionDeniedError: not ours to ask.
    """

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout)
        self._rest = b""
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise _refused(path, error) from error

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send one request; the daemon's answer without its "ok".

        Raises:
            UsageError: the daemon does not know the command.
            InputOutputError: it went away, or does not answer.
        """
        try:
            self._socket.sendall(json.dumps({"cmd": command, **fields}).encode() + b"\n")
            answer = json.loads(self._line())
        except TimeoutError as error:
            raise InputOutputError(f"{self.path}: the daemon does not answer") from error
        except OSError as error:
            raise InputOutputError(f"{self.path}: the daemon has gone") from error
        except ValueError as error:
            raise InvalidDataError(f"{self.path}: the answer is no JSON; no daemon?") from error
        if not isinstance(answer, dict) or not answer.pop("ok", False):
            text = answer.get("error", answer) if isinstance(answer, dict) else answer
            raise UsageError(f"{self.path}: the daemon says: {text}")
        return answer

    def status(self) -> dict[str, Any]:
        """One look at the daemon (hmb_daemon.daemon.Daemon.status)."""
        found: dict[str, Any] = self.ask("status")["status"]
        return found

    def wait_closed(self, timeout: float) -> bool:
        """Whether the daemon closed the connection in time, as it does at its end."""
        self._socket.settimeout(timeout)
        try:
            while self._socket.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionResetError
            self._rest += part
            if len(self._rest) > _ANSWER_MAX:
                raise ValueError("no end of line")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refused(path: Path, error: OSError) -> HmbTraceError:
    if isinstance(error, ConnectionRefusedError):
        return NoInputError(f"{path}: no daemon listens there any more")
    if isinstance(error, TimeoutError):
        return InputOutputError(f"{path}: the daemon does not answer")
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"{path}: Permission denied; the socket is for the daemon's user, try sudo"
        )
    return from_os_error(error, f"cannot connect to {path}")


# ---- which socket


def find_socket(target: str | None) -> Path:
    """The control socket that a socket path, an instance, a ring or a dump set stands for.

    Args:
        target: a socket; "nvme0" or /dev/nvme0-hmbtrace; a ring (path or shm:/NAME) or the
            directory of a dump set, for the daemon that works on it; None: the only daemon.

    Raises:
        NoInputError: no such daemon. UsageError: several daemons and no target.
    """
    if target is None:
        return _only_one()
    path = Path(target)
    if _is_socket(path):
        return path
    found = _of_instance(target) or _of_ring(target) or _of_directory(path)
    if found is None:
        _refuse_closed(_instance(target))
    if found is None and "/" in target and not target.startswith("shm:") and not path.exists():
        raise NoInputError(f"cannot open {target}: No such file or directory")
    if found is None:
        raise NoInputError(
            f"{target}: no daemon with a control socket works on it; start "
            "hmb-trace-daemon with --control PATH, or give that path"
        )
    return found


def _only_one() -> Path:
    named = os.environ.get("HMB_TRACE_CONTROL")
    if named:
        return Path(named)
    found = running_sockets()
    if not found:
        _refuse_closed("*")
        raise NoInputError(
            "no running daemon with a control socket found; start hmb-trace-daemon with "
            "--control PATH, or name its socket"
        )
    if len(found) > 1:
        raise UsageError(f"several daemons run, name one of: {', '.join(map(str, found))}")
    return found[0]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _instance(target: str) -> str:
    """The service's instance that nvme0 or /dev/nvme0-hmbtrace names; "" if it cannot be one."""
    name = target.removeprefix("/dev/").removesuffix(_DEVICE_SUFFIX)
    return "" if "/" in name or name.startswith(".") else name


def _of_instance(target: str) -> Path | None:
    """The service's socket: nvme0 and /dev/nvme0-hmbtrace are /run/hmb-trace/nvme0/control."""
    instance = _instance(target)
    path = SERVICE_DIRECTORY / instance / _SOCKET_NAME
    return path if instance and _is_socket(path) else None


def _refuse_closed(instance: str) -> None:
    """A service that this user may not even look at is not "no daemon"."""
    for folder in SERVICE_DIRECTORY.glob(instance) if instance else ():
        if folder.is_dir() and not os.access(folder, os.X_OK, effective_ids=True):
            raise PermissionDeniedError(
                f"{folder}: Permission denied; the daemon's socket is for its user, try sudo"
            )


def _of_ring(target: str) -> Path | None:
    """The socket of the process that holds the ring's lock."""
    if Path(target).is_dir():
        return None
    try:
        fd = open_ring(target, writable=False)
    except HmbTraceError:
        return None
    try:
        pid = lock_holder(fd)
    finally:
        os.close(fd)
    return next(sockets_of(pid), None) if pid else None


def _of_directory(directory: Path) -> Path | None:
    if not directory.is_dir():
        return None
    for path in running_sockets():
        try:
            with Link(path, timeout=1.0) as link:
                output = Path(link.status()["output"])
        except (HmbTraceError, KeyError):
            continue
        if output.is_dir() and output.samefile(directory):
            return path
    return None


def running_sockets() -> list[Path]:
    """Control sockets of all daemons that this user can see."""
    found = {path.resolve() for path in SERVICE_DIRECTORY.glob(f"*/{_SOCKET_NAME}")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == _COMM:
                found.update(sockets_of(int(process.name)))
        except OSError:
            continue  # it has ended
    return sorted(path for path in found if _is_socket(path))


def sockets_of(pid: int) -> Iterator[Path]:
    """Paths of the Unix sockets that a process listens on (from /proc)."""
    base = Path("/proc") / str(pid)
    try:
        folder = (base / "cwd").readlink()
        names = [str(entry.readlink()) for entry in (base / "fd").iterdir()]
        table = Path("/proc/net/unix").read_text()
    except OSError:
        return
    inodes = {match[1] for name in names if (match := re.fullmatch(r"socket:\[(\d+)\]", name))}
    for line in table.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING and fields[6] in inodes:
            yield folder / fields[7]

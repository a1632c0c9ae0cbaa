# SPDX-License-Identifier: Apache-2.0
"""The control socket: a Unix stream socket, one JSON object a line each way.

Requests: {"cmd": "status"}, "events" (the last entries of the log), "rotate", "snapshot",
"reload", "stop", {"cmd": "log-level", "level": "debug"}.  Answers: {"ok": true, ...} or
{"ok": false, "error": "..."}.  All of it runs on the main thread's selector.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmb_trace.errors import BusyError, from_os_error

_LINE_MAX = 4096
_BACKLOG = 8
_LINKS_MAX = 16
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class ControlSocket:
    """Serves requests until close(). The socket is for the daemon's user only.

    Raises:
        BusyError: another daemon answers there.
        CannotCreateError, PermissionDeniedError: it cannot be made.
    """

    def __init__(self, path: Path, selector: selectors.BaseSelector, answer: Answer) -> None:
        self._path = path
        self._selector = selector
        self._answer = answer
        self._buffers: dict[socket.socket, bytearray] = {}
        self._server = _listen(path)
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            link, _ = self._server.accept()
        except OSError:
            return
        link.setblocking(False)
        if len(self._buffers) >= _LINKS_MAX:  # descriptors are for segments, not for idlers
            self._drop(next(iter(self._buffers)))
        self._buffers[link] = bytearray()
        self._selector.register(link, selectors.EVENT_READ, lambda: self._read(link))

    def _read(self, link: socket.socket) -> None:
        buffer = self._buffers[link]
        try:
            data = link.recv(_LINE_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        buffer += data
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            if not self._reply(link, line):
                return
        if not data or len(buffer) > _LINE_MAX:
            self._drop(link)

    def _reply(self, link: socket.socket, line: bytes) -> bool:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise TypeError("expected a JSON object")
            answer = self._answer(request)
        except RecursionError:
            answer = {"ok": False, "error": "JSON is nested too deeply"}
        except (ValueError, TypeError) as error:
            answer = {"ok": False, "error": str(error)}
        try:
            link.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:  # gone, or it does not read what it asked for
            self._drop(link)
            return False
        return True

    def _drop(self, link: socket.socket) -> None:
        self._selector.unregister(link)
        del self._buffers[link]
        link.close()

    def close(self) -> None:
        """Drop everybody and remove the socket."""
        for link in list(self._buffers):
            self._drop(link)
        self._selector.unregister(self._server)
        self._server.close()
        self._path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _remove_stale(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        mask = os.umask(0o177)
        try:
            server.bind(str(path))
        finally:
            os.umask(mask)
        server.listen(_BACKLOG)
    except OSError as error:
        server.close()
        raise from_os_error(error, f"cannot listen on {path}", creating=True) from error
    server.setblocking(False)
    return server


def _remove_stale(path: Path) -> None:
    """A socket that nobody answers on is left from a killed daemon."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise BusyError(f"control socket {path} is in use by another daemon; give another --control")

# SPDX-License-Identifier: Apache-2.0
"""The control socket: a Unix stream socket, one JSON object a line each way.

Requests: {"cmd": "status"}, "events" (the last entries of the log), "rotate", "snapshot"
(with "wait": true answered once it is sealed, with the segment's name or null),
"reload", "stop", {"cmd": "log-level", "level": "debug"}.  Answers: {"ok": true, ...} or
{"ok": false, "error": "..."}.  All of it runs on the main thread's selector.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmb_trace.errors import BusyError, HmbTraceError, from_os_error

_LINE_MAX = 4096
_BACKLOG = 8
LINKS_MAX = 16
_RETRY_S = 5.0
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class LaterAnswer(Exception):  # noqa: N818 - no error: the answer comes by itself
    """Raised by an answer that has to wait; called with what delivers it."""

    def __init__(self, subscribe: Callable[[Callable[[dict[str, Any]], None]], None]) -> None:
        super().__init__()
        self.subscribe = subscribe


class ControlSocket:
    """Serves requests until close(). The socket is for the daemon's user only.

    One that cannot be made is told (control-unavailable) and tried again by watch(): a capture
    never ends because of it.
    """

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, answer: Answer, log: Any
    ) -> None:
        self._path = path
        self._selector = selector
        self._answer = answer
        self._log = log
        self._buffers: dict[socket.socket, bytearray] = {}
        self._server: socket.socket | None = None
        self._inode = (0, 0)
        self._said = ""
        self._tried = 0.0
        self._try()

    def watch(self) -> None:
        """Listen again where that failed, or where somebody removed the socket."""
        if time.monotonic() - self._tried < _RETRY_S:
            return
        self._tried = time.monotonic()
        if self._server is not None and _inode_of(self._path) != self._inode:
            self._stop_listening()
        if self._server is None:
            self._try()

    def _try(self) -> None:
        self._tried = time.monotonic()
        try:
            self._server = _listen(self._path)
        except HmbTraceError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._log.error("control-unavailable", error=self._said, action="tried again")
            return
        self._inode, self._said = _inode_of(self._path), ""
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        assert self._server is not None
        self._selector.unregister(self._server)
        self._server.close()
        self._server = None

    def _accept(self) -> None:
        assert self._server is not None
        try:
            link, _ = self._server.accept()
        except OSError:  # no descriptors: whoever waits goes on waiting
            self._stop_listening()
            return
        link.setblocking(False)
        if len(self._buffers) >= LINKS_MAX:  # descriptors are for segments, not for idlers
            self._drop(next(iter(self._buffers)))
        self._buffers[link] = bytearray()
        self._selector.register(link, selectors.EVENT_READ, lambda: self._read(link))

    def _read(self, link: socket.socket) -> None:
        buffer = self._buffers.get(link)
        if buffer is None:  # dropped for another one while its readiness was on the way
            return
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
        except LaterAnswer as later:
            later.subscribe(lambda said: self._deliver(link, said))
            return True
        except RecursionError:
            answer = {"ok": False, "error": "JSON is nested too deeply"}
        except (ValueError, TypeError) as error:
            answer = {"ok": False, "error": str(error)}
        return self._send(link, answer)

    def _deliver(self, link: socket.socket, answer: dict[str, Any]) -> None:
        self._send(link, answer)

    def _send(self, link: socket.socket, answer: dict[str, Any]) -> bool:
        if link not in self._buffers:
            return False
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
        if self._server is not None:
            mine = _inode_of(self._path) == self._inode
            self._stop_listening()
            if mine:
                self._path.unlink(missing_ok=True)


def _inode_of(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


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

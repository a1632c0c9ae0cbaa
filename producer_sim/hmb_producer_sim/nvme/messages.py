# SPDX-License-Identifier: Apache-2.0
"""vfio-user messages: a header of 16 bytes, a payload, file descriptors beside it."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from dataclasses import dataclass, field

HEADER = struct.Struct("<HHIII")  # id, command, size, flags, error
MAX_DATA = 1 << 20  # bytes of one region read or write
MAX_MESSAGE = MAX_DATA + 4096
MAX_FDS = 16
FLAG_TYPE, FLAG_REPLY, FLAG_NO_REPLY, FLAG_ERROR = 0xF, 1, 0x10, 0x20


class ProtocolError(Exception):
    """Framing is lost: the connection cannot go on."""


@dataclass
class Message:
    """A request. File descriptors that are not taken are closed by close()."""

    number: int
    command: int
    flags: int
    payload: bytes
    fds: list[int] = field(default_factory=list)

    @property
    def wants_reply(self) -> bool:
        return not self.flags & FLAG_NO_REPLY

    def take_fds(self) -> list[int]:
        taken, self.fds = self.fds, []
        return taken

    def close(self) -> None:
        for fd in self.take_fds():
            os.close(fd)


class Connection:
    """One client."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    def _receive(self, size: int, fds: list[int]) -> bytes:
        """So many bytes, or fewer where the client has gone."""
        got = bytearray()
        space = socket.CMSG_LEN(MAX_FDS * 4)
        while len(got) < size:
            try:
                data, beside, flags, _ = self._stream.recvmsg(size - len(got), space)
            except ConnectionError:
                data, beside, flags = b"", [], 0
            fds += _fds_of(beside)
            if flags & socket.MSG_CTRUNC or len(fds) > MAX_FDS:
                raise ProtocolError(f"more than {MAX_FDS} file descriptors in a message")
            if not data:
                break
            got += data
        return bytes(got)

    def receive(self) -> Message | None:
        """The next request; None when the client has gone.

        Raises:
            ProtocolError: what comes is no message.
        """
        fds: list[int] = []
        try:
            return self._message(fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def _message(self, fds: list[int]) -> Message | None:
        head = self._receive(HEADER.size, fds)
        if not head:
            return None
        if len(head) < HEADER.size:
            raise ProtocolError(f"found {len(head)} bytes, expected a header of {HEADER.size}")
        number, command, size, flags, _ = HEADER.unpack(head)
        if not HEADER.size <= size <= MAX_MESSAGE:
            raise ProtocolError(
                f"command {command}: found a size of {size} bytes, "
                f"expected {HEADER.size} to {MAX_MESSAGE}"
            )
        payload = self._receive(size - HEADER.size, fds)
        if len(payload) < size - HEADER.size:
            raise ProtocolError(f"command {command}: the client left in the middle of a message")
        if flags & FLAG_TYPE:
            raise ProtocolError(f"command {command}: found flags {flags:#x}, expected a request")
        return Message(number, command, flags, payload, fds)

    def reply(self, message: Message, payload: bytes = b"", error: int = 0) -> None:
        flags = FLAG_REPLY | (FLAG_ERROR if error else 0)
        size = HEADER.size + len(payload)
        head = HEADER.pack(message.number, message.command, size, flags, error)
        with contextlib.suppress(ConnectionError):  # the next receive() finds out
            self._stream.sendall(head + payload)


def _fds_of(beside: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)

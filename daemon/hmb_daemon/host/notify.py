# SPDX-License-Identifier: Apache-2.0
"""sd_notify by hand: state lines in one datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Tells systemd how we are; silent where nobody listens."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        usec = os.environ.get("WATCHDOG_USEC", "")
        for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 2e6 if usec.isdigit() and for_us else 0.0
        self._last_ping = 0.0

    def send(self, *lines: str) -> None:
        """Send state lines such as READY=1."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
                link.sendto("\n".join(lines).encode(), address)
        except OSError:
            pass  # the capture matters more than who watches it

    def ready(self, status: str) -> None:
        """Start-up, or a reload, is over."""
        self.send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        """A reload begins."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Draining and sealing."""
        self.send("STOPPING=1")

    def ping(self) -> None:
        """Keep the watchdog quiet, when it is due."""
        now = time.monotonic()
        if self.watchdog_s and now - self._last_ping >= self.watchdog_s:
            self._last_ping = now
            self.send("WATCHDOG=1")

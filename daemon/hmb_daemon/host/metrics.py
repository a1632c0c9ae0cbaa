# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a running daemon (extra: fleet), served by one thread to few links.

A capture never ends because of them: an address that is taken is told (metrics-unavailable)
and tried again, a peer that sends half a request is dropped, and there are never more
descriptors than LINKS_MAX.
"""

from __future__ import annotations

import ipaddress
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hmb_daemon.host import sysio
from hmb_daemon.host.workers import Worker
from hmb_trace.errors import MissingExtraError

LINKS_MAX = 16
_REQUEST_MAX = 8192
_LINK_S = 5.0  # for a whole request and its answer
_RETRY_S = 5.0
_TICK_S = 0.5
_JOIN_S = 2.0
_HELP = {
    "records": "Records in the dump.",
    "bytes": "Dump bytes.",
    "lost": "Records lost, rejects subtracted.",
    "gaps": "Gaps in the sequence.",
    "rejected_records": "Records kept out of the dump.",
    "rejected_bytes": "Ring bytes kept out of the dump.",
    "unknown_losses": "Losses whose extent nobody can tell.",
    "overflow_episodes": "Times that firmware reported OVERFLOWED.",
    "epochs": "Re-initialisations of the ring.",
}


class _Source:
    """Asked by prometheus_client at every scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]], device: str) -> None:
        self._status = status
        self._device = device

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import (  # noqa: PLC0415 - optional package
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        status = self._status()

        def metric(kind: Any, name: str, text: str, value: float) -> Any:
            family = kind(f"hmb_trace_{name}", text, labels=["device"])
            family.add_metric([self._device], value)
            return family

        for name, value in status["counters"].items():
            text = _HELP.get(name, f"Collector counter {name}.")
            yield metric(CounterMetricFamily, name, text, value)
        ring, spool = status["ring"], status["spool"]
        for name, text, value in (
            ("ring_size_bytes", "Ring size.", ring["size"]),
            ("ring_max_fill_bytes", "Most unread ring bytes seen.", ring["max_fill"]),
            ("spool_size_bytes", "Spool size.", spool["size"]),
            ("spool_fill_bytes", "Spool bytes not yet in files.", spool["fill"]),
            ("disk_ok", "1 while the disk takes data.", float(status["disk"] == "ok")),
            ("up", "1 while records are being collected.", float(status["state"] == "running")),
        ):
            yield metric(GaugeMetricFamily, name, text, value)
        for name, text, value in (
            ("segments_sealed", "Segments sealed.", status["segments_sealed"]),
            ("segments_deleted", "Segments deleted by retention.", status["segments_deleted"]),
            ("spool_stalls", "Passes that found the spool full.", status["stalls"]),
            ("fsync_failures", "fsync calls that failed.", status["sync_failures"]),
            ("thread_restarts", "Threads that died and were started again.", status["restarts"]),
        ):
            yield metric(CounterMetricFamily, name, text, value)


def require_client() -> Any:
    """The prometheus_client package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import prometheus_client  # noqa: PLC0415 - optional package
    except ImportError as error:
        raise MissingExtraError(
            "--metrics needs prometheus-client: pip install 'hmb-trace[fleet]'"
        ) from error
    return prometheus_client


@dataclass(slots=True)
class _Link:
    socket: socket.socket
    until: float
    request: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class MetricsServer:
    """Serves /metrics at [HOST]:PORT until close().

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """

    def __init__(
        self, address: str, status: Callable[[], dict[str, Any]], device: str, log: Any
    ) -> None:
        client = require_client()
        registry = client.CollectorRegistry()
        registry.register(_Source(status, device))
        self._render: Callable[[], bytes] = lambda: client.generate_latest(registry)
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._address = address
        self._log = log
        self._end = threading.Event()
        self._said = ""
        self._links: dict[socket.socket, _Link] = {}
        self._worker = Worker("metrics", self._run, log)
        self._worker.start()

    def watch(self) -> None:
        """Start it again if its thread has died."""
        self._worker.watch()

    @property
    def restarts(self) -> int:
        """Times that its thread had to be started again."""
        return self._worker.restarts

    def close(self) -> None:
        """End it."""
        self._end.set()
        self._worker.join(_JOIN_S)

    # -- the thread

    def _run(self) -> None:
        sysio.name_thread("hmb-metrics")
        while not self._end.is_set():
            try:
                server = self._listen()
            except OSError as error:
                self._unavailable(error)
                self._end.wait(_RETRY_S)
                continue
            self._said = ""
            with server, selectors.DefaultSelector() as selector:
                self._serve(server, selector)

    def _unavailable(self, error: OSError) -> None:
        text = error.strerror or str(error)
        if text != self._said:
            self._said = text
            self._log.error(
                "metrics-unavailable",
                address=self._address,
                error=text,
                action="the capture goes on; tried again every few seconds",
            )

    def _listen(self) -> socket.socket:
        host = self._host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = family == socket.AF_INET6 and not self._host
        server = socket.create_server(
            (host, self._port), family=family, backlog=LINKS_MAX, dualstack_ipv6=dual
        )
        server.setblocking(False)
        return server

    def _serve(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.register(server, selectors.EVENT_READ, None)
        try:
            while not self._end.is_set():
                for key, _ in selector.select(_TICK_S):
                    if key.data is None:
                        self._accept(server, selector)
                    elif key.data.socket in self._links:
                        self._advance(key.data, selector)
                for link in [k for k in self._links.values() if time.monotonic() > k.until]:
                    self._drop(link, selector)
        finally:
            for link in list(self._links.values()):
                self._drop(link, selector)

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        if len(self._links) >= LINKS_MAX:
            self._drop(min(self._links.values(), key=lambda link: link.until), selector)
        try:
            accepted, _ = server.accept()
        except OSError:  # gone already, or no descriptors: no busy loop
            self._end.wait(_TICK_S)
            return
        accepted.setblocking(False)
        link = _Link(accepted, time.monotonic() + _LINK_S)
        self._links[accepted] = link
        selector.register(accepted, selectors.EVENT_READ, link)

    def _advance(self, link: _Link, selector: selectors.BaseSelector) -> None:
        try:
            if link.answer:
                link.answer = link.answer[link.socket.send(link.answer) :]
                if not link.answer:
                    self._drop(link, selector)
                return
            data = link.socket.recv(_REQUEST_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        link.request += data
        if not data or len(link.request) > _REQUEST_MAX:
            self._drop(link, selector)
        elif b"\r\n\r\n" in link.request or b"\n\n" in link.request:
            link.answer = self._answer_to(bytes(link.request))
            selector.modify(link.socket, selectors.EVENT_WRITE, link)

    def _drop(self, link: _Link, selector: selectors.BaseSelector) -> None:
        selector.unregister(link.socket)
        del self._links[link.socket]
        link.socket.close()

    # -- one request

    def _answer_to(self, request: bytes) -> bytes:
        head = request.decode("latin-1").splitlines()
        method, _, rest = head[0].partition(" ")
        path = rest.split(" ")[0].partition("?")[0]
        if not self._host_is_good(head[1:]):
            return _response("403 Forbidden", b"wrong Host\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"GET /metrics\n")
        if path != "/metrics":
            return _response("404 Not Found", b"it is at /metrics\n")
        body = self._render()
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return _response("200 OK", body, kind, head_only=method == "HEAD")

    def _host_is_good(self, headers: list[str]) -> bool:
        """Where only this machine may ask, a page in its browser may not (DNS rebinding)."""
        if not _is_loopback(self._host):
            return True
        names = [line[5:].strip() for line in headers if line.lower().startswith("host:")]
        return all(_is_loopback(_without_port(name)) for name in names)


def _without_port(name: str) -> str:
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _response(
    status: str, body: bytes, kind: str = "text/plain; charset=utf-8", *, head_only: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)

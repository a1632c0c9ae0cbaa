# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a running daemon (extra: fleet)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hmb_trace.errors import CannotCreateError, MissingExtraError, UsageError

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
        ):
            yield metric(CounterMetricFamily, name, text, value)


def serve(address: str, status: Callable[[], dict[str, Any]], device: str) -> Callable[[], None]:
    """Serve /metrics at [HOST]:PORT; returns what ends it.

    Raises:
        MissingExtraError: prometheus-client is not installed.
        UsageError: not an address. CannotCreateError: it cannot be listened on.
    """
    try:
        from prometheus_client import (  # noqa: PLC0415 - optional package
            CollectorRegistry,
            start_http_server,
        )
    except ImportError as error:
        raise MissingExtraError(
            "--metrics needs prometheus-client: pip install 'hmb-trace[fleet]'"
        ) from error
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--metrics: found {address!r}, expected [HOST]:PORT such as :9464")
    registry = CollectorRegistry()
    registry.register(_Source(status, device))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)
    except OSError as error:
        raise CannotCreateError(f"cannot serve metrics at {address}: {error.strerror}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop

# SPDX-License-Identifier: Apache-2.0
"""One look at a running daemon: for the control socket, the metrics and the summary."""

from __future__ import annotations

from typing import Any

from hmb_daemon.collecting.start import sustained_rate
from hmb_daemon.spool.journal import COUNTER_NAMES
from hmb_daemon.writing import names
from hmb_trace.units import format_duration, format_size


def announcement(c: Any, spool: Any) -> dict[str, Any]:
    """The first line: what is drained, and how fast firmware may be."""
    size, active, idle = int(c.ring.ring_size), int(c.latency_ns), int(c.idle_ns)
    return {
        "ring_size": size,
        "epoch": int(c.state.epoch),
        "spool": str(spool.path),
        "spool_size": spool.data_size,
        "latency": format_duration(active),
        "idle_wait": format_duration(idle),
        "sustained_rate": f"{format_size(sustained_rate(size, active))}/s",
        "sustained_rate_from_idle": f"{format_size(sustained_rate(size, idle))}/s",
    }


def collector_status(c: Any) -> dict[str, Any]:
    """Numbers that the C loop publishes; read without stopping it."""
    counters = {name: int(getattr(c.state.counters, name)) for name in COUNTER_NAMES}
    return {
        "epoch": int(c.state.epoch),
        "ring": {
            "size": int(c.ring.ring_size),
            "head": int(c.ring_head),
            "tail": int(c.state.tail),
            "max_fill": int(c.max_fill),
            "flags": int(c.ring_flags),
        },
        "passes": int(c.passes),
        "stalls": int(c.stalls),
        "stalled_ns": int(c.stalled_ns),
        "max_spool_fill": int(c.max_spool_fill),
        "last_seq": int(c.state.last_seq) if c.state.have_seq else None,
        "last_ts_ns": int(c.state.last_ts_ns),
        "overflow_episode": bool(c.state.episode_open),
        "counters": counters,
    }


def writer_status(writer: Any, spool: Any) -> dict[str, Any]:
    """Where the writer stands."""
    state = writer.state
    trouble = writer.retrier.trouble
    return {
        "spool": {
            "path": str(spool.path),
            "size": spool.data_size,
            "fill": max(0, spool.data_head() - state.data_tail),
        },
        "segment": {
            "name": state.name or None,
            "path": _part_path(writer, state.name),
            "number": state.segment,
            "bytes": state.file_offset,
            "started_ns": state.started_ns if state.name else None,
        },
        "segments_sealed": writer.sealed_count,
        "disk": (trouble.strerror or str(trouble)) if trouble else "ok",
        "disk_full_episodes": writer.retrier.full_episodes,
        "sync_failures": writer.sync_failures,
        "discarded_bytes": writer.discarded_bytes,
    }


def summary(status: dict[str, Any], counters: dict[str, int], seconds: float) -> dict[str, Any]:
    """The closing line: what this run counted (the status has what the spool counted)."""
    unknown = counters["unknown_losses"]
    return {
        "records": counters["records"],
        "bytes": counters["bytes"],
        "seconds": round(seconds, 3),
        "records_per_s": round(counters["records"] / seconds),
        "bytes_per_s": round(counters["bytes"] / seconds),
        "lost": f"{counters['lost']} + unknown" if unknown else counters["lost"],
        "gaps": counters["gaps"],
        "rejected_records": counters["rejected_records"],
        "rejected_bytes": counters["rejected_bytes"],
        "epochs": counters["epochs"],
        "segments": status["segments_sealed"],
        "max_ring_fill": status["ring"]["max_fill"],
        "max_spool_fill": status["max_spool_fill"],
        "stalls": status["stalls"],
    }


def _part_path(writer: Any, name: str) -> str | None:
    """The file that records go to at this moment; None for a stream, and between segments."""
    output = writer.output
    if not name or output.pipe_fd >= 0:
        return None
    return str((output.directory / (name + output.suffix + names.PART)).absolute())

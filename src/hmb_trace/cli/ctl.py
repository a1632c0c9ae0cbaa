# SPDX-License-Identifier: Apache-2.0
"""hmb-trace ctl."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hmb_trace.cli._shared import JSON, print_json, table
from hmb_trace.commandline import DURATION
from hmb_trace.errors import InputOutputError, UsageError
from hmb_trace.live.control_client import Link, find_socket, running_sockets
from hmb_trace.live.ring import ring_flag_names
from hmb_trace.units import format_duration, format_size

COMMANDS = {
    "status": "what the daemon does, and its counters",
    "events": "the last entries of its log",
    "rotate": "seal the segment and begin a new one",
    "snapshot": "write what the flight recorder holds",
    "reload": "read the configuration again",
    "replace-collector": "put a fresh collector process in the old one's place",
    "log-level": "log-level debug|info|warning|error",
    "stop": "drain, seal and end",
}
LEVELS = ("debug", "info", "warning", "error")


def _complete(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem]:
    items = [CompletionItem(name, help=text) for name, text in COMMANDS.items()]
    items += [CompletionItem(str(path)) for path in running_sockets()]
    return [item for item in items if str(item.value).startswith(word)]


@click.command()
@click.argument("words", nargs=-1, metavar="[TARGET] [COMMAND]", shell_complete=_complete)
@JSON
@click.option("--wait", is_flag=True, help="rotate, snapshot, stop: come back when it is done.")
@click.option(
    "--timeout", type=DURATION, default="30s", show_default=True, help="Longest --wait, and answer."
)
def command(words: tuple[str, ...], as_json: bool, wait: bool, timeout: int) -> None:
    """Ask a running daemon, or tell it to do something, over its control socket.

    TARGET is the socket (--control of hmb-trace-daemon), the service's instance or device
    (nvme0, /dev/nvme0-hmbtrace), the ring or the dump-set directory. It may be left out while one
    daemon runs.

    \b
    COMMAND is one of
      status              what the daemon does, and its counters (the default)
      events              the last entries of its log
      rotate              seal the segment and begin a new one
      snapshot            write what the flight recorder holds
      reload              read the configuration again
      replace-collector   put a fresh collector process in the old one's place, as after an
                          upgrade; the ring is unread for less than a millisecond
      log-level LEVEL     debug, info, warning or error
      stop                drain, seal and end

    \b
    Examples:
      hmb-trace ctl status
      hmb-trace ctl /run/hmb-trace/nvme0/control rotate --wait
      hmb-trace ctl nvme0 status --json | jq .counters.lost
    """
    target, name, level = _parse(list(words))
    with Link(find_socket(target), timeout / 1e9) as link:
        _do(link, name, level, as_json, timeout / 1e9 if wait else None)


def _parse(words: list[str]) -> tuple[str | None, str, str | None]:
    """Target, command and level, in whatever order people write target and command."""
    level = _take_level(words)
    known = [word for word in words if word in COMMANDS]
    others = [word for word in words if word not in COMMANDS]
    if len(known) > 1:
        raise UsageError(f"ctl: found {' and '.join(known)}, expected one command")
    if others and not known:
        near = difflib.get_close_matches(others[-1], COMMANDS, n=1, cutoff=0.7)
        if near:
            raise UsageError(f"ctl: no such command {others[-1]!r}; did you mean {near[0]!r}?")
    if len(others) > 1:
        listed = ", ".join(COMMANDS)
        raise UsageError(f"ctl: found {others[-1]!r}, expected a command: {listed}")
    name = known[0] if known else "status"
    return (others[0] if others else None), name, level


def _take_level(words: list[str]) -> str | None:
    if "log-level" not in words:
        return None
    at = words.index("log-level") + 1
    if at == len(words) or words[at] not in LEVELS:
        found = repr(words[at]) if at < len(words) else "nothing"
        raise UsageError(f"ctl log-level: found {found}, expected one of {', '.join(LEVELS)}")
    return words.pop(at)


def _do(link: Link, name: str, level: str | None, as_json: bool, wait: float | None) -> None:
    if name == "status":
        status = link.status()
        _out(status, as_json, lambda: status_text(status))
    elif name == "events":
        events = link.ask("events")["events"]
        _out(events, as_json, lambda: "\n".join(event_text(event) for event in events))
    elif name == "log-level":
        link.ask("log-level", level=level)
        _out({}, as_json, lambda: "")
    elif name == "replace-collector":
        found = {key: value for key, value in link.ask(name).items() if key != "ok"}
        _out(found, as_json, lambda: _replaced_text(found))
    else:
        found = _act(link, name, wait)
        _out(found, as_json, lambda: "\n".join(str(value) for value in found.values()))


def _out(value: Any, as_json: bool, text: Callable[[], str]) -> None:
    if as_json:
        print_json(value)
    elif shown := text():
        click.echo(shown)


def _act(link: Link, name: str, wait: float | None) -> dict[str, Any]:
    """rotate, snapshot, reload or stop; what to tell about it."""
    if wait is None or name == "reload":
        link.ask(name)
        return {}
    if name == "stop":
        link.ask(name)
        if not link.wait_closed(wait):
            raise InputOutputError(f"the daemon has not ended within {wait:g} s")
        return {}
    return _seal(link, name)


def _seal(link: Link, name: str) -> dict[str, Any]:
    """Comes back with what was sealed for this request, whatever else is sealed meanwhile."""
    output = link.status()["output"]
    segment = link.ask(name, wait=True)["segment"]
    return {"sealed": f"{output}/{segment}" if segment else "nothing to seal"}


# ---- as text


def _replaced_text(found: dict[str, Any]) -> str:
    now, unread = found["collector"], format_duration(found["unread_s"] * 1e9)
    return f"pid {now['pid']}, version {now['version']}; the ring was unread for {unread}"


def status_text(status: dict[str, Any]) -> str:
    """A status for people."""
    return table([[f"{name}:", value] for name, value in _status_rows(status)])


def _status_rows(status: dict[str, Any]) -> list[tuple[str, str]]:
    ring, spool, counters = status["ring"], status["spool"], status["counters"]
    segment = status["segment"]
    unread = (ring["head"] - ring["tail"]) % (1 << 64)
    lost = f"{counters['lost']:,}"
    if counters["unknown_losses"]:
        lost += f" and {counters['unknown_losses']:,} of unknown extent"
    return [
        ("state", _state_text(status)),
        ("device", f"{status['device']}, epoch {status['epoch']}"),
        ("daemon", f"pid {status['pid']}, up {format_duration(status['uptime_s'] * 1e9)}"),
        *_collector_rows(status),
        ("records", f"{counters['records']:,} ({format_size(counters['bytes'])})"),
        ("lost", f"{lost} in {counters['gaps']:,} gaps"),
        (
            "rejected",
            f"{counters['rejected_records']:,} records, {counters['rejected_bytes']:,} bytes",
        ),
        ("ring", _fill(unread, ring["size"], ring["max_fill"])),
        ("spool", _fill(spool["fill"], spool["size"], status["max_spool_fill"])),
        ("stalls", f"{status['stalls']:,} ({format_duration(status['stalled_ns'])})"),
        ("output", f"{status['output']}, {status['segments_sealed']:,} segments sealed"),
        (
            "segment",
            f"{segment['name']} ({format_size(segment['bytes'])})" if segment["name"] else "none",
        ),
        ("disk", str(status["disk"])),
    ]


def _collector_rows(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Of a collector that is a process; a thread is no news."""
    found = status.get("collector", {})
    if found.get("kind") != "process":
        return []
    notes = [
        *(["found running"] if found["adopted"] else []),
        *([f"started again {found['restarts']} times"] if found["restarts"] else []),
        *(["outlives the daemon"] if found["outlives_daemon"] else []),
    ]
    about = f", {', '.join(notes)}" if notes else ""
    return [("collector", f"pid {found['pid']}, version {found['version']}{about}")]


def _state_text(status: dict[str, Any]) -> str:
    flags = ring_flag_names(status["ring"]["flags"])
    notes = [*flags, *(["overflow episode"] if status["overflow_episode"] else [])]
    return f"{status['state']} ({', '.join(notes)})" if notes else str(status["state"])


def _fill(fill: int, size: int, most: int) -> str:
    shares = f"{100 * fill / size:.0f} % of {format_size(size)}"
    return f"{shares}, at most {100 * most / size:.0f} %"


def event_text(event: dict[str, Any]) -> str:
    """One entry of the daemon's log on one line."""
    head = ("timestamp", "level", "event")
    rest = " ".join(f"{name}={value}" for name, value in event.items() if name not in head)
    return f"{event['timestamp']} {event['level']:<7} {event['event']} {rest}".rstrip()

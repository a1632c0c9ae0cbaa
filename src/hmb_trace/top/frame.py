# SPDX-License-Identifier: Apache-2.0
"""One frame of `hmb-trace top`: lines of text for a given size, with or without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.timeaxis import firmware_axis
from hmb_trace.escapes import printable
from hmb_trace.live.ring import ring_flag_names
from hmb_trace.text.listing import Listing, Style
from hmb_trace.top.model import Model, Shares
from hmb_trace.top.sources import Sample
from hmb_trace.units import format_size

_LABEL = 9  # columns of "records", "spool" ...
_SIDE_BY_SIDE = 72  # columns from which opcodes and cpus stand beside each other
_CPU_WIDTH = 34
_STATE_STYLES = {
    "running": "bold green",
    "writing": "bold green",
    "frozen": "bold cyan",
    "waiting": "bold yellow",
    "stopping": "bold yellow",
    "disconnected": "bold red",
    "gone": "bold red",
}
_VERDICT_STYLES = {
    "whole": "green",
    "damaged": "yellow",
    "lossy": "bold red",
    "incomplete": "bold red",
}
_LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}


@dataclass(frozen=True)
class Glyphs:
    """Characters for bars and curves."""

    ramp: str
    full: str
    parts: str
    empty: str
    line: str


UNICODE = Glyphs(" ▁▂▃▄▅▆▇█", "█", "▏▎▍▌▋▊▉", " ", "─")
ASCII = Glyphs(" .:-=+*#@", "#", "", ".", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Block characters where the terminal's encoding has them."""
    try:
        UNICODE.ramp.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def _verdict(line: str) -> Text:
    """The account of the sealed segments, in the colour of its verdict."""
    style = _VERDICT_STYLES.get(line.partition(":")[0], "dim")
    return Text(f"{'sealed':<{_LABEL}}") + Text(line, style)


class Framer:
    """Turns a model into lines.

    Args:
        catalog: names of opcodes and fields, if there is one.
        glyphs: UNICODE or ASCII.
    """

    def __init__(self, catalog: Catalog | None = None, glyphs: Glyphs = UNICODE) -> None:
        self._catalog = catalog
        self._glyphs = glyphs
        self._listing = Listing(Style(), catalog)

    def frame(self, model: Model, width: int, height: int) -> list[Text]:
        """At most `height` lines of at most `width` columns."""
        sample = model.sample
        if sample is None:
            return [Text(model.gone or "waiting for the first sample ...")][:height]
        lines = self._numbers(model, sample, width)
        lines += self._tables(model, width, height - len(lines))
        for line in lines:
            line.truncate(max(width, 1))
        return lines[:height]

    # ---- numbers

    def _numbers(self, model: Model, sample: Sample, width: int) -> list[Text]:
        lines = [
            self._title(model, sample, width),
            self._curve("records", model.record_rate, model.record_history, sample.records, width),
            self._bytes(model, sample, width),
        ]
        if sample.ring_size is not None:
            size, most = sample.ring_size, sample.ring_most
            lines.append(self._bar("ring", sample.unread or 0, size, most, width))
        if sample.spool_size is not None:
            fill, most = sample.spool_fill or 0, sample.spool_most
            lines.append(self._bar("spool", fill, sample.spool_size, most, width))
        if sample.lost is not None:
            lines.append(_losses(model, sample))
        lines.append(_place(sample))
        if sample.disk not in (None, "ok"):
            lines.append(Text(f"{'disk':<{_LABEL}}{printable(str(sample.disk))}", "bold red"))
        if sample.verdict:
            lines.append(_verdict(sample.verdict))
        if sample.problem:
            lines.append(Text(sample.problem, "yellow"))
        return lines

    def _title(self, model: Model, sample: Sample, width: int) -> Text:
        state = "gone" if model.gone else sample.state
        right = Text()
        if sample.overflow or sample.ring_flags & 1:
            right.append("OVERFLOWED ", "bold red")
        for name in ring_flag_names(sample.ring_flags & ~3):
            right.append(f"{name} ", "yellow")
        right.append(state.upper(), _STATE_STYLES.get(state, "bold"))
        if sample.uptime is not None:
            right.append(f"  up {_clock(sample.uptime)}")
        left = Text("hmb-trace top  ", "bold").append(printable(sample.subject), "not bold")
        left.truncate(max(width - right.cell_len - 2, 1), overflow="ellipsis", pad=True)
        return left.append("  ").append_text(right)

    def _curve(
        self,
        label: str,
        rate: float | None,
        history: Iterable[float],
        total: int | None,
        width: int,
    ) -> Text:
        shown = "-" if rate is None else f"{rate:,.0f}/s"
        end = "" if total is None else f"  {total:,} in all"
        return self._with_curve(label, shown, history, end, width)

    def _bytes(self, model: Model, sample: Sample, width: int) -> Text:
        rate = model.byte_rate
        shown = "-" if rate is None else f"{format_size(rate)}/s"
        end = "" if sample.bytes is None else f"  {format_size(sample.bytes)} in all"
        return self._with_curve("bytes", shown, model.byte_history, end, width)

    def _with_curve(
        self, label: str, shown: str, history: Iterable[float], end: str, width: int
    ) -> Text:
        line = Text(f"{label:<{_LABEL}}").append(f"{shown:>14} ", "bold")
        room = max(0, width - line.cell_len - 22)
        line.append(f"{spark(list(history), room, self._glyphs.ramp):<{room}}", "green")
        return line.append(end)

    def _bar(self, label: str, fill: int, size: int, most: int | None, width: int) -> Text:
        share = fill / size if size else 0.0
        end = f" of {format_size(size)}"
        if most is not None and size:
            end += f", at most {100 * most / size:.0f}%"
        line = Text(f"{label:<{_LABEL}}{100 * share:>5.1f}% ")
        room = max(4, width - line.cell_len - 30)
        style = "red" if share > 0.8 else "yellow" if share > 0.5 else "green"
        gauge = self._gauge(share, room, style)
        return line.append("[", "dim").append_text(gauge).append("]", "dim").append(end)

    def _gauge(self, share: float, room: int, style: str) -> Text:
        """A bar as fine as the glyphs allow; what is not zero is seen."""
        steps = len(self._glyphs.parts) + 1
        units = min(room * steps, round(share * room * steps) or int(share > 0))
        full, part = divmod(units, steps)
        drawn = self._glyphs.full * full + (self._glyphs.parts[part - 1] if part else "")
        return Text(drawn, style).append(self._glyphs.empty * (room - len(drawn)), "not bold dim")

    # ---- tables

    def _tables(self, model: Model, width: int, room: int) -> list[Text]:
        """Opcodes and cpus, the last records, the log: as much of each as fits."""
        log_rows = min(len(model.log), max(1, (room - 3) // 4)) if model.log else 0
        record_rows = max(1, (room - 3) // 4) if model.last else 0
        share_rows = room - 1 - (log_rows and log_rows + 1) - (record_rows and record_rows + 1)
        lines = self._shares(model, width, max(share_rows, 0)) if model.opcodes.rates else []
        if record_rows:
            lines.append(self._heading("last records", width))
            lines += self._records(model.last, record_rows)
        if log_rows:
            lines.append(self._heading("log", width))
            spare = max(0, room - len(lines) - log_rows)
            lines += [_log_line(*entry) for entry in list(model.log)[-(log_rows + spare) :]]
        return lines

    def _heading(self, text: str, width: int) -> Text:
        return Text(f"{text} ", "bold").append(
            self._glyphs.line * max(0, width - len(text) - 1), "dim not bold"
        )

    def _shares(self, model: Model, width: int, rows: int) -> list[Text]:
        approximately = ", sampled" if model.sampled else ""
        if width < _SIDE_BY_SIDE:
            heading = self._heading(f"opcodes{approximately}", width)
            return [heading, *self._opcode_rows(model.opcodes, width, rows)]
        left = width - _CPU_WIDTH - 2
        names = [
            self._heading(f"opcodes{approximately}", left),
            *self._opcode_rows(model.opcodes, left, rows),
        ]
        cpus = [self._heading("cpus", _CPU_WIDTH), *self._cpu_rows(model.cpus, rows)]
        return beside(names, cpus, left)

    def _opcode_rows(self, shares: Shares, width: int, rows: int) -> list[Text]:
        ranked = shares.by_rate()
        total = shares.total or 1.0
        most = ranked[0][1] or 1.0 if ranked else 1.0
        shown = ranked if len(ranked) <= rows else ranked[: max(rows - 1, 0)]
        lines = [
            self._share_row(self._name(opcode), rate, total, most, width) for opcode, rate in shown
        ]
        rest = sum(rate for _, rate in ranked[len(shown) :])
        if len(shown) < len(ranked) and rows:
            name = f"{len(ranked) - len(shown)} others"
            lines.append(self._share_row(name, rest, total, 0.0, width))
        return lines

    def _name(self, opcode: int) -> str:
        event = self._catalog.get(opcode) if self._catalog else None
        return event.name if event else f"{opcode:#06x}"

    def _share_row(self, name: str, rate: float, total: float, most: float, width: int) -> Text:
        line = Text(f"{printable(name)[:18]:<18} ")
        room = max(0, width - line.cell_len - 18)
        # No bar for the rest together: it is not to be compared with single ones.
        line.append_text(self._gauge(min(rate / most, 1.0) if most else 0.0, room, "cyan"))
        return line.append(f" {100 * rate / total:4.1f}% {_short(rate):>8}/s")

    def _cpu_rows(self, shares: Shares, rows: int) -> list[Text]:
        total = shares.total or 1.0
        lines = []
        for cpu, rate in sorted(shares.rates.items())[:rows]:
            curve = spark(list(shares.history[cpu]), 12, self._glyphs.ramp)
            line = Text(f"cpu{cpu:<4}").append(f"{curve:<12}", "cyan")
            lines.append(line.append(f" {100 * rate / total:4.0f}% {_short(rate):>6}/s"))
        hidden = len(shares.rates) - len(lines)
        if hidden > 0 and lines:
            lines[-1] = Text(f"{hidden + 1} others", "dim")
        return lines

    def _records(self, batches: Sequence[RecordBatch], rows: int) -> list[Text]:
        lines: list[str] = []
        for batch in batches:
            tail = batch.select(slice(-rows, None))
            pieces = self._listing.renderer.render(tail, firmware_axis(tail))
            lines += (
                b"".join(bytes(piece) for piece in pieces).decode("utf-8", "replace").split("\n")
            )
        return [Text(printable(line.strip())) for line in lines if line][-rows:]


def _losses(model: Model, sample: Sample) -> Text:
    line = Text(f"{'lost':<{_LABEL}}")
    count = f"{sample.lost:,}" + (
        f" + {sample.unknown_losses} unknown" * bool(sample.unknown_losses)
    )
    bad = bool(sample.lost or sample.unknown_losses)
    line.append(count, "bold red" if bad else "bold green")
    if model.loss_rate:
        line.append(f" ({model.loss_rate:,.0f}/s now)", "bold red")
    line.append(f" in {sample.gaps or 0:,} gaps   rejected ")
    line.append(f"{sample.rejected or 0:,}", "yellow" if sample.rejected else "")
    if sample.epoch is not None:
        line.append(f"   epoch {sample.epoch}")
    return line


def _place(sample: Sample) -> Text:
    line = Text(f"{'segment':<{_LABEL}}")
    if sample.segment is None:
        return line.append("none open", "dim")
    line.append(printable(sample.segment))
    if sample.segment_bytes is not None:
        line.append(f"  {format_size(sample.segment_bytes)}")
    if sample.sealed is not None:
        line.append(f", {sample.sealed:,} sealed")
    return line


def _log_line(clock: str, level: str, text: str) -> Text:
    return Text(f"{clock} ").append(printable(text), _LEVEL_STYLES.get(level, ""))


def spark(values: Sequence[float], width: int, ramp: str) -> str:
    """The last `width` values as a curve, scaled to their maximum; oldest first."""
    shown = list(values)[-width:] if width > 0 else []
    most = max(shown, default=0.0)
    if most <= 0:
        return ramp[1] * len(shown)
    top = len(ramp) - 1
    return "".join(ramp[max(1, min(top, round(value / most * top)))] for value in shown)


def beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Two blocks next to each other; the left one padded to `width` columns."""
    lines = []
    for row in range(max(len(left), len(right))):
        line = left[row].copy() if row < len(left) else Text()
        line.truncate(width, pad=True)
        line.append("  ")
        lines.append(line.append_text(right[row]) if row < len(right) else line)
    return lines


def _short(value: float) -> str:
    """Four digits at most: 12.3k."""
    for limit, unit, by in ((1e4, "", 1.0), (1e7, "k", 1e3), (1e10, "M", 1e6)):
        if value < limit:
            return f"{value / by:.0f}{unit}" if unit == "" else f"{value / by:.4g}{unit}"
    return f"{value / 1e9:.4g}G"


def _clock(seconds: float) -> str:
    """1:02:03, with days where there are any."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock

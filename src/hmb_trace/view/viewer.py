# SPDX-License-Identifier: Apache-2.0
"""The record browser of `hmb-trace view` (textual)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, ClassVar

from rich.segment import Segment as Piece
from rich.style import Style as RichStyle
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.batch import RecordBatch
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.timeaxis import Axis
from hmb_trace.dumps.walker import BreakKind
from hmb_trace.errors import HmbTraceError, UsageError
from hmb_trace.layout import RecordFlag
from hmb_trace.query.expression import Expression
from hmb_trace.query.select import Selection, parse_time
from hmb_trace.text.listing import Listing
from hmb_trace.view.browse import RecordIndex

_HEX_WIDTH = 16
_REFRESH_SECONDS = 0.2
_PAGES_AT_ONCE = 256  # lines rendered ahead


class RecordList(ScrollView, can_focus=True, inherit_bindings=False):
    """All records, one line each; only the visible ones are ever rendered."""

    cursor: reactive[int] = reactive(0)

    def __init__(self, index: RecordIndex, listing: Listing, axis: Axis) -> None:
        super().__init__()
        self.index = index
        self._listing = listing
        self._axis = axis
        self._lines: dict[int, str] = {}
        self._columns = 80

    def show(self, index: RecordIndex) -> None:
        """Another selection of records."""
        self.index = index
        self.refill()
        self.cursor = 0
        self.scroll_to(0, 0, animate=False)

    def refill(self) -> None:
        """The index has grown, or is another."""
        self._lines.clear()
        self.virtual_size = Size(self._columns, max(self.index.count, 1))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        number = top + y
        text = self._line(number).expandtabs()
        style = RichStyle(reverse=True) if number == self.cursor else RichStyle()
        strip = Strip([Piece(text, style)])
        return strip.crop_extend(left, left + self.size.width, style)

    def _line(self, number: int) -> str:
        if not 0 <= number < self.index.count:
            return ""
        if number not in self._lines:
            self._render_around(number)
        return self._lines.get(number, "")

    def _render_around(self, number: int) -> None:
        if len(self._lines) > 8 * _PAGES_AT_ONCE:
            self._lines.clear()
        first = number // _PAGES_AT_ONCE * _PAGES_AT_ONCE
        at, known = first, self._columns
        for batch in self.index.rows(first, _PAGES_AT_ONCE):
            pieces = self._listing.renderer.render(batch, self._axis(batch))
            text = b"".join(bytes(piece) for piece in pieces).decode("utf-8", "replace")
            for line in text.splitlines():
                self._lines[at] = line
                self._columns = max(self._columns, len(line))
                at += 1
        if self._columns > known:
            self.call_after_refresh(self._widen)

    def _widen(self) -> None:
        """Longer lines came up: what was painted so far was cut to the old width."""
        self.virtual_size = Size(self._columns, max(self.index.count, 1))
        self.refresh()

    def move(self, by: int) -> None:
        """Move the cursor, and scroll so that it stays in sight."""
        self.cursor = max(0, min(self.cursor + by, self.index.count - 1))
        self.scroll_to_region(Region(self.scroll_offset.x, self.cursor, 1, 1), animate=False)

    def watch_cursor(self) -> None:
        self.refresh()

    def record(self) -> RecordBatch | None:
        """The record under the cursor, as a batch of one."""
        found = self.index.rows(self.cursor, 1)
        return found[0] if found else None

    def on_click(self, event: Any) -> None:
        self.cursor = min(self.scroll_offset.y + event.y, max(self.index.count - 1, 0))


def describe(batch: RecordBatch, catalog: Catalog | None) -> str:
    """Everything about one record: header, payload fields, bytes."""
    opcode, payload = int(batch.opcode[0]), bytes(batch.payload(0))
    event = catalog.get(opcode) if catalog else None
    flags = ", ".join(str(f.name).lower() for f in RecordFlag if int(batch.flags[0]) & f) or "none"
    lines = [
        f"{batch.path}  byte {int(batch.offset[0])}",
        f"seq {int(batch.seq[0])}   ts_ns {int(batch.ts_ns[0])}   cpu {int(batch.cpu[0])}   "
        f"flags {flags}   payload {len(payload)} bytes",
        f"opcode {opcode:#06x}" + (f"   {event.name} ({event.kind})" if event else ""),
    ]
    for field in event.fields if event else ():
        value = field.value(payload)
        shown = value.hex() if isinstance(value, bytes) else value
        label = field.label(value)
        extra = f" = {label}" if isinstance(label, str) and label != value else ""
        number = f" ({value:#x})" if isinstance(value, int) else ""
        lines.append(f"  {field.name:<20} {shown}{number} {field.unit}{extra}".rstrip())
    return "\n".join([*lines, *hex_lines(payload)])


def hex_lines(data: bytes) -> list[str]:
    """A hex dump: offset, bytes, text."""
    lines = []
    for at in range(0, len(data), _HEX_WIDTH):
        part = data[at : at + _HEX_WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"  {at:04x}  {part.hex(' '):<{3 * _HEX_WIDTH}} {text}")
    return lines


class Viewer(App[None]):
    """Scroll, search and inspect."""

    CSS = """
    #status { height: 1; background: $panel; }
    RecordList { width: 1fr; height: 1fr; }
    #detail { height: 12; border-top: solid $primary; }
    #detail.hidden { display: none; }
    #prompt { display: none; }
    #prompt.shown { display: block; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit"),
        Binding("enter", "detail", "Detail"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("colon,t", "goto", "Go to", key_display=":"),
        Binding("n", "gap(1)", "Next gap"),
        Binding("p", "gap(-1)", "Previous gap"),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("pageup,b", "page(-1)", show=False),
        Binding("home,g", "end(-1)", "Top"),
        Binding("end,G", "end(1)", "End"),
        Binding("escape", "cancel", show=False),
    ]

    def __init__(
        self, dump: Dump, listing: Listing, axis: Axis, selection: Selection | None = None
    ) -> None:
        super().__init__()
        self._dump = dump
        self._catalog = listing.catalog
        self._base = selection or Selection()
        self._index = RecordIndex(dump, self._base)
        self._list = RecordList(self._index, listing, axis)
        # Held here: a last tick may come while the screen is being taken down.
        self._status = Static(id="status", markup=False)
        self._record = Static(id="record", markup=False)
        self._problem = ""
        self._where = ""
        self._going = False  # what the prompt asks for: a place, or else a condition

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._list
        with VerticalScroll(id="detail", can_focus=False):
            yield self._record
        yield Input(id="prompt")
        yield Footer()

    def on_mount(self) -> None:
        self._list.focus()
        self._start(self._index)
        self.set_interval(_REFRESH_SECONDS, self._tick)
        self.watch(self._list, "cursor", self._show_record)

    def _start(self, index: RecordIndex) -> None:
        self._index = index
        self._problem = ""
        self._list.show(index)
        threading.Thread(target=self._build, args=(index,), daemon=True).start()

    def _build(self, index: RecordIndex) -> None:
        try:
            index.build(lambda: index is self._index)
        except HmbTraceError as error:
            self._problem = str(error)

    def _tick(self) -> None:
        if self._list.virtual_size.height != max(self._index.count, 1):
            self._list.refill()
            self._show_record()
        state = "" if self._index.done else "  reading ..."
        gaps = sum(one.kind is BreakKind.GAP for one in self._index.breaks)
        where = f"  [{self._where}]" if self._where else ""
        at = self._list.cursor + 1 if self._index.count else 0
        text = f" {at:,} of {self._index.count:,} records, {gaps:,} gaps{where}{state}"
        self._status.update(f"{text}  {self._problem}")

    def _show_record(self) -> None:
        batch = self._list.record()
        text = describe(batch, self._catalog) if batch is not None else "no record"
        self._record.update(text)

    # ---- actions ----

    def action_move(self, by: int) -> None:
        self._list.move(by)

    def action_page(self, by: int) -> None:
        self._list.move(by * max(self._list.size.height - 1, 1))

    def action_end(self, way: int) -> None:
        self._list.move(way * self._index.count)

    def action_detail(self) -> None:
        self.query_one("#detail").toggle_class("hidden")

    def action_gap(self, way: int) -> None:
        """To the record after the next (or before the previous) gap."""
        numbers = sorted(
            self._index.number_at(one.segment, one.offset)
            for one in self._index.breaks
            if one.kind is BreakKind.GAP
        )
        ahead = [n for n in numbers if (n - self._list.cursor) * way > 0]
        if ahead:
            self._list.move((min(ahead) if way > 0 else max(ahead)) - self._list.cursor)
        else:
            self.notify("no further gap")

    def action_filter(self) -> None:
        self._going = False
        self._ask('condition, as in: lba >= 4096 and name == "x"', self._where)

    def action_goto(self) -> None:
        self._going = True
        self._ask("#seq, firmware ns, +1.5s or 2026-01-31T12:00:00", "")

    def _ask(self, hint: str, value: str) -> None:
        prompt = self.query_one("#prompt", Input)
        prompt.placeholder, prompt.value = hint, value
        prompt.add_class("shown")
        prompt.focus()

    def _go(self, text: str) -> None:
        """To a sequence number or a moment.

        Raises:
            UsageError: neither, or not there.
        """
        if text.startswith("#"):
            if not text[1:].isdecimal():
                raise UsageError(f"found {text!r}, expected # and a sequence number")
            number = self._index.number_of_seq(int(text[1:]))
            if number is None:
                raise UsageError(f"no record here has seq {text[1:]}")
        else:
            moment, windows = parse_time(self._dump, text, None)
            number = (
                self._index.number_in(windows[0])
                if windows
                else self._index.number_of_time((moment and moment.first) or 0)
            )
        self._list.move(number - self._list.cursor)

    def action_cancel(self) -> None:
        self.query_one("#prompt", Input).remove_class("shown")
        self._list.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        try:
            if self._going:
                if text:
                    self._go(text)
                self.action_cancel()
                return
            where = [Expression(text, self._catalog)] if text else []
        except HmbTraceError as error:
            self.notify(str(error), severity="error")
            return
        self._where = text
        self.action_cancel()
        base = self._base
        self._start(
            RecordIndex(
                self._dump,
                replace(base, where=[*base.where, *where]),
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""`hmb-trace top` on a terminal (textual)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Footer

from hmb_trace.errors import HmbTraceError
from hmb_trace.top.frame import Framer
from hmb_trace.top.model import Model
from hmb_trace.top.sources import Source

FASTEST, SLOWEST = 0.1, 60.0


class Frame(Widget):
    """The whole picture; drawn anew for every sample and every size."""

    def __init__(self, model: Model, framer: Framer, *, colour: bool) -> None:
        super().__init__()
        self._model = model
        self._framer = framer
        self._colour = colour

    def render(self) -> RenderableType:
        lines = self._framer.frame(self._model, self.size.width, self.size.height)
        if not self._colour:
            lines = [Text(line.plain) for line in lines]
        for line in lines:
            line.no_wrap = True
        return Group(*lines)


class Top(App[None]):
    """Samples in a thread of its own, so that a slow answer never freezes the keys.

    Args:
        interval: seconds between samples.
    """

    CSS = "Frame { width: 1fr; height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("space,p", "pause", "Pause", key_display="space"),
        Binding("plus,equals_sign", "faster(2)", "Faster", key_display="+"),
        Binding("minus", "faster(0.5)", "Slower", key_display="-"),
    ]

    def __init__(self, source: Source, framer: Framer, interval: float) -> None:
        # The terminal's own sixteen colours: they fit its background, also over ssh.
        super().__init__(ansi_color=True)
        self._source = source
        self._interval = interval
        self._model = Model()
        self._frame = Frame(self._model, framer, colour="NO_COLOR" not in os.environ)
        self._paused = False
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._sampler = threading.Thread(target=self._work, name="sampler", daemon=True)

    def compose(self) -> ComposeResult:
        yield self._frame
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._sampler.start()

    def on_unmount(self) -> None:
        self._ended.set()
        self._wake.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            if not self._paused:
                self._take_sample()
            self._wake.wait(max(0.05, self._interval - (time.monotonic() - begun)))
            self._wake.clear()

    def _take_sample(self) -> None:
        try:
            sample = self._source.sample()
        except HmbTraceError as error:
            self._tell(partial(self._model.lost_source, str(error)))
        else:
            self._tell(partial(self._model.push, sample))

    def _tell(self, change: Callable[[], None]) -> None:
        def show() -> None:
            change()
            self._check_size()
            self._frame.refresh()

        if not self._ended.is_set():
            self.call_later(show)

    def _check_size(self) -> None:
        """A resize that went unnoticed (a signal while starting, some multiplexers) is made up."""
        if self.is_headless or self._driver is None:
            return
        with contextlib.suppress(OSError):
            real = Size(*os.get_terminal_size(sys.stdin.fileno()))
            if real != self.size and real.area:
                self.post_message(Resize(real, real))

    def action_pause(self) -> None:
        """Stop and go on; what was shown stays."""
        self._paused = not self._paused
        self.notify("paused" if self._paused else "going on", timeout=2)
        self._wake.set()

    def action_faster(self, factor: float) -> None:
        """Sample more or less often."""
        self._interval = max(FASTEST, min(SLOWEST, self._interval / factor))
        self.notify(f"every {self._interval:g} s", timeout=2)
        self._wake.set()

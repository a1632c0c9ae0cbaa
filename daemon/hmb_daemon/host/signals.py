# SPDX-License-Identifier: Apache-2.0
"""What ends a selector's wait: signals, from the first moment on, and other threads."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator

ENDING = (signal.SIGTERM, signal.SIGINT)
CAUGHT = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Waker:
    """Ends a selector's wait from another thread."""

    def __init__(self, selector: selectors.BaseSelector, cleanup: contextlib.ExitStack) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        cleanup.callback(os.close, self._fd)
        selector.register(self._fd, selectors.EVENT_READ, self._woken)

    def wake(self) -> None:
        """May be called from any thread, also after the end."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._fd, 1)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)


class Signals:
    """Catches TERM, INT, HUP, USR1 and USR2 until `cleanup` unwinds.

    Args:
        selector: calls what is registered with it.
        received: called from there with each number, in order.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        received: Callable[[int], None],
        cleanup: contextlib.ExitStack,
    ) -> None:
        self.end_asked = False  # whether TERM or INT came, also before anybody waits
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        cleanup.callback(os.close, read_end)
        cleanup.callback(os.close, write_end)
        for number in CAUGHT:
            before = signal.signal(number, self._note)
            cleanup.callback(signal.signal, number, before)
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        cleanup.callback(signal.set_wakeup_fd, previous)

        def read() -> None:
            for number in os.read(read_end, 64):
                received(number)

        selector.register(read_end, selectors.EVENT_READ, read)
        # entry.py holds them back until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)

    def _note(self, number: int, frame: object) -> None:
        """The wakeup pipe tells the loop; this is for what happens before there is one."""
        self.end_asked |= number in ENDING

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, TERM and INT raise KeyboardInterrupt, also if they came before."""
        before = [signal.signal(number, signal.default_int_handler) for number in ENDING]
        try:
            if self.end_asked:
                raise KeyboardInterrupt
            yield
        finally:
            for number, handler in zip(ENDING, before, strict=True):
                signal.signal(number, handler)

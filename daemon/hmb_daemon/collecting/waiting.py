# SPDX-License-Identifier: Apache-2.0
"""--wait: a ring that is not there yet is waited for here, not by being started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hmb_daemon.host.notify import Notifier
from hmb_daemon.host.signals import Signals
from hmb_trace.errors import AbiTooNewError, InvalidDataError, NoInputError
from hmb_trace.live.ring import Ring

_FIRST_S = 0.05
_LONGEST_S = 2.0  # a look is an open, a GET_INFO and a mmap: below a thousandth of a core


class WaitEndedError(Exception):
    """TERM or INT came before there was a ring."""


class Waiting:
    """Looks for a ring with growing delays, until there is one or a signal ends it."""

    def __init__(self, signals: Signals, notifier: Notifier, log: Any) -> None:
        self._signals = signals
        self._notifier = notifier
        self._log = log
        self._said = ""
        self._absent = False

    def attach(self, attach: Callable[[], Ring], absent: Callable[[], None]) -> Ring:
        """The ring, attached.

        Args:
            attach: one attempt, as hmb_trace.live.ring.attach() makes it.
            absent: called once when not even the region is there.

        Raises:
            WaitEndedError: asked to end.
            HmbTraceError: what waiting cannot help: rights, another consumer, a newer version.
        """
        delay = _FIRST_S
        while True:
            try:
                return attach()
            except AbiTooNewError:
                raise
            except (InvalidDataError, NoInputError) as error:
                self._say(str(error))
                if isinstance(error, NoInputError) and not self._absent:
                    self._absent = True
                    absent()
            self._sleep(delay)
            self._notifier.ping()
            delay = min(2 * delay, _LONGEST_S)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            self._log.info("waiting-for-ring", reason=reason)
            self._notifier.ready(f"waiting: {reason}")

    def _sleep(self, seconds: float) -> None:
        try:
            with self._signals.interrupting():
                time.sleep(seconds)
        except KeyboardInterrupt as error:
            raise WaitEndedError from error

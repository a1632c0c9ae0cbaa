# SPDX-License-Identifier: Apache-2.0
"""Whether the spool still has its name: without it a kill loses what no file has yet.

Linux gives a deleted file no name again, so that nothing but a new start makes one; what the
mapping holds still reaches the files as long as this process lives.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from hmb_daemon.spool.file import Manifest, Spool

_LOOK_S = 1.0


class SpoolGuard:
    """Looks every second, from the main thread."""

    def __init__(self, spool: Spool, log: Any) -> None:
        self._spool = spool
        self._log = log
        self._looked = 0.0
        self.is_lost = False

    def watch(self, manifest: Manifest) -> None:
        """Tell a spool that is gone, and write a manifest again that is."""
        if self.is_lost or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        if not self._spool.has_its_name():
            self.is_lost = True
            self._log.error(
                "spool-vanished",
                spool=str(self._spool.path),
                action="the capture goes on, but killed now it would lose what is in no file yet; "
                "restart the daemon in order for a new spool",
            )
        elif not self._spool.has_manifest():
            with contextlib.suppress(OSError):  # tried again in a second
                self._spool.bind_again(manifest)
                self._log.warning("spool-vanished", spool=f"{self._spool.path}.json", action="made")

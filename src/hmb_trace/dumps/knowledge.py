# SPDX-License-Identifier: Apache-2.0
"""Gaps and losses of a pass that was made with a plain walker; the account is the place to ask."""

from __future__ import annotations

from hmb_trace.dumps.account import account, is_stream
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.walker import Walker


def known_losses(dump: Dump, walker: Walker) -> tuple[int, int]:
    """Gaps and lost records, as account() has them; of a pipe those that the walker saw."""
    if is_stream(dump):
        return int(walker.gaps), int(walker.lost)
    found = account(dump)
    return found.gaps, found.lost

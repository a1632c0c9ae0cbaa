# SPDX-License-Identifier: Apache-2.0
"""What opcodes and payloads are called: from the catalog, or hex without one."""

from __future__ import annotations

from hmb_trace.report.sample import Kept

HEX_BYTES = 24  # of a payload that no catalog explains
MESSAGE_CHARS = 200


class Names:
    """Names of opcodes; hex for those that the catalog does not know."""

    catalogued = False

    def opcode(self, opcode: int) -> str:
        """The event's name."""
        return f"0x{opcode:04x}"

    def kind(self, opcode: int) -> str:
        """instant, begin, end, complete or counter; empty without a catalog."""
        return ""

    def message(self, kept: Kept) -> str:
        """The payload as people read it."""
        return hex_text(kept.payload)


def hex_text(payload: bytes) -> str:
    """The first bytes in hex, and how many more there are."""
    more = len(payload) - HEX_BYTES
    return payload[:HEX_BYTES].hex(" ") + (f" … +{more} B" if more > 0 else "")

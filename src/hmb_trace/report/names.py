# SPDX-License-Identifier: Apache-2.0
"""What opcodes and payloads are called: from the catalog, or hex without one."""

from __future__ import annotations

from hmb_trace.catalog.model import Catalog
from hmb_trace.report.sample import Kept

HEX_BYTES = 24  # of a payload that no catalog explains
MESSAGE_CHARS = 200


class Names:
    """Names of opcodes; hex for those that the catalog, if any, does not know."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self._catalog = catalog

    @property
    def catalogued(self) -> bool:
        """Whether there is a catalog."""
        return self._catalog is not None

    def opcode(self, opcode: int) -> str:
        """The event's name."""
        return self._catalog.name_of(opcode) if self._catalog else f"0x{opcode:04x}"

    def kind(self, opcode: int) -> str:
        """instant, begin, end, complete or counter; empty without a catalog."""
        event = self._catalog.get(opcode) if self._catalog else None
        return event.kind if event else ""

    def message(self, kept: Kept) -> str:
        """The payload as people read it: the message, the fields, or hex."""
        event = self._catalog.get(kept.opcode) if self._catalog else None
        if event is None or not (event.format or event.fields):
            return hex_text(kept.payload)
        if event.format:
            header = {"seq": kept.seq, "ts_ns": kept.ts_ns, "cpu": kept.cpu, "flags": kept.flags}
            return _clip(event.message(kept.payload, **header))
        values = event.values(kept.payload)
        labelled = (f"{f.name}={_plain(f.label(values[f.name]))}" for f in event.fields)
        return _clip(" ".join(labelled))


def hex_text(payload: bytes) -> str:
    """The first bytes in hex, and how many more there are."""
    more = len(payload) - HEX_BYTES
    return payload[:HEX_BYTES].hex(" ") + (f" … +{more} B" if more > 0 else "")


def _plain(value: object) -> object:
    if value is None:
        return "?"
    return value.hex() if isinstance(value, bytes) else value


def _clip(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS else f"{text[: MESSAGE_CHARS - 1]}…"

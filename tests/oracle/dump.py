# SPDX-License-Identifier: Apache-2.0
"""What a reader must make of a dump (format.md: Dump; R12, R13, rule 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracle.sequence import Gap, Sequence
from tests.oracle.wire import HEADER, MAX_PAYLOAD, RECORD_MAGIC, Header, decode


@dataclass(frozen=True)
class Entry:
    """A record of the dump and where it begins."""

    offset: int
    header: Header
    payload: bytes


@dataclass
class Account:
    """Everything that a dump says by itself."""

    records: list[Entry] = field(default_factory=list)
    markers: list[Entry] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    lost: int = 0
    duplicates: int = 0
    sequence_resets: int = 0
    glitches: int = 0
    truncated: int = 0
    error: str | None = None  # header, payload (cut inside it), magic, payload_len
    offset: int = 0  # where reading ended: of the error, or of the end

    @property
    def complete(self) -> bool:
        return self.error is None


def fault(dump: bytes, at: int) -> str | None:
    """Why no whole record stands at this offset."""
    if len(dump) - at < HEADER:
        return "header"
    header = decode(dump[at : at + HEADER])
    if header.magic != RECORD_MAGIC:
        return "magic"
    if not header.is_marker and header.payload_len > MAX_PAYLOAD:
        return "payload_len"
    return "payload" if at + header.span > len(dump) else None


def read_dump(dump: bytes, known_rejects: int = 0) -> Account:
    """Read up to the end or the first fault."""
    account = Account()
    sequence = Sequence(known_rejects)
    at = 0
    while at < len(dump):
        account.error = fault(dump, at)
        if account.error:
            break
        at = _take(account, sequence, dump, at)
    sequence.settle()
    account.offset = at
    account.gaps = sequence.gaps
    account.lost = sequence.lost
    account.duplicates = sequence.duplicates
    account.sequence_resets = sequence.resets
    account.glitches = sequence.glitches
    return account


def _take(account: Account, sequence: Sequence, dump: bytes, at: int) -> int:
    header = decode(dump[at : at + HEADER])
    if header.is_marker:
        account.markers.append(Entry(at, header, b""))
        sequence.marker(header.seq)
    else:
        payload = dump[at + HEADER : at + HEADER + header.payload_len]
        account.records.append(Entry(at, header, payload))
        account.truncated += header.flags >> 1 & 1
        sequence.record(header.seq)
    return at + header.span

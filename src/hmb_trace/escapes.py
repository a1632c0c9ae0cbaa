# SPDX-License-Identifier: Apache-2.0
"""Which characters of foreign text are shown as escapes instead of obeyed, and how.

Text of firmware, of file names and of catalogs may hold anything: control characters that a
terminal obeys, marks that turn the reading direction, separators that end a line for some
readers, and characters without a width that make two names look the same. libhmbtrace/dump/render.c
has the same table for the records themselves; a test compares the two.
"""

from __future__ import annotations

import re

# First and last code point. C0; DEL and C1; soft hyphen; marks of direction, joiners, separators;
# Hangul fillers; byte order mark; annotations; musical and tag characters that have no shape.
UNSAFE = (
    (0x0000, 0x001F),
    (0x007F, 0x009F),
    (0x00AD, 0x00AD),
    (0x061C, 0x061C),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF9, 0xFFFB),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE007F),
)
_SURROGATES = (0xD800, 0xDFFF)  # in names that are no UTF-8; bytes of a record have none
_CLASS = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in (*UNSAFE, _SURROGATES))
_PATTERN = re.compile(f"[{_CLASS}]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def printable(text: str) -> str:
    """Text for a terminal or a line of a file: `\\x0a`, `\\u202e` instead of the character."""
    return _PATTERN.sub(_escape, text)


def printable_json(text: str) -> str:
    """JSON text with every such character as a \\u escape; it can stand in strings only."""
    return _PATTERN.sub(_json_escape, text)

# SPDX-License-Identifier: Apache-2.0
"""The only module that touches libhmbtrace: opens it, reads its interface, checks the layout."""

from __future__ import annotations

from hmb_trace._binding import carried_text, library_path, open_library

_PATH = library_path(__file__, "_libhmbtrace")
_TEXT = "hmb_api_text"


def _api_text() -> str:
    """libhmbtrace/api/*.h as they were compiled into the library."""
    return carried_text(_PATH, _TEXT).decode()


ffi, lib = open_library("hmb_trace", _PATH, _TEXT)


def layout() -> dict[str, tuple[int, int]]:
    """Offset and size, in bytes, of every field that the C compiler laid out."""
    entry = ffi.new("struct hmb_layout_entry *")
    found: dict[str, tuple[int, int]] = {}
    index = 0
    while lib.hmb_layout(index, entry) == 0:
        found[ffi.string(entry.name).decode()] = (entry.offset, entry.size)
        index += 1
    return found

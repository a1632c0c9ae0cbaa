# SPDX-License-Identifier: Apache-2.0
"""A dump inside a .pccx (SPEC P3, P6, P7): where its bytes are, and what the header says of them.

Only what reading records needs; `hmb_trace.pccx` knows the whole format.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmb_trace.errors import InvalidDataError, from_os_error

MAGIC = b"PCCX"
MAJOR, MINOR = 1, 1
PREFIX = struct.Struct("<4sBBHQ")  # magic, major, minor, reserved, header length
HEADER_MAX = 64 << 20  # bytes of JSON (SPEC P3)
EXTRA_KEY = "hmb_trace"  # our own object in the header (SPEC P7)


class PccxError(InvalidDataError):
    """Not a valid .pccx file (exit 65)."""


@dataclass(frozen=True)
class Prefix:
    """The 16 bytes before the JSON header."""

    major: int
    minor: int
    reserved: int
    header_length: int


def parse_prefix(data: bytes, name: str) -> Prefix:
    """Check the first 16 bytes of a file.

    Raises:
        PccxError: too short, another magic, another major version, a header over 64 MiB.
    """
    if data[:4] != MAGIC:
        found = data[:4].hex(" ") or "an empty file"
        raise PccxError(f"{name}: magic: found {found}, expected {MAGIC.hex(' ')} (PCCX)")
    if len(data) < PREFIX.size:
        raise PccxError(f"{name}: ends after {len(data)} bytes, expected a {PREFIX.size}-byte head")
    _, major, minor, reserved, length = PREFIX.unpack(data[: PREFIX.size])
    if major != MAJOR:
        raise PccxError(f"{name}: major version: found {major}, expected {MAJOR}")
    if length > HEADER_MAX:
        raise PccxError(f"{name}: header length: found {length}, expected at most {HEADER_MAX}")
    return Prefix(major, minor, reserved, length)


@dataclass(frozen=True)
class Packaged:
    """The payload of a .pccx.

    Attributes:
        encoding: raw payloads alone are dumps.
        begin, length: of the payload in the file, bytes.
        about: our own object in the header; empty where another program wrote the file.
    """

    encoding: str
    begin: int
    length: int
    about: dict[str, Any]


def look(path: Path) -> Packaged:
    """Read prefix and header.

    Raises:
        PccxError: torn, or not of this format. HmbTraceError: cannot be read.
    """
    try:
        with path.open("rb") as file:
            prefix = parse_prefix(file.read(PREFIX.size), str(path))
            size = os.fstat(file.fileno()).st_size
            text = file.read(prefix.header_length)
    except OSError as error:
        raise from_os_error(error, f"cannot read {path}") from error
    begin = PREFIX.size + prefix.header_length
    if begin > size:
        raise PccxError(
            f"{path}: header length: found {prefix.header_length}, "
            f"but only {size - PREFIX.size} bytes follow"
        )
    header = _object(_parsed(text, path))
    payload = _object(header.get("payload"))
    length = payload.get("byte_length", 0)
    if not isinstance(length, int) or not 0 <= length <= size - begin:
        raise PccxError(
            f"{path}: payload.byte_length: header says {length}, but only {size - begin} "
            "bytes follow"
        )
    encoding = str(payload.get("encoding", ""))
    return Packaged(encoding, begin, length, _object(header.get(EXTRA_KEY)))


def _parsed(text: bytes, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PccxError(f"{path}: header: not JSON: {error}") from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

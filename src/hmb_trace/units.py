# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates as people write them: 64MiB, 2ms, 100k/s."""

from __future__ import annotations

import re

from hmb_trace.errors import UsageError

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_TIMES = {
    "ns": 1,
    "us": 1000,
    "ms": 10**6,
    "": 10**9,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_COUNTS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9}
_NUMBER = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*\Z")


def _scaled(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.match(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"{what}: found {text[:60]!r}, expected a number with a unit such as {example}"
        )
    if "." not in match[1]:
        return int(match[1]) * unit
    whole, fraction = match[1].split(".")
    return int(whole) * unit + int(fraction) * unit // int("1" + "0" * len(fraction))


def parse_size(text: str) -> int:
    """'64MiB' -> bytes. KiB/MiB/GiB are binary, kB/MB/GB decimal.

    Raises:
        UsageError: not a size.
    """
    return _scaled(text, _SIZES, "size", "64MiB")


def parse_duration(text: str) -> int:
    """'2ms' -> nanoseconds; a bare number is seconds.

    Raises:
        UsageError: not a time.
    """
    return _scaled(text, _TIMES, "time", "2ms, 1.5s or 1h")


def parse_rate(text: str) -> int | None:
    """'100k/s' -> events per second; 'max' -> None.

    Raises:
        UsageError: not a rate.
    """
    if text.strip().lower() == "max":
        return None
    return _scaled(text.strip().removesuffix("/s"), _COUNTS, "rate", "100k/s or max")


def format_size(size: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(nanoseconds: float) -> str:
    """Nanoseconds for people: 1.50 ms."""
    for limit, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms")):
        if abs(nanoseconds) < limit * 0.9995:  # else three digits would say 1e+03
            return f"{nanoseconds / limit * 1000:.3g} {unit}"
    return f"{nanoseconds / 1e9:.3f} s"

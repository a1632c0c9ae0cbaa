# SPDX-License-Identifier: Apache-2.0
"""The JSON header of a .pccx file as typed values (seeds 000 and 001; SPEC P1, P3, P7).

Keys that nobody here knows are kept, at every level, and written again after the known ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from hmb_trace.dumps import packaged
from hmb_trace.errors import InvalidDataError

FORMAT_MINOR = 1
HEADER_MAX = packaged.HEADER_MAX
EXTRA_KEY = packaged.EXTRA_KEY

_MOST_VALUES = 1 << 20  # in a header: more would take minutes and gigabytes to parse
_U8, _U32, _U64 = (1 << 8) - 1, (1 << 32) - 1, (1 << 64) - 1
_HEX = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,16})\Z")
_T = TypeVar("_T")


class HeaderError(InvalidDataError):
    """The JSON header is wrong; the message names the field's path."""


@dataclass
class Arch:
    """`arch`: the hardware that the trace is about."""

    mac_dims: tuple[int, int] = (0, 0)  # rows, columns
    isa_version: str = ""
    peak_tops: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """`trace`: extent and clock."""

    cycles: int = 0
    cores: int = 0
    clock_mhz: int = 1000
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Payload:
    """`payload`: how the bytes after the header are encoded."""

    encoding: str = ""
    byte_length: int = 0
    checksum_fnv64: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Header:
    """A .pccx header. `extra` holds every other top-level key, `hmb_trace` among them."""

    pccx_lab_version: str
    arch: Arch = field(default_factory=Arch)
    trace: Trace = field(default_factory=Trace)
    payload: Payload = field(default_factory=Payload)
    format_minor: int = FORMAT_MINOR
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def hmb_trace(self) -> dict[str, Any]:
        """What hmb-trace noted about the capture (SPEC P7); empty for files of others."""
        found = self.extra.get(EXTRA_KEY)
        return found if isinstance(found, dict) else {}


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys came twice."""

    twice: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        made.twice = frozenset(key for key, count in counts.items() if count > 1)
    return made


def _integer(text: str) -> int | float:
    # "-0" is no integer for the reference reader; as a float it is mistyped wherever one is due.
    return -0.0 if text == "-0" else int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _found(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(path: str, value: Any, expected: str) -> HeaderError:
    return HeaderError(f"header {path}: found {_found(value)}, expected {expected}")


class _Reader:
    """Takes known fields out of one JSON object; what remains is `extra`."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, _Object):
            raise _wrong(path or "(top level)", value, "an object")
        self._path = path
        self._rest = _Object(value)
        self._twice = value.twice

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, *default: _T) -> Any | _T:
        if key in self._twice:
            raise HeaderError(f"header {self.path(key)}: found twice, expected once")
        if key in self._rest:
            return self._rest.pop(key)
        if default:
            return default[0]
        raise HeaderError(f"header {self.path(key)}: missing, expected a value")

    def integer(self, key: str, most: int, *default: int) -> int:
        value = self.take(key, *default)
        if type(value) is not int or not 0 <= value <= most:
            raise _wrong(self.path(key), value, f"an integer from 0 to {most}")
        return value

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str):
            raise _wrong(self.path(key), value, "a string")
        return value

    def number(self, key: str, *default: float) -> float:
        value = self.take(key, *default)
        if type(value) not in (int, float):
            raise _wrong(self.path(key), value, "a number")
        try:
            return float(value)
        except OverflowError:
            raise _wrong(self.path(key), value, "a 64-bit float") from None

    def child(self, key: str) -> _Reader | None:
        """The object under key; None where there is none (SPEC P3: then zeros)."""
        if key not in self._rest:
            return None
        return _Reader(self.take(key), self.path(key))

    @property
    def extra(self) -> dict[str, Any]:
        return dict(self._rest)


def _arch(reader: _Reader | None) -> Arch:
    if reader is None:
        return Arch()
    dims = reader.take("mac_dims")
    if not isinstance(dims, list) or len(dims) != 2:
        raise _wrong(reader.path("mac_dims"), dims, "two integers")
    for index, dim in enumerate(dims):
        if type(dim) is not int or not 0 <= dim <= _U32:
            path = f"{reader.path('mac_dims')}[{index}]"
            raise _wrong(path, dim, f"an integer from 0 to {_U32}")
    isa = reader.text("isa_version")
    return Arch((dims[0], dims[1]), isa, reader.number("peak_tops", 0.0), reader.extra)


def _trace(reader: _Reader | None) -> Trace:
    if reader is None:
        return Trace()
    cycles, cores = reader.integer("cycles", _U64), reader.integer("cores", _U32)
    return Trace(cycles, cores, reader.integer("clock_mhz", _U32, 1000), reader.extra)


def _checksum(reader: _Reader) -> int | None:
    value = reader.take("checksum_fnv64", None)
    if value is None:
        return None
    if type(value) is int and 0 <= value <= _U64:
        return value
    match = _HEX.match(value) if isinstance(value, str) else None
    if match is None:
        expected = "a 64-bit number, 1 to 16 hex digits in a string, or null"
        raise _wrong(reader.path("checksum_fnv64"), value, expected)
    return int(match[1], 16)


def _payload(reader: _Reader | None) -> Payload:
    if reader is None:
        return Payload()
    encoding, length = reader.text("encoding"), reader.integer("byte_length", _U64)
    return Payload(encoding, length, _checksum(reader), reader.extra)


def load_json(data: bytes) -> dict[str, Any]:
    """The JSON object in data, keys that came twice marked.

    Raises:
        HeaderError: not UTF-8, not JSON, not an object.
    """
    if (values := sum(map(data.count, (b",", b"[", b"{")))) > _MOST_VALUES:
        raise HeaderError(f"header: found about {values} values, expected at most {_MOST_VALUES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeaderError(f"header: byte {error.start} is not UTF-8, expected UTF-8 JSON") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_constant=_no_constant,
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no Unicode text
    except RecursionError:
        raise HeaderError("header: nested too deep, expected a plain JSON object") from None
    except ValueError as error:
        raise HeaderError(f"header: not valid JSON ({error}), expected an object") from None
    if not isinstance(value, dict):
        raise _wrong("(top level)", value, "an object")
    return value


def parse_header(data: bytes) -> tuple[Header, dict[str, Any]]:
    """The typed header, and the object as it was read.

    Args:
        data: the JSON header, UTF-8; white space around the object is allowed (padding).

    Raises:
        HeaderError: SPEC P3; the message names the field's path.
    """
    raw = load_json(data)
    reader = _Reader(raw, "")
    version = reader.text("pccx_lab_version")
    arch, trace = _arch(reader.child("arch")), _trace(reader.child("trace"))
    payload = _payload(reader.child("payload"))
    minor = reader.integer("format_minor", _U8, 0)
    return Header(version, arch, trace, payload, minor, reader.extra), raw


def reference_float(value: float) -> str:
    """The shortest decimal that reads back as value, laid out as Rust's serde_json does."""
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise HeaderError(f"header: found {value}, expected a finite number")
    text, minus = "".join(map(str, digits)), "-" if sign else ""
    point = len(text) + exponent  # digits before the decimal point
    if value == 0:
        return f"{minus}0.0"
    if exponent >= 0 and point <= 16:
        return f"{minus}{text}{'0' * exponent}.0"
    if 0 < point <= 16:
        return f"{minus}{text[:point]}.{text[point:]}"
    if -5 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    mantissa = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
    return f"{minus}{mantissa}e{point - 1}"


def checksum_value(checksum: int | None, style: str) -> int | str | None:
    """The checksum as it stands in the JSON. style: number, hex or none (SPEC P1)."""
    if checksum is None or style == "none":
        return None
    return f"{checksum:#018x}" if style == "hex" else checksum


def header_object(header: Header, style: str = "number") -> dict[str, Any]:
    """The header as the JSON object that is written: known keys first, in the struct's order."""
    arch, trace, payload = header.arch, header.trace, header.payload
    return {
        "pccx_lab_version": header.pccx_lab_version,
        "arch": {
            "mac_dims": list(arch.mac_dims),
            "isa_version": arch.isa_version,
            "peak_tops": arch.peak_tops,
            **arch.extra,
        },
        "trace": {
            "cycles": trace.cycles,
            "cores": trace.cores,
            "clock_mhz": trace.clock_mhz,
            **trace.extra,
        },
        "payload": {
            "encoding": payload.encoding,
            "byte_length": payload.byte_length,
            "checksum_fnv64": checksum_value(payload.checksum_fnv64, style),
            **payload.extra,
        },
        "format_minor": header.format_minor,
        **header.extra,
    }


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _members(texts: dict[str, str]) -> str:
    return "{" + ",".join(f"{_compact(key)}:{text}" for key, text in texts.items()) + "}"


def encode_header(header: Header, style: str = "number") -> bytes:
    """The header as compact UTF-8 JSON, byte for byte what the reference writer makes of it.

    Args:
        header: the values; `extra` follows the known keys.
        style: how the checksum is written: number, hex or none.

    Raises:
        HeaderError: a value that JSON cannot hold, or more than 64 MiB of it.
    """
    made = header_object(header, style)
    peak = reference_float(header.arch.peak_tops)
    try:
        arch = _members({k: _compact(v) for k, v in made["arch"].items()} | {"peak_tops": peak})
        data = _members({k: _compact(v) for k, v in made.items()} | {"arch": arch}).encode()
    except (TypeError, ValueError) as error:
        raise HeaderError(f"header: cannot be written as JSON ({error})") from None
    if len(data) > HEADER_MAX:
        raise HeaderError(f"header: {len(data)} bytes, expected at most {HEADER_MAX}")
    return data

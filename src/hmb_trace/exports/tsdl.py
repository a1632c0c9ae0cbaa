# SPDX-License-Identifier: Apache-2.0
"""The metadata text of a CTF 1.8 trace whose streams are dump files (TSDL)."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hmb_trace.catalog.model import Field
from hmb_trace.dumps.dump import Dump
from hmb_trace.dumps.knowledge import sidecar_of

_NS = 10**9

_HEAD = """/* CTF 1.8 */

typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 16; align = 8; signed = false; } := uint16_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
typealias integer { size = 8; align = 8; signed = true; } := int8_t;
typealias integer { size = 16; align = 8; signed = true; } := int16_t;
typealias integer { size = 32; align = 8; signed = true; } := int32_t;
typealias integer { size = 64; align = 8; signed = true; } := int64_t;
typealias integer { size = 8; align = 8; signed = false; base = 16; } := byte_t;
typealias integer { size = 8; align = 8; signed = false; encoding = UTF8; } := char_t;
typealias floating_point { exp_dig = 8; mant_dig = 24; align = 8; } := float_t;
typealias floating_point { exp_dig = 11; mant_dig = 53; align = 8; } := double_t;

trace {
	major = 1;
	minor = 8;
	byte_order = le;
};
"""

_STREAM = """
typealias integer {
	size = 64; align = 8; signed = false; map = clock.firmware.value;
} := timestamp_t;

/* struct hmb_record_hdr: the first 18 bytes name the event, the other 14 are its context. */
stream {
	event.header := struct {
		uint32_t magic;
		uint32_t seq;
		timestamp_t timestamp;
		uint16_t id;
	} align(64);
	event.context := struct {
		uint8_t cpu_id;
		uint8_t flags;
		uint16_t payload_len;
		uint16_t reserved0;
		uint64_t reserved1;
	};
};
"""


@dataclass(frozen=True)
class Declaration:
    """An event of the trace.

    Attributes:
        size: bytes of every payload; None: they differ, and the payload is a byte sequence.
        fields: typed fields; empty: bare bytes.
        padded: say that the payload is padded to 8 bytes. Readers find that by themselves from
            the next event's alignment, but not where a file ends: they read on.
    """

    opcode: int
    name: str
    size: int | None
    fields: Sequence[Field]
    padded: bool = False


def metadata_text(
    declared: Sequence[Declaration], *, offset_ns: int | None, env: Mapping[str, str | int]
) -> str:
    """The metadata file's text.

    Args:
        offset_ns: host clock (ns since 1970) minus firmware clock; None: unknown.
        env: what the trace says about itself.
    """
    parts = [_HEAD, _environment(env), _clock(offset_ns), _STREAM]
    parts += [_event(one) for one in declared]
    return "".join(parts)


def quoted(text: str) -> str:
    """A TSDL string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = "".join(c if c.isprintable() else "?" for c in escaped)
    return f'"{plain}"'


def about_dump(dump: Dump, files: Sequence[int]) -> dict[str, str | int]:
    """What the sidecars of some files of a dump know about where the records come from."""
    found: dict[str, str | int] = {"tracer_name": "hmb-trace"}
    known = next(filter(None, (sidecar_of(dump.segments[index]) for index in files)), None)
    if known is not None:
        device = known.device
        values = {
            "label": known.label,
            "device": device.path,
            "device_serial": device.serial,
            "device_model": device.model,
            "firmware_revision": device.firmware,
            "capture_start": _iso(known.started_ns),
        }
        found |= {key: value for key, value in values.items() if value}
    return found


def _environment(env: Mapping[str, str | int]) -> str:
    lines = [
        f"\t{key} = {quoted(value) if isinstance(value, str) else value};\n"
        for key, value in env.items()
    ]
    return f"\nenv {{\n{''.join(lines)}}};\n"


def _iso(ns: int) -> str:
    return datetime.datetime.fromtimestamp(ns / _NS, datetime.UTC).isoformat() if ns else ""


def _clock(offset_ns: int | None) -> str:
    seconds, rest = divmod(offset_ns or 0, _NS)
    absolute = "false" if offset_ns is None else "true"
    return (
        '\nclock {\n\tname = firmware;\n\tdescription = "firmware monotonic clock";\n'
        f"\tfreq = {_NS};\n\toffset_s = {seconds};\n\toffset = {rest};\n"
        f"\tabsolute = {absolute};\n}};\n"
    )


def _event(one: Declaration) -> str:
    return (
        f"\nevent {{\n\tname = {quoted(one.name)};\n\tid = {one.opcode};\n"
        f"\tfields := struct {{\n{_fields(one)}{_padding(one)}\t}};\n}};\n"
    )


def free_name(wanted: str, taken: Collection[str]) -> str:
    """A name of ours that none of the catalog's names is."""
    while wanted in taken:
        wanted += "_"
    return wanted


def _member_name(wanted: str, one: Declaration) -> str:
    """A generated member's name as it is written: with the escape, unlike every field's."""
    return "_" + free_name(wanted, [field.name for field in one.fields])


def _padding(one: Declaration) -> str:
    return f"\t\tstruct {{ }} align(64) {_member_name('padding', one)};\n" if one.padded else ""


def _fields(one: Declaration) -> str:
    if one.fields:
        typed = _typed(one)
        if typed is not None:
            return typed
        return f"\t\tbyte_t _payload[{one.size}];\n"  # fields that overlap
    if one.size == 0:
        return ""
    return "\t\tbyte_t _payload[stream.event.context.payload_len];\n"


def _typed(one: Declaration) -> str | None:
    """The payload as typed fields with the gaps between them; None if they overlap."""
    at = 0
    lines = []
    for field in sorted(one.fields, key=lambda f: f.offset):
        if field.offset < at:
            return None
        if field.offset > at:
            gap = _member_name(f"gap{at}", one)
            lines.append(f"\t\tbyte_t {gap}[{field.offset - at}];\n")
        lines.append(f"\t\t{_member(field)};\n")
        at = field.offset + field.size
    return "".join(lines)


def _member(field: Field) -> str:
    # One leading underscore is the escape of CTF readers: they show the name without it.
    name = f"_{field.name}"
    if field.type.startswith("char"):
        return f"char_t {name}[{field.size}]"
    if field.type.startswith("bytes"):
        return f"byte_t {name}[{field.size}]"
    if field.type[0] == "f":
        return f"{'float_t' if field.size == 4 else 'double_t'} {name}"
    base = f"{'u' if field.type[0] == 'u' else ''}int{8 * field.size}_t"
    if field.enum:
        return f"{_enum(base, field)} {name}"
    return f"{base} {name}"


def _enum(base: str, field: Field) -> str:
    labels = ", ".join(f"{quoted(label)} = {value}" for value, label in field.enum.items())
    return f"enum : {base} {{ {labels} }}"

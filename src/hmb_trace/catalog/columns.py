# SPDX-License-Identifier: Apache-2.0
"""Names of payload columns: one rule for listings, expressions, SQL, Parquet and Arrow.

A field is a column of its own name. Fields of several events share it where their types agree.
A name that a record has itself gets `payload_` in front; a field of another type than an earlier
one of the same name is called EVENT_FIELD. Names differ in more than upper and lower case, since
SQL does not tell those apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hmb_trace.catalog.events import Event, Field

RECORD_COLUMNS = ("seq", "ts_ns", "opcode", "cpu", "flags", "payload_len")
RESERVED = frozenset(
    [
        *RECORD_COLUMNS,
        *("name", "payload", "offset", "time", "message", "fields"),
        *("epoch", "host_ns", "host_time", "file"),
    ]
)


@dataclass
class Column:
    """A payload column: the field of one or more events that means the same.

    Attributes:
        fields: by opcode.
    """

    name: str
    type: str
    fields: dict[int, Field] = field(default_factory=dict)


def payload_columns(events: Iterable[Event]) -> list[Column]:
    """The columns for all fields of the events, in the catalog's order."""
    found: dict[tuple[str, str], Column] = {}
    taken: set[str] = {*RESERVED}
    for event in events:
        for one in event.fields:
            column = found.get((one.name, one.type))
            if column is None:
                name = _free_name(event, one, taken)
                column = Column(name, one.type)
                found[one.name, one.type] = column
                taken.add(name.lower())
            column.fields[event.opcode] = one
    return list(found.values())


def _free_name(event: Event, one: Field, taken: set[str]) -> str:
    """The field's name, or one that is free."""
    first = f"payload_{one.name}" if one.name.lower() in RESERVED else one.name
    wanted = [first, f"{event.name}_{one.name}"]
    for name in wanted:
        if name.lower() not in taken:
            return name
    number = 2
    while f"{wanted[-1]}_{number}".lower() in taken:
        number += 1
    return f"{wanted[-1]}_{number}"

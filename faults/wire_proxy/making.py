"""Messages made up: what a field holds of which nothing is said.

That is the schema's default, else nothing at all: an empty list, an absent text, 0, and -1 for what is 64 bits wide,
which is Kafka's "unknown" for offsets, timestamps and producer ids. (A base offset of 0 beside an error would say that
the records were appended.)
"""

from dataclasses import MISSING
from datetime import timedelta
from typing import Any

from kio.static.protocol import Entity

from aftershock.faults.wire_proxy.naming import NUMBER_FIELDS
from aftershock.workloads.wire.schema import Field, plain_fields, tagged_fields

_ZEROS: dict[str, Any] = {
    "uuid": None,
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "int64": -1,
    "datetime_i64": None,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


def made(kind: type[Entity], said: dict[str, Any]) -> Any:
    """An entity that says this, as far as it has room for it."""
    plain = {field.name: said.get(field.name, _default(field)) for field in plain_fields(kind)}
    return kind(**plain, **{field.name: field.default for field in tagged_fields(kind)})


def _default(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.is_array:
        return None if field.nullable else ()
    if not isinstance(field.kind, str):
        return None if field.nullable else made(field.kind, {})
    return None if field.nullable else _ZEROS.get(field.kind, 0)


def struct_of(field: Field) -> type[Entity] | None:
    """What the items of a list are, where they are structs."""
    return field.kind if field.is_array and not isinstance(field.kind, str) else None


def number_field(kind: type[Entity]) -> str | None:
    """How a struct calls its partition, if it is about one."""
    names = {field.name for field in plain_fields(kind)}
    return next((name for name in NUMBER_FIELDS if name in names), None)

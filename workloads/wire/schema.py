"""What kio's dataclasses say about their fields, in the words that our encoder and decoder compile from.

kio generates one frozen dataclass for every struct of every version of Kafka's messages. A field's annotation tells
whether it is an array, a nested struct, or nullable; its metadata has Kafka's type name and, for a tagged field
(KIP-482), the tag.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from itertools import groupby
from types import NoneType
from typing import NamedTuple, get_args, get_origin

from kio.static.protocol import Entity

from aftershock.errors import UnsupportedError
from aftershock.workloads.wire.primitives import FIXED, Fixed


class Field(NamedTuple):
    """One field of a struct, in its order on the wire.

    ``kind``: Kafka's type name (``int32``, ``string``), or the struct nested here; of an array, its items'.
    ``compact``: lengths are unsigned varints. ``tag`` and ``default`` matter for tagged fields alone.
    """

    name: str
    kind: str | type[Entity]
    is_array: bool
    nullable: bool
    compact: bool
    tag: int | None
    default: object

    @property
    def fixed(self) -> Fixed | None:
        """Its form, if it takes the same number of bytes whatever its value."""
        return None if self.is_array or not isinstance(self.kind, str) else FIXED.get(self.kind)


@cache
def plain_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """The fields that are always there."""
    return tuple(field for field in _fields(entity_type) if field.tag is None)


def runs(entity_type: type[Entity]) -> Iterator[tuple[Field, ...]]:
    """The plain fields, neighbours of fixed size together, others one by one."""
    for is_run, group in groupby(plain_fields(entity_type), lambda field: field.fixed is not None):
        if is_run:
            yield tuple(group)
        else:
            yield from ((field,) for field in group)


@cache
def tagged_fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    """The fields that are there when they differ from their default, by rising tag as KIP-482 wants them."""
    tagged = {field.tag: field for field in _fields(entity_type) if field.tag is not None}
    for field in tagged.values():
        if field.default is MISSING:
            raise UnsupportedError(f"{entity_type.__module__}: tagged field {field.name} has no default in kio")
    return tuple(tagged[tag] for tag in sorted(tagged))


def _fields(entity_type: type[Entity]) -> tuple[Field, ...]:
    is_request_header = entity_type.__name__ == "RequestHeader"
    found = []
    for field in fields(entity_type):
        bare, nullable = _without_none(field.type)
        is_array = get_origin(bare) is tuple
        item = _without_none(get_args(bare)[0])[0] if is_array else bare
        # RequestHeader.json: a broker must be able to read the client id before it knows the version
        compact = entity_type.__flexible__ and not (is_request_header and field.name == "client_id")
        kind = field.metadata.get("kafka_type", item)
        found.append(Field(field.name, kind, is_array, nullable, compact, field.metadata.get("tag"), field.default))
    return tuple(found)


def _without_none(annotation: object) -> tuple[object, bool]:
    """``X | None`` is X, nullable; anything else is itself. kio has no other unions."""
    some = [part for part in get_args(annotation) if part is not NoneType]
    return (some[0], True) if NoneType in get_args(annotation) else (annotation, False)

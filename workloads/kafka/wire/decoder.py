"""Decodes Kafka's bytes into kio's dataclasses, bounded in memory and tolerant of what newer brokers add.

kio's own reader isn't used on bytes off the wire: it reserves memory for whatever number of items a message claims (a
ten-byte answer that claims 2^31 ends the process), fails on a tagged field or an error code that it doesn't know, and
gives None for arrays that can't be null. Here

1. a length or count must fit into what is left of the message; all arrays and tags of one message together have at most
   ITEMS_MAX items, which is 35,000 partitions with their replicas, and less than 250 MB of Python objects at the worst;
   a string has at most STRING_BYTES_MAX bytes, as in Kafka's own readers;
2. an unknown tagged field is skipped (KIP-482), an unknown error code is a plain int;
3. null where the schema has none, a tag of another size than it says, text that isn't UTF-8: the message is refused.

A struct becomes a function that reads its fields one after the other; neighbouring fields of fixed size share a single
``Struct.unpack_from``. ``records`` are views of the message, not copies: they live as long as it does.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from kio.static.protocol import Entity

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.schema import (
    FIXED,
    Field,
    Fixed,
    Function,
    plain_fields,
    read_uvarint,
    runs,
    tagged_fields,
)

ITEMS_MAX = 250_000
STRING_BYTES_MAX = 0x7FFF
_HIGH_BIT = 0x80

Data = bytes | memoryview
E = TypeVar("E", bound=Entity)
#: (data, position, [items that arrays may still have]) -> value, position behind
Reader = Callable[[Data, int, list[int]], tuple[Any, int]]
#: (data, position) -> length or -1 for null, position behind
Length = Callable[[Data, int], tuple[int, int]]
#: (data, position, count, as of Reader) -> items, position behind
Items = Callable[[Data, int, int, list[int]], tuple[tuple[Any, ...], int]]


def decode(entity_type: type[E], data: Data, position: int = 0) -> tuple[E, int]:
    """The entity at ``position`` of ``data`` and the position behind it.

    Raises:
        ProtocolError: the bytes are no such entity, or one beyond the limits.
    """
    try:
        entity, end = _struct(entity_type)(data, position, [ITEMS_MAX])
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        reason = "it ends too early" if isinstance(error, struct.error | IndexError) else error
        raise ProtocolError(f"{entity_type.__name__} v{entity_type.__version__} can't be read: {reason}") from error
    return entity, end


def prepare_decoder(entity_type: type[Entity]) -> None:
    """Compile what ``decode`` would at its first use."""
    _struct(entity_type)


@cache
def _struct(entity_type: type[Entity]) -> Reader:
    function = Function("(data, position, left)")
    for run in runs(entity_type):
        if run[0].fixed:
            _add_run(function, run)
        else:
            _add_variable(function, run[0])
    tagged = tagged_fields(entity_type)
    if entity_type.__flexible__:
        _add_tags(function, tagged)
    _add_making(function, entity_type, [field.name for field in (*plain_fields(entity_type), *tagged)])
    return function.made()


def _add_run(function: Function, fields: Sequence[Field]) -> None:
    """Neighbouring fields of fixed size are one ``Struct.unpack_from``."""
    forms = [FIXED[str(field.kind)] for field in fields]
    layout = struct.Struct(">" + "".join(form.code for form in forms))
    targets = "".join(f"v_{field.name}, " for field in fields)
    function.add(f"{targets}= {function.bind(layout.unpack_from)}(data, position)", f"position += {layout.size}")
    for field, form in zip(fields, forms, strict=True):
        if form.from_wire:
            function.add(f"v_{field.name} = {function.bind(form.from_wire)}(v_{field.name})")


def _add_variable(function: Function, field: Field) -> None:
    """A string, bytes, an array or a struct. Compact ones that are null, empty or short strings need no call."""
    name, read = f"v_{field.name}", function.bind(_value(field))
    reading = f"{name}, position = {read}(data, position, left)"
    if not field.compact or not (field.is_array or field.kind in _CONVERSIONS):
        function.add(reading)
        return
    empty = () if field.is_array else _CONVERSIONS[str(field.kind)](b"")
    brief = function.bind({0: None, 1: empty} if field.nullable else {1: empty})
    function.add("size = data[position]", f"if size in {brief}: {name}, position = {brief}[size], position + 1")
    if field.kind == "string" and not field.is_array:
        function.add(
            f"elif size < {_HIGH_BIT} and position + size <= len(data):",
            f'    {name}, position = str(data[position + 1 : position + size], "utf-8"), position + size',
        )
    function.add(f"else: {reading}")


def _add_tags(function: Function, fields: Sequence[Field]) -> None:
    """KIP-482. Most structs carry no tagged field: one byte, zero."""
    targets = "".join(f"v_{field.name}, " for field in fields)
    tags, defaults = function.bind(_tags(fields)), function.bind(tuple(field.default for field in fields))
    function.add(
        "if data[position]:",
        f"    ({targets}), position = {tags}(data, position, left)",
        "else:",
        f"    ({targets}), position = {defaults}, position + 1",
    )


def _add_making(function: Function, entity_type: type[Entity], names: Sequence[str]) -> None:
    """The frozen constructors do the same with one ``__setattr__`` a field, which takes twice as long."""
    function.add(f"entity = {function.bind(entity_type.__new__)}({function.bind(entity_type)})")
    function.add(*(f"{function.bind(getattr(entity_type, name).__set__)}(entity, v_{name})" for name in names))
    function.add("return entity, position")


def _tags(fields: Sequence[Field]) -> Reader:
    """All tagged fields' values, in their order."""
    defaults = [field.default for field in fields]
    known = {field.tag: (index, _value(field)) for index, field in enumerate(fields)}

    def read(data: Data, position: int, left: list[int]) -> tuple[list[Any], int]:
        count, position = read_uvarint(data, position)
        _claim(data, position, count, left)
        values = defaults.copy()
        for _ in range(count):
            tag, position = read_uvarint(data, position)
            size, position = read_uvarint(data, position)
            end = _end(data, position, size)
            if tag in known:
                index, read_value = known[tag]
                values[index], read_to = read_value(data, position, left)
                if read_to != end:
                    raise ValueError(f"tagged field {tag} of {size} bytes takes {read_to - position}")
            position = end
        return values, position

    return read


def _value(field: Field) -> Reader:
    """Reads a field's value, whatever holds it."""
    # a null tagged field is one that isn't there
    nullable = field.nullable and field.tag is None
    if field.is_array:
        return _array(field, nullable=nullable)
    if not isinstance(field.kind, str) and nullable:
        return _nullable_struct(_struct(field.kind))
    return _item(field, nullable=nullable)


def _item(field: Field, *, nullable: bool = False) -> Reader:
    """Reads one value of the field's kind, be it the whole field or an item of its array."""
    if not isinstance(field.kind, str):
        return _struct(field.kind)
    if field.kind in FIXED:
        return _single(FIXED[field.kind])
    return _sized(_length(field), _CONVERSIONS[field.kind], nullable=nullable)


def _single(kind: Fixed) -> Reader:
    unpack_from, convert = struct.Struct(f">{kind.code}").unpack_from, kind.from_wire

    def read(data: Data, position: int, _left: list[int]) -> tuple[Any, int]:
        (value,) = unpack_from(data, position)
        return convert(value) if convert else value, position + kind.size

    return read


def _sized(length: Length, convert: Callable[[Data], Any], *, nullable: bool) -> Reader:
    def read(data: Data, position: int, _left: list[int]) -> tuple[Any, int]:
        size, position = length(data, position)
        if size < 0:
            _check_null(size, nullable=nullable)
            return None, position
        end = _end(data, position, size)
        return convert(data[position:end]), end

    return read


def _text(data: Data) -> str:
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(data)} bytes, {STRING_BYTES_MAX} may be")
    return str(data, "utf-8")


_CONVERSIONS: dict[str, Callable[[Data], Any]] = {"string": _text, "bytes": bytes, "records": lambda data: data}


def _array(field: Field, *, nullable: bool) -> Reader:
    length = _length(field)
    item = field._replace(is_array=False)
    read_items = _fixed_items(FIXED[str(field.kind)]) if field.kind in FIXED else _items(_item(item))

    def read(data: Data, position: int, left: list[int]) -> tuple[tuple[Any, ...] | None, int]:
        count, position = length(data, position)
        if count < 0:
            _check_null(count, nullable=nullable)
            return None, position
        _claim(data, position, count, left)
        return read_items(data, position, count, left)

    return read


def _items(read_item: Reader) -> Items:
    def read(data: Data, position: int, count: int, left: list[int]) -> tuple[tuple[Any, ...], int]:
        items = []
        for _ in range(count):
            item, position = read_item(data, position, left)
            items.append(item)
        return tuple(items), position

    return read


def _fixed_items(kind: Fixed) -> Items:
    layout, convert = struct.Struct(f">{kind.code}"), kind.from_wire

    def read(data: Data, position: int, count: int, _left: list[int]) -> tuple[tuple[Any, ...], int]:
        end = _end(data, position, count * kind.size)
        values = (value for (value,) in layout.iter_unpack(data[position:end]))
        return tuple(map(convert, values) if convert else values), end

    return read


def _nullable_struct(read_struct: Reader) -> Reader:
    """KIP-893: a byte before the struct is negative when there is none."""

    def read(data: Data, position: int, left: list[int]) -> tuple[Any, int]:
        present = data[position] < _HIGH_BIT  # a signed byte
        return read_struct(data, position + 1, left) if present else (None, position + 1)

    return read


def _check_null(size: int, *, nullable: bool) -> None:
    if not nullable or size != -1:
        raise ValueError(f"a length of {size} where there must be something")


def _claim(data: Data, position: int, count: int, left: list[int]) -> None:
    """Take ``count`` items off the message's allowance. None of them is smaller than a byte."""
    left[0] -= count
    if left[0] < 0 or count > len(data) - position:
        raise ValueError(f"{count} items are more than the message has, or may have")


def _end(data: Data, position: int, size: int) -> int:
    end = position + size
    if end > len(data):
        raise ValueError(f"{size} bytes where {len(data) - position} are left")
    return end


def _length(field: Field) -> Length:
    """How the field's length is read; -1 is null. Compact ones are one more than they say, so that null is zero."""
    if field.compact:
        return _compact_length
    short = field.kind == "string" and not field.is_array
    layout = struct.Struct(">h" if short else ">i")

    def read(data: Data, position: int) -> tuple[int, int]:
        return layout.unpack_from(data, position)[0], position + layout.size

    return read


def _compact_length(data: Data, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < _HIGH_BIT:
        return byte - 1, position + 1
    length, position = read_uvarint(data, position)
    return length - 1, position

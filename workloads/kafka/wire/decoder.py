"""Decoder of Kafka's messages into kio's dataclasses, with bounded memory.

kio's own decoder is unsafe for received bytes, because it reserves memory for any announced item count (a ten-byte
response can exhaust a process's memory), fails on unknown tagged fields and error codes, and accepts an invalid null.
Rules of this decoder of Kafka messages:

1. A length or item count must not exceed the remaining bytes of the message. All arrays and tags of a message have at
   most ITEMS_MAX items in total, enough for 35,000 partitions with their replicas, and at most 250 MB of Python
   objects. A string has at most STRING_BYTES_MAX bytes, as in Kafka's readers.
2. Unknown tagged fields are skipped (KIP-482); an unknown error code is a plain int.
3. A message is refused if it has an invalid null, a tagged field of the wrong size, or text that isn't UTF-8.

For each struct type of a message a decoding function is generated, in which neighbouring fields of fixed size share one
``Struct.unpack_from``. Fields of type ``records`` are views of the message, not copies.
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
#: (data, position, [items that the message may still have]) -> value, position after it
Reader = Callable[[Data, int, list[int]], tuple[Any, int]]
#: (data, position) -> length or -1 for null, position after it
LengthReader = Callable[[Data, int], tuple[int, int]]


def decode(entity_type: type[E], data: Data, position: int = 0) -> tuple[E, int]:
    """Decode the message or header at ``position`` and return the position after it; raise ProtocolError if invalid."""
    try:
        entity, end = struct_reader(entity_type)(data, position, [ITEMS_MAX])
    except (struct.error, IndexError, ValueError, OverflowError, ProtocolError) as error:
        reason = "the message is too short" if isinstance(error, struct.error | IndexError) else error
        raise ProtocolError(f"{entity_type.__name__} v{entity_type.__version__} can't be decoded: {reason}") from error
    return entity, end


@cache
def struct_reader(entity_type: type[Entity]) -> Reader:
    """Generate the function that decodes a message or a struct in a message."""
    function = Function("(data, position, remaining)")
    for run in runs(entity_type):
        if not run[0].fixed:
            _add_variable_field(function, run[0])
            continue
        encodings = [FIXED[str(field.kind)] for field in run]
        layout = struct.Struct(">" + "".join(fixed.code for fixed in encodings))
        targets = "".join(f"v_{field.name}, " for field in run)
        function.add(f"{targets}= {function.bind(layout.unpack_from)}(data, position)", f"position += {layout.size}")
        for field, fixed in zip(run, encodings, strict=True):
            if fixed.from_wire:
                function.add(f"v_{field.name} = {function.bind(fixed.from_wire)}(v_{field.name})")
    tagged = tagged_fields(entity_type)
    if entity_type.__flexible__:
        # KIP-482. Most structs carry no tagged field: the byte at this position is zero.
        targets = "".join(f"v_{field.name}, " for field in tagged)
        read_tags, defaults = _tags_reader(tagged), tuple(field.default for field in tagged)
        function.add(
            "if data[position]:",
            f"    ({targets}), position = {function.bind(read_tags)}(data, position, remaining)",
            "else:",
            f"    ({targets}), position = {function.bind(defaults)}, position + 1",
        )
    # Setting the slots directly takes half the time of the frozen dataclass's constructor.
    function.add(f"entity = {function.bind(entity_type.__new__)}({function.bind(entity_type)})")
    for field in (*plain_fields(entity_type), *tagged):
        function.add(f"{function.bind(getattr(entity_type, field.name).__set__)}(entity, v_{field.name})")
    function.add("return entity, position")
    return function.compile()


def _add_variable_field(function: Function, field: Field) -> None:
    name = f"v_{field.name}"
    call = f"{name}, position = {function.bind(_reader(field))}(data, position, remaining)"
    if not field.compact or not (field.is_array or field.kind in _CONVERSIONS):
        function.add(call)
        return
    empty = () if field.is_array else _CONVERSIONS[str(field.kind)](b"")
    constants = function.bind({0: None, 1: empty} if field.nullable else {1: empty})
    function.add("size = data[position]", f"if size in {constants}: {name}, position = {constants}[size], position + 1")
    if field.kind == "string" and not field.is_array:
        function.add(
            f"elif size < {_HIGH_BIT} and position + size <= len(data):",
            f'    {name}, position = str(data[position + 1 : position + size], "utf-8"), position + size',
        )
    function.add(f"else: {call}")


def _tags_reader(fields: Sequence[Field]) -> Reader:
    """Return a function that decodes the values of a struct's tagged fields, in the order of ``fields``."""
    defaults = [field.default for field in fields]
    readers = {field.tag: (index, _reader(field)) for index, field in enumerate(fields)}

    def read_tags(data: Data, position: int, remaining: list[int]) -> tuple[list[Any], int]:
        count, position = read_uvarint(data, position)
        _reserve_items(data, position, count, remaining)
        values = defaults.copy()
        for _ in range(count):
            tag, position = read_uvarint(data, position)
            size, position = read_uvarint(data, position)
            end = _end(data, position, size)
            if tag in readers:
                index, read_value = readers[tag]
                values[index], value_end = read_value(data, position, remaining)
                if value_end != end:
                    raise ValueError(f"tagged field {tag} has {value_end - position} bytes instead of {size}")
            position = end
        return values, position

    return read_tags


def _reader(field: Field) -> Reader:
    """Return a function that decodes a field's value; a null tagged field is invalid, because null is omitted."""
    kind, nullable = field.kind, field.nullable and field.tag is None
    if field.is_array:
        return _array_reader(field, nullable=nullable)
    if not isinstance(kind, str):
        read_struct = struct_reader(kind)

        def read_nullable_struct(data: Data, position: int, remaining: list[int]) -> tuple[Any, int]:
            if data[position] < _HIGH_BIT:  # KIP-893: a signed byte before the struct, negative for null
                return read_struct(data, position + 1, remaining)
            return None, position + 1

        return read_nullable_struct if nullable else read_struct
    if kind in FIXED:
        fixed = FIXED[kind]
        unpack_from, convert_fixed = struct.Struct(f">{fixed.code}").unpack_from, fixed.from_wire

        def read_fixed(data: Data, position: int, _remaining: list[int]) -> tuple[Any, int]:
            (value,) = unpack_from(data, position)
            return convert_fixed(value) if convert_fixed else value, position + fixed.size

        return read_fixed
    read_length, convert = _length_reader(field), _CONVERSIONS[kind]

    def read_sized(data: Data, position: int, _remaining: list[int]) -> tuple[Any, int]:
        size, position = read_length(data, position)
        if size < 0:
            _check_null(size, nullable=nullable)
            return None, position
        end = _end(data, position, size)
        return convert(data[position:end]), end

    return read_sized


def _array_reader(field: Field, *, nullable: bool) -> Reader:
    read_length = _length_reader(field)
    fixed = FIXED.get(field.kind) if isinstance(field.kind, str) else None
    layout, convert = struct.Struct(f">{fixed.code if fixed else ''}"), fixed and fixed.from_wire
    read_item = _reader(field._replace(is_array=False, nullable=False))

    def read_array(data: Data, position: int, remaining: list[int]) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_length(data, position)
        if count < 0:
            _check_null(count, nullable=nullable)
            return None, position
        _reserve_items(data, position, count, remaining)
        if fixed:
            end = _end(data, position, count * fixed.size)
            values = (value for (value,) in layout.iter_unpack(data[position:end]))
            return tuple(map(convert, values) if convert else values), end
        items = []
        for _ in range(count):
            item, position = read_item(data, position, remaining)
            items.append(item)
        return tuple(items), position

    return read_array


def _text(data: Data) -> str:
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"a string has {len(data)} bytes, more than {STRING_BYTES_MAX}")
    return str(data, "utf-8")


_CONVERSIONS: dict[str, Callable[[Data], Any]] = {"string": _text, "bytes": bytes, "records": lambda data: data}


def _check_null(size: int, *, nullable: bool) -> None:
    if not nullable or size != -1:
        problem = f"a field has the invalid length {size}"
        raise ValueError(problem if nullable else f"{problem}; the field can't be null")


def _reserve_items(data: Data, position: int, count: int, remaining: list[int]) -> None:
    """Subtract ``count`` items from the items that a message may still have; an item has at least one byte."""
    remaining[0] -= count
    if remaining[0] < 0 or count > len(data) - position:
        raise ValueError(f"{count} items exceed the rest of the message, or the limit of {ITEMS_MAX} per message")


def _end(data: Data, position: int, size: int) -> int:
    end = position + size
    if end > len(data):
        raise ValueError(f"a field has {size} bytes, but only {len(data) - position} bytes of the message remain")
    return end


def _length_reader(field: Field) -> LengthReader:
    """Return a function that decodes a field's length, -1 for null; a compact length is encoded as length + 1."""
    if field.compact:

        def read_compact_length(data: Data, position: int) -> tuple[int, int]:
            byte = data[position]
            if byte < _HIGH_BIT:
                return byte - 1, position + 1
            length, position = read_uvarint(data, position)
            return length - 1, position

        return read_compact_length
    layout = struct.Struct(">h" if field.kind == "string" and not field.is_array else ">i")

    def read_length(data: Data, position: int) -> tuple[int, int]:
        return layout.unpack_from(data, position)[0], position + layout.size

    return read_length

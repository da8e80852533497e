"""Encoder of kio's messages, which writes the same bytes as kio's own encoder, many times as fast.

For each struct type of a message an encoding function is generated, in which neighbouring fields of fixed size share
one ``Struct.pack``.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kio.static.protocol import Entity

from aftershock.workloads.kafka.wire.schema import FIXED, Field, Function, runs, tagged_fields, uvarint

Put = Callable[[Any], object]
Writer = Callable[[Any, Put], None]


def encode(entity: Entity) -> bytes:
    """Encode a request, response or message header; raise ValueError if a field has an invalid value."""
    return b"".join(encoded_parts(entity))


def encoded_parts(entity: Entity) -> list[bytes]:
    """Encode a request, response or message header as byte strings; fields of type ``bytes`` are not copied."""
    parts: list[bytes] = []
    kind = type(entity)
    try:
        _struct_writer(kind)(entity, parts.append)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{kind.__name__} v{kind.__version__} can't be encoded: {error}") from error
    return parts


@cache
def _struct_writer(entity_type: type[Entity]) -> Writer:
    function = Function("(entity, put)")
    for run in runs(entity_type):
        if not run[0].fixed:
            function.add(f"{function.bind(_writer(run[0]))}(entity.{run[0].name}, put)")
            continue
        codes, values = "", []
        for field in run:
            fixed, value = FIXED[str(field.kind)], f"entity.{field.name}"
            codes += fixed.code
            values.append(f"{function.bind(fixed.to_wire)}({value})" if fixed.to_wire else value)
        function.add(f"put({function.bind(struct.Struct(f'>{codes}').pack)}({', '.join(values)}))")
    tagged = tagged_fields(entity_type)
    if tagged:
        # KIP-482: the number of tagged fields that differ from their default, then tag, size and bytes of each field.
        size_bytes = function.bind(uvarint)
        function.add("present = []")
        for field in tagged:
            value, default = f"entity.{field.name}", function.bind(field.default)
            function.add(
                f"if {value} is not {default} and {value} != {default}:",
                "    parts = []",
                f"    {function.bind(_writer(field))}({value}, parts.append)",
                "    data = b''.join(parts)",
                f"    present.append({function.bind(uvarint(field.tag or 0))} + {size_bytes}(len(data)) + data)",
            )
        function.add(f"put({size_bytes}(len(present)))", "for data in present: put(data)")
    elif entity_type.__flexible__:
        function.add(r'put(b"\x00")')
    function.add("return")  # some structs have no fields
    return function.compile()


def _writer(field: Field) -> Writer:
    """Return a function that encodes a field's value, which is an array, a single item, or null."""
    length, write_item = _length_writer(field, short=False), _item_writer(field)

    def write_array(items: Sequence[Any], put: Put) -> None:
        put(length(len(items)))
        for item in items:
            write_item(item, put)

    write = write_array if field.is_array else write_item
    # A null tagged field is omitted; UUIDs and timestamps have a value that stands for null.
    if not field.nullable or field.tag is not None or field.fixed:
        return write
    if field.is_array or isinstance(field.kind, str):
        null, present = _length_writer(field, short=not field.is_array and field.kind == "string")(-1), b""
    else:
        null, present = b"\xff", b"\x01"  # KIP-893: a byte before a nullable struct

    def write_nullable(value: Any, put: Put) -> None:
        if value is None:
            put(null)
            return
        if present:
            put(present)
        write(value, put)

    return write_nullable


def _item_writer(field: Field) -> Writer:
    """Return a function that encodes one value of a field's type, or one item of an array field; never null."""
    if not isinstance(field.kind, str):
        return _struct_writer(field.kind)
    if field.kind in FIXED:
        fixed = FIXED[field.kind]
        pack, convert = struct.Struct(f">{fixed.code}").pack, fixed.to_wire

        def write_fixed(value: Any, put: Put) -> None:
            put(pack(convert(value) if convert else value))

        return write_fixed
    is_string = field.kind == "string"
    length = _length_writer(field, short=is_string)

    def write_string(value: str, put: Put) -> None:
        data = value.encode()
        put(length(len(data)))
        put(data)

    def write_bytes(value: bytes | memoryview, put: Put) -> None:
        put(length(len(value)))
        put(value)

    return write_string if is_string else write_bytes


def _length_writer(field: Field, *, short: bool) -> Callable[[int], bytes]:
    """Return a function that encodes a field's length, -1 for null; a compact length is encoded as length + 1."""
    if field.compact:
        return lambda length: uvarint(length + 1)
    return struct.Struct(">h" if short else ">i").pack

"""Encodes kio's messages: compiled once a type, then many times as fast as kio's own writer and byte-equal to it.

A struct becomes a function that puts its fields' bytes one after the other; neighbouring fields of fixed size share a
single ``Struct.pack``.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kio.static.protocol import Entity

from aftershock.workloads.kafka.wire.schema import FIXED, Field, Fixed, Function, runs, tagged_fields, uvarint

Put = Callable[[Any], object]
Writer = Callable[[Any, Put], None]
Length = Callable[[int], bytes]

_NULL_STRUCT, _STRUCT = b"\xff", b"\x01"  # KIP-893


def encode(entity: Entity) -> bytes:
    """The bytes of any kio entity (a request, a response, a header), without header or length prefix.

    Raises:
        ValueError: a field holds what it can't, a mistake of the caller; the text names the type.
    """
    return b"".join(encoded_parts(entity))


def encoded_parts(entity: Entity) -> list[bytes]:
    """What ``encode`` joins. Large fields are themselves in it, not copies."""
    parts: list[bytes] = []
    kind = type(entity)
    try:
        _struct(kind)(entity, parts.append)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{kind.__name__} v{kind.__version__} can't be encoded: {error}") from error
    return parts


@cache
def _struct(entity_type: type[Entity]) -> Writer:
    function = Function("(entity, put)")
    for run in runs(entity_type):
        if run[0].fixed:
            _add_run(function, run)
        else:
            function.add(f"{function.bind(_value(run[0]))}(entity.{run[0].name}, put)")
    if entity_type.__flexible__:
        _add_tags(function, tagged_fields(entity_type))
    function.add("return")  # there are structs without fields
    return function.made()


def _add_run(function: Function, fields: Sequence[Field]) -> None:
    """Neighbouring fields of fixed size become one ``Struct.pack``."""
    codes, values = "", []
    for field in fields:
        form = FIXED[str(field.kind)]
        codes += form.code
        values.append(f"{function.bind(form.to_wire)}(entity.{field.name})" if form.to_wire else f"entity.{field.name}")
    function.add(f"put({function.bind(struct.Struct(f'>{codes}').pack)}({', '.join(values)}))")


def _add_tags(function: Function, fields: Sequence[Field]) -> None:
    """KIP-482: the number of tagged fields that aren't default, then tag, size and bytes of each."""
    if not fields:
        function.add(r'put(b"\x00")')
        return
    function.add("present = []")
    for field in fields:
        default, tagged = function.bind(field.default), function.bind(_tagged(field))
        function.add(
            f"if entity.{field.name} is not {default} and entity.{field.name} != {default}:",
            f"    present.append({tagged}(entity.{field.name}))",
        )
    function.add(f"put({function.bind(uvarint)}(len(present)))", "for one in present: put(one)")


def _tagged(field: Field) -> Callable[[Any], bytes]:
    tag, write_value = uvarint(field.tag or 0), _value(field)

    def tagged(value: Any) -> bytes:
        parts: list[bytes] = []
        write_value(value, parts.append)
        data = b"".join(parts)
        return tag + uvarint(len(data)) + data

    return tagged


def _value(field: Field) -> Writer:
    """Writes a field's value, whatever holds it."""
    write = _array(field) if field.is_array else _item(field)
    # a null tagged field is one that isn't there; uuids and timestamps have a value that means null
    if not field.nullable or field.tag is not None or field.fixed:
        return write
    if field.is_array or isinstance(field.kind, str):
        return _or_null(write, null=_length(field)(-1))
    return _or_null(_after(_STRUCT, write), null=_NULL_STRUCT)


def _item(field: Field) -> Writer:
    """Writes one value of the field's kind, be it the whole field or an item of its array."""
    if not isinstance(field.kind, str):
        return _struct(field.kind)
    if field.kind in FIXED:
        return _single(FIXED[field.kind])
    return _string(_length(field)) if field.kind == "string" else _bytes(_length(field))


def _single(kind: Fixed) -> Writer:
    pack, convert = struct.Struct(f">{kind.code}").pack, kind.to_wire

    def write(value: Any, put: Put) -> None:
        put(pack(convert(value) if convert else value))

    return write


def _string(length: Length) -> Writer:
    def write(value: str, put: Put) -> None:
        data = value.encode()
        put(length(len(data)))
        put(data)

    return write


def _bytes(length: Length) -> Writer:
    def write(value: bytes | memoryview, put: Put) -> None:
        put(length(len(value)))
        put(value)

    return write


def _array(field: Field) -> Writer:
    length, write_item = _length(field), _item(field._replace(is_array=False))

    def write(items: Sequence[Any], put: Put) -> None:
        put(length(len(items)))
        for item in items:
            write_item(item, put)

    return write


def _or_null(write: Writer, null: bytes) -> Writer:
    def write_or_null(value: Any, put: Put) -> None:
        if value is None:
            put(null)
        else:
            write(value, put)

    return write_or_null


def _after(mark: bytes, write: Writer) -> Writer:
    def write_after(value: Any, put: Put) -> None:
        put(mark)
        write(value, put)

    return write_after


def _length(field: Field) -> Length:
    """How the field's length is written; -1 is null. Compact ones are one more than they say, so that null is zero."""
    if field.compact:
        return lambda length: uvarint(length + 1)
    short = field.kind == "string" and not field.is_array
    return struct.Struct(">h" if short else ">i").pack

"""Messages made by hypothesis from kio's dataclasses, for every API and version that this project speaks.

Nullability, arrays and kinds are read off the annotations here once more: what ``wire/schema.py`` misreads must show.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, get_args
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.primitive import i8, i16, i32, i64

from aftershock.workloads.kafka.wire.codec import Api

#: what the harness asks beyond the reference clients' APIs: groups, topics, configurations, quorum, reassignments
ADMIN_APIS = (15, 16, 19, 20, 32, 42, 43, 44, 45, 46, 55, 60, 69)
API_KEYS = (*Api, *ADMIN_APIS)


def versions(api_key: int) -> list[int]:
    return sorted(schema_name_map[api_key_map[api_key]])


def message_types() -> Iterator[type[Any]]:
    for key in API_KEYS:
        for version in versions(key):
            yield load_request_schema(key, version)
            yield load_response_schema(key, version)


def name(message_type: type[Any]) -> str:
    return f"{message_type.__name__}-v{message_type.__version__}"


def integers(kind: type[Any]) -> st.SearchStrategy[int]:
    return st.integers(kind.__low__, kind.__high__)


def milliseconds(low: int, high: int) -> st.SearchStrategy[timedelta]:
    return st.integers(low, high).map(lambda number: timedelta(milliseconds=number))


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": integers(i8),
    "int16": integers(i16),
    "int32": integers(i32),
    "int64": integers(i64),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": milliseconds(-(2**31), 2**31 - 1),
    # kio's writer goes through float seconds and is exact up to here
    "timedelta_i64": milliseconds(-(2**42), 2**42),
    "datetime_i64": milliseconds(0, 2**42).map(lambda since: datetime(1970, 1, 1, tzinfo=UTC) + since),
    "uuid": st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
}


@cache
def entities(entity_type: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a kio dataclass; tagged fields are at their default half of the time."""
    return st.builds(entity_type, **{field.name: _values(field) for field in fields(entity_type)})


def _values(field: Field[Any]) -> st.SearchStrategy[Any]:
    annotation: Any = field.type
    nullable = NoneType in get_args(annotation)
    bare = next(part for part in get_args(annotation) if part is not NoneType) if nullable else annotation
    is_array = "tuple" in str(bare)
    item = get_args(bare)[0] if is_array else bare
    one = entities(item) if is_dataclass(item) else SCALARS[field.metadata["kafka_type"]]
    values: st.SearchStrategy[Any] = st.lists(one, max_size=3).map(tuple) if is_array else one
    if "tag" in field.metadata:
        return values if field.default is MISSING else st.just(field.default) | values
    return st.none() | values if nullable else values

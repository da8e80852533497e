"""Our codec against kafka-python's, which is made from Kafka's message definitions independently of kio."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from aftershock.tests.unit.workloads.kafka.wire.kafka_python import message_classes
from aftershock.tests.unit.workloads.kafka.wire.messages import entities, message_types, name
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode

#: KIP-848 and KIP-932, which kafka-python has none of
UNKNOWN_TO_THE_ORACLE = {68, 69, 76, 78, 79}
#: kafka-python makes sets of these; that their bytes are equal must do
BIT_FIELDS = ("authorized_operations", "cluster_authorized_operations", "topic_authorized_operations")


TYPES = [kind for kind in message_types() if kind.__api_key__ not in UNKNOWN_TO_THE_ORACLE]


def ours(value: Any) -> Iterator[Any]:
    """The plain values of a kio entity in the order of the wire, tagged fields left out."""
    if is_dataclass(value):
        for field in fields(value):
            if "tag" not in field.metadata and field.name not in BIT_FIELDS:
                inner = getattr(value, field.name)
                no_timestamp = inner is None and field.metadata.get("kafka_type") == "datetime_i64"
                yield from ours(-1 if no_timestamp else inner)
    elif isinstance(value, tuple):
        yield len(value)
        for item in value:
            yield from ours(item)
    elif isinstance(value, timedelta):
        yield value // timedelta(milliseconds=1)
    elif isinstance(value, datetime):
        yield round(value.timestamp() * 1000)
    else:
        yield value


def theirs(value: Any) -> Iterator[Any]:
    """The same of a message of kafka-python."""
    if hasattr(value, "_struct"):
        for field in value._struct.untagged_fields(value.version):
            if field.name not in BIT_FIELDS:
                yield from theirs(getattr(value, field.name))
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from theirs(item)
    else:
        yield value


@pytest.mark.parametrize("message_type", TYPES, ids=name)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_both_codecs_say_the_same(message_type: type[Any], data: st.DataObject) -> None:
    """kafka-python reads our bytes as the values that we meant and writes the same bytes; we read its bytes so too."""
    message = data.draw(entities(message_type))
    if message_type.__name__ == "ApiVersionsResponse":  # with an error, kafka-python takes every version for version 0
        message = replace(message, error_code=ErrorCode.none)
    oracle = message_classes()[message_type.__api_key__, message_type.__type__ is EntityType.request]
    encoded = encode(message)
    their_message = oracle.decode(encoded, version=message_type.__version__)
    their_message._header = None  # left unset by its decoder, looked for by some of its encoders
    their_encoded = their_message.encode()
    assert encoded == their_encoded
    assert (message, len(encoded)) == decode(message_type, their_encoded)
    assert list(ours(message)) == list(theirs(their_message))

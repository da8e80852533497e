"""The compiled encoder: byte for byte what kio's own writer writes."""

import io
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.heartbeat.v3.request import HeartbeatRequest as OldHeartbeatRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.serial import entity_writer

from aftershock.tests.unit.workloads.kafka.wire.messages import entities, message_types, name
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.encoder import encode, encoded_parts


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("message_type", list(message_types()), ids=name)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bytes_equal_kio_s(message_type: type[Any], data: st.DataObject) -> None:
    """Every request and response of every version that we speak, with any values, is what kio's writer makes of it."""
    message = data.draw(entities(message_type))
    assert written_by_kio(message) == encode(message)


def test_a_large_field_is_not_copied() -> None:
    """Records go into the parts of a frame as they are; only the final join copies them."""
    records = bytes(1 << 20)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=30),
        topic_data=(TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=records),)),),
    )
    assert any(part is records for part in encoded_parts(request))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (HeartbeatRequest(group_id=None, generation_id=1, member_id="m"), "HeartbeatRequest v4 can't be encoded"),
        (HeartbeatRequest(group_id="g", generation_id=1 << 31, member_id="m"), "format requires"),
        (OldHeartbeatRequest(group_id="g" * 40_000, generation_id=1, member_id="m"), "format requires"),
        (HeartbeatRequest(group_id="g", generation_id="1", member_id="m"), "not an integer"),
        (HeartbeatResponse(throttle_time=None, error_code=0), "HeartbeatResponse v4"),
    ],
)
def test_an_invalid_field_value_is_a_named_error(message: Any, says: str) -> None:
    """Null for a non-nullable field, a number or a text too large, a wrong type: the error has the message's name."""
    with pytest.raises(ValueError, match=says):
        encode(message)


def test_an_error_code_may_be_a_plain_number() -> None:
    """A scripted broker can answer with a code that kio doesn't know."""
    response = HeartbeatResponse(throttle_time=timedelta(0), error_code=999)  # type: ignore[arg-type]
    assert 999 == decode(HeartbeatResponse, encode(response))[0].error_code

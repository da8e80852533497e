"""The compiled decoder: kio's values, what newer brokers add, and what is no message at all."""

import struct
import tracemalloc
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.fetch_snapshot.v1.response import FetchSnapshotResponse
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.metadata.v1.response import MetadataResponse as MetadataResponseV1
from kio.schema.produce.v11.response import PartitionProduceResponse, ProduceResponse
from kio.schema.share_group_heartbeat.v1.response import ShareGroupHeartbeatResponse
from kio.serial import entity_reader

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.tests.unit.workloads.kafka.wire.messages import entities, message_types, name
from aftershock.workloads.kafka.wire.decoder import ITEMS_MAX, STRING_BYTES_MAX, decode
from aftershock.workloads.kafka.wire.encoder import encode
from aftershock.workloads.kafka.wire.schema import uvarint

HEARTBEAT = struct.pack(">ih", 7, 27)  # throttled for 7 ms, REBALANCE_IN_PROGRESS; tagged fields follow


@pytest.mark.parametrize("message_type", list(message_types()), ids=name)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_message_comes_back(message_type: type[Any], data: st.DataObject) -> None:
    """Every request and response of every version is read back as it was, to its last byte, and as kio reads it."""
    message = data.draw(entities(message_type))
    encoded = encode(message)
    decoded, end = decode(message_type, encoded)
    assert (message, len(encoded)) == (decoded, end)
    assert entity_reader(message_type)(encoded, 0)[0] == decoded


@pytest.mark.parametrize("message_type", list(message_types()), ids=name)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_truncated_message_is_refused(message_type: type[Any], data: st.DataObject) -> None:
    """Whatever is cut off, be it the last byte, is missed."""
    encoded = encode(data.draw(entities(message_type)))
    if encoded:
        cut = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(ProtocolError, match="can't be decoded"):
            decode(message_type, encoded[:cut])


def test_an_unknown_tagged_field_is_skipped() -> None:
    """KIP-482: what a newer broker adds as a tag does not concern us; kio's reader fails here."""
    later = HEARTBEAT + b"\x02" + uvarint(9) + b"\x03abc" + uvarint(1000) + b"\x00"
    decoded, end = decode(HeartbeatResponse, later)
    assert (len(later), ErrorCode.rebalance_in_progress) == (end, decoded.error_code)
    with pytest.raises(KeyError):
        entity_reader(HeartbeatResponse)(later, 0)


def test_an_unknown_error_code_is_its_number() -> None:
    """A newer broker's error is told by its number, a known one as kio's enum."""
    decoded, _ = decode(HeartbeatResponse, struct.pack(">ih", 0, 999) + b"\x00")
    assert 999 == decoded.error_code
    assert isinstance(decode(HeartbeatResponse, HEARTBEAT + b"\x00")[0].error_code, ErrorCode)


@pytest.mark.parametrize("size", [8, 10, 200])
def test_a_tag_of_another_size_than_it_says_is_refused(size: int) -> None:
    """A CurrentLeader takes nine bytes; one that claims another size would shift all that follows."""
    told = PartitionProduceResponse(index=0, error_code=ErrorCode.none, base_offset=0, record_errors=())
    leader = struct.pack(">iib", 1, 2, 0)
    encoded = encode(told)[:-1] + b"\x01\x00" + uvarint(size) + leader + b"\x00"
    with pytest.raises(ProtocolError, match="PartitionProduceResponse v11 can't be decoded"):
        decode(PartitionProduceResponse, encoded)
    assert (
        1 == decode(PartitionProduceResponse, encode(told)[:-1] + b"\x01\x00\x09" + leader)[0].current_leader.leader_id
    )


@pytest.mark.parametrize(
    ("message_type", "body"),
    [
        pytest.param(ProduceResponse, b"\x00", id="compact array"),
        pytest.param(ProduceResponse, b"\x02\x00", id="compact string"),
        pytest.param(MetadataResponseV1, struct.pack(">i", -1), id="array"),
        pytest.param(MetadataResponseV1, struct.pack(">i", -7), id="negative array"),
        pytest.param(MetadataResponseV1, struct.pack(">iih", 1, 0, -1), id="string"),
        pytest.param(MetadataResponseV1, struct.pack(">iihih", 1, 0, 0, 0, -2), id="negative nullable string"),
    ],
)
def test_null_where_there_must_be_something_is_refused(message_type: type[Any], body: bytes) -> None:
    """Null for what the schema has as never null, and lengths below null, are no surprise for later code to step on."""
    with pytest.raises(ProtocolError, match=r"invalid length -\d"):
        decode(message_type, body + bytes(40))


@pytest.mark.parametrize("marker", [-1, -128])
def test_a_nullable_struct_may_be_none(marker: int) -> None:
    """KIP-893: a negative byte is no struct; the absence of an assignment is no assignment of nothing."""
    head = struct.pack(">ih", 0, 0) + b"\x00" + b"\x00" + struct.pack(">ii", 3, 5000)
    decoded, _ = decode(ShareGroupHeartbeatResponse, head + struct.pack(">b", marker) + b"\x00")
    assert decoded.assignment is None
    decoded, _ = decode(ShareGroupHeartbeatResponse, head + b"\x01\x01\x00\x00")
    assert decoded.assignment is not None
    assert () == decoded.assignment.topic_partitions


def test_records_are_views_of_the_message() -> None:
    """A fetch response's records are not copied: a megabyte of them costs nothing to decode."""
    partition = PartitionData(
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=1,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=bytes(1 << 20),
    )
    topic = FetchableTopicResponse(topic_id=UUID(int=1), partitions=(partition,))
    fetched = FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=1, responses=(topic,))
    encoded = memoryview(encode(fetched))
    decode(FetchResponse, encoded)  # compiles
    tracemalloc.start()
    try:
        decoded, _ = decode(FetchResponse, encoded)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert fetched == decoded


@pytest.mark.parametrize("count", [1 << 14, 2**31 - 1, 2**35 - 2])
def test_a_count_beyond_the_message_is_refused(count: int) -> None:
    """A count is believed only as far as the bytes behind it go; nothing is reserved for it."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"{count} items exceed"):
            decode(ProduceResponse, uvarint(count + 1) + bytes(1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tags_are_counted_like_items() -> None:
    """A quarter of a million tags that mean nothing would only cost time; they are refused by their number."""
    count = ITEMS_MAX + 1
    with pytest.raises(ProtocolError, match=f"{count} items exceed"):
        decode(HeartbeatResponse, HEARTBEAT + uvarint(count) + b"\x09\x00" * count)


def test_a_string_has_kafka_s_limit() -> None:
    """32,767 bytes, the most that Kafka's own readers take; one more could become four times its size in memory."""
    for size, fits in ((STRING_BYTES_MAX, True), (STRING_BYTES_MAX + 1, False)):
        encoded = encode(ListGroupsRequest(states_filter=("s" * size,), types_filter=()))
        if fits:
            assert ("s" * size,) == decode(ListGroupsRequest, encoded)[0].states_filter
        else:
            with pytest.raises(ProtocolError, match=f"a string has {size} bytes, more than {STRING_BYTES_MAX}"):
                decode(ListGroupsRequest, encoded)


def test_all_arrays_of_a_message_share_one_limit() -> None:
    """Many arrays of allowed length are no way round the limit: here two of one more than the half each."""
    half = ITEMS_MAX // 2 + 1
    states = uvarint(half + 1) + b"\x01" * half
    with pytest.raises(ProtocolError, match=f"{half} items exceed"):
        decode(ListGroupsRequest, states + states + b"\x00")
    one, _ = decode(ListGroupsRequest, states + b"\x01\x00")
    assert half == len(one.states_filter)


def test_a_varint_has_five_bytes_at_most() -> None:
    """A run of high bits is refused where it stops making sense, not followed to its end."""
    with pytest.raises(ProtocolError, match="varint at byte 0 is longer than 5 bytes"):
        decode(ProduceResponse, b"\xff" * 1000)


def test_text_that_is_not_utf_8_is_refused() -> None:
    """A name is text or the message is none."""
    with pytest.raises(ProtocolError, match="can't decode byte 0xff"):
        decode(ProduceResponse, b"\x02\x03\xff\xfe\x01" + bytes(10))


def test_a_tagged_field_without_a_default_is_unsupported() -> None:
    """Three responses of Kafka that no client needs have one; better said at once than an absent value made up."""
    with pytest.raises(UnsupportedError, match="tagged field current_leader"):
        decode(FetchSnapshotResponse, bytes(100))

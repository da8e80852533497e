"""Requests and responses between Kafka's messages and the rules' values: hand-written Produce requests, metadata,
leader hints and versions.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.produce.v9.response import PartitionProduceResponse as OldPartition
from kio.schema.produce.v9.response import ProduceResponse as OldResponse
from kio.schema.produce.v12.response import LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.workloads.kafka.client.requests import (
    METADATA,
    PRODUCE,
    TOPIC_IDS_SINCE,
    ApiVersionRange,
    ProduceWriter,
    endpoints,
    group_by_topic,
    leader_hint,
    metadata_request,
    metadata_response,
)
from aftershock.workloads.kafka.rules import values
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.codec import Api, Versions
from aftershock.workloads.kafka.wire.encoder import encode


def test_metadata() -> None:
    """Every field that the rules read, as the rules' values; a topic without name is left out."""
    answer = MetadataResponse(
        throttle_time=0,
        brokers=(MetadataResponseBroker(node_id=1, host="h", port=9, rack="a"),),
        cluster_id="c",
        controller_id=1,
        topics=(
            MetadataResponseTopic(
                error_code=0,
                name="t",
                topic_id=UUID(int=7),
                partitions=(
                    MetadataResponsePartition(
                        error_code=5,
                        partition_index=3,
                        leader_id=-1,
                        leader_epoch=4,
                        replica_nodes=(1, 2),
                        isr_nodes=(1,),
                        offline_replicas=(2,),
                    ),
                ),
            ),
            MetadataResponseTopic(error_code=0, name="i", topic_id=None, is_internal=True, partitions=()),
            MetadataResponseTopic(error_code=100, name=None, topic_id=UUID(int=8), partitions=()),
        ),
    )
    partition = values.PartitionMetadata(3, values.Leader(-1, 4), (1, 2), (2,), 5)
    assert values.MetadataResponse(
        (values.Node(1, "h", 9, "a"),),
        (
            values.TopicMetadata("t", UUID(int=7), (partition,)),
            values.TopicMetadata("i", None, (), 0, is_internal=True),
        ),
    ) == metadata_response(answer)


def test_a_metadata_request_names_topics_by_name_or_by_id_or_none() -> None:
    """None is a request for all topics; ids came with version 12."""

    def requested(version: int, topics: list[str | UUID] | None) -> Any:
        entries = metadata_request(METADATA.messages(Versions({Api.METADATA: (0, version)})), topics).topics
        return None if entries is None else [(entry.name, entry.topic_id) for entry in entries]

    for version in (10, 11, 12, 13):
        assert [("t", None)] == requested(version, ["t"])
        assert None is requested(version, None)
    assert [(None, UUID(int=7))] == requested(12, [UUID(int=7)])
    with pytest.raises(UnsupportedError, match="no version from 12 on"):
        requested(11, [UUID(int=7)])


def test_leader_hints() -> None:
    """CurrentLeader and NodeEndpoints if present; unknown and empty if absent, as in older versions."""
    new = PartitionProduceResponse(index=0, error_code=6, base_offset=-1, record_errors=())
    hinting = PartitionProduceResponse(
        index=0,
        error_code=6,
        base_offset=-1,
        record_errors=(),
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )
    old = OldPartition(index=0, error_code=6, base_offset=-1, record_errors=())
    assert [values.Leader(), values.Leader(2, 9), values.Leader()] == [
        leader_hint(each) for each in (new, hinting, old)
    ]
    answer = ProduceResponse(responses=(), node_endpoints=(NodeEndpoint(node_id=2, host="h", port=9, rack=None),))
    assert (values.Node(2, "h", 9),) == endpoints(answer)
    assert () == endpoints(OldResponse(responses=()))


UNDIALLABLE = [("h", 0), ("h", 65_536), ("h", -1), ("", 9092), ("a..b", 9092), ("x" * 64, 9092)]


@pytest.mark.parametrize(("host", "port"), UNDIALLABLE)
def test_metadata_with_an_invalid_address_is_refused(host: str, port: int) -> None:
    """As a whole, and the reason names the address."""
    broker = MetadataResponseBroker(node_id=1, host=host, port=port, rack=None)
    answer = MetadataResponse(throttle_time=0, brokers=(broker,), cluster_id="c", controller_id=1, topics=())
    with pytest.raises(ProtocolError, match="node 1"):
        metadata_response(answer)


@pytest.mark.parametrize(("host", "port"), UNDIALLABLE)
def test_an_invalid_endpoint_is_left_out(host: str, port: int) -> None:
    """The response also has outcomes of batches, which must not be lost."""
    good = NodeEndpoint(node_id=2, host="h", port=65_535, rack="a")
    bad = NodeEndpoint(node_id=3, host=host, port=port, rack=None)
    answer = ProduceResponse(responses=(), node_endpoints=(bad, good))
    assert (values.Node(2, "h", 65_535, "a"),) == endpoints(answer)


VERSIONS = range(PRODUCE.least, PRODUCE.most + 1)
BATCHES = st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300))
TOPIC_IDS = st.one_of(st.none(), st.uuids(allow_nil=False))
TOPICS = st.dictionaries(st.tuples(st.text(max_size=140), TOPIC_IDS), st.lists(BATCHES, max_size=3), max_size=3)
Topics = dict[tuple[str, UUID | None], list[tuple[int, bytes]]]


def encoded_by_class(messages: Any, acks: int, timeout_ms: int, topics: Topics) -> bytes:
    partition, topic = messages.PartitionProduceData, messages.TopicProduceData
    by_id = messages.ProduceRequest.__version__ >= TOPIC_IDS_SINCE
    data = tuple(
        topic(
            **({"topic_id": topic_id} if by_id else {"name": name}),
            partition_data=tuple(partition(index=index, records=records) for index, records in batches),
        )
        for (name, topic_id), batches in topics.items()
    )
    timeout = timedelta(milliseconds=timeout_ms)
    return encode(messages.ProduceRequest(acks=acks, timeout=timeout, topic_data=data))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None)
@given(acks=st.sampled_from((-1, 0, 1)), timeout_ms=st.integers(0, 2**31 - 1), topics=TOPICS)
def test_a_produce_request_equals_the_encoded_class(version: int, acks: int, timeout_ms: int, topics: Topics) -> None:
    """In every version, for any number of topics and partitions, with lengths of one byte and of two."""
    messages = PRODUCE.messages(Versions({PRODUCE.api: (0, version)}))
    writer = ProduceWriter(messages.ProduceRequest, acks, timeout_ms)
    assert version == writer.kind.__version__
    assert encoded_by_class(messages, acks, timeout_ms, topics) == b"".join(writer.body(topics))


FETCH = ApiVersionRange(Api.FETCH, 15, 17)


@pytest.mark.parametrize(("offered", "cap", "version"), [((4, 18), None, 17), ((4, 16), None, 16), ((4, 18), 15, 15)])
def test_the_highest_common_version_within_the_cap(offered: tuple[int, int], cap: int | None, version: int) -> None:
    """Within our range, the broker's and the ablation's cap."""
    assert version == FETCH.messages(Versions({1: offered}), cap).FetchRequest.__version__


def test_an_old_broker_is_named_with_both_ranges() -> None:
    """A broker below our range is refused; the error has the broker's range and ours."""
    with pytest.raises(UnsupportedError, match="offers versions 4 to 12, this client needs 15 to 17"):
        FETCH.messages(Versions({1: (4, 12)}))


def test_a_missing_api_is_named() -> None:
    """An API that a broker doesn't have is an UnsupportedError, not a KeyError."""
    with pytest.raises(UnsupportedError, match="FETCH"):
        FETCH.messages(Versions({}))


def test_partitions_are_grouped_by_topic() -> None:
    """In any order of the partitions, a topic is one entry."""
    mixed = [TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)]
    assert [("a", [0]), ("b", [0, 1])] == [(name, [tp.partition for tp in tps]) for name, tps in group_by_topic(mixed)]

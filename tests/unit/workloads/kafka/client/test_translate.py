from uuid import UUID

import pytest
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.produce.v9.response import PartitionProduceResponse as OldPartition
from kio.schema.produce.v9.response import ProduceResponse as OldResponse
from kio.schema.produce.v12.response import LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.client.requests import endpoints, leader_hint, metadata_response
from aftershock.workloads.kafka.rules import values


def test_metadata() -> None:
    """Every field that the rules look at, in the rules' words; a topic that has no name is left out."""
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
            MetadataResponseTopic(error_code=100, name=None, topic_id=UUID(int=8), partitions=()),
        ),
    )
    partition = values.PartitionMetadata(3, values.Leader(-1, 4), (1, 2), (2,), 5)
    assert values.MetadataResponse(
        (values.Node(1, "h", 9, "a"),), (values.TopicMetadata("t", UUID(int=7), (partition,)),)
    ) == metadata_response(answer)


def test_hints() -> None:
    """CurrentLeader and NodeEndpoints where they are; unknown and none where they are absent, as in older versions."""
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
def test_a_broker_that_can_not_be_dialled(host: str, port: int) -> None:
    """A Metadata answer with such an address is refused as a whole, and the reason names it."""
    broker = MetadataResponseBroker(node_id=1, host=host, port=port, rack=None)
    answer = MetadataResponse(throttle_time=0, brokers=(broker,), cluster_id="c", controller_id=1, topics=())
    with pytest.raises(ProtocolError, match="node 1"):
        metadata_response(answer)


@pytest.mark.parametrize(("host", "port"), UNDIALLABLE)
def test_an_endpoint_that_can_not_be_dialled(host: str, port: int) -> None:
    """It is left out: beside it stand outcomes of batches, which must not be lost for it."""
    good = NodeEndpoint(node_id=2, host="h", port=65_535, rack="a")
    bad = NodeEndpoint(node_id=3, host=host, port=port, rack=None)
    answer = ProduceResponse(responses=(), node_endpoints=(bad, good))
    assert (values.Node(2, "h", 65_535, "a"),) == endpoints(answer)

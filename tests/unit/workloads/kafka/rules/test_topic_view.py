"""What a partitioner sees of a topic's metadata."""

from aftershock.workloads.kafka.rules.partitioner import TopicView
from aftershock.workloads.kafka.rules.values import Leader, Node, PartitionMetadata, TopicMetadata

NODES = {1: Node(1, "k1", 9092, "a"), 2: Node(2, "k2", 9092, "b"), 3: Node(3, "k3", 9092)}


def topic(*leaders: int) -> TopicMetadata:
    parts = tuple(PartitionMetadata(number, Leader(node_id, 1)) for number, node_id in enumerate(leaders))
    return TopicMetadata("orders", None, parts[::-1])


def test_partitions_without_a_leader_are_counted_and_not_offered() -> None:
    """Keys are hashed over all partitions, draws are among those with a leader, in order whatever the answer's."""
    view = TopicView.of(topic(2, -1, 1), NODES, None)
    assert 3 == view.partitions
    assert [(0, 2), (2, 1)] == list(view.leaders.items())


def test_in_rack_are_the_partitions_led_from_the_clients_rack() -> None:
    """By the leader's rack; a leader that the client doesn't know the rack of is not near."""
    assert (0, 3) == TopicView.of(topic(1, 2, 3, 1), NODES, "a").in_rack


def test_without_a_rack_nothing_is_near() -> None:
    """No rack is not the rack of brokers that have none."""
    assert () == TopicView.of(topic(1, 2, 3), NODES, None).in_rack

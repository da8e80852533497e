"""What a partitioner sees of a topic: how many partitions, which of them have a leader, and which of those are near.

Made anew when metadata changes: a draw looks at it, a record does not.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

from aftershock.workloads.rules.values import UNKNOWN, Node, TopicMetadata


class TopicView(NamedTuple):
    """One topic at one moment, for a client in one rack.

    ``partitions`` is how many there are (keys are hashed over all); ``leaders`` gives the leader's node id of each one
    that has a leader, in the order of partitions; ``in_rack`` are those whose leader is in the client's own rack.
    """

    partitions: int
    leaders: Mapping[int, int]
    in_rack: tuple[int, ...] = ()

    @classmethod
    def of(cls, topic: TopicMetadata, nodes: Mapping[int, Node], rack: str | None) -> Self:
        """How a client in ``rack`` (None: in none that it knows of) sees a topic. ``nodes`` are by node id."""
        leaders = {part.partition: part.leader.node_id for part in topic.partitions if part.leader.node_id != UNKNOWN}
        near = {node.node_id for node in nodes.values() if rack is not None and node.rack == rack}
        in_rack = tuple(partition for partition, node_id in leaders.items() if node_id in near)
        return cls(len(topic.partitions), dict(sorted(leaders.items())), tuple(sorted(in_rack)))

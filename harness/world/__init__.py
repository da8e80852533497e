"""The cluster as faults see it: the protocols of `faults/world.py`, a file for each thing they act through.

Everything below blocks, so every call goes to a thread; each is bounded by the deadline of what it calls.
"""

from aftershock.harness.cluster import Cluster
from aftershock.harness.world.clients import ClientsWorld
from aftershock.harness.world.kafka import KafkaWorld
from aftershock.harness.world.links import LinksWorld
from aftershock.harness.world.nodes import NodesWorld
from aftershock.harness.world.rules import RulesWorld


class ClusterWorld(NodesWorld, LinksWorld, KafkaWorld, ClientsWorld, RulesWorld):
    """A launched cluster, offering all that faults may do to one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        super().__init__()

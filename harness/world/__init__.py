"""The cluster as faults see it: the protocols of `faults/world.py`, a file for each thing they act through.

Everything below blocks, so every call goes to a thread; each is bounded by the deadline of what it calls.
"""

from typing import cast

from aftershock.faults.world import World
from aftershock.harness.attached.cluster import AttachedCluster
from aftershock.harness.cluster import Cluster
from aftershock.harness.crew import Crew
from aftershock.harness.target import Target
from aftershock.harness.world.attached import AttachedWorld
from aftershock.harness.world.clients import ClientsWorld
from aftershock.harness.world.kafka import KafkaWorld
from aftershock.harness.world.links import LinksWorld
from aftershock.harness.world.machine import MachineWorld
from aftershock.harness.world.nodes import NodesWorld
from aftershock.harness.world.rules import RulesWorld
from aftershock.harness.world.upgrades import UpgradesWorld


class ClusterWorld(NodesWorld, UpgradesWorld, MachineWorld, LinksWorld, KafkaWorld, ClientsWorld, RulesWorld):
    """A launched cluster, offering all that faults may do to one.

    ``crew``: the clients of the run that drives it; by default those of the run that it was launched for.
    """

    def __init__(self, cluster: Cluster, crew: Crew | None = None) -> None:
        self._cluster = cluster
        self._crew = crew or Crew(cluster.run_id)
        super().__init__()


def world_of(cluster: Target, crew: Crew | None = None) -> World:
    """What faults may do to a cluster; to one that is attached, a part of it: the rest is refused when it is asked for.

    ``crew``: as of `ClusterWorld`.
    """
    if isinstance(cluster, AttachedCluster):
        return cast("World", AttachedWorld(cluster, crew or Crew(cluster.run_id)))
    return ClusterWorld(cast("Cluster", cluster), crew)

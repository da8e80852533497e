"""An attached cluster as faults see it: Kafka's own verbs on what the plan names, its links, and our own clients.

Rules: a topic that the plan doesn't name isn't changed, nor a broker or proxy that ``attach`` doesn't; records and
topics that were there before us aren't destroyed. All of that is refused here as well as by `plan check`, because only
here it is known whom a role means. Whatever else `faults.world.World` offers needs what we launched, and is refused.

The cluster as faults see it: the protocols of `faults/runtime/world.py`, a file for each thing they act through.

Everything below blocks, so every call goes to a thread; each is bounded by the deadline of what it calls.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from aftershock.errors import FaultError
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import BrokerId, Quorum, Resource, TopicPartition
from aftershock.harness.cluster.attached import AttachedCluster, link_name
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.target import Target
from aftershock.harness.cluster.topology import Proxy
from aftershock.harness.run.client_processes import Crew
from aftershock.harness.world.kafka import ClientsWorld, KafkaWorld
from aftershock.harness.world.links import LinksWorld
from aftershock.harness.world.nodes import MachineWorld, NodesWorld, UpgradesWorld
from aftershock.harness.world.wire_proxy import RulesWorld
from aftershock.workloads.kafka.wire.connection import Address


class AttachedWorld(LinksWorld, KafkaWorld, ClientsWorld):
    """See `faults.world`: Administered, Linked, Redirected, Crewed, and of Observed the racks."""

    def __init__(self, cluster: AttachedCluster, crew: Crew) -> None:
        self._attached = cluster
        self._cluster = cast("Any", cluster)  # it has what the verbs above ask of a cluster
        self._crew = crew
        self._security = cluster.secured
        attach = cluster.card.attach
        self._proxies = {
            (name := link_name(attach, broker)): Proxy(name, "client", attach.rack, broker, None, 0, "")
            for broker in attach.proxies.values()
        }
        self._probing = ThreadPoolExecutor(max_workers=2 * len(self._proxies) or 1, thread_name_prefix="probe")

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, None]]:
        if verb.startswith("_") or not hasattr(World, verb):
            raise AttributeError(verb)

        async def refused(*_: object, **__: object) -> None:
            raise FaultError(f"`{verb}` can't be done to an attached cluster: we did not start it")

        return refused

    def racks(self) -> Mapping[BrokerId, str]:
        """See `faults.world.Observed`; controllers that are no brokers are not known here."""
        return self._attached.racks

    def _address_of(self, proxy: Proxy) -> Address:
        return self._attached.dialled[BrokerId(proxy.node)]

    async def quorum(self) -> Quorum:
        """See `faults.world.Administered`, by what the brokers say."""
        told = await asyncio.to_thread(self._attached.admin.quorum)
        return Quorum(told.leader, told.epoch)

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """See `faults.world.Administered`, likewise."""
        told = await asyncio.to_thread(self._attached.admin.quorum)
        return {voter: told.ends[told.leader] - end for voter, end in told.ends.items()}

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """See `faults.world.Administered`."""
        self._named(assignment)
        await super().reassign(assignment)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        self._named(wanted := list(partitions))
        await super().cancel_reassign(wanted)

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        self._named(wanted := list(partitions))
        await super().elect_preferred(wanted)

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        self._made_here(wanted := list(partitions))
        await super().elect_unclean(wanted)

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """See `faults.world.Administered`."""
        if of == "topic":
            self._named([(name, 0)])
        if of == "broker":
            self._touchable(name)
        if of == "client" and name not in self._attached.card.clients:
            raise FaultError(f"the client {name} is none of ours, and its quotas are left alone")
        await super().alter_config(of, name, changes)

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """See `faults.world.Administered`: one of ours again, in its own place."""
        self._made_here([(topic, 0)])
        topic_id = await super().create_topic(topic, replicas, config)
        self._attached.created(topic, topic_id)
        return topic_id

    async def delete_topic(self, topic: str) -> None:
        """See `faults.world.Administered`."""
        self._made_here([(topic, 0)])
        await super().delete_topic(topic)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """See `faults.world.Administered`."""
        self._named([(topic, 0)])
        await super().add_partitions(topic, partitions)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """See `faults.world.Administered`."""
        self._made_here(before)
        await super().delete_records(before)

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """See `faults.world.Administered`."""
        self._touchable(str(broker))
        return await super().close_fetch_session(broker, session)

    def _named(self, partitions: Iterable[TopicPartition]) -> None:
        for topic, _ in partitions:
            if topic not in self._attached.card.topics:
                raise FaultError(f"the topic {topic} is not the plan's, and others are left alone")

    def _made_here(self, partitions: Iterable[TopicPartition]) -> None:
        for topic, _ in partitions:
            if topic not in self._attached.card.created:
                raise FaultError(f"the topic {topic} was there before us, and its records are left alone")

    def _touchable(self, broker: str) -> None:
        if not broker.isdecimal() or int(broker) not in self._attached.card.attach.brokers:
            raise FaultError(f"broker {broker or 'defaults'} is not named under `attach.brokers`, so it is left alone")


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

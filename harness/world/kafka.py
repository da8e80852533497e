"""Kafka's administration and the client processes of a run, for faults.

The administration uses the listeners that no fault touches.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aftershock.faults.targets.values import (
    BrokerId,
    ClientProcess,
    Heartbeat,
    PartitionState,
    Quorum,
    Resource,
    Setting,
    TopicPartition,
)
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka import admin, groups, replicas, settings
from aftershock.harness.kafka.groups import member_clients
from aftershock.harness.run.client_processes import ClientProcesses


class KafkaWorld:
    """Kafka's administration: implements `faults.runtime.world.Administered`."""

    _cluster: Cluster

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        return await asyncio.to_thread(self._cluster.admin.partitions, topics)

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        await asyncio.to_thread(self._cluster.admin.reassign, assignment)

    async def reassigning(self) -> frozenset[TopicPartition]:
        return await asyncio.to_thread(self._cluster.admin.reassigning)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.to_thread(self._cluster.admin.reassign, dict.fromkeys(partitions))

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.to_thread(self._cluster.admin.elect_preferred, partitions)

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.to_thread(self._cluster.admin.elect_unclean, partitions)

    async def controller(self) -> BrokerId:
        return (await self.quorum()).controller

    async def quorum(self) -> Quorum:
        quorum = await asyncio.to_thread(self._describe_quorum)
        return Quorum(quorum.leader, quorum.epoch)

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        quorum = await asyncio.to_thread(self._describe_quorum)
        return {voter: quorum.ends[quorum.leader] - end for voter, end in quorum.ends.items()}

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        return await asyncio.to_thread(settings.settings, self._cluster.admin, of, name)

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        await asyncio.to_thread(settings.change, self._cluster.admin, of, name, changes)

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        return await asyncio.to_thread(settings.create_topic_on, self._cluster.admin, topic, replicas, config)

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._cluster.admin.delete_topics, [topic])

    async def topic_ids(self) -> Mapping[str, str]:
        return await asyncio.to_thread(settings.topic_ids, self._cluster.admin)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(settings.add_partitions, self._cluster.admin, topic, partitions)

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        return await asyncio.to_thread(replicas.log_ends, self._cluster.admin, topic)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        await asyncio.to_thread(replicas.delete_records, self._cluster.admin, before)

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        return await asyncio.to_thread(groups.close, self._cluster.admin, broker, session)

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        return await asyncio.to_thread(groups.is_open, self._cluster.admin, broker, session)

    async def coordinator(self, group: str) -> BrokerId:
        return await asyncio.to_thread(self._cluster.admin.coordinator, group)

    async def registered(self, excluding: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        members = await asyncio.to_thread(self._cluster.admin.members, excluding)
        return frozenset(member.id for member in members if not member.fenced)

    def _describe_quorum(self) -> admin.Quorum:
        return settings.ask_voters(self._cluster.voter_addresses())


class ClientsWorld:
    """Implements `faults.runtime.world.ClientControl`."""

    _cluster: Cluster
    _clients: ClientProcesses

    async def clients(self) -> Sequence[ClientProcess]:
        return await asyncio.to_thread(self._clients.members)

    async def kill_client(self, worker: str) -> None:
        await asyncio.to_thread(self._clients.kill, worker)

    async def start_client(self, worker: str) -> None:
        await asyncio.to_thread(self._clients.release, worker)

    async def pause_client(self, worker: str) -> None:
        await asyncio.to_thread(self._clients.pause, worker)

    async def resume_client(self, worker: str) -> None:
        await asyncio.to_thread(self._clients.resume, worker)

    async def last_heartbeat(self, worker: str) -> Heartbeat | None:
        beat = await asyncio.to_thread(self._clients.heartbeat, worker)
        return beat and Heartbeat(*beat)

    async def in_group(self, worker: str) -> bool | None:
        group = await asyncio.to_thread(self._clients.group, worker)
        return None if group is None else worker in await asyncio.to_thread(member_clients, self._cluster.admin, group)

    async def connections(self, worker: str) -> frozenset[str]:
        return await asyncio.to_thread(self._clients.connections, worker)

    async def disconnect_client(self, worker: str) -> None:
        await asyncio.to_thread(self._clients.disconnect, worker)

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        return await asyncio.to_thread(self._clients.fetch_sessions, worker)

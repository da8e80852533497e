"""Kafka as faults see it: its own administration, over the listeners that no fault touches."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aftershock.faults.values import BrokerId, PartitionState, Quorum, Resource, Setting, TopicPartition
from aftershock.harness.cluster import Cluster
from aftershock.harness.kafka import fetch_sessions, quorum, records, settings, topics


class KafkaWorld:
    """See `faults.world.Administered`."""

    _cluster: Cluster

    async def partitions(self, topics: Sequence[str] | None = None) -> Sequence[PartitionState]:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(self._cluster.admin.partitions, topics)

    async def reassign(self, assignment: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(self._cluster.admin.reassign, assignment)

    async def reassigning(self) -> frozenset[TopicPartition]:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(self._cluster.admin.reassigning)

    async def cancel_reassign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(self._cluster.admin.reassign, dict.fromkeys(partitions))

    async def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(self._cluster.admin.elect_preferred, partitions)

    async def elect_unclean(self, partitions: Iterable[TopicPartition]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(self._cluster.admin.elect_unclean, partitions)

    async def controller(self) -> BrokerId:
        """See `faults.world.Administered`."""
        return (await self.quorum()).controller

    async def quorum(self) -> Quorum:
        """See `faults.world.Administered`."""
        told = await asyncio.to_thread(quorum.ask_voters, self._cluster.voter_addresses())
        return Quorum(told.leader, told.epoch)

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """See `faults.world.Administered`."""
        told = await asyncio.to_thread(quorum.ask_voters, self._cluster.voter_addresses())
        return {voter: told.ends[told.leader] - end for voter, end in told.ends.items()}

    async def config(self, of: Resource, name: str) -> Mapping[str, Setting]:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(settings.settings, self._cluster.admin, of, name)

    async def alter_config(self, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(settings.change, self._cluster.admin, of, name, changes)

    async def create_topic(
        self, topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], config: Mapping[str, str]
    ) -> str:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(topics.create_topic_on, self._cluster.admin, topic, replicas, config)

    async def delete_topic(self, topic: str) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(self._cluster.admin.delete_topics, [topic])

    async def topic_ids(self) -> Mapping[str, str]:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(topics.topic_ids, self._cluster.admin)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(topics.add_partitions, self._cluster.admin, topic, partitions)

    async def log_ends(self, topic: str) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(records.log_ends, self._cluster.admin, topic)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """See `faults.world.Administered`."""
        await asyncio.to_thread(records.delete_records, self._cluster.admin, before)

    async def close_fetch_session(self, broker: BrokerId, session: int) -> int:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(fetch_sessions.close, self._cluster.admin, broker, session)

    async def fetch_session_is_open(self, broker: BrokerId, session: int) -> bool:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(fetch_sessions.is_open, self._cluster.admin, broker, session)

    async def coordinator(self, group: str) -> BrokerId:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(self._cluster.admin.coordinator, group)

    async def registered(self, unasked: frozenset[BrokerId] = frozenset()) -> frozenset[BrokerId]:
        """See `faults.world.Administered`."""
        members = await asyncio.to_thread(self._cluster.admin.members, unasked)
        return frozenset(member.id for member in members if not member.fenced)

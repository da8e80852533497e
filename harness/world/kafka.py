"""Kafka as faults see it: its own administration, over the listeners that no fault touches."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aftershock.faults.world import BrokerId, PartitionState, TopicPartition
from aftershock.harness.cluster import Cluster


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

    async def controller(self) -> BrokerId:
        """See `faults.world.Administered`."""
        return (await asyncio.to_thread(self._cluster.admin.quorum)).leader

    async def coordinator(self, group: str) -> BrokerId:
        """See `faults.world.Administered`."""
        return await asyncio.to_thread(self._cluster.admin.coordinator, group)

    async def registered(self) -> frozenset[BrokerId]:
        """See `faults.world.Administered`."""
        members = await asyncio.to_thread(self._cluster.admin.members)
        return frozenset(member.id for member in members if not member.fenced)

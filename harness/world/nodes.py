"""The nodes of a launched cluster as faults see them: processes, over the Docker engine."""

import asyncio
from collections.abc import Mapping

from aftershock.faults.values import BrokerId, BrokerState
from aftershock.harness.cluster import Cluster


class NodesWorld:
    """See `faults.world`: Killable, Pausable, Observed."""

    _cluster: Cluster

    async def kill(self, broker: BrokerId) -> None:
        """See `faults.world.Killable`."""
        await asyncio.to_thread(self._cluster.nodes[broker].kill)

    async def stop(self, broker: BrokerId) -> None:
        """See `faults.world.Killable`."""
        await asyncio.to_thread(self._cluster.nodes[broker].shut_down)

    async def start(self, broker: BrokerId) -> None:
        """See `faults.world.Killable`."""
        await asyncio.to_thread(self._cluster.nodes[broker].restart)

    async def pause(self, broker: BrokerId) -> None:
        """See `faults.world.Pausable`."""
        await asyncio.to_thread(self._cluster.nodes[broker].pause)

    async def resume(self, broker: BrokerId) -> None:
        """See `faults.world.Pausable`."""
        await asyncio.to_thread(self._cluster.nodes[broker].resume)

    def racks(self) -> Mapping[BrokerId, str]:
        """See `faults.world.Observed`."""
        return {BrokerId(node.id): node.rack for node in self._cluster.spec.topology.nodes}

    async def state(self, broker: BrokerId) -> BrokerState:
        """See `faults.world.Observed`."""
        return await asyncio.to_thread(self._cluster.nodes[broker].state)

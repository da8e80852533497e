"""The nodes of a launched cluster as faults see them: which Kafka they are, and another one in their place."""

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime

from aftershock.faults.values import BrokerId
from aftershock.harness import engine, features
from aftershock.harness.cluster import Cluster
from aftershock.harness.node import output
from aftershock.harness.replacing import replace

_TOLD = re.compile(r"Kafka version: (\d+\.\d+\.\d+)")  # AppInfoParser's line, as a server starts


class UpgradesWorld:
    """See `faults.world`: Upgradable."""

    _cluster: Cluster

    async def version(self, broker: BrokerId) -> str:
        """See `faults.world.Upgradable`."""
        return await asyncio.to_thread(self._cluster.nodes[broker].version)

    async def told_version(self, broker: BrokerId) -> str:
        """See `faults.world.Upgradable`."""
        return await asyncio.to_thread(self._told_version, broker)

    async def fetch(self, version: str) -> None:
        """See `faults.world.Upgradable`."""
        await asyncio.to_thread(self._image, version)

    async def replace(self, broker: BrokerId, version: str) -> None:
        """See `faults.world.Upgradable`."""
        await asyncio.to_thread(lambda: replace(self._cluster.nodes[broker], self._image(version)))

    async def supported_features(self, broker: BrokerId) -> Mapping[str, int]:
        """See `faults.world.Upgradable`."""
        return await asyncio.to_thread(features.supported, self._cluster.admin, broker)

    async def features(self) -> Mapping[str, int]:
        """See `faults.world.Upgradable`."""
        return await asyncio.to_thread(features.finalised, self._cluster.admin)

    async def raise_feature(self, name: str, level: int) -> None:
        """See `faults.world.Upgradable`."""
        await asyncio.to_thread(features.raise_level, self._cluster.admin, name, level)

    def _image(self, version: str) -> str:
        """An image of that version; where there is none it is pulled or built, which takes minutes."""
        client = next(iter(self._cluster.nodes.values())).container.client
        return engine.kafka_image(client, version, lambda _: None).name

    def _told_version(self, broker: BrokerId) -> str:
        container = self._cluster.nodes[broker].container
        container.reload()
        started = datetime.fromisoformat(container.attrs["State"]["StartedAt"][:19] + "+00:00")
        return next(iter(_TOLD.findall(output(container, started))[-1:]), "")

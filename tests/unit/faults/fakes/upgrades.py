"""Node versions in memory: as in Kafka, a node that does not know the finalised level exits at its start."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


KNOWN_LEVEL = {"4.1.2": 27, "4.3.1": 30}


class FakeUpgrades:
    """Fake of `faults.runtime.world.Upgradable`; tests may change ``versions`` and ``level`` from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {BrokerId(broker): "4.1.2" for broker in (1, 2, 3)}
        self.level = 27

    async def version(self: "FakeWorld", broker: BrokerId) -> str:
        await self._called("version", broker)
        return self.versions[broker]

    async def reported_version(self: "FakeWorld", broker: BrokerId) -> str:
        await self._called("reported_version", broker)
        return self.versions[broker]

    async def fetch(self: "FakeWorld", version: str) -> None:
        await self._called("fetch", version)

    async def replace(self: "FakeWorld", broker: BrokerId, version: str) -> None:
        await self._called("replace", (broker, version))
        if self.states[broker] == "running":
            self._lose(broker, "exited")
        self.versions[broker] = version
        if KNOWN_LEVEL[version] >= self.level:
            self._regain(broker)

    async def supported_features(self: "FakeWorld", broker: BrokerId) -> Mapping[str, int]:
        await self._called("supported_features", broker)
        if not self._serves(broker):
            raise AdminError(f"k{broker} did not answer", "NETWORK_EXCEPTION")
        return {"metadata.version": KNOWN_LEVEL[self.versions[broker]]}

    async def features(self: "FakeWorld") -> Mapping[str, int]:
        await self._called("features", None)
        return {"metadata.version": self.level}

    async def raise_feature(self: "FakeWorld", name: str, level: int) -> None:
        await self._called("raise_feature", (name, level))
        self.level = level

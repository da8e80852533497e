"""Floods in memory, which fill their topic at a share of the asked rate."""

from typing import TYPE_CHECKING

from aftershock.faults.targets.values import FloodLoad, TopicPartition

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


class FakeFloods:
    """Fake of `faults.targets.world.FloodControl`; ``flood_share`` is the share of the rate that the brokers take."""

    def __init__(self) -> None:
        super().__init__()
        self.floods: dict[str, tuple[FloodLoad, int]] = {}
        self.flood_share = 1.0

    async def start_flood(self: "FakeWorld", fault: str, flood: FloodLoad) -> None:
        await self._called("start_flood", fault)
        self.floods[fault] = flood, self.clock.now_us()

    async def end_flood(self: "FakeWorld", fault: str) -> None:
        await self._called("end_flood", fault)
        self.floods.pop(fault, None)

    def flooded(self: "FakeWorld", where: TopicPartition) -> int:
        """Return the records of floods in a partition."""
        for flood, since_us in self.floods.values():
            if flood.topic == where[0]:
                sent = flood.bytes_per_s * (self.clock.now_us() - since_us) / 1e6 / flood.record_size
                return int(sent * self.flood_share / flood.partitions)
        return 0

"""``add_partitions``: give a topic more partitions; Kafka has no way to take them back.

Clients learn of them with their next metadata, five minutes later by default; from then on keys map to other
partitions.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Rest, Scene, Stake, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import NOTHING, Targets, Witness
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until

ADDED_DEADLINE_MS = 30_000


class AddPartitionsStrike(Strike):
    """One topic, from so many partitions to more."""

    undo = NOTHING

    def __init__(self, scene: Scene, topic: str, before: int, to: int) -> None:
        self.scene = scene
        self.topic = topic
        self.before, self.to = before, to
        self.targets = Targets(topics=(topic,), roles={"before": before, "to": to})

    async def inject(self) -> None:
        """Add them, and see them led."""
        await to_the_end(self.scene.world.add_partitions(self.topic, self.to))
        await until(self._missing, self.scene.clock, ADDED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- it is done
        """There are as many as asked for, each with a leader."""
        led = await patiently(self._led, self.scene.clock, READ_DEADLINE_MS)
        what = f"partitions of {self.topic} that have a leader, {self.before} of them from before"
        report(Witness(what, self.to, led, "partitions", led, led >= self.to))

    async def _led(self) -> int:
        return sum(state.leader is not None for state in await self.scene.world.partitions([self.topic]))

    async def _missing(self) -> str | None:
        led = await self._led()
        return None if led >= self.to else f"{led} of {self.to} partitions have a leader"


class AddPartitions(Fault):
    """Give a topic more partitions."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#a55194", "add partitions")
    proof: ClassVar[str] = "the partitions read back, each with a leader"
    remedy: ClassVar[str] = "nothing: the partitions stay"
    leaves: ClassVar[str | None] = "a topic with more partitions"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("assignment", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["add_partitions"] = "add_partitions"
    topic: str
    to: Annotated[StrictInt, Field(ge=2, le=10_000, description="how many there are to be in all")]

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A number that is no more than there are."""
        partitions = {topic.name: topic.partitions for topic in rest.topics.values()}.get(self.topic)
        if partitions is not None and self.to <= partitions:
            yield Problem(("to",), f"{self.topic} has {partitions} partitions, and Kafka can only add: ask for more")

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if there is no such topic, or it has as many already."""
        before = len(await scene.world.partitions([self.topic]))
        if not 0 < before < self.to:
            raise FaultError(f"{self.topic} has {before} partitions, so it can't be given more to be {self.to} in all")
        return AddPartitionsStrike(scene, self.topic, before, self.to)

"""``recreate_topic``: delete a topic and create it again under its name: its records are gone, and its id is another.

Partitions, replicas and settings are as before. Clients that know topics by their ids (KIP-516) must learn the new one;
those that know them by name see offsets begin anew. Between the two there is no topic: the undo of that moment, should
the runner die in it, creates it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Rest, Scene, Stake, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.undo import perform
from aftershock.faults.values import PartitionState
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until

if TYPE_CHECKING:
    from collections.abc import Iterator


RECREATED_DEADLINE_MS = 30_000
ERASES = ("lost", "duplicate", "order")
"""What integrity rules can't hold across two topics of one name."""


class RecreateTopicStrike(Strike):
    """One topic, replaced. ``topic_id``: that of before."""

    def __init__(
        self, scene: Scene, topic_id: str, states: Sequence[PartitionState], config: Mapping[str, str]
    ) -> None:
        self.scene = scene
        self.topic = states[0].topic
        self.topic_id = topic_id
        self.partitions = len(states)
        self.targets = Targets(topics=(self.topic,), roles={"topic_id": topic_id, "permits": ERASES})
        replicas: list[list[Any]] = [[state.partition, list(state.replicas)] for state in states]
        args = {"topic": self.topic, "replicas": replicas, "config": dict(config)}
        self.undo = Undo("create_topic", args)

    async def inject(self) -> None:
        """Delete it, create it, and see all of it led."""
        await to_the_end(self._replace())
        await until(self._not_led, self.scene.clock, RECREATED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- it is done
        """It has another id."""
        now = (await patiently(self.scene.world.topic_ids, self.scene.clock, READ_DEADLINE_MS)).get(self.topic)
        ok = now is not None and now != self.topic_id
        what = f"topics named {self.topic} with another id than {self.topic_id}: {now}"
        report(Witness(what, asked=1, observed=float(ok), unit="topics", n=1, ok=ok))

    async def _replace(self) -> None:
        await self.scene.world.delete_topic(self.topic)
        await until(self._still_there, self.scene.clock, RECREATED_DEADLINE_MS)
        await perform(self.undo, self.scene.world, self.scene.clock)

    async def _still_there(self) -> str | None:
        return f"{self.topic} is not yet deleted" if self.topic in await self.scene.world.topic_ids() else None

    async def _not_led(self) -> str | None:
        states = await self.scene.world.partitions([self.topic])
        led = [state for state in states if state.leader is not None]
        return None if len(led) == self.partitions else f"{len(led)} of {self.partitions} partitions have a leader"


class RecreateTopic(Fault):
    """Delete a topic and create it again."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#ad494a", "recreate topic")
    proof: ClassVar[str] = "a topic of that name, with another id"
    remedy: ClassVar[str] = "nothing: the topic stays new; interrupted, it is created"
    leaves: ClassVar[str | None] = "a topic of that name with another id, and none of the records"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = tuple(Stake(each, "topics") for each in ("assignment", "records", "settings"))
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 2_000  # 0.3 s for six partitions

    kind: Literal["recreate_topic"] = "recreate_topic"
    topic: str

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    def problems(self, rest: Rest) -> "Iterator[Problem]":  # noqa: ARG002 -- its name says enough
        """Kafka keeps groups and transactions in its own."""
        if self.topic.startswith("__"):
            sentence = f"{self.topic} is Kafka's own, and its coordinators would not notice: name a topic of the plan"
            yield Problem(("topic",), sentence)

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if there is no such topic."""
        topic_id = (await scene.world.topic_ids()).get(self.topic)
        if topic_id is None:
            raise FaultError(f"there is no topic {self.topic}; check the fault's target")
        states = await scene.world.partitions([self.topic])
        settings = await scene.world.config("topic", self.topic)
        config = {key: setting.dynamic for key, setting in settings.items() if setting.dynamic is not None}
        return RecreateTopicStrike(scene, topic_id, states, config)

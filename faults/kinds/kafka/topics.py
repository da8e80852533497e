"""``add_partitions``: give a topic more partitions; Kafka has no way to take them back.

Clients learn of them with their next metadata, five minutes later by default; from then on keys map to other
partitions.

``delete_records``: raise the log start of a topic's partitions, so that their oldest records are gone (KIP-107).

It is what retention does, at a moment of our choosing. Consumers that have not read so far are out of range and start
anew by ``auto.offset.reset``. ``share: 0.5`` deletes the older half of each partition, ``before: N`` all below offset
N, neither of them everything up to the high watermark. The plan itself wanted the records gone, so that they are is no
loss of the cluster's.

``recreate_topic``: delete a topic and create it again under its name: its records are gone, and its id is another.

Partitions, replicas and settings are as before. Clients that know topics by their ids (KIP-516) must learn the new one;
those that know them by name see offsets begin anew. Between the two there is no topic: the undo of that moment, should
the runner die in it, creates it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Among, Band, Draws, Family, Fault, Place, Report, Rest, Scene, Stake, Strike
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import NOTHING, Targets, Undo, Witness
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, patiently, to_the_end, until
from aftershock.faults.targets.values import PartitionState, TopicPartition

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


DELETED_DEADLINE_MS = 10_000
ERASES = ("lost",)
"""What integrity rules can't hold where the plan itself had records deleted."""


class DeleteRecordsStrike(Strike):
    """New log starts for some partitions."""

    undo = NOTHING

    def __init__(self, scene: Scene, topic: str, before: Mapping[TopicPartition, int]) -> None:
        self.scene = scene
        self.topic = topic
        self.before = dict(before)
        told = {str(partition): offset for (_, partition), offset in sorted(before.items())}
        self.targets = Targets(topics=(topic,), roles={"before": told, "permits": ERASES})

    async def inject(self) -> None:
        """Delete them, and see every leader's log begin later."""
        await to_the_end(self.scene.world.delete_records(self.before))
        await until(self._missing, self.scene.clock, DELETED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- it is done
        """Each log begins where it was asked to, or later."""
        left = await patiently(self._left, self.scene.clock, READ_DEADLINE_MS)
        asked = len(self.before)
        what = f"partitions of {self.topic} whose log, by its leader, begins where the deletion ended or later"
        report(Witness(what, asked, asked - len(left), "partitions", asked, not left))

    async def _left(self) -> list[TopicPartition]:
        ends = await self.scene.world.log_ends(self.topic)
        return [where for where, offset in self.before.items() if ends.get(where, (-1, -1))[0] < offset]

    async def _missing(self) -> str | None:
        left = await self._left()
        return f"{len(left)} of {len(self.before)} partitions still have the records" if left else None


class DeleteRecords(Fault):
    """Delete the oldest records of a topic."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#8c6d31", "delete records")
    proof: ClassVar[str] = "the log start of every partition, read back from its leader"
    remedy: ClassVar[str] = "nothing: the records are gone"
    leaves: ClassVar[str | None] = "logs without the records that it deleted"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("records", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["delete_records"] = "delete_records"
    topic: str
    share: Annotated[float, Field(gt=0, le=1, description="how much of each partition, its oldest")] | None = None
    before: Annotated[StrictInt, Field(ge=1, description="up to this offset of each partition")] | None = None

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if self.share is not None and self.before is not None:
            sentence = "a delete_records goes up to a `share` or up to an offset (`before`); say one of them"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if the topic holds no such records."""
        ends = await scene.world.log_ends(self.topic)
        new_starts = {where: self._new_start(start, end) for where, (start, end) in ends.items()}
        risen = {where: offset for where, offset in new_starts.items() if offset > ends[where][0]}
        if not risen:
            raise FaultError(f"{self.topic} holds no records to delete; let some be produced first")
        return DeleteRecordsStrike(scene, self.topic, risen)

    def _new_start(self, start: int, end: int) -> int:
        if self.before is not None:
            return min(self.before, end)
        return start + math.ceil((end - start) * (1.0 if self.share is None else self.share))


RECREATED_DEADLINE_MS = 30_000
RECREATE_ERASES = ("lost", "duplicate", "order")
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
        self.targets = Targets(topics=(self.topic,), roles={"topic_id": topic_id, "permits": RECREATE_ERASES})
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

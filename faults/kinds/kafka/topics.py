"""Faults ``add_partitions``, ``delete_records``, ``recreate_topic`` and ``elect``, which change a topic permanently.

After ``add_partitions`` clients learn of the new partitions with their next metadata refresh, after five minutes by
default; afterwards record keys map to other partitions.

``delete_records`` raises the log start of a topic's partitions (KIP-107), as retention does. Consumers whose position
is below the new log start are out of range and reset according to ``auto.offset.reset``. The checks don't count the
deleted records as lost.

After ``recreate_topic`` clients that use topic ids (KIP-516) must learn the new id; clients that use topic names see
offsets start at 0 again. With ``for``, the topic does not exist for that time, and then appears: producers and
subscriptions, also those of a pattern, must find it. If the runner dies after the deletion of the topic, the undo
creates the topic.

``elect`` elects the leaders of a topic's partitions by Kafka's leader election (KIP-460). In a ``preferred`` election
the first replica of every partition becomes its leader. In an ``unclean`` election any live replica of a partition
without a leader becomes the leader, even if it was not in sync; records that only dead replicas had are lost, including
acknowledged records, and their offsets are used again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    ForRule,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import elect_preferred_leaders, perform
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.values import PartitionState, TopicPartition

ADDED_DEADLINE_MS = 30_000


class TopicFault(Fault):
    """Base of faults that change a topic for good."""

    family = "Kafka"
    exposure_target = "topics"
    for_rule: ClassVar[ForRule] = "refused"

    topic: str


@dataclass(eq=False)
class AddPartitionsInjection(Injection):
    """Addition of partitions, from ``before`` to ``to`` partitions of the topic."""

    topic: str
    before: int
    to: int

    async def inject(self) -> None:
        async def missing() -> str | None:
            led = await self._count_led()
            return None if led >= self.to else f"{led} of {self.to} partitions of {self.topic} have a leader"

        await run_to_completion(self.context.world.add_partitions(self.topic, self.to))
        await wait_until(missing, self.context.clock, ADDED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of the topic's partitions that have a leader."""
        led = await retry_refused(self._count_led, self.context.clock, READ_DEADLINE_MS)
        what = f"partitions of {self.topic} that have a leader; there were {self.before} before the fault"
        report(Witness(what, self.to, led, "partitions", led, led >= self.to))

    async def _count_led(self) -> int:
        return sum(state.leader is not None for state in await self.context.world.partitions([self.topic]))


class AddPartitions(TopicFault):
    """Add partitions to a topic."""

    band = Band("#a55194", "add partitions")
    proof = "Kafka lists the new number of partitions, each with a leader."
    remedy = "Nothing is restored, because Kafka can't remove partitions."
    permanent_effect = "The topic keeps the additional partitions."
    exclusive_resources = (ExclusiveResource("assignment", "topics"),)
    allowance_ms = 1_000
    apis = ("CreatePartitions",)

    drawn = ("{topic: TOPIC, to: [8, 12]}",)
    kind: Literal["add_partitions"] = "add_partitions"
    to: Annotated[StrictInt, Field(ge=2, le=10_000, description="the topic's new number of partitions")]

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        partitions = {topic.name: topic.partitions for topic in plan.topics.values()}.get(self.topic)
        if partitions is not None and self.to <= partitions:
            message = f"{self.topic} has {partitions} partitions already: set `to` to {partitions + 1} or more"
            yield Problem(("to",), message)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        before = len(await context.world.partitions([self.topic]))
        if not 0 < before < self.to:
            raise FaultError(f"{self.topic} has {before} partitions and can't grow to {self.to} (`to`); check `to`")
        targets = Targets(topics=(self.topic,), roles={"before": before, "to": self.to})
        return AddPartitionsInjection(context, targets, self.topic, before, self.to)


DELETED_DEADLINE_MS = 10_000
ERASES = ("lost",)
"""Integrity rules that records deleted by ``delete_records`` may break."""


@dataclass(eq=False)
class DeleteRecordsInjection(Injection):
    """Deletion of each partition's records below the partition's offset in ``before``."""

    topic: str
    before: Mapping[TopicPartition, int]

    async def inject(self) -> None:
        """Delete the records, and wait until the leader of every partition has the new log start."""

        async def missing() -> str | None:
            pending = await self._pending()
            return f"{len(pending)} of {len(self.before)} partitions still have old records" if pending else None

        await run_to_completion(self.context.world.delete_records(self.before))
        await wait_until(missing, self.context.clock, DELETED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of partitions whose log starts at the requested offset or later."""
        pending = await retry_refused(self._pending, self.context.clock, READ_DEADLINE_MS)
        asked = len(self.before)
        what = f"partitions of {self.topic} whose leader reports a log start at or above the requested offset"
        report(Witness(what, asked, asked - len(pending), "partitions", asked, not pending))

    async def _pending(self) -> list[TopicPartition]:
        ends = await self.context.world.log_ends(self.topic)
        return [key for key, offset in self.before.items() if ends.get(key, (-1, -1))[0] < offset]


class DeleteRecords(TopicFault):
    """Delete the oldest records of a topic."""

    band = Band("#8c6d31", "delete records")
    proof = "The leader of each partition reports the new log start."
    remedy = "Nothing is restored: deleted records can't be brought back."
    permanent_effect = "The deleted records are missing from the logs."
    exclusive_resources = (ExclusiveResource("records", "topics"),)
    allowance_ms = 1_000
    apis = ("ListOffsets", "DeleteRecords")

    drawn = ("{topic: TOPIC, share: [0.5, 1]}",)
    kind: Literal["delete_records"] = "delete_records"
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of the records of each partition to delete, oldest records first"
    )
    before: Annotated[StrictInt, Field(ge=1)] | None = Field(
        default=None, description="offset below which the records of each partition are deleted"
    )

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if self.share is not None and self.before is not None:
            raise ValueError("`share` and `before` exclude each other in a delete_records fault: remove either")
        return self

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        ends = await context.world.log_ends(self.topic)
        share = 1.0 if self.share is None else self.share
        new_starts = {
            key: start + math.ceil((end - start) * share) if self.before is None else min(self.before, end)
            for key, (start, end) in ends.items()
        }
        raised = {key: offset for key, offset in new_starts.items() if offset > ends[key][0]}
        if not raised:
            raise FaultError(f"the topic {self.topic} holds no records to delete; produce records before the fault")
        offsets = {str(partition): offset for (_, partition), offset in sorted(raised.items())}
        targets = Targets(topics=(self.topic,), roles={"before": offsets, "permits": ERASES})
        return DeleteRecordsInjection(context, targets, self.topic, raised)


RECREATED_DEADLINE_MS = 30_000
RECREATE_ERASES = ("lost", "duplicate", "order")
"""Integrity rules that records of a topic may break after ``recreate_topic``."""


@dataclass(eq=False)
class RecreateTopicInjection(Injection):
    """Replacement of a topic that has the id ``topic_id`` before the fault; ``stays_away`` until the heal, or not."""

    topic: str
    topic_id: str
    partitions: int
    stays_away: bool = False

    async def inject(self) -> None:
        world, clock = self.context.world, self.context.clock

        async def not_deleted() -> str | None:
            return f"the topic {self.topic} is not yet deleted" if self.topic in await world.topic_ids() else None

        async def replace() -> None:
            await world.delete_topic(self.topic)
            await wait_until(not_deleted, clock, RECREATED_DEADLINE_MS)
            if not self.stays_away:
                await perform(self.undo, world, clock)

        await run_to_completion(replace())
        if not self.stays_away:
            await self.confirm_healed()

    async def confirm_healed(self) -> None:
        """Wait until each partition of the new topic has a leader."""

        async def not_led() -> str | None:
            states = await self.context.world.partitions([self.topic])
            led = sum(state.leader is not None for state in states)
            missing = f"{led} of {self.partitions} partitions of the new topic {self.topic} have a leader"
            return None if led == self.partitions else missing

        await wait_until(not_led, self.context.clock, RECREATED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the topic has another topic id than before the fault, or each second that there is no topic."""
        if self.stays_away:
            await report_each_second(self._absence, report, self.context.clock, until_us)
            return
        now = (await retry_refused(self.context.world.topic_ids, self.context.clock, READ_DEADLINE_MS)).get(self.topic)
        ok = now is not None and now != self.topic_id
        what = f"topics named {self.topic} whose topic id, now {now}, is not the earlier id {self.topic_id}"
        report(Witness(what, asked=1, observed=float(ok), unit="topics", n=1, ok=ok))

    async def _absence(self) -> Witness:
        ids = await retry_refused(self.context.world.topic_ids, self.context.clock, READ_DEADLINE_MS)
        absent = self.topic not in ids
        return Witness(f"topics named {self.topic} that Kafka does not list", 1, float(absent), "topics", 1, absent)


class RecreateTopic(TopicFault):
    """Delete a topic and create it again with the same partitions, replicas and settings, at once or after a time."""

    band = Band("#ad494a", "recreate topic")
    proof = "Kafka lists the topic with another topic id; with `for`, Kafka lists no such topic (read each second)."
    remedy = (
        "With `for`, the topic is created, and each partition has a leader. Without, the new topic stays. If the fault "
        "is interrupted after the deletion, the topic is created."
    )
    for_rule = "optional"
    permanent_effect = "The topic has another topic id and none of the earlier records."
    exclusive_resources = tuple(ExclusiveResource(name, "topics") for name in ("assignment", "records", "settings"))
    allowance_ms = 2_000  # 0.3 s for six partitions
    apis = ("DescribeConfigs", "CreateTopics", "DeleteTopics")

    drawn = ("{topic: TOPIC}", "{topic: TOPIC, for: 4s}")
    kind: Literal["recreate_topic"] = "recreate_topic"

    def problems(self, _plan: PlanContext) -> Iterator[Problem]:
        if self.topic.startswith("__"):
            message = (
                f"Kafka's internal topic {self.topic} can't be recreated, because coordinators would not notice: "
                "use a topic of the plan"
            )
            yield Problem(("topic",), message)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        topic_id = (await context.world.topic_ids()).get(self.topic)
        if topic_id is None:
            raise FaultError(f"the cluster has no topic {self.topic}; correct the fault's `topic`")
        states = await context.world.partitions([self.topic])
        settings = await context.world.config("topic", self.topic)
        config = {key: setting.dynamic for key, setting in settings.items() if setting.dynamic is not None}
        replicas = [[state.partition, list(state.replicas)] for state in states]
        undo = Undo("create_topic", {"topic": self.topic, "replicas": replicas, "config": config})
        targets = Targets(topics=(self.topic,), roles={"topic_id": topic_id, "permits": RECREATE_ERASES})
        stays_away = self.for_ is not None
        return RecreateTopicInjection(context, targets, self.topic, topic_id, len(states), stays_away, undo=undo)


ELECTED_DEADLINE_MS = 30_000
Election = Literal["preferred", "unclean"]
TRUNCATES = ("lost", "duplicate", "order")
"""Integrity rules that may be broken after an unclean election, because it truncates logs."""


class Elect(TopicFault):
    """Elect the preferred leaders of a topic, or any live replica as leader of a partition without a leader."""

    band = Band("#17becf", "elect")
    proof = (
        "Preferred replicas lead at a higher epoch (preferred), or partitions that had no leader have one (unclean)."
    )
    permanent_effect = "The elected leaders stay. An unclean election loses records that only dead replicas had."
    remedy = "Nothing is restored: the elected leaders stay."
    closes_connections = True  # the former leader answers with an error
    exclusive_resources = (ExclusiveResource("assignment", "topics"),)
    allowance_ms = 1_000
    apis = ("ElectLeaders",)

    drawn = ("{topic: TOPIC}",)
    kind: Literal["elect"] = "elect"
    election: Election = "preferred"

    def impact(self) -> Impact:
        return "leaders" if self.election == "preferred" else "unknown"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        before = tuple(await context.world.partitions([self.topic]))
        if not before:
            raise FaultError(f"the cluster has no topic {self.topic}; correct the fault's `topic`")
        if self.election == "preferred":
            due = {state.partition: state for state in before if state.leader != state.replicas[0]}
            targets = Targets(topics=(self.topic,), roles={"election": "preferred", "astray": len(due)})
            partitions = frozenset((self.topic, state.partition) for state in before)
            return PreferredInjection(context, targets, self.topic, due, partitions)
        if all(state.leader is not None for state in before):
            raise FaultError(
                f"every partition of {self.topic} has a leader, and an unclean election elects only where there is no "
                "leader; take down the in-sync replicas of a partition first"
            )
        due = {state.partition: state for state in before if state.leader is None}
        roles = {"election": "unclean", "leaderless": sorted(due), "permits": TRUNCATES}
        return UncleanInjection(context, Targets(topics=(self.topic,), roles=roles), self.topic, due)


@dataclass(eq=False)
class PreferredInjection(Injection):
    """Preferred election of ``partitions``; ``due`` lists the partitions whose leader is not the preferred replica."""

    topic: str
    due: Mapping[int, PartitionState]
    partitions: frozenset[TopicPartition]

    async def inject(self) -> None:
        world, clock = self.context.world, self.context.clock
        await wait_until(lambda: elect_preferred_leaders(self.partitions, world), clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of partitions that their preferred replica has taken over, at a higher leader epoch."""
        states = await partition_states(self.topic, self.context)
        moved = [
            state
            for state in states
            if (before := self.due.get(state.partition))
            and state.leader == state.replicas[0]
            and state.leader_epoch > before.leader_epoch
        ]
        ok = bool(self.due) and len(moved) == len(self.due)
        what = f"partitions of {self.topic} whose leadership moved to the preferred replica"
        report(Witness(what, max(1, len(self.due)), len(moved), "partitions", len(states), ok))


@dataclass(eq=False)
class UncleanInjection(Injection):
    topic: str
    due: Mapping[int, PartitionState]

    async def inject(self) -> None:
        async def leaderless() -> str | None:
            states = await self.context.world.partitions([self.topic])
            pending = [(self.topic, s.partition) for s in states if s.partition in self.due and s.leader is None]
            if not pending:
                return None
            await self.context.world.elect_unclean(pending)
            return f"{len(pending)} of {len(self.due)} partitions of {self.topic} still have no leader"

        await wait_until(leaderless, self.context.clock, ELECTED_DEADLINE_MS)

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of partitions whose new leader, at a higher epoch, was not in sync before the fault."""
        states = await partition_states(self.topic, self.context)
        led = [
            state
            for state in states
            if (before := self.due.get(state.partition))
            and state.leader is not None
            and state.leader not in before.isr
            and state.leader_epoch > before.leader_epoch
        ]
        what = f"partitions of {self.topic} that had no leader and are led by a replica that was not in sync"
        report(Witness(what, len(self.due), len(led), "partitions", len(states), len(led) == len(self.due)))


async def partition_states(topic: str, context: InjectionContext) -> Sequence[PartitionState]:
    return await retry_refused(lambda: context.world.partitions([topic]), context.clock, READ_DEADLINE_MS)

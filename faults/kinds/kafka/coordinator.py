"""Faults on the coordinator of a consumer group, namely ``move_coordinator`` and ``delete_group_offsets``.

A group's coordinator is the leader of the group's partition of ``__consumer_offsets`` (``GroupMetadataManager``), so
the coordinator moves with that partition's leadership. Kafka deletes committed offsets (KIP-496) only while no member
of the group subscribes to their topic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    Report,
    report_at_both_ends,
)
from aftershock.faults.kinds.kafka.assignments import partition_of, rotate
from aftershock.faults.kinds.kafka.reassign import MOVED_DEADLINE_MS, ReassignInjection
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import assignment_as_json
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.workloads import GroupName
from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.names import offsets_partition

OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(eq=False)
class MoveCoordinatorInjection(ReassignInjection):
    group: str = field(default="", kw_only=True)
    former: BrokerId | None = field(default=None, kw_only=True)

    async def inject(self) -> None:
        await super().inject()
        await wait_until(self._unmoved, self.context.clock, MOVED_DEADLINE_MS)

    async def _unmoved(self) -> str | None:
        coordinator = await self.context.world.coordinator(self.group)
        return f"broker {coordinator} coordinates the group {self.group} still" if coordinator == self.former else None

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that another broker coordinates the group, at the start and at the end of the fault."""
        read = self.coordinator_witness
        await report_at_both_ends(read, read, report, self.context.clock, until_us)

    async def coordinator_witness(self) -> Witness:
        world = self.context.world
        now = await retry_refused(lambda: world.coordinator(self.group), self.context.clock, READ_DEADLINE_MS)
        what = f"brokers other than {self.former} that coordinate the group {self.group}, by a FindCoordinator request"
        return Witness(what, asked=1, observed=int(now != self.former), unit="brokers", n=1, ok=now != self.former)


class MoveCoordinator(Fault):
    """Move the coordinator of a consumer group to another broker."""

    family = "Kafka"
    band = Band("#3182bd", "move coordinator")
    proof = "Another broker answers as the group's coordinator."
    remedy = "With `for` the earlier broker coordinates the group again."
    permanent_effect = "Without `for` the coordinator stays where it was moved."
    exposure_target = "topics"
    closes_connections = True  # the former coordinator answers with an error
    exclusive_resources = (ExclusiveResource("assignment", "topics"),)
    for_rule = "optional"
    allowance_ms = 2_000
    apis = ("FindCoordinator", "AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders")

    drawn = ("{group: GROUP}",)
    kind: Literal["move_coordinator"] = "move_coordinator"
    group: GroupName

    def impact(self) -> Impact:
        return "leaders"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        former = await context.world.coordinator(self.group)  # creates the topic of committed offsets
        states = await context.world.partitions([OFFSETS_TOPIC])
        number = offsets_partition(self.group, len(states))
        (state,) = (state for state in states if state.partition == number)
        if len(state.replicas) == 1:
            raise FaultError(f"{OFFSETS_TOPIC} has one replica, so the coordinator can't move; add brokers")
        key, targets = (
            partition_of(state),
            Targets(topics=(OFFSETS_TOPIC,), roles={"group": self.group, "from": former}),
        )
        led = [[*key]] if state.leader == state.replicas[0] else []
        undo = Undo("restore_assignment", {"assignment": assignment_as_json({key: state.replicas}), "elect": led})
        return MoveCoordinatorInjection(
            context, targets, {key: state}, rotate([state], 1), True, group=self.group, former=former, undo=undo
        )


@dataclass(eq=False)
class DeleteGroupOffsetsInjection(Injection):
    group: str
    partitions: Sequence[TopicPartition]

    async def inject(self) -> None:
        await run_to_completion(self.context.world.delete_group_offsets(self.group, self.partitions))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that the coordinator knows no committed offset of the partitions."""
        world = self.context.world
        offsets = await retry_refused(lambda: world.group_offsets(self.group), self.context.clock, READ_DEADLINE_MS)
        left, count = len(offsets.keys() & {*self.partitions}), len(self.partitions)
        what = f"partitions for which the group {self.group} has no committed offset, by an OffsetFetch request"
        report(Witness(what, count, count - left, "partitions", count, ok=left == 0))


class DeleteGroupOffsets(Fault):
    """Delete the offsets that a consumer group has committed for a topic; the group must have no members meanwhile."""

    family = "Kafka"
    band = Band("#e6550d", "delete offsets")
    proof = "The group's coordinator knows no committed offset of the topic."
    remedy = "Nothing is restored: the group starts where `from` says."
    permanent_effect = "The committed offsets are gone."
    exposure_target = "topics"
    exclusive_resources = ()
    for_rule = "refused"
    allowance_ms = 1_000
    apis = ("FindCoordinator", "OffsetFetch", "OffsetDelete")

    kind: Literal["delete_group_offsets"] = "delete_group_offsets"
    group: GroupName
    topic: str

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        offsets = await context.world.group_offsets(self.group)
        partitions = sorted(place for place in offsets if place[0] == self.topic)
        if not partitions:
            raise FaultError(f"the group {self.group} has committed no offset of {self.topic}; start the fault later")
        before = {str(number): offsets[topic, number] for topic, number in partitions}
        # the group then reads everything again, or only what is new
        roles = {"group": self.group, "offsets": before, "permits": ["commit_behind", "skipped"]}
        targets = Targets(topics=(self.topic,), roles=roles)
        return DeleteGroupOffsetsInjection(context, targets, self.group, partitions)

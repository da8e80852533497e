"""Faults ``corrupt_segment`` and ``truncate_segment``, which damage the newest segment of a partition on one broker.

The broker is killed first, so that its logs count as not cleanly shut down. At its next start it reads what it had not
flushed (from the recovery point on), cuts the log at the first batch with a wrong checksum (CRC-32C), rebuilds the
indexes, and fetches the rest from the leader. Damage before the recovery point stays unnoticed until somebody reads the
records, because a broker trusts what it has flushed; nothing repairs that.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.kafka.elect import TRUNCATES
from aftershock.faults.kinds.process.base import KillInjection, NodeFault, led_partitions, node_duties
from aftershock.faults.runtime.record import Targets, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.roles import partition_of, resolve
from aftershock.faults.targets.values import LogDamage


class DamageInjection(KillInjection):
    """Kill of a node and damage to a file; ``checksums`` are those of the file before and after."""

    damage: LogDamage
    checksums: tuple[str, str] | None = None

    async def inject(self) -> None:
        await super().inject()

        async def change() -> None:
            self.checksums = await self.context.world.damage_log(self.victim, self.damage)

        await run_to_completion(change())

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the file has another checksum; then read the state of the node's container each second."""
        before, after = self.checksums or ("", "")
        what = f"files of {self.damage.topic}-{self.damage.partition} on node {self.victim} with another checksum"
        report(Witness(what, 1, int(before != after), "files", 1, ok=before != after))
        await super().hold(until_us, report)


class SegmentFault(NodeFault):
    """Base of faults that kill a broker and damage a file of one of its partitions."""

    family = "disk"
    proof = "The file has another checksum than before. The engine reports the container as exited (read each second)."
    remedy = "The node is started, and is in the ISR of all its partitions again."
    exclusive_resources = (ExclusiveResource("process", "brokers"), ExclusiveResource("disk", "brokers"))
    allowance_ms = 10_000  # a broker is back in service 3-9 s after `docker start`
    closes_connections = True
    action: ClassVar[Literal["corrupt", "truncate"]]

    topic: Annotated[str, Field(description="topic of the damaged partition")]
    partition: Annotated[StrictInt, Field(ge=0)] = 0
    file: Annotated[
        Literal["segment", "index"], Field(description="the newest segment's records, or its index of offsets")
    ] = "segment"
    bytes: Annotated[StrictInt, Field(ge=1, le=256)] = 16

    def impact(self) -> Impact:
        return "nodes"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if plan.cluster and plan.cluster.disks:
            yield Problem((), "the brokers' logs are in memory, not in files that survive a kill: remove `disks`")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        victim = await resolve(self.broker, world, draws, "broker")
        state = await partition_of(world, self.topic, self.partition)
        if victim not in state.replicas:
            raise FaultError(f"node {victim} has no replica of {self.topic}/{self.partition}; name one of its replicas")
        led = await led_partitions(victim, world)
        roles: dict[str, Any] = {"asked": self.broker, **await node_duties(victim, led, world)}
        injection = DamageInjection(context, victim, roles, led)
        injection.damage = LogDamage(self.topic, self.partition, self.file, self.action, self.bytes)
        if state.isr == (victim,):  # no other replica has all acknowledged records
            roles |= {"permits": TRUNCATES, "exposed": {self.topic: [self.partition]}}
            injection.targets = Targets(brokers=(victim,), topics=(self.topic,), roles=roles)
        return injection


class CorruptSegment(SegmentFault):
    """Kill a broker and flip all bits of some bytes near the end of a partition's newest segment or index."""

    band = Band("#637939", "corrupt segment")
    permanent_effect = "Damage to records that the broker had flushed stays."
    action = "corrupt"

    drawn = ("{broker: leader of TOPIC/0, topic: TOPIC, file: [segment, index]}",)
    kind: Literal["corrupt_segment"] = "corrupt_segment"


class TruncateSegment(SegmentFault):
    """Kill a broker and cut some bytes off the end of a partition's newest segment or index."""

    band = Band("#8ca252", "truncate segment")
    permanent_effect = "Records that the broker had flushed, and that no other replica has, are gone."
    action = "truncate"

    drawn = ("{broker: leader of TOPIC/0, topic: TOPIC, file: [segment, index]}",)
    kind: Literal["truncate_segment"] = "truncate_segment"

"""Faults ``slow_disk``, ``disk_errors``, ``corrupt_segment`` and ``truncate_segment`` on the disk of one broker.

A file system of ours below the broker's block device (``images/tools/slowfs``) delays reads, writes and fsyncs, or ends
them with EIO. The page cache hides a slow disk from a broker that does not flush its log; what waits is what Kafka
flushes: the metadata log, new segments and checkpoints.

A broker marks a log directory offline at its first error, and halts if it has no other. If the kernel could not write a
page, it reports that at the next fsync of the file, also after the disk is sound again; therefore the heal flushes all
files before it starts the broker.

To damage the newest segment of a partition, the broker is killed first, so that its logs count as not cleanly shut
down. At its next start it reads what it had not flushed (from the recovery point on), cuts the log at the first batch
with a wrong checksum (CRC-32C), rebuilds the indexes, and fetches the rest from the leader. Damage before the recovery
point stays unnoticed until somebody reads the records, because a broker trusts what it has flushed; nothing repairs
that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
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
    report_each_second,
)
from aftershock.faults.kinds.kafka.topics import TRUNCATES
from aftershock.faults.kinds.process.base import (
    KillInjection,
    NodeFault,
    led_partitions,
    node_duties,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration, Percent
from aftershock.faults.targets.roles import partition_of, resolve
from aftershock.faults.targets.values import BrokerId, DiskCounts, DiskDefects, DiskOperation, LogDamage

SHARE = 0.8  # of a requested delay that a measurement must show


@dataclass(eq=False)
class DefectsInjection(Injection):
    """Defects of the disk of node ``victim``; ``before`` are the layer's counters before the fault."""

    victim: BrokerId
    defects: DiskDefects
    before: DiskCounts

    async def inject(self) -> None:
        await run_to_completion(self.context.world.set_disk_defects(self.victim, self.defects))

    async def confirm_healed(self) -> None:
        await wait_until_in_service(self.victim, self.context)


class SlowDiskInjection(DefectsInjection):
    async def hold(self, until_us: int | None, report: Report) -> None:
        """Time a write and fsync each second; report at the end how many operations the layer has delayed."""
        await report_each_second(self._probe, report, self.context.clock, until_us)
        counts = await self.context.world.disk_counts(self.victim)
        delayed = counts.delayed - self.before.delayed
        what = f"operations of the disk of node {self.victim} that were delayed, as the layer counts"
        report(Witness(what, 1, delayed, "operations", delayed, ok=delayed > 0))

    async def _probe(self) -> Witness:
        took_ms = await self.context.world.write_ms(self.victim)
        least_ms = self.defects.delay_ms - self.defects.jitter_ms
        what = f"duration of a write and fsync in the log directory of node {self.victim}"
        observed_ms = round(took_ms or 0.0, 1)
        return Witness(what, least_ms, observed_ms, "ms", 1, ok=observed_ms >= SHARE * least_ms)


class DiskErrorsInjection(DefectsInjection):
    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second how many operations the layer has ended with an error."""
        await report_each_second(self._count, report, self.context.clock, until_us)
        state = await self.context.world.state(self.victim)
        if state == "exited":
            report(Witness(f"node {self.victim} halted, with no log directory left", 1, 1, "halts", n=1, ok=True))

    async def _count(self) -> Witness:
        world = self.context.world
        if await world.state(self.victim) == "running":
            await world.write_ms(self.victim)  # so that an idle node's disk has something to do
        errors = (await world.disk_counts(self.victim)).errors - self.before.errors
        what = f"operations of the disk of node {self.victim} that ended with EIO, as the layer counts"
        return Witness(what, 1, errors, "operations", errors, ok=errors > 0)


class DefectsFault(NodeFault):
    """Base of faults on the disk of one node."""

    family = "disk"
    needs = ("disk_layer",)
    exclusive_resources = (ExclusiveResource("disk", "brokers"), ExclusiveResource("process", "brokers"))
    drops_traffic = False

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if plan.cluster and plan.cluster.disks:
            message = "the brokers' logs are in memory, not on a disk"
            yield Problem((), f"{message}: remove `disks`; the nodes then get block devices")

    async def target(self, context: InjectionContext, draws: Draws) -> tuple[BrokerId, Targets, DiskCounts, Undo]:
        world = context.world
        victim = await resolve(self.broker, world, draws, "broker")
        if await world.block_device(victim) is None:
            raise FaultError(
                f"node {victim} has no disk of its own: launch the cluster with "
                "`cluster: {block_device: {layer: true}}`"
            )
        led = await led_partitions(victim, world)
        roles: dict[str, Any] = {"asked": self.broker, **await node_duties(victim, led, world)}
        undo = Undo("restore_disk", {"broker": victim})
        return victim, Targets(brokers=(victim,), roles=roles), await world.disk_counts(victim), undo


class SlowDisk(DefectsFault):
    """Make reads, writes or fsyncs of a node's disk take longer."""

    band = Band("#bcbd22", "slow disk")
    proof = "A write and fsync in the log directory takes as long (read each second). The layer counts the delays."
    remedy = "The disk is as fast as before."
    allowance_ms = 2_000

    drawn = ("{broker: BROKER, delay: [50ms, 500ms]}",)
    kind: Literal["slow_disk"] = "slow_disk"
    delay: Annotated[Duration, Field(ge=10, le=10_000, description="how much longer each operation takes")]
    jitter: Annotated[Duration, Field(description="largest random difference from `delay`")] = 0
    operations: Annotated[
        tuple[Literal["write", "fsync"], ...], Field(min_length=1, description="which operations of the disk")
    ] = ("fsync",)

    def impact(self) -> Impact:
        # how many writes wait for each other depends on the data
        return "moments" if self.operations == ("fsync",) else "unknown"

    def delay_ms(self) -> int:
        """Return the delay of a request that waits for two flushes, of the log and of what was being flushed."""
        return 2 * (self.delay + self.jitter) if self.impact() == "moments" else 0

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if self.jitter > self.delay:
            yield Problem(("jitter",), "no operation can take less time than none: lower `jitter` to `delay` at most")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim, targets, before, undo = await self.target(context, draws)
        operations: tuple[DiskOperation, ...] = self.operations
        defects = DiskDefects(operations, self.delay, self.jitter)
        return SlowDiskInjection(context, targets, victim, defects, before, undo=undo)


class DiskErrors(DefectsFault):
    """Let reads, writes or fsyncs of a node's disk end with an input/output error (EIO)."""

    band = Band("#8c6d31", "disk errors")
    proof = "The layer counts operations that ended with EIO (read each second). The broker may halt."
    remedy = "The disk is sound. Latched write errors are cleared, and the node is in the ISR of all its partitions."
    permanent_effect = "Records that the kernel could not write, and that no other replica has, are gone."
    allowance_ms = 15_000  # a node that halted is back in service 5-10 s after its start

    drawn = ("{broker: BROKER}",)
    kind: Literal["disk_errors"] = "disk_errors"
    share: Annotated[Percent, Field(description="share of the operations that fail, at random")] = 1.0
    operations: Annotated[
        tuple[DiskOperation, ...], Field(min_length=1, description="which operations of the disk")
    ] = ("write", "fsync")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        victim, targets, before, undo = await self.target(context, draws)
        defects = DiskDefects(self.operations, error_share=self.share)
        return DiskErrorsInjection(context, targets, victim, defects, before, undo=undo)


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
    unavailable = "nodes"
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

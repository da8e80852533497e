"""Fault ``power_loss``, a power cut of one node, of a rack, or of all nodes at the same moment.

A killed process loses nothing that it has written, because the host's page cache survives. A power cut loses what was
not flushed to the disk. By default Kafka leaves that to the kernel (``log.flush.interval.messages``), which waits up to
half a minute. A record with acks=all therefore survives the cut of some in-sync replicas, but not that of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.kafka.topics import TRUNCATES
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    node_duties,
    require_running,
    wait_for_state,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import NO_SETTING
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.faults.targets.world import World

_FLUSH = "flush.messages"  # with 1, a record is on the disk before it is acknowledged


@dataclass(eq=False)
class PowerLossInjection(Injection):
    """Power cut of ``victims``; ``shut_down`` are those whose file system was shut down, as the kernel reported."""

    victims: Sequence[BrokerId]
    shut_down: frozenset[BrokerId] = frozenset()

    async def inject(self) -> None:
        async def cut() -> None:
            self.shut_down = await self.context.world.cut_power(self.victims)

        await run_to_completion(cut())
        for victim in self.victims:
            await wait_for_state(victim, "exited", self.context, EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the file systems that the kernel shut down; then read the containers of the nodes each second."""
        count, down = len(self.victims), len(self.shut_down)
        what = "file systems that were shut down before the kernel wrote their data, as the mount table shows"
        report(Witness(what, count, down, "file systems", count, ok=down == count))
        await report_each_second(self._read_back, report, self.context.clock, until_us)

    async def _read_back(self) -> Witness:
        states = [await self.context.world.state(victim) for victim in self.victims]
        count, down = len(states), states.count("exited")
        return Witness("nodes without power whose containers are exited", count, down, "nodes", count, down == count)

    async def confirm_healed(self) -> None:
        for victim in self.victims:
            await wait_until_in_service(victim, self.context)


class PowerLoss(Fault):
    """Cut the power of a node, a rack, or all nodes at the same moment, so that unflushed data is lost."""

    family = "process"
    unavailable = "nodes"
    band = Band("#7f0000", "power loss")
    proof = "The mount table shows each file system as shut down. The containers are exited (read each second)."
    remedy = "The file systems are mounted again, the nodes are started, and each is in the ISR of all its partitions."
    permanent_effect = "Records that no node had flushed to its disk are gone."
    exposure_target = "brokers"
    drops_traffic = True
    closes_connections = True
    exclusive_resources = (ExclusiveResource("process", "brokers"), ExclusiveResource("disk", "brokers"))
    needs = ("block_device",)
    for_rule = "needed"
    allowance_ms = 15_000  # the cut takes up to a second, and a node is back in service 5-10 s after its start

    drawn = ("{broker: BROKER}", "{rack: RACK}")
    kind: Literal["power_loss"] = "power_loss"
    broker: RoleText | None = None
    rack: str | None = Field(default=None, description="the rack whose nodes lose power")
    everywhere: StrictBool = Field(default=False, description="all nodes lose power, also controllers")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if [self.broker is not None, self.rack is not None, self.everywhere].count(True) != 1:
            raise ValueError("a power loss has one place: give `broker`, `rack` or `everywhere: true`")
        return self

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        racks = plan.cluster.node_racks if plan.cluster and not self.broker else {}
        return super().nodes(plan) | {node for node, rack in racks.items() if self.everywhere or rack == self.rack}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if plan.cluster and plan.cluster.disks:
            message = "the brokers' logs are in memory, which a power cut would not empty"
            yield Problem((), f"{message}: remove `disks`; the nodes then get block devices")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        victims = await self._victims(world, draws)
        for victim in victims:
            await require_running(victim, world)
            if await world.block_device(victim) is None:
                raise FaultError(
                    f"node {victim} has no block device whose power could be cut: launch the cluster with "
                    "`cluster: {block_device: {}}`"
                )
        states = await world.partitions()
        nodes = {}
        for victim in victims:
            nodes[str(victim)] = await node_duties(victim, [s for s in states if s.leader == victim], world)
        exposed = await _exposed_partitions(states, victims, world)
        asked = self.broker or (f"rack {self.rack}" if self.rack else "all nodes")
        roles: dict[str, Any] = {"asked": asked, "nodes": nodes}
        roles |= {"permits": TRUNCATES, "exposed": exposed} if exposed else {}
        undo = Undo("restore_power", {"brokers": list(victims)})
        targets = Targets(brokers=tuple(victims), topics=tuple(exposed), roles=roles)
        return PowerLossInjection(context, targets, victims, undo=undo)

    async def _victims(self, world: World, draws: Draws) -> list[BrokerId]:
        if self.broker:
            return [await resolve(self.broker, world, draws, "broker")]
        victims = sorted(node for node, rack in world.racks().items() if self.everywhere or rack == self.rack)
        if not victims:
            raise FaultError(f"rack {self.rack} has no nodes; name a rack with nodes")
        return victims


async def _exposed_partitions(
    states: Sequence[PartitionState], victims: Sequence[BrokerId], world: World
) -> dict[str, list[int]]:
    """Return the partitions by topic whose acknowledged records the power cut may destroy.

    All in-sync replicas of such a partition lose power, and no broker among them writes each record to its disk before
    the record is acknowledged.
    """
    flushing = {victim for victim in victims if (device := await world.block_device(victim)) and device.sync}
    at_risk: dict[str, list[int]] = {}
    for state in sorted(states, key=lambda state: (state.topic, state.partition)):
        if {*state.isr} <= {*victims} - flushing:
            at_risk.setdefault(state.topic, []).append(state.partition)
    settings = {topic: await world.config("topic", topic) for topic in at_risk}
    flushed = {topic for topic in at_risk if settings[topic].get(_FLUSH, NO_SETTING).value == "1"}
    return {topic: numbers for topic, numbers in at_risk.items() if topic not in flushed}

"""Fault ``elect``, which elects the leaders of a topic's partitions by Kafka's leader election (KIP-460).

In a ``preferred`` election the first replica of every partition becomes its leader. In an ``unclean`` election any live
replica of a partition without a leader becomes the leader, even if it was not in sync; records that only dead replicas
had are lost, including acknowledged records, and their offsets are used again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Impact,
    Injection,
    InjectionContext,
    Report,
)
from aftershock.faults.kinds.kafka.topics import TopicFault
from aftershock.faults.runtime.record import Targets, Witness
from aftershock.faults.runtime.undo import elect_preferred_leaders
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, wait_until
from aftershock.faults.targets.values import PartitionState, TopicPartition

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

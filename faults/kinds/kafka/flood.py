"""Fault ``flood``: a producer that is none of the plan's arms overloads brokers.

The records go to a topic of the fault's own, with one partition on each target broker, over a listener that no other
fault affects. So they take from the arms the brokers' processors, disks and request queues, and no place in their logs.
What the brokers can't take at the given rate is given up, not sent later. The heal deletes the topic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import ByteRate, Size
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, FloodLoad

BYTES_MAX = 4_000_000_000
"""Limit of what a flood may write, to all replicas together: logs of the engine's disk are deleted only at the heal."""
SHARE_MIN = 0.05
"""Share of the asked rate that must arrive. A flood that the brokers can't take is an overload all the more, but almost
nothing in the logs would mean that its producer did not get through."""
_CREATED_DEADLINE_MS = _BEGUN_DEADLINE_MS = 20_000
_MARGIN_MS = 30_000
"""Time after which the producer ends by itself if nothing ends it at the heal: its start may take seconds."""
_SEGMENT_BYTES = 64 * 1_048_576


@dataclass(eq=False)
class FloodInjection(Injection):
    """One flood, with the ``replicas`` of each partition of its topic."""

    load: FloodLoad
    replicas: dict[int, tuple[BrokerId, ...]]

    async def inject(self) -> None:
        world, clock = self.context.world, self.context.clock

        async def not_led() -> str | None:
            led = sum(state.leader is not None for state in await world.partitions([self.load.topic]))
            return None if led == len(self.replicas) else f"{led} of {len(self.replicas)} partitions have a leader"

        async def not_begun() -> str | None:
            return None if await self._records() else f"the flood's producer has written nothing to {self.load.topic}"

        async def begin() -> None:
            config = {"min.insync.replicas": "1", "segment.bytes": str(_SEGMENT_BYTES)}
            await world.create_topic(self.load.topic, self.replicas, config)
            await wait_until(not_led, clock, _CREATED_DEADLINE_MS)
            await world.start_flood(self.context.fault, self.load)
            await wait_until(not_begun, clock, _BEGUN_DEADLINE_MS)

        await run_to_completion(begin())

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the bytes/s that the topic's logs have grown by since the injection; the first ones after 2 s."""
        clock = self.context.clock
        began_us, until_us = clock.now_us(), until_us or clock.now_us()
        before = await retry_refused(self._records, clock, READ_DEADLINE_MS)
        while clock.now_us() < until_us:
            await clock.sleep_until_us(min(until_us, max(clock.now_us(), began_us + READ_BACK_US) + READ_BACK_US))
            passed_s = (clock.now_us() - began_us) / 1e6
            records = await retry_refused(self._records, clock, READ_DEADLINE_MS) - before
            rate = records * self.load.record_size / max(passed_s, 0.001)
            asked = self.load.bytes_per_s
            what = f"bytes/s by which the logs of {self.load.topic} have grown since the injection"
            report(Witness(what, asked, round(rate), "bytes/s", records, rate >= SHARE_MIN * asked))

    async def _records(self) -> int:
        """Return the number of records in the topic's logs, by their leaders; 0 if there is no such topic."""
        if self.load.topic not in await self.context.world.topic_ids():
            return 0
        return sum(end - start for start, end in (await self.context.world.log_ends(self.load.topic)).values())


class Flood(Fault):
    """Overload brokers by a producer that is none of the plan's arms."""

    family = "Kafka"
    band = Band("#d6616b", "flood")
    unavailable = "unknown"  # an overloaded broker may delay each request without limit
    proof = "The logs of the flood's topic grow at 5 % of the rate at least, by the end offsets of their leaders."
    remedy = "The producer ends, and its topic is deleted."
    exposure_target = "brokers"
    for_rule = "needed"
    allowance_ms = 8_000  # the topic is created in some hundred ms, and deleted under load
    apis = ("CreateTopics", "DeleteTopics", "ListOffsets")

    drawn = ("{rate: [5MB/s, 20MB/s], broker: BROKER}", "{rate: 10MB/s, record_size: 1000}")
    kind: Literal["flood"] = "flood"
    rate: Annotated[
        ByteRate, Field(ge=1_000, le=1_000_000_000, description="bytes of records that the producer sends each second")
    ]
    record_size: Annotated[Size, Field(ge=1, le=1_000_000)] = 10_000
    broker: RoleText | None = Field(default=None, description="broker to overload; by default all of them")
    replication: Annotated[StrictInt, Field(ge=1, le=9)] = Field(
        default=1, description="replicas of each partition: with more than 1, brokers replicate the flood, too"
    )

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        total = self.rate * (self.for_ or 0) // 1000 * self.replication
        if total > BYTES_MAX:
            yield Problem(
                ("rate",),
                f"the flood would write {total / 1e9:.1f} GB, and {BYTES_MAX / 1e9:g} GB are allowed: lower `rate`, "
                "`for` or `replication`",
            )
        brokers = len(plan.cluster.broker_racks) if plan.cluster else self.replication
        if self.replication > brokers:
            yield Problem(("replication",), f"the cluster has {brokers} brokers: lower `replication`")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        brokers = sorted(await world.registered())
        targets = [await resolve(self.broker, world, draws, "broker")] if self.broker else brokers
        if missing := [broker for broker in targets if broker not in brokers]:
            raise FaultError(f"broker {missing[0]} is not in the cluster, so it can't be flooded; start it before")
        topic = f"aftershock-flood-{context.fault}"
        if topic in await world.topic_ids():
            raise FaultError(f"the topic {topic} exists; delete it, or give the fault another `id`")
        replicas: dict[int, tuple[BrokerId, ...]] = {}
        for partition, leader in enumerate(targets):
            place = brokers.index(leader)
            order = [brokers[(place + step) % len(brokers)] for step in range(self.replication)]
            replicas[partition] = tuple(order)
        load = FloodLoad(topic, len(replicas), self.rate, self.record_size, (self.for_ or 0) + _MARGIN_MS)
        roles: dict[str, Any] = {"topic": topic, **({self.broker: targets[0]} if self.broker else {})}
        undo = Undo("end_flood", {"fault": context.fault, "topic": topic})
        return FloodInjection(context, Targets(brokers=tuple(targets), roles=roles), load, replicas, undo=undo)

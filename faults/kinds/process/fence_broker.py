"""Fault ``fence_broker``, which cuts a broker off from the controllers, so that they fence the broker.

The broker serves clients and followers as before until its broker session times out; then the controller fences the
broker and moves its leaderships, without its knowledge. Brokers share the links of their rack, so all brokers of a rack
are fenced together. Nodes of one rack have no link that could be cut, so the active controller must be in another rack.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
)
from aftershock.faults.kinds.link.base import ToxicInjection, link_targets, toxic_on
from aftershock.faults.kinds.process.base import (
    RETURN_DEADLINE_MS,
    SESSION_TIMEOUT_MS,
    combined_node_warnings,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import format_duration
from aftershock.faults.targets.links import LinkStream
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, Stream

FENCED_DEADLINE_MS = 30_000
READ_US = 300_000  # upper bound for reading the registered brokers


@dataclass(eq=False)
class FenceInjection(ToxicInjection):
    """Cut of the links from one rack, whose brokers are ``fenced``, to the controllers."""

    measuring_us = READ_US
    fenced: frozenset[BrokerId]

    async def inject(self) -> None:
        await super().inject()

        async def not_fenced() -> str | None:
            unfenced = await self._unfenced()
            return f"brokers {sorted(unfenced)} are not fenced" if unfenced else None

        await wait_until(not_fenced, self.context.clock, FENCED_DEADLINE_MS)

    async def measure(self) -> Witness:
        unfenced = await retry_refused(self._unfenced, self.context.clock, READ_DEADLINE_MS)
        count = len(self.fenced)
        what = "brokers that the controllers have fenced, according to the metadata of the other brokers"
        return Witness(what, count, count - len(unfenced), "brokers", count, not unfenced)

    async def confirm_healed(self) -> None:
        """Wait until the metadata of all other brokers shows the brokers as unfenced, and they are in every ISR."""

        async def still_fenced() -> str | None:
            fenced = self.fenced - await self._unfenced()
            return f"brokers {sorted(fenced)} are still fenced" if fenced else None

        await wait_until(still_fenced, self.context.clock, RETURN_DEADLINE_MS)
        for broker in sorted(self.fenced):
            await wait_until_in_service(broker, self.context)

    async def _unfenced(self) -> frozenset[BrokerId]:
        """Return those brokers of the rack that the metadata of brokers outside the rack shows as unfenced."""
        return self.fenced & await self.context.world.registered(excluding=self.fenced)


class FenceBroker(Fault):
    """Cut the links between a broker's rack and the controllers, so that the broker is fenced until the end."""

    family = "Kafka"
    band = Band("#637939", "fence")
    proof = "Metadata of the other brokers shows the broker as fenced. Toxiproxy lists the toxics (read each second)."
    remedy = "The toxics are removed. The broker is registered and unfenced, and is in the ISR of all its partitions."
    exposure_target = "brokers"
    exclusive_resources = (ExclusiveResource("registration", "brokers"),)
    for_rule = "needed"
    allowance_ms = 6_000  # it is unfenced 1-3 s after the cut is healed

    drawn = ("{}",)
    kind: Literal["fence_broker"] = "fence_broker"
    broker: RoleText | None = Field(
        default=None, description="the broker to fence; by default the first broker that can be fenced"
    )

    # the impact is unknown: until the broker is fenced, it leads and can't shrink an ISR; then it serves no client

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        timeout_ms = SESSION_TIMEOUT_MS[plan.cluster.profile] if plan.cluster else 0
        if self.for_ is not None and self.for_ <= timeout_ms:
            timeout = format_duration(timeout_ms)
            message = f"a broker is fenced after {timeout} without a heartbeat: set `for` to more than {timeout}"
            yield Problem(("for",), message)
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        racks, controller = world.racks(), await world.controller()
        if self.broker is None:
            broker = next((node for node in sorted(brokers_of(world)) if racks[node] != racks[controller]), controller)
        else:
            broker = await resolve(self.broker, world, draws, "broker")
        if broker not in brokers_of(world):
            raise FaultError(f"node {broker} is not a broker, so it can't be fenced; name a broker")
        if racks[controller] == racks[broker]:
            raise FaultError(
                f"broker {broker} and the active controller, node {controller}, are both in rack {racks[broker]}, and"
                " nodes of one rack have no link to cut: use `move_controller` first, or omit `broker`"
            )
        rack = racks[broker]
        links = [link for link in world.links() if link.channel == "controller" and link.source_rack == rack]
        streams = [LinkStream(link, stream) for link in links for stream in get_args(Stream)]
        toxics = {stream: toxic_on(stream, context.fault, "timeout", {"timeout": 0}) for stream in streams}
        roles = {"asked": self.broker or "any broker that can be fenced", "broker": broker, "rack": rack}
        fenced = frozenset(node for node in brokers_of(world) if racks[node] == rack)
        targets = replace(link_targets(streams, roles), brokers=tuple(sorted(fenced)))
        return FenceInjection(context, targets, toxics, fenced)

"""``fence_broker``: a broker is cut off from the controllers until these fence it, and as long as that lasts.

::

    broker in rack a ──x── controllers of the other racks          clients and followers reach it as before

Nothing crosses its controller links, both ways. It serves as it did until its session times out; then it is fenced, its
leaderships go to others, and it does not hear of it. Brokers share the links of their rack, so all of a rack are fenced
together; and a controller of their own rack has no link to them, so while that one rules there is nothing to cut.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    TargetKind,
)
from aftershock.faults.kinds.link.base import ToxicInjection, toxic_on
from aftershock.faults.kinds.process.base import RETURN_DEADLINE_MS, out_of_service_reason
from aftershock.faults.kinds.process.controller import SESSION_TIMEOUT_MS, combined_node_warnings
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import format_duration
from aftershock.faults.runtime.record import Targets, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.links import LinkStream
from aftershock.faults.targets.roles import RoleText, brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, Stream

FENCED_DEADLINE_MS = 30_000
LOOK_US = 300_000  # what asking who is registered takes, generously


class FenceInjection(ToxicInjection):
    """The controller links of a rack, cut. ``fenced``: its brokers."""

    measuring_us = LOOK_US
    fenced: frozenset[BrokerId] = frozenset()

    async def inject(self) -> None:
        """Cut, and see them fenced."""
        await super().inject()
        await wait_until(self._not_yet, self.context.clock, FENCED_DEADLINE_MS)

    async def measure(self) -> Witness:
        """All of them are fenced, by what the others know: they themselves don't hear of it."""
        left = await retry_refused(self._unfenced, self.context.clock, READ_DEADLINE_MS)
        asked = len(self.fenced)
        what = "brokers that the controllers have fenced, by the metadata of the others"
        return Witness(what, asked, asked - len(left), "brokers", asked, not left)

    async def confirm_healed(self) -> None:
        """They are registered and unfenced, by the others' metadata too, and in the ISR of all they hold."""
        await wait_until(self._still_fenced, self.context.clock, RETURN_DEADLINE_MS)
        for broker in sorted(self.fenced):
            await wait_until(lambda it=broker: out_of_service_reason(it, self.context), self.context.clock, RETURN_DEADLINE_MS)  # type: ignore[misc]

    async def _unfenced(self) -> frozenset[BrokerId]:
        return self.fenced & await self.context.world.registered(excluding=self.fenced)

    async def _not_yet(self) -> str | None:
        left = await self._unfenced()
        return f"brokers {sorted(left)} are not fenced" if left else None

    async def _still_fenced(self) -> str | None:
        left = self.fenced - await self._unfenced()
        return f"brokers {sorted(left)} are still fenced" if left else None


class FenceBroker(Fault):
    """Cut a broker's controller links until it is fenced, and keep it so."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#637939", "fence")
    proof: ClassVar[str] = "the broker is fenced, by the metadata of the others; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; the broker is registered, unfenced, and in the ISR of all it holds"
    exposure_target: ClassVar[TargetKind] = "brokers"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("registration", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 6_000  # it is unfenced 1-3 s after the cut is healed

    kind: Literal["fence_broker"] = "fence_broker"
    broker: Annotated[RoleText, Field(description="by default the first one that can be")] | None = None

    def impact(self) -> Impact:
        """Until it is fenced it leads and can't shrink an ISR; then it serves nobody."""
        return "unknown"

    def roles(self) -> dict[FieldPath, str]:
        """The broker, if one is named."""
        return {("broker",): self.broker} if self.broker is not None else {}

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Too short for it to be fenced; combined nodes."""
        timeout_ms = SESSION_TIMEOUT_MS[plan.cluster.profile] if plan.cluster else 0
        if self.for_ is not None and self.for_ <= timeout_ms:
            sentence = (
                f"a broker is fenced after {format_duration(timeout_ms)} without a word of it, so this would be in "
            )
            yield Problem(("for",), sentence + "force longer than it says: lengthen it")
        yield from combined_node_warnings(plan)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if the active controller stands in the broker's own rack, or the target is no broker."""
        world = context.world
        racks, ruler = world.racks(), await world.controller()
        if self.broker is None:
            broker = next((each for each in sorted(brokers_of(world)) if racks[each] != racks[ruler]), ruler)
        else:
            broker = await resolve(self.broker, world, draws, "broker")
        if broker not in brokers_of(world):
            raise FaultError(f"node {broker} is no broker, so it can't be fenced; name one")
        if racks[ruler] == racks[broker]:
            raise FaultError(
                f"the active controller, node {ruler}, stands in rack {racks[broker]} like broker {broker}, and nodes"
                " of one rack have no link to cut: move the controller first, or leave `broker` to be chosen"
            )
        return _injection(context, self.broker or "any that can be", broker, world)


def _injection(context: InjectionContext, asked: str, broker: BrokerId, world: World) -> FenceInjection:
    rack = world.racks()[broker]
    links = [link for link in world.links() if link.channel == "controller" and link.source_rack == rack]
    stretches = [LinkStream(link, stream) for link in links for stream in get_args(Stream)]
    roles = {"asked": asked, "broker": broker, "rack": rack}
    injection = FenceInjection(
        context, {each: toxic_on(each, context.fault, "timeout", {"timeout": 0}) for each in stretches}, roles
    )
    injection.fenced = frozenset(other for other in brokers_of(world) if world.racks()[other] == rack)
    injection.targets = Targets(tuple(sorted(injection.fenced)), injection.targets.links, roles=roles)
    return injection

"""``lose_rack``: all nodes of a rack die at once, as in a power failure; the heal starts them together.

It is a ``kill`` of each node, brokers and isolated controllers alike. Clients in the rack keep running, so the losses
they see are those of the nodes. SIGKILL keeps the page cache, so nothing that was written is lost (see ``kill``).
"""

import asyncio
from typing import Annotated, Any, ClassVar, Literal

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
    Report,
    TargetKind,
    report_each_second,
)
from aftershock.faults.kinds.process.base import node_duties, require_running
from aftershock.faults.kinds.process.kill import KillInjection
from aftershock.faults.runtime.probing import count_answers, probe_all
from aftershock.faults.runtime.record import Targets, Witness, all_of
from aftershock.faults.targets.values import BrokerId


class LoseRackInjection(Injection):
    """A kill of each node of one rack."""

    def __init__(self, context: InjectionContext, rack: str, kills: list[KillInjection], roles: dict[str, Any]) -> None:
        self.context = context
        self.rack = rack
        self.kills = kills
        self.targets = Targets(brokers=tuple(kill.victim for kill in kills), roles=roles)
        self.undo = all_of(kill.undo for kill in kills)

    async def inject(self) -> None:
        """Kill all nodes at once, and wait until they are dead."""
        await asyncio.gather(*(kill.inject() for kill in self.kills))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Witness that no broker answers, then that every container is exited, until the end."""
        report(await self._silence())
        await report_each_second(self._read_back, report, self.context.clock, until_us)

    async def confirm_healed(self) -> None:
        """Wait until every node is in service again."""
        await asyncio.gather(*(kill.see_back() for kill in self.kills))

    async def _silence(self) -> Witness:
        links = [link for link in self.context.world.links() if link.broker in self.targets.brokers]
        clients = [link for link in links if link.channel == "client"]
        answered = count_answers(await probe_all(clients, self.context))["answered"]
        what = f"requests answered over the clients' links into rack {self.rack}"
        return Witness(what, asked=0, observed=answered, unit="answers", n=len(clients), ok=not answered)

    async def _read_back(self) -> Witness:
        dead = [witness.ok for witness in await asyncio.gather(*(kill.read_back() for kill in self.kills))]
        what = f"nodes of rack {self.rack} whose containers, read back, are exited"
        return Witness(what, len(dead), sum(dead), "nodes", len(dead), ok=all(dead))


class LoseRack(Fault):
    """SIGKILL every node of a rack for a while."""

    family: ClassVar[Family] = "rack and group"
    band: ClassVar[Band] = Band("#a50f15", "lose rack")
    proof: ClassVar[str] = "no answer from its brokers; the containers' states, read back each second"
    remedy: ClassVar[str] = "the nodes are started, and back in the ISR of all they hold"
    exposure_target: ClassVar[TargetKind] = "brokers"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 15_000  # several nodes boot at once on one host: 5-12 s until they are in service

    kind: Literal["lose_rack"] = "lose_rack"
    rack: Annotated[str, Field(description="the rack whose nodes die")]

    def racks(self) -> dict[FieldPath, str]:
        """Return the rack."""
        return {("rack",): self.rack}

    def impact(self) -> Impact:
        """Return ``nodes``: none serves, and the heal ends with all of them in every ISR."""
        return "nodes"

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        """Return all nodes of the rack."""
        homes = plan.cluster.node_racks if plan.cluster else {}
        return frozenset(node for node, rack in homes.items() if rack == self.rack)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:  # noqa: ARG002 -- nothing is drawn
        """Resolve the rack's nodes; raise FaultError if there are none, or if one doesn't run."""
        world = context.world
        victims = [BrokerId(node) for node, rack in sorted(world.racks().items()) if rack == self.rack]
        if not victims:
            raise FaultError(f"rack {self.rack} has no node, so there is nothing to lose")
        states = await world.partitions()
        roles: dict[str, Any] = {"asked": f"rack {self.rack}", "nodes": {}}
        kills = []
        for victim in victims:
            await require_running(victim, world)
            led = tuple(state for state in states if state.leader == victim)
            roles["nodes"][str(victim)] = await node_duties(victim, led, world)
            kills.append(KillInjection(context, victim, {}, led))
        return LoseRackInjection(context, self.rack, kills, roles)

"""Faults ``kill``, ``crash_loop`` and ``lose_rack``, which SIGKILL one node, once or repeatedly, or a whole rack.

The journal records whether a killed node was the active controller, because recovery from the death of a combined node
takes seconds longer if the quorum must elect a controller first (5.8 s against 3 s, measured). SIGKILL keeps the host's
page cache, so a killed broker loses no data that it had written.

With ``host: gone``, the node's name and address disappear with its process; a connection that began just before waits
for a timeout. With ``host: stays``, only the process dies, and its host refuses each connection at once. In both cases
the kernel closes the connections of the dead process. With ``host: silent``, the network goes before the process, as in
a power failure of the machine: open connections are never closed, and requests over them wait.

``crash_loop`` kills a node, starts it at once, and kills it again each time it is back in service, so leaders move away
and back repeatedly. ``lose_rack`` kills all brokers and isolated controllers of a rack at once, as in a power failure;
clients in the rack keep running.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    Need,
    PlanContext,
    Report,
    Silence,
    report_each_second,
)
from aftershock.faults.kinds.probing import SILENCE_MS, answering_links, probe_all
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    KillInjection,
    NodeFault,
    NodeInjection,
    node_duties,
    require_running,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Witness, all_of
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.faults.targets.world import Probe


class CrashInjection(KillInjection):
    """Death of a node's process whose host stays."""

    async def inject(self) -> None:
        await run_to_completion(self.context.world.crash(self.victim))
        await self.wait_until_down(EXITED_DEADLINE_MS)

    async def read_back(self) -> Witness:
        """Read that the process is dead, and that its host refuses a connection."""
        is_down = await self.context.world.state(self.victim) == self.down
        refused = await self.context.world.dial_node(self.victim) == "closed"
        what = f"the process of node {self.victim} is dead, and its host refuses a connection at once"
        return Witness(what, asked=1, observed=float(is_down and refused), unit="refusals", n=1, ok=is_down and refused)


class VanishInjection(KillInjection):
    """Death of a node without a last packet; ``connections`` to the node are from before the fault."""

    connections: Sequence[Probe] = ()

    async def inject(self) -> None:
        world = self.context.world
        links = [link for link in world.links() if link.channel == "client" and link.broker == self.victim]
        self.connections = [await world.dial(link) for link in await answering_links(links, self.context)]
        await run_to_completion(world.vanish(self.victim))
        await self.wait_until_down(EXITED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        report(await self._silence())
        await super().hold(until_us, report)

    async def _silence(self) -> Witness:
        exchanges = await asyncio.gather(*(probe.ask(0, SILENCE_MS) for probe in self.connections))
        for probe in self.connections:
            await run_to_completion(probe.hang_up())
        count, silent = len(exchanges), sum(exchange.end == "silent" for exchange in exchanges)
        what = f"connections to node {self.victim} from before the fault that are neither answered nor closed"
        return Witness(what, count, silent, "connections", count, ok=0 < silent == count)


class Kill(NodeFault):
    """Kill a node with SIGKILL, and start it at the end; its host stays, is gone, or is silent."""

    band = Band("#d62728", "kill")
    unavailable = "nodes"
    proof = (
        "The engine reports the container as exited (read each second). A host that stays refuses connections at once. "
        "Open connections to a silent host are neither answered nor closed."
    )
    remedy = "The node is started, and is in the ISR of all its partitions again."
    allowance_ms = 8_000  # a broker is back in service 3-7 s after `docker start`
    closes_connections = True

    drawn = ("{broker: BROKER, host: [gone, stays]}",)
    kind: Literal["kill"] = "kill"
    host: Annotated[
        Literal["gone", "stays", "silent"],
        Field(
            description="with `stays`, the host refuses connections at once; with `gone`, its address disappears; with "
            "`silent`, also open connections get no packet more"
        ),
    ] = "gone"

    def silence(self) -> Silence | None:
        """Return that a silent host closes no connection, not even when it is back: its new kernel knows none."""
        return "beyond heal" if self.host == "silent" else None

    def cluster_needs(self) -> tuple[Need, ...]:
        return () if self.host == "gone" else ("hosts",)

    def create_injection(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        if self.host == "gone":
            return KillInjection(context, victim, roles, led)
        if not context.world.has_hosts():
            raise FaultError("no host of this cluster outlives its node: launch it with `cluster: {hosts: true}`")
        death = CrashInjection if self.host == "stays" else VanishInjection
        return death(context, victim, roles, led)


DEATHS_MIN = 2  # a single death is a kill


class CrashLoopInjection(KillInjection):
    """Repeated kill; ``deaths`` counts the kills of the node, ``returns`` its returns into service."""

    every_us: int
    deaths = 0
    returns = 0

    async def inject(self) -> None:
        await super().inject()
        self.deaths += 1

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report a witness for each kill of the node, and the number of kills at the end of the fault."""
        clock = self.context.clock
        if self.deaths:  # a rehearsal kills no node
            looping = asyncio.create_task(self._loop(report))
            alarm = asyncio.create_task(clock.sleep_until_us(until_us or clock.now_us()))
            try:
                await asyncio.wait({looping, alarm}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()
                looping.cancel()
                with suppress(asyncio.CancelledError):
                    await looping  # raises an exception of the loop
        what = f"kills of node {self.victim}; after each kill but the last, the node came back into every ISR"
        ok = self.deaths >= DEATHS_MIN and self.returns >= self.deaths - 1
        report(Witness(what, DEATHS_MIN, self.deaths, "deaths", self.deaths + self.returns, ok))

    async def _loop(self, report: Report) -> None:
        clock = self.context.clock
        while True:
            died_us = clock.now_us()
            report(await self.read_back())
            await run_to_completion(self.context.world.start(self.victim))
            await wait_until_in_service(self.victim, self.context)
            self.returns += 1
            await clock.sleep_until_us(died_us + self.every_us)
            await self.inject()


class CrashLoop(NodeFault):
    """Kill a node with SIGKILL and start it, again each time it is back in service."""

    band = Band("#e7298a", "crash loop")
    proof = "The engine reports the container as exited after each kill. Between two kills, the node is in every ISR."
    remedy = "The node is started, and is in the ISR of all its partitions again."
    closes_connections = True
    allowance_ms = 8_000  # a broker is back in service 3-7 s after `docker start`

    drawn = ("{broker: BROKER, every: 2s, for: 14s}",)
    kind: Literal["crash_loop"] = "crash_loop"
    every: Annotated[
        Duration, Field(ge=1_000, le=600_000, description="minimum time between two kills of the node")
    ] = 5_000

    def create_injection(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        injection = CrashLoopInjection(context, victim, roles, led)
        injection.every_us = self.every * 1000
        return injection


@dataclass(eq=False)
class LoseRackInjection(Injection):
    rack: str
    kills: Sequence[KillInjection]

    async def inject(self) -> None:
        await asyncio.gather(*(kill.inject() for kill in self.kills))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that no broker of the rack answers; then read the containers of the rack's nodes each second."""
        links = [link for link in self.context.world.links() if link.broker in self.targets.brokers]
        clients = [link for link in links if link.channel == "client"]
        answered = (await probe_all(clients, self.context)).count("answered")
        what = f"requests answered over the clients' links into rack {self.rack}"
        report(Witness(what, asked=0, observed=answered, unit="answers", n=len(clients), ok=not answered))
        await report_each_second(self._read_back, report, self.context.clock, until_us)

    async def _read_back(self) -> Witness:
        dead = [witness.ok for witness in await asyncio.gather(*(kill.read_back() for kill in self.kills))]
        what = f"nodes of rack {self.rack} whose containers, read back, are exited"
        return Witness(what, len(dead), sum(dead), "nodes", len(dead), ok=all(dead))

    async def confirm_healed(self) -> None:
        await asyncio.gather(*(kill.confirm_healed() for kill in self.kills))


class LoseRack(Fault):
    """Kill all nodes of a rack with SIGKILL, and start them at the end."""

    family = "rack and group"
    unavailable = "nodes"
    band = Band("#a50f15", "lose rack")
    proof = "No broker of the rack answers. The engine reports each container as exited (read each second)."
    remedy = "The nodes are started, and each node is in the ISR of all its partitions again."
    exposure_target = "brokers"
    drops_traffic = True
    closes_connections = True
    exclusive_resources = (ExclusiveResource("process", "brokers"),)
    for_rule = "needed"
    allowance_ms = 15_000  # several nodes boot at once on one host: 5-12 s until they are in service

    drawn = ("{rack: RACK}",)
    kind: Literal["lose_rack"] = "lose_rack"
    rack: Annotated[str, Field(description="the rack whose nodes are killed")]

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        homes = plan.cluster.node_racks if plan.cluster else {}
        return frozenset(node for node, rack in homes.items() if rack == self.rack)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:  # noqa: ARG002 -- nothing is drawn
        world = context.world
        victims = [BrokerId(node) for node, rack in sorted(world.racks().items()) if rack == self.rack]
        if not victims:
            raise FaultError(f"rack {self.rack} has no nodes; name a rack with nodes")
        states = await world.partitions()
        roles: dict[str, Any] = {"asked": f"rack {self.rack}", "nodes": {}}
        kills = []
        for victim in victims:
            await require_running(victim, world)
            led = tuple(state for state in states if state.leader == victim)
            roles["nodes"][str(victim)] = await node_duties(victim, led, world)
            kills.append(KillInjection(context, victim, {}, led))
        targets = Targets(brokers=tuple(victims), roles=roles)
        return LoseRackInjection(context, targets, self.rack, kills, undo=all_of(kill.undo for kill in kills))

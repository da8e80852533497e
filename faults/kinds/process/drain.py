"""Fault ``drain``, which takes a Kubernetes node out of service for the brokers on it, as ``kubectl drain`` does.

The node is cordoned, so that the scheduler places no pod on it, and the pods of the cluster's brokers there are
evicted by the API, the named broker first. A disruption budget may refuse an eviction until an earlier broker is back;
it is then asked for again each second, as ``kubectl drain`` does. If that of the named broker is refused, there is no
fault. A controller makes each pod again on another node, if one takes it, else the pod waits for the heal. Pods that
are not this cluster's brokers stay.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    ForRule,
    Injection,
    InjectionContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.process.base import led_partitions, node_duties
from aftershock.faults.kinds.process.delete_pod import DeletePodInjection
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.roles import RoleText, resolve


@dataclass(eq=False)
class DrainInjection(Injection):
    """Evictions of the brokers' pods on the Kubernetes node ``machine``; that of the named broker is the first."""

    machine: str
    evictions: Sequence[DeletePodInjection]
    evicts = False

    async def inject(self) -> None:
        await run_to_completion(self.context.world.cordon(self.machine, self.context.fault))
        await self.evictions[0].inject()
        self.evicts = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that the node takes no pods, and what witnesses the end of each broker."""
        first, *others = self.evictions
        works = [
            report_each_second(self._read_back, report, self.context.clock, until_us),
            first.hold(until_us, report),
        ]
        if self.evicts and until_us is not None:  # a rehearsal evicts nothing
            works += [self._evict(eviction, until_us, report) for eviction in others]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # an eviction that goes on must not follow the undo
            await run_to_completion(asyncio.wait(tasks))

    async def _evict(self, eviction: DeletePodInjection, until_us: int, report: Report) -> None:
        clock, refusal = self.context.clock, ""
        while clock.now_us() < until_us:
            try:
                grace_ms = await eviction.delete()
            except AftershockError as error:
                refusal = str(error)
                await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, until_us))
            else:
                await eviction.wait_until_silent(grace_ms)
                await eviction.hold(until_us, report)
                return
        what = f"pod of broker {eviction.victim} that was not evicted ({refusal})"
        report(Witness(what, asked=0, observed=1, unit="pods", n=1, ok=False))

    async def _read_back(self) -> Witness:
        cordoned = await self.context.world.cordoned(self.machine, self.context.fault)
        what = f"the Kubernetes node {self.machine} takes no pods, as the API server says"
        return Witness(what, asked=1, observed=float(cordoned), unit="reads", n=1, ok=cordoned)

    async def confirm_healed(self) -> None:
        await asyncio.gather(*(eviction.confirm_healed() for eviction in self.evictions))


class Drain(Fault):
    """Cordon the Kubernetes node of a broker, and evict the pods of all brokers there, as `kubectl drain` does.

    Disruption budgets of the pods count: a refused eviction is asked for again each second, but for that of the named
    broker, without which there is no fault. Pods that are not this cluster's brokers stay on the node, and no pod at
    all is placed there until the end. The plan must permit that with `nodes: true`, beside the namespace of the pods.
    """

    family: ClassVar[Family] = "process"
    unavailable = "unknown"  # brokers leave one after another, at times that nobody plans
    band = Band("#7f5a4c", "drain")
    proof = (
        "The API server says that the node takes no pods (read each second). Each broker on it answers no request over "
        "the clients' links once its pod is evicted, and leads no partition after its end."
    )
    remedy = "The node takes pods again, and each broker is in the ISR of all its partitions again."
    exposure_target = "brokers"
    drops_traffic = True
    closes_connections = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)
    for_rule: ClassVar[ForRule] = "needed"
    allowance_ms = 60_000  # the grace period of a pod, and the start of another one
    needs = ("kubernetes",)

    kind: Literal["drain"] = "drain"
    broker: RoleText

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        if not world.has_pods():
            raise FaultError("the nodes of this cluster are no pods: launch it with `cluster: {kubernetes: {}}`")
        named = await resolve(self.broker, world, draws, "broker")
        machines = await world.machines()
        if named not in machines:
            raise FaultError(f"the pod of broker {named} is on no Kubernetes node, or not known")
        machine = machines[named]
        beside = sorted(node for node, home in machines.items() if home == machine and node != named)
        roles: dict[str, Any] = {"asked": self.broker, "machine": machine, "nodes": {}}
        evictions = []
        for victim in (named, *beside):
            led = await led_partitions(victim, world)
            roles["nodes"][str(victim)] = await node_duties(victim, led, world)
            eviction = DeletePodInjection(context, victim, {}, led)
            eviction.evict = True
            evictions.append(eviction)
        targets = Targets(brokers=(named, *beside), roles=roles)
        undos = (
            Undo("uncordon", {"machine": machine, "fault": context.fault}),
            *(eviction.undo for eviction in evictions),
        )
        return DrainInjection(context, targets, machine, evictions, undo=all_of(undos))

"""The active controller as a target: who it is, that another took over, and what a plan should know about it.

There is no request that makes a controller resign, so the one in office must be taken away. Where nodes are combined,
clients lose a broker with it, and nobody can tell the two apart.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from aftershock.faults.fault import Among, Draws, Family, Fault, Place, Rest, Scene, Stake, Strike, Takes
from aftershock.faults.problem import Problem
from aftershock.faults.record import Targets, Witness
from aftershock.faults.strikes.victim import BACK_DEADLINE_MS, in_service, require_running
from aftershock.faults.values import BrokerId, Quorum
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, until
from aftershock.faults.world import World

ELECTED_DEADLINE_MS = 30_000  # 2.5 to 4 s on a quiet host
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: how long the controller waits before it fences a silent broker."""
LAG_MAX = 1  # the leader appends a record each half a second, and whoever follows has it at once
_QUORUM_MIN = 3  # voters, for one of them to be spared


class ControllerFault(Fault):
    """A fault on the active controller, whoever that is then."""

    family: ClassVar[Family] = "Kafka"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("process", "brokers"),)

    @abstractmethod
    def strike(self, scene: Scene, before: Quorum, targets: Targets) -> Strike:
        """The strike on the one that rules now."""

    def takes(self) -> Takes:
        """The node, where it is a broker; and nobody moves leaders until another rules."""
        return "unknown"

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """A quorum of one."""
        yield from lonely(rest)

    def surprises(self, rest: Rest) -> Iterator[Problem]:
        """Combined nodes."""
        yield from confounded(rest)

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if it doesn't run, as far as the engine knows."""
        before = await scene.world.quorum()
        await require_running(before.controller, scene.world)
        return self.strike(scene, before, await _ruled_by(before, scene.world))


def lonely(rest: Rest) -> Iterator[Problem]:
    """A quorum that has nobody to take over."""
    cluster = rest.cluster
    if cluster is not None and (cluster.controllers or len(cluster.broker_racks)) < _QUORUM_MIN:
        sentence = "nobody can take over from the only controller: say `controllers: 3` in the plan's `cluster`"
        yield Problem(("kind",), sentence)


def confounded(rest: Rest, place: Place = ("kind",)) -> Iterator[Problem]:
    """Controllers that are brokers as well."""
    if rest.cluster is not None and rest.cluster.controllers == 0:
        sentence = "the controller is a broker as well here, and what clients meet may be the loss of that broker: "
        yield Problem(place, sentence + "say `controllers: 3` in the plan's `cluster` to tell the two apart")


async def another_elected(before: Quorum, scene: Scene) -> None:
    """Return once another node is the active controller; FaultError after a deadline."""
    await until(lambda: _still(before, scene), scene.clock, ELECTED_DEADLINE_MS)


async def another_rules(before: Quorum, scene: Scene) -> Witness:
    """Whether another node is the active controller, at a higher epoch."""
    now = await patiently(scene.world.quorum, scene.clock, READ_DEADLINE_MS)
    what = f"the epoch of the active controller, now node {now.controller} and before node {before.controller}"
    return Witness(what, before.epoch + 1, now.epoch, "epoch", 1, _took_over(before, now))


async def _still(before: Quorum, scene: Scene) -> str | None:
    now = await scene.world.quorum()
    return None if _took_over(before, now) else f"node {now.controller} is still the active controller"


async def back_among_voters(node: BrokerId, scene: Scene) -> None:
    """Return once a voter that was away is in service and follows the quorum; FaultError after a deadline."""
    await until(lambda: in_service(node, scene), scene.clock, BACK_DEADLINE_MS)
    await until(lambda: _behind(node, scene), scene.clock, BACK_DEADLINE_MS)


async def _behind(node: BrokerId, scene: Scene) -> str | None:
    lag = (await scene.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"node {node} is {lag} records behind the quorum's leader"


def _took_over(before: Quorum, now: Quorum) -> bool:
    return now.controller != before.controller and now.epoch > before.epoch


async def _ruled_by(quorum: Quorum, world: World) -> Targets:
    """The controller, and every topic: whoever uses one meets its loss."""
    topics = sorted({state.topic for state in await world.partitions()})
    rack = world.racks().get(quorum.controller)
    return Targets((quorum.controller,), topics=tuple(topics), roles={"epoch": quorum.epoch, "rack": rack})

"""Turning every node over, one after the other: what a rolling restart and a rolling upgrade share.

Rules. One node at a time: the next one's turn comes when the one before is in service again, which is in the ISR of
all it holds; a node that does not come back ends it. The active controller's turn is the last, so that the quorum
elects once. What was seen of each turn is kept, and told as witness when all is done.

``rolling_restart``: every broker in turn is shut down the polite way and started again.

The restarts are the whole action, so there is no ``for``. While it is under way its undo is to start every broker.

``rolling_upgrade``: every node in turn is replaced by one of another Kafka version, on the same disk.

::

    k1 4.1.2 ─▶ stopped ─▶ 4.3.1, in every ISR ─▶ pause ─▶ k2 ... ─▶ kN ─▶ (finalize: metadata.version raised)

Isolated controllers go first, then brokers. Meanwhile versions are mixed, which is what Kafka promises to bear. With
``for`` (the upgrade included) the heal is the same way back, node by node; without it the upgrade stays. ``finalize``
raises the cluster's ``metadata.version`` to the highest that all nodes know, and from then on there is no way back:
``upgrading.py`` has these rules. It needs a cluster that was launched with an older version: one that a newer version
formatted has a level that no older node knows.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    TargetKind,
)
from aftershock.faults.kinds.process.base import RETURN_DEADLINE_MS, out_of_service_reason
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import probe_all
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import METADATA_VERSION, minor
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import BrokerId, PartitionState

LAG_MAX = 2  # records of the metadata log: one is written every half second, and a voter in step is behind by that
_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class Turn:
    """One node's turn, as it was seen.

    ``down``: how many nodes did not run meanwhile; ``led``: the partitions that it led before; ``grown``: those of them
    whose leader epoch grew.
    """

    node: BrokerId
    down: int
    led: int
    grown: int


class RollingInjection(Injection):
    """All of these nodes, one after the other."""

    def __init__(
        self, context: InjectionContext, nodes: Sequence[BrokerId], pause_ms: int, roles: dict[str, Any]
    ) -> None:
        self.context = context
        self.nodes = tuple(nodes)
        self.pause_ms = pause_ms
        self.turns: list[Turn] = []
        self.targets = Targets(brokers=self.nodes, roles=roles)

    @abstractmethod
    async def take_down(self, node: BrokerId) -> None:
        """Let its process end by itself."""

    @abstractmethod
    async def bring_back(self, node: BrokerId) -> None:
        """Let it start again."""

    async def inject(self) -> None:
        """Each node's turn, and the pause between two of them."""
        clock = self.context.clock
        for number, node in enumerate(self.nodes):
            if number:
                await clock.sleep_until_us(clock.now_us() + self.pause_ms * 1000)
            await self._turn(node)

    async def confirm_healed(self) -> None:
        """Each of them is in service."""
        for node in self.nodes:
            await self._see_back(node)

    def seen(self) -> Iterator[Witness]:
        """What the turns were seen to be."""
        asked, turned = len(self.nodes), len(self.turns)
        what = "nodes that were seen exited, and then back in the ISR of all they hold before the next one's turn"
        yield Witness(what, asked, turned, "nodes", asked, ok=turned == asked)
        most = max((turn.down for turn in self.turns), default=0)
        yield Witness("nodes down at one time", 1, most, "nodes", turned, ok=most == 1)
        led, grown = sum(turn.led for turn in self.turns), sum(turn.grown for turn in self.turns)
        what = "leaderships of a node at its turn whose leader epoch grew by it"
        yield Witness(what, led, grown, "partitions", led, ok=grown == led and turned == asked)

    async def _turn(self, node: BrokerId) -> None:
        led = [state for state in await self._partitions() if state.leader == node]
        await self.take_down(node)
        world = self.context.world
        down = sum([await world.state(each) != "running" for each in sorted(world.racks())])
        await self.bring_back(node)
        await self._see_back(node)
        now = {(state.topic, state.partition): state.leader_epoch for state in await self._partitions()}
        grown = sum(now.get((state.topic, state.partition), -1) > state.leader_epoch for state in led)
        self.turns.append(Turn(node, down, len(led), grown))

    async def _partitions(self) -> Sequence[PartitionState]:
        return await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)

    async def _see_back(self, node: BrokerId) -> None:
        try:
            await wait_until(lambda: _missing(node, self.context), self.context.clock, RETURN_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {node} did not come back: {error}; look at its log") from error


class RollingFault(Fault):
    """A fault that takes its turn with every node."""

    exposure_target: ClassVar[TargetKind] = "brokers"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)

    pause: Duration = 0

    def impact(self) -> Impact:
        """Whoever's turn it is."""
        return "one node"

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        """All brokers."""
        return frozenset(plan.cluster.broker_racks if plan.cluster else ())

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Topics that can't be produced to while one of their replicas is away."""
        for topic in plan.topics.values():
            usual = plan.cluster.config.get(_MIN_ISR, "1") if plan.cluster else "1"
            min_isr = topic.config.get(_MIN_ISR, usual)
            if min_isr.isdecimal() and int(min_isr) >= topic.replication:
                sentence = (
                    f"{topic.name} needs {min_isr} of its {topic.replication} replicas in sync, so nothing can be "
                )
                yield Problem((), sentence + f"produced with acks=all while one of them has its turn; lower {_MIN_ISR}")


async def rolling_order(world: World, candidates: Sequence[BrokerId]) -> list[BrokerId]:
    """Isolated controllers, then brokers, by their ids; the active controller last of its sort. All must run."""
    try:
        active = await world.controller()
    except AftershockError:
        active = None  # in the middle of an election nobody is
    brokers = brokers_of(world)
    for node in candidates:
        if (state := await world.state(node)) != "running":
            raise FaultError(f"node {node} is {state}, so it has no turn to take; let its other fault heal first")
    return sorted(candidates, key=lambda node: (node in brokers, node == active, node))


async def _missing(node: BrokerId, context: InjectionContext) -> str | None:
    """None once the node is in service; an isolated controller, once it answers and the quorum has it back."""
    if (lacking := await out_of_service_reason(node, context)) or node in brokers_of(context.world):
        return lacking
    ways = [link for link in context.world.links() if link.channel == "controller" and link.broker == node]
    if ways and "answered" not in await probe_all(ways, context):
        return "it does not answer"
    lag = (await context.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"it is {lag} records behind the active controller"


def start_undos(nodes: Sequence[BrokerId]) -> Iterator[Undo]:
    """Every one of them is started."""
    return (Undo("start", {"broker": node}) for node in nodes)


EXITED_DEADLINE_MS = 5_000  # after the engine said that it has stopped


class RollingRestartInjection(RollingInjection):
    """All brokers, stopped and started."""

    async def take_down(self, node: BrokerId) -> None:
        """Stop it and see it down."""
        await run_to_completion(self.context.world.stop(node))
        await wait_until(lambda: self._not_exited(node), self.context.clock, EXITED_DEADLINE_MS)

    async def bring_back(self, node: BrokerId) -> None:
        """Start it."""
        await run_to_completion(self.context.world.start(node))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """What the turns were."""
        for witness in self.seen():
            report(witness)

    async def _not_exited(self, node: BrokerId) -> str | None:
        state = await self.context.world.state(node)
        return None if state == "exited" else f"node {node} should be exited but its container is {state}"


class RollingRestart(RollingFault):
    """Restart every broker, one after the other."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#1f9ea8", "rolling restart")
    proof: ClassVar[str] = "each seen exited and then back in service, one at a time; leader epochs that grew"
    remedy: ClassVar[str] = "the action ends with all brokers in service; interrupted, each is started"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 60_000  # for each broker a stop of 1-3 s, and 3-7 s until it is in service

    kind: Literal["rolling_restart"] = "rolling_restart"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if a broker doesn't run."""
        order = await rolling_order(context.world, sorted(brokers_of(context.world)))
        injection = RollingRestartInjection(context, order, self.pause, {"asked": "every broker", "turns": list(order)})
        injection.undo = all_of(start_undos(order))
        return injection


RAISED_DEADLINE_MS = 15_000


class RollingUpgradeInjection(RollingInjection):
    """All nodes, replaced. ``before``: their versions, ``knew``: the highest metadata level that each broker knew."""

    to: str
    finalize: bool
    before: Mapping[BrokerId, str]
    knew: Mapping[BrokerId, int]
    level: int

    async def take_down(self, node: BrokerId) -> None:
        """Stop it; another one takes its place in `bring_back`."""
        await run_to_completion(self.context.world.stop(node))

    async def bring_back(self, node: BrokerId) -> None:
        """The same disk, another image."""
        await run_to_completion(self.context.world.replace(node, self.to))

    async def inject(self) -> None:
        """Replace one after the other; then raise the level, if that was asked for."""
        await super().inject()
        if self.finalize:
            highest = min((await self._known()).values())
            await self.context.world.raise_feature(METADATA_VERSION, highest)
            await wait_until(lambda: self._not_raised(highest), self.context.clock, RAISED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """What the turns were; then what the nodes say of themselves, each second."""
        for witness in self.seen():
            report(witness)
        report(await self._said())
        report(await self._finalised())
        while True:
            report(await self._levels())
            if until_us is None or (now_us := self.context.clock.now_us()) >= until_us:
                return
            await self.context.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def confirm_healed(self) -> None:
        """Each is in service, and of its old version by its own word."""
        await super().confirm_healed()
        for node, version in self.before.items():
            if (told := await self.context.world.reported_version(node)) != version:
                raise FaultError(f"node {node} says that it is {told}, and it was {version} before the upgrade")

    async def _said(self) -> Witness:
        """Each process names its version as it starts: its own word, not the image's."""
        told = [await self.context.world.reported_version(node) for node in self.nodes]
        what = f"nodes whose process says that it is {self.to}"
        asked, of_it = len(self.nodes), told.count(self.to)
        return Witness(what, asked, of_it, "nodes", asked, ok=of_it == asked)

    async def _levels(self) -> Witness:
        """ApiVersions tells the levels that a broker knows; a release with a level of its own shows there."""
        known = await self._known()
        due = [broker for broker in self.knew if minor(self.before[broker]) != minor(self.to)]
        changed = sum(known[broker] != self.knew[broker] for broker in due)
        what = f"brokers whose highest {METADATA_VERSION}, asked over Kafka's protocol, is another than before"
        return Witness(what, len(due), changed, "brokers", len(known), ok=changed == len(due) and bool(self.turns))

    async def _finalised(self) -> Witness:
        """The level must have risen if that was asked for, and only then."""
        level = (await retry_refused(self.context.world.features, self.context.clock, READ_DEADLINE_MS))[METADATA_VERSION]
        what = f"levels by which {METADATA_VERSION}, finalised, is above {self.level}"
        asked = min((await self._known()).values()) - self.level if self.finalize else 0
        rise = level - self.level
        return Witness(what, asked, rise, "levels", 1, ok=rise == asked and bool(self.turns))

    async def _known(self) -> dict[BrokerId, int]:
        return await retry_refused(lambda: supported_metadata_levels(self.context), self.context.clock, READ_DEADLINE_MS)

    async def _not_raised(self, wanted: int) -> str | None:
        level = (await self.context.world.features()).get(METADATA_VERSION)
        return None if level == wanted else f"{METADATA_VERSION} is {level}, and {wanted} was asked for"


class RollingUpgrade(RollingFault):
    """Replace every node by one of another Kafka version, one after the other."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#0b7a75", "rolling upgrade")
    proof: ClassVar[str] = (
        "each seen down and back, one at a time; the version that each process says, the levels it knows"
    )
    remedy: ClassVar[str] = (
        "with `for`, or interrupted: each node is of its old version again, and in service; once finalised there is "
        "no way back, and every node is started"
    )
    permanent_effect: ClassVar[str | None] = (
        "without `for`, nodes of another version; with `finalize`, its metadata level as well"
    )
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "optional"
    allowance_ms: ClassVar[int] = 120_000  # for each node 6-12 s there, and as long back

    kind: Literal["rolling_upgrade"] = "rolling_upgrade"
    to: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$", description="a Kafka version, like 4.3.1")]
    finalize: Annotated[bool, Field(description="raise metadata.version when all nodes are upgraded")] = False

    @model_validator(mode="after")
    def _no_way_back(self) -> Self:
        if self.finalize and self.for_ is not None:
            sentence = "a finalised upgrade can't be taken back: take `for` or `finalize` away"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def kafka_versions(self) -> tuple[str, ...]:
        """The one to upgrade to."""
        return (self.to,)

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        """Controllers too."""
        return frozenset(plan.cluster.node_racks if plan.cluster else ())

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """No way down from the version that formatted the cluster."""
        launched = plan.cluster.kafka if plan.cluster else "default"
        if launched != "default" and minor(self.to) < minor(launched):
            sentence = f"the cluster is formatted by {launched}, and no {self.to} knows its metadata: launch it with "
            yield Problem(("to",), sentence + f"`kafka: {self.to}` and upgrade from there")

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if a node doesn't run, if all are of that version already, or if there is no such image."""
        world = context.world
        order = await rolling_order(world, sorted(world.racks()))
        before = {node: await world.version(node) for node in order}
        due = [node for node in order if before[node] != self.to]
        if not due:
            raise FaultError(f"every node is {self.to} already, so there is nothing to upgrade")
        await world.fetch(self.to)
        level = (await world.features())[METADATA_VERSION]
        roles = {"asked": f"every node to {self.to}", "turns": due, "from": sorted({*before.values()}), "to": self.to}
        injection = RollingUpgradeInjection(context, due, self.pause, roles)
        injection.to, injection.finalize, injection.before, injection.level = self.to, self.finalize, before, level
        injection.knew = {node: known for node, known in (await supported_metadata_levels(context)).items() if node in due}
        injection.undo = Undo("roll_back", {"nodes": [[node, before[node]] for node in reversed(due)], "level": level})
        return injection


async def supported_metadata_levels(context: InjectionContext) -> dict[BrokerId, int]:
    """The highest metadata level that each broker says it knows."""
    brokers = sorted(brokers_of(context.world))
    return {broker: (await context.world.supported_features(broker))[METADATA_VERSION] for broker in brokers}

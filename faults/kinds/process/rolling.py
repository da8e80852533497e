"""``rolling_restart`` and ``rolling_upgrade``: restart or replace all nodes, one after the other.

One node at a time: the next node is taken down when the one before is in service again, that is in the ISR of all it
holds. A node that doesn't return ends the fault. The active controller comes last, so that the quorum elects once. The
observations of each turn are reported as witnesses at the end.

``rolling_restart`` stops and starts every broker. It has no ``for``; while it runs, its undo starts every broker.

``rolling_upgrade`` replaces every node by another Kafka version on the same disk::

    k1 4.1.2 ─▶ stopped ─▶ 4.3.1, in every ISR ─▶ pause ─▶ k2 ... ─▶ kN ─▶ (finalize: metadata.version raised)

Isolated controllers go first, then brokers. In the meantime versions are mixed, which Kafka supports. With ``for`` (the
upgrade included) the heal downgrades node by node; without it the upgrade stays. ``finalize`` raises the cluster's
``metadata.version`` to the highest level that all nodes support; after that there is no way back (rules:
``runtime/undo.py``). The cluster must be launched with the older version: one formatted by a newer version has a level
that no older node supports.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
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
    report_each_second,
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

LAG_MAX = 2  # records of the metadata log: one is written every half second, and a voter in sync lags by it
_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class Turn:
    """Observations of one node's turn.

    ``down``: number of nodes that did not run; ``led``: partitions it led before; ``grown``: those of them whose leader
    epoch grew.
    """

    node: BrokerId
    down: int
    led: int
    grown: int


class RollingInjection(Injection):
    """Stop and start of these nodes, one after the other."""

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
        """Stop the node's process cleanly."""

    @abstractmethod
    async def bring_back(self, node: BrokerId) -> None:
        """Start the node."""

    async def inject(self) -> None:
        """Take down and bring back each node, with the pause between two."""
        clock = self.context.clock
        for number, node in enumerate(self.nodes):
            if number:
                await clock.sleep_until_us(clock.now_us() + self.pause_ms * 1000)
            led = [state for state in await self._partitions() if state.leader == node]
            await self.take_down(node)
            world = self.context.world
            down = sum([await world.state(member) != "running" for member in sorted(world.racks())])
            await self.bring_back(node)
            await self._see_back(node)
            epochs = {(state.topic, state.partition): state.leader_epoch for state in await self._partitions()}
            grown = sum(epochs.get((state.topic, state.partition), -1) > state.leader_epoch for state in led)
            self.turns.append(Turn(node, down, len(led), grown))

    async def confirm_healed(self) -> None:
        """Wait until every node is in service."""
        for node in self.nodes:
            await self._see_back(node)

    def turn_witnesses(self) -> Iterator[Witness]:
        """Yield witnesses of the turns: nodes restarted, nodes down at one time, leader epochs."""
        asked, turned = len(self.nodes), len(self.turns)
        what = "nodes that were seen exited, and then back in the ISR of all they hold before the next one's turn"
        yield Witness(what, asked, turned, "nodes", asked, ok=turned == asked)
        most = max((turn.down for turn in self.turns), default=0)
        yield Witness("nodes down at one time", 1, most, "nodes", turned, ok=most == 1)
        led, grown = sum(turn.led for turn in self.turns), sum(turn.grown for turn in self.turns)
        what = "leaderships of a node at its turn whose leader epoch grew by it"
        yield Witness(what, led, grown, "partitions", led, ok=grown == led and turned == asked)

    async def _partitions(self) -> Sequence[PartitionState]:
        return await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)

    async def _see_back(self, node: BrokerId) -> None:
        try:
            await wait_until(lambda: _not_back_reason(node, self.context), self.context.clock, RETURN_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {node} did not come back: {error}; look at its log") from error


class RollingFault(Fault):
    """Base of faults that affect every node in turn."""

    exposure_target: ClassVar[TargetKind] = "brokers"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "brokers"),)

    pause: Duration = 0

    def impact(self) -> Impact:
        """Return that one node at a time is lost."""
        return "one node"

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        """Return all brokers."""
        return frozenset(plan.cluster.broker_racks if plan.cluster else ())

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Warn of topics that can't be produced to while one of their replicas is down."""
        for topic in plan.topics.values():
            default = plan.cluster.config.get(_MIN_ISR, "1") if plan.cluster else "1"
            min_isr = topic.config.get(_MIN_ISR, default)
            if min_isr.isdecimal() and int(min_isr) >= topic.replication:
                sentence = (
                    f"{topic.name} needs {min_isr} of its {topic.replication} replicas in sync, so no record can be "
                )
                yield Problem((), sentence + f"produced with acks=all while one of them restarts; lower {_MIN_ISR}")


async def rolling_order(world: World, candidates: Sequence[BrokerId]) -> list[BrokerId]:
    """Return controllers by id, the active one last, then brokers by id. Raises FaultError if a node is down."""
    try:
        active = await world.controller()
    except AftershockError:
        active = None  # unknown in the middle of an election
    brokers = brokers_of(world)
    for node in candidates:
        if (state := await world.state(node)) != "running":
            raise FaultError(f"node {node} is {state}, so it has no turn; let its other fault heal first")
    return sorted(candidates, key=lambda node: (node in brokers, node == active, node))


async def _not_back_reason(node: BrokerId, context: InjectionContext) -> str | None:
    """Return None once the node is in service; for an isolated controller, once it answers and follows the quorum."""
    if (reason := await out_of_service_reason(node, context)) or node in brokers_of(context.world):
        return reason
    links = [link for link in context.world.links() if link.channel == "controller" and link.broker == node]
    if links and "answered" not in await probe_all(links, context):
        return "it does not answer"
    lag = (await context.world.quorum_lag()).get(node)
    return None if lag is not None and lag <= LAG_MAX else f"it is {lag} records behind the active controller"


EXITED_DEADLINE_MS = 5_000  # after the engine reported the stop


class RollingRestartInjection(RollingInjection):
    """Restart of all brokers."""

    async def take_down(self, node: BrokerId) -> None:
        """Stop it and wait until it is down."""

        async def not_exited() -> str | None:
            state = await self.context.world.state(node)
            return None if state == "exited" else f"node {node} should be exited but its container is {state}"

        await run_to_completion(self.context.world.stop(node))
        await wait_until(not_exited, self.context.clock, EXITED_DEADLINE_MS)

    async def bring_back(self, node: BrokerId) -> None:
        """Start it again."""
        await run_to_completion(self.context.world.start(node))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the witnesses of the turns."""
        for witness in self.turn_witnesses():
            report(witness)


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
        """Resolve all brokers; raise FaultError if one doesn't run."""
        order = await rolling_order(context.world, sorted(brokers_of(context.world)))
        injection = RollingRestartInjection(context, order, self.pause, {"asked": "every broker", "turns": list(order)})
        injection.undo = all_of(Undo("start", {"broker": node}) for node in order)
        return injection


RAISED_DEADLINE_MS = 15_000


class RollingUpgradeInjection(RollingInjection):
    """Replacement of all nodes. ``before``: versions; ``levels_before``: highest metadata level of each broker."""

    to: str
    finalize: bool
    before: Mapping[BrokerId, str]
    levels_before: Mapping[BrokerId, int]
    level: int

    async def take_down(self, node: BrokerId) -> None:
        """Stop it; `bring_back` replaces it."""
        await run_to_completion(self.context.world.stop(node))

    async def bring_back(self, node: BrokerId) -> None:
        """Start another image on the same disk."""
        await run_to_completion(self.context.world.replace(node, self.to))

    async def inject(self) -> None:
        """Replace all nodes in turn; with ``finalize``, raise the metadata level."""
        await super().inject()
        if self.finalize:
            highest = min((await self._supported_levels()).values())
            await self.context.world.raise_feature(METADATA_VERSION, highest)

            async def not_raised() -> str | None:
                level = (await self.context.world.features()).get(METADATA_VERSION)
                return None if level == highest else f"{METADATA_VERSION} is {level}, and {highest} was asked for"

            await wait_until(not_raised, self.context.clock, RAISED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report the turns, the versions and the finalised level; then each second the levels that brokers support."""
        for witness in self.turn_witnesses():
            report(witness)
        report(await self._versions())
        report(await self._finalised())
        await report_each_second(self._levels, report, self.context.clock, until_us)

    async def confirm_healed(self) -> None:
        """Wait until each node is in service; raise FaultError if it reports another version than before."""
        await super().confirm_healed()
        for node, version in self.before.items():
            reported = await self.context.world.reported_version(node)
            if reported != version:
                raise FaultError(f"node {node} reports version {reported}, and it was {version} before the upgrade")

    async def _versions(self) -> Witness:
        """Read the version that each process logged at its start, which may differ from the image's."""
        versions = [await self.context.world.reported_version(node) for node in self.nodes]
        what = f"nodes whose process says that it is {self.to}"
        asked, upgraded = len(self.nodes), versions.count(self.to)
        return Witness(what, asked, upgraded, "nodes", asked, ok=upgraded == asked)

    async def _levels(self) -> Witness:
        """Read the feature levels that brokers support from ApiVersions; they differ between some releases."""
        levels = await self._supported_levels()
        due = [broker for broker in self.levels_before if minor(self.before[broker]) != minor(self.to)]
        changed = sum(levels[broker] != self.levels_before[broker] for broker in due)
        what = f"brokers whose highest {METADATA_VERSION}, asked over Kafka's protocol, is another than before"
        return Witness(what, len(due), changed, "brokers", len(levels), ok=changed == len(due) and bool(self.turns))

    async def _finalised(self) -> Witness:
        """Witness that the finalised level has risen with ``finalize``, and only then."""
        level = (await retry_refused(self.context.world.features, self.context.clock, READ_DEADLINE_MS))[
            METADATA_VERSION
        ]
        what = f"levels by which {METADATA_VERSION}, finalised, is above {self.level}"
        asked = min((await self._supported_levels()).values()) - self.level if self.finalize else 0
        rise = level - self.level
        return Witness(what, asked, rise, "levels", 1, ok=rise == asked and bool(self.turns))

    async def _supported_levels(self) -> dict[BrokerId, int]:
        return await retry_refused(
            lambda: supported_metadata_levels(self.context), self.context.clock, READ_DEADLINE_MS
        )


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
            sentence = "a finalised upgrade can't be undone: remove `for` or `finalize`"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def kafka_versions(self) -> tuple[str, ...]:
        """Return the version to upgrade to."""
        return (self.to,)

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        """Return all nodes, controllers too."""
        return frozenset(plan.cluster.node_racks if plan.cluster else ())

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield a problem for a version below the one that formats the cluster."""
        launched = plan.cluster.kafka if plan.cluster else "default"
        if launched != "default" and minor(self.to) < minor(launched):
            sentence = f"the cluster is formatted by {launched}, whose metadata {self.to} can't read: launch it with "
            yield Problem(("to",), sentence + f"`kafka: {self.to}` and upgrade from there")

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the nodes to upgrade; raise FaultError if one is down, all have the version, or there is no image."""
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
        levels = await supported_metadata_levels(context)
        injection.levels_before = {node: highest for node, highest in levels.items() if node in due}
        injection.undo = Undo("roll_back", {"nodes": [[node, before[node]] for node in reversed(due)], "level": level})
        return injection


async def supported_metadata_levels(context: InjectionContext) -> dict[BrokerId, int]:
    """Return the highest metadata level that each broker supports."""
    brokers = sorted(brokers_of(context.world))
    return {broker: (await context.world.supported_features(broker))[METADATA_VERSION] for broker in brokers}

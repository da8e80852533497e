"""``rolling_restart`` and ``rolling_upgrade``: restart or replace all nodes, one after the other.

The next node is stopped when the previous node is in service again, that is in the ISR of all its partitions. If a node
doesn't return into service, the fault ends. The active controller comes last, so that the quorum elects only once. At
the end, witnesses report what was observed while each node restarted (restarts, nodes down, leader epochs).

``rolling_restart`` stops and starts every broker. ``rolling_restart`` has no ``for``; after an interrupted restart, the
undo starts every broker.

``rolling_upgrade`` replaces every node by another Kafka version on the same disk::

    k1 4.1.2 ─▶ stopped ─▶ 4.3.1, in every ISR ─▶ pause ─▶ k2 ... ─▶ kN ─▶ (finalize: metadata.version raised)

Isolated controllers are upgraded first, then brokers. During the upgrade, nodes of both versions run, which Kafka
supports. With ``for`` (which includes the upgrade) the heal downgrades node by node; without ``for`` the upgrade stays.
``finalize`` raises the cluster's ``metadata.version`` to the highest level that all nodes support; a raised level can't
be undone (rules: ``runtime/undo.py``). The cluster must be launched with the older version: a cluster formatted by a
newer version has a level that no older node supports.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    RETURN_DEADLINE_MS,
    count_new_epochs,
    quorum_lag_reason,
    wait_for_state,
    wait_until_in_service,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import probe_all
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import METADATA_VERSION, minor
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import BrokerId

MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class Turn:
    """What was observed while one node was restarted or replaced.

    ``down``: number of nodes that did not run; ``led``: number of partitions that the node led before; ``grown``:
    number of partitions led before whose leader epoch grew.
    """

    down: int
    led: int
    grown: int


@dataclass(eq=False)
class RollingInjection(Injection):
    """Stop and start of nodes, one after the other, with ``pause_ms`` between two nodes."""

    nodes: Sequence[BrokerId]
    pause_ms: int
    turns: list[Turn] = field(default_factory=list, init=False)

    @abstractmethod
    async def take_down(self, node: BrokerId) -> None: ...

    @abstractmethod
    async def bring_back(self, node: BrokerId) -> None:
        """Start the node."""

    async def inject(self) -> None:
        """Take down and bring back one node after the other, with a pause of ``pause_ms`` between two nodes."""
        clock, world = self.context.clock, self.context.world
        for number, node in enumerate(self.nodes):
            if number:
                await clock.sleep_until_us(clock.now_us() + self.pause_ms * 1000)
            states = await retry_refused(world.partitions, clock, READ_DEADLINE_MS)
            led = [state for state in states if state.leader == node]
            await self.take_down(node)
            down = sum([await world.state(member) != "running" for member in sorted(world.racks())])
            await self.bring_back(node)
            await self._wait_until_back(node)
            states = await retry_refused(world.partitions, clock, READ_DEADLINE_MS)
            self.turns.append(Turn(down, len(led), count_new_epochs(led, states)))

    async def confirm_healed(self) -> None:
        for node in self.nodes:
            await self._wait_until_back(node)

    async def _wait_until_back(self, node: BrokerId) -> None:
        """Wait until a restarted node is in service, and follows the quorum if it is an isolated controller."""
        await wait_until_in_service(node, self.context)
        world = self.context.world
        if node in brokers_of(world):
            return
        links = [link for link in world.links() if link.channel == "controller" and link.broker == node]

        async def behind() -> str | None:
            if links and "answered" not in await probe_all(links, self.context):
                return f"controller {node} does not answer"
            return await quorum_lag_reason(node, self.context)

        await wait_until(behind, self.context.clock, RETURN_DEADLINE_MS)

    def turn_witnesses(self) -> Iterator[Witness]:
        """Yield witnesses: the nodes that came back, the nodes down at one time, and the leader epochs that grew."""
        asked, turned = len(self.nodes), len(self.turns)
        what = "nodes that exited and came back into the ISR of all their partitions before the next node's turn"
        yield Witness(what, asked, turned, "nodes", asked, ok=turned == asked)
        most = max((turn.down for turn in self.turns), default=0)
        yield Witness("nodes down at one time", 1, most, "nodes", turned, ok=most == 1)
        led, grown = sum(turn.led for turn in self.turns), sum(turn.grown for turn in self.turns)
        what = "partitions whose leader epoch grew when the node that led them restarted"
        yield Witness(what, led, grown, "partitions", led, ok=grown == led and turned == asked)


class RollingFault(Fault):
    exposure_target = "brokers"
    drops_traffic = True
    closes_connections = True
    exclusive_resources = (ExclusiveResource("process", "brokers"),)

    pause: Annotated[Duration, Field(description="time between the restarts of two nodes")] = 0

    def impact(self) -> Impact:
        return "one node"

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        return frozenset(plan.cluster.broker_racks if plan.cluster else ())

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        for topic in plan.topics.values():
            default = plan.cluster.config.get(MIN_ISR, "1") if plan.cluster else "1"
            min_isr = topic.config.get(MIN_ISR, default)
            if min_isr.isdecimal() and int(min_isr) >= topic.replication:
                sentence = (
                    f"the topic {topic.name} needs {min_isr} of its {topic.replication} replicas in sync, "
                    f"so no record can be "
                )
                yield Problem((), sentence + f"produced with acks=all while a replica restarts; lower {MIN_ISR}")


async def rolling_order(world: World, candidates: Sequence[BrokerId]) -> list[BrokerId]:
    """Return controllers by id, the active controller last, then brokers by id; raise FaultError if a node is down."""
    try:
        active = await world.controller()
    except AftershockError:
        active = None  # unknown in the middle of an election
    brokers = brokers_of(world)
    for node in candidates:
        if (state := await world.state(node)) != "running":
            raise FaultError(
                f"node {node} is {state} already; let the other fault on the node heal before this fault begins"
            )
    return sorted(candidates, key=lambda node: (node in brokers, node == active, node))


class RollingRestartInjection(RollingInjection):
    async def take_down(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.stop(node))
        await wait_for_state(node, "exited", self.context, EXITED_DEADLINE_MS)

    async def bring_back(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.start(node))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        for witness in self.turn_witnesses():
            report(witness)


class RollingRestart(RollingFault):
    """Restart all brokers, one after the other."""

    family = "process"
    band = Band("#1f9ea8", "rolling restart")
    proof = "Each broker exited and came back into service, only one broker was down at a time, and leader epochs grew."
    remedy = "The action ends when all brokers are in service. If it is interrupted, every broker is started."
    for_rule = "refused"
    allowance_ms = 60_000  # for each broker a stop of 1-3 s, and 3-7 s until it is in service

    kind: Literal["rolling_restart"] = "rolling_restart"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        order = await rolling_order(context.world, sorted(brokers_of(context.world)))
        targets = Targets(brokers=tuple(order), roles={"asked": "every broker", "turns": order})
        undo = all_of(Undo("start", {"broker": node}) for node in order)
        return RollingRestartInjection(context, targets, order, self.pause, undo=undo)


RAISED_DEADLINE_MS = 15_000


@dataclass(eq=False, kw_only=True)
class RollingUpgradeInjection(RollingInjection):
    """Replacement of all nodes by nodes of Kafka version ``to``.

    ``before``: version of each node before the fault; ``levels_before``: highest metadata level that each broker
    supported; ``level``: the cluster's finalised metadata level before the fault.
    """

    to: str
    finalize: bool
    before: Mapping[BrokerId, str]
    levels_before: Mapping[BrokerId, int]
    level: int

    async def take_down(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.stop(node))

    async def bring_back(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.replace(node, self.to))

    async def inject(self) -> None:
        """Replace all nodes one after the other; with ``finalize``, raise the cluster's metadata level."""
        await super().inject()
        if self.finalize:
            highest = min((await self._supported_levels()).values())
            await self.context.world.raise_feature(METADATA_VERSION, highest)

            async def not_raised() -> str | None:
                level = (await self.context.world.features()).get(METADATA_VERSION)
                return (
                    None if level == highest else f"the finalised {METADATA_VERSION} is {level} and should be {highest}"
                )

            await wait_until(not_raised, self.context.clock, RAISED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report restarts, versions and finalised level; then each second the metadata levels that brokers support."""
        for witness in self.turn_witnesses():
            report(witness)
        # the version that each process logged at its start, which may differ from the image's
        versions = [await self.context.world.reported_version(node) for node in self.nodes]
        what = f"nodes whose process reports the new Kafka version {self.to}"
        upgraded = versions.count(self.to)
        report(Witness(what, len(versions), upgraded, "nodes", len(versions), ok=upgraded == len(versions)))
        features = await retry_refused(self.context.world.features, self.context.clock, READ_DEADLINE_MS)
        rise = features[METADATA_VERSION] - self.level
        due_rise = min((await self._supported_levels()).values()) - self.level if self.finalize else 0
        what = f"rise of the finalised {METADATA_VERSION} above {self.level}"
        report(Witness(what, due_rise, rise, "levels", 1, ok=rise == due_rise and bool(self.turns)))
        await report_each_second(self._levels_witness, report, self.context.clock, until_us)

    async def confirm_healed(self) -> None:
        """Wait until each node is in service; raise FaultError if a node reports another version than before."""
        await super().confirm_healed()
        for node, version in self.before.items():
            reported = await self.context.world.reported_version(node)
            if reported != version:
                raise FaultError(
                    f"node {node} reports version {reported} after the upgrade, and reported {version} before"
                )

    async def _levels_witness(self) -> Witness:
        """Read the feature levels that brokers support from ApiVersions; some releases differ in these levels."""
        levels = await self._supported_levels()
        due = [broker for broker in self.levels_before if minor(self.before[broker]) != minor(self.to)]
        changed = sum(levels[broker] != self.levels_before[broker] for broker in due)
        what = f"brokers whose highest supported {METADATA_VERSION}, read over Kafka's protocol, has changed"
        return Witness(what, len(due), changed, "brokers", len(levels), ok=changed == len(due) and bool(self.turns))

    async def _supported_levels(self) -> dict[BrokerId, int]:
        return await retry_refused(
            lambda: supported_metadata_levels(self.context), self.context.clock, READ_DEADLINE_MS
        )


class RollingUpgrade(RollingFault):
    """Replace all nodes by nodes of another Kafka version, one after the other."""

    family = "process"
    band = Band("#0b7a75", "rolling upgrade")
    proof = (
        "Each node went down and came back, one at a time. Each process logs the new version, and brokers offer "
        "the feature levels of that version."
    )
    remedy = (
        "With `for`, or if the upgrade is interrupted, each node runs its old version again and is in service. "
        "After `finalize` no node can return to the old version, so every node is started in the new version."
    )
    permanent_effect = "Without `for`, the nodes stay at the new version. With `finalize`, so does the metadata level."
    for_rule = "optional"
    allowance_ms = 120_000  # for each node 6-12 s there, and as long back

    kind: Literal["rolling_upgrade"] = "rolling_upgrade"
    to: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$", description="a Kafka version, like 4.3.1")]
    finalize: Annotated[bool, Field(description="raise metadata.version once all nodes are upgraded")] = False

    @model_validator(mode="after")
    def _no_way_back(self) -> Self:
        if self.finalize and self.for_ is not None:
            raise ValueError("a finalised upgrade can't be undone: remove `for` or `finalize`")
        return self

    def kafka_versions(self) -> tuple[str, ...]:
        return (self.to,)

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        return frozenset(plan.cluster.node_racks if plan.cluster else ())

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        launched = plan.cluster.kafka if plan.cluster else "default"
        if launched != "default" and minor(self.to) < minor(launched):
            sentence = (
                f"Kafka {self.to} can't read the metadata of {launched}, which formats the cluster: launch it with "
            )
            yield Problem(("to",), sentence + f"`kafka: {self.to}`, or upgrade to a later version")

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        world = context.world
        order = await rolling_order(world, sorted(world.racks()))
        before = {node: await world.version(node) for node in order}
        due = [node for node in order if before[node] != self.to]
        if not due:
            raise FaultError(f"every node runs Kafka {self.to} already, so there is nothing to upgrade")
        await world.fetch(self.to)
        level = (await world.features())[METADATA_VERSION]
        roles = {"asked": f"every node to {self.to}", "turns": due, "from": sorted({*before.values()}), "to": self.to}
        levels = await supported_metadata_levels(context)
        return RollingUpgradeInjection(
            context,
            Targets(brokers=tuple(due), roles=roles),
            due,
            self.pause,
            to=self.to,
            finalize=self.finalize,
            before=before,
            levels_before={node: highest for node, highest in levels.items() if node in due},
            level=level,
            undo=Undo("roll_back", {"nodes": [[node, before[node]] for node in reversed(due)], "level": level}),
        )


async def supported_metadata_levels(context: InjectionContext) -> dict[BrokerId, int]:
    """Return the highest metadata level that each broker supports."""
    brokers = sorted(brokers_of(context.world))
    return {broker: (await context.world.supported_features(broker))[METADATA_VERSION] for broker in brokers}

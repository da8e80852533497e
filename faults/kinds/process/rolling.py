"""Faults ``rolling_restart`` and ``rolling_upgrade``, which restart or replace all nodes, one after the other.

Before a node is stopped, the previous node must be in the ISR of all its partitions again; a node that doesn't return
into service ends the fault. The active controller is restarted last, so that the quorum elects only once.

``rolling_upgrade`` replaces every node by a node of another Kafka version on the same disk. With ``for`` (which
includes the time of the upgrade) the heal downgrades node by node; without ``for`` the upgrade stays. ``finalize``
raises the cluster's ``metadata.version`` to the highest level that all nodes support, which no heal reverts (see
``runtime/undo.py``). The cluster must be launched with the older version, because a cluster formatted by a newer
version has a ``metadata.version`` that no older node supports.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.probing import probe_all
from aftershock.faults.kinds.process.base import (
    EXITED_DEADLINE_MS,
    RETURN_DEADLINE_MS,
    active_controller,
    count_new_epochs,
    quorum_lag_reason,
    require_running,
    wait_for_state,
    wait_until_in_service,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness, all_of
from aftershock.faults.runtime.undo import METADATA_VERSION, minor
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.cluster import RELEASE
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import BrokerId
from aftershock.faults.targets.world import World

MIN_ISR = "min.insync.replicas"


@dataclass(eq=False)
class RollingInjection(Injection):
    """Stop and start of nodes, one after the other, with ``pause_ms`` between two nodes.

    ``returned`` counts the nodes that were stopped and are back in service, ``led`` the partitions that the nodes led
    before their stop, and ``grown`` the partitions of ``led`` whose leader epoch grew. ``down_max`` is the largest
    number of nodes that were down at one time.
    """

    nodes: Sequence[BrokerId]
    pause_ms: int

    def __post_init__(self) -> None:
        self.returned = self.down_max = self.led = self.grown = 0

    @abstractmethod
    async def take_down(self, node: BrokerId) -> None: ...

    @abstractmethod
    async def bring_back(self, node: BrokerId) -> None: ...

    async def inject(self) -> None:
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
            self.returned += 1
            self.down_max = max(self.down_max, down)
            self.led += len(led)
            self.grown += count_new_epochs(led, states)

    async def confirm_healed(self) -> None:
        for node in self.nodes:
            await self._wait_until_back(node)

    async def _wait_until_back(self, node: BrokerId) -> None:
        """Wait until a restarted node is in service; an isolated controller must also follow the metadata quorum."""
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

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- the restarts are over
        """Report the nodes that came back, the nodes down at one time, and the leader epochs that grew."""
        asked, returned = len(self.nodes), self.returned
        what = "nodes that exited and came back into the ISR of all their partitions before the next node was stopped"
        report(Witness(what, asked, returned, "nodes", asked, ok=returned == asked))
        what = "largest number of nodes that were down at one time"
        report(Witness(what, 1, self.down_max, "nodes", returned, ok=self.down_max == 1))
        what = "partitions whose leader epoch grew when the node that led them restarted"
        ok = self.grown == self.led and returned == asked
        report(Witness(what, self.led, self.grown, "partitions", self.led, ok))


class RollingFault(Fault):
    family = "process"
    unavailable = "one node"
    exposure_target = "brokers"
    drops_traffic = True
    closes_connections = True
    exclusive_resources = (ExclusiveResource("process", "brokers"),)

    pause: Annotated[Duration, Field(description="time between the restarts of two nodes")] = 0

    def nodes(self, plan: PlanContext) -> frozenset[int]:
        return frozenset(plan.cluster.broker_racks if plan.cluster else ())

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        for topic in plan.topics.values():
            default = plan.cluster.config.get(MIN_ISR, "1") if plan.cluster else "1"
            min_isr = topic.config.get(MIN_ISR, default)
            if min_isr.isdecimal() and int(min_isr) >= topic.replication:
                message = (
                    f"while a replica of the topic {topic.name} restarts, the topic accepts no records with acks=all: "
                    f"it has {topic.replication} replicas and {MIN_ISR} is {min_isr}; lower {MIN_ISR}"
                )
                yield Problem((), message)


async def rolling_order(world: World, candidates: Sequence[BrokerId]) -> list[BrokerId]:
    """Return the nodes in restart order, isolated controllers first, the active controller last of its group."""
    active, brokers = await active_controller(world), brokers_of(world)
    for node in candidates:
        await require_running(node, world)
    return sorted(candidates, key=lambda node: (node in brokers, node == active, node))


class RollingRestartInjection(RollingInjection):
    async def take_down(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.stop(node))
        await wait_for_state(node, "exited", self.context, EXITED_DEADLINE_MS)

    async def bring_back(self, node: BrokerId) -> None:
        await run_to_completion(self.context.world.start(node))


class RollingRestart(RollingFault):
    """Stop and start all brokers, one after the other."""

    band = Band("#1f9ea8", "rolling restart")
    proof = "Each broker exited and came back into service, only one broker was down at a time, and leader epochs grew."
    remedy = "All brokers are back in service. If the fault is interrupted, every broker is started."
    for_rule = "refused"
    allowance_ms = 60_000  # for each broker a stop of 1-3 s, and 3-7 s until it is in service

    drawn = ("{}",)
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

    The state before the fault is in ``before`` (Kafka version of each node), ``levels_before`` (highest
    ``metadata.version`` that each broker supported) and ``level`` (finalised ``metadata.version`` of the cluster).
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
        """Replace all nodes one after the other; with ``finalize``, raise the cluster's ``metadata.version``."""
        await super().inject()
        if not self.finalize:
            return
        highest = min((await self._supported_levels()).values())
        await self.context.world.raise_feature(METADATA_VERSION, highest)

        async def not_raised() -> str | None:
            level = (await self.context.world.features()).get(METADATA_VERSION)
            return None if level == highest else f"the finalised {METADATA_VERSION} is {level} and should be {highest}"

        await wait_until(not_raised, self.context.clock, RAISED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report restarts, Kafka versions and ``metadata.version``, then the brokers' supported levels each second."""
        await super().hold(until_us, report)
        # the version that each process logged at its start, which may differ from the image's
        versions = [await self.context.world.reported_version(node) for node in self.nodes]
        what = f"nodes whose process reports the new Kafka version {self.to}"
        upgraded = versions.count(self.to)
        report(Witness(what, len(versions), upgraded, "nodes", len(versions), ok=upgraded == len(versions)))
        features = await retry_refused(self.context.world.features, self.context.clock, READ_DEADLINE_MS)
        rise = features[METADATA_VERSION] - self.level
        due_rise = min((await self._supported_levels()).values()) - self.level if self.finalize else 0
        what = f"rise of the finalised {METADATA_VERSION} above {self.level}"
        report(Witness(what, due_rise, rise, "levels", 1, ok=rise == due_rise and self.returned > 0))
        await report_each_second(self._levels_witness, report, self.context.clock, until_us)

    async def confirm_healed(self) -> None:
        """Wait until each node is in service; raise FaultError if a node runs another version than before the fault."""
        await super().confirm_healed()
        for node, version in self.before.items():
            reported = await self.context.world.reported_version(node)
            if reported != version:
                raise FaultError(f"node {node} runs Kafka {reported} after the heal and ran {version} before the fault")

    async def _levels_witness(self) -> Witness:
        """Return a witness that brokers with a new minor version support another ``metadata.version`` than before."""
        levels = await self._supported_levels()
        due = [broker for broker in self.levels_before if minor(self.before[broker]) != minor(self.to)]
        changed = sum(levels[broker] != self.levels_before[broker] for broker in due)
        what = f"brokers whose highest supported {METADATA_VERSION}, read over Kafka's protocol, has changed"
        return Witness(what, len(due), changed, "brokers", len(levels), ok=changed == len(due) and self.returned > 0)

    async def _supported_levels(self) -> dict[BrokerId, int]:
        read = partial(supported_metadata_levels, self.context)
        return await retry_refused(read, self.context.clock, READ_DEADLINE_MS)


class RollingUpgrade(RollingFault):
    """Replace all nodes by nodes of another Kafka version, one after the other."""

    band = Band("#0b7a75", "rolling upgrade")
    proof = (
        "Nodes went down and came back, one at a time. Each process logs the new Kafka version, and brokers offer the "
        "feature levels of that version."
    )
    remedy = (
        "With `for`, or if the upgrade is interrupted, each node runs its old version again. After `finalize` no node "
        "can return to the old version, so every node is started in the new version."
    )
    permanent_effect = "Without `for`, nodes stay at the new version. With `finalize`, `metadata.version` stays raised."
    for_rule = "optional"
    allowance_ms = 120_000  # for each node 6-12 s there, and as long back

    kind: Literal["rolling_upgrade"] = "rolling_upgrade"
    to: Annotated[str, Field(pattern=f"^{RELEASE}$", description="a Kafka version, like 4.3.1")]
    finalize: Annotated[bool, Field(description="raise metadata.version after the upgrade of all nodes")] = False

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
        if plan.cluster and plan.cluster.image:
            sentence = "`rolling_upgrade` replaces Kafka's own images: use `kafka` in the place of `image`"
            yield Problem(("kind",), sentence)
        launched = plan.cluster.kafka if plan.cluster else "default"
        if launched != "default" and minor(self.to) < minor(launched):
            message = (
                f"Kafka {self.to} can't read the metadata of a cluster that Kafka {launched} formats: launch the "
                f"cluster with `kafka: {self.to}`, or upgrade to a later version than {launched}"
            )
            yield Problem(("to",), message)

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
    """Return the highest ``metadata.version`` that each broker supports."""
    brokers = sorted(brokers_of(context.world))
    return {broker: (await context.world.supported_features(broker))[METADATA_VERSION] for broker in brokers}

"""A cluster for cases, with the probe's topic; and the run of one case on it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.runtime.record import Entry
from aftershock.faults.runtime.undo import CLOCK_ERROR_MS_MAX
from aftershock.faults.sections.cluster import BlockDevice, Disks, Kubernetes
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.world import World
from aftershock.faults.timeline.executor import execute
from aftershock.harness.adhoc.inject import single_fault_timeline
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.cluster import read_place, remove_run
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.lifecycle import launch_kubernetes
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.world.world import world_of
from aftershock.tests.chaos.kinds.case import Case, Line, Observation
from aftershock.tests.chaos.kinds.crew import at_work
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC, Probe

CLUSTERS: dict[str, ClusterPlan] = {
    "plain": ClusterPlan(),
    "isolated": ClusterPlan(controllers=3),
    "older": ClusterPlan(kafka="4.1.2"),
    "proxied": ClusterPlan(wire_proxy=True),
    "bounded": ClusterPlan(disks=Disks()),
    "doubled": ClusterPlan(disks=Disks(count=2)),
    "devices": ClusterPlan(block_device=BlockDevice(layer=True)),
    "clocks": ClusterPlan(clocks=True),
    "packets": ClusterPlan(packets=True),
    "hosts": ClusterPlan(hosts=True),
    "gc": ClusterPlan(gc_pauses=True),
    "pods": ClusterPlan(wire_proxy=True, kubernetes=Kubernetes(nodes=True)),
    # Has everything that the kinds of the smoke tier need, so that they share one cluster.
    "smoke": ClusterPlan(wire_proxy=True, clocks=True),
}
REHEARSED_MS = 2_000
_SEEN_AFTER_S = 2.5
_IN_SYNC_S = 60.0


@dataclass
class Book:
    """A journal in memory."""

    clock: RunClock
    lines: list[Line] = field(default_factory=list)

    def record(self, entry: Entry) -> None:
        self.lines.append(Line(self.clock.now_us(), entry))


@dataclass(frozen=True)
class Stand:
    """A cluster as faults and clients see it."""

    cluster: Cluster
    world: World
    clock: RunClock
    home: Path

    async def prepare(self, case: Case) -> None:
        """Run the case's preparation."""
        if case.before is not None:
            await case.before(self)

    async def clear_up(self, case: Case) -> None:
        """Revert the case's preparation."""
        if case.after is not None:
            await case.after(self)

    async def rehearse(self, case: Case) -> Observation:
        """Run the fault without inject."""
        fault = case.fault()
        short = {"for_": min(fault.for_, REHEARSED_MS)} if fault.for_ else {}
        async with at_work(self, case.crew):
            return Observation(self, await self._played(fault.model_copy(update=short), rehearse=True), ())

    async def play(self, case: Case) -> Observation:
        """Run the fault from inject to heal under the probe's load, with a moment before and after."""
        probe = Probe(self.cluster.bootstrap("a"), self.clock, case.record_bytes)
        with probe.sending():
            async with at_work(self, case.crew) as work:
                await asyncio.to_thread(_await_flow, probe)
                lines = await self._played(case.fault(), rehearse=False)
                await asyncio.sleep(_SEEN_AFTER_S)
        return Observation(self, lines, sorted(probe.acks, key=lambda ack: ack.sent_us), work)

    async def broken(self) -> dict[str, Any]:
        """Return the current state of everything that a heal must restore."""
        world, spec = self.world, self.cluster.spec
        nodes = sorted(world.racks())
        brokers = spec.topology.broker_ids
        errors_ms = [await world.clock_error_ms(broker) for broker in brokers] if spec.clocks else []
        return {
            "clocks": [abs(error_ms) < CLOCK_ERROR_MS_MAX for error_ms in errors_ms],
            "packets": self.cluster.packets.rules() if spec.packets else "",
            "gc_pauses": [await world.gc_pauses_set(broker) for broker in brokers] if spec.gc_pauses else [],
            "states": [await world.state(node) for node in nodes],
            "toxics": {proxy: toxics for proxy, toxics in (await world.toxics()).items() if toxics},
            "disabled": await world.disabled(),
            "rules": await world.rules() if self.cluster.wire_proxy else None,
            "upstreams": await world.upstreams(),
            "limits": [await world.limits(node) for node in nodes],
            "settings": [await self._dynamic("broker", str(broker)) for broker in brokers],
            "topic": await self._dynamic("topic", TOPIC),
            "replicas": [state.replicas for state in await world.partitions([TOPIC])],
            "writable": [[each.writable for each in await world.log_dirs(broker)] for broker in nodes],
        }

    async def _dynamic(self, of: Any, name: str) -> dict[str, str]:
        config = await self.world.config(of, name)
        return {key: setting.dynamic for key, setting in config.items() if setting.dynamic is not None}

    async def _played(self, fault: Fault, *, rehearse: bool) -> list[Line]:
        book = Book(self.clock)
        await execute(single_fault_timeline(fault, 7), self.world, book, self.clock, print, rehearse=rehearse)
        return book.lines

    def await_in_sync(self) -> None:
        """Raise ClusterError unless every broker returns to every ISR."""
        self.cluster.await_in_sync(_IN_SYNC_S)


@contextmanager
def standing(name: str, home: Path) -> Iterator[Stand]:
    """Run a cluster of that name until the block ends."""
    # a killed test leaves its networks: another one of the same name must not be ambiguous
    spec, run_id = ClusterSpec.of(CLUSTERS[name]), f"test-{home.name.lower()}-{os.getpid()}"
    with _launched(spec, run_id, home) as cluster:
        cluster.admin.create_topic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": "2"})
        cluster.await_in_sync(_IN_SYNC_S, [TOPIC])
        yield Stand(cluster, world_of(cluster), RunClock.starting_now(), home)


@contextmanager
def _launched(spec: ClusterSpec, run_id: str, home: Path) -> Iterator[Cluster]:
    if spec.kubernetes:
        api = Api()
        try:
            images = launch_kubernetes.images_for(api, spec)
            with closing(launch_kubernetes.launch(spec, run_id, home, images, api, print)) as cluster:
                yield cluster
        finally:
            if place := read_place(home):
                remove_run(Api(), place)
        return
    client = engine.connect()
    try:
        with closing(launch(spec, run_id, home, images_for(client, spec, print), print)) as cluster:
            yield cluster
    finally:
        ownership.remove_run(client, run_id)


class Stands:
    """One cluster at a time, kept for the next case with the same cluster; a cluster on which a case failed is not
    reused.
    """

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._there: tuple[str, Stand] | None = None

    @contextmanager
    def on(self, name: str) -> Iterator[Stand]:
        """Return the cluster of that name."""
        if self._there is None or self._there[0] != name:
            self.close()
            self._there = (name, self._open.enter_context(standing(name, self._folder(f"kinds-{name}"))))
        try:
            yield self._there[1]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the running cluster."""
        self._there = None
        self._open.close()


def _await_flow(probe: Probe) -> None:
    """Wait until the probe has had acknowledgements, and no failure, for a while."""
    began_us = probe.clock.now_us()

    def lacking() -> str:
        recent = [ack for ack in probe.acks if ack.sent_us > began_us][-100:]
        flowing = len(recent) == 100 and all(ack.error is None for ack in recent)
        return "" if flowing else f"{len(recent)} of 100 records"

    assert not still_lacking(lacking, 30.0)

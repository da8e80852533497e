"""One fault on a kept cluster, by hand: journalled, witnessed and healed as in a run.

::

    words ─▶ fault, checked ─▶ its id claimed ─▶ watchdog ─▶ executor ─▶ result

Ctrl-C, SIGTERM and a closed terminal heal at once; when this process is killed, the watchdog heals.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import docker

from aftershock.errors import FaultError
from aftershock.faults.by_hand import spoken
from aftershock.faults.compile import step_of
from aftershock.faults.executor import Say, execute
from aftershock.faults.fault import Fault, Scene
from aftershock.faults.plan import Topic
from aftershock.faults.record import Clock
from aftershock.faults.survival import Standing, survival
from aftershock.faults.timeline import Timeline, TimelineTiming
from aftershock.faults.values import PartitionState
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently
from aftershock.faults.world import World
from aftershock.harness import labels
from aftershock.harness.adhoc.aftermath import Outcome, left_s, outcome, stage
from aftershock.harness.adhoc.claims import SharedJournal, claim, free_id
from aftershock.harness.adhoc.kept import attached, clock_of, how_to_heal, the_one
from aftershock.harness.adhoc.live_faults import where
from aftershock.harness.cluster import Cluster
from aftershock.harness.progress import Progress, Status
from aftershock.harness.rundir import RunDir
from aftershock.harness.watchdog import watch
from aftershock.harness.world import ClusterWorld

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Wish:
    """What was asked for: ``KIND key=value … --for lasting``, its choices drawn from ``seed``."""

    kind: str
    pairs: Sequence[str]
    lasting: str | None
    seed: int


def inject(client: docker.DockerClient, run_id: str | None, wish: Wish, progress: Progress) -> Outcome:
    """Inject one fault into the kept cluster and heal it when its time is over, or when told to stop.

    Raises:
        ClusterError: there is no such cluster, or not all of it is left.
        PlanError: the words are wrong.
        FaultError: it could not be injected, or not be healed; the text says which.
    """
    standing = the_one(client, run_id)
    with attached(client, standing) as cluster:
        home, clock = RunDir.open(standing.home), clock_of(standing.home)
        fault, topics = _understood(cluster, wish, progress.say)
        fault = claim(home, fault, [topic.model_dump(exclude={"config"}) for topic in topics], clock.now_us())
        watch(labels.owner(), standing.run_id, standing.home)
        with closing(SharedJournal(home, clock, progress.say)) as journal:
            return carry_out(fault, wish.seed, ClusterWorld(cluster), journal, clock, progress)


def dry_run(client: docker.DockerClient, run_id: str | None, wish: Wish, say: Say) -> str:
    """What the fault would hit now, how it would be undone and witnessed; nothing is touched.

    Raises what `inject` raises before it begins.
    """
    standing = the_one(client, run_id)
    with attached(client, standing) as cluster:
        home, clock = RunDir.open(standing.home), clock_of(standing.home)
        fault, _ = _understood(cluster, wish, say)
        fault = fault.model_copy(update={"id": free_id(home.path, fault.kind)})
        with closing(SharedJournal(home, clock, say)) as journal:
            return asyncio.run(_aimed(fault, wish.seed, ClusterWorld(cluster), journal, clock))


def carry_out(
    fault: Fault, seed: int, world: World, journal: SharedJournal, clock: Clock, progress: Progress
) -> Outcome:
    """Walk the fault to its end on any cluster, showing how it goes. FaultError as in `inject`."""
    began_us = clock.now_us()

    def status() -> Status:
        left = left_s(journal.lines, fault.for_, clock.now_us())
        remaining = [] if left is None else [f"{left:.0f} s left"]
        return Status(stage(journal.lines), (clock.now_us() - began_us) / 1e6, remaining, ())

    async def play() -> bool:
        async with progress.following(status):
            return await _to_its_end(execute(alone(fault, seed), world, journal, clock, progress.say), progress.say)

    try:
        stopped = asyncio.run(play())
    except FaultError as error:
        if journal.open_faults():
            error.add_note(f"heal it with: {how_to_heal(journal.cluster)}")
        raise
    return outcome(str(fault.id), journal.lines, stopped=stopped, meanwhile=journal.in_force())


async def _to_its_end(work: Coroutine[Any, Any, None], say: Say) -> bool:
    """Await it; a signal cancels it, which heals, and only its end ends it. Whether there was such a signal."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        say("healing at once; a few seconds more")
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return False


async def _aimed(fault: Fault, seed: int, world: World, journal: SharedJournal, clock: Clock) -> str:
    """The targets, undo and witness of the fault if it were injected now. FaultError if there is nobody to hit."""
    step = step_of(fault, seed)
    scene = Scene(world, clock, step.id)
    strike = await patiently(lambda: fault.aim(scene, step.draws), clock, READ_DEADLINE_MS)
    standing = await patiently(lambda: _standing(world), clock, READ_DEADLINE_MS)
    targets = strike.targets.as_json()
    fight = journal.fight(fault.kind, strike.targets)
    rows = {
        "targets": where(targets),
        "roles": json.dumps(targets["roles"]),
        "undo": f"{strike.undo.verb} {json.dumps(dict(strike.undo.args))}",
        "witness": fault.proof,
        "heal": fault.remedy,
        "survival": "; ".join(survival(fault.takes(), strike.targets, standing)),
        **({"refused": fight} if fight else {}),
    }
    return "\n".join(
        [f"{fault.kind}, if it were injected now:", *(f"  {name:<9}{text}" for name, text in rows.items())]
    )


async def _standing(world: World) -> Standing:
    """What the cluster stands on now; a topic's ``min.insync.replicas`` is asked of Kafka, whoever set it."""
    states = await world.partitions()
    in_sync_min = {}
    for topic in sorted({state.topic for state in states}):
        setting = (await world.config("topic", topic)).get("min.insync.replicas")
        in_sync_min[topic] = int(setting.value) if setting and setting.value else 1
    return Standing(world.racks(), frozenset(await world.quorum_lag()), states, in_sync_min)


def _understood(cluster: Cluster, wish: Wish, say: Say) -> tuple[Fault, list[Topic]]:
    """The fault, and the topics that are on the cluster now."""
    topics = topics_of(cluster.admin.partitions())
    found = spoken(wish.kind, wish.pairs, wish.lasting, cluster.spec.as_plan(), topics, f"{wish.kind}-1")
    for warning in found.warnings:
        say(f"warning: {warning}")
    return found.fault, topics


def topics_of(partitions: Sequence[PartitionState]) -> list[Topic]:
    """The topics that these partitions are of, Kafka's internal ones left out."""
    counts = Counter(state.topic for state in partitions)
    replicas = {state.topic: len(state.replicas) for state in partitions}
    # not validated: what stands on a cluster may be larger than what a plan may ask for
    return [
        Topic.model_construct(name=name, partitions=count, replication=replicas[name])
        for name, count in counts.items()
        if not name.startswith("__")
    ]


def alone(fault: Fault, seed: int) -> Timeline:
    """A timeline of this fault alone, at once."""
    steps, timing = (step_of(fault, seed),), TimelineTiming(0, 0, 0, 0, 0)
    return Timeline("inject", "", "the command line", seed, {}, (), (), timing, steps, length_ms=0, slo=())

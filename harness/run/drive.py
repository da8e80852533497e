"""Live part of a run, before judging: clients start, faults are injected, and the final logs are read.

`docs/DESIGN.md` lists the metrics that are recorded during a run. The phases of the load are in ``live_run.py``.
"""

import asyncio
import errno
import gc
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NoReturn

from aftershock.errors import AftershockError, EvidenceError, FaultError, PlanError, WorkloadError
from aftershock.faults.runtime.record import Clock
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.targets.world import ClientControl, Linked
from aftershock.faults.timeline.timeline import Objective
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import (
    RunContext,
    assignments,
    has_service_containers,
    hosts_of,
    java_command,
)
from aftershock.harness.cluster.target import Target
from aftershock.harness.lifecycle.heal import defer_interrupts
from aftershock.harness.run.hosts import ClientHosts, Place, hosting
from aftershock.harness.run.job import Job
from aftershock.harness.run.leaders import LeaderRecorder
from aftershock.harness.run.live_run import LiveRun, observes, race
from aftershock.harness.run.pipes import JOIN_S, GroupRecorder, in_turn
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.recording import Sampler, keep_saving
from aftershock.harness.run.stable_offsets import StableOffsetRecorder, recorded_topics
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world.client_processes import ClientProcesses, note_elsewhere, spool_for
from aftershock.harness.world.world import world_of
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.transactions import STABLE_OFFSETS
from aftershock.results.slo import Measure, parse
from aftershock.workloads.load.assignment import Assignment, ConsumeAssignment, PipeAssignment
from aftershock.workloads.load.events import Ticker
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.process import Death

TIMERS, TIMER_US = 100, 5_000
PROBES = 3
GROUPS_DEADLINE_MS = 60_000
_START_DEADLINE_S, _START_DEADLINE_S_EACH = 30.0, 1.0  # a JVM needs a second of a core to start


def drive_on(job: Job, cluster: Target, home: RunDir, cluster_facts: Mapping[str, Any], progress: Progress) -> None:
    """Run a compiled plan on a ready cluster; call within ``with record_outcome(...)``.

    ``cluster_facts`` are added to ``run.json`` before the first record is sent. Raises PlanError, before any record is
    sent, if an SLO's threshold is below the timing noise of the host; otherwise the errors of `run.perform`.
    """
    write_whole(home.path / "plan.yaml", job.checked.text)
    write_whole(home.path / "timeline.json", job.timeline.to_json().decode())
    java: tuple[str, ...] = ()
    labels = ownership.labels_of(home.run_id, home.path, keep=False)
    if job.has_java_clients:
        kafka = cluster_facts["versions"].get("kafka", engine.DEFAULT_KAFKA)
        image = engine.java_client_image(engine.connect(), kafka, progress.log)
        java = java_command(image.name, labels)
    images = job.service_images(progress.log)
    programs = job.programs(progress.log)
    clock = RunClock.starting_now()
    plan_file = str(job.file) if job.file else None
    origin_unix_us = time.time_ns() // 1000 - clock.now_us()
    times = {"origin_ns": clock.origin_ns, "origin_unix_us": origin_unix_us}
    home.update(plan_file=plan_file, rehearse=job.rehearse, **times, **cluster_facts)
    spool = spool_for(home.run_id, home.path)
    try:
        with hosting(job.timeline, cluster, spool.path) as places:
            asyncio.run(
                _run_load(job, cluster, home, spool.path, clock, progress, java, programs, labels, images, places)
            )
    except AftershockError as error:
        for sentence in cluster.exits():
            error.add_note(sentence)
        raise
    finally:
        with defer_interrupts(progress.log):
            spool.salvage()
            if has_service_containers(job.timeline):
                ownership.remove_services(engine.connect(), home.run_id)


async def _run_load(
    job: Job,
    cluster: Target,
    home: RunDir,
    spool: Path,
    clock: RunClock,
    progress: Progress,
    java: tuple[str, ...],
    programs: Mapping[tuple[str, str], tuple[str, ...]],
    labels: Mapping[str, str],
    images: Mapping[str, str],
    places: Mapping[str, Place],
) -> None:
    """Run the load and the faults, and write the evidence to the run directory ``home``.

    The clients write their rows to the folder ``spool`` in shared memory. ``java`` is the command that starts Kafka's
    own Java client; empty if no arm uses the Java client. ``programs`` has the command of each client with a version.
    ``labels`` mark the containers of services, ``images`` has their images by the names in the plan. ``places`` are
    those of further hosts.
    """
    timeline = job.timeline
    topics, begin = await asyncio.to_thread(cluster.provide, timeline.topics)
    events = home.path / "events.jsonl"
    context = RunContext(
        *(home.run_id, clock.origin_ns, spool, events, topics, cluster.broker_racks, begin, java),
        programs,
        labels,
        images,
        own_bootstrap=any(step.kind == "lose_bootstrap" for step in timeline.steps),
    )
    clients = assignments(timeline, cluster, context)
    transactional = recorded_topics(timeline)
    replicas: dict[str, dict[int, list[int]]] = {}
    for state in cluster.admin.partitions(list(topics)):
        replicas.setdefault(state.topic, {})[state.partition] = list(state.replicas)
    home.update(
        producers=[
            {"producer_id": client.producer_id, "workload": client.workload, "arm": client.arm}
            for client in clients
            if client.op == "produce"
        ],
        topics=[asdict(topic) | {"assignment": replicas.get(topic.name, {})} for topic in topics.values()],
        voters=list(cluster.voters),
        **({STABLE_OFFSETS: transactional} if transactional else {}),
        **cluster.describe(),
    )
    world = world_of(cluster, ClientProcesses(home.run_id, spool))
    await calibrate(home, timeline.slo, world, clock)
    journal = Journal(home.path / "journal.jsonl", clock, cluster.keep_line)

    def died(client: Assignment, death: Death) -> None:
        run.record_death(client, death)

    hosts = ClientHosts(hosts_of(timeline, clients), places, home, clock)
    spawns = hosts.spawns
    for client in clients:
        if client.worker in spawns:
            note_elsewhere(spool, client)
    fleet = Fleet(clients, home.path / "logs", died, spawns)
    leaders = LeaderRecorder(cluster, timeline, home, clock)
    groups = GroupRecorder(cluster, timeline, home, clock, spool)
    if cluster.wire_proxy is not None:
        cluster.wire_proxy.observe(on=observes(timeline))
    run = LiveRun(
        *(timeline, cluster, world, home, clock, progress, fleet, journal, tuple(topics.values())), begin, leaders
    )

    async def load() -> None:
        async with progress.following(run.status):
            turns = in_turn(timeline)
            limit_s = (
                _START_DEADLINE_S + _START_DEADLINE_S_EACH * len(clients) + JOIN_S * max(map(len, turns), default=0)
            )
            await fleet.start(limit_s, turns, groups.joined)
            run.record_reports()
            await race(_watch_processes(fleet, cluster), complete_groups(clients, world, clock, fleet))
            await race(_watch_processes(fleet, cluster), run.play(rehearse=job.rehearse))
            await run.close()

    ticker = Ticker(clock.now_us, lambda event, **details: home.event(clock.now_us(), event, **details))
    try:
        # Python collects cycles when a quarter of all objects is new, so without the objects of the imports soon enough
        gc.collect()
        gc.freeze()
        gc.collect()
        with ticker:
            sampler = Sampler(home.path / "metrics", clock, lambda: run.counters() + hosts.readings())
            stable = StableOffsetRecorder(cluster, transactional, clock, sampler.add)
            async with sampler, leaders, groups, stable, hosts, fleet:
                await race(keep_saving(home.path, spool, sampler, run.saved, hosts.save), load())
    finally:
        gc.unfreeze()
        journal.close()


@dataclass(frozen=True)
class Noise:
    """Timing noise of the host, the 90th percentile of timer delays, and the median round trip over client links."""

    timer_late_ms: float
    timers: int
    probe_ms: float | None
    probes: int


async def calibrate(home: RunDir, objectives: Iterable[Objective], world: Linked, clock: Clock) -> None:
    """Measure and record the timing noise of the host, before the load starts.

    Raises PlanError if an SLO on latency has a threshold below the measured noise.
    """
    late_ms = []
    for _ in range(TIMERS):
        due_us = clock.now_us() + TIMER_US
        await clock.sleep_until_us(due_us)
        late_ms.append((clock.now_us() - due_us) / 1000)
    links = [link for link in world.links() if link.channel == "client"]
    probes_ms = []
    for _ in range(PROBES):
        for result in await asyncio.gather(*map(world.probe_ms, links), return_exceptions=True):
            if isinstance(result, BaseException):
                if not isinstance(result, FaultError):  # FaultError: a probe without an answer
                    raise result
            else:
                probes_ms.append(result)
    probe_ms = round(median(probes_ms), 3) if probes_ms else None
    noise = Noise(round(quantiles(late_ms, n=10)[-1], 3), TIMERS, probe_ms, len(probes_ms))
    home.update(calibration=asdict(noise))
    if problems := list(unmeasurable_slos(objectives, noise)):
        raise PlanError(problems)


def unmeasurable_slos(objectives: Iterable[Objective], noise: Noise) -> Iterable[str]:
    """Yield an error message for each SLO on latency whose threshold is below the timing noise of the host."""
    for objective in objectives:
        slo = parse(objective.text)
        limit_us = slo.threshold_us if isinstance(slo, Measure) and slo.of.about.confident else None
        if limit_us is not None and limit_us < noise.timer_late_ms * 1000:
            problem = f"this host's timers are {noise.timer_late_ms:g} ms late, so it can't measure `{objective.text}`"
            yield f"{objective.at}: {problem}; raise the threshold of the SLO, or stop other work on the host"


async def complete_groups(
    clients: Iterable[Assignment], world: ClientControl, clock: Clock, fleet: Fleet | None = None
) -> None:
    """Wait until each group of several members, and of a service, has all members, and they own all partitions.

    The coordinators are asked, because a member without a partition can't tell whether the group is complete. Members
    that have ended by themselves are not waited for. Raises WorkloadError after ``GROUPS_DEADLINE_MS``.
    """
    groups: dict[str, list[ConsumeAssignment | PipeAssignment]] = {}
    for client in clients:
        if not isinstance(client, ConsumeAssignment | PipeAssignment) or not client.group:
            continue
        if not client.reserve and (isinstance(client, PipeAssignment) or client.members > 1):
            groups.setdefault(client.group, []).append(client)

    async def missing() -> str | None:
        for group, planned in groups.items():
            members = [member for member in planned if fleet is None or member.worker not in fleet.dead]
            if not members:
                continue
            present = await world.group_members(members[0].worker)
            if isinstance(members[0], PipeAssignment):  # a service has names of its own
                if len(present) < len(members):
                    which = "is that the `group` that the service uses?"
                    return f"the group {group} has {len(present)} members of {len(members)} processes: {which}"
            elif absent := sorted({member.worker for member in members} - {member.client for member in present}):
                return f"{len(absent)} of {len(members)} members of the group {group} are missing, {absent[0]} first"
            # another workload in the same group, and a pattern, may bring partitions of further topics
            due = {place for member in planned for place in member.places}
            owned = due.intersection(place for member in present for place in member.partitions)
            if len(owned) < len(due):
                return f"the members of the group {group} own {len(owned)} of {len(due)} partitions"
        return None

    try:
        await wait_until(missing, clock, GROUPS_DEADLINE_MS)
    except FaultError as error:
        raise WorkloadError(f"{error}; look at the logs of the group's members, logs/<client>.log") from error


async def _watch_processes(fleet: Fleet, cluster: Target) -> NoReturn:
    """Raise an error as soon as the wire proxy ends, or a client ends unexpectedly."""
    if cluster.wire_proxy is None:
        await fleet.watch()
    else:
        await race(fleet.watch(), cluster.wire_proxy.watch())


@contextmanager
def record_outcome(home: RunDir, progress: Progress) -> Iterator[None]:
    """Write the run's status to ``run.json`` after the ``with`` block; add the run directory to an error message.

    The ``with`` block must start as soon as the run directory exists; otherwise the status of an interrupted run would
    stay ``running``.
    """
    try:
        yield
        home.update(status="complete")
        home.seal()
    except KeyboardInterrupt:
        home.update(status="interrupted", why="interrupted")
        progress.log(f"interrupted; the clean-up is complete, and the evidence so far is stored\nrun: {home.path}")
        raise
    except Exception as error:
        known = error if isinstance(error, AftershockError) else engine.engine_error(error) or _file_error(error, home)
        # if the run directory is not writable, run.json stays at "running", and there is no manifest
        with suppress(OSError):
            home.update(status="failed", why=str(known) if known else repr(error))
        (known or error).add_note(f"run: {home.path}")
        if known and known is not error:
            raise known from error
        raise


def _file_error(error: Exception, home: RunDir) -> EvidenceError | None:
    """Return the EvidenceError for an error of the file system; None for another error, such as of a connection."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EvidenceError(
            f"can't write evidence to {home.path}: {error.strerror}; free disk space, or choose another --out"
        )
    if error.filename is not None or error.errno in (errno.EIO, errno.EROFS):
        path = error.filename or home.path
        return EvidenceError(f"can't read or write {path}: {error.strerror}; correct this, or choose another --out")
    return None

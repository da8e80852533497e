"""Injection of a fault by hand into a kept cluster, with journal, witness and heal as in a run.

Ctrl-C, SIGTERM and a closed terminal heal the fault at once; if the injecting process is killed, the watchdog heals the
fault. Several processes may inject faults into one cluster at the same time, if the faults have different targets.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import FaultError, Log
from aftershock.faults.kinds.fault import Fault, Impact, InjectionContext
from aftershock.faults.plan.command_line import parse_inject
from aftershock.faults.plan.conflicts import conflict_in_force
from aftershock.faults.runtime.record import Clock, Entry, Targets
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused
from aftershock.faults.sections.workloads import Topic
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.faults.targets.world import World
from aftershock.faults.timeline.compile import step_of
from aftershock.faults.timeline.executor import execute
from aftershock.faults.timeline.from_run import EVENT
from aftershock.faults.timeline.timeline import Timeline, TimelineTiming
from aftershock.harness.adhoc.kept import (
    clock_of,
    connect,
    describe_targets,
    heal_command,
    live_faults,
    refuse_in_run,
    resolve,
)
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.lifecycle.watchdog import watch
from aftershock.harness.run.progress import Progress, Status
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Journal, Line, read_journal
from aftershock.harness.safety.lease import Lock, hold
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world.world import ClusterWorld
from aftershock.results.evidence.files import read_json, read_lines

WITNESSED, NOT_WITNESSED, INTERRUPTED = 0, 2, 130  # exit codes
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Request:
    """Arguments of ``aftershock inject KIND key=value … --for duration --seed seed``."""

    kind: str
    pairs: Sequence[str]
    duration: str | None
    seed: int


@dataclass(frozen=True)
class Outcome:
    text: str
    exit_code: int


def inject(client: docker.DockerClient, run_id: str | None, request: Request, progress: Progress) -> Outcome:
    """Inject a fault into a kept cluster, and heal the fault at the end of its time or after a signal.

    Raises ClusterError if the cluster or a part of the cluster is missing, PlanError if the request is invalid, and
    FaultError if the fault could not be injected or healed.
    """
    kept_cluster = resolve(client, run_id)
    refuse_in_run(kept_cluster)
    with connect(client, kept_cluster) as cluster:
        home, clock = RunDir.open(kept_cluster.home), clock_of(kept_cluster.home)
        fault, topics = _parse(cluster, request, progress.log)
        fault = claim(home, fault, [topic.model_dump(exclude={"config"}) for topic in topics], clock.now_us())
        watch(ownership.owner(), kept_cluster.run_id, kept_cluster.home)
        try:
            with closing(SharedJournal(home, clock, progress.log)) as journal:
                return carry_out(fault, request.seed, ClusterWorld(cluster), journal, clock, progress)
        finally:
            home.reseal("journal.jsonl", "events.jsonl")


def dry_run(client: docker.DockerClient, run_id: str | None, request: Request, log: Log) -> str:
    """Describe targets, undo and witness of a fault without an injection; raise the same errors as `inject`."""
    kept_cluster = resolve(client, run_id)
    with connect(client, kept_cluster) as cluster:
        home, clock = RunDir.open(kept_cluster.home), clock_of(kept_cluster.home)
        fault, _ = _parse(cluster, request, log)
        fault = fault.model_copy(update={"id": free_id(home.path, fault.kind)})
        with closing(SharedJournal(home, clock, log)) as journal:
            return asyncio.run(preview(fault, request.seed, ClusterWorld(cluster), journal, clock))


def _parse(cluster: Cluster, request: Request, log: Log) -> tuple[Fault, list[Topic]]:
    topics = topics_of(cluster.admin.partitions())
    parsed = parse_inject(
        request.kind, request.pairs, request.duration, cluster.spec.as_plan(), topics, f"{request.kind}-1"
    )
    for warning in parsed.warnings:
        log(f"warning: {warning}")
    return parsed.fault, topics


def topics_of(partitions: Sequence[PartitionState]) -> list[Topic]:
    """Return the topics that ``partitions`` belong to, without Kafka's internal topics."""
    counts = Counter(state.topic for state in partitions)
    replicas = {state.topic: len(state.replicas) for state in partitions}
    # without validation: a topic of a cluster may exceed the limits of a plan
    return [
        Topic.model_construct(name=name, partitions=count, replication=replicas[name])
        for name, count in counts.items()
        if not name.startswith("__")
    ]


def carry_out(
    fault: Fault, seed: int, world: World, journal: "SharedJournal", clock: Clock, progress: Progress
) -> Outcome:
    """Inject a fault, show the progress, and heal the fault; raise FaultError as `inject` does.

    A signal (such as Ctrl-C) heals the fault at once; further signals do not interrupt the healing.
    """
    began_us = clock.now_us()

    def status() -> Status:
        time_left_s = remaining_s(journal.lines, fault.for_, clock.now_us())
        remaining = [] if time_left_s is None else [f"{time_left_s:.0f} s left"]
        return Status(journal_state(journal.lines), (clock.now_us() - began_us) / 1e6, remaining, ())

    async def run_until_signal() -> bool:
        timeline, loop = single_fault_timeline(fault, seed), asyncio.get_running_loop()
        async with progress.following(status):
            work = asyncio.ensure_future(execute(timeline, world, journal, clock, progress.log))

            def stop() -> None:
                progress.log("stopped by a signal: healing the fault, which takes a few seconds")
                work.cancel()

            for number in _SIGNALS:
                loop.add_signal_handler(number, stop)
            try:
                await work
            except asyncio.CancelledError:
                return True
            finally:
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
            return False

    try:
        stopped = asyncio.run(run_until_signal())
    except FaultError as error:
        if journal.open_faults():
            error.add_note(f"heal the fault with: {heal_command(journal.cluster)}")
        raise
    return outcome(str(fault.id), journal.lines, stopped=stopped, other_faults=journal.in_force())


def single_fault_timeline(fault: Fault, seed: int) -> Timeline:
    steps, timing = (step_of(fault, seed),), TimelineTiming(0, 0, 0, 0, 0)
    return Timeline("inject", "", "the command line", seed, {}, (), (), timing, steps, length_ms=0, slo=())


async def preview(fault: Fault, seed: int, world: World, journal: "SharedJournal", clock: Clock) -> str:
    """Describe the effects that an injection would have now; raise FaultError if the fault has no target."""
    step = step_of(fault, seed)
    context = InjectionContext(world, clock, step.id)
    injection = await retry_refused(lambda: fault.resolve_targets(context, step.draws), clock, READ_DEADLINE_MS)
    state = await retry_refused(lambda: _cluster_state(world), clock, READ_DEADLINE_MS)
    targets = injection.targets.as_json()
    conflict = journal.conflict(fault.kind, injection.targets)
    rows = {
        "targets": describe_targets(targets),
        "roles": json.dumps(targets["roles"]),
        "undo": f"{injection.undo.verb} {json.dumps(dict(injection.undo.args))}",
        "witness": fault.proof,
        "heal": fault.remedy,
        "survival": "; ".join(survival(fault.impact(), injection.targets, state)),
        **({"refused": conflict} if conflict else {}),
    }
    return "\n".join(
        [f"{fault.kind}, if it were injected now:", *(f"  {name:<9}{text}" for name, text in rows.items())]
    )


def outcome(fault: str, lines: Sequence[Line], *, stopped: bool, other_faults: str = "") -> Outcome:
    """Return the result of an injection whose fault has ended; ``lines`` are the fault's lines in the journal.

    ``stopped`` is True if a signal ended the fault early. Raises FaultError if the fault could not be injected or did
    not stay in force; the error includes ``other_faults``, a clause about other faults in force.
    """
    failed = next((line for line in lines if line["state"] == "failed"), None)
    if failed:
        raise FaultError("; ".join(filter(None, (f"{fault} failed: {failed['why']}", other_faults))))
    if not lines:
        return Outcome(f"the injection of {fault} was stopped before it changed anything", INTERRUPTED)
    witnesses = [line["witness"] for line in lines if "witness" in line]
    failing = next((witness for witness in witnesses if not witness["ok"]), None)
    if failing:
        figures = f"{failing['observed']:g} of {failing['asked']:g} {failing['unit']}"
        result, code = f"NOT witnessed ({failing['what']}: {figures})", NOT_WITNESSED
    elif witnesses:
        result, code = "witnessed", WITNESSED
    else:
        result, code = "not witnessed yet", NOT_WITNESSED
    # the end of a fault with an undo is the start of its healing; any other fault ends with its last line
    heal_us = next((line["t_us"] for line in lines if line["state"] == "healing"), None)
    end_us = lines[-1]["t_us"] if heal_us is None else heal_us
    lasted_s = float(end_us - lines[0]["t_us"]) / 1e6
    head = f"{fault}: on {describe_targets(lines[0]['targets'])} for {lasted_s:.1f} s"
    if stopped:
        return Outcome(f"{head}: stopped, {result}, healed", INTERRUPTED)
    return Outcome(f"{head}: {result}, {'done' if heal_us is None else 'healed'}", code)


def journal_state(lines: Sequence[Line]) -> str:
    """Return a fault's id and its last state in the journal; ``resolving targets`` without a line in the journal."""
    return f"{lines[-1]['fault']} {lines[-1]['state']}" if lines else "resolving targets"


def remaining_s(lines: Sequence[Line], duration_ms: int | None, now_us: int) -> float | None:
    """Return the remaining time of a fault in seconds; None if the fault is not in force or has no duration."""
    times: dict[str, int] = {line["state"]: line["t_us"] for line in lines}
    if duration_ms is None or "injected" not in times or "healing" in times:
        return None
    return max(0.0, duration_ms / 1000 - (now_us - times["intended"]) / 1e6)


def claim(home: RunDir, fault: Fault, topics: Sequence[Mapping[str, Any]], now_us: int) -> Fault:
    """Reserve an unused fault id with an event in ``events.jsonl``; return the fault with the reserved id."""
    with _locked(home.path):
        fault = fault.model_copy(update={"id": free_id(home.path, fault.kind)})
        # the fault as a plan describes it, without the planned time
        words = fault.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        words.pop("at", None)
        home.event(now_us, EVENT, fault=words, topics=list(topics))
    return fault


def free_id(home: Path, kind: str) -> str:
    """Return the first fault id ``<kind>-<n>`` that is not in the plan, the events or the journal."""
    events = (line for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT)
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    used = {line["fault"]["id"] for line in events} | {step["id"] for step in planned}
    used |= {line["fault"] for line in read_journal(home / "journal.jsonl")}
    return next(name for number in count(1) if (name := f"{kind}-{number}") not in used)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock file ``inject.lock``; raise FaultError if another process holds the lock for 10 s."""
    lock, deadline_s = Lock(home / "inject.lock"), time.monotonic() + 10

    def check_deadline() -> None:
        if time.monotonic() > deadline_s:
            raise FaultError(
                f"another process, {lock.held_by()}, holds the lock file {lock.path}; wait for that process, or end it"
            )

    with hold(lock, "aftershock inject", check_deadline):
        yield


class SharedJournal(Journal):
    """Journal of a cluster into which several processes may inject faults by hand."""

    def __init__(self, home: RunDir, clock: RunClock, log: Log) -> None:
        self._home = home
        self._log = log
        super().__init__(home.path / "journal.jsonl", clock)

    def record(self, entry: Entry) -> None:
        """Append a line to the journal, and log the first witness that confirms the fault.

        Raises FaultError and appends nothing if the fault conflicts with the target of a fault in force.
        """
        if entry.state != "intended":
            if entry.witness and entry.witness.ok and not any("witness" in line for line in self.lines):
                self._log(f"{entry.fault}: seen: {entry.witness.what}")
            super().record(entry)
            return
        with _locked(self._home.path):
            if conflict := self.conflict(entry.kind, entry.targets):
                raise FaultError(conflict)
            super().record(entry)

    @property
    def cluster(self) -> str:
        return self._home.run_id

    def in_force(self) -> str:
        """Return a clause that lists all faults in force on the cluster; "" without faults."""
        live = live_faults(self._home.path, self._clock.now_us())
        return f"in force now: {'; '.join(fault.describe() for fault in live)}" if live else ""

    def conflict(self, kind: str, targets: Targets) -> str | None:
        """Return an error message if a fault in force conflicts with a new fault on ``targets``; else None."""
        for fault in live_faults(self._home.path, self._clock.now_us()):
            if resource := conflict_in_force(kind, targets.as_json(), fault.kind, fault.targets):
                advice = f"wait for the end of that fault, or heal it with: {heal_command(self.cluster)}"
                return f"{resource} is taken by {fault.describe()}; {advice}"
        return None


@dataclass(frozen=True)
class ClusterState:
    """Current state of a cluster; ``in_sync_min`` is ``min.insync.replicas`` by topic."""

    racks: Mapping[BrokerId, str]
    voters: frozenset[BrokerId]
    partitions: Sequence[PartitionState]
    in_sync_min: Mapping[str, int]


def survival(impact: Impact, targets: Targets, cluster: ClusterState) -> list[str]:
    """Return a sentence for each quorum or ``min.insync.replicas`` requirement that a fault would violate.

    A fault kind with impact ``unknown`` is assumed to stop its nodes and links from serving requests. Lost links from
    clients to brokers are ignored.
    """
    if impact in ("moments", "leaders", "requests", "connections", "quota"):
        return ["a quorum and enough in-sync replicas for acks=all remain: this fault takes away no node and no link"]
    groups = [{node} for node in targets.brokers] if impact == "one node" else [set(targets.brokers)]
    failures: dict[str, None] = {}
    for nodes in groups:
        failures |= dict.fromkeys(_failures(cluster, frozenset(map(BrokerId, nodes)), frozenset(targets.links)))
    survives = ["a quorum and enough in-sync replicas for acks=all remain"]
    if impact == "unknown" and (targets.brokers or targets.links):
        return [f"at worst, if the targets of the fault serve no requests: {text}" for text in failures] or survives
    return list(failures) or survives


def _failures(cluster: ClusterState, nodes: frozenset[BrokerId], links: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each requirement that the loss of ``nodes`` and of ``links`` (proxy names) would violate."""
    racks = cluster.racks

    def is_reachable(channel: str, source: BrokerId, target: BrokerId) -> bool:
        return racks.get(source) == racks.get(target) or f"{channel}_{racks.get(source)}-k{target}" not in links

    # A node is lost as well if it reaches no other voter and, as a voter, is reached by none.
    lost = set(nodes)
    for node in racks if links else ():
        voters = cluster.voters - nodes - {node}
        out = any(is_reachable("controller", node, voter) for voter in voters)
        back = node in cluster.voters and any(is_reachable("controller", voter, node) for voter in voters)
        if voters and not out and not back:
            lost.add(node)
    remaining = cluster.voters - lost
    connected = {
        voter: [
            peer
            for peer in remaining
            if is_reachable("controller", voter, peer) and is_reachable("controller", peer, voter)
        ]
        for voter in remaining
    }
    majority = max(map(len, connected.values()), default=0)
    if 2 * majority <= len(cluster.voters):
        yield f"the metadata quorum would have {majority} of {len(cluster.voters)} voters: no controller"
    by_effect: dict[str, list[str]] = {}
    for state in cluster.partitions:
        alive = [replica for replica in state.isr if replica not in lost]
        leaders = [state.leader] if state.leader in alive else alive
        # in-sync replicas that reach the leader, the leader included
        reaching = [sum(is_reachable("replication", replica, leader) for replica in alive) for leader in leaders]
        needed = cluster.in_sync_min.get(state.topic, 1)
        effect = None
        if not alive:
            effect = "no leader: the fault leaves no in-sync replica of the partition"
        elif max(reaching) < needed:
            effect = (
                f"{max(reaching)} of the {needed} in-sync replicas that acks=all needs, so such producers would stop"
            )
        if effect:
            by_effect.setdefault(effect, []).append(f"{state.topic}/{state.partition}")
    for effect, partitions in by_effect.items():
        more = len(partitions) - 4
        listed = ", ".join(partitions[:4]) + (f" and {more} more" if more > 0 else "")
        yield f"{listed} would have {effect}"


async def _cluster_state(world: World) -> ClusterState:
    """Read the cluster's state; Kafka resolves ``min.insync.replicas`` from topic, broker and default settings."""
    states = await world.partitions()
    in_sync_min = {}
    for topic in sorted({state.topic for state in states}):
        setting = (await world.config("topic", topic)).get("min.insync.replicas")
        in_sync_min[topic] = int(setting.value) if setting and setting.value else 1
    return ClusterState(world.racks(), frozenset(await world.quorum_lag()), states, in_sync_min)

"""What became of a fault that was injected by hand, told from the lines of its journal. Pure.

Several who inject into one cluster at once: each fault has an id of its own, and no two would fight.

Ids are claimed, and a fault's targets compared with those in force, by one process at a time; the claim is the event
that says what was asked for, the comparison ends with the journal's first line of the fault.

One fault on a kept cluster, by hand: journalled, witnessed and healed as in a run.

::

    words ─▶ fault, checked ─▶ its id claimed ─▶ watchdog ─▶ executor ─▶ result

Ctrl-C, SIGTERM and a closed terminal heal at once; when this process is killed, the watchdog heals.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Fault, Scene
from aftershock.faults.plan.command_line import spoken
from aftershock.faults.plan.conflicts import clash
from aftershock.faults.plan.from_run import EVENT
from aftershock.faults.plan.workloads import Topic
from aftershock.faults.runtime.executor import Say, execute
from aftershock.faults.runtime.record import Clock, Entry, Targets
from aftershock.faults.runtime.survival import Standing, survival
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, patiently
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import PartitionState
from aftershock.faults.timeline.compile import step_of
from aftershock.faults.timeline.timeline import Timeline, TimelineTiming
from aftershock.harness.adhoc.kept import attached, clock_of, how_to_heal, live_faults, the_one, where
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.run.progress import Progress, Status
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.journal import Journal, Line, read_journal
from aftershock.harness.safety.lease import Lock
from aftershock.harness.safety.watchdog import watch
from aftershock.harness.world.world import ClusterWorld
from aftershock.results.evidence.files import read_json, read_lines

WITNESSED, NOT_WITNESSED, INTERRUPTED = 0, 2, 130  # exit codes of design 5.1


@dataclass(frozen=True)
class Outcome:
    """One line of text, and the exit code that goes with it."""

    text: str
    exit_code: int


def outcome(fault: str, lines: Sequence[Line], *, stopped: bool, meanwhile: str = "") -> Outcome:
    """The result of one fault that is over.

    Args:
        fault: its id.
        lines: its lines of the journal.
        stopped: somebody ended it before its time.
        meanwhile: what else is in force, as a clause: it may be why nothing could be hit.

    Raises:
        FaultError: it could not be injected, or not be held; the text says why.
    """
    failed = next((line for line in lines if line["state"] == "failed"), None)
    if failed:
        raise FaultError("; ".join(filter(None, (f"{fault} failed: {failed['why']}", meanwhile))))
    if not lines:
        return Outcome(f"{fault}: stopped before anything was touched", INTERRUPTED)
    said, code = _seen(lines)
    head = f"{fault}: on {where(lines[0]['targets'])} for {_lasted_s(lines):.1f} s"
    if stopped:
        return Outcome(f"{head}: stopped, {said}, healed", INTERRUPTED)
    return Outcome(f"{head}: {said}, {_ending(lines)}", code)


def stage(lines: Sequence[Line]) -> str:
    """Where the fault is on its way: ``aiming``, then the last state in the journal."""
    return f"{lines[-1]['fault']} {lines[-1]['state']}" if lines else "aiming"


def left_s(lines: Sequence[Line], lasting_ms: int | None, now_us: int) -> float | None:
    """How long it will still be in force, in s; None where it isn't, or has no end of its own."""
    times: dict[str, int] = {line["state"]: line["t_us"] for line in lines}
    if lasting_ms is None or "injected" not in times or "healing" in times:
        return None
    return max(0.0, lasting_ms / 1000 - (now_us - times["intended"]) / 1e6)


def _seen(lines: Sequence[Line]) -> tuple[str, int]:
    witnesses = [line["witness"] for line in lines if "witness" in line]
    silent = next((witness for witness in witnesses if not witness["ok"]), None)
    if silent:
        figures = f"{silent['observed']:g} of {silent['asked']:g} {silent['unit']}"
        return f"NOT witnessed ({silent['what']}: {figures})", NOT_WITNESSED
    return ("witnessed", WITNESSED) if witnesses else ("not witnessed yet", NOT_WITNESSED)


def _lasted_s(lines: Sequence[Line]) -> float:
    """From the first line to the heal, or to the end of an action that has none."""
    end_us = next((line["t_us"] for line in lines if line["state"] == "healing"), lines[-1]["t_us"])
    return float(end_us - lines[0]["t_us"]) / 1e6


def _ending(lines: Sequence[Line]) -> str:
    return "healed" if any(line["state"] == "healing" for line in lines) else "done"


_LOCK = "inject.lock"
_DEADLINE_S = 10.0  # it is held for some milliseconds
_PERIOD_S = 0.01


def claim(home: RunDir, fault: Fault, topics: Sequence[Mapping[str, Any]], now_us: int) -> Fault:
    """The fault under an id that no other fault of this cluster has or will have, written down before it is injected.

    Raises:
        FaultError: others held the lock for too long.
    """
    with _alone(home.path):
        fault = fault.model_copy(update={"id": free_id(home.path, fault.kind)})
        home.event(now_us, EVENT, fault=_words(fault), topics=list(topics))
    return fault


class SharedJournal(Journal):
    """The journal of a cluster that others inject into as well: the first line of a fault is refused if it fights."""

    def __init__(self, home: RunDir, clock: RunClock, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say
        super().__init__(home.path / "journal.jsonl", clock)

    def record(self, entry: Entry) -> None:
        """See `Journal`. The first witness that sees the fault is told.

        Raises:
            FaultError: a fault in force is on the same target; nothing was written, so nothing may be touched.
        """
        if entry.state != "intended":
            if entry.witness and entry.witness.ok and not any("witness" in line for line in self.lines):
                self._say(f"{entry.fault}: seen: {entry.witness.what}")
            super().record(entry)
            return
        with _alone(self._home.path):
            if fight := self.fight(entry.kind, entry.targets):
                raise FaultError(fight)
            super().record(entry)

    @property
    def cluster(self) -> str:
        """The run id of the cluster."""
        return self._home.run_id

    def in_force(self) -> str:
        """What is in force on the cluster now, whoever injected it, as a clause; "" if nothing is."""
        live = live_faults(self._home.path, self._clock.now_us())
        return f"in force now: {'; '.join(fault.told() for fault in live)}" if live else ""

    def fight(self, kind: str, targets: Targets) -> str | None:
        """Why a fault on these targets may not begin now, and what to do; None if it may."""
        for fault in live_faults(self._home.path, self._clock.now_us()):
            if what := clash(kind, targets.as_json(), fault.kind, fault.targets):
                heal = how_to_heal(self.cluster)
                return f"{what} is taken by {fault.told()}; wait for its end, or heal it with: {heal}"
        return None


def free_id(home: Path, kind: str) -> str:
    """``<kind>-<n>`` that no fault of the plan, none by hand and none in the journal has."""
    events = (line for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT)
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    taken = {line["fault"]["id"] for line in events} | {step["id"] for step in planned}
    taken |= {line["fault"] for line in read_journal(home / "journal.jsonl")}
    return next(name for number in count(1) if (name := f"{kind}-{number}") not in taken)


def _words(fault: Fault) -> dict[str, Any]:
    """The fault as a plan says it, but for when."""
    words = fault.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {key: value for key, value in words.items() if key != "at"}


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    lock = Lock(home / _LOCK)
    give_up_s = time.monotonic() + _DEADLINE_S
    while not lock.take("aftershock inject"):
        if time.monotonic() > give_up_s:
            raise FaultError(f"{lock.path} is held by {lock.held_by()}; wait for it, or end that process")
        time.sleep(_PERIOD_S)
    try:
        yield
    finally:
        lock.release()


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
        watch(ownership.owner(), standing.run_id, standing.home)
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

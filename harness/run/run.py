"""Ctrl-C where half the work would be none: it waits until the clean-up is through.

The programs that a plan would have us start: the user's own need permission, Kafka's Java clients an image.

One run, from the plan to the verdict. The only place that knows everybody, and it reads like the story.

::

    plan ─▶ timeline ─▶ cluster ─▶ load, faults, samples ─▶ evidence ─▶ verdict, report

The live half and the judging half meet only in the run directory. Whatever happens, Ctrl-C included, the clients end,
the evidence so far is kept and readable, and the cluster is removed unless it is to be kept.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import AftershockError, EvidenceError, PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import Checked, load_plan
from aftershock.faults.plan.cluster import Attach
from aftershock.faults.plan.model import Plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.attached import AttachedCluster, Card
from aftershock.harness.cluster.cluster import CARD, Cluster, collect_logs
from aftershock.harness.cluster.launch import Images, Say, images_for, launch, provenance
from aftershock.harness.cluster.target import Target
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.run.assignments import java_command
from aftershock.harness.run.client_processes import spool_for
from aftershock.harness.run.drive import drive
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety import watchdog
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.lease import host_lease, judged_on
from aftershock.results.checks.check import Verdict
from aftershock.results.judge import judge
from aftershock.results.report.page import write_report


@contextmanager
def undisturbed(say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is left; they are answered by a word."""

    def answer(*_: object) -> None:
        say("still cleaning up; a few seconds more")

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_programs(checked: Checked) -> None:
    """PlanError if some arm starts a program: a plan may come from a stranger, and the program can do what you can."""
    problems = [
        f"{checked.source}: the arm `{name}` of workload `{workload.name}` would start a program of its own "
        f"({' '.join(arm.command)}): say --allow-exec (in Python: allow_exec=True) if you trust it"
        for workload in checked.plan.workloads
        for name, arm in workload.arms.items()
        if arm.client == "exec"
    ]
    if problems:
        raise PlanError(problems)


def java_for(plan: Plan, kafka: str, run_id: str, home: Path, say: Say) -> tuple[str, ...]:
    """The command of the plan's Java clients, of version ``kafka``, their image found or built; empty when it has none.

    Raises:
        ImageError: the image can't be built.
        EngineError: there is no engine, or no docker command.
    """
    if not any(arm.client == "java" for workload in plan.workloads for arm in workload.arms.values()):
        return ()
    image = engine.java_client_image(engine.connect(), kafka, say)
    return java_command(image.name, ownership.labels_of(run_id, home, keep=False))


@dataclass(frozen=True)
class Request:
    """What was asked for. ``changes`` are ``key=value`` changes to the plan; ``kafka`` replaces its version.

    ``rehearse``: full load, nothing injected. ``allow_exec``: the plan may start programs of the user's own.
    """

    plan: Path
    changes: tuple[str, ...]
    seed: int
    out: Path
    kafka: str | None
    keep: bool
    rehearse: bool
    allow_exec: bool
    spark: str | None
    command: str


@dataclass(frozen=True)
class Job:
    """A plan that is ready to be driven. ``file``: the plan's, if it is in one; ``kafka`` replaces its version."""

    file: Path | None
    checked: Checked
    timeline: Timeline
    kafka: str | None
    rehearse: bool

    @property
    def attach(self) -> Attach | None:
        """The cluster that it is driven on, where that isn't ours to launch."""
        return self.checked.plan.cluster.attach

    @property
    def spec(self) -> ClusterSpec:
        """The cluster to launch for it. PlanError where there is one already."""
        if self.attach:
            raise PlanError(["a plan with `cluster: attach` takes `aftershock run`, and neither --keep nor --kafka"])
        needed = any(KINDS[step.kind].family == "protocol" for step in self.timeline.steps)
        cluster = self.checked.plan.cluster
        return ClusterSpec.of(cluster.model_copy(update={"wire_proxy": cluster.wire_proxy or needed}), self.kafka)


def prepare(
    plan: Path | str,
    changes: Sequence[str],
    seed: int,
    say: Say,
    *,
    kafka: str | None = None,
    rehearse: bool = False,
    allow_exec: bool = False,
) -> Job:
    """Read, check and compile a plan: a file (Path) or its text (str). PlanError if it can't be run."""
    checked = load_plan(plan, changes)
    if not allow_exec:
        refuse_programs(checked)
    for warning in checked.warnings:
        say(f"warning: {warning}")
    timeline = compile_plan(checked.plan, seed, checked.source, checked.slo_positions, checked.places)
    if rehearse:
        say("a rehearsal: full load, nothing will be injected")
    file = plan.resolve() if isinstance(plan, Path) else None
    return Job(file, checked, timeline, kafka, rehearse)


def perform(request: Request, progress: Progress) -> tuple[Path, Verdict]:
    """Run a plan and judge it; gives the run directory and the verdict.

    A run that is judged on latency has the host to itself meanwhile, and waits for that.

    Raises:
        PlanError: the plan can't be run; nothing was started.
        EngineError: there is no engine, or no image.
        ClusterError: the cluster did not come up.
        FaultError: a fault could not be healed.
        WorkloadError: a client process died.
        LeaseError: the host's lease can't be had.
        KeyboardInterrupt: interrupted; everything is cleaned up by then.
    """
    say = progress.say
    job = prepare(
        request.plan,
        request.changes,
        request.seed,
        say,
        kafka=request.kafka,
        rehearse=request.rehearse,
        allow_exec=request.allow_exec,
    )
    attach = None if request.keep or request.kafka else job.attach
    on_cluster = _attaching(job, attach, progress) if attach else _launching(job, request, progress)
    kind = judged_on([each.slo for each in job.checked.plan.objectives])
    with host_lease(kind, f"aftershock run {job.timeline.name}", say):
        home = RunDir.create(request.out, job.timeline.name, request.seed, request.command)
        on_cluster(home)
        say("judging the evidence with Spark")
        verdict = judge(home.path, request.spark, say)
    write_report(home.path)
    say(f"report: {home.path / 'report.html'}")
    return home.path, verdict


def _launching(job: Job, request: Request, progress: Progress) -> Callable[[RunDir], None]:
    """How to drive a job on a cluster of its own, for which all is here."""
    spec, client = job.spec, engine.connect()
    sweep(client, progress.say)
    images = images_for(client, spec, progress.say)
    for version in sorted({version for step in job.timeline.steps for version in step.fault().kafka_versions()}):
        engine.kafka_image(client, version, progress.say)
    return lambda home: _launched(job, client, home, images, progress, keep=request.keep)


def _attaching(job: Job, attach: Attach, progress: Progress) -> Callable[[RunDir], None]:
    """How to drive a job on a cluster that runs; no engine is needed for that."""
    sweep(None, progress.say)
    return lambda home: _attached(job, attach, home, progress)


def live(job: Job, cluster: Cluster, home: RunDir, images: Images, progress: Progress) -> None:
    """Drive a job on a ready cluster, within `accounted_for`. Raises what goes wrong; see `perform`."""
    _drive(job, cluster, home, provenance(home, cluster, images), progress)


def _launched(
    job: Job, client: docker.DockerClient, home: RunDir, images: Images, progress: Progress, *, keep: bool
) -> None:
    """Drive a job on a cluster of its own, which is gone afterwards unless it is to be kept."""
    with accounted_for(home, progress):
        try:
            with closing(launch(job.spec, home.run_id, home.path, images, progress.say, keep=keep)) as cluster:
                live(job, cluster, home, images, progress)
        finally:
            with undisturbed(progress.say):
                collect_logs(client, home.run_id, home.path / "logs")
                if not (keep and (home.path / CARD).exists()):
                    ownership.remove_run(client, home.run_id)
    if keep:
        progress.say(f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with: {_down(home)}")


def _attached(job: Job, attach: Attach, home: RunDir, progress: Progress) -> None:
    """Drive a job on a cluster that is as it was afterwards, but for records in its topics and offsets of groups."""
    with accounted_for(home, progress):
        card = Card.of(home.run_id, attach, job.timeline)
        card.write(home.path)
        watchdog.watch(ownership.owner(), home.run_id, home.path)
        progress.say(f"attaching to {attach.bootstrap}: only what the plan names is touched")
        with closing(AttachedCluster(card, home.path)) as cluster:
            cluster.check()
            versions = {**home.facts["versions"], **cluster.versions()}
            try:
                _drive(job, cluster, home, {"versions": versions}, progress)
            finally:
                with undisturbed(progress.say):
                    cluster.clear()


def _down(home: RunDir) -> str:
    return f"aftershock cluster down --run {home.run_id}"


def _drive(job: Job, cluster: Target, home: RunDir, about: Mapping[str, Any], progress: Progress) -> None:
    """The live half proper: the plan, its timeline and the clock are on disk before the first record is sent.

    ``about``: what ``run.json`` says of the cluster, its versions among it.
    """
    (home.path / "plan.yaml").write_text(job.checked.text, encoding="utf-8")
    (home.path / "timeline.json").write_bytes(job.timeline.to_json())
    kafka = about["versions"].get("kafka", engine.DEFAULT_KAFKA)
    java = java_for(job.checked.plan, kafka, home.run_id, home.path, progress.say)
    clock = RunClock.starting_now()
    home.tell(
        plan_file=str(job.file) if job.file else None,
        origin_ns=clock.origin_ns,
        rehearse=job.rehearse,
        **about,
    )
    spool = spool_for(home.run_id, home.path)
    try:
        doing = drive(job.timeline, cluster, home, spool.path, clock, progress, java, rehearse=job.rehearse)
        asyncio.run(doing)
    finally:
        with undisturbed(progress.say):
            spool.salvage()


@contextmanager
def accounted_for(home: RunDir, progress: Progress) -> Iterator[None]:
    """Write down how the live half ended, and say where its evidence is if it didn't end well.

    To be entered as soon as the run directory is there: who is interrupted before leaves a run that seems to go on.
    """
    try:
        yield
        home.tell(status="complete")
        home.seal()
    except KeyboardInterrupt:
        home.tell(status="interrupted", why="interrupted")
        progress.say(f"interrupted; everything is cleaned up, the evidence so far is kept\nrun: {home.path}")
        raise
    except OSError as error:
        # the folder may be what can't be written: then run.json goes on saying "running", and there is no manifest
        with suppress(OSError):
            home.tell(status="failed", why=str(error))
        what = f"can't write evidence to {home.path}: {error.strerror or error}"
        raise EvidenceError(f"{what}; make room there, or choose another --out\nrun: {home.path}") from error
    except Exception as error:
        home.tell(status="failed", why=str(error) if isinstance(error, AftershockError) else repr(error))
        error.add_note(f"run: {home.path}")
        raise

"""One run, from the plan to the verdict. The only place that knows everybody, and it reads like the story.

::

    plan ─▶ timeline ─▶ cluster ─▶ load, faults, samples ─▶ evidence ─▶ verdict, report

The live half and the judging half meet only in the run directory. Whatever happens, Ctrl-C included, the clients end,
the evidence so far is kept and readable, and the cluster is removed unless it is to be kept.
"""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import docker

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.check import Checked, load_plan
from aftershock.faults.compile import compile_plan
from aftershock.faults.timeline import Timeline
from aftershock.harness import engine, labels
from aftershock.harness.clock import RunClock
from aftershock.harness.cluster import Cluster
from aftershock.harness.drive import drive
from aftershock.harness.progress import Progress
from aftershock.harness.rundir import RunDir
from aftershock.harness.spec import ClusterSpec
from aftershock.results.judge import judge
from aftershock.results.report import write as write_report
from aftershock.results.verdict import Verdict
from aftershock.workloads.outcomes import convert
from aftershock.workloads.spool import spool_home


@dataclass(frozen=True)
class Request:
    """What was asked for. ``changes`` are ``key=value`` changes to the plan; ``kafka`` replaces its version.

    ``rehearse``: full load, nothing injected.
    """

    plan: Path
    changes: tuple[str, ...]
    seed: int
    out: Path
    kafka: str | None
    keep: bool
    rehearse: bool
    spark: str | None
    command: str


def perform(request: Request, progress: Progress) -> tuple[Path, Verdict]:
    """Run a plan and judge it; gives the run directory and the verdict.

    Raises:
        PlanError: the plan can't be run; nothing was started.
        EngineError: there is no engine, or no image.
        ClusterError: the cluster did not come up.
        FaultError: a fault could not be healed.
        WorkloadError: a client process died.
        KeyboardInterrupt: interrupted; everything is cleaned up by then.
    """
    checked = load_plan(request.plan, request.changes)
    for warning in checked.warnings:
        progress.say(f"warning: {warning}")
    timeline = compile_plan(checked.plan, request.seed, checked.source, checked.slo_positions)
    if request.rehearse:
        progress.say("a rehearsal: full load, nothing will be injected")
    client = engine.connect()
    _sweep(client, progress)
    home = RunDir.create(request.out, timeline.name, request.seed, request.command)
    with _accounted_for(home, progress):
        _live(request, checked, timeline, client, home, progress)
    progress.say("judging the evidence with Spark")
    verdict = judge(home.path, request.spark, progress.say)
    write_report(home.path)
    progress.say(f"report: {home.path / 'report.html'}")
    return home.path, verdict


def _live(
    request: Request,
    checked: Checked,
    timeline: Timeline,
    client: docker.DockerClient,
    home: RunDir,
    progress: Progress,
) -> None:
    """Everything that needs the cluster; afterwards the evidence is complete and the cluster gone."""
    spec = ClusterSpec.of(checked.plan.cluster, request.kafka)
    (home.path / "plan.yaml").write_text(checked.text, encoding="utf-8")
    (home.path / "timeline.json").write_bytes(timeline.to_json())
    images = engine.kafka_image(client, spec.kafka, progress.say), engine.toxiproxy_image(client, progress.say)
    clock = RunClock.starting_now()
    cluster = Cluster(spec, home.run_id, home.path, keep=request.keep)
    home.tell(
        origin_ns=clock.origin_ns,
        rehearse=request.rehearse,
        profile={"name": spec.profile.name, **spec.profile.broker, "jvm": spec.profile.jvm_flags},
        images={"kafka": asdict(images[0]), "toxiproxy": asdict(images[1])},
        versions={**home.facts["versions"], "kafka": spec.kafka, "toxiproxy": engine.TOXIPROXY},
    )
    spool = spool_home(home.run_id, home.path)
    try:
        cluster.launch(images[0].name, images[1].name, progress.say)
        asyncio.run(drive(timeline, cluster, home, spool, clock, progress, rehearse=request.rehearse))
    finally:
        with _undisturbed(progress):
            _put_away(cluster, spool, home, progress)


def _put_away(cluster: Cluster, spool: Path, home: RunDir, progress: Progress) -> None:
    """Keep the evidence, let go of everything else."""
    try:
        convert(spool, home.path / "outcomes")
        shutil.rmtree(spool, ignore_errors=True)
        cluster.collect_logs(home.path / "logs")
    finally:
        cluster.remove()
    if cluster.keep:
        progress.say(_how_to_remove(cluster))


def _how_to_remove(cluster: Cluster) -> str:
    mine = f"--filter label={labels.RUN}={cluster.run_id}"
    return (
        f"the cluster is kept: bootstrap {cluster.bootstrap(None)}; remove it with\n"
        f"  docker rm -fv $(docker ps -aq {mine})\n"
        f"  docker network rm $(docker network ls -q {mine}); docker volume rm $(docker volume ls -q {mine})"
    )


def _sweep(client: docker.DockerClient, progress: Progress) -> None:
    removed = labels.sweep_orphans(client)
    if removed:
        progress.say(f"removed what a dead run left behind: {', '.join(removed)}")


@contextmanager
def _accounted_for(home: RunDir, progress: Progress) -> Iterator[None]:
    """Write down how the live half ended, and say where its evidence is if it didn't end well."""
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


@contextmanager
def _undisturbed(progress: Progress) -> Iterator[None]:
    """Let a second Ctrl-C wait until the clean-up is through: it takes seconds, and half a clean-up is none."""
    before = signal.signal(signal.SIGINT, lambda *_: progress.say("still cleaning up; a few seconds more"))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

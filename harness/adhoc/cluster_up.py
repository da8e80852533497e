"""A cluster kept for ad-hoc work: launched whole or not at all, and taken down again.

It has a run directory of its own, so that what is injected into it has a journal, a clock and, afterwards, a plan.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import docker

from aftershock.errors import ClusterError, EvidenceError
from aftershock.faults.outline import Outline
from aftershock.harness import labels
from aftershock.harness.adhoc.kept import clock_of, kept, the_one, whose
from aftershock.harness.adhoc.live_faults import live_faults
from aftershock.harness.clock import RunClock
from aftershock.harness.cluster import Cluster, collect_logs
from aftershock.harness.heal import sweep
from aftershock.harness.interrupts import undisturbed
from aftershock.harness.launching import Images, images_for, launch, provenance
from aftershock.harness.lease import host_lease
from aftershock.harness.rundir import RunDir
from aftershock.harness.spec import ClusterSpec

Say = Callable[[str], None]
_IN_SYNC_S = 30.0


@dataclass(frozen=True)
class Up:
    """A kept cluster: its run id, and where it is dialled (``bootstrap.servers`` by rack, ``admin`` for ourselves)."""

    run_id: str
    bootstrap: dict[str, str]
    toxiproxy: str

    def text(self) -> str:
        """What its user needs to know, without a newline at the end."""
        lines = [f"cluster {self.run_id} is up"]
        lines += [f"  bootstrap {rack:<6} {servers}" for rack, servers in self.bootstrap.items()]
        lines += [
            f"  toxiproxy        {self.toxiproxy}",
            "  see it:          aftershock cluster status",
            "  break it:        aftershock inject pause broker=1 --for 10s",
            "  the kinds:       aftershock plan faults",
            f"  make it a plan:  aftershock plan from {self.run_id}",
            f"  take it down:    aftershock cluster down --run {self.run_id}",
        ]
        return "\n".join(lines)


def up(client: docker.DockerClient, outline: Outline, kafka: str | None, out: Path, command: str, say: Say) -> Up:
    """Launch a cluster that stays, with its topics. Interrupted or failed half-way, nothing of it is left.

    Raises:
        EngineError: there is no engine, or no image.
        ClusterError: the cluster did not come up, or Kafka refused a topic.
        LeaseError: the host's lease can't be had.
    """
    sweep(client, say)
    if others := kept(client):
        say(f"another kept cluster is up too: {', '.join(cluster.run_id for cluster in others)}")
    spec = ClusterSpec.of(outline.cluster, kafka)
    images = images_for(client, spec, say)
    with host_lease("integrity", "aftershock cluster up", say):
        home = RunDir.create(out, "cluster", 0, command)
        (home.path / "plan.yaml").write_text(outline.on(spec.kafka).to_yaml(), encoding="utf-8")
        with (
            _whole_or_gone(client, home, say),
            closing(launch(spec, home.run_id, home.path, images, say, keep=True)) as cluster,
        ):
            _create_topics(cluster, outline)
            return _told(home, cluster, images)


def down(client: docker.DockerClient, run_id: str | None) -> str:
    """Remove a kept cluster; gives its run id. Its run directory stays.

    Raises:
        ClusterError: there is none of that name, or several to choose from, or somebody works with it.
    """
    cluster = the_one(client, run_id)
    if cluster.owned:
        raise ClusterError(f"the cluster {cluster.run_id} is being driven: {whose(cluster)}; end that first")
    if cluster.home.is_dir():
        _refuse_if_held(cluster)
        collect_logs(client, cluster.run_id, cluster.home / "logs")
    labels.remove_run(client, cluster.run_id)
    _close_books(cluster.home)
    return cluster.run_id


@contextmanager
def _whole_or_gone(client: docker.DockerClient, home: RunDir, say: Say) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with undisturbed(say):
            collect_logs(client, home.run_id, home.path / "logs")
            labels.remove_run(client, home.run_id)
            stopped = isinstance(error, KeyboardInterrupt)
            home.tell(status="interrupted" if stopped else "failed", why="interrupted" if stopped else str(error))
            say(f"nothing is left of the cluster; its logs are in {home.path / 'logs'}")
        raise


def _create_topics(cluster: Cluster, outline: Outline) -> None:
    for topic in outline.topics:
        cluster.admin.create_topic(topic.name, topic.partitions, topic.replication, topic.config)
    if outline.topics:
        cluster.await_in_sync(_IN_SYNC_S, [topic.name for topic in outline.topics])


def _told(home: RunDir, cluster: Cluster, images: Images) -> Up:
    """Write down what it is; from here on it is kept."""
    whereabouts, origin_ns = cluster.whereabouts(), RunClock.starting_now().origin_ns
    home.tell(origin_ns=origin_ns, status="kept", **provenance(home, cluster, images), **whereabouts)
    return Up(home.run_id, whereabouts["bootstrap"], whereabouts["toxiproxy"])


def _refuse_if_held(cluster: labels.Standing) -> None:
    with suppress(EvidenceError):  # a journal that can't be read must not keep a cluster for ever
        for fault in live_faults(cluster.home, clock_of(cluster.home).now_us()):
            if not fault.orphaned:
                raise ClusterError(f"somebody injects into {cluster.run_id}: {fault.told()}; end that first")


def _close_books(home: Path) -> None:
    with suppress(EvidenceError):
        run = RunDir.open(home)
        if run.facts.get("status") == "kept":
            run.tell(status="down")

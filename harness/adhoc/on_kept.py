"""Runs of a plan on a kept cluster, in the place of one that is launched (``aftershock run PLAN --on ID``).

The cluster must have what the plan's section ``cluster`` asks for. A topic of the plan that exists there is used from
its end; other topics are created, and deleted after the run. Afterwards the cluster stays, healed.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import docker

from aftershock.errors import ClusterError, LeaseError
from aftershock.harness.adhoc.kept import clock_of, connect, describe_owner, heal_command, live_faults, resolve
from aftershock.harness.cluster.assignments import group_names
from aftershock.harness.cluster.cluster import Cluster, collect_logs
from aftershock.harness.cluster.topology import SWITCHES, ClusterSpec
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import defer_interrupts, undo_open
from aftershock.harness.lifecycle.launch import images_for, provenance
from aftershock.harness.lifecycle.occupation import Occupation, lock_of, vacate
from aftershock.harness.run.drive import drive_on
from aftershock.harness.run.job import Job
from aftershock.harness.run.progress import Progress
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import LabelledCluster
from aftershock.harness.safety.rundir import RunDir


def differences(kept: ClusterSpec, planned: ClusterSpec) -> list[str]:
    """Return what a plan asks of its cluster and a kept cluster has not, by the plan's keys.

    A kept cluster may have parts that the plan does not need, such as the control of packets.
    """
    has, wants = (spec.as_plan().model_dump(mode="json") for spec in (kept, planned))

    def differs(key: str) -> bool:
        if key == "racks":  # brokers are numbered in the order of the racks
            return [*has[key].items()] != [*wants[key].items()]
        return bool(wants[key]) and not has[key] if key in SWITCHES else has[key] != wants[key]

    return [f"{key} {json.dumps(has[key])}, not {json.dumps(wants[key])}" for key in wants if differs(key)]


@contextmanager
def occupied(
    client: docker.DockerClient, run_id: str, job: Job, progress: Progress
) -> Iterator[Callable[[RunDir], None]]:
    """Reserve a kept cluster for a run; yield the function that drives the run's load and faults on it.

    Raises ClusterError if the cluster is missing, in use, has faults in force, or does not fit the plan.
    """
    kept = resolve(client, run_id)
    with connect(client, kept) as cluster:
        if kept.owned:
            raise ClusterError(f"the cluster {run_id} is in use: {describe_owner(kept)}; end that process first")
        if unlike := differences(cluster.spec, job.spec):
            raise ClusterError(
                f"the cluster {run_id} does not fit the plan's `cluster`: it has {'; '.join(unlike)}; run the plan "
                "without --on, or change its `cluster`"
            )
        lock = lock_of(kept.home)
        if not lock.take(f"aftershock run {job.timeline.name} --on {run_id}"):
            raise LeaseError(f"the cluster {run_id} is in use by {lock.held_by()}; wait until that run has ended")
        try:
            if faults := live_faults(kept.home, clock_of(kept.home).now_us()):
                raise ClusterError(
                    f"the cluster {run_id} has faults in force, {faults[0].describe()}; heal them with: "
                    f"{heal_command(run_id)}"
                )
            yield lambda home: _drive(client, kept, cluster, job, home, progress)
        finally:
            lock.release()


def _drive(
    client: docker.DockerClient, kept: LabelledCluster, cluster: Cluster, job: Job, home: RunDir, progress: Progress
) -> None:
    """Run a plan on a kept cluster; afterwards remove what it created, with the faults that are still in force."""
    since, topics = datetime.now(UTC), [topic["name"] for topic in job.timeline.topics]
    occupation = Occupation.of(home.path, cluster, topics, tuple(group_names(job.timeline)))
    occupation.write(kept.home)
    watchdog.watch(ownership.owner(), kept.run_id, kept.home)
    progress.log(f"running on the cluster {kept.run_id}, which stays afterwards")
    images = images_for(client, cluster.spec, progress.log)
    try:
        drive_on(job, cluster, home, provenance(home, cluster, images), progress)
    finally:
        with defer_interrupts(progress.log):
            collect_logs(client, kept.run_id, home.path / "logs", since)
            if (home.path / "journal.jsonl").exists():
                asyncio.run(undo_open(home, cluster, progress.log))
            vacate(kept.home, cluster, occupation)

"""The clusters that are kept for ad-hoc work, and how to name one of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from aftershock.errors import ClusterError
from aftershock.harness import labels
from aftershock.harness.clock import RunClock
from aftershock.harness.cluster import CARD, Cluster, attach
from aftershock.harness.labels import Standing
from aftershock.harness.rundir import RunDir


def kept(client: docker.DockerClient) -> list[Standing]:
    """Every cluster that is kept, or what is left of one, by run id."""
    return [cluster for cluster in labels.standing(client) if cluster.keep]


def the_one(client: docker.DockerClient, run_id: str | None) -> Standing:
    """The kept cluster called ``run_id``; without that, the only one.

    Raises:
        ClusterError: there is none, or there are several to choose from.
    """
    there = labels.standing(client)
    ours = [cluster for cluster in there if cluster.keep]
    if run_id is None:
        return _only(ours)
    found = next((cluster for cluster in there if cluster.run_id == run_id), None)
    if found is None:
        raise ClusterError(
            f"no cluster {run_id} stands on this engine: it was taken down, or somebody removed its containers; "
            "`aftershock cluster status` lists those that do"
        )
    if not found.keep:
        raise ClusterError(
            f"the cluster {run_id} is not a kept one: {whose(found)}; leave it to that, or see `aftershock heal`"
        )
    return found


def whose(cluster: Standing) -> str:
    """Who answers for a cluster, in words."""
    if not cluster.here:
        return "it belongs to a process of another host or container"
    pid = cluster.owner.partition(":")[0]
    return f"it belongs to process {pid}, which " + ("lives" if cluster.owned else "is dead")


@contextmanager
def attached(client: docker.DockerClient, cluster: Standing) -> Iterator[Cluster]:
    """The cluster, connected to. ClusterError, which says how to get rid of the rest, where not all of it is there."""
    if cluster.owned and not (cluster.home / CARD).exists():
        raise ClusterError(f"the cluster {cluster.run_id} is still being launched: {whose(cluster)}; wait for that")
    try:
        found = attach(client, cluster.home)
    except ClusterError as error:
        raise ClusterError(f"{error}; {how_to_remove(cluster)}") from error
    try:
        yield found
    finally:
        found.close()


def clock_of(home: Path) -> RunClock:
    """The clock that the times in a cluster's home are of.

    Raises:
        EvidenceError: there is no run.json, or it can't be read.
        ClusterError: its launch isn't through.
    """
    facts = RunDir.open(home).facts
    if "origin_ns" not in facts:
        raise ClusterError(f"{home.name} is not ready yet; wait until its launch is through")
    return RunClock(facts["origin_ns"])


def how_to_remove(cluster: Standing) -> str:
    """The command that takes it down."""
    return f"take it down with: aftershock cluster down --run {cluster.run_id}"


def how_to_heal(run_id: str) -> str:
    """The command that heals it."""
    return f"aftershock heal --run {run_id}"


def _only(ours: list[Standing]) -> Standing:
    if not ours:
        raise ClusterError("no cluster is kept; start one with: aftershock cluster up")
    if len(ours) > 1:
        names = ", ".join(cluster.run_id for cluster in ours)
        raise ClusterError(f"several clusters are kept: {names}; say which one with --run ID")
    return ours[0]

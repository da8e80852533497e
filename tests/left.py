"""Leftovers of a run on the engine and in memory, queried from Docker and the file system without the product."""

import docker

from aftershock.harness.safety import ownership
from aftershock.workloads.load.spool import TMPFS


def left_of(run_id: str) -> list[str]:
    """Return containers, networks, volumes and spools of a run that still exist. An object that vanishes during
    the query is omitted.
    """
    client, mine = docker.from_env(), {"label": f"{ownership.RUN}={run_id}"}
    containers = client.containers.list(all=True, filters=mine, ignore_removed=True)
    things = [*containers, *client.networks.list(filters=mine), *client.volumes.list(filters=mine)]
    return [thing.name for thing in things] + [str(path) for path in TMPFS.glob(f"*{run_id}*")]

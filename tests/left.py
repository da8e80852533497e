"""What is left of a run on the engine and in memory, asked of both directly rather than of the product."""

import docker

from aftershock.harness.cluster import ownership
from aftershock.workloads.load.spool import TMPFS


def left_of(run_id: str) -> list[str]:
    """Containers, networks, volumes and spools of a run that are still there; one that goes meanwhile is none."""
    client, mine = docker.from_env(), {"label": f"{ownership.RUN}={run_id}"}
    containers = client.containers.list(all=True, filters=mine, ignore_removed=True)
    things = [*containers, *client.networks.list(filters=mine), *client.volumes.list(filters=mine)]
    return [thing.name for thing in things] + [str(path) for path in TMPFS.glob(f"*{run_id}*")]

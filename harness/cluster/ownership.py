"""Ownership of Docker objects: labels of a run's containers, the process that owns the run, and their removal.

The owner of a run is a process, identified by its id, by its start time (because the kernel reuses process ids), and by
its host. Docker objects without Aftershock's run label are never changed or removed.
"""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import docker


RUN = "aftershock.run"
OWNER = "aftershock.owner"
HOST = "aftershock.host"
HOME = "aftershock.home"
KEEP = "aftershock.keep"
NODE = "aftershock.node"
WORKER = "aftershock.worker"
KEPT = "keep"
"""File in a cluster's folder that marks the cluster as kept, because Docker labels can't be changed after a launch."""


@dataclass(frozen=True)
class LabelledCluster:
    """A cluster, or its remains, found by Docker labels; ``is_local`` is True if its owner is on this host."""

    run_id: str
    owner: str
    home: Path
    keep: bool
    is_local: bool

    @property
    def owned(self) -> bool:
        """True if the cluster's owner is alive, or is a process of another host, which can't be checked."""
        return not self.is_local or is_alive(self.owner)


def labels_of(run_id: str, home: Path, *, keep: bool, owned_by: str | None = None) -> dict[str, str]:
    """Return the labels for all Docker objects of a run; ``owned_by``: owner label (default: of this process)."""
    keep_label = str(keep).lower()
    return {RUN: run_id, OWNER: owned_by or owner(), HOST: _host(), HOME: str(home.resolve()), KEEP: keep_label}


def owner(pid: int | None = None) -> str:
    """Return the owner label for a process (default: this process): ``<pid>:<start time>``."""
    pid = pid or os.getpid()
    return f"{pid}:{_started(pid)}"


def is_alive(owner_label: str) -> bool:
    """True if the process in the owner label ``<pid>:<start time>`` still runs."""
    pid, _, started = owner_label.partition(":")
    return pid.isdigit() and bool(started) and _started(int(pid)) == started


def list_clusters(client: "docker.DockerClient") -> list[LabelledCluster]:
    """Return Aftershock's clusters on this Docker engine, sorted by run id."""
    by_run: dict[str, Mapping[str, str]] = {}
    for item in chain.from_iterable(_docker_objects(client, {"label": RUN})):
        labels = item.labels if hasattr(item, "labels") else item.attrs["Labels"]
        by_run[labels[RUN]] = labels
    clusters = []
    for run_id, labels in sorted(by_run.items()):
        home = Path(labels.get(HOME, ""))
        keep = labels.get(KEEP) == "true" or (home / KEPT).exists()
        # clusters of older versions have no host label; they were launched on this host
        is_local = labels.get(HOST, _host()) == _host()
        clusters.append(LabelledCluster(run_id, labels.get(OWNER, ""), home, keep, is_local))
    return clusters


def remove_run(client: "docker.DockerClient", run_id: str) -> list[str]:
    """Remove all Docker containers, networks and volumes of a run; return their names."""
    containers, networks, volumes = _docker_objects(client, {"label": f"{RUN}={run_id}"})
    _remove(containers, force=True, v=True)
    _remove(networks)
    _remove(volumes, force=True)
    return [item.name for item in (*containers, *networks, *volumes)]


def _host() -> str:
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(pid: int) -> str:
    """Return a process's start time in clock ticks (proc(5), stat, field 22); "" if it ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _docker_objects(
    client: "docker.DockerClient", filters: Mapping[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return containers, client.networks.list(filters=filters), client.volumes.list(filters=filters)


def _remove(objects: Iterable[Any], **how: Any) -> None:
    """Remove Docker objects concurrently, because a removal takes half a second; ignore missing objects."""
    from docker.errors import APIError, NotFound  # noqa: PLC0415 - takes 0.17 s, which most commands can save

    def attempt(item: Any) -> None:
        for retries in range(5, -1, -1):
            try:
                with suppress(NotFound):
                    item.remove(**how)
            except APIError as error:
                # a removal in progress, or a network whose last container is still leaving
                if retries == 0 or error.status_code not in (403, 409):
                    raise
                time.sleep(0.2)
            else:
                return

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(attempt, objects))

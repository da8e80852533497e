"""Whose container is this? Labels, owners, and the sweep that removes what a dead run left behind.

An owner is a process id *and* its start time, since process ids are used again. Nothing without our run label is ever
touched, nor anything whose owner lives, nor anything kept on purpose.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound

RUN = "aftershock.run"
OWNER = "aftershock.owner"
HOME = "aftershock.home"
KEEP = "aftershock.keep"


def labels_of(run_id: str, home: Path, *, keep: bool) -> dict[str, str]:
    """The labels that everything made for a run carries."""
    return {RUN: run_id, OWNER: owner(), HOME: str(home.resolve()), KEEP: str(keep).lower()}


def owner() -> str:
    """This process as ``<pid>:<start time>``."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def lives(owner_label: str) -> bool:
    """Whether the process that a label names is still the one that runs under that id."""
    pid, _, started = owner_label.partition(":")
    return pid.isdigit() and bool(started) and _started(int(pid)) == started


def _started(pid: int) -> str:
    """A process's start time in clock ticks since boot, "" if there is no such process (proc(5), stat, field 22)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def remove_run(client: docker.DockerClient, run_id: str) -> None:
    """Remove every container, network and volume of one run; what is gone already is fine."""
    _remove(client, {"label": f"{RUN}={run_id}"}, lambda _: True)


def sweep_orphans(client: docker.DockerClient) -> list[str]:
    """Remove what dead owners left and did not mean to keep; returns the names removed."""
    return _remove(client, {"label": [RUN, f"{KEEP}=false"]}, lambda labels: not lives(labels.get(OWNER, "")))


def _remove(
    client: docker.DockerClient, filters: Mapping[str, Any], condemned: Callable[[Mapping[str, str]], bool]
) -> list[str]:
    containers = [c for c in client.containers.list(all=True, filters=filters) if condemned(c.labels)]
    networks = [n for n in client.networks.list(filters=filters) if condemned(n.attrs["Labels"])]
    volumes = [v for v in client.volumes.list(filters=filters) if condemned(v.attrs["Labels"] or {})]
    _each(containers, lambda container: container.remove(force=True, v=True))
    _each(networks, lambda network: network.remove())
    _each(volumes, lambda volume: volume.remove(force=True))
    return [thing.name for thing in (*containers, *networks, *volumes)]


def _each(things: Iterable[Any], act: Callable[[Any], None]) -> None:
    """Act on all at once; a container takes half a second to die."""

    def attempt(thing: Any) -> None:
        for left in range(5, -1, -1):
            try:
                with suppress(NotFound):
                    act(thing)
            except APIError as error:
                # a removal in progress, or a network whose last container is still leaving
                if left == 0 or error.status_code not in (403, 409):
                    raise
                time.sleep(0.2)
            else:
                return

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(attempt, things))

"""Whose container is this? Labels, owners, and the removal of all that one run made.

An owner is a process id *and* its start time, since process ids are used again, on a host, since another host's (or
container's) ids mean nothing here. Nothing without our run label is ever touched.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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
"""A file of this name in a cluster's home keeps it as the label does, which can't be changed after the launch."""


@dataclass(frozen=True)
class Standing:
    """A cluster, or what is left of one, as its labels tell. ``here``: its owner's process id means something here."""

    run_id: str
    owner: str
    home: Path
    keep: bool
    here: bool

    @property
    def owned(self) -> bool:
        """Whether somebody still answers for it: its owner lives, or lives where we can't see it."""
        return not self.here or lives(self.owner)


def labels_of(run_id: str, home: Path, *, keep: bool, owned_by: str | None = None) -> dict[str, str]:
    """The labels that everything made for a run carries; by default this process owns it."""
    labels = {RUN: run_id, OWNER: owned_by or owner(), HOST: _host(), HOME: str(home.resolve())}
    return {**labels, KEEP: str(keep).lower()}


def owner(pid: int | None = None) -> str:
    """A process, by default this one, as ``<pid>:<start time>``."""
    pid = pid or os.getpid()
    return f"{pid}:{_started(pid)}"


def lives(owner_label: str) -> bool:
    """Whether the process that a label names is still the one that runs under that id."""
    pid, _, started = owner_label.partition(":")
    return pid.isdigit() and bool(started) and _started(int(pid)) == started


def standing(client: "docker.DockerClient") -> list[Standing]:
    """All that carries our labels on this engine, one for each run."""
    things = [thing for kind in _of(client, {"label": RUN}) for thing in kind]
    labels = {labels[RUN]: labels for labels in map(_labels, things)}
    return [_standing(labels[run_id]) for run_id in sorted(labels)]


def remove_run(client: "docker.DockerClient", run_id: str) -> list[str]:
    """Remove every container, network and volume of one run; what is gone already is fine. Gives their names."""
    containers, networks, volumes = _of(client, {"label": f"{RUN}={run_id}"})
    _each(containers, lambda container: container.remove(force=True, v=True))
    _each(networks, lambda network: network.remove())
    _each(volumes, lambda volume: volume.remove(force=True))
    return [thing.name for thing in (*containers, *networks, *volumes)]


def _host() -> str:
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(pid: int) -> str:
    """A process's start time in clock ticks since boot, "" if there is no such process (proc(5), stat, field 22).

    One that has ended and was not yet waited for (state Z) is no process any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _standing(labels: Mapping[str, str]) -> Standing:
    home = Path(labels.get(HOME, ""))
    keep = labels.get(KEEP) == "true" or (home / KEPT).exists()
    # what an older version launched has no host label; it was launched here or nowhere
    return Standing(labels[RUN], labels.get(OWNER, ""), home, keep, labels.get(HOST, _host()) == _host())


def _of(client: "docker.DockerClient", filters: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return containers, client.networks.list(filters=filters), client.volumes.list(filters=filters)


def _labels(thing: Any) -> Mapping[str, str]:
    found: Mapping[str, str] = thing.labels if hasattr(thing, "labels") else thing.attrs["Labels"]
    return found


def _each(things: Iterable[Any], act: Callable[[Any], None]) -> None:
    """Act on all at once; a container takes half a second to die."""
    from docker.errors import APIError, NotFound  # noqa: PLC0415 - a sixth of a second, that most commands can spare

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

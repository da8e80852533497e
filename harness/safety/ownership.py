"""Ownership of Docker objects, by labels that name the run and the process that owns the run.

The owner of a run is a process. Its label ``<pid>:<start time>:<user>:<machine>:<boot>:<pid namespace>`` tells the
process from others, because the kernel reuses process ids, and a process id of another host or container means nothing
here. If a label can't be checked (it was made elsewhere, or ``hidepid`` hides the process), the owner may be alive, and
what it owns is left alone. Docker objects without Aftershock's run label are never changed or removed.
"""

import hashlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aftershock.errors import ClusterError

if TYPE_CHECKING:
    import docker


RUN = "aftershock.run"
OWNER = "aftershock.owner"
HOST = "aftershock.host"
HOME = "aftershock.home"
KEEP = "aftershock.keep"
NODE = "aftershock.node"
WORKER = "aftershock.worker"
SERVICE = "aftershock.service"
"""Label of the containers of services under test."""
KEPT = "keep"
"""File in a cluster's folder that marks the cluster as kept, because Docker labels can't be changed after a launch."""

PROC = Path("/proc")
REMOVAL_DEADLINE_S = 60.0
_FIELDS = 6  # of an owner label; labels of version 0.1.0 have only the first two
_INITIAL_PID_NAMESPACE = "4026531836"  # PROC_PID_INIT_INO in Linux, the same after each boot

Liveness = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class LabelledCluster:
    """A cluster, or its remains, found by Docker labels."""

    run_id: str
    owner: str
    home: Path
    keep: bool

    @property
    def liveness(self) -> Liveness:
        """State of the cluster's owner; "unknown" also for labels of version 0.1.0, which don't identify the host."""
        return liveness(self.owner) if self.owner.count(":") + 1 == _FIELDS else "unknown"

    @property
    def owned(self) -> bool:
        """True unless the cluster's owner is known to be dead."""
        return self.liveness != "dead"


def labels_of(run_id: str, home: Path, *, keep: bool, owned_by: str | None = None) -> dict[str, str]:
    """Return the labels for all Docker objects of a run, with the owner label ``owned_by`` or that of this process."""
    keep_label = str(keep).lower()
    # version 0.1.0 leaves clusters alone whose host label differs from its own
    host = "/".join(_machine_boot_namespace())
    return {RUN: run_id, OWNER: owned_by or owner(), HOST: host, HOME: str(home.resolve()), KEEP: keep_label}


def owner(pid: int | None = None) -> str:
    """Return the owner label of a process of this user, by default of this process."""
    pid = pid or os.getpid()
    return ":".join((str(pid), _started(pid) or "", str(os.getuid()), *_machine_boot_namespace()))


def liveness(owner_label: str) -> Liveness:
    """Return the state of the process in an owner label; a malformed label has no owner and so a dead one."""
    pid, started, *origin = owner_label.split(":") if ":" in owner_label else ("", "")
    if not (
        pid.isascii()
        and pid.isdecimal()
        and 0 < int(pid[:10]) < 1 << 31
        and started
        and len(origin) in (0, _FIELDS - 2)
    ):
        return "dead"
    if origin:
        made_at, here = tuple(origin[1:]), _machine_boot_namespace()
        if made_at[1:] != here[1:]:
            # before a restart of this host; in a container, namespaces of other containers are indistinguishable
            initial = made_at[2] == here[2] == _INITIAL_PID_NAMESPACE
            return "dead" if made_at[0] == here[0] != "" and made_at[1] != here[1] and initial else "unknown"
    now = _started(int(pid))
    return "unknown" if now is None else "alive" if now == started else "dead"


def is_alive(owner_label: str) -> bool:
    """True unless the process in the owner label is known to be dead."""
    return liveness(owner_label) != "dead"


def describe_owner(owner_label: str) -> str:
    """Return the process of an owner label as "process 12 of user 1000"."""
    pid, _, *origin = (*owner_label.split(":"), "")
    return f"process {pid}" + (f" of user {origin[0]}" if origin and origin[0] else "")


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
        clusters.append(LabelledCluster(run_id, labels.get(OWNER, ""), home, keep))
    return clusters


def remove_run(client: "docker.DockerClient", run_id: str) -> list[str]:
    """Remove all Docker containers, networks and volumes of a run; return their names.

    Raises ClusterError, after an attempt for each object, with the names of the objects that can't be removed.
    """
    containers, networks, volumes = _docker_objects(client, {"label": f"{RUN}={run_id}"})
    problems = [*_remove(containers, force=True, v=True), *_remove(networks), *_remove(volumes, force=True)]
    if problems:
        raise ClusterError(
            f"{len(problems)} Docker objects of the run {run_id} can't be removed: {'; '.join(problems)}; remove the "
            f"cause, then type: aftershock heal --run {run_id}"
        )
    return [item.name for item in (*containers, *networks, *volumes)]


def remove_services(client: "docker.DockerClient", run_id: str) -> None:
    """Remove the containers of a run's services; raise ClusterError with the names of those that can't be removed.

    A container stays if its worker was killed. The cluster, which may outlive the run, is left alone.
    """
    filters = {"label": [f"{RUN}={run_id}", SERVICE]}
    if problems := _remove(client.containers.list(all=True, filters=filters, ignore_removed=True), force=True, v=True):
        raise ClusterError(
            f"{len(problems)} containers of services of the run {run_id} can't be removed: {'; '.join(problems)}; "
            f"remove the cause, then type: aftershock heal --run {run_id}"
        )


def remove_run_completely(client: "docker.DockerClient", run_id: str) -> list[str]:
    """Remove a run's Docker objects until none is left; raise ClusterError after ``REMOVAL_DEADLINE_S``.

    The engine may still be creating objects that a dead process requested.
    """
    removed: list[str] = []
    give_up_s = time.monotonic() + REMOVAL_DEADLINE_S
    while names := remove_run(client, run_id):
        removed += names
        if time.monotonic() > give_up_s:
            raise ClusterError(
                f"Docker objects of the run {run_id} are still appearing after {REMOVAL_DEADLINE_S:.0f} s: "
                f"{', '.join(names)}; end the process that creates them, then type: aftershock heal --run {run_id}"
            )
        time.sleep(0.5)
    return removed


@cache
def _machine_boot_namespace() -> tuple[str, str, str]:
    """Return a text that identifies this host, its boot and its namespace of process ids; "" for an unknown machine."""

    def read(path: str) -> str:
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    name, machine = socket.gethostname(), read("/etc/machine-id")
    boot = read("/proc/sys/kernel/random/boot_id").replace("-", "")[:12] or digest(f"{machine} {name}")
    # clones of a virtual machine have one machine id, and usually different names
    return digest(f"{machine} {name}") if machine else "", boot, str(Path("/proc/self/ns/pid").stat().st_ino)


def _started(pid: int) -> str | None:
    """Return a process's start time in clock ticks (proc(5), stat, field 22).

    Returns "" if the process has ended or is a zombie, None if it exists and ``/proc`` does not show it (``hidepid``).
    """
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass  # it exists, and belongs to another user
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _docker_objects(
    client: "docker.DockerClient", filters: Mapping[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return containers, client.networks.list(filters=filters), client.volumes.list(filters=filters)


def _remove(objects: Sequence[Any], **how: Any) -> list[str]:
    """Remove Docker objects concurrently, because a removal takes half a second; return a sentence per failure."""
    from docker.errors import APIError, NotFound  # noqa: PLC0415 - takes 0.17 s, which most commands can save

    def attempt(item: Any) -> str:
        for retries in range(5, -1, -1):
            try:
                item.remove(**how)
            except NotFound:
                return ""
            except APIError as error:
                # a removal in progress, or a network whose last container is still leaving
                if retries == 0 or error.status_code not in (403, 409):
                    return f"{item.name}: {error.explanation or error}"
                time.sleep(0.2)
            else:
                return ""
        return ""

    with ThreadPoolExecutor(max_workers=8) as pool:
        return [problem for problem in pool.map(attempt, objects) if problem]

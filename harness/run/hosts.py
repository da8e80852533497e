"""Further hosts of a run's clients (``run_on`` in a plan): their start, their evidence, and their clocks.

`workloads.load.remote` talks to one host. The metrics ``clock.bound_us/<host>`` are in ``docs/DESIGN.md``.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.assignments import host_name
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.kubernetes.cluster import KubernetesCluster
from aftershock.harness.cluster.kubernetes.workers import FOLDER, worker_pods
from aftershock.harness.cluster.target import Target
from aftershock.harness.run.recording import Reading
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.results.evidence.hosts import HOSTS
from aftershock.workloads.load.process import Spawn
from aftershock.workloads.load.remote import RemoteHost

_HERE = (sys.executable, "-P", "-m", "aftershock.workloads.load.host")
"""Command that starts a host on this machine, up to its arguments."""


class Place(NamedTuple):
    """Where a host runs: the command that starts it, up to its arguments, and the folder for its files there."""

    command: Sequence[str]
    root: str


@contextmanager
def hosting(timeline: Timeline, cluster: Target, spool: Path) -> Iterator[Mapping[str, Place]]:
    """Make a place for each host of ``run_on`` until the block ends, by its name: a pod, or a folder in the ``spool``.

    Raises ClusterError if a pod can't be made.
    """
    sections = {
        host_name(load["name"], place): load["run_on"].get("kubernetes")
        for load in timeline.workloads
        for place in range(load.get("run_on", {}).get("workers", 0))
    }
    here = {name: Place(_HERE, str(spool / "hosts" / name)) for name, pods in sections.items() if pods is None}
    in_pods = {name: pods for name, pods in sections.items() if pods is not None}
    if not in_pods:
        yield here
        return
    if not isinstance(cluster, KubernetesCluster):
        raise TypeError(f"pods of clients beside brokers that are in none: {cluster}")  # `plan check` refuses it
    with worker_pods(cluster.api, cluster.place, in_pods, build.worker().name) as commands:
        yield here | {name: Place(command, f"{FOLDER}/{name}") for name, command in commands.items()}


class ClientHosts:
    """Hosts of one run, as an async context manager around that of the fleet.

    ``clients`` are those of each host, by its name. When the block has ended, the evidence is complete, and
    ``run.json`` tells how exact the hosts' clocks were.
    """

    def __init__(
        self,
        clients: Mapping[str, Sequence[str]],
        places: Mapping[str, Place],
        home: RunDir,
        clock: RunClock,
    ) -> None:
        self._clients, self._home = clients, home
        self._hosts = {
            name: RemoteHost(name, *places[name], home.run_id, home.path, clock.origin_ns) for name in clients
        }

    @property
    def spawns(self) -> Mapping[str, Spawn]:
        """The function that starts each client, by the client's name."""
        return {client: self._hosts[name].spawn for name, clients in self._clients.items() for client in clients}

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as starting:
                for host in self._hosts.values():
                    starting.create_task(host.open())
        except BaseException as error:
            await self._close(in_order=False)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error
            raise
        self._tell()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(in_order=kind is None)

    async def _close(self, *, in_order: bool) -> None:
        """End all hosts; raise the error of one whose evidence is not complete if the run ends ``in_order``."""
        closings = (host.close(in_order=in_order) for host in self._hosts.values())
        results = await asyncio.gather(*closings, return_exceptions=True)
        self._tell()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def save(self) -> None:
        """Bring what the hosts have recorded so far to the run directory."""
        await asyncio.gather(*(host.save() for host in self._hosts.values()))
        self._tell()

    def _tell(self) -> None:
        """Write the clients of each host, and the bound of the errors of their times, to ``run.json``."""
        facts = [
            {"name": name, "clients": [*self._clients[name]], "clock_bound_us": host.bound_us}
            for name, host in self._hosts.items()
        ]
        if facts:
            self._home.update(**{HOSTS: facts})

    def readings(self) -> list[Reading]:
        return [Reading(None, f"clock.bound_us/{name}", host.bound_us) for name, host in self._hosts.items()]

"""Further hosts of a run's clients (``run_on`` in a plan): their start, their evidence, and their clocks.

`workloads.load.remote` talks to one host. The metrics ``clock.bound_us/<host>`` are in ``docs/DESIGN.md``.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
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


class Hosting(NamedTuple):
    """How the hosts of a run are started, by their names, and the folder for their files on each."""

    commands: Mapping[str, Sequence[str]]
    folder: str


@contextmanager
def hosting(timeline: Timeline, cluster: Target, spool: Path) -> Iterator[Hosting]:
    """Make places for the hosts of ``run_on`` until the block ends: pods, or folders in the run's ``spool``.

    Raises ClusterError if a pod can't be made.
    """
    sections = {
        host_name(load["name"], place): load["run_on"].get("kubernetes")
        for load in timeline.workloads
        for place in range(load.get("run_on", {}).get("workers", 0))
    }
    here = dict.fromkeys((name for name, pods in sections.items() if pods is None), _HERE)
    in_pods = {name: pods for name, pods in sections.items() if pods is not None}
    if not in_pods:
        yield Hosting(here, str(spool / "hosts"))
        return
    if not isinstance(cluster, KubernetesCluster):
        raise TypeError(f"pods of clients beside brokers that are in none: {cluster}")  # `plan check` refuses it
    with worker_pods(cluster.api, cluster.place, in_pods, build.worker().name) as commands:
        yield Hosting({**here, **commands}, FOLDER)


class ClientHosts:
    """Hosts of one run, as an async context manager around that of the fleet.

    ``clients`` are those of each host, by its name. The evidence is complete, and
    how exact the hosts' clocks were is in ``run.json``, when the block has ended.
    """

    def __init__(
        self,
        clients: Mapping[str, Sequence[str]],
        where: Hosting,
        home: RunDir,
        clock: RunClock,
    ) -> None:
        self._clients, self._home = clients, home
        self._hosts = {
            name: RemoteHost(
                name, where.commands[name], home.run_id, f"{where.folder}/{name}", home.path, clock.origin_ns
            )
            for name in clients
        }
        self._open = AsyncExitStack()

    @property
    def spawns(self) -> Mapping[str, Spawn]:
        """The function that starts each client, by the client's name."""
        return {client: self._hosts[name].spawn for name, clients in self._clients.items() for client in clients}

    async def __aenter__(self) -> Self:
        try:
            for host in self._hosts.values():
                await self._open.enter_async_context(host)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()
        if self._hosts:
            self._home.update(**{HOSTS: self.facts()})

    async def save(self) -> None:
        """Bring what the hosts have recorded so far to the run directory."""
        await asyncio.gather(*(host.save() for host in self._hosts.values()))

    def readings(self) -> list[Reading]:
        return [Reading(None, f"clock.bound_us/{name}", host.bound_us) for name, host in self._hosts.items()]

    def facts(self) -> list[dict[str, object]]:
        """Return the clients of each host, and the bound of the errors of their times."""
        return [
            {"name": name, "clients": [*self._clients[name]], "clock_bound_us": host.bound_us}
            for name, host in self._hosts.items()
        ]

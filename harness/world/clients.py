"""The client processes of a run as faults see them."""

import asyncio
from collections.abc import Mapping, Sequence

from aftershock.faults.values import BrokerId, ClientProcess, SignOfLife
from aftershock.harness.cluster import Cluster
from aftershock.harness.crew import Crew
from aftershock.harness.membership import member_clients


class ClientsWorld:
    """See `faults.world.Crewed`."""

    _cluster: Cluster
    _crew: Crew

    async def clients(self) -> Sequence[ClientProcess]:
        """See `faults.world.Crewed`."""
        return await asyncio.to_thread(self._crew.members)

    async def kill_client(self, worker: str) -> None:
        """See `faults.world.Crewed`."""
        await asyncio.to_thread(self._crew.kill, worker)

    async def start_client(self, worker: str) -> None:
        """See `faults.world.Crewed`."""
        await asyncio.to_thread(self._crew.release, worker)

    async def pause_client(self, worker: str) -> None:
        """See `faults.world.Crewed`."""
        await asyncio.to_thread(self._crew.pause, worker)

    async def resume_client(self, worker: str) -> None:
        """See `faults.world.Crewed`."""
        await asyncio.to_thread(self._crew.resume, worker)

    async def sign_of_life(self, worker: str) -> SignOfLife | None:
        """See `faults.world.Crewed`."""
        beat = await asyncio.to_thread(self._crew.beat, worker)
        return beat and SignOfLife(*beat)

    async def in_group(self, worker: str) -> bool | None:
        """See `faults.world.Crewed`."""
        group = await asyncio.to_thread(self._crew.group, worker)
        return None if group is None else worker in await asyncio.to_thread(member_clients, self._cluster.admin, group)

    async def connections(self, worker: str) -> frozenset[str]:
        """See `faults.world.Crewed`."""
        return await asyncio.to_thread(self._crew.connections, worker)

    async def disconnect_client(self, worker: str) -> None:
        """See `faults.world.Crewed`."""
        await asyncio.to_thread(self._crew.disconnect, worker)

    async def fetch_sessions(self, worker: str) -> Mapping[BrokerId, int]:
        """See `faults.world.Crewed`."""
        return await asyncio.to_thread(self._crew.fetch_sessions, worker)

"""The links of a launched cluster as faults see them, over Toxiproxy."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kio.schema.api_versions.v3.request import ApiVersionsRequest

from aftershock.errors import FaultError
from aftershock.faults.world import BrokerId, Link, Toxic
from aftershock.harness.cluster import Cluster
from aftershock.harness.racks import Proxy
from aftershock.workloads.wire.connection import Address, Connection

_PROBE_TIMEOUT_S = 2.0


class LinksWorld:
    """See `faults.world`: Linked, Redirected."""

    _cluster: Cluster

    def __init__(self) -> None:
        self._proxies = {proxy.name: proxy for proxy in self._cluster.spec.topology.proxies()}
        # a probe of a silent link keeps its thread for seconds: nothing else, no heal above all, may queue behind those
        self._probing = ThreadPoolExecutor(max_workers=2 * len(self._proxies), thread_name_prefix="probe")

    def links(self) -> Sequence[Link]:
        """See `faults.world.Linked`."""
        return tuple(
            Link(proxy.name, proxy.channel, proxy.source_rack, BrokerId(proxy.node))
            for proxy in self._proxies.values()
            if proxy.channel != "admin" and proxy.source_rack is not None
        )

    async def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """See `faults.world.Linked`."""
        await asyncio.to_thread(self._cluster.toxiproxy.add_toxic, proxy, toxic)

    async def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """See `faults.world.Linked`."""
        await asyncio.to_thread(self._cluster.toxiproxy.update_toxic, proxy, toxic)

    async def remove_toxic(self, proxy: str, name: str) -> None:
        """See `faults.world.Linked`."""
        await asyncio.to_thread(self._cluster.toxiproxy.remove_toxic, proxy, name)

    async def toxics(self) -> Mapping[str, tuple[Toxic, ...]]:
        """See `faults.world.Linked`."""
        return await asyncio.to_thread(self._cluster.toxiproxy.toxics)

    async def disable(self, proxy: str) -> None:
        """See `faults.world.Linked`."""
        await asyncio.to_thread(self._cluster.toxiproxy.enable, proxy, enabled=False)

    async def enable(self, proxy: str) -> None:
        """See `faults.world.Linked`."""
        await asyncio.to_thread(self._cluster.toxiproxy.enable, proxy, enabled=True)

    async def disabled(self) -> frozenset[str]:
        """See `faults.world.Linked`."""
        return await asyncio.to_thread(self._cluster.toxiproxy.disabled)

    async def probe_ms(self, link: Link) -> float:
        """See `faults.world.Linked`: one ApiVersions round trip, the dial not counted."""
        address = self._address_of(self._proxies[link.proxy])
        try:
            return await asyncio.get_running_loop().run_in_executor(self._probing, _round_trip_ms, address)
        except OSError as error:
            raise FaultError(f"no answer through {link.proxy} ({address}): {error}") from error

    def _address_of(self, proxy: Proxy) -> Address:
        if proxy.listen_rack is None:
            return self._cluster.host_address(proxy.listen_port)
        return self._cluster.link_address(proxy.listen_rack, proxy.listen_port)


def _round_trip_ms(address: Address) -> float:
    request = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
    with Connection(address, _PROBE_TIMEOUT_S) as connection:
        started_s = time.perf_counter()
        connection.ask(request)
        return (time.perf_counter() - started_s) * 1000

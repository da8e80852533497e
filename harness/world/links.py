"""The links of a launched cluster as faults see them, over Toxiproxy."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from aftershock.errors import FaultError
from aftershock.faults.values import BrokerId, Link, Toxic
from aftershock.harness.admin import BROKER
from aftershock.harness.cluster import Cluster
from aftershock.harness.racks import Proxy
from aftershock.harness.world.probe import LinkProbe
from aftershock.workloads.wire.connection import Address, Connection
from aftershock.workloads.wire.security import PLAINTEXT, Security

_PROBE_TIMEOUT_S = 2.0


class LinksWorld:
    """See `faults.world`: Linked, Redirected."""

    _cluster: Cluster
    _security: Security = PLAINTEXT

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
            asking = partial(_round_trip_ms, address, self._security)
            return await asyncio.get_running_loop().run_in_executor(self._probing, asking)
        except OSError as error:
            raise FaultError(f"no answer through {link.proxy} ({address}): {error}") from error

    async def dial(self, link: Link) -> LinkProbe:
        """See `faults.world.Linked`."""
        address = self._address_of(self._proxies[link.proxy])
        try:
            return await LinkProbe.dial(address, self._security)
        except OSError as error:
            raise FaultError(f"no connection through {link.proxy} ({address}): {error}") from error

    async def upstreams(self) -> Mapping[str, str]:
        """See `faults.world.Redirected`."""
        return await asyncio.to_thread(self._cluster.toxiproxy.upstreams)

    async def redirect(self, proxy: str, upstream: str) -> None:
        """See `faults.world.Redirected`."""
        await asyncio.to_thread(self._cluster.toxiproxy.redirect, proxy, upstream)

    async def node_behind(self, link: Link) -> BrokerId:
        """See `faults.world.Redirected`: a broker describes its own settings and refuses to describe another's."""
        address = self._address_of(self._proxies[link.proxy])
        brokers = sorted({link.broker for link in self.links() if link.channel == "client"})
        try:
            asking = partial(_own_ids, address, brokers, self._security)
            found = await asyncio.get_running_loop().run_in_executor(self._probing, asking)
        except OSError as error:
            raise FaultError(f"no answer through {link.proxy} ({address}): {error}") from error
        if len(found) != 1:
            raise FaultError(f"whoever answers through {link.proxy} ({address}) takes itself for {found or 'nobody'}")
        return found[0]

    def _address_of(self, proxy: Proxy) -> Address:
        if proxy.listen_rack is None:
            return self._cluster.host_address(proxy.listen_port)
        return self._cluster.link_address(proxy.listen_rack, proxy.listen_port)


def _own_ids(address: Address, brokers: Sequence[BrokerId], security: Security) -> list[BrokerId]:
    """The ids that the broker there accepts as its own (`ConfigHelper`: "Unexpected broker id" for any other)."""
    resources = tuple(
        DescribeConfigsResource(resource_type=i8(BROKER), resource_name=str(broker), configuration_keys=("node.id",))
        for broker in brokers
    )
    with Connection(address, _PROBE_TIMEOUT_S, security) as connection:
        response: Any = connection.ask(DescribeConfigsRequest(resources=resources))
    return [BrokerId(int(each.resource_name)) for each in response.results if each.error_code == ErrorCode.none]


def _round_trip_ms(address: Address, security: Security) -> float:
    request = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
    with Connection(address, _PROBE_TIMEOUT_S, security) as connection:
        started_s = time.perf_counter()
        connection.ask(request)
        return (time.perf_counter() - started_s) * 1000

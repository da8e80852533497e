"""Connections to bootstrap addresses that are dead, silent, or lead to another broker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from aftershock.faults.wire_proxy.proxy import Proxy, Route
from aftershock.tests.unit.faults.wire_proxy.conftest import Hop
from aftershock.tests.unit.scripted.client import batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient


@pytest.fixture
async def doors(broker: ScriptedBroker) -> AsyncIterator[Hop]:
    """A proxy with an advertised and a bootstrap address for each of two brokers."""
    routes = [Route(f"client_a-k{node}", "a", node, address) for node, address in broker.addresses.items()]
    routes += [Route(f"bootstrap_a-k{node}", "a", node, at, bootstrap=True) for node, at in broker.addresses.items()]
    proxy = Proxy(routes)
    await proxy.open()
    broker.advertise({route.broker: proxy.addresses[route.name].port for route in routes if not route.bootstrap})
    async with contextlib.AsyncExitStack() as stack:
        yield Hop(proxy, stack)
    proxy.close()
    await asyncio.sleep(0)


async def knock(doors: Hop, node: int, door: str = "bootstrap") -> FrameClient:
    frame_client = await doors.dial(node=node, door=door)
    frame_client.send("Metadata", 12, topics=[])
    return frame_client


async def served(doors: Hop, node: int, door: str = "bootstrap") -> bool:
    frame_client = await knock(doors, node, door)
    try:
        await frame_client.frame()
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def test_a_dead_address(doors: Hop) -> None:
    """The other address, and the broker's own, are served; established connections to the dead address end."""
    before = await knock(doors, 1)
    await before.frame()
    rule = doors.rule("lose_bootstrap", brokers=(1,))
    assert b"" == await before.rest()
    assert [False, True, True] == [await served(doors, 1), await served(doors, 2), await served(doors, 1, "client")]
    assert 1 == doors.counts(rule)["hit"]
    doors.proxy.remove_rule(rule)
    assert await served(doors, 1)


async def test_a_silent_address(doors: Hop) -> None:
    """The connection is accepted, nothing comes, and the heal closes it."""
    rule = doors.rule("lose_bootstrap", brokers=(1,), connection="silent", rack="a")
    frame_client = await knock(doors, 1)
    assert await frame_client.is_silent()
    doors.proxy.remove_rule(rule)
    assert b"" == await frame_client.rest()


async def test_the_addresses_of_another_rack(doors: Hop) -> None:
    rule = doors.rule("lose_bootstrap", brokers=(1,), rack="b")
    assert await served(doors, 1)
    assert 0 == doors.counts(rule)["hit"]


async def test_an_address_that_leads_elsewhere(broker: ScriptedBroker, doors: Hop) -> None:
    """New connections reach the other broker; an established one stays, and names of brokers lead as before."""

    async def leads(frame_client: FrameClient) -> bool:
        return int((await frame_client.produce("t", batch())).error_code) == 0

    broker.create("t", leaders=[2])
    before = await knock(doors, 1)
    await before.frame()
    doors.rule("lose_bootstrap", brokers=(1,), broker=2)
    after = await knock(doors, 1)
    await after.frame()
    assert [False, True] == [await leads(before), await leads(after)]
    assert not await leads(await doors.dial(node=1))


async def test_a_refused_route(doors: Hop) -> None:
    """The kernel refuses connections to the broker's addresses, of which the ports stay; established ones go on."""
    before = await knock(doors, 1, "client")
    await before.frame()
    ports = dict(doors.proxy.addresses)
    await doors.proxy.listen("client_a-k1", on=False)
    await doors.proxy.listen("client_a-k1", on=False)
    for door in ("client", "bootstrap"):
        with pytest.raises(ConnectionRefusedError):
            await knock(doors, 1, door)
        assert await served(doors, 2, door)
    before.send("Metadata", 12, topics=[])
    assert await before.frame()
    await doors.proxy.listen("client_a-k1", on=True)
    assert ports == doors.proxy.addresses
    assert await served(doors, 1, "client")
    assert await served(doors, 1)
    with pytest.raises(ValueError, match="no route client_z-k1"):
        await doors.proxy.listen("client_z-k1", on=False)

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.faults.wire_proxy.proxy import Proxy, Route
from aftershock.faults.wire_proxy.rules import Rule
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.faults.wire_proxy.frame_client import FrameClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aftershock.workloads.kafka.wire.connection import Address


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=2) as started:
        yield started


@pytest.fixture
def broker(running: ScriptedBroker) -> ScriptedBroker:
    running.reset()
    return running


class Hop:
    """A proxy in front of a scripted broker, which advertises the proxy's addresses."""

    def __init__(self, proxy: Proxy, stack: contextlib.AsyncExitStack) -> None:
        self.proxy = proxy
        self._stack = stack

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self.proxy.addresses.values()))

    def address(self, node: int = 1, door: str = "client") -> Address:
        return self.proxy.addresses[f"{door}_a-k{node}"]

    def rule(self, do: Any, **fields: Any) -> str:
        """Add a rule and return its name."""
        self.proxy.add_rule(Rule(name=do, do=do, **fields))
        return str(do)

    def counts(self, name: str) -> dict[str, int]:
        return dict(self.proxy.active_rules.counters()[name])

    async def dial(self, client_id: str | None = "tester", node: int = 1, door: str = "client") -> FrameClient:
        frame_client = await FrameClient.open(self.address(node, door), client_id)
        self._stack.push_async_callback(frame_client.close)
        return frame_client


@pytest.fixture
async def hop(broker: ScriptedBroker) -> AsyncIterator[Hop]:
    ways = [Route(f"client_a-k{node}", "a", node, address) for node, address in broker.addresses.items()]
    proxy = Proxy(ways)
    await proxy.open()
    broker.advertise({way.broker: proxy.addresses[way.name].port for way in ways})
    async with contextlib.AsyncExitStack() as stack:
        yield Hop(proxy, stack)
    proxy.close()
    await asyncio.sleep(0)

"""Links as seen by probe connections: effects of toxics on bytes, on a close, and on a whole connection.

The fake does what ``tests/contract/test_toxics.py`` measures of Toxiproxy 2.12.0: a disabled or redirected proxy and a
healed ``timeout`` close their connections, rate 0 holds all bytes until it is removed, and toxics that close
connections also close new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, Exchange, Link, Toxic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aftershock.tests.unit.faults.fake_world import FakeWorld


QUESTION_BYTES, ANSWER_BYTES = 50, 500
TRIP_MS = 1.0
POLL_US = 10_000
NEVER_MS = 1e9
FREE_BYTES_PER_MS = 50_000  # bandwidth of a link without limits


class FakeProbe:
    """A connection through one proxy; it ends when the proxy closes its connections."""

    def __init__(self, world: FakeWorld, link: Link) -> None:
        self.world = world
        self.link = link
        self.made = world.closings.get(link.proxy, 0)
        self.crossed = {"upstream": 0, "downstream": 0}
        self.open = True

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        clock = self.world.clock
        began_us = clock.now_us()
        until_us = began_us + limit_ms * 1000
        sizes = {"upstream": QUESTION_BYTES + ballast_bytes, "downstream": ANSWER_BYTES + ballast_bytes}
        while True:
            end, ms, received = self._fate(sizes)
            done_us = began_us + int(ms * 1000)
            if clock.now_us() >= min(done_us, until_us):
                break
            await clock.sleep_until_us(min(done_us, until_us, clock.now_us() + POLL_US))
        if clock.now_us() < done_us:
            end, received = "silent", 0
        self.open = end in ("answered", "silent")
        for stream, size in sizes.items():
            self.crossed[stream] += size
        return Exchange(end, (clock.now_us() - began_us) / 1000, sizes["upstream"], received)

    async def close_ms(self, limit_ms: int) -> float:
        slow = [toxic.attributes["delay"] for toxic in self._toxics() if toxic.type == "slow_close"]
        ms = min(float(limit_ms), TRIP_MS + sum(slow))
        await self.world.clock.sleep_until_us(self.world.clock.now_us() + int(ms * 1000))
        self.open = False
        return ms

    async def hang_up(self) -> None:
        self.open = False
        self.world.hung_up += 1

    def _toxics(self) -> list[Toxic]:
        return list(self.world.proxies[self.link.proxy].values())

    def _ended(self) -> bool:
        return not self.open or self.made != self.world.closings.get(self.link.proxy, 0)

    def _fate(self, sizes: Mapping[str, int]) -> tuple[Literal["answered", "closed", "reset", "silent"], float, int]:
        """Return how a request ends under the current toxics, after how many ms, and how much of its response
        arrives.
        """
        if self.link.broker in self.world.vanished and not self._ended():
            return "silent", NEVER_MS, 0
        if self._ended() or self.world.states[self.link.broker] == "exited":
            return "closed", 0.0, 0
        ms, answered = TRIP_MS + sum(sizes.values()) / FREE_BYTES_PER_MS, sizes["downstream"]
        for toxic in self._toxics():
            value = toxic.attributes
            match toxic.type:
                case "timeout":
                    return ("closed", value["timeout"], 0) if value["timeout"] else ("silent", NEVER_MS, 0)
                case "reset_peer":
                    return "reset", TRIP_MS + value["timeout"], 0
                case "bandwidth" if value["rate"] == 0:
                    return "silent", NEVER_MS, 0
                case "bandwidth":
                    ms += sizes[toxic.stream] / value["rate"]
                case "slicer":
                    ms += (sizes[toxic.stream] - 1) // value["average_size"] * value["delay"] / 1000
                case "limit_data" if self.crossed[toxic.stream] + sizes[toxic.stream] > value["bytes"]:
                    left = value["bytes"] - self.crossed[toxic.stream]
                    return "closed", ms, left if toxic.stream == "downstream" else 0
                case "latency":
                    ms += value["latency"]
        return "answered", ms, answered


class FakeLinks:
    """Fake of `faults.runtime.world`: dialling of links, and redirection of proxies."""

    def __init__(self) -> None:
        super().__init__()
        self.closings: dict[str, int] = {}
        self.turned: dict[str, str] = {}
        self.hung_up = 0

    async def dial(self: FakeWorld, link: Link) -> FakeProbe:
        await self._called("dial", link.proxy)
        if link.channel != "client":
            raise FaultError(f"there is no way into {link.proxy}")
        if link.proxy in self.shut or self.states[link.broker] == "exited":
            raise FaultError(f"connection refused by {link.proxy}")
        return FakeProbe(self, link)

    async def upstreams(self: FakeWorld) -> Mapping[str, str]:
        await self._called("upstreams", None)
        return {link.proxy: f"b{link.broker}:91" for link in self.links()} | self.turned

    async def redirect(self: FakeWorld, proxy: str, upstream: str) -> None:
        await self._called("redirect", (proxy, upstream))
        self.turned[proxy] = upstream
        self.close_through(proxy)

    async def node_behind(self: FakeWorld, link: Link) -> BrokerId:
        upstream = (await self.upstreams())[link.proxy]
        node = BrokerId(int(upstream.partition(":")[0].removeprefix("b")))
        if self.states[node] != "running" or link.proxy in self.shut:
            raise FaultError(f"no answer through {link.proxy}")
        return node

    def close_through(self, proxy: str) -> None:
        """End every connection through a proxy."""
        self.closings[proxy] = self.closings.get(proxy, 0) + 1

    def straight(self) -> bool:
        """Return whether every proxy leads to its own broker."""
        return all(upstream == f"b{proxy.rpartition('-k')[2]}:91" for proxy, upstream in self.turned.items())

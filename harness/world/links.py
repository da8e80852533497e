"""Operations for faults on network links (toxics of Toxiproxy) and on rules of the wire proxy, and probes of both.

A probe of a link is a connection of the harness over that link. A link probe usually sends ApiVersions, which every
listener answers. For a large request and response, a link probe asks for Metadata of topics with long names that don't
exist, without auto-creation, which is almost no work for the broker; a controller does not answer Metadata requests.

A probe of a wire proxy rule sends two requests of the harness through the wire proxy. The first is ApiVersions with a
client id that no rule matches, to prove that the broker answers; the second has a client id that only the probed rule
matches.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from kio.static.protocol import RequestPayload

from aftershock.errors import ClientError, FaultError
from aftershock.faults.targets.values import (
    Answer,
    BrokerId,
    Exchange,
    Link,
    Outcome,
    PacketChange,
    PacketCounts,
    Stream,
)
from aftershock.faults.wire_proxy.messages import probe_request
from aftershock.faults.wire_proxy.responses import epochs_in, error_codes_in, throttle_ms_in
from aftershock.faults.wire_proxy.rules import API_NAMES, probe_id
from aftershock.harness.cluster import packets
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.proxies import Toxiproxy, WireProxy
from aftershock.harness.cluster.topology import Proxy
from aftershock.harness.kafka.admin import VERSIONS_REQUEST, metadata_request
from aftershock.harness.kafka.settings import own_ids
from aftershock.harness.world.threads import delegate, in_thread
from aftershock.workloads.kafka.wire.codec import PREFIX, decode_response, encode_frame, response_type
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.login import login
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security

_TOXIPROXY = "_cluster.toxiproxy"
_DIAL_TIMEOUT_S = 2.0
_NAME_BYTES_MAX = 249  # the longest topic name (Kafka: Topic.java)
_READ_BYTES = 1 << 16
_PROBE_TIMEOUT_S = 2.0
T = TypeVar("T")


class LinkProbe:
    """A probe connection over a network link, by the protocol `faults.runtime.world.Probe`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received_bytes = 0
        self._request_count = 0

    @classmethod
    async def dial(cls, address: Address, security: Security = PLAINTEXT) -> Self:
        """Connect to a broker and log in; raise OSError if the broker refuses or does not answer in time."""
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            probe = cls(*await asyncio.open_connection(*address, ssl=security.tls))
            steps, response = login(security), None
            try:
                while True:
                    response = await probe.request(steps.send(response))
            except StopIteration:
                return probe
            except (EOFError, ClientError) as error:
                await probe.hang_up()
                raise ConnectionError(str(error) or "the broker closed the connection") from error

    async def ask(self, ballast_bytes: int, limit_ms: int) -> Exchange:
        payload: RequestPayload = VERSIONS_REQUEST
        if ballast_bytes:
            count = -(-ballast_bytes // _NAME_BYTES_MAX)
            names = [f"{number:06d}".ljust(_NAME_BYTES_MAX, "x") for number in range(count)]
            names[-1] = names[-1][: max(6, ballast_bytes - _NAME_BYTES_MAX * (count - 1))]
            payload = metadata_request(names)
        self._request_count += 1
        request = encode_frame(payload, self._request_count, "aftershock")
        before_bytes, began_s = self._received_bytes, time.perf_counter()
        end: Any = "answered"
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._exchange(request)
        except TimeoutError:
            end = "silent"
        except EOFError:
            end = "closed"
        except OSError as error:
            end = "reset" if error.errno else "closed"  # asyncio's own error, without errno, is a close
        ms = (time.perf_counter() - began_s) * 1000
        return Exchange(end, ms, len(request), self._received_bytes - before_bytes)

    async def close_ms(self, limit_ms: int) -> float:
        if not self._writer.can_write_eof():
            raise FaultError(
                "one direction of a TLS connection can't be closed, so the effect of the fault can't be measured"
            )
        began_s = time.perf_counter()
        with suppress(OSError):  # a reset ends the connection too, and a timeout counts as the limit
            async with asyncio.timeout(limit_ms / 1000):
                self._writer.write_eof()
                while await self._reader.read(_READ_BYTES):
                    pass
        return min(float(limit_ms), (time.perf_counter() - began_s) * 1000)

    async def hang_up(self) -> None:
        self._writer.transport.abort()

    async def request(self, request: RequestPayload, client_id: str = "aftershock") -> Any:
        self._request_count += 1
        message = await self._exchange(encode_frame(request, self._request_count, client_id))
        return decode_response(response_type(type(request)), message, self._request_count)

    async def _exchange(self, frame: bytes) -> bytes:
        self._writer.write(frame)
        await self._writer.drain()
        (length,) = PREFIX.unpack(await self._read(PREFIX.size))
        return await self._read(length)

    async def _read(self, count: int) -> bytes:
        buffer = bytearray()
        while len(buffer) < count:
            chunk = await self._reader.read(min(count - len(buffer), _READ_BYTES))
            if not chunk:
                raise EOFError
            self._received_bytes += len(chunk)
            buffer += chunk
        return bytes(buffer)


class LinksWorld:
    """Operations of faults on links, by the protocol `faults.runtime.world.Linked`."""

    _cluster: Cluster
    _security: Security = PLAINTEXT

    def __init__(self) -> None:
        self._proxies = {proxy.name: proxy for proxy in self._cluster.spec.topology.proxies()}
        # a probe of a silent link keeps its thread for seconds, so probes have threads of their own: nothing else,
        # above all no heal, may queue behind them
        self._probing = ThreadPoolExecutor(max_workers=2 * len(self._proxies), thread_name_prefix="probe")

    def links(self) -> Sequence[Link]:
        return tuple(
            Link(proxy.name, proxy.channel, proxy.source_rack, BrokerId(proxy.node))
            for proxy in self._proxies.values()
            if proxy.channel != "admin" and proxy.source_rack is not None
        )

    def takes_toxics(self, link: Link) -> bool:  # noqa: ARG002 -- in a launched cluster, every link has a proxy
        return True

    add_toxic = delegate(_TOXIPROXY, Toxiproxy.add_toxic)
    update_toxic = delegate(_TOXIPROXY, Toxiproxy.update_toxic)
    remove_toxic = delegate(_TOXIPROXY, Toxiproxy.remove_toxic)
    toxics = delegate(_TOXIPROXY, Toxiproxy.toxics)
    disabled = delegate(_TOXIPROXY, Toxiproxy.disabled)
    upstreams = delegate(_TOXIPROXY, Toxiproxy.upstreams)
    redirect = delegate(_TOXIPROXY, Toxiproxy.redirect)

    async def disable(self, proxy: str) -> None:
        """Disable a proxy; with a wire proxy, the kernel refuses the connections of clients.

        Without one they are accepted and closed, because Docker forwards the port of a Toxiproxy listener that is gone.
        """
        await self._listen(proxy, on=False)
        await asyncio.to_thread(self._cluster.toxiproxy.enable, proxy, enabled=False)

    async def enable(self, proxy: str) -> None:
        await asyncio.to_thread(self._cluster.toxiproxy.enable, proxy, enabled=True)
        await self._listen(proxy, on=True)

    async def _listen(self, proxy: str, *, on: bool) -> None:
        wire_proxy = self._cluster.wire_proxy
        if wire_proxy is not None and proxy in wire_proxy.addresses:
            await asyncio.to_thread(wire_proxy.listen, proxy, on=on)

    async def probe_ms(self, link: Link) -> float:
        """Return the round-trip time of an ApiVersions request over a link, without the time to connect."""

        def round_trip(connection: Connection) -> float:
            started_s = time.perf_counter()
            connection.ask(VERSIONS_REQUEST)
            return (time.perf_counter() - started_s) * 1000

        return await self._probe(link, round_trip)

    async def dial(self, link: Link) -> LinkProbe:
        address = self._address_of(self._proxies[link.proxy])
        try:
            return await LinkProbe.dial(address, self._security)
        except OSError as error:
            raise FaultError(f"no connection through the link {link.proxy} ({address}): {error}") from error

    async def node_behind(self, link: Link) -> BrokerId:
        """Return the id of the broker at the end of a link."""
        brokers = sorted({link.broker for link in self.links() if link.channel == "client"})
        ids = await self._probe(link, lambda connection: own_ids(connection, brokers))
        if len(ids) != 1:
            raise FaultError(
                f"the broker behind the link {link.proxy} can't be identified: it returns settings for the node ids "
                f"{ids} instead of one id"
            )
        return ids[0]

    def has_packet_control(self) -> bool:
        return self._cluster.spec.packets

    @in_thread
    def change_packets(self, fault: str, streams: Sequence[tuple[str, Stream]], change: PacketChange) -> None:
        legs = [self._cluster.leg(self._proxies[name], inward=stream == "upstream") for name, stream in streams]
        self._cluster.packets.change(fault, legs, change)

    async def isolate(self, fault: str, broker: BrokerId) -> None:
        raise FaultError(
            f"the fault {fault} can't isolate broker {broker}: only containers of attached clusters can be"
        )

    @in_thread
    def remove_packet_rules(self, fault: str) -> None:
        self._cluster.packets.remove(fault)

    @in_thread
    def has_packet_rules(self, fault: str) -> bool:
        return self._cluster.packets.present(fault)

    @in_thread
    def packet_counts(self, fault: str) -> PacketCounts:
        """Return the counters of a fault's rules; the ends of links are Toxiproxy, this host, and the nodes."""
        counts = self._cluster.packets.counts(fault)
        ends = ("self", *(node.container.attrs["State"]["Pid"] for node in self._cluster.nodes.values()))
        total = Counter(counts.tcp)
        for pid in ends:
            with suppress(OSError):  # a node that does not run, or an engine on another host
                files = (Path(f"/proc/{pid}/net/{name}") for name in ("snmp", "netstat"))
                total.update(packets.tcp_counters("\n".join(file.read_text(encoding="ascii") for file in files)))
        return replace(counts, tcp=total)

    async def _probe(self, link: Link, exchange: Callable[[Connection], T]) -> T:
        address = self._address_of(self._proxies[link.proxy])

        def run() -> T:
            with Connection(address, _PROBE_TIMEOUT_S, self._security) as connection:
                return exchange(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._probing, run)
        except (OSError, ClientError) as error:
            raise FaultError(f"no answer through the link {link.proxy} ({address}): {error}") from error

    def _address_of(self, proxy: Proxy) -> Address:
        if proxy.listen_rack is None:
            return self._cluster.host_address(proxy.listen_port)
        return self._cluster.link_address(proxy.listen_rack, proxy.listen_port)


_VERSIONS_S = 2.0


async def probe_rule(
    addresses: Iterable[Address], rule: str, api: str, limit_ms: int, topic: str | None = None
) -> Answer:
    """Probe a wire proxy rule over the first address that answers; raise FaultError if no address answers."""
    for address in addresses:
        try:
            probe = await LinkProbe.dial(address)
        except OSError:
            continue
        try:
            async with asyncio.timeout(_VERSIONS_S):
                versions = await probe.request(VERSIONS_REQUEST, probe_id(""))
            known = {item.api_key: (item.min_version, item.max_version) for item in versions.api_keys}
            request = probe_request(api, known, topic) if topic else probe_request(api, known)
            outcome: Outcome = "answered"
            response, began_s = None, time.perf_counter()
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    response = await probe.request(request, probe_id(rule))
            except TimeoutError:
                outcome = "silent"
            except (OSError, EOFError):
                outcome = "closed"
            ms = (time.perf_counter() - began_s) * 1000
            offered = getattr(response, "api_keys", ())
            offered_versions = {API_NAMES[v.api_key]: v.max_version for v in offered if v.api_key in API_NAMES}
            features = {item.name: item.max_version_level for item in getattr(response, "finalized_features", ())}
            errors = frozenset(error_codes_in(response))
            return Answer(
                outcome, ms, errors, offered_versions, features, throttle_ms_in(response), epochs_in(response)
            )
        except (OSError, EOFError, ClientError):  # no answer to the first request
            continue
        finally:
            await probe.hang_up()
    raise FaultError("no broker answers the harness through the wire proxy, so the wire proxy's rule can't be measured")


class RulesWorld:
    """Operations of faults on wire proxy rules, by the protocol `faults.runtime.world.WireProxyControl`."""

    _cluster: Cluster

    add_rule = delegate("_proxy", WireProxy.add_rule)
    rules = delegate("_proxy", WireProxy.rules)

    async def remove_rule(self, name: str) -> None:
        if self._cluster.wire_proxy is not None:
            await asyncio.to_thread(self._cluster.wire_proxy.remove_rule, name)

    async def probe_rule(self, name: str, api: str, limit_ms: int, topic: str | None = None) -> Answer:
        return await probe_rule(self._proxy.addresses.values(), name, api, limit_ms, topic)

    async def ask_bootstrap(self, rack: str, broker: BrokerId, limit_ms: int) -> tuple[Outcome, BrokerId | None]:
        address = self._proxy.bootstrap_address(rack, broker)
        try:
            probe = await LinkProbe.dial(address)
        except OSError:
            return "closed", None
        try:
            exchange = await probe.ask(0, limit_ms)
        finally:
            await probe.hang_up()
        if exchange.end != "answered":
            return ("silent" if exchange.end == "silent" else "closed"), None

        def identified() -> list[BrokerId]:
            with Connection(address, limit_ms / 1000) as connection:
                return list(own_ids(connection, sorted(self._cluster.broker_racks)))

        try:
            ids = await asyncio.to_thread(identified)
        except (OSError, ClientError):
            return "closed", None
        return "answered", ids[0] if len(ids) == 1 else None

    @property
    def _proxy(self) -> WireProxy:
        if self._cluster.wire_proxy is None:
            raise FaultError(
                "this cluster has no wire proxy, so its clients' requests can't be changed; launch it with "
                "`cluster: {wire_proxy: true}`"
            )
        return self._cluster.wire_proxy

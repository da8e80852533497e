import asyncio
import socket
from collections.abc import Iterator
from random import Random
from typing import Any, Self

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest

from aftershock.errors import ClientError, ProtocolError, UnsupportedError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.tests.unit.workloads.kafka.producing import DEADLINE_S, until
from aftershock.workloads.kafka.client import network_client
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.settings import ClientSettings, parse
from aftershock.workloads.kafka.client.tasks import monotonic_ms
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff, MetadataResponse, Node
from aftershock.workloads.kafka.wire.connection import Address

METADATA_REQUEST = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()


class Bench:
    """A network client on its own, with its events and the number of its callbacks."""

    def __init__(self, bootstrap: str, seed: int = 7, **changes: object) -> None:
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 5}
        self.settings = parse(ClientSettings, {"bootstrap.servers": bootstrap} | quick | changes)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.changes = 0
        self.complaints: set[object] = set()
        self.now_ms = monotonic_ms
        draw = Random(seed)  # noqa: S311  # no secret
        self.metadata = Metadata(backoff=Backoff(5, 20, draw))
        self.brokers = NetworkClient(
            self.settings,
            self.metadata,
            self._clock,
            on_event=lambda event, **details: self.told.append((event, details)),
            draw=draw,
            on_change=self._changed,
        )

    def _clock(self) -> float:
        return self.now_ms()

    def _changed(self) -> None:
        self.changes += 1
        self.complaints.add(self.brokers.unsupported)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.brokers.close()
        assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_a_refresh_feeds_the_metadata(cluster: ScriptedBroker) -> None:
    """The wanted topics are requested, and known afterwards; the request creates no topics."""
    topic = fresh_topic(cluster, 2)
    async with Bench(cluster.bootstrap) as bench:
        bench.metadata.want([topic, "no-such-topic"])
        assert await bench.brokers.refresh()
        found = bench.metadata.topic(topic)
        assert found
        assert (2, {1, 2, 3}) == (len(found.partitions), set(bench.metadata.nodes))
        request = cluster.journal("Metadata", topic=topic)[-1]
        assert (False, 13) == (request.fields["allow_auto_topic_creation"], request.version)


async def test_concurrent_refreshes_share_one_request(cluster: ScriptedBroker) -> None:
    topic = fresh_topic(cluster)
    async with Bench(cluster.bootstrap) as bench:
        bench.metadata.want([topic])
        assert [True] * 3 == await asyncio.gather(*(bench.brokers.refresh() for _ in range(3)))
        assert 1 == len(cluster.journal("Metadata", topic=topic))


async def test_refresh_if_due_follows_the_timetable(cluster: ScriptedBroker) -> None:
    """At once when a topic is wanted, never while a request is in flight, then not before metadata.max.age.ms."""
    topic = fresh_topic(cluster)
    async with Bench(cluster.bootstrap) as bench:
        bench.metadata.want([topic])
        assert float("inf") == bench.brokers.refresh_if_due()
        assert await bench.brokers.refresh()
        assert 290_000 < bench.brokers.refresh_if_due() <= 300_000
        assert 1 == len(cluster.journal("Metadata", topic=topic))


async def test_a_dead_bootstrap_address_is_skipped(cluster: ScriptedBroker) -> None:
    """Any address that answers will do, in any order."""
    for _ in range(3):
        async with Bench(f"127.0.0.1:1,{cluster.bootstrap},127.0.0.1:2") as bench:
            assert await bench.brokers.refresh()


async def test_unreachable_bootstrap_servers_are_an_error() -> None:
    """Both a refresh and a channel raise ConnectionError without hanging."""
    async with Bench("127.0.0.1:1") as bench:
        assert not await bench.brokers.refresh()
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
            await bench.brokers.any()
        assert 1 == bench.metadata.counts["metadata_failed"]


async def test_rebootstrap_when_all_known_nodes_are_gone(cluster: ScriptedBroker) -> None:
    """The addresses from metadata are dead; the user's bootstrap addresses are not."""
    with ScriptedBroker(nodes=2) as gone:
        async with Bench(gone.bootstrap) as bench:
            assert await bench.brokers.refresh()
            for node in gone.addresses:
                gone.down(node)
            bench.brokers._bootstrap = [*cluster.addresses.values()]
            await until(lambda: bench.brokers.refresh_if_due() and 3 in bench.metadata.nodes, lambda: str(bench.told))
            assert {1, 2, 3} == set(bench.metadata.nodes)


async def test_a_broker_can_require_a_rebootstrap(cluster: ScriptedBroker) -> None:
    """KIP-1102: connections to known nodes are closed, metadata is forgotten and requested from a bootstrap address."""
    topic = fresh_topic(cluster)
    async with Bench(str(cluster.addresses[3])) as bench:
        bench.metadata.want([topic])
        await bench.brokers.refresh()
        channel = await bench.brokers.channel(1)
        version = bench.metadata.version
        cluster.script("Metadata", node=1, top_error=ErrorCode.rebootstrap_required)
        assert not await bench.brokers.refresh()
        assert ({}, None) == (bench.metadata.nodes, bench.metadata.topic(topic))
        assert bench.metadata.version > version
        await until(lambda: channel.closed, lambda: "not closed")
        await until(lambda: bench.brokers.refresh_if_due() and bench.metadata.nodes, lambda: str(bench.told))
        assert [3, 1, 3] == [seen.node for seen in cluster.journal("Metadata", topic=topic)]
        assert bench.metadata.topic(topic)
        assert 1 == bench.metadata.counts["metadata_rebootstraps"]
        assert 0 == bench.metadata.counts["metadata_failed"]


async def test_failures_for_long_enough_cause_a_rebootstrap(cluster: ScriptedBroker) -> None:
    """After metadata.recovery.rebootstrap.trigger.ms without a success, counted from the first request that was due."""
    async with Bench(cluster.bootstrap, metadata_recovery_rebootstrap_trigger_ms=60_000) as bench:
        await bench.brokers.refresh()
        cluster.script("Metadata", answer="refuse", times=1000)
        for later_ms, rebootstraps in ((0, 0), (59_000, 0), (2_000, 1), (59_000, 1), (2_000, 2)):
            now_ms = bench.now_ms() + later_ms + 100
            bench.now_ms = lambda now_ms=now_ms: now_ms  # type: ignore[misc]
            bench.metadata.request_update()
            assert float("inf") == bench.brokers.refresh_if_due()
            await until(lambda: bench.brokers._refreshing is None, lambda: "no end of the refresh")
            assert rebootstraps == bench.metadata.counts["metadata_rebootstraps"]
        cluster.clear()
        assert await bench.brokers.refresh()
        assert {1, 2, 3} == set(bench.metadata.nodes)


async def test_a_silent_bootstrap_broker_is_not_asked_again(cluster: ScriptedBroker) -> None:
    """Once nodes are known, metadata is requested over their connections, and the bootstrap connection is closed."""
    topic = fresh_topic(cluster)
    async with Bench(str(cluster.addresses[1])) as bench:
        assert await bench.brokers.refresh()
        black_hole = cluster.script("Metadata", node=1, times=100, answer="lost")
        await asyncio.gather(bench.brokers.channel(2), bench.brokers.channel(3))
        bench.metadata.want([topic])
        async with asyncio.timeout(DEADLINE_S):
            assert [True] * 12 == [await bench.brokers.refresh() for _ in range(12)]
        assert 0 == cluster.fired(black_hole)
        assert {2, 3} == {seen.node for seen in cluster.journal("Metadata", topic=topic)}
        first = bench.brokers._links[0, "bootstrap"]
        later_ms = bench.now_ms() + 1_001
        bench.now_ms = lambda: later_ms
        bench.brokers.refresh_if_due()
        await until(lambda: first.open is None, lambda: "not closed")
        assert sum(first.traffic) > 0


async def test_nodes_that_metadata_no_longer_names_are_not_asked(cluster: ScriptedBroker) -> None:
    """The connection of a node that left the cluster may still be open."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        gone = await bench.brokers.channel(2)
        bench.metadata.update(MetadataResponse((bench.metadata.nodes[1],), ()), bench.now_ms())
        assert cluster.addresses[1] == (await bench.brokers.any()).address != gone.address


async def test_channels_are_per_node_and_purpose(cluster: ScriptedBroker) -> None:
    """A second call returns the same channel; another purpose has another channel."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        first = await bench.brokers.channel(2)
        assert first is await bench.brokers.channel(2)
        assert first is bench.brokers.ready(2)
        assert first is not await bench.brokers.channel(2, "coordinator")
        assert cluster.addresses[2] == first.address


async def test_metadata_may_have_its_own_connection(cluster: ScriptedBroker) -> None:
    """By default it shares the data's connection, as in Kafka; with the option no other request uses it."""
    for own, shared in ((False, True), (True, False)):
        async with Bench(cluster.bootstrap, metadata_own_connection=own) as bench:
            await bench.brokers.refresh()
            data = [await bench.brokers.channel(node_id) for node_id in bench.metadata.nodes]
            asked = await bench.brokers.any()
            assert shared == (asked in data)
            assert asked is await bench.brokers.any() or shared
            assert await bench.brokers.refresh()


async def test_ready_connects_in_the_background(cluster: ScriptedBroker) -> None:
    """The call never waits; once the connection is open, on_change is called."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        changes = bench.changes
        assert bench.brokers.ready(3) is None
        assert float("inf") == bench.brokers.wait_ms(3)
        await until(lambda: bench.brokers.ready(3), lambda: "not connected")
        assert bench.changes > changes


async def test_a_refused_connection_backs_off() -> None:
    """20 ms the first time, twice that the next, each within 20 %; no attempt meanwhile. Success resets the
    back-off.
    """
    with ScriptedBroker() as own:
        async with Bench(own.bootstrap) as bench:
            await bench.brokers.refresh()
            own.down(1)
            waits = []
            for _ in range(3):
                with pytest.raises(ConnectionError):
                    await bench.brokers.channel(1)
                waits.append(bench.brokers.wait_ms(1))
                now_ms = bench.now_ms() + bench.brokers.wait_ms(1) + 1
                bench.now_ms = lambda now_ms=now_ms: now_ms  # type: ignore[misc]
            assert [pytest.approx(each, rel=0.35) for each in (20, 40, 80)] == waits
            own.up(1)
            assert await bench.brokers.channel(1)
            own.close_connections(1)
            await until(lambda: bench.brokers.ready(1, before_metadata=True) is None, lambda: "not lost")
            assert 24 >= bench.brokers.wait_ms(1)


async def test_no_connection_is_ready_while_a_metadata_request_is_due(cluster: ScriptedBroker) -> None:
    """``NetworkClient.isReady``: until the Metadata request is sent; its response isn't awaited."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        channel = await bench.brokers.channel(1)
        assert channel is bench.brokers.ready(1)
        later_ms = bench.now_ms() + 1_000
        bench.now_ms = lambda: later_ms
        bench.metadata.request_update()
        assert bench.brokers.ready(1) is None
        assert channel is bench.brokers.ready(1, before_metadata=True)
        cluster.script("Metadata", answer="none")
        changes = bench.changes
        bench.brokers.refresh_if_due()
        await until(lambda: bench.changes > changes, lambda: "no Metadata request was sent")
        assert channel is bench.brokers.ready(1)


async def test_a_lost_connection_requests_metadata(cluster: ScriptedBroker) -> None:
    """The node may be gone: the loss gives an event, and a refresh is due at once."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        await bench.brokers.channel(1)
        cluster.close_connections(1)
        lost = ("node_disconnected", {"node_id": 1, "why": "the connection was lost"})
        await until(lambda: bench.brokers.refresh_if_due() and lost in bench.told, lambda: str(bench.told))


async def test_a_request_that_times_out_is_an_event_of_its_own(cluster: ScriptedBroker) -> None:
    """Before the event of the connection, which the time-out closes."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        channel = await bench.brokers.channel(1)
        cluster.script("Metadata", node=1, answer="none")
        with pytest.raises(TimeoutError):
            await channel.request(METADATA_REQUEST, timeout_ms=20)
        assert channel.timed_out
        told = [
            ("request_timed_out", {"node_id": 1}),
            ("node_disconnected", {"node_id": 1, "why": "a request timed out"}),
        ]
        await until(lambda: bench.brokers.refresh_if_due() and told[1] in bench.told, lambda: str(bench.told))
        at = bench.told.index(told[0])
        assert told == bench.told[at : at + 2]


async def test_an_unknown_node_is_a_connection_error(cluster: ScriptedBroker) -> None:
    """Its address is unknown."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        assert bench.brokers.ready(99) is None
        with pytest.raises(ConnectionError, match="an unknown node"):
            await bench.brokers.channel(99)


async def test_a_peer_that_is_not_a_broker() -> None:
    """ProtocolError, and the refresh fails rather than hangs."""

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    async with Bench(f"{host}:{port}") as bench:
        with pytest.raises(ProtocolError):
            await bench.brokers.any()
        assert not await bench.brokers.refresh()
    server.close()
    await server.wait_closed()


async def test_a_peer_that_never_answers() -> None:
    """socket.connection.setup.timeout.ms bounds the wait for the connection and its ApiVersions."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host, port = deaf.getsockname()
        async with Bench(f"{host}:{port}", **{"socket.connection.setup.timeout.ms": 50}) as bench:
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(ConnectionError, match="50 ms"):
                    await bench.brokers.any()


async def test_metadata_that_is_too_old() -> None:
    """A broker without a Metadata version that has topic ids: UnsupportedError with both ranges, also in the
    background.
    """
    with ScriptedBroker(versions={"Metadata": (0, 8)}) as old:
        async with Bench(old.bootstrap) as bench:
            with pytest.raises(UnsupportedError, match="0 to 8"):
                await bench.brokers.refresh()
            assert isinstance(bench.brokers.unsupported, ClientError)


@pytest.mark.parametrize("old", ["Metadata", "ApiVersions"])
async def test_one_old_broker_among_others_is_skipped(cluster: ScriptedBroker, old: str) -> None:
    """Whichever broker is tried first, the others serve, and no call raises UnsupportedError."""
    with ScriptedBroker(versions={"Metadata": (0, 8)} if old == "Metadata" else {}) as one:
        if old == "ApiVersions":
            one.script("ApiVersions", times=100, error=ErrorCode.unsupported_version)
        for seed in range(6):
            async with Bench(f"{one.bootstrap},{cluster.addresses[1]}", seed) as bench:
                assert await bench.brokers.refresh()
                assert {1, 2, 3} == set(bench.metadata.nodes)
                assert {None} == bench.complaints
        assert one.journal("ApiVersions")


async def test_an_upgraded_broker_ends_the_unsupported_error(cluster: ScriptedBroker) -> None:
    """An old broker is replaced by a newer one: the next successful answer clears the error."""
    with ScriptedBroker(versions={"Metadata": (0, 8)}) as old:
        async with Bench(old.bootstrap) as bench:
            with pytest.raises(UnsupportedError):
                await bench.brokers.refresh()
            bench.brokers._bootstrap = [cluster.addresses[1]]
            old.down(1)
            await until(lambda: bench.brokers.refresh_if_due() and bench.metadata.nodes, lambda: str(bench.told))
            assert bench.brokers.unsupported is None


def refuse_to_translate(_response: object) -> MetadataResponse:
    raise KeyError("a bug of ours")


@pytest.mark.parametrize(("topic", "broken"), [("\udc80", False), ("t", True)])
async def test_a_failed_refresh_is_retried_after_the_back_off(
    cluster: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, topic: str, *, broken: bool
) -> None:
    """A request that can't be encoded, or an answer that can't be processed, gives an event and counts as failed."""
    async with Bench(cluster.bootstrap) as bench:
        assert await bench.brokers.refresh()
        with monkeypatch.context() as patch:
            if broken:
                patch.setattr(network_client, "metadata_response", refuse_to_translate)
            bench.metadata.want([topic])
            with pytest.raises((KeyError, ValueError)) as wrong:
                await bench.brokers.refresh()
        assert ("metadata_failed", {"why": str(wrong.value)}) in bench.told
        assert 1 == bench.metadata.counts["metadata_failed"]
        now_ms = bench.now_ms()
        bench.now_ms = lambda: now_ms
        assert 0 < bench.brokers.refresh_if_due() <= 24


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("a..b", 9092), ("a\0b", 9092)])
async def test_an_invalid_address_is_a_failed_connection(cluster: ScriptedBroker, host: str, port: int) -> None:
    """ConnectionError, an event, a callback, and no attempt before the back-off."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        bench.metadata.move_leaders({}, [Node(1, host, port)])
        changes = bench.changes
        with pytest.raises(ConnectionError):
            await bench.brokers.channel(1)
        assert bench.changes > changes
        assert 0 < bench.brokers.wait_ms(1) <= 24
        assert "node_disconnected" in [event for event, _ in bench.told]


async def test_a_coordinator_is_dialled_at_its_own_address(cluster: ScriptedBroker) -> None:
    """Metadata may not list the coordinator; a fetch still uses the address from metadata."""
    elsewhere = cluster.addresses[3]
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        for node_id in (2, 99):
            bench.brokers.set_coordinator(Node(node_id, elsewhere.host, elsewhere.port))
            assert elsewhere == (await bench.brokers.channel(node_id, "coordinator")).address
        assert cluster.addresses[2] == (await bench.brokers.channel(2)).address


async def test_a_coordinators_address_is_dropped_on_failure(cluster: ScriptedBroker) -> None:
    """The coordinator may have moved: the next attempt uses the address from metadata."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        bench.brokers.set_coordinator(Node(2, "127.0.0.1", 1))
        with pytest.raises(ConnectionError):
            await bench.brokers.channel(2, "coordinator")
        now_ms = bench.now_ms() + 1_000
        bench.now_ms = lambda: now_ms
        assert cluster.addresses[2] == (await bench.brokers.channel(2, "coordinator")).address


async def test_bytes_are_counted_by_node(cluster: ScriptedBroker) -> None:
    """Bootstrap connections count for the node at that address, and the bytes of a closed connection are kept."""
    async with Bench(str(cluster.addresses[1])) as bench:
        await bench.brokers.refresh()
        await bench.brokers.channel(2)
        before = bench.brokers.traffic
        assert {1, 2} == set(before)
        assert all(sent > 0 and received > 0 for sent, received in before.values())
        cluster.close_connections(2)
        await until(lambda: bench.brokers.ready(2, before_metadata=True) is None, lambda: "not lost")
        assert before[2] == bench.brokers.traffic[2]


async def test_idle_connections_are_closed(cluster: ScriptedBroker) -> None:
    """After connections.max.idle.ms without use; the next use opens another connection without back-off."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        idle = await bench.brokers.channel(1)
        later_ms = bench.now_ms() + bench.settings.connections_max_idle_ms + 10
        bench.now_ms = lambda: later_ms
        busy = await bench.brokers.channel(2)
        bench.brokers.refresh_if_due()
        await until(lambda: idle.closed, lambda: "not closed")
        assert not busy.closed
        assert idle is not await bench.brokers.channel(1)
        assert not [event for event, _ in bench.told if event == "node_disconnected"]


async def test_no_connection_is_opened_after_close(cluster: ScriptedBroker) -> None:
    """Callers get ConnectionError; a refresh in flight has ended."""
    bench = Bench(cluster.bootstrap)
    bench.brokers.refresh_if_due()
    await bench.brokers.close()
    assert {asyncio.current_task()} == asyncio.all_tasks()
    assert bench.brokers.ready(1) is None
    with pytest.raises(ConnectionError):
        await bench.brokers.channel(1)


async def test_endpoints_move_a_node(cluster: ScriptedBroker) -> None:
    """A connection uses the node's address in metadata at the time of the attempt."""
    async with Bench(cluster.bootstrap) as bench:
        await bench.brokers.refresh()
        node = bench.metadata.nodes[1]
        elsewhere = cluster.addresses[3]
        bench.metadata.move_leaders({}, [node._replace(host=elsewhere.host, port=elsewhere.port)])
        assert elsewhere == (await bench.brokers.channel(1)).address
        assert Address(elsewhere.host, elsewhere.port) == elsewhere

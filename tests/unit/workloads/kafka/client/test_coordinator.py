"""FindCoordinator, and connections to the coordinators that the answers name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest

from aftershock.errors import BrokerError, ProtocolError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.settings import ClientSettings, parse
from aftershock.workloads.kafka.client.tasks import monotonic_ms
from aftershock.workloads.kafka.consumer.commit_request_manager import (
    OFFSET_FETCH,
    Committed,
    CommittedOffsets,
    Membership,
)
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition

DEADLINE_MS = 15_000
METADATA_REQUEST = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
NOWHERE = TopicPartition("no-such-topic", 0)


@pytest.fixture
def cluster(running: ScriptedBroker) -> ScriptedBroker:
    running.reset()
    return running


@dataclass(frozen=True)
class Asker:
    """The part of a client that a coordinator uses."""

    brokers: NetworkClient
    metadata: Metadata
    backoff: Backoff


@asynccontextmanager
async def asking(cluster: ScriptedBroker) -> AsyncIterator[Asker]:
    """Return a client that knows the nodes that are up now."""
    quick = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20}
    settings = parse(ClientSettings, {"bootstrap.servers": cluster.bootstrap} | quick)
    draw = Random(7)  # noqa: S311  # no secret
    backoff = Backoff(5, 20, draw)
    metadata = Metadata(backoff=backoff)
    brokers = NetworkClient(settings, metadata, monotonic_ms, on_event=lambda *_, **__: None, draw=draw)
    try:
        await brokers.refresh()
        yield Asker(brokers, metadata, backoff)
    finally:
        await brokers.close()


def store(group: str, asker: Asker) -> CommittedOffsets:
    coordinator = Coordinator(group, asker.brokers, asker.backoff)
    return CommittedOffsets(group, coordinator, asker.backoff, DEADLINE_MS, Membership)


async def test_a_coordinator_that_metadata_does_not_list(cluster: ScriptedBroker) -> None:
    """It is dialled at the address from FindCoordinator, as in Java, and metadata is unchanged."""
    topic = fresh_topic(cluster)
    cluster.down(2)
    async with asking(cluster) as asker:
        cluster.up(2)
        cluster.move_coordinator("g", 2)
        await store("g", asker).commit({TopicPartition(topic, 0): Committed(5)})
        assert {1} == set(asker.metadata.nodes)
    assert {(topic, 0): 5} == cluster.committed("g")


async def test_the_coordinators_leader_restarts(cluster: ScriptedBroker) -> None:
    """Metadata from the time of the outage doesn't keep a client from the node after its restart."""
    topic = fresh_topic(cluster)
    cluster.move_coordinator("g", 2)
    async with asking(cluster) as asker:
        offsets = store("g", asker)
        await offsets.commit({TopicPartition(topic, 0): Committed(5)})
        cluster.down(2)
        assert await asker.brokers.refresh()
        assert {1} == set(asker.metadata.nodes)
        committing = asyncio.create_task(offsets.commit({TopicPartition(topic, 0): Committed(6)}))
        await cluster.until("FindCoordinator", 3)
        cluster.up(2)
        cluster.move_coordinator("g", 2)
        await committing
        assert {1} == set(asker.metadata.nodes)
    assert {2} == {seen.node for seen in cluster.journal("OffsetCommit")[-1:]}
    assert {(topic, 0): 6} == cluster.committed("g")


async def test_a_failed_look_up_backs_off(cluster: ScriptedBroker) -> None:
    """A coordinator may be available later: the error is of the caller's type, and each is counted."""
    cluster.script("FindCoordinator", times=2, error=ErrorCode.coordinator_not_available)
    async with asking(cluster) as asker:
        coordinator = Coordinator("g", asker.brokers, asker.backoff)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="COORDINATOR_NOT_AVAILABLE"):
                await coordinator.find()
        assert [1, 1] == [await coordinator.find() for _ in range(2)]
        assert 3 == coordinator.lookups


async def test_a_node_that_stands_still_is_not_asked(cluster: ScriptedBroker) -> None:
    """The least loaded of the connected nodes is: the other one has a request in flight that it doesn't answer."""
    cluster.script("Metadata", nth=2, node=2, answer="none", times=100)
    async with asking(cluster) as asker:
        for node in (1, 2):
            await asker.brokers.channel(node)
        waiting = (await asker.brokers.channel(2)).request(METADATA_REQUEST, timeout_ms=DEADLINE_MS)
        coordinator = Coordinator("g", asker.brokers, asker.backoff)
        for _ in range(4):
            await coordinator.find()
            coordinator.forget()
        waiting.cancel()
    assert [1] * 4 == [seen.node for seen in cluster.journal("FindCoordinator")]


async def test_no_connection_is_opened_for_a_look_up(cluster: ScriptedBroker) -> None:
    """``leastLoadedNode``: connected nodes come before all that would have to be connected first."""
    async with asking(cluster) as asker:
        connected = await asker.brokers.channel(2)
        coordinator = Coordinator("g", asker.brokers, asker.backoff)
        for _ in range(4):
            await coordinator.find()
            coordinator.forget()
        assert connected.sent_bytes
    assert [2] * 4 == [seen.node for seen in cluster.journal("FindCoordinator")]


async def test_a_group_without_authorization(cluster: ScriptedBroker) -> None:
    """A retry can't help: BrokerError with the code."""
    cluster.script("FindCoordinator", error=ErrorCode.group_authorization_failed)
    async with asking(cluster) as asker:
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await Coordinator("g", asker.brokers, asker.backoff).find()


def nothing_of_the_group(messages: Any) -> Any:
    group = messages.OffsetFetchRequestGroup(group_id="g", member_id=None, member_epoch=-1, topics=())
    return messages.OffsetFetchRequest(groups=(group,), require_stable=True)


async def test_a_coordinator_that_breaks_the_protocol_is_looked_for_again(cluster: ScriptedBroker) -> None:
    """ProtocolError, and the coordinator is looked up before the next request."""
    another_correlation_id = {4: 0x7F}
    cluster.script("OffsetFetch", garble=another_correlation_id)
    async with asking(cluster) as asker:
        coordinator = Coordinator("g", asker.brokers, asker.backoff)
        offsets = CommittedOffsets("g", coordinator, asker.backoff, DEADLINE_MS, Membership)
        with pytest.raises(ProtocolError):
            await coordinator.ask(OFFSET_FETCH, nothing_of_the_group)
        assert {} == await offsets.committed([NOWHERE])
        assert coordinator.lookups > 1

"""The node that each partition is fetched from, and the events when it changes; no cluster."""

from random import Random
from typing import Any

import pytest

from aftershock.workloads.kafka.consumer.fetcher import FetchRoutes
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.read_replica import ReadReplicas
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, SubscriptionState
from aftershock.workloads.kafka.rules.values import (
    UNKNOWN,
    Backoff,
    Leader,
    MetadataResponse,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)

A = TopicPartition("t", 0)
LEASE_MS = 1000.0


class World:
    """A partition led by node 1 with a replica on node 2, and the routes of a consumer with a position there."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []
        self.metadata = Metadata(backoff=Backoff(100, 1000, Random(1)))  # noqa: S311  # spreads waits, guards nothing
        self.metadata.want(["t"])
        self.positions = SubscriptionState("latest")
        self.positions.assign([A])
        self.routes = FetchRoutes(ReadReplicas(LEASE_MS), self.metadata, self.positions, self._tell)
        self.learn(Leader(1, 5))
        self.positions.seek(A, FetchPosition(10, leader=Leader(1, 5)))

    def _tell(self, event: str, **details: object) -> None:
        self.told.append((event, details))

    def learn(self, leader: Leader, *, nodes: tuple[int, ...] = (1, 2, 3), offline: tuple[int, ...] = ()) -> None:
        """Receive metadata; no request for metadata is open afterwards."""
        self.metadata.request_sent()
        topic = TopicMetadata("t", None, (PartitionMetadata(0, leader, (1, 2, 3), offline),))
        brokers = tuple(Node(node_id, "h", 9000 + node_id) for node_id in nodes)
        self.metadata.update(MetadataResponse(brokers, (topic,)), 0)
        self.routes.follow_metadata()

    def lease(self) -> None:
        self.routes.redirected(A, 2, 0)
        assert 2 == self.routes.node_for(A, 0)
        self.told.clear()

    @property
    def reasons(self) -> list[Any]:
        return [details["reason"] for event, details in self.told if event == "replica_failed_back"]

    @property
    def asks(self) -> bool:
        """True if metadata is requested before it expires."""
        return self.metadata.wait_ms(0) < 10_000


def test_without_lease_the_leader_is_used() -> None:
    """And no metadata is requested."""
    world = World()
    assert (1, False) == (world.routes.node_for(A, 0), world.asks)


def test_a_preferred_replica_is_used_and_reported() -> None:
    """A second response with the same replica gives no event."""
    world = World()
    world.routes.redirected(A, 2, 0)
    world.routes.redirected(A, 2, 500)
    assert [("replica_switched", {"topic": "t", "partition": 0, "node_id": 2})] == world.told
    assert 2 == world.routes.node_for(A, LEASE_MS)


def test_no_preference_changes_nothing() -> None:
    """-1 in a response is no preferred replica."""
    world = World()
    world.routes.redirected(A, UNKNOWN, 0)
    assert (1, []) == (world.routes.node_for(A, 0), world.told)


def test_an_expired_lease_is_reported() -> None:
    """Back to the leader a millisecond after the expiry, without metadata."""
    world = World()
    world.lease()
    assert 1 == world.routes.node_for(A, LEASE_MS + 1)
    assert (["lease over"], False) == (world.reasons, world.asks)


def test_an_offline_replica_ends_the_lease_and_requests_metadata() -> None:
    """Before the lease expires."""
    world = World()
    world.lease()
    world.learn(Leader(1, 5), offline=(2,))
    assert 1 == world.routes.node_for(A, 1)
    assert (["replica offline"], True) == (world.reasons, world.asks)


def test_a_new_leader_ends_the_lease() -> None:
    """The partition is fetched from the new leader, which the position follows."""
    world = World()
    world.lease()
    world.learn(Leader(3, 6))
    assert (["leader changed"], 3) == (world.reasons, world.routes.node_for(A, 1))


@pytest.mark.parametrize(("error", "back"), [(6, True), (1, True), (75, False), (29, False)])
def test_the_event_of_an_ended_lease_has_the_error(error: int, *, back: bool) -> None:
    """Only if the error ends the lease."""
    world = World()
    world.lease()
    world.routes.on_error(A, error, current=True)
    assert back == bool(world.reasons)
    assert (1 if back else 2) == world.routes.node_for(A, 1)


def test_a_failed_request_ends_its_leases() -> None:
    """The leases of every partition in the request."""
    world = World()
    world.lease()
    world.routes.on_failure([A])
    assert ["request failed"] == world.reasons


def test_without_known_leader_the_old_leader_is_used() -> None:
    """As in Kafka: it answers NOT_LEADER_OR_FOLLOWER, perhaps with a hint."""
    world = World()
    world.learn(Leader(UNKNOWN, 6))
    assert 1 == world.routes.node_for(A, 0)


def test_a_leader_without_address_requests_metadata() -> None:
    """The leader left the cluster: it can't be dialled until metadata names another."""
    world = World()
    world.learn(Leader(UNKNOWN, 6), nodes=(2, 3))
    assert (UNKNOWN, True) == (world.routes.node_for(A, 0), world.asks)

"""Restore of a cluster, step by step, on an in-memory cluster; `tests/contract/test_pool.py` uses a real one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.errors import ErrorCode

from aftershock.errors import AdminError, ClusterError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId, PartitionState, Toxic
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.kafka.admin import Member
from aftershock.harness.lifecycle import restore

SPEC = ClusterSpec.of(ClusterPlan())
BROKERS = [BrokerId(node.id) for node in SPEC.topology.brokers]
INTERNAL = PartitionState("__consumer_offsets", 0, BROKERS[0], 1, tuple(BROKERS), tuple(BROKERS))
BEHIND = PartitionState("__consumer_offsets", 0, BROKERS[0], 1, tuple(BROKERS), (BROKERS[0],))


@dataclass
class Node:
    """A node with a given state and version."""

    node: Any
    now: str = "running"
    kafka: str = SPEC.kafka

    def version(self) -> str:
        return self.kafka

    def state(self) -> str:
        return self.now

    def resume(self) -> None:
        self.now = "running"

    restart = resume


@dataclass
class Links:
    """Toxiproxy's proxies as the topology has them."""

    url: str = "http://toxiproxy"
    crossed: Mapping[str, str] = field(default_factory=dict)
    toxic: dict[str, tuple[Toxic, ...]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def upstreams(self) -> dict[str, str]:
        return {proxy.name: proxy.upstream for proxy in SPEC.topology.proxies()} | dict(self.crossed)

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        return self.toxic

    def disabled(self) -> frozenset[str]:
        return frozenset(self.closed)

    def reset(self) -> None:
        self.toxic, self.closed = {}, set()


@dataclass
class Admin:
    """Kafka as each broker sees it; the first ``silent`` requests get no answer."""

    views: dict[BrokerId, list[PartitionState]] = field(default_factory=lambda: {b: [INTERNAL] for b in BROKERS})
    moving: frozenset[tuple[str, int]] = frozenset()
    fenced: set[BrokerId] = field(default_factory=set)
    silent: int = 0
    dynamic: dict[BrokerId | None, set[str]] = field(default_factory=lambda: {b: set() for b in BROKERS})
    limited: set[str] = field(default_factory=set)

    def members(self) -> tuple[Member, ...]:
        if self.silent:
            self.silent -= 1
            raise AdminError("no broker answered", "NETWORK_EXCEPTION")
        return tuple(Member(broker, "a", broker in self.fenced) for broker in BROKERS)

    def reassigning(self) -> frozenset[tuple[str, int]]:
        return self.moving

    def reassign(self, assignment: Mapping[tuple[str, int], None]) -> None:
        assert {None} == set(assignment.values())
        self.moving -= assignment.keys()

    def topics(self, broker: BrokerId) -> tuple[str, ...]:
        return tuple({state.topic for state in self.views[broker]} - {INTERNAL.topic})

    def delete_topics(self, names: list[str]) -> None:
        self.views = {b: [state for state in view if state.topic not in names] for b, view in self.views.items()}

    def partitions(self, seen_by: BrokerId) -> list[PartitionState]:
        return self.views[seen_by]

    def elect_preferred(self, partitions: list[tuple[str, int]]) -> None:
        assert [(INTERNAL.topic, INTERNAL.partition)] == partitions
        self.views = {b: [INTERNAL] for b in BROKERS}

    def alter_configs(self, _kind: int, broker: str, changes: Mapping[str, None]) -> None:
        assert {None} == set(changes.values())
        self.dynamic[BrokerId(int(broker))] -= changes.keys()

    def config_entries(self, _kind: int, broker: str) -> dict[str, Any]:
        static = SimpleNamespace(value="8", config_source=5, read_only=False)
        own = SimpleNamespace(value="4", config_source=2, read_only=False)
        return {"num.io.threads": static, **dict.fromkeys(self.dynamic[BrokerId(int(broker))], own)}

    def ask(self, request: Any, *, only: BrokerId | None = None) -> Any:
        if isinstance(request, DescribeClientQuotasRequest):
            named = [
                _answer(entity=(_answer(entity_name=it),), values=(_answer(key="rate", value=1.0),))
                for it in self.limited
            ]
            return _answer(entries=named)
        assert only in BROKERS
        return _answer(groups=())

    def ask_controller(self, request: Any) -> Any:
        assert isinstance(request, AlterClientQuotasRequest)
        self.limited -= {entry.entity[0].entity_name for entry in request.entries}
        return _answer(entries=())


def _answer(**fields: Any) -> Any:
    return SimpleNamespace(error_code=ErrorCode.none, error_message=None, **fields)


class Cluster:
    """A three-rack cluster, as new."""

    def __init__(self) -> None:
        self.run_id = "pool-1"
        self.spec = SPEC
        self.nodes = {BrokerId(node.id): Node(node) for node in SPEC.topology.nodes}
        self.toxiproxy = Links()
        self.wire_proxy = None
        self.admin = Admin()


@pytest.fixture
def cluster() -> Any:
    return Cluster()


def restored(cluster: Any, deadline_s: float = 5) -> list[str]:
    """Restore the cluster and return the log lines."""
    said: list[str] = []
    restore.restore(cluster, said.append, deadline_s)
    return said


def test_a_clean_cluster_is_not_changed(cluster: Any) -> None:
    """No log line and no change."""
    cluster.toxiproxy.reset = cluster.admin.reassign = cluster.admin.delete_topics = None
    assert [] == restored(cluster)


def test_dynamic_settings_and_quotas_are_removed(cluster: Any) -> None:
    cluster.admin.dynamic[BROKERS[1]] = {"num.network.threads", "message.max.bytes"}
    cluster.admin.limited = {"orders-a-produce"}
    restored(cluster)
    assert set() == cluster.admin.dynamic[BROKERS[1]]
    assert set() == cluster.admin.limited


def test_an_upgraded_cluster_is_an_error(cluster: Any) -> None:
    """A node of another version can't be restored: the error comes at once, so that no lessee gets the cluster."""
    cluster.nodes[BROKERS[1]].kafka = "9.9.9"
    with pytest.raises(ClusterError, match=r"do not run Kafka .*: k2 runs 9\.9\.9"):
        restored(cluster)


def test_broken_nodes_and_links_are_repaired_and_logged(cluster: Any) -> None:
    """The lessee should have healed them, so each is logged."""
    cluster.nodes[BROKERS[0]].now = "paused"
    cluster.nodes[BROKERS[2]].now = "exited"
    cluster.toxiproxy.toxic = {"client_a-k1": (Toxic("t", "latency", "upstream", {"latency": 1}),)}
    cluster.toxiproxy.closed = {"replication_a-k2"}
    assert [
        "repaired after a lease: k1 was paused, k3 was exited",
        "repaired after a lease: links client_a-k1, replication_a-k2 were broken",
    ] == restored(cluster)
    assert {"running"} == {node.now for node in cluster.nodes.values()}
    assert not cluster.toxiproxy.closed
    assert not cluster.toxiproxy.toxic


class Rules:
    """A wire proxy with a rule in force."""

    def __init__(self) -> None:
        self.in_force = {"once": {"hit": 3}}

    def rules(self) -> dict[str, dict[str, int]]:
        return self.in_force

    def remove_rule(self, name: str) -> None:
        self.in_force.pop(name)


def test_rules_of_the_wire_proxy_are_removed_and_logged(cluster: Any) -> None:
    """The lessee should have healed them."""
    cluster.wire_proxy = Rules()
    assert ["repaired after a lease: rules once of the wire proxy were in force"] == restored(cluster)
    assert not cluster.wire_proxy.in_force


def test_topics_moves_and_leaders_are_restored_without_log(cluster: Any) -> None:
    """Every lease leaves topics, reassignments and moved leaders behind."""
    elsewhere = PartitionState(INTERNAL.topic, 0, BROKERS[1], 2, INTERNAL.replicas, INTERNAL.isr)
    orders = PartitionState("orders", 0, BROKERS[0], 1, (BROKERS[0],), (BROKERS[0],))
    cluster.admin.views = {broker: [elsewhere, orders] for broker in BROKERS}
    cluster.admin.moving = frozenset({("orders", 0)})
    assert [] == restored(cluster)
    assert frozenset() == cluster.admin.moving
    assert [[INTERNAL]] * 3 == list(cluster.admin.views.values())


def test_a_topic_that_only_one_broker_knows_is_deleted(cluster: Any) -> None:
    """A broker that was frozen answers from old metadata, so its view proves nothing."""
    orders = PartitionState("orders", 0, BROKERS[0], 1, (BROKERS[0],), (BROKERS[0],))
    cluster.admin.views[BROKERS[2]] = [INTERNAL, orders]
    restored(cluster)
    assert [INTERNAL] == cluster.admin.views[BROKERS[2]]


def test_restore_waits_for_a_starting_broker(cluster: Any) -> None:
    """A started node answers only when it is up."""
    cluster.admin.silent = 3
    restored(cluster)
    assert 0 == cluster.admin.silent


@pytest.mark.parametrize(
    ("admin", "missing"),
    [
        (Admin(silent=1000), "no broker answered"),
        (Admin(fenced={BROKERS[1]}), "brokers k2 are not registered or are fenced"),
        (
            Admin(views={broker: [BEHIND] for broker in BROKERS}),
            "partitions with replicas out of sync: __consumer_offsets/0",
        ),
    ],
)
def test_an_incomplete_restore_names_what_is_missing(cluster: Any, admin: Admin, missing: str) -> None:
    """At the deadline the error says what is still missing."""
    cluster.admin = admin
    with pytest.raises(ClusterError, match=f"pool-1 is not restored after 0 s: {missing}"):
        restored(cluster, deadline_s=0.2)


@pytest.mark.parametrize("crossed", [{"client_a-k1": "b2:9101"}, {"stranger": "b1:9101"}])
def test_unexpected_proxies_are_an_error_at_once(cluster: Any, crossed: dict[str, str]) -> None:
    """Waiting repairs neither a redirected proxy nor an additional proxy."""
    cluster.toxiproxy.crossed = crossed
    with pytest.raises(ClusterError, match=f"or has other proxies: {next(iter(crossed))}"):
        restored(cluster, deadline_s=1000)

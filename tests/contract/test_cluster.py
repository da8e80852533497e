"""The launched cluster has the documented topology: racks are isolated, links are counted, and the removal is
complete.
"""

import re
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path

import docker
import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.cluster import Cluster, attach, collect_logs
from aftershock.harness.kafka.admin import BROKER, TOPIC, still_lacking
from aftershock.harness.safety import ownership
from aftershock.tests.left import left_of
from aftershock.workloads.kafka.wire.connection import Address, Connection

Launch = Callable[[ClusterPlan, Path], AbstractContextManager[Cluster]]

pytestmark = pytest.mark.engine


def metadata_through(address: Address) -> set[str]:
    """Return the broker addresses in the metadata that a client gets at ``address``."""
    request = MetadataRequest(topics=(), include_topic_authorized_operations=False)
    with Connection(address, 5) as connection:
        response = connection.ask(request)
    return {f"{broker.host}:{broker.port}" for broker in response.brokers}  # type: ignore[attr-defined]


def test_a_client_sees_its_own_racks_addresses(cluster: Cluster) -> None:
    """Kafka answers for the listener of the request: clients of rack b get rack b's proxies only."""
    for rack in "abc":
        bootstrap = cluster.bootstrap(rack)
        host, port = bootstrap.split(",")[0].split(":")
        assert set(bootstrap.split(",")) == metadata_through(Address(host, int(port)))


def test_a_node_reaches_other_racks_only_through_toxiproxy(cluster: Cluster) -> None:
    """The name k2 resolves to Toxiproxy in rack a, and to the node in rack b; b2 doesn't resolve in rack a."""
    in_a = cluster.nodes[BrokerId(1)].container.exec_run(["getent", "hosts", "k2", "k1"]).output.decode().split()
    assert cluster.link_address("a", 0).host == in_a[0]
    assert cluster.link_address("a", 0).host not in in_a[2]
    assert 0 != cluster.nodes[BrokerId(1)].container.exec_run(["getent", "hosts", "b2"]).exit_code


def test_only_toxiproxy_publishes_ports_and_only_on_loopback(cluster: Cluster) -> None:
    """No broker can be reached around its proxy, and no port from outside the host."""
    client = docker.from_env()
    for container in client.containers.list(filters={"label": f"{ownership.RUN}={cluster.run_id}"}):
        bound = [b for bindings in container.attrs["NetworkSettings"]["Ports"].values() for b in bindings or ()]
        assert bool(bound) == container.name.endswith("toxiproxy")
        assert {"127.0.0.1"} >= {binding["HostIp"] for binding in bound}


def test_admin_round_trip(cluster: Cluster) -> None:
    """The effects of topics, configs, reassignment, election and quorum operations are read back from the cluster."""
    admin, topic = cluster.admin, f"t-{uuid.uuid4().hex[:6]}"
    admin.create_topic(topic, 3, 2, {"retention.ms": "60000"})
    cluster.await_in_sync(20, [topic])
    assert "60000" == admin.configs(TOPIC, topic)["retention.ms"]
    admin.alter_configs(TOPIC, topic, {"retention.ms": None, "segment.bytes": "1048576"})
    # A broker answers from its own copy of the metadata, which lags the controller's by some milliseconds.
    eventually(lambda: admin.configs(TOPIC, topic)["segment.bytes"] == "1048576")
    assert "60000" != admin.configs(TOPIC, topic)["retention.ms"]

    rotated = {(topic, p.partition): (*p.replicas[1:], p.replicas[0]) for p in admin.partitions([topic])}
    admin.reassign(rotated)
    eventually(lambda: not admin.reassigning())
    admin.elect_preferred(rotated)
    moved = [(key, (replicas, replicas[0])) for key, replicas in sorted(rotated.items())]
    eventually(lambda: moved == [((p.topic, p.partition), (p.replicas, p.leader)) for p in admin.partitions([topic])])
    assert frozenset() == admin.reassigning()
    admin.reassign(dict.fromkeys(rotated))  # Cancelling without a reassignment is no error.

    assert {1, 2, 3} == set(admin.quorum().voters)
    assert admin.quorum().leader in {1, 2, 3}
    assert admin.coordinator("some-group") in {1, 2, 3}
    admin.delete_topics([topic])
    eventually(lambda: topic not in {p.topic for p in admin.partitions()})


def test_automatic_leader_rebalance_is_off(cluster: Cluster) -> None:
    """No election takes place unless a plan requests it."""
    assert "false" == cluster.admin.configs(BROKER, "1")["auto.leader.rebalance.enable"]


def test_two_clusters_at_once_and_other_shapes(launch: Launch, cluster: Cluster, tmp_path: Path) -> None:
    """Beside the first cluster: two racks, three brokers, an isolated controller.

    When the broker of rack b dies, its connections close and their bytes are counted: replication and controller
    traffic crossed the proxies. Afterwards the second cluster is removed completely.
    """
    plan = ClusterPlan(racks={"a": 2, "b": 1}, controllers=1)
    with launch(plan, tmp_path) as other:
        assert {"a", "b"} == {member.rack for member in other.admin.members()}
        assert (11,) == other.admin.quorum().voters
        assert other.admin.cluster_id() != cluster.admin.cluster_id()
        run_id = other.run_id
        # A new replica is in sync only after a fetch: k3 fetches from rack a, and rack a from k3.
        other.admin.create_topic("moved", 3, 1, {})
        other.await_in_sync(20, ["moved"])
        other.admin.reassign({("moved", partition): (1, 2, 3) for partition in range(3)})
        eventually(lambda: all({1, 2, 3} == set(p.isr) for p in other.admin.partitions(["moved"])))
        other.nodes[BrokerId(3)].kill()
        # Toxiproxy counts a connection's bytes when it closes
        eventually(lambda: {"controller_b", "replication_b"} <= counted(other))
    assert [] == left_of(run_id)
    assert left_of(cluster.run_id)


def test_a_broker_that_dies_at_boot_is_named_with_its_log(launch: Launch, tmp_path: Path) -> None:
    """Kafka refuses a configuration: the error has the node and Kafka's reason, and no container remains."""
    plan = ClusterPlan(racks={"a": 1}, config={"num.io.threads": "none"})
    with pytest.raises(ClusterError) as raised, launch(plan, tmp_path):
        pass
    assert re.search(r"k1 \(rack a\) died.*num\.io\.threads", str(raised.value), re.DOTALL)
    assert [] == left_of(f"test-{tmp_path.name}")


def counted(cluster: Cluster) -> set[str]:
    """Return channels and source racks with bytes counted: {"controller_b", …}."""
    return {proxy.rpartition("-")[0] for (proxy, _), n in cluster.toxiproxy.received_bytes().items() if n}


def eventually(true: Callable[[], bool], deadline_s: float = 20) -> None:
    """Wait until ``true()``."""
    assert "" == still_lacking(lambda: "" if true() else "it did not come true in time", deadline_s)


def test_how_a_node_ended(launch: Launch, tmp_path: Path) -> None:
    """A node that was killed is named with its exit code."""
    with launch(ClusterPlan(racks={"a": 1}), tmp_path) as cluster:
        assert [] == cluster.exits()
        (node,) = cluster.nodes.values()
        node.container.kill()
        eventually(lambda: ["the Kafka node k1 (rack a) exited with code 137"] == cluster.exits())


def test_any_process_can_attach(launch: Launch, tmp_path: Path) -> None:
    """A process attaches to a launched cluster by its home: same addresses and nodes, and operations work.

    The error of an incomplete home names the missing part.
    """
    client = docker.from_env()
    with launch(ClusterPlan(racks={"b": 1, "a": 1}), tmp_path) as cluster:
        with closing(attach(client, tmp_path)) as again:
            assert cluster.spec == again.spec
            assert cluster.describe() == again.describe()
            again.nodes[BrokerId(1)].pause()
            assert "paused" == cluster.nodes[BrokerId(1)].state()
            again.nodes[BrokerId(1)].resume()
            again.await_in_sync(30)
        cluster.nodes[BrokerId(2)].container.remove(force=True)
        with pytest.raises(ClusterError, match=r"lacks the containers aftershock-.*-k2"):
            attach(client, tmp_path)
    with pytest.raises(ClusterError, match="has no containers"):
        attach(client, tmp_path)


def test_logs_of_every_node_are_collected(cluster: Cluster, tmp_path: Path) -> None:
    """One file for each node, from a given time if requested; an attached cluster has no logs."""
    client = docker.from_env()
    collect_logs(client, cluster.run_id, tmp_path / "all")
    assert {"k1.log", "k2.log", "k3.log"} == {path.name for path in (tmp_path / "all").iterdir()}
    assert "Kafka Server started" in (tmp_path / "all" / "k1.log").read_text()
    collect_logs(client, cluster.run_id, tmp_path / "late", since=datetime.now(UTC))
    assert "Kafka Server started" not in (tmp_path / "late" / "k1.log").read_text()
    collect_logs(client, "nobody", tmp_path / "none")
    assert [] == list((tmp_path / "none").iterdir())

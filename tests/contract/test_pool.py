"""Leases of real clusters: whatever a lessee leaves behind, the next lessee gets a clean cluster or a new one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId, Toxic
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster, prefix_of
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import groups
from aftershock.harness.lifecycle import restore
from aftershock.harness.lifecycle.heal import heal
from aftershock.harness.lifecycle.pool import Pool
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import open_faults, read_journal
from aftershock.harness.safety.rundir import RunDir
from aftershock.tests.unit.harness.child import Child

pytestmark = pytest.mark.engine

SPEC = ClusterSpec.of(ClusterPlan())
K1, K2 = BrokerId(1), BrokerId(2)
PARTITION = ("__consumer_offsets", 0)

CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": sys.argv[2]})
consumer.subscribe(["orders"])
while not consumer.assignment():
    consumer.poll(0.1)
print("assigned")
input()
"""

LESSEE = """
import sys
from pathlib import Path
from aftershock.faults.runtime.record import Entry, Targets, Undo
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.safety.journal import Journal
from aftershock.harness.lifecycle.pool import Pool
from aftershock.tests.contract.test_pool import SPEC
folder, owner, run = sys.argv[1:]
with Pool(Path(folder), owner, 1).lease(SPEC, "victim", lambda line: print(line, file=sys.stderr)) as leased:
    leased.run(Path(run))
    journal = Journal(Path(run, "journal.jsonl"), RunClock.starting_now())
    undo = Undo("resume", {"broker": 1})
    journal.record(Entry("pause-1", "pause", "intended", Targets(brokers=(BrokerId(1),)), undo))
    leased.cluster.nodes[BrokerId(1)].pause()
    print(leased.cluster.run_id)
    input()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session") / "pool"


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    """A pool of one; after its close no container of it is on the engine."""
    pool = Pool(folder, ownership.owner(), 1)
    yield pool
    pool.close(print)
    assert [] == [
        found.run_id for found in ownership.list_clusters(engine.connect()) if found.run_id.startswith(pool._prefix)
    ]


def break_everything(cluster: Cluster) -> None:
    """Add a toxic, disable a proxy, freeze a node, kill a node, and so break the quorum."""
    cluster.toxiproxy.add_toxic("client_a-k1", Toxic("t", "latency", "upstream", {"latency": 500}))
    cluster.toxiproxy.enable("replication_a-k2", enabled=False)
    cluster.nodes[K1].pause()
    cluster.nodes[K2].kill()


def as_new(cluster: Cluster) -> None:
    assert {"running"} == {node.state() for node in cluster.nodes.values()}
    assert not any(cluster.toxiproxy.toxics().values())
    assert frozenset() == cluster.toxiproxy.disabled()
    assert () == cluster.admin.topics()
    assert {} == {group: kind for broker in cluster.nodes for group, kind in groups(cluster.admin, broker).items()}
    for partition in cluster.admin.partitions():
        assert partition.leader == partition.replicas[0]
        assert set(partition.isr) == set(partition.replicas)


def test_the_next_lease_gets_the_same_cluster_restored(pool: Pool) -> None:
    """Nodes, links, topics, and groups of both protocols whose members were killed a moment ago are restored.

    The log names what was still broken. The same cluster serves again: a topic of the same name is a new topic.
    """
    said: list[str] = []
    with pool.lease(SPEC, "breaks", said.append) as leased:
        cluster = leased.cluster
        cluster.admin.create_topic("orders", 6, 3, {})
        cluster.await_in_sync(30, ["orders"])
        for protocol in ("classic", "consumer"):
            with Child(CONSUMER, cluster.bootstrap("a"), protocol) as member:
                assert "assigned" == member.line()
        break_everything(cluster)
    assert "repaired after a lease: k1 was paused, k2 was exited" in said
    assert "repaired after a lease: links client_a-k1, replication_a-k2 were broken" in said
    with pool.lease(SPEC, "next", print) as again:
        assert cluster.run_id == again.cluster.run_id
        as_new(again.cluster)
        again.cluster.admin.create_topic("orders", 1, 1, {})


def test_leaders_are_restored_and_a_reassignment_is_cancelled(pool: Pool) -> None:
    """Internal topics outlive a lease: a reassignment that can't finish is cancelled, and preferred leaders are
    elected.

    The reassignment waits for a dead broker, so the test calls the cancelling step itself; the end of the lease does
    the rest.
    """
    with pool.lease(SPEC, "moves", print) as leased:
        admin, nodes = leased.cluster.admin, leased.cluster.nodes
        (*rest, last) = next(p.replicas for p in admin.partitions(["__consumer_offsets"]) if p.partition == 0)
        admin.reassign({PARTITION: rest})
        assert "" == still_lacking(lambda: "moving" if admin.reassigning() else "", 20)
        nodes[last].shut_down()
        admin.reassign({PARTITION: (*rest, last)})
        assert {PARTITION} == admin.reassigning()
        assert "1 partitions were being reassigned" == restore._moves(leased.cluster)
        assert frozenset() == admin.reassigning()
    with pool.lease(SPEC, "next", print) as leased:
        as_new(leased.cluster)
        leased.cluster.admin.reassign({PARTITION: (*rest, last)})


def test_a_killed_lessees_faults_are_healed_by_the_next(pool: Pool, folder: Path, tmp_path: Path) -> None:
    """SIGKILL with a fault in force: the same cluster is restored, and the dead run's journal has the heal."""
    run = RunDir.create(tmp_path, "test", 7, "pytest")
    with Child(LESSEE, str(folder), ownership.owner(), str(run.path)) as victim:
        cluster = victim.line()
        victim.kill()
    with pool.lease(SPEC, "heir", print) as leased:
        assert cluster == leased.cluster.run_id
        as_new(leased.cluster)
    lines = read_journal(run.path / "journal.jsonl")
    assert ["intended", "healing", "healed"] == [line["state"] for line in lines]
    assert [] == open_faults(lines)


def test_an_untouched_cluster_is_leased_again_quickly(pool: Pool) -> None:
    """The duration is printed, as a help for the analysis of slow suites."""
    with pool.lease(SPEC, "first", print) as leased:
        cluster, started_s = leased.cluster.run_id, time.monotonic()
    restored_s = time.monotonic()
    with pool.lease(SPEC, "second", print) as leased:
        print(f"restored in {restored_s - started_s:.2f} s, leased in {time.monotonic() - restored_s:.2f} s")
        assert cluster == leased.cluster.run_id


def test_a_cluster_without_toxiproxy_is_replaced(pool: Pool) -> None:
    """It can't be proven healthy: it is destroyed at the end of the lease, and a new one is launched."""
    said: list[str] = []
    client = engine.connect()
    with pool.lease(SPEC, "removes", said.append) as leased:
        old = leased.cluster.run_id
        client.containers.get(f"{prefix_of(old)}-toxiproxy").remove(force=True)
    start = f"destroying the pool's cluster {old}, which could not be restored: "
    assert [True] == [line.startswith(start) for line in said]
    assert old not in {found.run_id for found in ownership.list_clusters(client)}
    with pool.lease(SPEC, "next", print) as leased:
        assert old != leased.cluster.run_id
        as_new(leased.cluster)


def test_a_kept_cluster_outlives_its_owner(tmp_path: Path) -> None:
    """Kept for inspection: the end of the pool, the end of its owner and a sweep leave the cluster as the run did."""
    client, run = engine.connect(), RunDir.create(tmp_path, "test", 7, "pytest")
    with Child("input()") as owner:
        pool = Pool(tmp_path / "pool", ownership.owner(owner.pid), 1, keep_dirty=True)
        with pool.lease(SPEC, "failed", print) as leased:
            leased.run(run.path)
            leased.cluster.admin.create_topic("orders", 1, 1, {})
            leased.cluster.await_in_sync(
                20, ["orders"]
            )  # Every broker must know the topic, since any of them may be read later.
        cluster = pool.keep(run.path)
        pool.close(print)
    assert cluster
    try:
        assert [] == heal(client, cluster.run_id, print, explicit=False)
        assert ("orders",) == cluster.admin.topics()
    finally:
        cluster.close()
        ownership.remove_run(client, cluster.run_id)

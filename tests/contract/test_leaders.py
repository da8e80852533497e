"""Leaders of a real cluster that die, recorded as in a run: epochs, offsets and times agree with the logs."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from aftershock.errors import AdminError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka.replicas import fetch_from
from aftershock.harness.run.leaders import LeaderRecorder
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.tests.contract.conftest import Launch
from aftershock.tests.contract.load import new_topic, wait
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.load.logread import ReadLimit, Topic, end_offsets, read_log

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def own_cluster(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with launch(ClusterPlan(), tmp_path_factory.mktemp("leaders")) as cluster:
        yield cluster


class Recorded:
    """A topic of one partition, led by broker 3, whose leaders are recorded while a test breaks them."""

    def __init__(self, cluster: Cluster, name: str, home: Path) -> None:
        self.cluster, self.admin, self.home = cluster, cluster.admin, home
        self.clock = RunClock.starting_now()
        self.topic = new_topic(cluster, name, 1, led_by=3)
        run = RunDir.create(home, name, 1, "test")
        run.update(origin_unix_us=time.time_ns() // 1000 - self.clock.now_us())
        plan: Any = SimpleNamespace(topics=[{"name": name}], workloads=[], steps=[])
        self.recorder = LeaderRecorder(cluster, plan, run, self.clock)
        self.document = run.path / "leaders.jsonl"

    def state(self) -> PartitionState:
        (state,) = self.admin.partitions([self.topic.name])
        return state

    def fill(self, count: int) -> None:
        """Write records that only the leader acknowledges."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap("a"), "acks": "1", "log_level": 0})
        for _ in range(count):
            producer.produce(self.topic.name, b"x", partition=0)
        assert producer.flush(30) == 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of the topic, and check that they agree with the records in the log."""
        lines = [json.loads(line) for line in self.document.read_text().splitlines()]
        assert {self.topic.topic_id} == {line["topic_id"] for line in lines}
        assert list(range(len(lines))) == [line["epoch"] for line in lines]
        written = read_epochs(self.cluster, self.topic, self.home / "log")
        for epoch in set(written):
            assert lines[epoch]["start_offset"] == written.index(epoch)
        for line in lines:
            assert line["after_us"] < line["by_us"] < line["after_us"] + 30_000, "the controllers' time is exact"
        return lines


def read_epochs(cluster: Cluster, topic: Topic, folder: Path) -> list[int]:
    """Return the leader epoch of each record as the evidence has it, which the headers of the batches confirm."""
    ends = end_offsets(cluster.bootstrap(None), [topic], 20)
    read_log(cluster.bootstrap(None), [topic], ends, folder, ReadLimit(20))
    rows = pq.read_table(folder).to_pylist()
    epochs: list[int] = []
    leader = cast("BrokerId", cluster.admin.partitions([topic.name])[0].leader)
    while len(epochs) < ends[topic.name][0]:
        answer = fetch_from(cluster.admin, leader, (topic.name, 0), len(epochs))
        for batch in parse(answer.records):
            epochs += [batch.leader_epoch] * len(batch.records)
    assert epochs == [row["leader_epoch"] for row in sorted(rows, key=lambda row: row["offset"])]
    return epochs


async def in_thread(work: Any, *args: Any) -> Any:
    return await asyncio.to_thread(work, *args)


async def test_a_killed_leader(own_cluster: Cluster, tmp_path: Path) -> None:
    """The new leader continues where the old one was; all sources tell of the epoch, and the time is that of the
    election.
    """
    recorded = Recorded(own_cluster, "killed", tmp_path)
    async with recorded.recorder:
        await in_thread(recorded.fill, 20)
        await in_thread(wait, lambda: all(row >= 20 for row in replica_ends(recorded)))
        before = recorded.state()
        killed_us = recorded.clock.now_us()
        await in_thread(own_cluster.nodes[BrokerId(3)].kill)
        await in_thread(wait, lambda: recorded.state().leader not in (None, 3), 30)
        seen_us, after = recorded.clock.now_us(), recorded.state()
        await in_thread(recorded.fill, 10)
        await asyncio.sleep(3)  # each broker is polled
        await in_thread(own_cluster.nodes[BrokerId(3)].restart)
        await in_thread(own_cluster.await_in_sync, 60, ["killed"])
    await recorded.recorder.write(pytest.fail)
    rows = recorded.rows()
    old, new = rows[before.leader_epoch], rows[after.leader_epoch]
    assert (3, 0, [1, 2, 3]) == (old["leader"], rows[0]["start_offset"], old["isr"])
    assert (after.leader, 20, [1, 2], False) == tuple(new[key] for key in ("leader", "start_offset", "isr", "unclean"))
    assert killed_us < new["after_us"] < new["by_us"] < seen_us + 1_000
    assert {"controller", "polled", "leader"} <= set(new["sources"])


def replica_ends(recorded: Recorded) -> list[int]:
    """Return the high watermark that each replica knows."""
    return [
        fetch_from(recorded.admin, broker, (recorded.topic.name, 0), 0, no_wait=True).high_watermark
        for broker in recorded.state().replicas
    ]


async def test_an_unclean_election(own_cluster: Cluster, tmp_path: Path) -> None:
    """Broker 1 was not in sync when the last replica in sync died: five records are gone, and the epoch that wrote
    them starts where the next one does.
    """
    recorded = Recorded(own_cluster, "unclean", tmp_path)
    leader, follower = own_cluster.nodes[BrokerId(3)], own_cluster.nodes[BrokerId(1)]
    async with recorded.recorder:
        await in_thread(recorded.admin.reassign, {("unclean", 0): [3, 1]})
        await in_thread(wait, lambda: not recorded.admin.reassigning())
        await in_thread(recorded.fill, 10)
        await in_thread(wait, lambda: all(row >= 10 for row in replica_ends(recorded)))
        await in_thread(follower.kill)
        await in_thread(wait, lambda: recorded.state().isr == (3,), 60)
        await in_thread(recorded.fill, 5)
        lost_in = recorded.state().leader_epoch
        await in_thread(leader.kill)
        await in_thread(follower.restart)
        await in_thread(wait, lambda: recorded.state().leader is None, 60)
        elected_us = recorded.clock.now_us()
        await in_thread(wait, lambda: elect(recorded), 60)
        await in_thread(wait, lambda: recorded.state().leader == 1)
        await in_thread(recorded.fill, 3)
        await in_thread(leader.restart)
        await in_thread(own_cluster.await_in_sync, 90, ["unclean"])
    await recorded.recorder.write(pytest.fail)
    rows = recorded.rows()
    new = next(row for row in rows if row["unclean"])
    assert (1, [1], 10) == (new["leader"], new["isr"], new["start_offset"])
    assert new["after_us"] > elected_us - 100_000
    without = rows[new["epoch"] - 1]
    assert (None, []) == (without["leader"], without["isr"])
    assert lost_in == new["epoch"] - 2
    assert 1 == sum(row["unclean"] for row in rows)


def elect(recorded: Recorded) -> bool:
    try:
        recorded.admin.elect_unclean([("unclean", 0)])
    except AdminError:  # the controller does not know broker 1 as alive yet
        return False
    return True

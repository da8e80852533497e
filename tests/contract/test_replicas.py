"""Replicas of a real cluster, compared one by one: equal, until one byte on one broker's disk changes."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka.replicas import read_replicas
from aftershock.workloads.load.logread import ReadLimit, Topic

pytestmark = pytest.mark.engine

TOPIC, RECORDS, SPOILT_BROKER = "replicas", 60, 3
SPOIL = f"printf Z | dd of=$(find /var/lib/kafka/data -path '*/{TOPIC}-0/*.log') bs=1 seek=70 conv=notrunc"


@pytest.fixture
def topic(cluster: Cluster) -> Topic:
    topic_id = cluster.admin.create_topic(TOPIC, 2, 3, {"min.insync.replicas": "2"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap("a"), "acks": "all"})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
        producer.poll(0.001)
    assert 0 == producer.flush(30)
    return Topic(TOPIC, topic_id, 2)


def read(cluster: Cluster, topic: Topic, folder: Path) -> list[dict[str, Any]]:
    ends = {TOPIC: {0: RECORDS // 2, 1: RECORDS // 2}}
    read_replicas(cluster.admin, [topic], ends, folder, ReadLimit(30), {})
    rows: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return rows


def prints(rows: list[dict[str, Any]], partition: int) -> dict[int, int]:
    return {row["broker_id"]: row["fingerprint"] for row in rows if row["partition"] == partition}


def test_a_changed_byte_makes_one_replica_differ(cluster: Cluster, topic: Topic, tmp_path: Path) -> None:
    """Three equal replicas for each partition, leader and followers alike; the damaged one differs in its range
    only.
    """
    before = read(cluster, topic, tmp_path / "before")
    assert [None] * 6 == [row["error"] for row in before]
    assert {RECORDS // 2} == {row["records"] for row in before}
    assert [1, 1] == [len(set(prints(before, partition).values())) for partition in (0, 1)]

    container = cluster.nodes[BrokerId(SPOILT_BROKER)].container
    code, told = container.exec_run(["sh", "-c", SPOIL])
    assert 0 == code, told
    after = read(cluster, topic, tmp_path / "after")
    assert prints(after, 1) == prints(before, 1)
    changed = {broker for broker, told in prints(after, 0).items() if told != prints(before, 0)[broker]}
    assert {SPOILT_BROKER} == changed

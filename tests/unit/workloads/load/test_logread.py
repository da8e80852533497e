from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from aftershock.errors import WorkloadError
from aftershock.tests.mock_cluster import MockCluster
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.load.logread import LOG_SCHEMA, ReadLimit, Topic, end_offsets, read_log
from aftershock.workloads.load.schedule import HEADER, Filler, pack
from aftershock.workloads.load.spool import VALUE_CORRUPT

if TYPE_CHECKING:
    from pathlib import Path


SPOILT = 40
TOPICS = [Topic("orders", "id-1", PARTITIONS), Topic("empty", "id-2", 2)]


def fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    filler = Filler(100)
    for seq in range(90):
        value = b"spoilt" if seq == SPOILT else filler.value(seq, 1 + seq)
        producer.produce("orders", value, partition=seq % 3, headers=[(HEADER, pack(5, seq, 1))])
    producer.produce("orders", b"somebody else's", partition=1)
    assert producer.flush(20) == 0


def test_whole_topics_are_read_foreign_records_too(tmp_path: Path) -> None:
    """Every offset of every partition occurs once and in order.

    A foreign record has no producer; a corrupt value is marked.
    """
    with MockCluster() as cluster:
        for topic in TOPICS:
            cluster.create(topic.name, topic.partitions)
        fill(cluster.bootstrap)
        ends = end_offsets(cluster.bootstrap, TOPICS, 20)
        read_log(cluster.bootstrap, TOPICS, ends, tmp_path, limit := ReadLimit(20))
    assert 91 <= limit.records <= 91 + 5  # and the ends of partitions
    assert ends == {"orders": {0: 30, 1: 31, 2: 30, 3: 0}, "empty": {0: 0, 1: 0}}
    table = pq.read_table(tmp_path / "part-orders.parquet")
    assert table.schema.equals(LOG_SCHEMA)
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    ours = [row for row in rows if row["producer_id"] is not None]
    assert [(row["producer_id"], row["seq"]) for row in ours] == [
        (5, seq) for partition in range(3) for seq in range(partition, 90, 3)
    ]
    assert {0} == {row["leader_epoch"] for row in rows}  # of the mock cluster's only leaders
    foreign = {"topic": "orders", "topic_id": "id-1", "partition": 1, "offset": 30, "leader_epoch": 0}
    assert [row for row in rows if row["producer_id"] is None] == [dict.fromkeys(LOG_SCHEMA.names) | foreign]
    assert {SPOILT: VALUE_CORRUPT} == {row["seq"]: row["error"] for row in rows if row["error"]}
    assert pq.read_table(tmp_path / "part-empty.parquet").num_rows == 0


def test_partitions_added_since_are_read_too(tmp_path: Path) -> None:
    """A topic with partitions added during the run is read entirely."""
    with MockCluster() as cluster:
        cluster.create("orders", PARTITIONS)
        fill(cluster.bootstrap)
        topics = [Topic("orders", "id-1", 1)]
        ends = end_offsets(cluster.bootstrap, topics, 20)
        read_log(cluster.bootstrap, topics, ends, tmp_path, ReadLimit(20))
    assert {"orders": {0: 30, 1: 31, 2: 30, 3: 0}} == ends
    assert 91 == pq.read_table(tmp_path / "part-orders.parquet").num_rows


def test_a_log_is_read_from_where_it_began_for_us(tmp_path: Path) -> None:
    """Records from before the run are left out; a partition without new records is not waited for."""
    with MockCluster() as cluster:
        cluster.create("orders", PARTITIONS)
        fill(cluster.bootstrap)
        begin = {"orders": {0: 29, 1: 31}}
        ends = end_offsets(cluster.bootstrap, TOPICS[:1], 20)
        read_log(cluster.bootstrap, TOPICS[:1], ends, tmp_path, ReadLimit(20), begin=begin)
    rows = pq.read_table(tmp_path / "part-orders.parquet").to_pylist()
    assert {0: [29], 2: list(range(30))} == {
        partition: sorted(row["offset"] for row in rows if row["partition"] == partition)
        for partition in {row["partition"] for row in rows}
    }


def test_half_a_log_is_an_error(tmp_path: Path) -> None:
    """With the brokers gone the error names the partition, and no file makes the rest look lost."""
    with MockCluster() as cluster:
        cluster.create("orders", PARTITIONS)
        fill(cluster.bootstrap)
        ends = end_offsets(cluster.bootstrap, TOPICS[:1], 20)
        cluster.down()
        with pytest.raises(WorkloadError, match=r"the end of orders/0 is unknown, there was no progress for 0.5 s"):
            end_offsets(cluster.bootstrap, TOPICS[:1], 0.5)
        with pytest.raises(WorkloadError, match=r"orders/0 was read only to offset 0 of 30: there was no progress"):
            read_log(cluster.bootstrap, TOPICS[:1], ends, tmp_path, ReadLimit(0.5))
    assert list(tmp_path.iterdir()) == []

"""The reference clients on a real cluster, beside confluent-kafka and Kafka's own tools."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import docker
import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.static.protocol import RequestPayload

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.assignments import java_command
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.safety import ownership
from aftershock.tests.contract.load import Load, new_topic, out_of_order, records, rotate_leaders, wait
from aftershock.tests.unit.workloads.kafka.consuming import Reader
from aftershock.tests.unit.workloads.kafka.producing import Writer
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.committer import Committer, CommitterSettings
from aftershock.workloads.kafka.rules import values
from aftershock.workloads.kafka.rules.commits import Outcome, Target
from aftershock.workloads.kafka.wire import channel, codec
from aftershock.workloads.kafka.wire.codec import Api, Versions
from aftershock.workloads.load.fleet import Fleet

Launch = Callable[[ClusterPlan, Path], AbstractContextManager[Cluster]]

pytestmark = pytest.mark.engine

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def written(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Five reference producers, one for each codec, and two of confluent-kafka, read by a consumer of each kind."""
    load = Load(cluster, tmp_path_factory.mktemp("load"), new_topic(cluster, "written", 6))
    ours = [
        load.produce(f"reference-{codec}", "reference", linger_ms=30, settings={"compression.type": codec})
        for codec in CODECS
    ]
    theirs = [
        load.produce(f"confluent-{codec}", "confluent", linger_ms=30, settings={"compression.type": codec})
        for codec in ("lz4", "snappy")
    ]
    readers = [load.consume(f"reads-{client}", client, group=f"of-{client}") for client in ("reference", "confluent")]
    load.run([*ours, *theirs, *readers], seconds=5)
    return load


def test_both_consumers_read_every_producers_records(written: Load) -> None:
    """Every record of every producer and codec reaches both consumers once, in its partition's order."""
    sent = Counter(records([row for row in written.rows if row["op"] == "produce"]))
    assert 7 * 150 < len(sent)
    assert {"ok"} == {row["status"] for row in written.rows}
    for reader in ("reads-reference", "reads-confluent"):
        assert sent == Counter(records(written.of(reader)))
        assert [] == out_of_order(written.of(reader))


def test_the_reference_producers_outcomes_match_the_log(written: Load) -> None:
    """Broker, leader epoch, attempts and offset: the confluent consumer read the records at the same offsets."""
    read = {
        (row["producer_id"], row["seq"]): (row["partition"], row["offset"]) for row in written.of("reads-confluent")
    }
    leaders = {each.partition: each.leader for each in written.cluster.admin.partitions(["written"])}
    for row in written.of("reference-zstd"):
        assert read[row["producer_id"], row["seq"]] == (row["partition"], row["offset"])
        assert (leaders[row["partition"]], 1) == (row["broker_id"], row["attempts"])


def test_offsets_are_exchanged_between_clients(written: Load, tmp_path: Path) -> None:
    """Both groups have committed the end of every partition; a second consumer of the other kind starts there."""
    for client in ("reference", "confluent"):
        assert written.read_to == committed(written, f"of-{client}")
    again = Load(written.cluster, tmp_path, written.topic)
    crossed = {"reference": "of-confluent", "confluent": "of-reference"}
    more = again.produce("more", "reference", rate_per_s=20)
    again.run([more, *(again.consume(client, client, group=group) for client, group in crossed.items())], seconds=2)
    sent = Counter(records(again.of("more")))
    for client in crossed:
        assert sent == Counter(records(again.of(client)))


def committed(load: Load, group: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": load.cluster.bootstrap("a"), "group.id": group})
    try:
        asked = [TopicPartition(load.topic.name, number) for number in range(load.topic.partitions)]
        return {each.partition: each.offset for each in consumer.committed(asked, timeout=10)}
    finally:
        consumer.close()


def test_kafkas_own_tools_read_the_records(written: Load) -> None:
    """The console consumer prints as many values as were sent; the dump of a log finds every batch valid."""
    total = sum(written.read_to.values())
    command = ["/opt/kafka/bin/kafka-console-consumer.sh", "--topic", "written", "--from-beginning"]
    command += ["--bootstrap-server", written.cluster.bootstrap("a"), "--max-messages", str(total)]
    command += ["--timeout-ms", "20000", "--property", "print.value=false", "--property", "print.headers=true"]
    said = on_the_host(written.cluster, command)
    assert total == said.count("aftershock:")

    logs = "$(ls /var/lib/kafka/data/written-*/*.log | paste -sd,)"
    dump = f"/opt/kafka/bin/kafka-dump-log.sh --deep-iteration --files {logs}"
    node = written.cluster.nodes[BrokerId(1)].container
    dumped = node.exec_run(["sh", "-c", f"KAFKA_HEAP_OPTS=-Xmx128m {dump}"]).output.decode()
    codecs = set(re.findall(r"compresscodec: (\w+).*isvalid: true", dumped))
    assert set(CODECS) == codecs
    assert "isvalid: false" not in dumped


def on_the_host(cluster: Cluster, command: list[str]) -> str:
    """Return the output of a tool of the cluster's image, run in the host's network."""
    client = docker.from_env()
    output = engine.run_to_end(
        client,
        cluster.nodes[BrokerId(1)].container.image.id,
        command,
        network_mode="host",
        environment={"KAFKA_HEAP_OPTS": "-Xmx128m"},
        labels={ownership.RUN: cluster.run_id},
    )
    return output.decode()


def test_commits_of_every_client_are_in_the_group(cluster: Cluster, tmp_path: Path) -> None:
    """The group has each committer's last acknowledged commit: offsets never went back."""
    load = Load(cluster, tmp_path, new_topic(cluster, "positions", 2))
    crew = {client: load.commit(client, client) for client in ("reference", "confluent")}
    load.run([*crew.values()], seconds=4)
    for client, told in crew.items():
        rows = load.of(client)
        assert 60 < len(rows)
        assert {"ok"} == {row["status"] for row in rows}
        last = {row["group"]: (row["partition"], row["offset"]) for row in sorted(rows, key=lambda row: row["seq"])}
        assert told.groups == len(last)
        for group, (partition, offset) in last.items():
            assert offset == committed(load, group)[partition]


CAPPED = {Api.PRODUCE: 12, Api.METADATA: 12, Api.OFFSET_COMMIT: 9, Api.TXN_OFFSET_COMMIT: 4, Api.END_TXN: 4}
"""Highest versions before topic ids, KIP-1102 and version 2 of the transactions."""


@pytest.mark.parametrize("capped", [False, True])
async def test_versions_as_kafka_speaks_them_and_capped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, capped: bool
) -> None:
    """Records and commits arrive in both; a cap is an ApiVersions response with less than the broker offers."""
    topic = new_topic(cluster, f"versions-{capped}", 1).name
    caps = CAPPED if capped else {}
    spoken = await versions_spoken(cluster.bootstrap("a"), topic, caps, monkeypatch)
    assert {api: {CAPPED[api] + (not capped)} for api in CAPPED} == {api: spoken[api] for api in CAPPED}
    assert capped == bool(spoken.get(Api.ADD_OFFSETS_TO_TXN))


async def versions_spoken(
    bootstrap: str, topic: str, caps: Mapping[int, int], monkeypatch: pytest.MonkeyPatch
) -> dict[int, set[int]]:
    """Produce, read and commit in this process; return the versions of all requests by API."""
    spoken: dict[int, set[int]] = {}
    head = channel.frame_head

    def recorded(kind: type[RequestPayload], *rest: Any) -> bytes:
        spoken.setdefault(int(kind.__api_key__), set()).add(int(kind.__version__))
        return head(kind, *rest)

    def offered(ranges: Mapping[int, tuple[int, int]], *features: Any) -> Versions:
        lowered = {api: (low, min(high, caps.get(api, high))) for api, (low, high) in ranges.items()}
        return Versions(lowered, *features)

    monkeypatch.setattr(channel, "frame_head", recorded)
    monkeypatch.setattr(codec, "Versions", offered)
    writer = Writer(bootstrap, topic)
    await writer.producer.start([topic])
    await writer.send(5)
    await writer.producer.close(5_000)
    assert {0} == {delivery.error for delivery in writer.deliveries}
    reader = Reader({"bootstrap.servers": bootstrap})
    await reader.consumer.start([topic])
    reader.consumer.assign({values.TopicPartition(topic, 0): "earliest"})
    assert list(range(5)) == [offset for _, _, offset in await reader.take(5)]
    await reader.consumer.close(5_000)
    for transactional in (False, True):
        outcomes: list[Outcome] = []
        settings = parse(CommitterSettings, {"bootstrap.servers": bootstrap, "transactional": transactional})
        committer = Committer(settings, report=outcomes.append, on_event=lambda _, **__: None)
        target = Target(f"{topic}-{transactional}", topic, 0)
        await committer.start([target])
        for offset in range(3):
            committer.offer(target, offset, token=offset)
            async with asyncio.timeout(20):
                while len(outcomes) <= offset:  # noqa: ASYNC110  # the outcome is reported by a callback
                    await asyncio.sleep(0.01)
        await committer.close(5_000)
        assert [0, 0, 0] == [outcome.error for outcome in outcomes]
    return spoken


def traffic_of(load: Load, rack: str) -> dict[int, int]:
    """Return broker → bytes that clients of a rack received, by Toxiproxy's counters of closed connections."""
    counted = load.cluster.toxiproxy.received_bytes()
    return {broker: counted.get((f"client_{rack}-k{broker}", "downstream"), 0) for broker in sorted(load.cluster.nodes)}


def received_from(fleet: Fleet, broker: int) -> int:
    """Return the bytes that the consumer has received from that broker, as of its last report."""
    told = fleet.progress().get("near")
    return told.traffic.get(broker, (0, 0))[1] if told else 0


def test_a_consumer_reads_in_its_own_rack_and_fails_back(launch: Launch, tmp_path: Path) -> None:
    """KIP-392: bytes come from rack b's replica only; when that is killed the leader serves, and no record is lost."""
    with launch(ClusterPlan(), tmp_path) as cluster:
        topic = new_topic(cluster, "near", 3, led_by=1, **{"min.insync.replicas": "1"})
        calm = Load(cluster, tmp_path / "calm", topic)
        crew = [
            calm.produce("writes", "reference", rate_per_s=100, record_size_min=1000, record_size_max=1000),
            calm.consume("near", "reference", rack="b", client_rack="b"),
        ]
        calm.run(crew, seconds=4)
        got = traffic_of(calm, "b")
        assert Counter(records(calm.of("writes"))) == Counter(records(calm.of("near")))
        assert {2} == {row["broker_id"] for row in calm.of("near")}
        record_bytes = 1000 * len(calm.of("near"))
        assert got[2] > record_bytes
        assert got[1] + got[3] < 0.02 * record_bytes

        broken = Load(cluster, tmp_path / "broken", topic)

        async def kill_the_replica(fleet: Fleet) -> None:
            await asyncio.to_thread(wait, lambda: received_from(fleet, 2) > 100_000)
            await asyncio.to_thread(cluster.nodes[BrokerId(2)].kill)
            read = fleet.progress()["near"].ok
            await asyncio.to_thread(wait, lambda: fleet.progress()["near"].ok >= read + 300)

        crew = [
            broken.produce("writes", "reference", rate_per_s=100),
            broken.consume("near", "reference", rack="b", client_rack="b", settings={"request.timeout.ms": 4000}),
        ]
        broken.run(crew, seconds=0, during=kill_the_replica)
        sent = set(records(broken.of("writes", "ok")))
        read = records([row for row in broken.of("near") if row["offset"] >= calm.read_to[row["partition"]]])
        assert sent <= set(read)
        assert len(read) == len(set(read))
        assert {1, 2} == {row["broker_id"] for row in broken.of("near")}
        events = [json.loads(line) for line in (tmp_path / "broken" / "events.jsonl").read_text().splitlines()]
        assert {"replica_switched", "replica_failed_back"} <= {line["event"] for line in events}


ROTATIONS = 200


@pytest.mark.nightly
def test_two_hundred_leader_rotations(launch: Launch, tmp_path: Path) -> None:
    """As many leader moves as in an hour: each acknowledged record of a reference producer is written once, in
    order, and read.

    No failed record is in the log. The next move comes when all records sent before the last move are done. Not
    every record is acknowledged: if a producer's first batches to a partition meet a leader that moves, the next
    leader may take a later batch for the first (it has no state to compare with), and the batches before it are
    refused until their deadline. With four moves a second, librdkafka doubled 30 of 3,177 records, the reference
    producer 9 of 9,533, and Kafka's own left 157 of 3,177 in doubt.
    """
    with launch(ClusterPlan(), tmp_path) as cluster:
        topic = new_topic(cluster, "turning", 12, **{"min.insync.replicas": "2"})
        load = Load(cluster, tmp_path, topic)
        ours: dict[str, dict[str, Any]] = {
            "hints": {"leader_discovery": "response"},
            "no-hints": {"leader_discovery": "metadata"},
            "uniform": {"partitioner": "uniform"},
        }
        crew = [load.produce(name, "reference", switches=switches) for name, switches in ours.items()]
        others = [load.produce("confluent", "confluent"), load.produce("java", "java", command=java(cluster, tmp_path))]
        readers = [load.consume("reads", "reference", rack="b", client_rack="b"), load.consume("checks", "confluent")]

        async def rotate(fleet: Fleet) -> None:
            for _ in range(ROTATIONS):
                await asyncio.to_thread(rotate_leaders, cluster, topic.name)
                await asyncio.to_thread(wait, caught_up(fleet), 30)

        load.run([*crew, *others, *readers], seconds=0, during=rotate)
        print(Counter((row["arm"], row["status"], row["error"]) for row in load.rows if row["op"] == "produce"))
        ids = {told.producer_id for told in crew}
        sent = [row for row in load.rows if row["op"] == "produce" and row["producer_id"] in ids]
        written, failed = ({*records([row for row in sent if row["status"] == status])} for status in ("ok", "failed"))
        assert len(written) > 0.98 * len(sent)
        for reader in ("reads", "checks"):
            rows = [row for row in load.of(reader) if row["producer_id"] in ids]
            read = Counter(records(rows))
            assert {1} == {*read.values()}
            assert [] == out_of_order(rows)
            assert set() == written - read.keys()
            assert set() == failed & read.keys()


def caught_up(fleet: Fleet) -> Callable[[], bool]:
    """Return a condition: every producer has its answer to all records that it had sent at the time of this call."""
    sent = {worker: told.sent for worker, told in fleet.progress().items() if told.op == "produce"}

    def reached() -> bool:
        now = fleet.progress()
        return all(now[name].ok + now[name].failed + now[name].in_doubt >= count for name, count in sent.items())

    return reached


def java(cluster: Cluster, home: Path) -> tuple[str, ...]:
    """Return the command of Kafka's own client."""
    image = engine.java_client_image(engine.connect(), cluster.spec.kafka, print)
    return java_command(image.name, ownership.labels_of(cluster.run_id, home, keep=False))

"""The producer as an application uses it: start, send, close, and errors."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, UnsupportedError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import fresh_topic
from aftershock.tests.unit.workloads.kafka.producing import Writer, produced, writing, written
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.wire.batch import parse as parse_batches
from aftershock.workloads.kafka.wire.connection import Address


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()


async def test_every_record_is_written_once_and_in_order(cluster: ScriptedBroker) -> None:
    """Three partitions on three nodes; each record is at the offset in its outcome."""
    async with writing(cluster, 3, linger_ms=2) as writer:
        for number in range(300):
            writer.offer(partition=number % 3)
        await writer.flush()
        for partition in range(3):
            log = written(cluster, writer.topic, partition)
            assert list(range(partition, 300, 3)) == log
            for delivery in (each for each in writer.deliveries if each.partition == partition):
                assert list(delivery.tokens) == log[delivery.base_offset : delivery.base_offset + len(delivery.tokens)]
                assert (0, False, 1) == (delivery.error, delivery.in_doubt, delivery.attempts)
                assert partition % 3 + 1 == delivery.broker_id


async def test_keys_headers_and_nulls_arrive(cluster: ScriptedBroker) -> None:
    """A null value, an empty key, two headers with one name."""
    topic = fresh_topic(cluster)
    writer = Writer(cluster.bootstrap, topic)
    await writer.producer.start([topic])
    headers = (("a", b"1"), ("a", None))
    assert writer.producer.offer(topic, None, key=b"", headers=headers, token=7)
    await writer.flush()
    await writer.producer.close(1000)
    ((record,),) = [batch.records for batch in parse_batches(cluster.log(topic))]
    assert (b"", None, headers) == (record.key, record.value, record.headers)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compression(cluster: ScriptedBroker, codec: str) -> None:
    """For any codec the records are read back unchanged, and batches take more records as the estimate improves."""
    async with writing(cluster, linger_ms=50, compression_type=codec, batch_size=2000) as writer:
        for _ in range(30):
            writer.offer(20, size=100)
            await writer.flush()
        assert list(range(600)) == written(cluster, writer.topic)
        sizes = [len(delivery.tokens) for delivery in writer.deliveries]
        assert (max(sizes) > 20 * 0.9) is (codec != "none")


async def test_librdkafka_reads_what_is_written(cluster: ScriptedBroker) -> None:
    """An independent client gets every record: compressed, with its key and headers, at the reported offset."""
    async with writing(cluster, linger_ms=2, compression_type="lz4") as writer:
        writer.offer(50, size=200)
        await writer.flush()
        read = await asyncio.to_thread(read_all, cluster, writer.topic, 50)
    assert [(number, b"%d" % number, [("h", b"%d" % number)]) for number in range(50)] == read


def read_all(cluster: ScriptedBroker, topic: str, count: int) -> list[tuple[int, bytes, object]]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=15)
    consumer.close()
    return [(each.offset(), each.value().strip(), each.headers()) for each in messages]


async def test_linger_gathers_records(cluster: ScriptedBroker) -> None:
    """Records within one linger share a batch; a flush doesn't wait for the linger."""
    async with writing(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as writer:
        writer.offer(10)
        await asyncio.sleep(0.05)
        assert not writer.deliveries
        await writer.flush()
        assert [list(range(10))] == [delivery.tokens for delivery in writer.deliveries]


# -- starting


async def test_starting_waits_for_brokers(cluster: ScriptedBroker) -> None:
    """Without an answer start retries; its caller has the deadline."""
    for node in cluster.addresses:
        cluster.down(node)
    topic = fresh_topic(cluster)
    writer = Writer(cluster.bootstrap, topic)
    starting = asyncio.create_task(writer.producer.start([topic]))
    await writer.until(lambda: len(writer.events("node_disconnected")) >= 3, "nobody was tried")
    assert not starting.done()
    for node in cluster.addresses:
        cluster.up(node)
    await asyncio.wait_for(starting, 15)
    await writer.send()
    await writer.producer.close(1000)
    assert 0 == writer.outcomes[0].error


async def test_starting_can_be_cancelled(cluster: ScriptedBroker) -> None:
    """No task is left after close."""
    writer = Writer(cluster.bootstrap, "no-such-topic")
    starting = asyncio.create_task(writer.producer.start(["no-such-topic"]))
    await writer.until(lambda: writer.events("metadata_refreshed"), "no metadata")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await writer.producer.close(1000)
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_starting_fails_for_a_missing_topic(cluster: ScriptedBroker) -> None:
    """The topic may be created at any moment, so max.block.ms decides; the error names it."""
    writer = Writer(cluster.bootstrap, "no-such-topic", max_block_ms=50)
    with pytest.raises(BrokerError, match="no-such-topic: UNKNOWN_TOPIC_OR_PARTITION") as refused:
        await writer.producer.start(["no-such-topic"])
    assert ErrorCode.unknown_topic_or_partition == refused.value.code
    await writer.producer.close(1000)


async def test_starting_fails_without_the_right_to_produce_idempotently(cluster: ScriptedBroker) -> None:
    """CLUSTER_AUTHORIZATION_FAILED for InitProducerId is permanent, so it is raised."""
    cluster.script("InitProducerId", times=100, error=ErrorCode.cluster_authorization_failed)
    topic = fresh_topic(cluster)
    writer = Writer(cluster.bootstrap, topic)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await writer.producer.start([topic])
    await writer.producer.close(1000)


@pytest.mark.parametrize(("switches", "version"), [("response", 13), ("metadata", 9)])
async def test_starting_compiles_the_codec(
    cluster: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, switches: str, version: int
) -> None:
    """Compiling takes ten milliseconds, which the first record doesn't wait for."""
    prepared: list[Any] = []
    monkeypatch.setattr("aftershock.workloads.kafka.producer.produce_request.prepare", prepared.append)
    async with writing(cluster, leader_discovery=switches):
        assert [("ProduceRequest", version)] == [(kind.__name__, kind.__version__) for kind in prepared]


@pytest.mark.parametrize("api", ["Produce", "InitProducerId", "Metadata"])
async def test_a_broker_that_is_too_old(api: str) -> None:
    """A broker that lacks a required version or API: an error with both ranges, and no hang."""
    versions = {"Metadata": (0, 5)} if api == "Metadata" else {api: None}
    with ScriptedBroker(versions=versions) as cluster:
        topic = fresh_topic(cluster)
        writer = Writer(cluster.bootstrap, topic)
        if api == "Produce":
            await writer.producer.start([topic])
            await writer.send()
            assert (ErrorCode.unsupported_version, False) == writer.outcomes[0][4:6]
        else:
            with pytest.raises(UnsupportedError, match=api.upper() if api == "Metadata" else "INIT_PRODUCER_ID"):
                await asyncio.wait_for(writer.producer.start([topic]), 15)
        await writer.producer.close(1000)


async def test_a_codec_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor raises the error, not the first batch."""
    monkeypatch.setattr("aftershock.workloads.kafka.wire.compression.available", lambda _name: False)
    settings = ProducerSettings(bootstrap_servers=(Address("h", 1),), compression_type="zstd")
    with pytest.raises(UnsupportedError, match="cramjam"):
        Producer(settings, report=lambda _delivery: None, on_event=lambda _event, **_details: None)


# -- refused records


async def test_a_record_that_is_too_large_fails_alone(cluster: ScriptedBroker) -> None:
    """At once and without doubt; the records around it are written."""
    async with writing(cluster, max_request_size=5000) as writer:
        writer.offer()
        writer.offer(size=5000)
        writer.offer()
        assert (ErrorCode.message_too_large, False, 0) == (writer.outcomes[1].error, *writer.outcomes[1][5::3])
        await writer.flush()
        assert [0, 2] == written(cluster, writer.topic)


async def test_a_full_buffer_blocks_then_fails_that_record_alone(cluster: ScriptedBroker) -> None:
    """After max.block.ms without room the record has failed without doubt; once there is room, records are accepted
    again.
    """
    async with writing(cluster, buffer_memory=20_000, max_block_ms=50) as writer:
        stuck = cluster.script("Produce", delay_ms=400)
        writer.offer()
        await cluster.until("Produce", topic=writer.topic)
        assert not writer.producer.offer(writer.topic, b"1", partition=0, token=1)
        await writer.producer.send(writer.topic, b"1", partition=0, token=1)
        assert (ErrorCode.request_timed_out, False, 0) == (writer.outcomes[1].error, *writer.outcomes[1][5::3])
        await writer.flush()
        await writer.producer.send(writer.topic, b"2", partition=0, token=2)
        await writer.flush()
        assert [0, 2] == written(cluster, writer.topic)
        assert 1 == cluster.fired(stuck)


async def test_a_full_buffer_ends_the_linger(cluster: ScriptedBroker) -> None:
    """While a record waits for room, batches are sent at once: the wait is for the broker, not for linger.ms."""
    async with writing(cluster, 2, buffer_memory=20_000, linger_ms=60_000, delivery_timeout_ms=120_000) as writer:
        writer.offer(partition=0)
        async with asyncio.timeout(10):
            await writer.producer.send(writer.topic, b"1", partition=1, token=1)
        assert [0] == written(cluster, writer.topic, 0)
        await writer.flush()


async def test_an_unknown_topic_fails_its_record_after_max_block(cluster: ScriptedBroker) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION, certainly not written; other topics are unaffected."""
    async with writing(cluster, max_block_ms=300) as writer:
        await writer.producer.send("no-such-topic", b"0", token=100)
        await writer.send()
    assert (ErrorCode.unknown_topic_or_partition, False) == writer.outcomes[100][4:6]
    assert 0 == writer.outcomes[0].error


async def test_a_topic_created_during_send_gets_its_record(cluster: ScriptedBroker) -> None:
    """send waits for the metadata, and needs no second call."""
    async with writing(cluster) as writer:
        later = f"{writer.topic}-later"
        sending = asyncio.create_task(writer.producer.send(later, b"0", token=100))
        await writer.until(lambda: len(cluster.journal("Metadata", topic=later)) >= 2, "the topic was not asked for")
        cluster.create(later)
        async with asyncio.timeout(10):
            await sending
        await writer.flush()
        assert [0] == written(cluster, later)


async def test_a_missing_partition_fails_its_record(cluster: ScriptedBroker) -> None:
    """After max.block.ms, like an unknown topic: partitions may be added."""
    async with writing(cluster, max_block_ms=30) as writer:
        await writer.producer.send(writer.topic, b"0", partition=9, token=100)
    assert (9, ErrorCode.request_timed_out, False) == (writer.outcomes[100].partition, *writer.outcomes[100][4:6])


async def test_an_unauthorized_topic_fails_at_once(cluster: ScriptedBroker) -> None:
    """TOPIC_AUTHORIZATION_FAILED in Metadata is not retried until max.block.ms."""
    async with writing(cluster, max_block_ms=60_000) as writer:
        cluster.script("Metadata", times=100, error=ErrorCode.topic_authorization_failed)
        async with asyncio.timeout(10):
            await writer.producer.send(fresh_topic(cluster), b"0", token=100)
    assert (ErrorCode.topic_authorization_failed, False) == writer.outcomes[100][4:6]


# -- close


async def test_closing_sends_lingering_records(cluster: ScriptedBroker) -> None:
    """Afterwards no record is accepted."""
    async with writing(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as writer:
        writer.offer(10)
        await writer.producer.close(5000)
        assert list(range(10)) == written(cluster, writer.topic)
        with pytest.raises(ClientError, match="closed"):
            writer.producer.offer(writer.topic, b"", token=99)


async def test_closing_is_bounded_and_reports_everything(cluster: ScriptedBroker) -> None:
    """With a broker that never answers: sent records are in doubt, unsent records have failed, and no task is left."""
    async with writing(cluster, 2, max_in_flight_requests_per_connection=1, leaders=[1, 1]) as writer:
        cluster.script("Produce", times=100, answer="lost")
        writer.offer(partition=0)
        await cluster.until("Produce", topic=writer.topic)
        writer.offer(partition=1)
        async with asyncio.timeout(10):
            await writer.producer.close(100)
        assert {asyncio.current_task()} == asyncio.all_tasks()
    assert [True, False] == [writer.outcomes[token].in_doubt for token in (0, 1)]
    assert {ErrorCode.request_timed_out} == {delivery.error for delivery in writer.deliveries}


async def test_a_cancelled_flush_does_not_change_the_producer(cluster: ScriptedBroker) -> None:
    """The linger continues, and all records are written in the end."""
    async with writing(cluster, linger_ms=100) as writer:
        cluster.script("Produce", delay_ms=200)
        writer.offer()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.producer.flush(), 0.05)
        assert 0 == writer.producer._rules.accumulator.flushing
        await writer.flush()
        assert [0] == written(cluster, writer.topic)


async def test_a_cancelled_send_sends_no_record(cluster: ScriptedBroker) -> None:
    """A caller that stops waiting for room blocks no other caller."""
    async with writing(cluster, buffer_memory=20_000) as writer:
        cluster.script("Produce", delay_ms=300)
        writer.offer()
        await cluster.until("Produce", topic=writer.topic)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.producer.send(writer.topic, b"9", partition=0, token=9), 0.05)
        await writer.flush()
        assert 0 == writer.producer._rules.accumulator.waiting
        assert [0] == written(cluster, writer.topic)


async def test_closing_fails_waiting_records(cluster: ScriptedBroker) -> None:
    """A record that still waits for room at the close has failed; its caller doesn't hang."""
    async with writing(cluster, buffer_memory=20_000) as writer:
        cluster.script("Produce", answer="lost")
        writer.offer()
        await cluster.until("Produce", topic=writer.topic)
        sending = asyncio.create_task(writer.producer.send(writer.topic, b"1", partition=0, token=1))
        await writer.until(lambda: writer.producer._rules.accumulator.waiting, "nobody waits")
        await writer.producer.close(50)
        async with asyncio.timeout(10):
            await sending
    assert [True, False] == [writer.outcomes[token].in_doubt for token in (0, 1)]


async def test_a_second_close_has_no_effect(cluster: ScriptedBroker) -> None:
    async with writing(cluster) as writer:
        await writer.send()
        await writer.producer.close(1000)
        await writer.producer.close(1000)
    assert 1 == len(writer.deliveries)


async def test_an_internal_error_reports_every_record(cluster: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the loop ends the producer: its records are reported, later ones are refused, no caller hangs."""
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
    async with writing(cluster) as writer:
        monkeypatch.setattr(writer.producer._sender.requester, "send", lambda *_: 1 / 0)
        writer.offer()
        await writer.flush()
        writer.offer()
    assert [ErrorCode.unknown_server_error] * 2 == [writer.outcomes[token].error for token in (0, 1)]
    assert [True, False] == [writer.outcomes[token].in_doubt for token in (0, 1)]
    assert isinstance(seen[0], ZeroDivisionError)


async def test_draws_are_repeatable(cluster: ScriptedBroker) -> None:
    """All randomness comes from the producer's generator: the same seed gives the same partitions."""
    orders = []
    for _ in range(2):
        topic = fresh_topic(cluster, 6)
        writer = Writer(cluster.bootstrap, topic)
        settings = parse(ProducerSettings, {"bootstrap.servers": cluster.bootstrap, "batch.size": 200})
        producer = Producer(
            settings,
            report=writer.deliveries.append,
            on_event=lambda _event, **_details: None,
            draw=random.Random(3),  # noqa: S311
        )
        await producer.start([topic])
        for token in range(40):
            assert producer.offer(topic, bytes(100), token=token)
        await producer.flush()
        await producer.close(1000)
        await writer.producer.close(0)
        orders.append([delivery.partition for token, delivery in sorted(writer.outcomes.items())])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) > 1


async def test_traffic_is_counted_by_node(cluster: ScriptedBroker) -> None:
    """Bytes sent to a node are at least those of its records; a node that leads no partition gets none."""
    async with writing(cluster, leaders=[2]) as writer:
        writer.offer(10, size=1000)
        await writer.flush()
        sent = {node: sent for node, (sent, _) in writer.producer.brokers.traffic.items()}
        assert sent[2] > 10_000
        assert all(count < 5_000 for node, count in sent.items() if node != 2)
        assert {2} == {seen.node for seen in produced(cluster, writer.topic)}

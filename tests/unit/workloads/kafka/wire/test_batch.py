"""Batches exchanged with librdkafka over a real socket."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.wire.record_shapes import Shape, alike, unlike
from aftershock.workloads.kafka.wire import compression
from aftershock.workloads.kafka.wire.batch import Record, parse


def test_a_header_name_that_is_no_utf8() -> None:
    """Like Kafka's Java client, the parser replaces invalid bytes: a record isn't lost for its header's name."""
    shape = alike(1)._replace(headers=[[("abc", b"x")]])
    (batch,) = parse(shape.build().replace(b"abc", b"a\xffc"), check_crc=False)
    assert (("a�c", b"x"),) == batch.records[0].headers


SHAPES = {"alike": alike(100, 200, ms_apart=1), "unlike": unlike(40), "keys": alike(20, 30, key_size=5)}


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as running:
        yield running


@pytest.mark.parametrize("codec", compression.NAMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_librdkafka_reads_what_we_build(broker: ScriptedBroker, shape: Shape, codec: str) -> None:
    """It validates the CRC, decompresses, and returns the same keys, values, headers and timestamps."""
    topic = f"ours-{codec}-{len(shape.values)}"
    broker.create(topic)
    broker.append(topic, 0, shape.build(compression=codec))
    assert shape.records() == consumed(broker, topic, len(shape.values))


@pytest.mark.parametrize("codec", compression.NAMES)
def test_we_read_what_librdkafka_builds(broker: ScriptedBroker, codec: str) -> None:
    """Its batches, of an idempotent producer, by every codec."""
    topic, shape = f"theirs-{codec}", unlike(60)
    broker.create(topic)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 50, "enable.idempotence": True}
    )
    for record in shape.records():
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms, headers=list(record.headers))
    assert 0 == producer.flush(10)
    batches = list(parse(broker.log(topic)))
    assert shape.records() == [record for batch in batches for record in batch.records]
    assert all(batch.header.producer_id > 0 and batch.header.attributes & 7 for batch in batches) or codec == "none"


def consumed(broker: ScriptedBroker, topic: str, count: int) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "check.crcs": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=10)
    finally:
        consumer.close()
    assert [None] * count == [message.error() for message in messages]
    return [
        Record(
            message.offset() or 0,
            message.timestamp()[1],
            as_bytes(message.key()),
            as_bytes(message.value()),
            tuple((str(name), as_bytes(content)) for name, content in list(message.headers() or [])),
        )
        for message in messages
    ]


def as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content

"""Parsed batches as columns, and batches exchanged with librdkafka over a real socket."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.wire.record_shapes import HEADER, Shape, alike, unlike
from aftershock.workloads.kafka.wire import compression
from aftershock.workloads.kafka.wire.batch import Batch, Record, parse


def parsed(shape: Shape, base_offset: int = 0) -> Batch:
    (batch,) = parse(shape.build(base_offset=base_offset))
    return batch


MIXED = Shape(
    alike(20, 30).values + unlike(9).values + alike(100, 5).values,
    [*alike(129, ms_apart=2).timestamps_ms],
    None,
    alike(129).headers,
)


@pytest.mark.parametrize("shape", [alike(16, 1000), alike(300, 40, ms_apart=1), unlike(30), MIXED, alike(1)])
def test_marks_of_all_records_at_once(shape: Shape) -> None:
    """The header's values, for records in one run, in several, or in none; with the other columns."""
    batch = parsed(shape, 1000)
    marks = batch.header_values(HEADER, 20)
    assert marks is not None
    assert [headers[0][1] for headers in shape.headers or ()] == [mark.tobytes() for mark in marks]
    assert [record.offset + 1000 for record in shape.records()] == batch.offsets.tolist()
    assert [len(value or b"") for value in shape.values] == batch.value_sizes.tolist()
    assert shape.timestamps_ms == batch.timestamps_ms.tolist()


def other_headers(headers: list[tuple[str, bytes | None]], at: int) -> Shape:
    shape = alike(20, 30)
    return shape._replace(headers=[headers if n == at else own for n, own in enumerate(shape.headers or ())])


@pytest.mark.parametrize("at", [0, 10, 19])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("aftershocK", bytes(20))],
        [(HEADER, bytes(19))],
        [(HEADER, None)],
        [(HEADER, bytes(20)), ("b", b"")],
        [("b", b""), (HEADER, bytes(20))],
    ],
    ids=["none", "another", "shorter", "null", "one more behind", "one more before"],
)
def test_a_foreign_record_disables_the_mark_column(headers: list[tuple[str, bytes | None]], at: int) -> None:
    """The caller must then examine each record."""
    batch = parsed(other_headers(headers, at))
    assert batch.header_values(HEADER, 20) is None
    assert tuple(headers) == batch.records()[at].headers


def test_a_mark_of_another_size_or_name_is_not_given() -> None:
    """A mark that no record has."""
    batch = parsed(alike(16))
    assert batch.header_values(HEADER, 21) is None
    assert batch.header_values("a", 20) is None


def test_keys_and_values_are_views() -> None:
    """Null stays null, empty stays empty, and nothing is copied."""
    shape = Shape([b"a", None, b""], [0, 0, 0], [None, b"k", b""], None)
    batch = parsed(shape)
    assert [b"a", None, b""] == batch.values()
    assert [None, b"k", b""] == batch.keys()
    assert isinstance(batch.values()[0], memoryview)


def test_a_header_name_that_is_no_utf8() -> None:
    """Like Kafka's Java client, the parser replaces invalid bytes: a record isn't lost for its header's name."""
    shape = alike(1)._replace(headers=[[("abc", b"x")]])
    (batch,) = parse(shape.build().replace(b"abc", b"a\xffc"), check_crc=False)
    assert (("a�c", b"x"),) == batch.records()[0].headers


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
    assert shape.records() == [record for batch in batches for record in batch.records()]
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

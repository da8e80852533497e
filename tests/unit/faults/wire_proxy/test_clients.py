"""Real clients behind the proxy: librdkafka and the reference client find every broker through it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer

from aftershock.tests.unit.workloads.kafka.producing import Writer
from aftershock.workloads.kafka.wire.batch import parse

if TYPE_CHECKING:
    from aftershock.tests.scripted_broker import ScriptedBroker
    from aftershock.tests.unit.faults.wire_proxy.conftest import Hop


RECORDS, ROUNDS = 200, 10
DEADLINE_S = 20.0


def sequenced(broker: ScriptedBroker, partitions: int) -> list[int]:
    """Return the number of records in the log of each partition."""
    return [sum(len(b.records) for b in parse(broker.log("t", number))) for number in range(partitions)]


def produce(hop: Hop, **settings: Any) -> list[str | None]:
    """Send RECORDS records with librdkafka through the proxy to both nodes, and return their outcomes."""
    outcomes: list[str | None] = []
    producer = Producer(
        {"bootstrap.servers": hop.bootstrap, "client.id": "w-a-produce", "linger.ms": 1, "log_level": 0, **settings}
    )
    for number in range(RECORDS):
        producer.produce(
            "t",
            b"%d" % number,
            partition=number % 2,
            on_delivery=lambda error, _: outcomes.append(error.name() if error else None),
        )
    producer.flush(DEADLINE_S)
    return outcomes


def consume(hop: Hop, **settings: Any) -> list[bytes]:
    said = {"bootstrap.servers": hop.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer(said | settings)
    consumer.subscribe(["t"])
    values: list[bytes] = []
    try:
        while len(values) < RECORDS and (message := consumer.poll(DEADLINE_S)) is not None:
            assert message.error() is None
            values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


async def test_all_connections_of_librdkafka_pass_the_proxy(broker: ScriptedBroker, hop: Hop) -> None:
    """librdkafka writes to both nodes and reads all records back."""
    broker.create("t", partitions=2, leaders=[1, 2])
    rule = hop.rule("delay_request", api="Produce", delay_ms=0, clients=("w-a-produce",))
    assert [None] * RECORDS == await asyncio.to_thread(produce, hop)
    assert {b"%d" % number for number in range(RECORDS)} == set(await asyncio.to_thread(consume, hop))
    assert len(broker.journal("Produce")) == hop.counts(rule)["hit"]


async def test_an_ambiguous_acknowledgement_without_idempotence(broker: ScriptedBroker, hop: Hop) -> None:
    """The first response is lost after the append: librdkafka sends the records again, so they are in the log twice.

    With idempotence the same loss leaves each record once.
    """
    for idempotent, extra in ((False, True), (True, False)):
        broker.reset()
        broker.advertise({node: hop.address(node).port for node in (1, 2)})
        broker.create("t", partitions=2, leaders=[1, 2])
        rule = hop.rule("drop_response", api="Produce", nth=1)
        outcomes = await asyncio.to_thread(produce, hop, **{"enable.idempotence": idempotent, "acks": "all"})
        assert [None] * RECORDS == outcomes
        assert 1 == hop.counts(rule)["hit"]
        assert extra == (sum(sequenced(broker, 2)) > RECORDS)
        hop.proxy.remove_rule(rule)


async def test_librdkafka_uses_no_version_above_the_cap(broker: ScriptedBroker, hop: Hop) -> None:
    broker.create("t", partitions=2, leaders=[1, 2])
    hop.rule("cap_versions", api="ApiVersions", versions={"Produce": 7, "Metadata": 4})
    assert [None] * RECORDS == await asyncio.to_thread(produce, hop)
    assert {7} == {seen.version for seen in broker.journal("Produce")}
    assert max(seen.version for seen in broker.journal("Metadata")) <= 4


async def test_the_reference_producer_through_the_proxy(broker: ScriptedBroker, hop: Hop) -> None:
    """Every third response is lost: all records are acknowledged in the end, and none is in the log twice."""
    broker.create("t", partitions=2, leaders=[1, 2])
    rule = hop.rule("drop_response", api="Produce", chances="001", clients=("t",))
    writer = Writer(hop.bootstrap, "t")
    await writer.producer.start(["t"])
    for number in range(ROUNDS):
        writer.offer(RECORDS // ROUNDS, partition=number % 2)
        await writer.producer.flush()
    await writer.producer.close(2_000)
    assert hop.counts(rule)["hit"] > 1
    assert RECORDS == len(writer.outcomes)
    assert RECORDS == sum(sequenced(broker, 2))

"""Cases of faults on transactions: their coordinator, their producers, and a transaction that no coordinator knows."""

import asyncio

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import InjectionContext
from aftershock.faults.kinds.kafka.transactions import AbortTransaction
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.kafka_cases import put
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.tests.chaos.late_produce import OldProducer

ID, TOPIC = "cases-produce", "topic_of_transactions"
VERIFICATION = "transaction.partition.verification.enable"
_STEP_S = 15.0
OPENED: list[Producer] = []


def producer(stand: Stand) -> Producer:
    """Return a producer with the transactional id of the cases, which fences the one before."""
    new = Producer({"bootstrap.servers": stand.cluster.bootstrap("a"), "transactional.id": ID})
    new.init_transactions(_STEP_S)
    return new


def send(own: Producer, value: bytes) -> None:
    own.produce(TOPIC, value, partition=0)
    assert own.flush(_STEP_S) == 0


def committed(seen: Observation) -> list[bytes]:
    """Return the values of partition 0 that a reader of committed records gets, up to the high watermark."""
    config = {"bootstrap.servers": seen.stand.cluster.bootstrap("a"), "group.id": "cases"}
    consumer = Consumer(config | {"isolation.level": "read_committed", "enable.partition.eof": True})
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while (message := consumer.poll(_STEP_S)) is not None and message.error() is None:
            values.append(message.value() or b"")
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF
        # such a reader ends at the last stable offset, which is the high watermark if no transaction is open
        _, high_watermark = asyncio.run(seen.stand.world.log_ends(TOPIC))[TOPIC, 0]
        assert message.offset() == high_watermark
        return values
    finally:
        consumer.close()


async def producer_with_transactions(stand: Stand) -> None:
    """Create a producer that has committed one transaction."""
    await put(stand, TOPIC, {0: (1, 2, 3)})
    own = await asyncio.to_thread(producer, stand)
    own.begin_transaction()
    await asyncio.to_thread(send, own, b"before")
    await asyncio.to_thread(own.commit_transaction, _STEP_S)
    OPENED[:] = [own]


async def open_transaction(stand: Stand) -> None:
    """The same, with a second transaction that is open."""
    await producer_with_transactions(stand)
    OPENED[0].begin_transaction()
    await asyncio.to_thread(send, OPENED[0], b"open")


def goes_on(seen: Observation) -> None:
    """Assert that the producer commits its next transaction at the coordinator that is there now."""
    OPENED[0].begin_transaction()
    send(OPENED[0], b"after")
    OPENED[0].commit_transaction(_STEP_S)
    assert [b"before", b"after"] == committed(seen)


def fenced_for_good(seen: Observation) -> None:
    """Assert that the producer can't commit; a new one can, and the open transaction was aborted."""
    with pytest.raises(KafkaException) as refused:
        OPENED[0].commit_transaction(_STEP_S)
    assert refused.value.args[0].fatal()
    OPENED[:] = [producer(seen.stand)]
    goes_on(seen)


async def hanging_transaction(stand: Stand) -> None:
    """Create a hanging transaction: a late Produce after EndTxn, with verification off (KAFKA-14402).

    Before it, the transaction is open and known to its coordinator, and the fault must refuse to abort it.
    """
    await put(stand, TOPIC, {0: (1, 2, 3)})
    for broker in stand.cluster.spec.topology.broker_ids:
        await stand.world.alter_config("broker", str(broker), {VERIFICATION: "false"})
    admin = stand.cluster.admin.copy()
    old = await asyncio.to_thread(OldProducer, admin, "cases-hanging", TOPIC, 0)
    await asyncio.to_thread(old.add_partition)
    await asyncio.to_thread(old.produce, b"aborted")
    fault = AbortTransaction(topic=TOPIC, partition=0)
    with pytest.raises(FaultError, match="its coordinator knows it as Ongoing"):
        await fault.resolve_targets(InjectionContext(stand.world, stand.clock, "refused"), {})
    await asyncio.to_thread(old.abort)
    await asyncio.to_thread(old.produce, b"late")
    admin.close()
    assert len(await stand.world.open_transactions(TOPIC, 0)) == 1


async def verify_again(stand: Stand) -> None:
    """Remove the setting of the preparation."""
    for broker in stand.cluster.spec.topology.broker_ids:
        await stand.world.alter_config("broker", str(broker), {VERIFICATION: None})


def nothing_hangs(seen: Observation) -> None:
    """Assert that a reader of committed records reads up to the high watermark, and gets none of the two records."""
    assert [] == committed(seen)


CASES = {
    "move_transaction_coordinator": [
        Case(
            f"{{kind: move_transaction_coordinator, transactional_id: {ID}, for: 3s}}",
            goes_on,
            before=producer_with_transactions,
        ),
        Case(
            f"{{kind: move_transaction_coordinator, transactional_id: {ID}}}",
            goes_on,
            before=producer_with_transactions,
        ),
    ],
    "fence_producer": [
        Case(f"{{kind: fence_producer, transactional_id: {ID}}}", fenced_for_good, before=open_transaction)
    ],
    "abort_transaction": [
        Case(
            f"{{kind: abort_transaction, topic: {TOPIC}, partition: 0}}",
            nothing_hangs,
            before=hanging_transaction,
            after=verify_again,
        )
    ],
}

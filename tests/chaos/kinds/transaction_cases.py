"""Cases of faults on transactions: their coordinator, their producers, and a transaction that no coordinator knows."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kio.schema.add_partitions_to_txn.v3 import request as add
from kio.schema.end_txn.v4.request import EndTxnRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.produce.v11 import request as produce
from kio.static.primitive import i32Timedelta

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import InjectionContext
from aftershock.faults.kinds.kafka.transactions import AbortTransaction
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.kafka_cases import put
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.workloads.kafka.wire.connection import Address, Connection

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


def _connection(stand: Stand, broker: int) -> Connection:
    addresses = dict(zip(stand.cluster.spec.topology.broker_ids, stand.cluster.bootstrap("a").split(","), strict=True))
    host, _, port = addresses[BrokerId(broker)].partition(":")
    return Connection(Address(host, int(port)), _STEP_S)


def _ask(connection: Connection, build: Callable[[], Any], code: Callable[[Any], int]) -> Any:
    """Return the response to a request, which is repeated while Kafka is busy with the id (CONCURRENT_TRANSACTIONS)."""
    answers: list[Any] = []

    def lacking() -> str:
        answers.append(connection.ask(build()))
        return "busy" if code(answers[-1]) in (14, 15, 16, 51) else ""

    assert still_lacking(lacking, _STEP_S) == ""
    assert code(answers[-1]) == 0, code(answers[-1])
    return answers[-1]


def _i(value: Any) -> Any:
    return value  # kio's phantom types


def _batch(producer_id: int, epoch: int, sequence: int, value: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=10_000,
    )
    builder.append(0, timestamp=int(time.time() * 1000), key=None, value=value, headers=[])
    return bytes(builder.build())


class OldProducer:
    """Producer of version 1 of the transactions, one request at a time, at the brokers of rack a."""

    def __init__(self, stand: Stand, name: str) -> None:
        self.name = name
        self._coordinator = _connection(stand, stand.cluster.admin.transaction_coordinator(name))
        (state,) = stand.cluster.admin.partitions([TOPIC])
        self._leader = _connection(stand, state.leader or 1)
        request = InitProducerIdRequest(
            transactional_id=_i(name), transaction_timeout=i32Timedelta.parse(timedelta(seconds=60)), **_NO_ID
        )
        answer = _ask(self._coordinator, lambda: request, lambda answer: int(answer.error_code.value))
        self.id, self.epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0

    def add_partition(self) -> None:
        topic = add.AddPartitionsToTxnTopic(name=_i(TOPIC), partitions=(_i(0),))
        request = add.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=_i(self.name),
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(topic,),
        )

        def code(answer: Any) -> int:
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(result.partition_error_code.value)

        _ask(self._coordinator, lambda: request, code)

    def produce(self, value: bytes) -> None:
        records = _batch(self.id, self.epoch, self._sequence, value)
        partition = produce.PartitionProduceData(index=_i(0), records=records)
        request = produce.ProduceRequest(
            transactional_id=_i(self.name),
            acks=_i(-1),
            timeout=i32Timedelta.parse(timedelta(seconds=10)),
            topic_data=(produce.TopicProduceData(name=_i(TOPIC), partition_data=(partition,)),),
        )
        _ask(self._leader, lambda: request, lambda answer: int(answer.responses[0].partition_responses[0].error_code))
        self._sequence += 1

    def close(self) -> None:
        for connection in (self._coordinator, self._leader):
            connection.close()

    def abort(self) -> None:
        request = EndTxnRequest(
            transactional_id=_i(self.name), producer_id=self.id, producer_epoch=self.epoch, committed=False
        )
        _ask(self._coordinator, lambda: request, lambda answer: int(answer.error_code.value))


_NO_ID: Any = {"producer_id": -1, "producer_epoch": -1}


async def hanging_transaction(stand: Stand) -> None:
    """Create a hanging transaction: a late Produce after EndTxn, with verification off (KAFKA-14402).

    Before it, the transaction is open and known to its coordinator, and the fault must refuse to abort it.
    """
    await put(stand, TOPIC, {0: (1, 2, 3)})
    for broker in stand.cluster.spec.topology.broker_ids:
        await stand.world.alter_config("broker", str(broker), {VERIFICATION: "false"})
    old = await asyncio.to_thread(OldProducer, stand, "cases-hanging")
    await asyncio.to_thread(old.add_partition)
    await asyncio.to_thread(old.produce, b"aborted")
    fault = AbortTransaction(topic=TOPIC, partition=0)
    with pytest.raises(FaultError, match="its coordinator knows it as Ongoing"):
        await fault.resolve_targets(InjectionContext(stand.world, stand.clock, "refused"), {})
    await asyncio.to_thread(old.abort)

    def ended() -> str:
        (state,) = stand.cluster.admin.partitions([TOPIC])
        return "" if not asyncio.run(stand.world.open_transactions(TOPIC, 0)) else f"{state} has it open"

    assert await asyncio.to_thread(still_lacking, ended, _STEP_S) == ""
    await asyncio.to_thread(old.produce, b"late")
    old.close()
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

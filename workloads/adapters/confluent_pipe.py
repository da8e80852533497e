"""Pipe of the client ``confluent``: reads a topic with librdkafka, and writes each record to another.

A service like a user's own: it is configured by the variable ``AFTERSHOCK_PIPE``, a JSON object with ``bootstrap``,
``from``, ``to``, ``group``, ``member``, librdkafka's ``settings``, and ``transactional``. At least once: a position is
committed only after all outputs below it were acknowledged. Transactional: outputs and positions are committed in one
transaction, with the group's metadata, so that a member whose partitions are gone can't commit (KIP-447).
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_BATCH, _BATCH_S = 100, 0.05
_FLUSH_S = 60.0
_STEP_S = 15.0
"""Time limit of a step of a transaction: a process that can't end its transaction gives way to a new one."""
_OF_CONSUMERS = ("group.", "auto.offset", "fetch.", "max.poll", "session.", "heartbeat.", "partition.assign", "queued.")
_OF_PRODUCERS = ("acks", "linger.ms", "enable.idempotence", "transaction.timeout.ms")


def main(config: Mapping[str, Any]) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    shared = {"bootstrap.servers": config["bootstrap"], "client.id": config["member"]}
    of_producer = {name: value for name, value in config["settings"].items() if not name.startswith(_OF_CONSUMERS)}
    of_consumer = {name: value for name, value in config["settings"].items() if name not in _OF_PRODUCERS}
    identity = {"transactional.id": config["member"]} if config["transactional"] else {"enable.idempotence": True}
    producer = Producer({**shared, "linger.ms": 5, **identity, **of_producer})
    own = {"group.id": config["group"], "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**shared, **own, **of_consumer})
    process = _in_transaction if config["transactional"] else _at_least_once
    if config["transactional"]:
        producer.init_transactions(_FLUSH_S)
    consumer.subscribe([config["from"]])
    sys.stdout.write("started\n")
    sys.stdout.flush()
    try:
        while not stopping:
            if messages := [message for message in consumer.consume(_BATCH, _BATCH_S) if _is_record(message)]:
                process(messages, consumer, producer, config["to"])
    except KafkaException as error:
        sys.stderr.write(f"giving up: {error}\n")
        consumer.close()
        os._exit(1)  # a producer whose transaction is open would wait for its end
    consumer.close()


def _is_record(message: Message) -> bool:
    """Return True for a record; raise KafkaException for an error that librdkafka does not recover from by itself."""
    error = message.error()
    if error is not None and error.fatal():
        raise KafkaException(error)
    return error is None


def _at_least_once(messages: list[Message], consumer: Consumer, producer: Producer, to: str) -> None:
    """Write an output for each record, and commit behind them; raise KafkaException if an output was refused."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for message in messages:
        producer.produce(to, key=message.key(), value=message.value(), headers=message.headers(), on_delivery=delivered)
    if producer.flush(_FLUSH_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 -- librdkafka's own errors
    if failures:
        raise KafkaException(failures[0])
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        # its partitions were given to another member, which processes the records again
        sys.stderr.write(f"commit refused: {error}\n")


def _in_transaction(messages: list[Message], consumer: Consumer, producer: Producer, to: str) -> None:
    """Write outputs and positions in one transaction; after an error that aborts it, read the records again.

    Records of a partition that was given up while they were fetched are left to its next owner.
    Raises KafkaException for an error that ends the producer, after which a new process must take its place.
    """
    owned = {(place.topic, place.partition) for place in consumer.assignment()}
    ends: dict[tuple[str, int], int] = {}
    producer.begin_transaction()
    try:
        for message in messages:
            place = (message.topic() or "", message.partition() or 0)
            if place in owned:
                ends[place] = (message.offset() or 0) + 1
                producer.produce(to, key=message.key(), value=message.value(), headers=message.headers())
        positions = [TopicPartition(*place, end) for place, end in ends.items()]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _STEP_S)
        _commit(producer)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        sys.stderr.write(f"transaction aborted: {error}\n")
        producer.abort_transaction(_STEP_S)
        _rewind(consumer)


def _commit(producer: Producer) -> None:
    """Commit the transaction, and ask a second time if the result is unknown (KIP-98); then raise KafkaException.

    A new process with the same transactional id ends the transaction, and reads on from what was committed.
    """
    try:
        producer.commit_transaction(_STEP_S)
    except KafkaException as error:
        if not error.args[0].retriable():
            raise
        producer.commit_transaction(_STEP_S)


def _rewind(consumer: Consumer) -> None:
    """Read on from what the group has committed, in the partitions that the consumer still has."""
    for place in consumer.committed(consumer.assignment(), _STEP_S):
        start = max(place.offset, 0)  # nothing is committed: from the beginning
        consumer.seek(TopicPartition(place.topic, place.partition, start))


if __name__ == "__main__":
    main(json.loads(os.environ["AFTERSHOCK_PIPE"]))

"""Client of ``docs/EXEC.md`` built on kafka-python, which counts no bytes by broker and so reports no traffic."""

import time
from collections.abc import Callable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, NoError
from kafka.structs import OffsetAndMetadata

from aftershock.tests.clients.protocol import (
    acked,
    assign_positions,
    await_reports,
    begin,
    closing,
    commit_each,
    failed,
    name_of,
    orders,
    record_of,
    run,
    say,
    say_record,
    settings_of,
)


def connected(kind: Any, start: dict[str, Any], defaults: dict[str, Any], **own: Any) -> Any:
    """Return a client of kafka-python, whose constructors raise errors while no broker answers.

    The arm's settings precede ``defaults``; ``own`` and the addresses of the start order precede the settings.
    """
    config = {"reconnect_backoff_max_ms": 1000} | defaults | settings_of(start) | own
    config |= {"bootstrap_servers": start["bootstrap"].split(","), "client_id": start["client_id"]}
    while True:
        try:
            return kind(**config)
        except KafkaError as error:
            say("error", error=name_of(error), detail=str(error))
            time.sleep(0.1)


def await_partitions(partitions_of: Callable[[str], Any], start: dict[str, Any]) -> None:
    led = 0
    while led < start["partitions"]:
        try:
            led = len(partitions_of(start["topic"]) or ())
        except KafkaError as error:
            say("error", error=name_of(error), detail=str(error))


def produce(start: dict[str, Any]) -> None:
    deadline_ms, linger_ms = start["deadline_ms"], start["linger_ms"]
    defaults = {"max_block_ms": 100, "request_timeout_ms": max(1, min(30_000, deadline_ms - linger_ms))}
    own = {"acks": {"all": "all", "1": 1, "0": 0}[start["acks"]], "enable_idempotence": start["idempotence"]}
    own |= {"delivery_timeout_ms": deadline_ms, "linger_ms": linger_ms}
    producer = connected(KafkaProducer, start, defaults, **own)
    await_partitions(producer.partitions_for, start)
    say("ready")
    for order in orders():
        seq = order["seq"]
        key, value, headers = record_of(order)

        def delivered(place: Any, seq: int = seq) -> None:
            acked(seq, partition=place.partition, **({} if start["acks"] == "0" else {"offset": place.offset}))

        def refused(error: Any, seq: int = seq) -> None:
            failed(seq, name_of(error))

        begin(seq, deadline_ms + 1_000)  # kafka-python keeps the deadline, unless it waits for a producer id
        try:
            result = producer.send(start["topic"], value=value, key=key, headers=headers)
        except KafkaTimeoutError:
            failed(seq, "_QUEUE_FULL", in_doubt=False)
        except KafkaError as error:
            failed(seq, name_of(error), in_doubt=False)
        else:
            result.add_callback(delivered).add_errback(refused)
    await_reports()


def consume(start: dict[str, Any]) -> None:
    topic, group = start["topic"], start["group"]

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            numbers = [partition.partition for partition in assigned]
            say("assigned", partitions=numbers, member=consumer.group_metadata().member_id)
            say("ready")

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", partitions=[partition.partition for partition in revoked])

    own = {"client_rack": start["client_rack"]} if start["client_rack"] else {}
    own |= {"group_id": group, "auto_offset_reset": start["from"], "enable_auto_commit": bool(group)}
    consumer = connected(KafkaConsumer, start, {}, **own)
    if group:
        await_partitions(consumer.partitions_for_topic, start)  # a member that doesn't know the topic assigns nothing
        consumer.subscribe([topic], listener=Listener())
    else:
        assign_positions(consumer, TopicPartition, start)
    closed = closing()
    while not closed():
        try:
            polled = consumer.poll(1000)  # a poll that ends during a rebalance can stop the consumer (docs/GALLERY.md)
        except KafkaError as error:  # poll raises what Kafka's consumer repeats by itself, such as a lost connection
            if not error.retriable:
                raise
            continue
        for records in polled.values():
            for record in records:
                say_record(record)
    consumer.close()


def commit(start: dict[str, Any]) -> None:
    limit = {"request_timeout_ms": min(30_000, max(1_000, start["deadline_ms"] // 2))}
    admin = connected(KafkaAdminClient, start, limit)
    say("ready")

    def commit_one(order: dict[str, Any], due: float) -> str | None:
        partition = TopicPartition(start["topic"], order["partition"])
        offsets = {partition: OffsetAndMetadata(order["offset"], "", -1)}
        name = "_TIMED_OUT"
        while time.monotonic() < due:  # kafka-python's administration does not retry
            try:
                error = admin.alter_group_offsets(order["group"], offsets)[partition]
            except KafkaError as raised:
                error = raised
            if error is NoError or isinstance(error, NoError):
                return None
            name = name_of(error)
            if not error.retriable:
                break
            time.sleep(0.1)
        return name

    commit_each(start, commit_one)


if __name__ == "__main__":
    run(produce=produce, consume=consume, commit=commit)

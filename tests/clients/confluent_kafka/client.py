"""Client of ``docs/EXEC.md`` built on confluent-kafka (librdkafka)."""

import json
import time
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from aftershock.tests.clients.protocol import (
    acked,
    await_reports,
    begin,
    closing,
    commit_each,
    failed,
    mark_of,
    orders,
    record_of,
    run,
    say,
)


def config_of(start: dict[str, Any], **own: Any) -> dict[str, Any]:
    """Return the configuration: the arm's settings, which `own` and the addresses of the start order precede."""
    names = {"bootstrap.servers": start["bootstrap"], "client.id": start["client_id"]}
    rack = {"client.rack": start["client_rack"]} if start["client_rack"] else {}
    return start["settings"] | {"statistics.interval.ms": 1000, "stats_cb": traffic} | own | names | rack


def traffic(statistics: str) -> None:
    # coordinators have a connection of their own, with the same node id
    totals: dict[int, list[int]] = {}
    for broker in json.loads(statistics)["brokers"].values():
        if broker["nodeid"] >= 0:
            both = totals.setdefault(broker["nodeid"], [0, 0])
            both[0] += broker["txbytes"]
            both[1] += broker["rxbytes"]
    say("traffic", brokers=totals)


def await_leaders(client: Any, start: dict[str, Any]) -> None:
    led = 0
    while led < start["partitions"]:
        try:
            partitions = client.list_topics(start["topic"], timeout=2).topics[start["topic"]].partitions.values()
            led = sum(partition.leader >= 0 for partition in partitions)
        except KafkaException as error:
            say("error", error=error.args[0].name(), detail=str(error))
        time.sleep(0 if led >= start["partitions"] else 0.05)


def produce(start: dict[str, Any]) -> None:
    limits = {"linger.ms": start["linger_ms"], "delivery.timeout.ms": start["deadline_ms"]}
    kept = {"acks": start["acks"], "enable.idempotence": start["idempotence"]}
    producer = Producer(config_of(start, **limits, **kept))
    await_leaders(producer, start)

    def serve() -> None:
        while True:
            producer.poll(0.1)

    Thread(target=serve, daemon=True).start()
    say("ready")
    for order in orders():
        seq = order["seq"]
        key, value, headers = record_of(order)

        def delivered(error: Any, message: Any, seq: int = seq) -> None:
            if error:
                failed(seq, error.name())
            elif start["acks"] == "0":
                acked(seq, partition=message.partition())
            else:
                acked(seq, partition=message.partition(), offset=message.offset())

        begin(seq, start["deadline_ms"] + 2_000)  # librdkafka keeps the deadline, and looks once a second
        try:
            producer.produce(start["topic"], value, key, headers=headers, on_delivery=delivered)
        except BufferError:
            failed(seq, "_QUEUE_FULL", in_doubt=False)
        except KafkaException as error:
            failed(seq, error.args[0].name(), in_doubt=False)
    producer.flush()
    await_reports()


def consume(start: dict[str, Any]) -> None:
    group = start["group"]

    def assigned(_: Any, partitions: list[TopicPartition]) -> None:
        member = {"member": consumer.memberid()} if group else {}
        say("assigned", partitions=[one.partition for one in partitions], **member)
        say("ready")

    def revoked(_: Any, partitions: list[TopicPartition]) -> None:
        say("revoked", partitions=[one.partition for one in partitions])

    names = {"group.id": group or "none", "enable.auto.commit": bool(group), "auto.offset.reset": start["from"]}
    consumer = Consumer(config_of(start, **names))
    if group:
        consumer.subscribe([start["topic"]], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    else:
        starts = [TopicPartition(start["topic"], int(number), at) for number, at in start["positions"].items()]
        consumer.assign(starts)
        assigned(consumer, starts)
    closed = closing()
    while not closed():
        message = consumer.poll(0.1)
        if message is None:
            continue
        if error := message.error():
            say("error", error=error.name(), detail=error.str())
            continue
        place = {"partition": message.partition(), "offset": message.offset()}
        say("record", **place, mark=mark_of(message.headers()), size_bytes=len(message.value() or b""))
    consumer.close()


def commit(start: dict[str, Any]) -> None:
    admin = AdminClient(config_of(start))
    await_leaders(admin, start)
    Thread(target=lambda: [admin.poll(0.1) for _ in iter(int, 1)], daemon=True).start()  # serves the statistics
    say("ready")

    def commit_one(order: dict[str, Any], due: float) -> str | None:
        left_s = due - time.monotonic()
        if left_s <= 0:
            return "_TIMED_OUT"
        place = TopicPartition(start["topic"], order["partition"], order["offset"])
        wanted = [ConsumerGroupTopicPartitions(order["group"], [place])]
        error: KafkaException | None
        for answer in admin.alter_consumer_group_offsets(wanted, request_timeout=left_s).values():
            error = answer.exception()
            if error:
                return str(error.args[0].name())
            for partition in answer.result().topic_partitions:
                if partition.error:
                    return str(partition.error.name())
        return None

    commit_each(start, commit_one)


if __name__ == "__main__":
    run(produce=produce, consume=consume, commit=commit)

"""Client of ``docs/EXEC.md`` built on aiokafka, which counts no bytes by broker and so reports no traffic."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from aftershock.tests.clients.protocol import (
    acked,
    assign_positions,
    await_reports,
    begin,
    closing,
    failed,
    name_of,
    orders,
    record_of,
    run,
    say,
    say_record,
    settings_of,
)


async def started(kind: Any, start: dict[str, Any], **own: Any) -> Any:
    """Return a client of aiokafka, which can't start while no broker answers; ``own`` precedes the arm's settings."""
    addresses = {"bootstrap_servers": start["bootstrap"], "client_id": start["client_id"]}
    while True:
        client = kind(**(settings_of(start) | own | addresses))
        try:
            await client.start()
        except KafkaError as error:
            say("error", error=name_of(error), detail=str(error))
            await client.stop()
            await asyncio.sleep(0.1)
        else:
            return client


async def next_orders() -> AsyncIterator[dict[str, Any]]:
    waiting = orders()
    while (order := await asyncio.to_thread(next, waiting, None)) is not None:
        yield order


async def produce(start: dict[str, Any]) -> None:
    topic, deadline_ms = start["topic"], start["deadline_ms"]
    own = {"request_timeout_ms": min(40_000, deadline_ms), "linger_ms": start["linger_ms"]}
    own |= {"acks": {"all": "all", "1": 1, "0": 0}[start["acks"]], "enable_idempotence": start["idempotence"]}
    producer = await started(AIOKafkaProducer, start, **own)
    led = 0
    while led < start["partitions"]:
        try:
            led = len(await producer.partitions_for(topic))
        except KafkaError as error:
            say("error", error=name_of(error), detail=str(error))
    say("ready")

    def delivered(seq: int, result: Any) -> None:
        if error := result.exception():
            failed(seq, name_of(error))
        elif start["acks"] == "0":
            acked(seq)
        else:
            acked(seq, partition=result.result().partition, offset=result.result().offset)

    waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(10_000)

    async def send_waiting() -> None:
        while True:
            order = await waiting.get()
            key, value, headers = record_of(order)
            try:  # waits for room in the batch of the partition
                result = await producer.send(topic, value=value, key=key, headers=headers)
            except KafkaError as error:
                failed(order["seq"], name_of(error), in_doubt=False)
            else:
                result.add_done_callback(lambda result, seq=order["seq"]: delivered(seq, result))

    sending = asyncio.create_task(send_waiting())
    async for order in next_orders():
        begin(order["seq"], deadline_ms)  # aiokafka has no deadline of a record if it is idempotent
        try:
            waiting.put_nowait(order)
        except asyncio.QueueFull:
            failed(order["seq"], "_QUEUE_FULL", in_doubt=False)
    await asyncio.to_thread(await_reports)
    sending.cancel()


async def consume(start: dict[str, Any]) -> None:
    topic, group = start["topic"], start["group"]

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("assigned", partitions=[partition.partition for partition in assigned])
            say("ready")

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", partitions=[partition.partition for partition in revoked])

    own = {"client_rack": start["client_rack"]} if start["client_rack"] else {}
    own |= {"group_id": group, "auto_offset_reset": start["from"], "enable_auto_commit": bool(group)}
    consumer = await started(AIOKafkaConsumer, start, **own)
    if group:
        consumer.subscribe([topic], listener=Listener())
    else:
        assign_positions(consumer, TopicPartition, start)
    closed = closing()
    while not closed():
        for records in (await consumer.getmany(timeout_ms=100)).values():
            for record in records:
                say_record(record)
    await consumer.stop()


async def commit(start: dict[str, Any]) -> None:
    """Commit with one consumer for each group, which reads nothing; aiokafka's administration can't commit."""
    topic, deadline_s = start["topic"], start["deadline_ms"] / 1000
    partitions = [TopicPartition(topic, number) for number in range(start["partitions"])]

    async def open_group(group: str) -> Any:
        consumer = await started(AIOKafkaConsumer, start, group_id=group, enable_auto_commit=False)
        consumer.assign(partitions)
        consumer.pause(*partitions)
        return consumer

    groups = {group: asyncio.create_task(open_group(group)) for group in start["groups"]}
    turns: dict[str, asyncio.Lock] = {}

    async def commit_one(order: dict[str, Any]) -> None:
        async with turns.setdefault(order["group"], asyncio.Lock()):
            consumer = await groups[order["group"]]
            await consumer.commit({TopicPartition(topic, order["partition"]): order["offset"]})

    async def report(order: dict[str, Any]) -> None:
        try:
            await asyncio.wait_for(commit_one(order), deadline_s)
        except (KafkaError, TimeoutError) as error:
            failed(order["seq"], name_of(error))
        else:
            acked(order["seq"])

    await asyncio.gather(*groups.values())
    say("ready")
    reports = set()
    async for order in next_orders():
        begin(order["seq"], start["deadline_ms"] + 1_000)
        if order["group"] not in groups:
            groups[order["group"]] = asyncio.create_task(open_group(order["group"]))
        reports.add(task := asyncio.create_task(report(order)))
        task.add_done_callback(reports.discard)
    await asyncio.gather(*reports)


if __name__ == "__main__":
    run(
        produce=lambda start: asyncio.run(produce(start)),
        consume=lambda start: asyncio.run(consume(start)),
        commit=lambda start: asyncio.run(commit(start)),
    )

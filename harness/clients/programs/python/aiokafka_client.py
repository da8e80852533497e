"""Client of ``docs/EXEC.md`` built on aiokafka."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from protocol import (
    Processed,
    acked,
    await_reports,
    begin,
    closing,
    failed,
    name_of,
    orders,
    record_of,
    report_traffic,
    run,
    say,
    say_committed,
    say_partitions,
    settings_of,
    start_positions,
    topic_names,
)

LACKS = {
    "static": "the program around aiokafka has no static members",
    "protocol": "aiokafka has no consumer protocol (KIP-848)",
    "assignor": "the program around aiokafka uses the library's own assignor",
}


def settings_known_to(kind: Any) -> set[str]:
    return {*inspect.signature(kind.__init__).parameters} - {"self", "loop", "topics"}


async def started(kind: Any, start: dict[str, Any], **own: Any) -> Any:
    """Return a client of aiokafka, which can't start while no broker answers; ``own`` precedes the arm's settings.

    Settings that only the other kind of client has are left out.
    """
    addresses = {"bootstrap_servers": start["bootstrap"], "client_id": start["client_id"]}
    config = settings_of(start) | own | addresses
    known = {name: value for name, value in config.items() if name in settings_known_to(kind)}
    while True:
        client = kind(**known)
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


class Producing:
    """Producer, whose calls to send wait for room in the batch of the partition, in the order of the orders."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(10_000)
        self._failed: str | None = None  # error of a record of the transaction
        self._producer: Any = None
        self._sending: asyncio.Task[None] | None = None
        self._call: tuple[str, asyncio.Task[None]] | None = None  # about the transaction, that has not ended

    async def open(self) -> None:
        start, deadline_ms = self._start, self._start["deadline_ms"]
        own = {"request_timeout_ms": min(40_000, deadline_ms), "linger_ms": start["linger_ms"]}
        own |= {"acks": {"all": "all", "1": 1, "0": 0}[start["acks"]], "enable_idempotence": start["idempotence"]}
        if transaction := start["transaction"]:
            own |= {"transactional_id": transaction["id"], "transaction_timeout_ms": transaction["timeout_ms"]}
        self._producer = await started(AIOKafkaProducer, start, **own)
        for topic in start["topics"]:
            led = 0
            while led < topic["partitions"]:
                try:
                    led = len(await self._producer.partitions_for(topic["name"]))
                except KafkaError as error:
                    say("error", error=name_of(error), detail=str(error))
        self._sending = asyncio.create_task(self._send_waiting())

    def brokers(self) -> Iterable[Any]:
        return list(self._producer.client.cluster.brokers())

    def send(self, order: dict[str, Any]) -> None:
        begin(order["seq"], self._start["deadline_ms"])  # aiokafka has no deadline of a record if it is idempotent
        try:
            self._waiting.put_nowait(order)
        except asyncio.QueueFull:
            self._failed = "_QUEUE_FULL"
            failed(order["seq"], "_QUEUE_FULL", in_doubt=False)

    async def _send_waiting(self) -> None:
        while True:
            order = await self._waiting.get()
            key, value, headers = record_of(order)
            try:
                result = await self._producer.send(order["topic"], value=value, key=key, headers=headers)
            except KafkaError as error:
                self._failed = name_of(error)
                failed(order["seq"], name_of(error), in_doubt=False)
            else:
                result.add_done_callback(lambda result, seq=order["seq"]: self._delivered(seq, result))

    def _delivered(self, seq: int, result: Any) -> None:
        if result.cancelled():
            failed(seq, "_PURGE_INFLIGHT", in_doubt=True)
        elif error := result.exception():
            self._failed = name_of(error)
            failed(seq, name_of(error))
        elif self._start["acks"] == "0":
            acked(seq)
        else:
            acked(seq, partition=result.result().partition, offset=result.result().offset)

    async def transact(self, do: str) -> None:
        """Carry out an order about the transaction; a call that outlasts the deadline goes on, and can be repeated."""
        if do == "reopen_producer":
            await self._reopen()
            say("transacted", did=do)
            return
        if do == "commit_transaction" and self._failed:
            say("transacted", did=do, error=self._failed, then="abort")
            return
        begun, call = self._call or ("", None)
        if call is None:
            call = asyncio.create_task(getattr(self._producer, do)())
        elif begun != do:
            say("transacted", did=do, error="_STATE", then="reopen", in_doubt=True)
            return
        done, _ = await asyncio.wait([call], timeout=self._start["deadline_ms"] / 1000)
        self._call = None if done else (do, call)
        if not done:
            say("transacted", did=do, error="_TIMED_OUT", then="repeat")
        elif error := call.exception():
            say("transacted", did=do, error=name_of(error), then="reopen", in_doubt=do == "commit_transaction")
        else:
            self._failed = None
            say("transacted", did=do)

    async def _reopen(self) -> None:
        if self._sending:
            self._sending.cancel()
        if self._call:
            self._call[1].cancel()
        old, self._waiting, self._failed, self._call = self._producer, asyncio.Queue(10_000), None, None
        closing_task = asyncio.create_task(_quietly(old.stop()))
        await asyncio.wait([closing_task], timeout=1)  # it would wait for the open records
        await asyncio.to_thread(await_reports)
        await self.open()

    async def close(self) -> None:
        if not self._start["transaction"]:
            await asyncio.to_thread(await_reports)
        if self._sending:
            self._sending.cancel()


async def _quietly(stop: Coroutine[Any, Any, None]) -> None:
    try:
        await stop
    except KafkaError as error:
        say("error", error=name_of(error), detail=str(error))


async def produce(start: dict[str, Any]) -> None:
    producing = Producing(start)
    await producing.open()
    report_traffic(producing.brokers)
    say("ready", accepts=["topics", "transactions"])
    async for order in next_orders():
        if order["do"] == "send":
            producing.send(order)
            await asyncio.sleep(0)
        else:
            await producing.transact(order["do"])
    await producing.close()


async def consume(start: dict[str, Any]) -> None:
    group, processed = start["group"], Processed(start)

    async def commit_now(positions: dict[Any, int]) -> None:
        if positions:
            began = time.monotonic()
            try:
                await consumer.commit(positions)
            except KafkaError as error:
                say("error", error=name_of(error), detail=str(error))
            else:
                say_committed(positions, began)

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: Any) -> None:
            say_partitions("assigned", start, assigned)
            ready()

        async def on_partitions_revoked(self, revoked: Any) -> None:
            await commit_now(processed.take(revoked))
            say_partitions("revoked", start, revoked)

    def ready() -> None:
        say("ready", accepts=["topics", "isolation"])

    own = {"client_rack": start["client_rack"]} if start["client_rack"] else {}
    own |= {"isolation_level": start["isolation"]} if start["isolation"] else {}
    own |= {"group_id": group, "auto_offset_reset": start["from"]}
    own |= {"enable_auto_commit": bool(group) and start["commit"] is None}
    consumer = await started(AIOKafkaConsumer, start, **own)
    report_traffic(consumer._client.cluster.brokers)  # noqa: SLF001 -- no public name
    if group:
        what = {"pattern": f"^(?:{start['pattern']})$"} if start["pattern"] else {"topics": topic_names(start)}
        consumer.subscribe(**what, listener=Listener())
        if start["members"] > 1:
            ready()  # a member of several may get no partitions
    else:
        start_positions(consumer, TopicPartition, start)
        ready()
    closed = closing()
    while not closed():
        for place, records in (await consumer.getmany(timeout_ms=100)).items():
            for record in records:
                processed.process(place, record)
        await commit_now(processed.due())
    if group:
        await commit_now(processed.take(consumer.assignment()))
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
        reports.add(task := asyncio.create_task(report(order)))
        task.add_done_callback(reports.discard)
    await asyncio.gather(*reports)


def is_unknown(setting: str) -> bool:
    return setting not in settings_known_to(AIOKafkaProducer) | settings_known_to(AIOKafkaConsumer)


if __name__ == "__main__":
    operations = {
        "produce": lambda start: asyncio.run(produce(start)),
        "consume": lambda start: asyncio.run(consume(start)),
        "commit": lambda start: asyncio.run(commit(start)),
    }
    run("aiokafka", operations, lacks=LACKS, unknown=is_unknown)

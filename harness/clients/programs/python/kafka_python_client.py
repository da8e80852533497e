"""Client of ``docs/EXEC.md`` built on kafka-python."""

import time
from collections.abc import Callable
from typing import Any

import kafka
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, NoError
from kafka.structs import OffsetAndMetadata
from protocol import (
    Processed,
    acked,
    await_reports,
    begin,
    closing,
    commit_each,
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

ALTERS_OFFSETS = hasattr(KafkaAdminClient, "alter_group_offsets")
LACKS = {
    "static": "the program around kafka-python has no static members",
    "protocol": "kafka-python has no consumer protocol (KIP-848)",
    "assignor": "the program around kafka-python uses the library's own assignor",
    "transactions": "the program around kafka-python does not produce in transactions",
}
if not ALTERS_OFFSETS:
    LACKS["commit"] = "this version of kafka-python commits only as a member of a group"
if "isolation_level" not in KafkaConsumer.DEFAULT_CONFIG:
    LACKS["isolation"] = "this version of kafka-python has no isolation.level"


def connected(kind: Any, start: dict[str, Any], defaults: dict[str, Any], **own: Any) -> Any:
    """Return a client of kafka-python, whose constructors raise errors while no broker answers.

    The arm's settings precede ``defaults``; ``own`` and the addresses of the start order precede the settings. Settings
    that only the other kinds of clients have are left out.
    """
    config = {"reconnect_backoff_max_ms": 1000} | defaults | settings_of(start) | own
    config |= {"bootstrap_servers": start["bootstrap"].split(","), "client_id": start["client_id"]}
    known = {name: value for name, value in config.items() if name in kind.DEFAULT_CONFIG}
    while True:
        try:
            return kind(**known)
        except KafkaError as error:
            say("error", error=name_of(error), detail=str(error))
            time.sleep(0.1)


def await_partitions(partitions_of: Callable[[str], Any], start: dict[str, Any]) -> None:
    for topic in start["topics"]:
        led = 0
        while led < topic["partitions"]:
            try:
                led = len(partitions_of(topic["name"]) or ())
            except KafkaError as error:
                say("error", error=name_of(error), detail=str(error))


def produce(start: dict[str, Any]) -> None:
    deadline_ms, linger_ms = start["deadline_ms"], start["linger_ms"]
    defaults = {"max_block_ms": 100, "request_timeout_ms": max(1, min(30_000, deadline_ms - linger_ms))}
    own = {"acks": {"all": "all", "1": 1, "0": 0}[start["acks"]], "enable_idempotence": start["idempotence"]}
    own |= {"delivery_timeout_ms": deadline_ms, "linger_ms": linger_ms}
    producer = connected(KafkaProducer, start, defaults, **own)
    report_traffic(producer._metadata.brokers)  # noqa: SLF001 -- no public name
    await_partitions(producer.partitions_for, start)
    say("ready", accepts=["topics"])
    for order in orders():
        seq = order["seq"]
        key, value, headers = record_of(order)

        def delivered(place: Any, seq: int = seq) -> None:
            acked(seq, partition=place.partition, **({} if start["acks"] == "0" else {"offset": place.offset}))

        def refused(error: Any, seq: int = seq) -> None:
            failed(seq, name_of(error))

        begin(seq, deadline_ms + 1_000)  # kafka-python keeps the deadline, unless it waits for a producer id
        try:
            result = producer.send(order["topic"], value=value, key=key, headers=headers)
        except KafkaTimeoutError:
            failed(seq, "_QUEUE_FULL", in_doubt=False)
        except KafkaError as error:
            failed(seq, name_of(error), in_doubt=False)
        else:
            result.add_callback(delivered).add_errback(refused)
    await_reports()


def offsets_of(positions: dict[Any, int]) -> dict[Any, Any]:
    """Return offsets in the form that this version takes: the leader epoch came with 2.1."""
    epoch = (-1,) if "leader_epoch" in OffsetAndMetadata._fields else ()
    return {place: OffsetAndMetadata(offset, "", *epoch) for place, offset in positions.items()}


class Consuming(ConsumerRebalanceListener):
    """Consumer, which reports its partitions, its records, and its own commits."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start, self._group, self._processed = start, start["group"], Processed(start)
        own = {"client_rack": start["client_rack"]} if start["client_rack"] else {}
        own |= {"isolation_level": start["isolation"]} if start["isolation"] else {}
        own |= {"group_id": self._group, "auto_offset_reset": start["from"]}
        own |= {"enable_auto_commit": bool(self._group) and start["commit"] is None}
        self._consumer = connected(KafkaConsumer, start, {}, **own)
        # the client of 2.x has the cluster's metadata
        cluster = getattr(self._consumer, "_cluster", None) or self._consumer._client.cluster  # noqa: SLF001
        report_traffic(cluster.brokers)

    def run(self) -> None:
        """Report records until ``close``."""
        start, consumer = self._start, self._consumer
        if self._group:
            await_partitions(consumer.partitions_for_topic, start)  # a member that knows no topic assigns nothing
            what = {"pattern": f"^(?:{start['pattern']})$"} if start["pattern"] else {"topics": topic_names(start)}
            consumer.subscribe(**what, listener=self)
        else:
            start_positions(consumer, TopicPartition, start)
        if not self._group or start["members"] > 1:
            ready()  # a member of several may get no partitions
        closed = closing()
        while not closed():
            try:
                # a poll that ends during a rebalance can stop the consumer (docs/GALLERY.md)
                polled = consumer.poll(1000)
            except KafkaError as error:  # poll raises what Kafka's consumer repeats by itself: a lost connection
                if not error.retriable:
                    raise
                continue
            for place, records in polled.items():
                for record in records:
                    self._processed.process(place, record)
            if due := self._processed.due():
                self._commit_later(due)
        if self._group:
            self._commit_now(self._processed.take(consumer.assignment()))
        consumer.close()

    def on_partitions_assigned(self, assigned: Any) -> None:
        known = getattr(self._consumer, "group_metadata", None)  # came with 2.1
        say_partitions("assigned", self._start, assigned, **({"member": known().member_id} if known else {}))
        ready()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._commit_now(self._processed.take(revoked))
        say_partitions("revoked", self._start, revoked)

    def on_partitions_lost(self, lost: Any) -> None:
        self._processed.take(lost)
        say_partitions("lost", self._start, lost)

    def _commit_now(self, positions: dict[Any, int]) -> None:
        if positions:
            began = time.monotonic()
            try:
                self._consumer.commit(offsets_of(positions))
            except KafkaError as error:
                say("error", error=name_of(error), detail=str(error))
            else:
                say_committed(positions, began)

    def _commit_later(self, positions: dict[Any, int]) -> None:
        began = time.monotonic()

        def committed(_: Any, result: Any) -> None:
            if isinstance(result, Exception):
                say("error", error=name_of(result), detail=str(result))
            else:
                say_committed(positions, began)

        self._consumer.commit_async(offsets_of(positions), callback=committed)


class ConsumingInLoop(Consuming):
    """Consumer of kafka-python 3, whose listener runs in the client's event loop, where nothing may block."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        positions, began = self._processed.take(revoked), time.monotonic()
        if positions:
            try:
                await self._consumer.commit_async(offsets_of(positions))
            except KafkaError as error:
                say("error", error=name_of(error), detail=str(error))
            else:
                say_committed(positions, began)
        say_partitions("revoked", self._start, revoked)


def ready() -> None:
    say("ready", accepts=["topics", *(["isolation"] if "isolation" not in LACKS else [])])


def consume(start: dict[str, Any]) -> None:
    kind = ConsumingInLoop if hasattr(kafka, "AsyncConsumerRebalanceListener") else Consuming
    kind(start).run()


def commit(start: dict[str, Any]) -> None:
    limit = {"request_timeout_ms": min(30_000, max(1_000, start["deadline_ms"] // 2))}
    admin = connected(KafkaAdminClient, start, limit)
    say("ready")

    def commit_one(order: dict[str, Any], due: float) -> str | None:
        partition = TopicPartition(start["topic"], order["partition"])
        name = "_TIMED_OUT"
        while time.monotonic() < due:  # kafka-python's administration does not retry
            try:
                error = admin.alter_group_offsets(order["group"], offsets_of({partition: order["offset"]}))[partition]
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


def is_unknown(setting: str) -> bool:
    return not any(setting in kind.DEFAULT_CONFIG for kind in (KafkaProducer, KafkaConsumer, KafkaAdminClient))


if __name__ == "__main__":
    operations = {"produce": produce, "consume": consume, "commit": commit}
    run("kafka-python", operations, lacks=LACKS, unknown=is_unknown)

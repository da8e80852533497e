"""A confluent-kafka consumer that notes every record delivered to it.

Rules: where it begins is settled before it says that it is ready, so nothing produced later can be missed by being
early; no error of the cluster ends the loop.
"""

from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from aftershock.workloads.assignment import ConsumeAssignment
from aftershock.workloads.clients.receiving import Receiving
from aftershock.workloads.clients.starts import settle_starts
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_S
from aftershock.workloads.orders import Order
from aftershock.workloads.record import Headers, unpack
from aftershock.workloads.settings import consumer_config
from aftershock.workloads.spool import UNKNOWN
from aftershock.workloads.traffic import Traffic

BATCH = 200  # records handled in one step, so that orders are heard under any load


class ConfluentConsumer:
    """``client.Client`` over ``confluent_kafka.Consumer``; ``KafkaException`` for settings that librdkafka refuses."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._told, self._events = assignment, events
        self._traffic = Traffic()
        self._consumer = Consumer(
            consumer_config(assignment)
            | {"error_cb": self._on_error, "stats_cb": self._traffic.on_statistics, "on_commit": self._on_commit}
        )
        self._receiving = Receiving(assignment, clock, events)
        self._partitions = [TopicPartition(assignment.topic, number) for number in range(assignment.partitions)]

    def prepare(self) -> None:
        """Settle where every partition begins, then take them all or join the group and wait to be given some."""
        told = self._told
        starts = self._receiving.begin_at(settle_starts(told))
        if told.group is None:
            self._consumer.assign([TopicPartition(told.topic, number, offset) for number, offset in starts.items()])
            self._receiving.assigned(starts)
            return
        self._consumer.subscribe(
            [told.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._receiving.assignments:
            self.step(US_PER_S // 10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.assigned(_numbers(partitions), consumer.memberid() or "")

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._receiving.revoked(_numbers(partitions))

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None:
            told = [each for each in partitions if each.error is None and each.offset >= 0]
            self._receiving.committed((each.partition, each.offset) for each in told)

    def _on_error(self, error: KafkaError) -> None:
        self._events.emit("client_error", error=error.name(), detail=error.str(), fatal=error.fatal())

    def obey(self, order: Order) -> None:
        """``drain`` sets the end."""
        self._receiving.obey(order)

    def step(self, wait_us: int) -> None:
        """Take what is there, at most BATCH records, or wait for one."""
        message = self._poll(wait_us / US_PER_S)
        if message is None:
            self._receiving.idle()
        for _ in range(BATCH):
            if message is None:
                return
            self._take(message)
            message = self._poll(0)
        if message is not None:
            self._take(message)

    def _poll(self, wait_s: float) -> Message | None:
        try:
            return self._consumer.poll(wait_s)
        except KafkaException as error:
            self._on_error(error.args[0])
            return None

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._on_error(error or KafkaError(KafkaError._BAD_MSG))  # noqa: SLF001  # librdkafka's own errors
            return
        epoch = message.leader_epoch()
        self._receiving.take(
            unpack(cast("Headers", message.headers())),
            partition=partition,
            offset=offset,
            high_watermark=self._high_watermark(partition),
            leader_epoch=UNKNOWN if epoch is None else epoch,
            size_bytes=len(message),
            value=message.value() or b"",
        )

    def _high_watermark(self, partition: int) -> int:
        """What the last fetch answer said: asked of the client, not of the cluster."""
        marks = self._consumer.get_watermark_offsets(self._partitions[partition], cached=True)
        return marks[1] if marks and marks[1] >= 0 else UNKNOWN

    def answer(self) -> dict[str, Any] | None:
        """After ``drain``: how many offsets are missing, by partition; none when all were reached."""
        return self._receiving.answer()

    def progress(self) -> dict[str, Any]:
        """Counts and end-to-end latencies since the last call; ``ok`` are the records delivered."""
        return self._receiving.tally.progress() | {"traffic": self._traffic.by_broker}

    def counters(self) -> dict[str, int]:
        """Records delivered, ours and foreign, and how often partitions were assigned."""
        return self._receiving.counters()

    def close(self) -> None:
        """Commit and leave the group."""
        self._consumer.close()


def _numbers(partitions: list[TopicPartition]) -> list[int]:
    return [partition.partition for partition in partitions]

"""An accumulator for tests: topic t with partitions 0, 1 and 2, each led at first by the node with its number."""

from random import Random
from typing import Any

from aftershock.tests.unit.workloads.kafka.rules.known_cluster import T0, T1, T2, answer, backoff, knowing, learn
from aftershock.workloads.kafka.rules.accumulator import AppendResult, Limits, RecordAccumulator
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.idempotence import Idempotence
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery, LeaderDiscoverySwitches
from aftershock.workloads.kafka.rules.partitioner import Partitioner
from aftershock.workloads.kafka.rules.values import Leader, TopicPartition

LIMITS = Limits(
    batch_size=1000,
    buffer_memory=100_000,
    linger_ms=5,
    delivery_timeout_ms=10_000,
    max_request_size=100_000,
    max_in_flight_requests_per_connection=5,
    compression_type="none",
    client_rack=None,
)
LARGE = 950
"""A value of this size leaves no room for another record in its batch."""


class Bench:
    """The accumulator and its rules, with a clock set by the test."""

    def __init__(self, *, idempotent: bool = True, mode: str = "uniform", **limits: Any) -> None:
        self.metadata = knowing({tp: Leader(tp.partition, 0) for tp in (T0, T1, T2)})
        self.discovery = LeaderDiscovery(self.metadata, LeaderDiscoverySwitches(), backoff())
        self.limits = LIMITS._replace(**limits)
        self.partitioner = Partitioner(mode, batch_size=self.limits.batch_size, random=Random(7))  # noqa: S311  # no secret
        self.idempotence = Idempotence() if idempotent else None
        if self.idempotence:
            self.idempotence.set_producer(1000, 0)
        self.accumulator = RecordAccumulator(
            self.limits,
            metadata=self.metadata,
            discovery=self.discovery,
            partitioner=self.partitioner,
            idempotence=self.idempotence,
        )
        self.tokens = 0

    def lead(self, leaders: dict[TopicPartition, Leader], now_ms: float = 0) -> None:
        """Apply a Metadata response: partitions that are not named keep leader n, epoch 0."""
        learn(self.metadata, answer({tp: Leader(tp.partition, 0) for tp in (T0, T1, T2)} | leaders), now_ms)

    def append(
        self, tp: TopicPartition | None = T0, *, size: int = 10, at_ms: float = 0, key: bytes | None = None
    ) -> AppendResult:
        """Append one record, to a partition or (None) to the partitioner's choice; its token is the count so far."""
        taken = self.accumulator.append(
            "t", bytes(size), key, (), None if tp is None else tp.partition, self.tokens, 0, at_ms
        )
        self.tokens += taken in {AppendResult.JOINED, AppendResult.READY}
        return taken

    def fill(self, tp: TopicPartition = T0, batches: int = 1, *, at_ms: float = 0) -> None:
        """Append full batches of one record each."""
        for _ in range(batches):
            self.append(tp, size=LARGE, at_ms=at_ms)
            self.accumulator.unfinished.all()[-1].close()

    def ready(self, now_ms: float = 0) -> list[int]:
        return sorted(self.accumulator.ready(now_ms).nodes)

    def drain(self, node_id: int = 0, now_ms: float = 0) -> list[ProducerBatch]:
        return self.accumulator.drain(node_id, now_ms)

    def drain_one(self, node_id: int = 0, now_ms: float = 0) -> ProducerBatch:
        (batch,) = self.drain(node_id, now_ms)
        return batch

    def ack(self, batch: ProducerBatch) -> None:
        if self.idempotence and batch.numbers:
            self.idempotence.acked(batch.numbers)
        self.accumulator.unmute(batch)
        self.accumulator.unfinished.finish(batch)

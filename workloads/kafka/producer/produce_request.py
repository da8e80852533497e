"""Produce requests and responses of one producer, and the completion or retry of record batches."""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self
from uuid import UUID

from kio.schema.errors import ErrorCode

from aftershock.errors import UnsupportedError
from aftershock.workloads.kafka.client.requests import (
    PRODUCE,
    PRODUCE_1_MOST,
    TOPIC_IDS_SINCE,
    ProduceWriter,
    endpoints,
    leader_hint,
)
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.client.tasks import EventListener
from aftershock.workloads.kafka.rules.accumulator import Limits, RecordAccumulator
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.idempotence import Idempotence, ProducerId, surely_refused
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.partitioner import Partitioner
from aftershock.workloads.kafka.rules.transaction_manager import TransactionManager
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, Leader, TopicPartition
from aftershock.workloads.kafka.wire import codes
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.channel import Channel
from aftershock.workloads.kafka.wire.codec import Api, Versions, prepare
from aftershock.workloads.kafka.wire.schema import MILLISECOND


class ProducerRules(NamedTuple):
    """Objects that implement the rules of one producer, without input or output."""

    backoff: Backoff
    metadata: Metadata
    discovery: LeaderDiscovery
    partitioner: Partitioner
    idempotence: Idempotence | None
    accumulator: RecordAccumulator

    @classmethod
    def of(cls, settings: ProducerSettings, draw: random.Random) -> Self:
        # Partitioning has a separate random stream: the number of back-off draws depends on timing.
        partitions = random.Random(draw.getrandbits(64))  # noqa: S311  # spreads load; not a secret
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=backoff)
        discovery = LeaderDiscovery(metadata, settings.leader_discovery, backoff)
        partitioner = Partitioner(
            settings.partitioner,
            batch_size=settings.batch_size,
            random=partitions,
            ignore_keys=settings.partitioner_ignore_keys,
            rack_aware=settings.partitioner_rack_aware,
            availability_timeout_ms=settings.partitioner_availability_timeout_ms,
            switch=settings.switch,
        )
        idempotence = Idempotence() if settings.enable_idempotence else None
        if settings.transactional_id is not None:
            idempotence = TransactionManager(backoff)
        limits = Limits(**{name: getattr(settings, name) for name in Limits._fields})
        accumulator = RecordAccumulator(
            limits, metadata=metadata, discovery=discovery, partitioner=partitioner, idempotence=idempotence
        )
        return cls(backoff, metadata, discovery, partitioner, idempotence, accumulator)

    @property
    def transactions(self) -> TransactionManager | None:
        return self.idempotence if isinstance(self.idempotence, TransactionManager) else None

    @property
    def counts(self) -> Counter[str]:
        counts = self.metadata.counts + self.discovery.counts + self.partitioner.counts
        return counts if self.idempotence is None else counts + self.idempotence.counts


class Delivery(NamedTuple):
    """Result of a record batch; ``tokens`` are the numbers that the application gave to the batch's records.

    ``in_doubt`` is True if the records of a failed batch may be in the log, because an attempt to send the batch was
    not definitively refused.
    """

    topic: str
    partition: int
    tokens: Sequence[int]
    base_offset: int  # offset of the first record, -1 if Kafka returned none
    error: int  # Kafka's error code, 0 for success
    in_doubt: bool
    broker_id: int  # of the last attempt, -1 if the batch was never sent, as for `leader_epoch`
    leader_epoch: int
    attempts: int


Report = Callable[[Delivery], None]


def rejected_delivery(topic: str, partition: int | None, token: int, error: int) -> Delivery:
    number = UNKNOWN if partition is None else partition
    return Delivery(topic, number, (token,), UNKNOWN, error, False, UNKNOWN, UNKNOWN, 0)


class BatchCompleter:
    """Completes every record batch exactly once, or returns the batch to the accumulator for a retry."""

    def __init__(self, settings: ProducerSettings, rules: ProducerRules, report: Report) -> None:
        self._settings, self._rules, self._report = settings, rules, report

    def on_response(
        self,
        batch: ProducerBatch,
        error: int,
        now_ms: float,
        *,
        base_offset: int = UNKNOWN,
        log_start_offset: int = UNKNOWN,
    ) -> None:
        if error and not surely_refused(error, base_offset):
            batch.in_doubt = True
        self._decide(batch, error, now_ms, base_offset, log_start_offset)

    def on_no_response(self, batch: ProducerBatch, error: int, now_ms: float, *, sent: bool) -> None:
        """Retry or fail a batch without a response; ``sent`` is False if the batch was not written to a connection."""
        batch.in_doubt |= sent
        self._decide(batch, error, now_ms, UNKNOWN, UNKNOWN)

    def sent_without_answer(self, batch: ProducerBatch) -> None:
        self._rules.accumulator.unmute(batch)
        self._end_delivered(batch, UNKNOWN)

    def expire(self, now_ms: float) -> None:
        """Report batches whose ``delivery.timeout.ms`` has passed as failed or in doubt."""
        for batch in self._rules.accumulator.unfinished.expired(now_ms):
            in_flight = not self._rules.accumulator.withdraw(batch)
            batch.in_doubt |= in_flight
            if batch.numbers is not None and batch.numbered and self._rules.idempotence is not None:
                self._rules.idempotence.expired(batch.numbers, retried=batch.attempts.attempts > 0)
            elif self._rules.transactions is not None:
                self._rules.transactions.unsent_failed(int(ErrorCode.request_timed_out))
            self._end_failed(batch, ErrorCode.request_timed_out, release=not in_flight)

    def drop_unsent(self, error: int) -> None:
        """Fail the batches of an aborted transaction that were never sent (``abortUndrainedBatches``)."""
        for batch in self._rules.accumulator.unfinished.all():
            if not batch.numbered and self._rules.accumulator.withdraw(batch):
                self._end_failed(batch, error)

    def abandon(self, error: int) -> None:
        for batch in self._rules.accumulator.unfinished.all():
            batch.in_doubt |= not self._rules.accumulator.withdraw(batch)
            self._end_failed(batch, error)

    def _decide(self, batch: ProducerBatch, error: int, now_ms: float, base_offset: int, log_start_offset: int) -> None:
        """Complete, split, retry or fail a batch, as in Kafka's ``Sender.completeBatch``."""
        settings, idempotence, numbers = self._settings, self._rules.idempotence, batch.numbers
        self._rules.accumulator.unmute(batch)
        if batch.done:  # the batch had expired before the response arrived
            self._rules.accumulator.unfinished.release(batch)
        # 1. No error, or an earlier attempt was written: the batch is delivered.
        if not error or error == ErrorCode.duplicate_sequence_number:
            if idempotence is not None and numbers is not None:
                idempotence.acked(numbers)
            if not batch.done:
                self._end_delivered(batch, UNKNOWN if error else base_offset)
            return
        if batch.done:
            return
        # 2. A batch that is too large is split.
        if error == ErrorCode.message_too_large and batch.count > 1:
            self._rules.accumulator.split(batch)
            return
        # 3. A retriable error within delivery.timeout.ms and retries: the batch is retried.
        retries_left = batch.attempts.attempts < settings.retries
        if retries_left and now_ms < batch.created_ms + settings.delivery_timeout_ms:
            if idempotence is None or numbers is None:
                retriable = error in codes.RETRIABLE
            else:
                retriable = idempotence.can_retry(numbers, error, log_start_offset=log_start_offset)
            if retriable:
                batch.error = error
                self._rules.accumulator.retry(batch, now_ms)
                return
        # 4. The batch has failed, in doubt unless the broker surely refused every attempt that was sent.
        if idempotence is not None and numbers is not None:
            idempotence.on_failure(numbers, error, refused=retries_left)
        self._end_failed(batch, error)

    def _end_delivered(self, batch: ProducerBatch, base_offset: int) -> None:
        self._end(batch, base_offset, 0, in_doubt=False)

    def _end_failed(self, batch: ProducerBatch, error: int, *, release: bool = True) -> None:
        self._end(batch, UNKNOWN, int(error), in_doubt=batch.in_doubt, release=release)

    def _end(self, batch: ProducerBatch, base_offset: int, error: int, *, in_doubt: bool, release: bool = True) -> None:
        self._rules.accumulator.unfinished.finish(batch, release=release)
        topic, partition = batch.tp
        node_id, epoch, attempts = batch.node_id, batch.leader_epoch, batch.sends
        self._report(Delivery(topic, partition, batch.tokens, base_offset, error, in_doubt, node_id, epoch, attempts))


InFlight = Mapping[TopicPartition, ProducerBatch]
"""Record batches of one Produce request, by partition."""
Responses = deque[tuple[int, InFlight, Any]]
"""Queue of Produce responses: node id, batches of the request, and the response or an exception."""

_NOT_IDEMPOTENT = ProducerId()


class ProduceRequester:
    """Sends the Produce requests of one producer, and handles the responses."""

    def __init__(
        self, settings: ProducerSettings, rules: ProducerRules, deliveries: BatchCompleter, on_event: EventListener
    ) -> None:
        self._settings, self._rules = settings, rules
        self._deliveries, self._on_event = deliveries, on_event
        self._version_cap = rules.discovery.version_cap(Api.PRODUCE)
        self._writers: dict[int, tuple[Versions, int | None, ProduceWriter]] = {}

    def send(self, node_id: int, channel: Channel, batches: InFlight, now_ms: float, responses: Responses) -> None:
        """Send a Produce request with the connection's next flush; the response is appended to ``responses``."""
        try:
            # A new connection to the node may offer another version.
            offered, cap, cached = channel.versions, self._cap, self._writers.get(node_id)
            if cached is None or cached[0] is not offered or cached[1] != cap:
                kind, settings = PRODUCE.messages(offered, cap).ProduceRequest, self._settings
                limits = settings.acks, settings.request_timeout_ms
                writer = ProduceWriter(kind, *limits, settings.transactional_id)
                self._writers[node_id] = (offered, cap, writer)
            else:
                writer = cached[2]
            topics: dict[tuple[str, UUID | None], list[tuple[int, bytes]]] = {}
            for (topic, partition), batch in batches.items():
                if batch.attempts.attempts:
                    # The parts of a split batch differ by their first token and their record count.
                    self._on_event(
                        "batch_retried",
                        topic=topic,
                        partition=partition,
                        node_id=batch.node_id,
                        epoch=batch.leader_epoch,
                        reason=codes.name(batch.error),
                        attempts=batch.attempts.attempts,
                        immediate=batch.immediate,
                        token=batch.tokens[0],
                        records=batch.count,
                    )
                batch.topic_id = self._rules.metadata.topic_id(topic)
                topics.setdefault((topic, batch.topic_id), []).append((partition, self._build(batch)))
            body = writer.body(topics)
            if self._settings.acks:
                channel.ask(
                    writer.kind,
                    body,
                    lambda response: responses.append((node_id, batches, response)),
                    timeout_ms=self._settings.request_timeout_ms,
                )
            else:
                channel.send_only(writer.kind, body)
                for batch in batches.values():
                    self._deliveries.sent_without_answer(batch)
        except UnsupportedError:
            self._fail(batches, ErrorCode.unsupported_version, now_ms, sent=False)
        except ConnectionError:
            self._fail(batches, ErrorCode.network_exception, now_ms, sent=False)

    @property
    def _cap(self) -> int | None:
        """Highest version of Produce requests, None without a limit."""
        transactions = self._rules.transactions
        if transactions is None or transactions.version_2:
            return self._version_cap
        return PRODUCE_1_MOST if self._version_cap is None else min(self._version_cap, PRODUCE_1_MOST)

    def prepare(self) -> None:
        """Compile the encoder and decoder of the Produce API, so that this does not delay the first record."""
        prepare(PRODUCE.messages(Versions({PRODUCE.api: (0, PRODUCE.most)}), self._version_cap).ProduceRequest)

    def _build(self, batch: ProducerBatch) -> bytes:
        # A batch is encoded again for each attempt, because its sequence numbers may have changed.
        numbers = batch.numbers
        producer = _NOT_IDEMPOTENT if numbers is None else numbers.producer
        data = build(
            batch.values,
            timestamps_ms=batch.timestamps_ms,
            keys=batch.keys,
            headers=batch.headers,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=-1 if numbers is None else numbers.base_sequence,
            compression=self._settings.compression_type,
            transactional=self._settings.transactional_id is not None,
        )
        self._rules.accumulator.built(batch, len(data))
        return data

    def on_response(self, batches: InFlight, response: Any, now_ms: float) -> float:
        """Handle a Produce response, or the exception in place of one; return the throttle time in milliseconds."""
        if isinstance(response, Exception):
            timed_out = isinstance(response, TimeoutError)
            error = ErrorCode.request_timed_out if timed_out else ErrorCode.network_exception
            self._fail(batches, error, now_ms, sent=True)
            return 0
        by_id = response.__version__ >= TOPIC_IDS_SINCE
        answers: dict[tuple[str | UUID | None, int], Any] = {
            (topic.topic_id if by_id else topic.name, part.index): part
            for topic in response.responses
            for part in topic.partition_responses
        }
        # By the topic ids of the request, because the metadata may have changed (``Sender.sendProduceRequest``).
        parts = {tp: answers.get((b.topic_id if by_id else tp.topic, tp.partition)) for tp, b in batches.items()}
        failed = {tp: part for tp, part in parts.items() if part is not None and part.error_code}
        if failed:
            hints = {tp: leader_hint(part) for tp, part in failed.items()}
            errors = {tp: (int(part.error_code), hints[tp]) for tp, part in failed.items()}
            routed = {tp: batches[tp].leader_epoch for tp in failed}
            for tp, refusal in self._rules.discovery.apply_hints(errors, endpoints(response), routed).items():
                details = {"topic": tp.topic, "partition": tp.partition, **hints[tp]._asdict()}
                if refusal is None:
                    self._on_event("hint_accepted", **details)
                else:
                    self._on_event("hint_refused", reason=refusal.name.lower(), **details)
        for tp, batch in batches.items():
            if (part := parts[tp]) is None:
                self._deliveries.on_no_response(batch, ErrorCode.network_exception, now_ms, sent=True)
            else:
                error, log_start = part.error_code, part.log_start_offset
                self._deliveries.on_response(
                    batch, error, now_ms, base_offset=part.base_offset, log_start_offset=log_start
                )
        return response.throttle_time / MILLISECOND if response.throttle_time else 0

    def _fail(self, batches: InFlight, error: ErrorCode, now_ms: float, *, sent: bool) -> None:
        routed = {tp: batch.leader_epoch for tp, batch in batches.items()}
        self._rules.discovery.apply_hints(
            dict.fromkeys(batches, (int(ErrorCode.network_exception), Leader())), (), routed
        )
        for batch in batches.values():
            self._deliveries.on_no_response(batch, error, now_ms, sent=sent)

"""Idempotent producer (KIP-98, KIP-360), whose sequence numbers let brokers detect duplicates and gaps.

Modelled on Kafka's ``TransactionManager`` without its transactions, ``TxnPartitionEntry``, and
``RecordAccumulator.shouldStopDrainBatchesForPartition``.

1. A batch is numbered at its first attempt with the producer's id and epoch and its partition's next sequence. All
   attempts of a batch have the same numbers, so that a broker recognises a batch that was already written. Sequence
   numbers count records and wrap from 2^31 - 1 to 0.
2. A batch is *in flight* from its first attempt until the batch is acknowledged, fails or expires, even while it waits
   for a retry. A batch with a sequence number is sent only if no earlier batch of its partition is in flight, so that
   after an error requests are sent one at a time and in order (``may_drain``).
3. Broker errors (``can_retry``): A batch with OUT_OF_ORDER_SEQUENCE_NUMBER is always retried. If the refused batch
   directly follows the last acknowledged batch, records are missing in the log and the producer epoch is bumped;
   otherwise the preceding batch must be written first. A batch with UNKNOWN_PRODUCER_ID is always retried; if the
   response has the log start offset, after an epoch bump. A batch with DUPLICATE_SEQUENCE_NUMBER was written earlier,
   so the caller calls ``acked``, as after a success. A batch with any other error is retried if Kafka classifies the
   error as retriable; if not, ``on_failure`` bumps the producer epoch, because a gap precedes the next sequence. After
   a fatal error the producer sends no more batches.
4. The client bumps (increments) the producer epoch by itself (KIP-360). In partitions that require a new producer
   epoch, batches in flight are renumbered from 0, in order; other partitions use the new producer epoch, and get new
   batches, only when they have no batch in flight. Producer epoch 32767 is followed by a new producer id.
5. A batch that expires after a retry may have been written, so its partition is *unresolved* and gets no new batch
   until its batches in flight have ended. If a batch sent after the expired batch was acknowledged, the expired batch
   was written; otherwise the producer epoch is bumped.

Two weaknesses are copied from Kafka. A batch that expires in its first attempt doesn't make its partition unresolved
(``inRetry``), and an epoch bump after a refused batch also renumbers earlier batches, so that a written batch whose
response was lost is written twice. Unlike this module, Kafka loses the order of batches when sequences wrap to 0, and
applies a late response for an older producer epoch to the current producer epoch.

Whether a record failed or is in doubt (``surely_refused``) depends on the response to each attempt of its batch:

1. An error that a broker detects before it appends a batch proves that the batch was not written, if the response has
   no base offset.
2. An error response with a base offset doesn't prove that the batch was not written, because with ``acks=all`` the
   broker may have lost leadership while the appended batch waited for its replicas (``DelayedProduce`` replaces the
   error code only).
3. Neither a missing response nor an error code that isn't in ``NOT_APPENDED`` (such as KAFKA_STORAGE_ERROR,
   REQUEST_TIMED_OUT) proves that a batch was not written.

A record has *failed* if each attempt that was sent was surely refused; otherwise the record is in doubt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire.codes import RETRIABLE

NOT_APPENDED = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_leader_or_follower,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_producer_id,
        ErrorCode.unsupported_compression_type,
        ErrorCode.invalid_record,
        ErrorCode.producer_fenced,
        ErrorCode.unknown_topic_id,
    }
)
"""Errors of a batch that brokers detect before they append (``ReplicaManager``, ``UnifiedLog.append``)."""


def surely_refused(error: int, base_offset: int) -> bool:
    """Return True if a Produce response proves that the batch of the request was not written to the log."""
    return error in NOT_APPENDED and base_offset == UNKNOWN


OUT_OF_ORDER_SEQUENCE_NUMBER = 45
UNKNOWN_PRODUCER_ID = 59
FATAL = frozenset({31, 35, 90})
"""Errors that end a producer: CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, PRODUCER_FENCED."""
EPOCH_MAX = 32767
_SEQUENCES = 1 << 31


class ProducerId(NamedTuple):
    """Producer id and producer epoch; both are UNKNOWN until InitProducerId succeeds."""

    id: int = UNKNOWN
    epoch: int = UNKNOWN


_NO_ID = ProducerId()


@dataclass(slots=True, eq=False)
class Numbers:
    """Producer id, producer epoch and sequences of one batch of ``count`` records, set by ``Idempotence``.

    ``base_sequence`` is the sequence of the batch's first record, UNKNOWN until the first attempt to send the batch. An
    epoch bump may renumber a batch between two attempts, so each attempt must write the batch header again.
    """

    tp: TopicPartition
    count: int
    producer: ProducerId = _NO_ID
    base_sequence: int = UNKNOWN
    renumbered: bool = False

    @property
    def next_sequence(self) -> int:
        return increment(self.base_sequence, self.count)


def increment(sequence: int, count: int) -> int:
    """Add ``count`` to a sequence number, which wraps from 2^31 - 1 to 0 (``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + count) % _SEQUENCES


def precedes(left: int, right: int) -> bool:
    """Return True if sequence number ``left`` is before ``right``, by less than half of all sequence numbers."""
    return 0 < (right - left) % _SEQUENCES < _SEQUENCES // 2


@dataclass(slots=True, eq=False)
class _Partition:
    """Sequences of one partition (``TxnPartitionEntry``); ``acked`` is the one after the last acknowledged batch."""

    in_flight: list[Numbers] = field(default_factory=list)
    producer: ProducerId = _NO_ID
    acked: int = 0
    next_sequence: int = 0

    def restart(self, producer: ProducerId) -> None:
        """Restart a partition at sequence 0 under a new producer id or epoch, and renumber the batches in flight."""
        self.producer = producer
        self.acked = self.next_sequence = 0
        for batch in self.in_flight:
            self.number(batch)
            batch.renumbered = True

    def number(self, batch: Numbers) -> None:
        batch.producer = self.producer
        batch.base_sequence = self.next_sequence
        self.next_sequence = batch.next_sequence

    def remove(self, batch: Numbers) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def withdraw(self, failed: Numbers) -> None:
        """Give the sequences of a batch that was surely not written to the batches in flight after it."""
        for batch in self.in_flight:
            if precedes(failed.base_sequence, batch.base_sequence):
                batch.base_sequence = (batch.base_sequence - failed.count) % _SEQUENCES
                batch.renumbered = True
        self.next_sequence = (self.next_sequence - failed.count) % _SEQUENCES


class Idempotence:
    """Sequences in all partitions of one producer; the counter ``epoch_bumps`` includes replaced producer ids.

    The sender calls ``settle`` before it sends batches. While ``needs_id`` is True, the sender requests a producer id
    (InitProducerId) and calls ``set_producer``.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.producer = ProducerId()
        self.fatal_error = 0
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unresolved: dict[TopicPartition, int] = {}
        self._restart: set[TopicPartition] = set()

    @property
    def needs_id(self) -> bool:
        return self.producer.id == UNKNOWN and not self.fatal_error

    def set_producer(self, producer_id: int, epoch: int) -> None:
        """Use a new producer id or producer epoch, and restart the sequences of partitions that need a restart."""
        self.producer = ProducerId(producer_id, epoch)
        for tp in self._restart:
            self._partition(tp).restart(self.producer)
            self._unresolved.pop(tp, None)
        self._restart.clear()

    def settle(self) -> None:
        """Decide if expired batches were written, and bump the producer epoch if necessary."""
        for tp in [tp for tp in self._unresolved if not self._partitions[tp].in_flight]:
            del self._unresolved[tp]
            partition = self._partitions[tp]
            if partition.acked != partition.next_sequence:
                self._restart.add(tp)
        if self._restart and not self.needs_id and not self.fatal_error:
            self.counts["epoch_bumps"] += 1
            if self.producer.epoch == EPOCH_MAX:
                self.producer = ProducerId()
            else:
                self.set_producer(*self.producer._replace(epoch=self.producer.epoch + 1))

    def may_drain(self, batch: Numbers) -> bool:
        """Return True if the oldest queued batch of its partition may be sent now, with regard to sequences."""
        if self.needs_id or self.fatal_error:
            return False
        partition = self._partition(batch.tp)
        if batch.base_sequence != UNKNOWN:
            return not partition.in_flight or partition.in_flight[0] is batch
        stale = partition.producer != self.producer
        return not (stale and partition.in_flight) and batch.tp not in self._unresolved

    def drained(self, batch: Numbers) -> None:
        """Record an attempt to send a batch; the first attempt assigns the batch's sequence number."""
        batch.renumbered = False
        if batch.base_sequence != UNKNOWN:
            return
        partition = self._partition(batch.tp)
        if partition.producer != self.producer:
            partition.restart(self.producer)
        partition.number(batch)
        partition.in_flight.append(batch)

    def split(self, batch: Numbers, counts: Sequence[int]) -> list[Numbers]:
        """Split a batch's sequence numbers after MESSAGE_TOO_LARGE; the parts replace the batch in flight."""
        in_flight = self._partition(batch.tp).in_flight
        parts = [Numbers(batch.tp, count) for count in counts]
        sequence = batch.base_sequence
        for part in parts:
            part.producer, part.base_sequence = batch.producer, sequence
            sequence = part.next_sequence
        place = in_flight.index(batch)
        in_flight[place : place + 1] = parts
        return parts

    def can_retry(self, batch: Numbers, error: int, *, log_start_offset: int = UNKNOWN) -> bool:
        """Return True if a batch with this error may be retried, provided that attempts and time remain."""
        if error == UNKNOWN_PRODUCER_ID:
            if log_start_offset != UNKNOWN and not batch.renumbered:
                self._restart.add(batch.tp)
            return True
        if error == OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A gap is proved if no pending batch can precede this batch.
            if batch.tp in self._unresolved:
                is_gap = batch.base_sequence == self._unresolved[batch.tp]
            else:
                is_gap = not batch.renumbered and batch.base_sequence == self._partition(batch.tp).acked
            if is_gap:
                self._restart.add(batch.tp)
            return True
        return error in RETRIABLE

    def acked(self, batch: Numbers) -> None:
        """Process success or DUPLICATE_SEQUENCE_NUMBER of a batch, which may have expired already."""
        partition = self._partition(batch.tp)
        if batch.producer == partition.producer and precedes(partition.acked, batch.next_sequence):
            partition.acked = batch.next_sequence
        partition.remove(batch)

    def on_failure(self, batch: Numbers, error: int, *, refused: bool) -> None:
        """Process a batch's final failure; ``refused`` is True if its error forbids a retry."""
        self._partition(batch.tp).remove(batch)
        if error in FATAL:
            self.fatal_error = error
        elif refused or error in {OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID}:
            self._restart.add(batch.tp)

    def expired(self, batch: Numbers, *, retried: bool) -> None:
        """Process an expired batch; ``retried`` is True if the batch was queued for a retry at least once."""
        self._partition(batch.tp).remove(batch)
        if retried:
            latest = self._unresolved.get(batch.tp, batch.next_sequence)
            self._unresolved[batch.tp] = batch.next_sequence if precedes(latest, batch.next_sequence) else latest

    def _partition(self, tp: TopicPartition) -> _Partition:
        return self._partitions.get(tp) or self._partitions.setdefault(tp, _Partition())

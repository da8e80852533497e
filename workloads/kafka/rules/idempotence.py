"""Which answers to a Produce prove that *this attempt* was not written.

1. An error that a broker finds before it appends proves it, if the answer names no base offset.
2. With ``acks=all`` a batch that was appended waits for its replicas. When it loses its leader meanwhile it gets the
   same error as if it had never been appended, but its base offset is in the answer (``DelayedProduce`` replaces the
   error code alone). So an answer with a base offset proves nothing.
3. All else proves nothing either: no answer, a broken connection, KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT,
   NOT_ENOUGH_REPLICAS_AFTER_APPEND, and every code that isn't listed here.

A record has surely *failed* if each attempt that was sent was refused like this; else it is in doubt.

Idempotent producing (KIP-98, KIP-360): numbers on batches, so that a broker knows a repetition and misses a gap.

Kafka: ``TransactionManager`` without its transactions, ``TxnPartitionEntry``, and from ``RecordAccumulator``
``shouldStopDrainBatchesForPartition``.

1. A batch is numbered when it is first drained, with the producer's id and epoch and its partition's next sequence, and
   keeps that number in every attempt: what a broker has written already it then knows again. Sequences count records
   and go from 2^31 - 1 to 0.
2. A batch is *in flight* from its first drain until it is acknowledged, has failed or has expired; also while it waits
   to be sent again. A numbered batch is drained only if it is the first in flight of its partition: after an error one
   request at a time goes out, in order. ``may_drain``
3. The broker's errors. ``can_retry``
   OUT_OF_ORDER_SEQUENCE_NUMBER: always again. If the batch is the very next one after the last acknowledged, records
   are missing in the log, and the epoch is bumped; otherwise the one before it must come first.
   UNKNOWN_PRODUCER_ID: always again. The epoch is bumped, unless the broker does not say where its log starts.
   DUPLICATE_SEQUENCE_NUMBER: success, without an offset; the caller says ``acked``.
   Others: again if Kafka calls them retriable. If not, ``failed`` bumps the epoch, for the numbers after the refused
   batch have a gap before them. After the fatal ones nothing is drained any more.
4. To bump the epoch is the client's own doing (KIP-360). Batches in flight of the partitions that asked for it are
   numbered anew from 0, in order; other partitions follow once they have nothing in flight, and until then get no new
   batch. After epoch 32767 comes a new producer id.
5. A batch that expired after a retry leaves its partition *unresolved*: nobody knows whether it was written. No new
   batch until what is in flight there has ended; if by then a later batch was acknowledged, it was written. Otherwise
   the epoch is bumped.

As shipped, not as one would wish: a batch that expires in its first attempt does not count as unresolved (``inRetry``);
and a bump after a refused batch numbers those before it anew as well, so one of them that was written, with its answer
lost, is written twice. Not as shipped: Kafka compares sequences as plain integers, and loses order at their wrap; it
lets a late answer to an older epoch count for the present one; and at the last epoch it numbers what is in flight
before it has the new id. We don't.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition
from aftershock.workloads.kafka.wire.codes import RETRIABLE

NOT_APPENDED = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
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
"""What brokers find before they append (``KafkaApis``, ``ReplicaManager``, ``UnifiedLog.append``)."""


def surely_refused(error: int, base_offset: int) -> bool:
    """Whether an attempt that was answered like this is nowhere in any log."""
    return error in NOT_APPENDED and base_offset == UNKNOWN


OUT_OF_ORDER_SEQUENCE_NUMBER = 45
UNKNOWN_PRODUCER_ID = 59
FATAL = frozenset({31, 35, 90})
"""CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, PRODUCER_FENCED."""
EPOCH_MAX = 32767
_SEQUENCES = 1 << 31


class ProducerId(NamedTuple):
    """A producer's id and epoch; none until the cluster has given one."""

    id: int = UNKNOWN
    epoch: int = UNKNOWN


class Numbers:
    """The numbering of one batch of ``count`` records. The batch owns it, ``Idempotence`` writes it.

    ``base_sequence`` is UNKNOWN until the first drain. A bump may change it and ``producer`` while the batch waits for
    another attempt, so its header is to be written at each drain. ``renumbered``: since its last drain.
    """

    __slots__ = ("base_sequence", "count", "producer", "renumbered", "tp")

    def __init__(self, tp: TopicPartition, count: int) -> None:
        self.tp = tp
        self.count = count
        self.producer = ProducerId()
        self.base_sequence = UNKNOWN
        self.renumbered = False

    @property
    def next_sequence(self) -> int:
        """What the batch after this one begins with."""
        return increment(self.base_sequence, self.count)


def increment(sequence: int, count: int) -> int:
    """``DefaultRecordBatch.incrementSequence``: after 2^31 - 1 comes 0."""
    return (sequence + count) % _SEQUENCES


def precedes(left: int, right: int) -> bool:
    """Whether sequence ``left`` comes before ``right``: less than half the range away, so across the wrap as well."""
    return 0 < (right - left) % _SEQUENCES < _SEQUENCES // 2


class _Partition:
    """The numbers of one partition (``TxnPartitionEntry``); ``acked`` is what follows the last acknowledged record."""

    __slots__ = ("acked", "in_flight", "next_sequence", "producer")

    def __init__(self) -> None:
        self.in_flight: list[Numbers] = []
        self.restart(ProducerId())

    def restart(self, producer: ProducerId) -> None:
        """From 0 on under this id and epoch, those in flight first."""
        self.producer = producer
        self.acked = self.next_sequence = 0
        for batch in self.in_flight:
            self.number(batch)
            batch.renumbered = True

    def number(self, batch: Numbers) -> None:
        batch.producer = self.producer
        batch.base_sequence = self.next_sequence
        self.next_sequence = batch.next_sequence

    def has_acked(self, batch: Numbers) -> None:
        if batch.producer == self.producer and precedes(self.acked, batch.next_sequence):
            self.acked = batch.next_sequence

    def remove(self, batch: Numbers) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)


class Idempotence:
    """The numbering of all partitions of one producer.

    Each pass of the sender calls ``settle`` first, and while ``needs_id`` asks the cluster for one (InitProducerId
    without a transactional id) and says ``initialized``. Counter: ``epoch_bumps``, exhausted ids included.
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
        """Whether nothing can be drained before ``initialized``."""
        return self.producer.id == UNKNOWN and not self.fatal_error

    def initialized(self, producer_id: int, epoch: int) -> None:
        """The cluster gave an id and its epoch."""
        self._becomes(ProducerId(producer_id, epoch))

    def settle(self) -> None:
        """Resolve what has expired, and bump the epoch if somebody asked for it."""
        if self._unresolved:
            for tp in [tp for tp in self._unresolved if not self._partitions[tp].in_flight]:
                self._resolve(tp)
        if self._restart and not self.needs_id and not self.fatal_error:
            self._bump()

    def may_drain(self, batch: Numbers) -> bool:
        """Whether the first batch of a partition's queue may be sent now; if not, nothing more goes to its node."""
        if self.needs_id or self.fatal_error:
            return False
        partition = self._partition(batch.tp)
        if batch.base_sequence != UNKNOWN:
            return not partition.in_flight or partition.in_flight[0] is batch
        stale = partition.producer != self.producer
        return not (stale and partition.in_flight) and batch.tp not in self._unresolved

    def drained(self, batch: Numbers) -> None:
        """A batch is being sent: number it, if this is its first attempt."""
        batch.renumbered = False
        if batch.base_sequence != UNKNOWN:
            return
        partition = self._partition(batch.tp)
        if partition.producer != self.producer:
            partition.restart(self.producer)
        partition.number(batch)
        partition.in_flight.append(batch)

    def split(self, batch: Numbers, counts: Sequence[int]) -> list[Numbers]:
        """MESSAGE_TOO_LARGE: the numbers of the parts, which together are its own and take its place in flight."""
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
        """Whether a batch may be sent again after this error of the broker; attempts and deadline are the caller's."""
        if error == UNKNOWN_PRODUCER_ID:
            if log_start_offset != UNKNOWN and not batch.renumbered:
                self._restart.add(batch.tp)
            return True
        if error == OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self._proves_a_gap(batch):
                self._restart.add(batch.tp)
            return True
        return error in RETRIABLE

    def acked(self, batch: Numbers) -> None:
        """The broker has it: success, DUPLICATE_SEQUENCE_NUMBER, and either of them also for one that has expired."""
        partition = self._partition(batch.tp)
        partition.has_acked(batch)
        partition.remove(batch)

    def failed(self, batch: Numbers, error: int, *, refused: bool) -> None:
        """It won't be sent again. ``refused``: attempts < retries, so that it is for this error and no former one."""
        self._partition(batch.tp).remove(batch)
        if error in FATAL:
            self.fatal_error = error
        elif refused or error in {OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID}:
            self._restart.add(batch.tp)

    def expired(self, batch: Numbers, *, retried: bool) -> None:
        """Its time is up, wherever it is. ``retried``: it was sent, and put back to be sent again, at least once."""
        self._partition(batch.tp).remove(batch)
        if retried:
            known = self._unresolved.get(batch.tp, batch.next_sequence)
            self._unresolved[batch.tp] = batch.next_sequence if precedes(known, batch.next_sequence) else known

    def _partition(self, tp: TopicPartition) -> _Partition:
        return self._partitions.get(tp) or self._partitions.setdefault(tp, _Partition())

    def _proves_a_gap(self, batch: Numbers) -> bool:
        """Rule 3, out of order: nothing that is still to come can go before this batch."""
        if batch.tp in self._unresolved:
            return batch.base_sequence == self._unresolved[batch.tp]
        return not batch.renumbered and batch.base_sequence == self._partition(batch.tp).acked

    def _resolve(self, tp: TopicPartition) -> None:
        del self._unresolved[tp]
        partition = self._partitions[tp]
        if partition.acked != partition.next_sequence:
            self._restart.add(tp)

    def _bump(self) -> None:
        self.counts["epoch_bumps"] += 1
        if self.producer.epoch == EPOCH_MAX:
            self.producer = ProducerId()
        else:
            self._becomes(self.producer._replace(epoch=self.producer.epoch + 1))

    def _becomes(self, producer: ProducerId) -> None:
        self.producer = producer
        for tp in self._restart:
            self._partition(tp).restart(producer)
            self._unresolved.pop(tp, None)
        self._restart.clear()

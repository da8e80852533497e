"""Transactional producer (KIP-98, KIP-360, KIP-890), whose records become visible together or not at all.

Modelled on Kafka's ``TransactionManager`` and the part of ``Sender`` that asks it. ``rules/transactions.py`` has the
transactions of the reference committer, which consist of one offset commit and have no records.

::

    INITIALIZING ──InitProducerId──▶ READY ──begin──▶ IN_TRANSACTION ──commit──▶ COMMITTING ──EndTxn──▶ READY
                                       ▲                    │ abort                  │ an error that requires an abort
                                       │                    ▼                        ▼
                                       └────── EndTxn ─── ABORTING ◀──── abort ─── ABORTABLE_ERROR
    any state ──an error after which the producer must not send──▶ FATAL_ERROR

1. **Version 1.** A partition is added to the transaction (AddPartitionsToTxn) before its first batch is sent. All
   transactions of a producer have the same producer epoch.
2. **Version 2** (KIP-890, part 2). Produce 12 adds the partition, and EndTxn 5 returns the producer id and epoch of the
   next transaction, whose sequences begin at 0. Version 2 is used if the finalized feature ``transaction.version`` is
   at least 2. The version is read again at the end of each transaction (``maybeUpdateTransactionV2Enabled``); after a
   change to version 2 the producer requests the next epoch with InitProducerId (``clientSideEpochBumpRequired``).
3. EndTxn is sent when all batches have ended, and left out if the transaction has no partition (``nextRequest``).
4. While a transactional request is in flight, no batch is sent. When the transaction is aborted, batches that were
   never sent are dropped (``RecordAccumulator.abortUndrainedBatches``).
5. A batch that fails makes the transaction abortable. With version 1, the next transaction then begins with a new
   epoch, because the failed batch may still be on its way (KIP-360); with version 2, every EndTxn raises the epoch.
6. Errors of the requests, with their handlers ``InitProducerIdHandler``, ``AddPartitionsToTxnHandler`` and
   ``EndTxnHandler``: NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE are retried after the coordinator is found again,
   other errors that Kafka classifies as retriable after a back-off. TRANSACTION_ABORTABLE, and for AddPartitionsToTxn
   and EndTxn also UNKNOWN_PRODUCER_ID and INVALID_PRODUCER_ID_MAPPING, require an abort, as does any error of a
   single partition of AddPartitionsToTxn that rule 8 doesn't name.
7. **Offsets of a consumer group** (``sendOffsetsToTransaction``, KIP-447). With version 1, the group's partition of
   ``__consumer_offsets`` is added to the transaction first (AddOffsetsToTxn to the transaction's coordinator), then the
   offsets are sent to the coordinator of the group (TxnOffsetCommit up to 4). TxnOffsetCommit 5 of version 2 does both.
   The request carries the member's id, generation (or epoch) and instance id, so that the group's coordinator refuses a
   member whose partitions are gone: FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID and ILLEGAL_GENERATION require an abort, as
   does GROUP_AUTHORIZATION_FAILED. Offsets with a retriable error are sent again, after NOT_COORDINATOR,
   COORDINATOR_NOT_AVAILABLE and REQUEST_TIMED_OUT to a coordinator that is found anew (``AddOffsetsToTxnHandler``,
   ``TxnOffsetCommitHandler`` of Kafka 4.3.1).
8. All other errors are fatal. INVALID_PRODUCER_EPOCH of these requests is PRODUCER_FENCED: another producer has the
   transactional id. In a Produce response it is abortable, because the coordinator decides who is fenced.

An application that aborts after it has asked for the commit (``begin_abort(after_commit=True)``) breaks Kafka's rules:
Kafka's clients refuse it, because with version 1 its effect is undefined.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError
from aftershock.workloads.kafka.rules.commits import COMMIT_MOVED
from aftershock.workloads.kafka.rules.idempotence import (
    FATAL,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    UNKNOWN_PRODUCER_ID,
    Idempotence,
    Numbers,
    ProducerId,
)
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, TopicPartition
from aftershock.workloads.kafka.wire.codes import COORDINATOR_MOVED, RETRIABLE, name


class State(Enum):
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


class Step(Enum):
    """Transactional request to send next."""

    INIT_PRODUCER_ID = auto()
    ADD_PARTITIONS = auto()
    ADD_OFFSETS = auto()
    COMMIT_OFFSETS = auto()
    END = auto()


class GroupOffsets(NamedTuple):
    """Offsets of a consumer group by partition, each with the leader epoch of the record before, and the member.

    The defaults are those of a producer that is no member, whose offsets the coordinator can't refuse (KIP-447).
    """

    group_id: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    member_id: str = ""
    generation: int = UNKNOWN
    instance_id: str | None = None


PRODUCER_FENCED = 90
FENCING: frozenset[int] = frozenset({ErrorCode.invalid_producer_epoch, PRODUCER_FENCED})
ABORTABLE: Mapping[Step, frozenset[int]] = {
    Step.INIT_PRODUCER_ID: frozenset({ErrorCode.transaction_abortable}),
    Step.ADD_OFFSETS: frozenset(
        {ErrorCode.transaction_abortable, ErrorCode.unknown_producer_id, ErrorCode.group_authorization_failed}
    ),
    Step.COMMIT_OFFSETS: frozenset(
        {
            ErrorCode.transaction_abortable,
            ErrorCode.group_authorization_failed,
            ErrorCode.fenced_instance_id,
            ErrorCode.unknown_member_id,
            ErrorCode.illegal_generation,
        }
    ),
    **dict.fromkeys(
        (Step.ADD_PARTITIONS, Step.END),
        frozenset(
            {
                ErrorCode.transaction_abortable,
                ErrorCode.unknown_producer_id,
                ErrorCode.invalid_producer_id_mapping,
            }
        ),
    ),
}
FATAL_OF_PARTITIONS: frozenset[int] = FENCING | {
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.invalid_txn_state,
}
"""Errors of one partition in AddPartitionsToTxn that concern the whole producer."""


class TransactionManager(Idempotence):
    """State of one transactional id, and the sequences of its producer; ``error`` explains the error states.

    The sender calls ``settle``, then ``next_step`` and, if it returns a step, sets ``in_flight`` and calls one of
    ``on_init``, ``on_added``, ``on_offsets_added``, ``on_offsets_committed``, ``on_ended`` and ``on_no_response``.
    ``asked`` is True from when EndTxn(commit) of the
    current transaction may reach the coordinator. ``committed`` is True if the last transaction that ended was
    committed. Counters: ``transactions_committed``, ``transactions_aborted``, ``transaction_steps_retried``.
    """

    def __init__(self, backoff: Backoff) -> None:
        super().__init__()
        self.state = State.INITIALIZING
        self.error = 0
        self.version_2 = False
        self.next_version_2 = False
        self.committed = False
        self.wait_ms = 0.0
        self.in_flight: Step | None = None
        self.asked = False
        self._backoff, self._failures = backoff, 0
        self._bump = False
        self._started = False
        self._partitions_new: set[TopicPartition] = set()
        self._partitions_added: set[TopicPartition] = set()
        self.offsets: GroupOffsets | None = None  # not yet committed
        self._offsets_added = False

    # ---- calls of the application

    def begin(self) -> None:
        """Begin a transaction; raise ClientError if the producer is not ready for one."""
        self._require({State.READY}, "begin a transaction")
        self.state, self.asked = State.IN_TRANSACTION, False

    def send_offsets(self, offsets: GroupOffsets) -> None:
        """Ask that the transaction also commits the offsets; raises as ``begin_commit``."""
        self._refuse_abortable()
        self._require({State.IN_TRANSACTION}, "commit offsets")
        if offsets.offsets:
            self.offsets, self._offsets_added = offsets, self.version_2
            self._started = self._started or self.version_2

    def begin_commit(self) -> None:
        """Ask for the commit; raise BrokerError if the transaction must be aborted, ClientError without one."""
        self._refuse_abortable()
        self._require({State.IN_TRANSACTION}, "commit")
        self.state = State.COMMITTING

    def begin_abort(self, *, after_commit: bool = False) -> None:
        """Ask for the abort; with ``after_commit`` also of a transaction whose commit was asked for."""
        allowed = {State.IN_TRANSACTION, State.ABORTABLE_ERROR} | ({State.COMMITTING} if after_commit else set())
        self._require(allowed, "abort")
        self.state = State.ABORTING
        self._partitions_new.clear()
        self.offsets = None

    def _refuse_abortable(self) -> None:
        if self.state is State.ABORTABLE_ERROR:
            raise BrokerError(f"the transaction must be aborted: {name(self.error)}", self.error)

    def _require(self, states: set[State], action: str) -> None:
        if self.state not in states:
            allowed = " or ".join(sorted(state.name for state in states))
            raise ClientError(f"can't {action}: the producer's state is {self.state.name}, it must be {allowed}")

    # ---- calls of the sender

    @property
    def accepts_records(self) -> bool:
        return self.state is State.IN_TRANSACTION

    @property
    def completing(self) -> bool:
        """True if the transaction is about to end, so that batches don't linger."""
        return self.state in {State.COMMITTING, State.ABORTING}

    @property
    def drops_unsent(self) -> bool:
        """True if batches that were never sent must be dropped, because the transaction is aborted or will be."""
        return self.state in {State.ABORTING, State.ABORTABLE_ERROR}

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add the partitions of buffered batches to the transaction."""
        if self.state not in {State.IN_TRANSACTION, State.COMMITTING}:
            return
        fresh = set(partitions) - self._partitions_added
        if self.version_2:
            self._partitions_added |= fresh
            self._started = self._started or bool(fresh)
        else:
            self._partitions_new |= fresh

    @property
    def partitions_to_add(self) -> list[TopicPartition]:
        return sorted(self._partitions_new)

    def next_step(self, *, incomplete: bool) -> Step | None:
        """Return the request to send after ``wait_ms``; ``incomplete`` is True while a batch has not ended.

        A transaction without partitions ends here, without a request.
        """
        if self.in_flight is not None or self.state is State.FATAL_ERROR:
            return None
        if self.state is State.INITIALIZING:
            return Step.INIT_PRODUCER_ID
        if self._partitions_new and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
            return Step.ADD_PARTITIONS
        if self.offsets is not None and self.state in {State.IN_TRANSACTION, State.COMMITTING}:
            return Step.COMMIT_OFFSETS if self._offsets_added else Step.ADD_OFFSETS
        if self.completing and not incomplete:
            if self._started:
                return Step.END
            self._complete(committed=self.state is State.COMMITTING)
        return None

    @staticmethod
    def coordinator_lost(step: Step, error: int) -> bool:
        """Return True if the coordinator to which the step was sent must be found again."""
        return error in (COMMIT_MOVED if step is Step.COMMIT_OFFSETS else COORDINATOR_MOVED)

    def on_no_response(self) -> None:
        """Retry the step in flight after a back-off: there was no coordinator, no connection or no response."""
        self.in_flight = None
        self.counts["transaction_steps_retried"] += 1
        self.wait_ms = self._backoff.ms(self._failures)
        self._failures += 1

    def on_init(self, error: int, producer: ProducerId) -> None:
        """Process the response to InitProducerId, which also ends an open transaction of the transactional id."""
        if self._succeeded(Step.INIT_PRODUCER_ID, error):
            if self.producer.id != UNKNOWN:
                self.counts["epoch_bumps"] += 1
            self._use(producer)
            self.version_2 = self.next_version_2
            self.state, self.error, self._bump = State.READY, 0, False

    def on_added(self, errors: Mapping[TopicPartition, int]) -> None:
        """Process the response to AddPartitionsToTxn; a partition that the response lacks is added again."""
        wrong = [error for error in errors.values() if error and error != ErrorCode.operation_not_attempted]
        worst = next((error for error in wrong if error in FATAL_OF_PARTITIONS), wrong[0] if wrong else 0)
        if worst and worst not in FATAL_OF_PARTITIONS | RETRIABLE | ABORTABLE[Step.ADD_PARTITIONS]:
            worst = int(ErrorCode.transaction_abortable)
        if self._succeeded(Step.ADD_PARTITIONS, worst):
            added = {tp for tp, error in errors.items() if not error}
            self._partitions_new -= added
            self._partitions_added |= added
            self._started = self._started or bool(added)

    def on_offsets_added(self, error: int) -> None:
        """Process the response to AddOffsetsToTxn."""
        if self._succeeded(Step.ADD_OFFSETS, error):
            self._offsets_added = self._started = True

    def on_offsets_committed(self, errors: Mapping[TopicPartition, int]) -> None:
        """Process the response to TxnOffsetCommit; offsets with a retriable error, or without one, are sent again."""
        final = [error for error in errors.values() if error and error not in RETRIABLE]
        retried = [error for error in errors.values() if error in RETRIABLE]
        if self._succeeded(Step.COMMIT_OFFSETS, (final or retried or [0])[0]) or (retried and not final):
            self._keep_offsets({tp for tp, error in errors.items() if not error})

    def _keep_offsets(self, committed: Collection[TopicPartition]) -> None:
        if self.offsets is not None:
            left = {tp: offset for tp, offset in self.offsets.offsets.items() if tp not in committed}
            self.offsets = self.offsets._replace(offsets=left) if left else None

    def on_ended(self, error: int, producer: ProducerId, *, commit: bool) -> None:
        """Process the response to EndTxn; ``producer`` is that of the next transaction, UNKNOWN before EndTxn 5.

        ``commit`` is what the request had asked for, which may differ from what the application wants by now.
        """
        if self._succeeded(Step.END, error):
            if producer.id != UNKNOWN:
                self._use(producer)
            self._complete(committed=commit)

    def _succeeded(self, step: Step, error: int) -> bool:
        """Return True if there is no error; otherwise retry the step, or enter the state that the error requires."""
        if error in RETRIABLE:
            self.on_no_response()
            return False
        self.in_flight, self._failures, self.wait_ms = None, 0, 0.0
        if not error:
            return True
        # an abort that fails can't be answered by another abort (``abortableErrorIfPossible``)
        if error in ABORTABLE[step] and self.state is not State.ABORTING:
            # a refused member is no reason for a new epoch
            self._bump = self._bump or not (self.version_2 or step is Step.COMMIT_OFFSETS)
            self._abortable(error)
        else:
            self.fail(PRODUCER_FENCED if error in FENCING else error)
        return False

    def _use(self, producer: ProducerId) -> None:
        """Use a new producer id or epoch, whose sequences begin at 0 (``resetSequenceNumbers``)."""
        self.producer = producer
        self._partitions.clear()
        self._unresolved.clear()

    def _complete(self, *, committed: bool) -> None:
        self.committed = committed
        self.counts["transactions_committed" if committed else "transactions_aborted"] += 1
        needs_init = self._bump or (self.next_version_2 and not self.version_2)
        self.state = State.INITIALIZING if needs_init else State.READY
        self.version_2 = self.next_version_2
        self.error, self._bump, self._started = 0, False, False
        self._partitions_new.clear()
        self._partitions_added.clear()
        self.offsets = None

    def _abortable(self, error: int) -> None:
        if self.state not in {State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}:
            self.state, self.error = State.ABORTABLE_ERROR, error

    def fail(self, error: int) -> None:
        """End the producer for good with an error code."""
        self.state, self.error, self.fatal_error = State.FATAL_ERROR, error, error

    # ---- sequences

    @property
    def needs_id(self) -> bool:
        return self.state is State.INITIALIZING

    def settle(self) -> None:
        """Make the transaction abortable if an expired batch may have left a gap (``maybeResolveSequences``)."""
        for tp in [tp for tp in self._unresolved if not self._partitions[tp].in_flight]:
            del self._unresolved[tp]
            if self._partitions[tp].acked != self._partitions[tp].next_sequence:
                self._failed_batch(int(ErrorCode.request_timed_out))

    def may_drain(self, batch: Numbers) -> bool:
        """Return True if a batch may be sent: its partition is part of the transaction, and nothing is in flight."""
        allowed = self.in_flight is None and batch.tp in self._partitions_added
        return allowed and super().may_drain(batch)

    def can_retry(self, batch: Numbers, error: int, *, log_start_offset: int = UNKNOWN) -> bool:
        """Return True if a batch with this error may be retried, as ``TransactionManager.canRetry``.

        A gap in the sequences, or a producer that the broker does not know, ends a transaction instead of a bump.
        """
        if error == OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_next = batch.base_sequence == self._partition(batch.tp).acked
            return batch.tp not in self._unresolved and (batch.renumbered or not is_next)
        if error == UNKNOWN_PRODUCER_ID:
            return log_start_offset == UNKNOWN or batch.renumbered
        return error in RETRIABLE

    def on_failure(self, batch: Numbers, error: int, *, refused: bool) -> None:
        partition = self._partition(batch.tp)
        partition.remove(batch)
        if error in FATAL | {ErrorCode.transactional_id_authorization_failed}:
            self.fail(error)
            return
        self._failed_batch(error)
        if refused and batch.producer == self.producer:  # adjustSequencesDueToFailedBatch
            partition.withdraw(batch)

    def expired(self, batch: Numbers, *, retried: bool) -> None:
        super().expired(batch, retried=retried)
        self._failed_batch(int(ErrorCode.request_timed_out))

    def unsent_failed(self, error: int) -> None:
        """Process the failure of a record or batch that was never sent (``maybeTransitionToErrorState``)."""
        if self.state in {State.IN_TRANSACTION, State.COMMITTING}:
            self._abortable(error)

    def _failed_batch(self, error: int) -> None:
        if self.state in {State.IN_TRANSACTION, State.COMMITTING, State.ABORTABLE_ERROR, State.ABORTING}:
            self._bump = self._bump or not self.version_2
            self._abortable(error)

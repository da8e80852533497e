"""Transaction that consists of a single offset commit.

Modelled on the part of Kafka's ``TransactionManager`` for offsets. These transactions are the control arm of KIP-1224,
because the coordinator's batches never linger for transactional commits.

::

                    InitProducerId       AddOffsetsToTxn      TxnOffsetCommit      EndTxn(commit)
    NO_ID ────────▶ IDENTIFYING ───────▶ ADDING ────────────▶ COMMITTING ────────▶ ENDING ───────▶ READY
                                            ▲      begin         │ an error that requires an abort
                                            └──────────── READY ◀┴─────▶ ABORTING   EndTxn(abort)

Version 2 of the transactions (KIP-890's second part) leaves out ADDING, because TxnOffsetCommit 5 adds the offsets, and
EndTxn 5 returns the producer id and epoch of the next transaction. A client uses version 2 if the brokers' finalized
feature ``transaction.version`` is at least 2, else TxnOffsetCommit and EndTxn up to version 4. The version changes only
between transactions (``maybeUpdateTransactionV2Enabled``); after a change to version 2 the next transaction begins with
InitProducerId (``clientSideEpochBumpRequired``).

1. Errors retried after a back-off are COORDINATOR_LOAD_IN_PROGRESS and CONCURRENT_TRANSACTIONS (the previous
   transaction is still completing); for TxnOffsetCommit UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID as well. A
   request without a response is retried as well, because every request of a transaction may be sent twice.
2. Errors retried after the coordinator is found again are NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE; for
   TxnOffsetCommit also REQUEST_TIMED_OUT.
3. Errors of the group or of this transaction only (``ABORTABLE``) abort the transaction. After an abort, the next
   transaction uses the same producer id.
4. Any error that is neither retried nor aborts the transaction, above all PRODUCER_FENCED, is fatal. After a fatal
   error, where an application would create a new Kafka producer with the same transactional id, the next transaction
   begins with InitProducerId, which also ends an open transaction.
"""

from collections import Counter
from enum import Enum, auto

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.commits import COMMIT_MOVED, COMMIT_RETRIABLE
from aftershock.workloads.kafka.rules.idempotence import ProducerId
from aftershock.workloads.kafka.rules.values import Backoff
from aftershock.workloads.kafka.wire.codes import COORDINATOR_MOVED


class Stage(Enum):
    """Stage of a transaction, named after the request to send next; ``NO_ID`` and ``READY`` have no request."""

    NO_ID = auto()
    IDENTIFYING = auto()
    ADDING = auto()
    COMMITTING = auto()
    ENDING = auto()
    ABORTING = auto()
    READY = auto()


STEP_RETRIABLE: frozenset[int] = COORDINATOR_MOVED | {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
}
TXN_COMMIT_RETRIABLE: frozenset[int] = COMMIT_RETRIABLE | {ErrorCode.concurrent_transactions}
ABORTABLE: frozenset[int] = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.transaction_abortable,
    }
)
_NEXT = {
    Stage.ADDING: Stage.COMMITTING,
    Stage.COMMITTING: Stage.ENDING,
    Stage.ENDING: Stage.READY,
    Stage.ABORTING: Stage.READY,
}
_OPEN = frozenset({Stage.ADDING, Stage.COMMITTING})


class Transaction:
    """State of one transactional id; ``error`` is the error code of the last transaction, 0 if it was committed.

    ``identity`` is the result of InitProducerId, set by the caller before ``on_response``. Counters of transactions:
    ``transactions_committed``, ``transactions_aborted``, ``transactions_failed``, ``transaction_steps_retried``.
    """

    def __init__(self, backoff: Backoff, counts: Counter[str]) -> None:
        self.stage = Stage.NO_ID
        self.identity = ProducerId()
        self.error = 0
        self.wait_ms = 0.0
        self.version_2 = False
        self._backoff, self._counts = backoff, counts
        self._failures = 0

    @property
    def has_request(self) -> bool:
        """True if a request of the transaction must be sent once ``wait_ms`` milliseconds have passed."""
        return self.stage not in (Stage.NO_ID, Stage.READY)

    def begin(self) -> None:
        """Start the next transaction, after the end of the previous transaction."""
        self.error = 0
        self.stage = Stage.IDENTIFYING if self.stage is Stage.NO_ID else self._first_with_id

    @property
    def _first_with_id(self) -> Stage:
        return Stage.COMMITTING if self.version_2 else Stage.ADDING

    def set_version_2(self, *, enabled: bool) -> None:
        """Set the version of the next transaction; called before the first transaction and after the end of each."""
        if enabled and not self.version_2:
            self.stage = Stage.NO_ID
        self.version_2 = enabled

    def coordinator_lost(self, error: int) -> bool:
        """Return True if the coordinator must be found again after an error of a transaction's request."""
        return error in (COMMIT_MOVED if self.stage is Stage.COMMITTING else COORDINATOR_MOVED)

    def on_response(self, error: int) -> None:
        if error in (TXN_COMMIT_RETRIABLE if self.stage is Stage.COMMITTING else STEP_RETRIABLE):
            self.on_no_response()
        elif error in ABORTABLE and self.stage not in (Stage.IDENTIFYING, Stage.ABORTING):
            self._abort(error)
        elif error:
            self.error = self.error or error
            self._counts["transactions_failed"] += 1
            self._enter(Stage.NO_ID)
        else:
            if self.stage is Stage.ABORTING:
                self._counts["transactions_aborted"] += 1
            elif self.stage is Stage.ENDING:
                self._counts["transactions_committed"] += 1
            self._enter(self._first_with_id if self.stage is Stage.IDENTIFYING else _NEXT[self.stage])

    def on_no_response(self) -> None:
        """Retry a transaction's request after a back-off, because there was no coordinator, connection or response."""
        self._counts["transaction_steps_retried"] += 1
        self.wait_ms = self._backoff.ms(self._failures)
        self._failures += 1

    def abandon(self) -> None:
        """Abort the transaction because its offset commit has expired, unless EndTxn was already requested."""
        if self.stage in _OPEN:
            self._abort(int(ErrorCode.request_timed_out))

    def _abort(self, error: int) -> None:
        self.error = error
        self._enter(Stage.ABORTING)

    def _enter(self, stage: Stage) -> None:
        self.stage, self.wait_ms, self._failures = stage, 0.0, 0

"""A transaction that holds one offset commit: the control arm of KIP-1224, whose batches never linger.

Kafka: ``TransactionManager``, as much of it as offsets need. The protocol is the one before KIP-890's second part
(AddOffsetsToTxn up to 4, TxnOffsetCommit up to 4, EndTxn up to 4), which brokers of either kind serve; InitProducerId
up to 5.

::

                    InitProducerId       AddOffsetsToTxn      TxnOffsetCommit      EndTxn(commit)
    NO_ID ────────▶ IDENTIFYING ───────▶ ADDING ────────────▶ COMMITTING ────────▶ ENDING ───────▶ READY
                                            ▲      begin         │ an error that calls for an abort
                                            └──────────── READY ◀┴─────▶ ABORTING   EndTxn(abort)

1. Again, after a back-off: COORDINATOR_LOAD_IN_PROGRESS and CONCURRENT_TRANSACTIONS (the one before isn't quite done);
   for TxnOffsetCommit COORDINATOR_LOAD_IN_PROGRESS and UNKNOWN_TOPIC_OR_PARTITION. No answer is treated so, too: every
   step may be asked twice.
2. Again, of a coordinator that is looked for first: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE; for TxnOffsetCommit
   REQUEST_TIMED_OUT as well.
3. Aborted: what is wrong with the group or this transaction alone (``ABORTABLE``). The next one goes on with the id.
4. Fatal: all else, PRODUCER_FENCED first of all. A Kafka producer is of no use then, and an application makes another
   one of the same transactional id; so does this one: its next transaction begins with InitProducerId, which also ends
   what was left open.
5. Nothing is committed that nobody waits for any more: ``abandon`` has it aborted, unless its end was asked for before.
"""

from collections import Counter
from enum import Enum, auto
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.commits import ASKED_AGAIN, MOVED
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codes import COORDINATOR_MOVED


class Stage(Enum):
    """Where a transactional id stands; each but the first and the last is a request that is to be sent."""

    NO_ID = auto()
    IDENTIFYING = auto()
    ADDING = auto()
    COMMITTING = auto()
    ENDING = auto()
    ABORTING = auto()
    READY = auto()


class Identity(NamedTuple):
    """What InitProducerId gave."""

    producer_id: int = UNKNOWN
    epoch: int = UNKNOWN


AGAIN: frozenset[int] = COORDINATOR_MOVED | {ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions}
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
    Stage.IDENTIFYING: Stage.ADDING,
    Stage.ADDING: Stage.COMMITTING,
    Stage.COMMITTING: Stage.ENDING,
    Stage.ENDING: Stage.READY,
    Stage.ABORTING: Stage.READY,
}
_OPEN = frozenset({Stage.ADDING, Stage.COMMITTING})


class Transaction:
    """One transactional id. ``error`` is what the last transaction ended with: 0 when it was committed.

    ``identity`` is what InitProducerId gave; whoever asks sets it before ``answered``.

    ``counts``: ``transactions_committed``, ``transactions_aborted``, ``transactions_failed``,
    ``transaction_steps_retried``.
    """

    def __init__(self, backoff: Backoff, counts: Counter[str]) -> None:
        self.stage = Stage.NO_ID
        self.identity = Identity()
        self.error = 0
        self.wait_ms = 0.0
        self._backoff, self._counts = backoff, counts
        self._failures = 0

    @property
    def under_way(self) -> bool:
        """Whether a request is to be sent: the one that ``stage`` names, after ``wait_ms``."""
        return self.stage not in (Stage.NO_ID, Stage.READY)

    def begin(self) -> None:
        """Start the next transaction; none may be under way."""
        self.error = 0
        self.stage = Stage.IDENTIFYING if self.stage is Stage.NO_ID else Stage.ADDING

    def coordinator_lost(self, error: int) -> bool:
        """Whether the coordinator that answered ``error`` to the present stage has to be looked for (rule 2)."""
        return error in (MOVED if self.stage is Stage.COMMITTING else COORDINATOR_MOVED)

    def answered(self, error: int) -> None:
        """Kafka's code for the request that ``stage`` names."""
        if error in (ASKED_AGAIN if self.stage is Stage.COMMITTING else AGAIN):
            self.unanswered()
        elif error in ABORTABLE and self.stage is not Stage.ABORTING:
            self._abort(error)
        elif error:
            self._fatal(error)
        else:
            self._go_on()

    def unanswered(self) -> None:
        """No coordinator, no connection or no answer: the same again, after a back-off."""
        self._counts["transaction_steps_retried"] += 1
        self.wait_ms = self._backoff.ms(self._failures)
        self._failures += 1

    def abandon(self) -> None:
        """Nobody waits for it any more (rule 5)."""
        if self.stage in _OPEN:
            self._abort(int(ErrorCode.request_timed_out))

    def _go_on(self) -> None:
        if self.stage is Stage.ABORTING:
            self._counts["transactions_aborted"] += 1
        elif self.stage is Stage.ENDING:
            self._counts["transactions_committed"] += 1
        self._enter(_NEXT[self.stage])

    def _abort(self, error: int) -> None:
        if self.stage is Stage.IDENTIFYING:
            self._fatal(error)
            return
        self.error = error
        self._enter(Stage.ABORTING)

    def _fatal(self, error: int) -> None:
        """Rule 4."""
        self.error = self.error or error
        self._counts["transactions_failed"] += 1
        self._enter(Stage.NO_ID)

    def _enter(self, stage: Stage) -> None:
        self.stage, self.wait_ms, self._failures = stage, 0.0, 0

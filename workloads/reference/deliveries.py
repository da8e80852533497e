"""What an answer, or none, means for a batch: it has ended, or is tried again, or is split.

Kafka: ``Sender.completeBatch``, ``canRetry``, ``failBatch``. In this order:

1. No error, or DUPLICATE_SEQUENCE_NUMBER (an earlier attempt was written): delivered.
2. MESSAGE_TOO_LARGE, and more than one record: split.
3. Within ``delivery.timeout.ms`` and ``retries``, and for an error that calls for it: tried again.
4. Failed; in doubt unless every attempt that was sent was surely refused (``doubt.py``).

A batch that has ended (it expired in flight, say) stays ended; that it was written after all matters to the numbering
alone.
"""

from kio.schema.errors import ErrorCode

from aftershock.workloads.reference.delivery import Report, delivered, undelivered
from aftershock.workloads.reference.producer_rules import ProducerRules
from aftershock.workloads.reference.settings import ProducerSettings
from aftershock.workloads.rules.batch import Batch
from aftershock.workloads.rules.doubt import surely_refused
from aftershock.workloads.rules.values import UNKNOWN
from aftershock.workloads.wire import codes


class Deliveries:
    """Ends batches, each exactly once, or sends them round again."""

    def __init__(self, settings: ProducerSettings, rules: ProducerRules, report: Report) -> None:
        self._settings = settings
        self._rules = rules
        self._report = report

    def answered(
        self, batch: Batch, error: int, now_ms: float, *, base_offset: int = UNKNOWN, log_start_offset: int = UNKNOWN
    ) -> None:
        """A broker answered an attempt, with Kafka's code and what stood beside it."""
        if error and not surely_refused(error, base_offset):
            batch.in_doubt = True
        self._decide(batch, error, now_ms, base_offset, log_start_offset)

    def unanswered(self, batch: Batch, error: int, now_ms: float, *, sent: bool) -> None:
        """There will be no answer to an attempt. ``sent`` False: nor was it ever written to a connection."""
        batch.in_doubt |= sent
        self._decide(batch, error, now_ms, UNKNOWN, UNKNOWN)

    def sent_without_answer(self, batch: Batch) -> None:
        """Sent with ``acks=0``: that is all that will be known."""
        self._rules.accumulator.unmute(batch)
        self._end_delivered(batch, UNKNOWN)

    def expire(self, now_ms: float) -> None:
        """End the batches whose time is up."""
        for batch in self._rules.accumulator.unfinished.expired(now_ms):
            batch.in_doubt |= not self._rules.accumulator.withdraw(batch)
            if batch.numbers is not None and batch.numbered and self._rules.idempotence is not None:
                self._rules.idempotence.expired(batch.numbers, retried=batch.attempts.attempts > 0)
            self._end_failed(batch, ErrorCode.request_timed_out)

    def abandon(self, error: int) -> None:
        """End every batch that has not ended: nothing will be sent any more."""
        for batch in self._rules.accumulator.unfinished.all():
            batch.in_doubt |= not self._rules.accumulator.withdraw(batch)
            self._end_failed(batch, error)

    def _decide(self, batch: Batch, error: int, now_ms: float, base_offset: int, log_start_offset: int) -> None:
        self._rules.accumulator.unmute(batch)
        if not error or error == ErrorCode.duplicate_sequence_number:
            self._acked(batch, UNKNOWN if error else base_offset)
        elif batch.done:
            return
        elif error == ErrorCode.message_too_large and batch.count > 1:
            self._rules.accumulator.split(batch)
        elif self._may_retry(batch, error, now_ms, log_start_offset):
            batch.error = error
            self._rules.accumulator.retry(batch, now_ms)
        else:
            self._failed(batch, error)

    def _may_retry(self, batch: Batch, error: int, now_ms: float, log_start_offset: int) -> bool:
        if now_ms >= batch.created_ms + self._settings.delivery_timeout_ms:
            return False
        if batch.attempts.attempts >= self._settings.retries:
            return False
        if self._rules.idempotence is None or batch.numbers is None:
            return error in codes.RETRIABLE
        return self._rules.idempotence.can_retry(batch.numbers, error, log_start_offset=log_start_offset)

    def _acked(self, batch: Batch, base_offset: int) -> None:
        if self._rules.idempotence is not None and batch.numbers is not None:
            self._rules.idempotence.acked(batch.numbers)
        if not batch.done:
            self._end_delivered(batch, base_offset)

    def _failed(self, batch: Batch, error: int) -> None:
        if self._rules.idempotence is not None and batch.numbers is not None:
            refused = batch.attempts.attempts < self._settings.retries
            self._rules.idempotence.failed(batch.numbers, error, refused=refused)
        self._end_failed(batch, error)

    def _end_delivered(self, batch: Batch, base_offset: int) -> None:
        self._rules.accumulator.unfinished.finish(batch)
        self._report(delivered(batch, base_offset))

    def _end_failed(self, batch: Batch, error: int) -> None:
        self._rules.accumulator.unfinished.finish(batch)
        self._report(undelivered(batch, int(error)))

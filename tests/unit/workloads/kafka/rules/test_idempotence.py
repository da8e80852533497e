"""Sequence numbers of batches: TransactionManager's decisions, case by case."""

import pytest
from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.idempotence import (
    EPOCH_MAX,
    NOT_APPENDED,
    Idempotence,
    Numbers,
    ProducerId,
    increment,
    precedes,
    surely_refused,
)
from aftershock.workloads.kafka.rules.values import TopicPartition

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
LAST = 2**31 - 1
OUT_OF_ORDER, UNKNOWN_ID, INVALID_EPOCH, INVALID_RECORD = 45, 59, 47, 87


def started(epoch: int = 0) -> Idempotence:
    rule = Idempotence()
    rule.set_producer(1000, epoch)
    return rule


def send(rule: Idempotence, count: int = 1, tp: TopicPartition = TP) -> Numbers:
    batch = Numbers(tp, count)
    assert rule.may_drain(batch)
    rule.drained(batch)
    return batch


def settled(rule: Idempotence) -> int:
    """Return the number of epoch bumps until now."""
    rule.settle()
    return rule.counts["epoch_bumps"]


@pytest.mark.parametrize(
    ("sequence", "count", "after"), [(0, 1, 1), (LAST, 1, 0), (LAST - 4, 10, 5), (LAST - 4, 4, LAST), (-1, 1, 0)]
)
def test_sequences_wrap_to_zero(sequence: int, count: int, after: int) -> None:
    """As in DefaultRecordBatch.incrementSequence."""
    assert after == increment(sequence, count)


@pytest.mark.parametrize(
    ("left", "right", "before"), [(0, 1, True), (1, 0, False), (7, 7, False), (LAST, 0, True), (0, LAST, False)]
)
def test_order_survives_the_wrap(left: int, right: int, *, before: bool) -> None:
    """The last sequence precedes 0, unlike plain integers."""
    assert before == precedes(left, right)


def test_no_batch_is_drained_without_producer_id() -> None:
    """The sender requests one."""
    rule = Idempotence()
    assert rule.needs_id
    assert not rule.may_drain(Numbers(TP, 1))
    rule.set_producer(1000, 0)
    assert not rule.needs_id
    assert rule.may_drain(Numbers(TP, 1))


def test_sequences_count_records_by_partition() -> None:
    """Rule 1."""
    rule = started()
    numbers = [send(rule, 3), send(rule, 5), send(rule, 2, OTHER), send(rule, 1)]
    assert [0, 3, 0, 8] == [batch.base_sequence for batch in numbers]
    assert {ProducerId(1000, 0)} == {batch.producer for batch in numbers}


def test_a_batch_keeps_its_number_in_every_attempt() -> None:
    """Rule 1: otherwise the broker would write it again."""
    rule = started()
    first = send(rule, 3)
    assert rule.can_retry(first, 13)
    rule.drained(first)
    assert (0, 3) == (first.base_sequence, send(rule).base_sequence)


def test_after_an_error_one_batch_at_a_time_goes_out_in_order() -> None:
    """Rule 2: a retry waits until all earlier batches have ended."""
    rule = started()
    first, second, third = send(rule), send(rule), send(rule)
    assert [True, False, False] == [rule.may_drain(batch) for batch in (first, second, third)]
    rule.acked(first)
    assert [True, False] == [rule.may_drain(batch) for batch in (second, third)]
    rule.on_failure(second, 10, refused=False)
    assert rule.may_drain(third)


def test_new_batches_are_sent_beside_a_retry() -> None:
    """Rule 2 holds for numbered batches; a batch without number may follow the first in flight."""
    rule = started()
    send(rule)
    assert rule.may_drain(Numbers(TP, 1))


def test_responses_out_of_order_keep_the_order_of_other_batches() -> None:
    """Rule 2: a later batch acknowledged first, as by another broker, removes only itself from the batches in
    flight.
    """
    rule = started()
    first, second = send(rule), send(rule)
    rule.acked(second)
    assert rule.may_drain(first)


@pytest.mark.parametrize("error", [6, 7, 13, 19, 20, 2, 3])
def test_retriable_errors_are_retried_and_bump_nothing(error: int) -> None:
    """Rule 3: Kafka's RetriableException."""
    rule = started()
    assert rule.can_retry(send(rule), error)
    assert 0 == settled(rule)


@pytest.mark.parametrize("error", [46, INVALID_EPOCH, INVALID_RECORD, 29, 10])
def test_other_errors_are_not_retried(error: int) -> None:
    """Rule 3; nor is a duplicate (46)."""
    assert not started().can_retry(Numbers(TP, 1), error)


def test_out_of_order_is_retried_while_an_earlier_batch_may_still_come() -> None:
    """Rule 3: the second batch is accepted once the first is written."""
    rule = started()
    send(rule)
    second = send(rule)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 0 == settled(rule)


def test_out_of_order_of_the_very_next_batch_is_a_gap() -> None:
    """Rule 3: the log has lost acknowledged records; epoch + 1, and sequences from 0 in the old order."""
    rule = started()
    rule.acked(send(rule, 4))
    second, third = send(rule, 2), send(rule, 3)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 1 == settled(rule)
    assert [(ProducerId(1000, 1), 0), (ProducerId(1000, 1), 2)] == [
        (batch.producer, batch.base_sequence) for batch in (second, third)
    ]
    assert 5 == send(rule).base_sequence


def test_an_answer_to_the_old_number_bumps_no_second_time() -> None:
    """Rule 3: the third batch fails under its old number when it already has a new one; after its next drain that
    exception ends.
    """
    rule = started()
    second = send(rule)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 1 == settled(rule)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 1 == settled(rule)
    rule.drained(second)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 2 == settled(rule)


def test_an_unknown_producer_is_retried_without_a_bump_until_the_log_start_is_known() -> None:
    """Rule 3."""
    rule = started()
    first = send(rule)
    assert rule.can_retry(first, UNKNOWN_ID)
    assert 0 == settled(rule)
    assert rule.can_retry(first, UNKNOWN_ID, log_start_offset=0)
    assert 1 == settled(rule)


def test_an_unknown_producer_bumps_once_for_all_in_flight() -> None:
    """Rule 3: the second response is for a batch that already has its new number."""
    rule = started()
    first, second = send(rule), send(rule)
    assert rule.can_retry(first, UNKNOWN_ID, log_start_offset=9)
    assert 1 == settled(rule)
    assert rule.can_retry(second, UNKNOWN_ID, log_start_offset=9)
    assert 1 == settled(rule)


@pytest.mark.parametrize("error", [INVALID_RECORD, INVALID_EPOCH, 29])
def test_a_refused_batch_bumps_the_epoch_for_those_behind_it(error: int) -> None:
    """Rule 3: its sequences are a gap at which the broker would refuse later batches."""
    rule = started()
    first, second = send(rule, 2), send(rule, 3)
    rule.on_failure(first, error, refused=True)
    assert 1 == settled(rule)
    assert (ProducerId(1000, 1), 0) == (second.producer, second.base_sequence)


def test_a_batch_that_ran_out_of_retries_bumps_nothing() -> None:
    """It may have been written: reusing its numbers could make the broker drop other records as duplicates."""
    rule = started()
    rule.on_failure(send(rule), 7, refused=False)
    assert 0 == settled(rule)
    assert 1 == send(rule).base_sequence


@pytest.mark.parametrize("error", [OUT_OF_ORDER, UNKNOWN_ID])
def test_a_gap_bumps_even_without_retries_left(error: int) -> None:
    """TransactionManager.handleFailedBatch: the error itself says that records are missing."""
    rule = started()
    rule.on_failure(send(rule), error, refused=False)
    assert 1 == settled(rule)


@pytest.mark.parametrize("error", [31, 35, 90])
def test_nothing_is_drained_after_a_fatal_error(error: int) -> None:
    """Rule 3: no epoch is bumped and no id requested either."""
    rule = started()
    rule.on_failure(send(rule), error, refused=True)
    assert error == rule.fatal_error
    assert 0 == settled(rule)
    assert not rule.may_drain(Numbers(OTHER, 1))


def test_other_partitions_get_no_new_batch_until_their_old_epoch_has_ended() -> None:
    """Rule 4: batches in flight keep their numbers and may be retried; then the new epoch starts from 0."""
    rule = started()
    old = send(rule, 7, OTHER)
    rule.on_failure(send(rule), INVALID_RECORD, refused=True)
    assert 1 == settled(rule)
    assert (ProducerId(1000, 0), 0) == (old.producer, old.base_sequence)
    assert not rule.may_drain(Numbers(OTHER, 1))
    assert rule.may_drain(old)
    rule.acked(old)
    new = send(rule, 1, OTHER)
    assert (ProducerId(1000, 1), 0) == (new.producer, new.base_sequence)


def test_after_the_last_epoch_comes_a_new_id() -> None:
    """Rule 4: batches in flight are renumbered when the new id has arrived."""
    rule = started(EPOCH_MAX)
    first, second = send(rule), send(rule)
    rule.on_failure(first, INVALID_RECORD, refused=True)
    assert 1 == settled(rule)
    assert rule.needs_id
    assert not rule.may_drain(second)
    assert 1 == settled(rule)
    rule.set_producer(2000, 0)
    assert (ProducerId(2000, 0), 0) == (second.producer, second.base_sequence)
    assert rule.may_drain(second)


def test_an_expired_retry_holds_new_batches_back_until_the_others_have_ended() -> None:
    """Rule 5: then a later acknowledgement proves that it was written, and the epoch stays."""
    rule = started()
    first, second = send(rule), send(rule)
    rule.expired(first, retried=True)
    assert 0 == settled(rule)
    assert not rule.may_drain(Numbers(TP, 1))
    assert rule.may_drain(second)
    rule.acked(second)
    assert 0 == settled(rule)
    assert 2 == send(rule).base_sequence


def test_an_expired_retry_without_later_response_bumps_the_epoch() -> None:
    """Rule 5: its sequences can be neither reused nor skipped."""
    rule = started()
    rule.expired(send(rule), retried=True)
    assert 1 == settled(rule)
    new = send(rule)
    assert (ProducerId(1000, 1), 0) == (new.producer, new.base_sequence)


def test_the_batch_after_an_expired_one_proves_the_gap() -> None:
    """Rules 3 and 5: out of order there means that the expired batch is missing; elsewhere it means to wait."""
    rule = started()
    first, second, third = send(rule), send(rule), send(rule)
    rule.expired(first, retried=True)
    assert rule.can_retry(third, OUT_OF_ORDER)
    assert 0 == settled(rule)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 1 == settled(rule)
    assert [0, 1] == [second.base_sequence, third.base_sequence]
    assert rule.may_drain(second)


def test_of_two_expired_batches_the_later_one_counts() -> None:
    """Rule 5, in either order."""
    for late_first in (False, True):
        rule = started()
        first, second, third = send(rule), send(rule), send(rule)
        for batch in (second, first) if late_first else (first, second):
            rule.expired(batch, retried=True)
        assert rule.can_retry(third, OUT_OF_ORDER)
        assert 1 == settled(rule)


def test_a_batch_that_expired_in_its_first_attempt_holds_nothing_back() -> None:
    """As in Kafka (``inRetry``): the next batch simply follows it."""
    rule = started()
    rule.expired(send(rule), retried=False)
    assert 0 == settled(rule)
    assert 1 == send(rule).base_sequence


def test_a_late_answer_to_an_expired_batch_resolves_it() -> None:
    """Rule 5: it was written after all."""
    rule = started()
    first = send(rule, 5)
    send(rule, tp=OTHER)
    rule.expired(first, retried=True)
    rule.acked(first)
    assert 0 == settled(rule)
    assert 5 == send(rule).base_sequence


def test_a_late_response_of_an_older_epoch_is_ignored() -> None:
    """Otherwise it would hide the gap that the next error proves."""
    rule = started()
    old = send(rule, 5)
    rule.expired(old, retried=True)
    assert 1 == settled(rule)
    new = send(rule)
    rule.acked(old)
    assert rule.can_retry(new, OUT_OF_ORDER)
    assert 2 == settled(rule)


def test_the_parts_of_a_batch_take_its_numbers_and_its_place() -> None:
    """MESSAGE_TOO_LARGE: 3 + 2 records have the sequences that the 5 had, before the batch behind them."""
    rule = started()
    send_first = send(rule)
    whole, behind = send(rule, 5), send(rule)
    rule.acked(send_first)
    parts = rule.split(whole, [3, 2])
    assert [1, 4] == [part.base_sequence for part in parts]
    assert {whole.producer} == {part.producer for part in parts}
    assert [True, False, False] == [rule.may_drain(batch) for batch in (*parts, behind)]
    rule.acked(parts[0])
    assert [True, False] == [rule.may_drain(batch) for batch in (parts[1], behind)]


def test_sequences_continue_over_the_wrap() -> None:
    """Later acknowledgements count as later: they are no gap, and a real gap is still detected."""
    rule = started()
    rule._partition(TP).restart(rule.producer)
    rule._partition(TP).next_sequence = rule._partition(TP).acked = LAST - 1
    first, second, third = send(rule, 4), send(rule), send(rule)
    assert [LAST - 1, 2, 3] == [batch.base_sequence for batch in (first, second, third)]
    rule.acked(first)
    assert rule.can_retry(third, OUT_OF_ORDER)
    assert 0 == settled(rule)
    assert rule.can_retry(second, OUT_OF_ORDER)
    assert 1 == settled(rule)


@pytest.mark.parametrize("error", sorted(NOT_APPENDED))
def test_an_error_before_the_append_is_a_refusal(error: int) -> None:
    """Without a base offset such a response proves that the attempt was not written; with one it proves nothing."""
    assert surely_refused(error, -1)
    assert not surely_refused(error, 0)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
        ErrorCode.leader_not_available,
        9999,
    ],
)
def test_any_other_error_proves_nothing(error: int) -> None:
    """Neither an attempt that may have been appended nor one with an unknown error counts as refused."""
    assert not surely_refused(error, -1)

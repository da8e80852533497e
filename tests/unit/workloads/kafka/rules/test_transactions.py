"""One transaction for each commit: the steps, and the reaction to each error in each step."""

import random
from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.transactions import Stage, Transaction
from aftershock.workloads.kafka.rules.values import Backoff


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def transaction(counts: Counter[str]) -> Transaction:
    return Transaction(Backoff(100, 1_000, random.Random(1)), counts)  # noqa: S311  # spreads retries


def reach(transaction: Transaction, stage: Stage) -> None:
    """Continue without error until a stage; ABORTING by an error that causes it."""
    transaction.begin()
    while transaction.stage is not stage:
        if transaction.stage is Stage.COMMITTING and stage is Stage.ABORTING:
            transaction.on_response(ErrorCode.unknown_member_id)
        else:
            transaction.on_response(0)


def test_the_stages_of_two_commits(transaction: Transaction, counts: Counter[str]) -> None:
    """The first requests an id, the second has it; each ends committed."""
    seen = []
    for _ in range(2):
        transaction.begin()
        while transaction.has_request:
            seen.append(transaction.stage)
            transaction.on_response(0)
        assert 0 == transaction.error
    each = [Stage.ADDING, Stage.COMMITTING, Stage.ENDING]
    assert [Stage.IDENTIFYING, *each, *each] == seen
    assert {"transactions_committed": 2} == counts


AGAIN, LOOK, ABORT, FATAL = "again", "look for the coordinator", "abort", "fatal"
TABLE = [
    # error                                 identifying  adding  committing  ending
    (ErrorCode.coordinator_load_in_progress, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.concurrent_transactions, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.not_coordinator, LOOK, LOOK, LOOK, LOOK),
    (ErrorCode.coordinator_not_available, LOOK, LOOK, LOOK, LOOK),
    (ErrorCode.request_timed_out, FATAL, FATAL, LOOK, FATAL),
    (ErrorCode.unknown_topic_or_partition, FATAL, FATAL, AGAIN, FATAL),
    (ErrorCode.group_authorization_failed, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.unknown_member_id, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.illegal_generation, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.fenced_instance_id, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.transaction_abortable, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.invalid_producer_epoch, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.producer_fenced, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.invalid_txn_state, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.invalid_producer_id_mapping, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.transactional_id_authorization_failed, FATAL, FATAL, FATAL, FATAL),
]
STAGES = (Stage.IDENTIFYING, Stage.ADDING, Stage.COMMITTING, Stage.ENDING)


@pytest.mark.parametrize(
    ("error", "stage", "expected"),
    [(error, stage, row[number]) for error, *row in TABLE for number, stage in enumerate(STAGES)],
)
def test_reaction_to_each_error_by_stage(
    transaction: Transaction, counts: Counter[str], error: ErrorCode, stage: Stage, expected: str
) -> None:
    """Kafka's handlers, row by row: retry, coordinator look-up, abort, or end of the id."""
    reach(transaction, stage)
    is_lost = transaction.coordinator_lost(error)
    transaction.on_response(error)
    if expected in {AGAIN, LOOK}:
        assert (stage, 0, expected == LOOK) == (transaction.stage, transaction.error, is_lost)
        assert transaction.wait_ms > 0
        assert {"transaction_steps_retried": 1} == counts
    else:
        assert (Stage.ABORTING if expected == ABORT else Stage.NO_ID) == transaction.stage
        assert error == transaction.error
        assert int(expected == FATAL) == counts["transactions_failed"]


def test_an_aborted_transaction_keeps_the_error_and_the_id(transaction: Transaction, counts: Counter[str]) -> None:
    """After the abort the commit has failed for the first reason, and the next one needs no new id."""
    reach(transaction, Stage.ABORTING)
    transaction.on_response(ErrorCode.concurrent_transactions)
    transaction.on_response(0)
    assert (Stage.READY, ErrorCode.unknown_member_id) == (transaction.stage, transaction.error)
    assert 1 == counts["transactions_aborted"]
    transaction.begin()
    assert (Stage.ADDING, 0) == (transaction.stage, transaction.error)


def test_an_abort_that_fails_ends_the_id(transaction: Transaction) -> None:
    """An error that would cause an abort can't during an abort: the next transaction requests a new id."""
    reach(transaction, Stage.ABORTING)
    transaction.on_response(ErrorCode.transaction_abortable)
    assert (Stage.NO_ID, ErrorCode.unknown_member_id) == (transaction.stage, transaction.error)
    transaction.begin()
    assert Stage.IDENTIFYING is transaction.stage


@pytest.mark.parametrize(
    ("stage", "then"),
    [
        (Stage.IDENTIFYING, Stage.IDENTIFYING),
        (Stage.ADDING, Stage.ABORTING),
        (Stage.COMMITTING, Stage.ABORTING),
        (Stage.ENDING, Stage.ENDING),
        (Stage.ABORTING, Stage.ABORTING),
    ],
)
def test_an_expired_transaction_is_aborted_before_its_end_request(
    transaction: Transaction, stage: Stage, then: Stage
) -> None:
    """Once its end was requested it may be committed, and must not be aborted any more."""
    reach(transaction, stage)
    transaction.abandon()
    assert then is transaction.stage


def test_retries_of_a_step_back_off_and_a_new_step_does_not(transaction: Transaction) -> None:
    """Doubling from 100 ms within 20 %; the next step is sent at once."""
    reach(transaction, Stage.ADDING)
    for expected in (100, 200, 400):
        transaction.on_no_response()
        assert 0.8 * expected <= transaction.wait_ms <= 1.2 * expected
    transaction.on_response(0)
    assert (Stage.COMMITTING, 0) == (transaction.stage, transaction.wait_ms)

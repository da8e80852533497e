"""The states of a transactional producer, and the reaction to each error of each request."""

import random

import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError
from aftershock.workloads.kafka.rules.idempotence import Numbers, ProducerId
from aftershock.workloads.kafka.rules.transaction_manager import GroupOffsets, State, Step, TransactionManager
from aftershock.workloads.kafka.rules.values import Backoff, TopicPartition

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
NOBODY = ProducerId()


def manager(*, version_2: bool = False) -> TransactionManager:
    made = TransactionManager(Backoff(100, 1_000, random.Random(1)))  # noqa: S311  # spreads retries
    made.next_version_2 = version_2
    made.on_init(0, ProducerId(7, 0))
    return made


def take(of: TransactionManager, *, incomplete: bool = False) -> Step | None:
    """Return the next step, as if it was sent."""
    step = of.next_step(incomplete=incomplete)
    of.in_flight = step
    return step


def send(of: TransactionManager, tp: TopicPartition = ONE, count: int = 1) -> Numbers:
    """Number a batch, which must be allowed."""
    batch = Numbers(tp, count)
    assert of.may_drain(batch)
    of.drained(batch)
    return batch


def opened(*, version_2: bool = False) -> TransactionManager:
    """Return a manager in a transaction whose partition ONE is added."""
    of = manager(version_2=version_2)
    of.begin()
    of.add_partitions([ONE])
    if not version_2:
        assert Step.ADD_PARTITIONS is take(of)
        of.on_added({ONE: 0})
    return of


def test_version_1_adds_partitions_before_their_batches() -> None:
    of = manager()
    of.begin()
    of.add_partitions([ONE])
    assert not of.may_drain(Numbers(ONE, 1))
    assert Step.ADD_PARTITIONS is take(of)
    assert not of.may_drain(Numbers(ONE, 1)), "no batch is sent while a transactional request is in flight"
    of.on_added({ONE: 0})
    of.acked(send(of))
    of.begin_commit()
    assert Step.END is take(of)
    of.on_ended(0, NOBODY, commit=True)
    assert (State.READY, True, ProducerId(7, 0)) == (of.state, of.committed, of.producer)
    of.begin()
    assert not of.may_drain(Numbers(ONE, 1)), "the next transaction adds the partition again"


def test_version_1_continues_the_sequences_and_version_2_restarts_them() -> None:
    """With version 1 the epoch stays; EndTxn 5 returns the epoch of the next transaction."""
    for version_2, expected in ((False, (ProducerId(7, 0), 3)), (True, (ProducerId(7, 1), 0))):
        of = opened(version_2=version_2)
        of.acked(send(of, count=3))
        of.begin_commit()
        assert Step.END is take(of)
        of.on_ended(0, ProducerId(7, 1) if version_2 else NOBODY, commit=True)
        of.begin()
        of.add_partitions([ONE])
        if not version_2:
            take(of)
            of.on_added({ONE: 0})
        batch = send(of)
        assert expected == (batch.producer, batch.base_sequence)


def test_version_2_needs_no_request_to_add_a_partition() -> None:
    of = opened(version_2=True)
    assert take(of) is None
    assert of.may_drain(Numbers(ONE, 1))
    assert not of.may_drain(Numbers(TWO, 1)), "a partition without batches is not part of the transaction"


def test_the_end_waits_for_all_batches() -> None:
    of = opened()
    of.begin_commit()
    assert take(of, incomplete=True) is None
    assert Step.END is take(of)


def test_a_transaction_without_records_sends_no_end() -> None:
    of = manager()
    of.begin()
    of.begin_commit()
    assert take(of) is None
    assert (State.READY, True) == (of.state, of.committed)


def test_a_change_to_version_2_begins_with_a_new_epoch() -> None:
    """``clientSideEpochBumpRequired``: EndTxn has still version 1, then InitProducerId raises the epoch."""
    of = opened()
    of.begin_commit()
    of.next_version_2 = True
    assert Step.END is take(of)
    assert not of.version_2
    of.on_ended(0, NOBODY, commit=True)
    assert of.needs_id
    assert Step.INIT_PRODUCER_ID is take(of)
    of.on_init(0, ProducerId(7, 1))
    assert (State.READY, True) == (of.state, of.version_2)


AGAIN, ABORT, FATAL = "again", "abort", "fatal"
TABLE = [
    # error                                   init   add    end    batch
    (ErrorCode.coordinator_load_in_progress, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.concurrent_transactions, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.not_coordinator, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.coordinator_not_available, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.unknown_topic_or_partition, AGAIN, AGAIN, AGAIN, AGAIN),
    (ErrorCode.transaction_abortable, ABORT, ABORT, ABORT, ABORT),
    (ErrorCode.unknown_producer_id, FATAL, ABORT, ABORT, AGAIN),
    (ErrorCode.invalid_producer_id_mapping, FATAL, ABORT, ABORT, ABORT),
    (ErrorCode.topic_authorization_failed, FATAL, ABORT, FATAL, ABORT),
    (ErrorCode.invalid_txn_state, FATAL, FATAL, FATAL, ABORT),
    (ErrorCode.invalid_producer_epoch, FATAL, FATAL, FATAL, ABORT),
    (ErrorCode.producer_fenced, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.transactional_id_authorization_failed, FATAL, FATAL, FATAL, FATAL),
    (ErrorCode.unknown_server_error, FATAL, ABORT, FATAL, ABORT),
]


def reaction(of: TransactionManager, step: Step) -> str:
    if of.state is State.FATAL_ERROR:
        return FATAL
    if of.state is State.ABORTABLE_ERROR:
        return ABORT
    assert step is of.next_step(incomplete=False)
    assert of.wait_ms > 0
    return AGAIN


@pytest.mark.parametrize(("error", "init", "add", "end", "batch"), TABLE, ids=[row[0].name for row in TABLE])
def test_errors(error: ErrorCode, init: str, add: str, end: str, batch: str) -> None:
    of = TransactionManager(Backoff(100, 1_000, random.Random(1)))  # noqa: S311
    take(of)
    of.on_init(error, NOBODY)
    assert init == reaction(of, Step.INIT_PRODUCER_ID)

    of = manager()
    of.begin()
    of.add_partitions([ONE])
    take(of)
    of.on_added({ONE: error})
    assert add == reaction(of, Step.ADD_PARTITIONS)

    of = opened()
    of.begin_commit()
    take(of)
    of.on_ended(error, NOBODY, commit=True)
    assert end == reaction(of, Step.END)

    of = opened()
    failed = send(of)
    if of.can_retry(failed, error):
        assert batch == AGAIN
    else:
        of.on_failure(failed, error, refused=True)
        assert batch == reaction(of, Step.END)


def test_fencing_has_one_name() -> None:
    of = opened()
    of.begin_commit()
    take(of)
    of.on_ended(ErrorCode.invalid_producer_epoch, NOBODY, commit=True)
    assert ErrorCode.producer_fenced == of.fatal_error


def test_an_abort_that_fails_is_fatal() -> None:
    of = opened()
    of.begin_abort()
    take(of)
    of.on_ended(ErrorCode.transaction_abortable, NOBODY, commit=False)
    assert of.state is State.FATAL_ERROR


@pytest.mark.parametrize("version_2", [False, True])
def test_after_a_failed_batch_only_an_abort_is_possible(*, version_2: bool) -> None:
    """Then version 1 requests a new epoch, because the batch may arrive late; EndTxn of version 2 raises the epoch."""
    of = opened(version_2=version_2)
    of.on_failure(send(of), ErrorCode.message_too_large, refused=True)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        of.begin_commit()
    assert of.drops_unsent
    of.begin_abort()
    assert Step.END is take(of)
    of.on_ended(0, ProducerId(7, 1) if version_2 else NOBODY, commit=False)
    assert (of.needs_id, of.committed) == (not version_2, False)
    if not version_2:
        take(of)
        of.on_init(0, ProducerId(7, 1))
        assert 1 == of.counts["epoch_bumps"]
    of.begin()


def test_an_expired_batch_makes_the_transaction_abortable() -> None:
    """Both at once and, after a retry, when its partition is settled."""
    of = opened()
    of.expired(send(of), retried=True)
    assert of.state is State.ABORTABLE_ERROR
    of.begin_abort()
    take(of)
    of.on_ended(0, NOBODY, commit=False)
    assert of.needs_id
    of.settle()
    assert of.needs_id


def test_batches_behind_a_refused_batch_close_the_gap() -> None:
    """``adjustSequencesDueToFailedBatch``; a batch that is not next is retried until it is."""
    of = opened()
    first, second, third = send(of, count=2), send(of), send(of)
    assert of.can_retry(second, ErrorCode.out_of_order_sequence_number)
    of.on_failure(first, ErrorCode.message_too_large, refused=True)
    assert [0, 1] == [second.base_sequence, third.base_sequence]
    of.acked(second)
    assert not of.can_retry(Numbers(ONE, 1, of.producer, 1), ErrorCode.out_of_order_sequence_number)


def test_an_abort_after_the_commit_was_asked_for_breaks_the_rules() -> None:
    of = opened()
    of.begin_commit()
    with pytest.raises(ClientError, match="COMMITTING"):
        of.begin_abort()
    assert Step.END is take(of)
    of.begin_abort(after_commit=True)
    of.on_ended(0, NOBODY, commit=True)
    assert of.committed, "the response answers the commit that was sent"


def test_states_forbid_calls() -> None:
    of = manager()
    with pytest.raises(ClientError, match="READY"):
        of.begin_commit()
    of.begin()
    with pytest.raises(ClientError, match="IN_TRANSACTION"):
        of.begin()


def with_offsets(*, version_2: bool) -> TransactionManager:
    """Return a manager in a transaction that has offsets to commit, and no records."""
    of = manager(version_2=version_2)
    of.begin()
    of.send_offsets(GroupOffsets("g", {ONE: (5, 1), TWO: (7, -1)}, "m", 3))
    return of


def test_version_1_adds_the_group_before_its_offsets() -> None:
    of = with_offsets(version_2=False)
    assert Step.ADD_OFFSETS is take(of)
    of.on_offsets_added(0)
    assert Step.COMMIT_OFFSETS is take(of)
    of.on_offsets_committed({ONE: 0, TWO: 0})
    assert of.offsets is None
    of.begin_commit()
    assert Step.END is take(of), "a transaction of offsets alone has an end"


def test_version_2_sends_the_offsets_alone() -> None:
    of = with_offsets(version_2=True)
    assert Step.COMMIT_OFFSETS is take(of)
    of.on_offsets_committed({ONE: 0, TWO: 0})
    of.begin_commit()
    assert Step.END is take(of)


def test_a_commit_waits_for_the_offsets() -> None:
    of = with_offsets(version_2=True)
    of.begin_commit()
    assert Step.COMMIT_OFFSETS is take(of)
    of.on_offsets_committed({ONE: 0, TWO: 0})
    assert Step.END is take(of)


def test_no_offsets_are_none() -> None:
    of = manager()
    of.begin()
    of.send_offsets(GroupOffsets("g", {}))
    of.begin_commit()
    assert take(of) is None
    assert State.READY is of.state


@pytest.mark.parametrize("answer", [{ONE: 0}, {ONE: 0, TWO: int(ErrorCode.coordinator_load_in_progress)}], ids=str)
def test_only_what_is_left_is_sent_again(answer: dict[TopicPartition, int]) -> None:
    """After a retriable error of one partition, or if the response lacks it."""
    of = with_offsets(version_2=True)
    take(of)
    of.on_offsets_committed(answer)
    assert of.offsets is not None
    assert {TWO: (7, -1)} == of.offsets.offsets
    assert ("m", 3) == (of.offsets.member_id, of.offsets.generation)
    assert Step.COMMIT_OFFSETS is take(of)
    assert (of.wait_ms > 0) == (TWO in answer)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.group_authorization_failed,
        ErrorCode.transaction_abortable,
    ],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("version_2", [False, True])
def test_a_refused_member_must_abort(code: ErrorCode, version_2: bool) -> None:
    """An error of the group is no reason for a new epoch, and the next transaction needs no new id."""
    of = with_offsets(version_2=version_2)
    if not version_2:
        take(of)
        of.on_offsets_added(0)
    take(of)
    of.on_offsets_committed({ONE: int(ErrorCode.coordinator_load_in_progress), TWO: int(code)})
    assert (State.ABORTABLE_ERROR, int(code)) == (of.state, of.error)
    with pytest.raises(BrokerError):
        of.begin_commit()
    with pytest.raises(BrokerError):
        of.send_offsets(GroupOffsets("g", {ONE: (5, -1)}))
    of.begin_abort()
    assert Step.END is take(of)
    of.on_ended(0, ProducerId(7, 1) if version_2 else NOBODY, commit=False)
    assert State.READY is of.state
    of.begin()
    of.begin_commit()
    assert take(of) is None, "nothing of the aborted transaction is left"


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.group_authorization_failed, State.ABORTABLE_ERROR),
        (ErrorCode.unknown_producer_id, State.ABORTABLE_ERROR),
        (ErrorCode.transaction_abortable, State.ABORTABLE_ERROR),
        (ErrorCode.concurrent_transactions, State.IN_TRANSACTION),
        (ErrorCode.not_coordinator, State.IN_TRANSACTION),
        (ErrorCode.invalid_producer_id_mapping, State.FATAL_ERROR),
        (ErrorCode.invalid_txn_state, State.FATAL_ERROR),
        (ErrorCode.producer_fenced, State.FATAL_ERROR),
        (ErrorCode.transactional_id_authorization_failed, State.FATAL_ERROR),
    ],
    ids=str,
)
def test_errors_of_adding_the_group(code: ErrorCode, state: State) -> None:
    """As ``AddOffsetsToTxnHandler`` of Kafka 4.3.1, where an unknown mapping is fatal."""
    of = with_offsets(version_2=False)
    take(of)
    of.on_offsets_added(int(code))
    assert state is of.state
    assert (Step.ADD_OFFSETS if state is State.IN_TRANSACTION else None) is take(of)


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch], ids=str)
def test_offsets_of_a_fenced_producer_end_it(code: ErrorCode) -> None:
    of = with_offsets(version_2=True)
    take(of)
    of.on_offsets_committed({ONE: int(code), TWO: int(code)})
    assert (State.FATAL_ERROR, int(ErrorCode.producer_fenced)) == (of.state, of.error)


def test_which_coordinator_is_lost() -> None:
    """REQUEST_TIMED_OUT of a group's coordinator is a reason to find it again, not that of a transaction's."""
    timed_out, moved = int(ErrorCode.request_timed_out), int(ErrorCode.not_coordinator)
    assert TransactionManager.coordinator_lost(Step.COMMIT_OFFSETS, timed_out)
    assert not TransactionManager.coordinator_lost(Step.ADD_OFFSETS, timed_out)
    for step in Step:
        assert TransactionManager.coordinator_lost(step, moved)

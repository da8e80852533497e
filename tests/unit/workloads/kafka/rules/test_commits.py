"""Commits of one target and of several: order, errors, superseding, deadlines, doubt. KIP-1224's load."""

import random
from math import inf

import pytest
from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.commits import COMMIT_MOVED, COMMIT_RETRIABLE, Commits, Outcome, Target
from aftershock.workloads.kafka.rules.values import Backoff

TARGET = Target("g", "t", 0)
BROKER = 7
TIMEOUT_MS = 1_000.0


@pytest.fixture
def commits() -> Commits:
    return Commits(delivery_timeout_ms=TIMEOUT_MS, backoff=Backoff(100, 1_000, random.Random(1)))  # noqa: S311  # spreads retries


def attempt(commits: Commits, error: int | None, now_ms: float = 0, target: Target = TARGET) -> list[Outcome]:
    """Send one request and answer it with ``error``, or not at all (None)."""
    assert commits.wait_ms(target, now_ms) == 0
    commits.begin(target)
    commits.sent(target, BROKER)
    if error is not None:
        return commits.on_response(target, error, now_ms)
    commits.on_no_response(target, now_ms)
    return []


def test_an_acknowledged_commit_has_coordinator_and_attempts(commits: Commits) -> None:
    """Offered, sent, answered: one outcome with its token, and no request is left."""
    commits.offer(TARGET, 5, token=3, now_ms=0)
    assert commits.begin(TARGET) == 5
    commits.sent(TARGET, BROKER)
    assert [Outcome(3, 0, in_doubt=False, broker_id=BROKER, attempts=1)] == commits.on_response(TARGET, 0, 10)
    assert inf == commits.wait_ms(TARGET, 10)
    assert {"commits_sent": 1} == +commits.counts


@pytest.mark.parametrize(
    ("error", "again", "looked_for"),
    [
        (ErrorCode.coordinator_load_in_progress, True, False),
        (ErrorCode.unknown_topic_or_partition, True, False),
        (ErrorCode.coordinator_not_available, True, True),
        (ErrorCode.not_coordinator, True, True),
        (ErrorCode.request_timed_out, True, True),
        (ErrorCode.offset_metadata_too_large, False, False),
        (ErrorCode.illegal_generation, False, False),
        (ErrorCode.unknown_member_id, False, False),
        (ErrorCode.rebalance_in_progress, False, False),
        (ErrorCode.invalid_commit_offset_size, False, False),
        (ErrorCode.topic_authorization_failed, False, False),
        (ErrorCode.group_authorization_failed, False, False),
        (ErrorCode.fenced_instance_id, False, False),
        (ErrorCode.unknown_server_error, False, False),
        (ErrorCode.network_exception, False, False),
    ],
)
def test_reaction_to_each_error(commits: Commits, error: ErrorCode, again: bool, looked_for: bool) -> None:
    """Kafka's table, row by row: retried or final, and whether the coordinator is looked up."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    ended = attempt(commits, error)
    assert ([] if again else [error]) == [outcome.error for outcome in ended]
    assert again is (0 < commits.wait_ms(TARGET, 0) < inf)
    assert (again, looked_for) == (error in COMMIT_RETRIABLE, error in COMMIT_MOVED)


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [
        (ErrorCode.unknown_topic_or_partition, False),
        (ErrorCode.coordinator_load_in_progress, False),
        (ErrorCode.group_authorization_failed, False),
        (ErrorCode.not_coordinator, True),
        (ErrorCode.coordinator_not_available, True),
        (ErrorCode.request_timed_out, True),
        (ErrorCode.unknown_server_error, True),
        (None, True),
    ],
)
def test_errors_that_leave_a_commit_in_doubt(commits: Commits, error: ErrorCode | None, in_doubt: bool) -> None:
    """A coordinator that is too slow or loses its partition may have stored a refused commit."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    ended = attempt(commits, error) or commits.expire(TIMEOUT_MS)
    assert [in_doubt] == [outcome.in_doubt for outcome in ended]


def test_doubt_is_not_lifted_by_a_later_refusal(commits: Commits) -> None:
    """The first attempt was never answered, the second had a final error: the first may still have been written."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    attempt(commits, None)
    wait_ms = commits.wait_ms(TARGET, 0)
    (outcome,) = attempt(commits, ErrorCode.group_authorization_failed, wait_ms)
    assert (True, 2) == (outcome.in_doubt, outcome.attempts)


def test_an_unsent_commit_is_not_in_doubt(commits: Commits) -> None:
    """No coordinator was available until the deadline: certainly not written, in no request."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    commits.begin(TARGET)
    commits.on_no_response(TARGET, 0)
    assert [Outcome(0, ErrorCode.request_timed_out, in_doubt=False, broker_id=-1, attempts=0)] == commits.expire(1_000)
    assert {} == +commits.counts


def test_a_failed_look_up_does_not_lift_doubt(commits: Commits) -> None:
    """The attempt whose look-up failed was not sent; the one before it was."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    attempt(commits, None)
    commits.begin(TARGET)
    (outcome,) = commits.on_response(TARGET, ErrorCode.group_authorization_failed, 500)
    assert outcome.in_doubt


def test_one_request_per_target_in_order(commits: Commits) -> None:
    """While a request is in flight, no other commit of its target is sent; then each is sent singly, in order."""
    for number in range(3):
        commits.offer(TARGET, number, token=number, now_ms=0)
    sent = []
    for number in range(3):
        sent.append(commits.begin(TARGET))
        commits.sent(TARGET, BROKER)
        assert inf == commits.wait_ms(TARGET, 0)
        assert [number] == [outcome.token for outcome in commits.on_response(TARGET, 0, 0)]
    assert [0, 1, 2] == sent
    assert {"commits_sent": 3, "commits_queued_behind": 2} == +commits.counts


def test_targets_do_not_wait_for_each_other(commits: Commits) -> None:
    """Another partition of the group, and another group, are sent while a request is in flight."""
    others = [Target("g", "t", 1), Target("h", "t", 0)]
    for target in (TARGET, *others):
        commits.offer(target, 0, token=0, now_ms=0)
    commits.begin(TARGET)
    assert [0, 0] == [commits.wait_ms(target, 0) for target in others]


def test_a_failed_commit_is_superseded_by_the_newest(commits: Commits) -> None:
    """After a retriable error the newest position is sent in place of all, and all are acknowledged with it."""
    for number in range(4):
        commits.offer(TARGET, number, token=number, now_ms=0)
    attempt(commits, ErrorCode.not_coordinator)
    wait_ms = commits.wait_ms(TARGET, 0)
    assert commits.begin(TARGET) == 3
    commits.sent(TARGET, BROKER + 1)
    ended = commits.on_response(TARGET, 0, wait_ms)
    assert [(0, 0, 2), (1, 0, 1), (2, 0, 1), (3, 0, 1)] == [(one.token, one.error, one.attempts) for one in ended]
    assert {BROKER + 1} == {one.broker_id for one in ended}
    expected = {"commits_sent": 2, "commits_retried": 1, "commits_superseded": 3, "commits_queued_behind": 3}
    assert expected == +commits.counts


def test_a_failed_commit_without_newer_one_is_retried(commits: Commits) -> None:
    """A commit that is offered while the retry is in flight waits for it."""
    commits.offer(TARGET, 4, token=0, now_ms=0)
    attempt(commits, ErrorCode.coordinator_load_in_progress)
    wait_ms = commits.wait_ms(TARGET, 0)
    assert commits.begin(TARGET) == 4
    commits.sent(TARGET, BROKER)
    commits.offer(TARGET, 5, token=1, now_ms=wait_ms)
    assert inf == commits.wait_ms(TARGET, wait_ms)
    assert [0] == [outcome.token for outcome in commits.on_response(TARGET, 0, wait_ms)]
    assert commits.begin(TARGET) == 5
    assert 0 == commits.counts["commits_superseded"]


def test_newer_means_offered_later_not_larger(commits: Commits) -> None:
    """An application may go back: its last commit counts."""
    commits.offer(TARGET, 9, token=0, now_ms=0)
    commits.offer(TARGET, 2, token=1, now_ms=0)
    attempt(commits, ErrorCode.not_coordinator)
    assert commits.begin(TARGET) == 2


def test_retries_back_off_until_one_succeeds(commits: Commits) -> None:
    """100 ms doubled each time within 20 %, then from 100 ms again after a success."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    now_ms, waits = 0.0, []
    for _ in range(3):
        attempt(commits, ErrorCode.not_coordinator, now_ms)
        waits.append(commits.wait_ms(TARGET, now_ms))
        now_ms += waits[-1]
    attempt(commits, 0, now_ms)
    commits.offer(TARGET, 1, token=1, now_ms=now_ms)
    attempt(commits, ErrorCode.not_coordinator, now_ms)
    waits.append(commits.wait_ms(TARGET, now_ms))
    for wait_ms, expected in zip(waits, (100, 200, 400, 100), strict=True):
        assert 0.8 * expected <= wait_ms <= 1.2 * expected


def test_a_deadline_counts_from_the_offer(commits: Commits) -> None:
    """Commits past the deadline end, whether they wait, are in flight or are due again; the others stay."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    commits.offer(TARGET, 1, token=1, now_ms=10)
    commits.begin(TARGET)
    commits.sent(TARGET, BROKER)
    assert TIMEOUT_MS == commits.next_deadline_ms
    assert [] == commits.expire(TIMEOUT_MS - 1)
    assert [(0, True)] == [(one.token, one.in_doubt) for one in commits.expire(TIMEOUT_MS)]
    assert [(1, False)] == [(one.token, one.in_doubt) for one in commits.expire(TIMEOUT_MS + 10)]
    assert inf == commits.next_deadline_ms


def test_an_expired_request_keeps_the_turn_until_it_is_answered(commits: Commits) -> None:
    """It may still be written: later commits wait, and its late answer gives no outcome."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    commits.begin(TARGET)
    commits.sent(TARGET, BROKER)
    assert commits.wanted(TARGET)
    commits.expire(TIMEOUT_MS)
    assert not commits.wanted(TARGET)
    commits.offer(TARGET, 1, token=1, now_ms=TIMEOUT_MS)
    assert inf == commits.wait_ms(TARGET, TIMEOUT_MS)
    assert [] == commits.on_response(TARGET, 0, TIMEOUT_MS + 5)
    assert commits.begin(TARGET) == 1


def test_an_expired_commit_is_not_sent_again(commits: Commits) -> None:
    """Its retry was due, but the deadline came first."""
    commits.offer(TARGET, 0, token=0, now_ms=0)
    attempt(commits, ErrorCode.not_coordinator)
    commits.expire(TIMEOUT_MS)
    assert inf == commits.wait_ms(TARGET, TIMEOUT_MS)


def test_abandoning_ends_every_open_commit(commits: Commits) -> None:
    """In doubt if it was sent, failed if not."""
    for number in range(3):
        commits.offer(TARGET, number, token=number, now_ms=0)
    attempt(commits, 0)
    commits.begin(TARGET)
    commits.sent(TARGET, BROKER)
    assert [(1, True), (2, False)] == [(one.token, one.in_doubt) for one in commits.abandon()]
    assert [] == commits.abandon()

"""All positions of a consumer: partitions to fetch, to look up and to validate."""

from math import inf

import pytest

from aftershock.workloads.kafka.rules.subscription_state import (
    EndOffset,
    FetchPosition,
    ResetPolicy,
    State,
    SubscriptionState,
    Truncation,
    is_retried,
)
from aftershock.workloads.kafka.rules.values import Leader, TopicPartition

A, B, C, STRANGER = (TopicPartition("orders", index) for index in range(4))
OLD, NEW = Leader(1, 5), Leader(2, 6)


def positions(policy: ResetPolicy = "latest", offset: int = 100) -> SubscriptionState:
    """Partitions A, B and C are fetched at ``offset``, read from epoch 5."""
    them = SubscriptionState(policy)
    them.assign([A, B, C])
    for tp in (A, B, C):
        them.seek(tp, FetchPosition(offset - 1, leader=OLD))
        them.advance(tp, offset, 5)
    return them


def test_an_assignment_keeps_existing_positions() -> None:
    """New partitions start anew, removed ones are forgotten."""
    them = positions()
    them.assign([STRANGER, A])
    assert [STRANGER, A] == list(them)
    assert (2, True, False) == (len(them), A in them, B in them)
    assert ([STRANGER], [A]) == (them.initializing(), them.fetchable())
    them.assign([B])
    assert [B] == them.initializing()


def test_a_failed_partition_goes_to_the_end() -> None:
    """The others keep their order; a partition that isn't assigned is not added."""
    them = positions()
    them.move_to_end(A)
    them.move_to_end(STRANGER)
    assert [B, C, A] == them.fetchable()


def test_a_partition_with_pending_revocation_is_idle() -> None:
    """Neither fetched nor returned nor committed: its returned records are committed already. Assigned again it
    starts anew.
    """
    them = positions()
    them.revoking([B, STRANGER])
    assert [A, C] == them.fetchable()
    assert (None, False) == (them.valid_position(B), them.is_current(B, 100))
    assert FetchPosition(100, 5, OLD) == them.position(B)
    them.assign([A, C])
    them.assign([A, B, C])
    assert [B] == them.initializing()


def test_unassigned_partitions_are_ignored() -> None:
    """A rebalance may take a partition while its response is in flight."""
    them = positions()
    them.seek(STRANGER, FetchPosition(1))
    them.advance(STRANGER, 1, 1)
    them.reset(STRANGER)
    them.hold([STRANGER], 1)
    them.skip_validation([STRANGER])
    assert not them.apply_lookup(STRANGER, "latest", 1, OLD)
    assert not them.follow_leader(STRANGER, NEW)
    assert them.apply_validation(STRANGER, FetchPosition(1), EndOffset(1, 0)) is None
    assert (None, None, None) == (them.state(STRANGER), them.position(STRANGER), them.valid_position(STRANGER))
    assert [A, B, C] == list(them)
    assert {} == them.counts


@pytest.mark.parametrize(
    ("offset", "state", "wanted"),
    [(100, State.FETCHING, True), (99, State.FETCHING, False), (100, State.AWAIT_VALIDATION, False)],
)
def test_fetch_responses_for_the_current_position_are_used(offset: int, state: State, *, wanted: bool) -> None:
    """While it is valid; any other response is dropped, errors included."""
    them = positions()
    if state is State.AWAIT_VALIDATION:
        them.follow_leader(A, NEW)
    assert wanted == them.is_current(A, offset)


def test_the_wait_ends_with_the_next_retry() -> None:
    """Requests in flight have no end, and past retries are not waited for."""
    them = positions()
    assert inf == them.held_ms(0)
    them.hold([A], inf)
    assert inf == them.held_ms(0)
    them.hold([B], 50)
    them.hold([C], 30)
    assert [30, 20, 1, inf] == [them.held_ms(0), them.held_ms(10), them.held_ms(49), them.held_ms(50)]


# ---- reset


def test_without_committed_offsets_the_policy_decides() -> None:
    """A partition that is still INITIALIZING may be reset by the policy, and the response gives its position."""
    them = SubscriptionState("earliest")
    them.assign([A, B])
    them.seek(A, FetchPosition(50, leader=OLD))
    assert [B] == them.initializing()
    them.reset(B)
    assert {B: "earliest"} == them.to_reset(0)
    assert them.apply_lookup(B, "earliest", 3, OLD)
    assert FetchPosition(3, leader=OLD) == them.valid_position(B)
    assert {"position_resets": 1} == them.counts


def test_only_the_response_to_the_current_reset_is_used() -> None:
    """A response for the other end of the log, or after a seek, is dropped."""
    them = positions()
    them.reset(A, "earliest")
    assert not them.apply_lookup(A, "latest", 900, OLD)
    them.seek(A, FetchPosition(42, leader=OLD))
    assert not them.apply_lookup(A, "earliest", 0, OLD)
    assert FetchPosition(42, leader=OLD) == them.position(A)


def test_an_offset_from_the_leader_is_not_validated() -> None:
    """ListOffsets gives no epoch to compare: fetching starts at once, although the leader is new."""
    them = positions()
    them.reset(A)
    assert them.apply_lookup(A, "latest", 900, NEW)
    assert FetchPosition(900, leader=NEW) == them.valid_position(A)


# ---- validation


def test_new_metadata_requires_validation_of_moved_partitions() -> None:
    """Only partitions with another leader or epoch; the others are still fetched."""
    them = positions()
    assert [B] == them.follow({A: OLD, B: NEW, C: Leader()}.__getitem__)
    assert [A, C] == them.fetchable()
    assert {B: FetchPosition(100, 5, NEW)} == them.to_validate(0)
    assert {"position_validations": 1} == them.counts


def test_a_committed_offset_with_its_epoch_is_validated_first() -> None:
    """The group may have read a log that has been truncated since."""
    them = SubscriptionState("latest")
    them.assign([A])
    them.seek(A, FetchPosition(70, 4, OLD))
    assert ([], {A: FetchPosition(70, 4, OLD)}) == (them.fetchable(), them.to_validate(0))
    assert {"position_validations": 1} == them.counts


@pytest.mark.parametrize(
    ("policy", "end", "counts"),
    [
        ("latest", EndOffset(5, 100), {}),
        ("latest", EndOffset(5, 60), {"truncations_detected": 1}),
        ("latest", EndOffset(-1, -1), {"truncations_detected": 1, "position_resets": 1}),
        ("none", EndOffset(5, 60), {"truncations_detected": 1}),
        ("none", EndOffset(-1, -1), {"truncations_detected": 1}),
    ],
)
def test_a_truncation_is_returned_and_counted(policy: ResetPolicy, end: EndOffset, counts: dict[str, int]) -> None:
    """Valid: nothing. Truncated: the divergence, whether the position is set back, and a reset only if the policy
    has to decide.
    """
    them = positions(policy)
    them.follow_leader(A, NEW)
    asked = FetchPosition(100, 5, NEW)
    found = them.apply_validation(A, asked, end)
    diverged = None if end.undefined else end
    assert (Truncation(asked, diverged, repaired=policy != "none") if counts else None) == found
    assert {"position_validations": 1} | counts == them.counts


def test_a_position_without_validation_api_is_accepted() -> None:
    """If the broker has no usable OffsetsForLeaderEpoch."""
    them = positions()
    them.follow_leader(A, NEW)
    them.skip_validation([A])
    assert FetchPosition(100, 5, NEW) == them.valid_position(A)


# ---- waiting


def test_a_request_in_flight_is_not_repeated() -> None:
    """Until its retry time, and not a moment longer; a moved leader gets a request at once."""
    them = positions()
    them.reset(A)
    them.follow_leader(B, NEW)
    them.hold([A, B], 500)
    assert ({}, {}) == (them.to_reset(499), them.to_validate(499))
    assert ([A], [B]) == (list(them.to_reset(500)), list(them.to_validate(500)))
    them.hold([A, B], 30_000)
    them.follow_leader(B, Leader(3, 7))
    assert ([], [B]) == (list(them.to_reset(501)), list(them.to_validate(501)))


@pytest.mark.parametrize("error", [6, 9, 56, 78, 5, 74, 75, 3, 999])
def test_lookups_are_tried_again(error: int) -> None:
    """Kafka's list, OFFSET_NOT_AVAILABLE of a new leader among them, and unknown errors."""
    assert is_retried(error)


def test_authorization_is_not_tried_again() -> None:
    """TOPIC_AUTHORIZATION_FAILED is raised to the application."""
    assert not is_retried(29)

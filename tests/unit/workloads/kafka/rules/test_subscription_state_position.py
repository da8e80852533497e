"""One partition's position: its states, and the result of validation by OffsetsForLeaderEpoch."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.subscription_state import (
    MAY_BECOME,
    EndOffset,
    FetchPosition,
    Position,
    ResetPolicy,
    State,
    Truncation,
)
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader

OLD, NEW = Leader(1, 5), Leader(2, 6)
HERE = FetchPosition(100, 5, OLD)
UNPROVEN = FetchPosition(100, 5, NEW)


def initializing() -> Position:
    return Position()


def fetching() -> Position:
    """At offset 100, read from epoch 5, whose leader is unchanged."""
    position = Position()
    position.seek(FetchPosition(90, leader=OLD))
    position.advance(100, 5)
    return position


def awaiting_reset() -> Position:
    position = fetching()
    position.reset("latest")
    return position


def awaiting_validation() -> Position:
    """The leader has moved from 1 to 2."""
    position = fetching()
    position.follow(NEW)
    return position


IN_STATE = {
    State.INITIALIZING: initializing,
    State.FETCHING: fetching,
    State.AWAIT_RESET: awaiting_reset,
    State.AWAIT_VALIDATION: awaiting_validation,
}


@pytest.mark.parametrize(
    ("state", "fetch"),
    [
        (State.INITIALIZING, None),
        (State.FETCHING, HERE),
        (State.AWAIT_RESET, None),
        (State.AWAIT_VALIDATION, UNPROVEN),
    ],
)
def test_which_states_have_a_position(state: State, fetch: FetchPosition | None) -> None:
    """And each fixture is in the state that it is named for."""
    position = IN_STATE[state]()
    assert (state, fetch) == (position.state, position.fetch)


@pytest.mark.parametrize("state", State)
def test_only_fetching_fetches(state: State) -> None:
    """And not while a revocation is pending."""
    position = IN_STATE[state]()
    assert (state is State.FETCHING) == position.fetchable
    position.revoking = True
    assert not position.fetchable


#: event → what it leads to, from INITIALIZING, FETCHING, AWAIT_RESET, AWAIT_VALIDATION
N, F, R, V = State
EVENTS: dict[str, tuple[Callable[[Position], object], tuple[State, State, State, State]]] = {
    "seek, no epoch": (lambda p: p.seek(FetchPosition(7, leader=OLD)), (F, F, F, F)),
    "seek, leader's epoch unknown": (lambda p: p.seek(FetchPosition(7, 4, Leader(1))), (F, F, F, F)),
    "seek to a committed offset with its epoch": (lambda p: p.seek(FetchPosition(7, 4, OLD)), (V, V, V, V)),
    "reset": (lambda p: p.reset("earliest"), (R, R, R, R)),
    "same leader": (lambda p: p.follow(p.fetch.leader if p.fetch else OLD), (N, F, R, V)),
    "no leader": (lambda p: p.follow(Leader()), (N, F, R, V)),
    "another leader": (lambda p: p.follow(Leader(3, 7)), (N, V, R, V)),
    "another epoch of the same leader": (lambda p: p.follow(Leader(1, 7)), (N, V, R, V)),
    "another leader of unknown epoch": (lambda p: p.follow(Leader(3)), (N, F, R, F)),
    "records handed over": (lambda p: p.advance(101, 5), (N, F, R, V)),
    "validated": (lambda p: p.apply_validation(UNPROVEN, EndOffset(5, 200), "latest"), (N, F, R, F)),
    "validation skipped": (lambda p: p.skip_validation(), (N, F, R, F)),
}


@pytest.mark.parametrize(("event", "following"), EVENTS.values(), ids=EVENTS)
def test_every_event_in_every_state(
    event: Callable[[Position], object], following: tuple[State, State, State, State]
) -> None:
    """The state table, row by row; a validation is ignored while a reset is awaited."""
    for state, expected in zip(State, following, strict=True):
        position = IN_STATE[state]()
        event(position)
        assert expected is position.state


def test_the_transitions_are_kafkas() -> None:
    """Every state leads to every other but INITIALIZING, and a reset does not lead to a validation."""
    forbidden = {(old, new) for old in State for new in State if new not in MAY_BECOME[old]}
    assert {(old, N) for old in State} | {(R, V)} == forbidden


def test_a_moved_leader_is_noticed_once() -> None:
    """The position gets the new leader, offset and epoch stay: the same metadata has no further effect."""
    position = fetching()
    assert [True, False] == [position.follow(NEW), position.follow(NEW)]
    assert UNPROVEN == position.fetch


def test_without_a_position_a_moved_leader_is_ignored() -> None:
    """There is no position to validate, and no read replica to leave."""
    assert [False, False] == [initializing().follow(NEW), awaiting_reset().follow(NEW)]


ANSWERS: dict[str, tuple[EndOffset, FetchPosition | None, EndOffset | None]] = {
    "epoch goes on": (EndOffset(5, 200), UNPROVEN, None),
    "epoch ends at the position": (EndOffset(5, 100), UNPROVEN, None),
    "epoch ends before it": (EndOffset(5, 99), FetchPosition(99, 5, NEW), EndOffset(5, 99)),
    "only an older epoch is there": (EndOffset(3, 40), FetchPosition(40, 3, NEW), EndOffset(3, 40)),
    "an older epoch, beyond the position": (EndOffset(4, 100), UNPROVEN, None),
    "undefined": (EndOffset(UNKNOWN, UNKNOWN), None, None),
    "undefined epoch": (EndOffset(UNKNOWN, 200), None, None),
    "undefined offset": (EndOffset(5, UNKNOWN), None, None),
}


@pytest.mark.parametrize(("end", "fetch", "diverged"), ANSWERS.values(), ids=ANSWERS)
def test_validation_with_a_reset_policy(
    end: EndOffset, fetch: FetchPosition | None, diverged: EndOffset | None
) -> None:
    """The position is valid; or goes back to where the logs diverge; or, if that is unknown, the policy applies."""
    position = awaiting_validation()
    found = position.apply_validation(UNPROVEN, end, "earliest")
    assert (None if fetch == UNPROVEN else Truncation(UNPROVEN, diverged, repaired=True)) == found
    assert (fetch, State.FETCHING if fetch else State.AWAIT_RESET) == (position.fetch, position.state)
    assert (position.policy == "earliest") == (fetch is None)


@pytest.mark.parametrize(("end", "fetch", "diverged"), ANSWERS.values(), ids=ANSWERS)
def test_validation_without_a_reset_policy(
    end: EndOffset, fetch: FetchPosition | None, diverged: EndOffset | None
) -> None:
    """An invalid position is raised: no fetch, and the position stays."""
    position = awaiting_validation()
    found = position.apply_validation(UNPROVEN, end, "none")
    holds = fetch == UNPROVEN
    assert (None if holds else Truncation(UNPROVEN, diverged, repaired=False)) == found
    assert (UNPROVEN, State.FETCHING if holds else State.AWAIT_VALIDATION) == (position.fetch, position.state)


MEANWHILE: dict[str, Callable[[Position], object]] = {
    "leader moved again": lambda p: p.follow(Leader(3, 7)),
    "sought": lambda p: p.seek(FetchPosition(70, 5, NEW)),
    "reset": lambda p: p.reset("latest"),
    "already validated": lambda p: p.skip_validation(),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
def test_a_response_about_another_position_is_ignored(meanwhile: Callable[[Position], object]) -> None:
    """The position changed after the request was sent: even a truncation is ignored."""
    position = awaiting_validation()
    meanwhile(position)
    before = (position.state, position.fetch)
    assert position.apply_validation(UNPROVEN, EndOffset(5, 1), "latest") is None
    assert before == (position.state, position.fetch)


def test_only_a_fetching_position_advances() -> None:
    """Records returned late, after a reset or a move, don't change the position."""
    position = fetching()
    position.advance(120, 6)
    assert FetchPosition(120, 6, OLD) == position.fetch
    for stuck in (awaiting_validation(), awaiting_reset(), initializing()):
        before = stuck.fetch
        stuck.advance(120, 6)
        assert before == stuck.fetch


def test_a_change_ends_the_wait() -> None:
    """A pending retry is cancelled when another request is due."""
    changes: list[Callable[[Position], object]] = [
        lambda p: p.follow(Leader(3, 7)),
        lambda p: p.reset("latest"),
        lambda p: p.seek(UNPROVEN),
    ]
    for change in changes:
        position = awaiting_validation()
        position.not_before_ms = 1e9
        change(position)
        assert 0 == position.not_before_ms


# ---- property: no record of a truncated log is taken for a committed one

logs = st.lists(st.integers(0, 4), max_size=12).map(sorted)


@settings(max_examples=200, deadline=None)
@given(mine=logs.filter(bool), theirs=logs, policy=st.sampled_from(["earliest", "none"]))
def test_after_validation_the_logs_agree(mine: list[int], theirs: list[int], policy: ResetPolicy) -> None:
    """Two logs as the epochs of their records. If a fetch continues without a reported truncation, the leader has at
    least as many records up to our epoch as we have read; a reported truncation is real.
    """
    asked = FetchPosition(len(mine), mine[-1], NEW)
    position = Position()
    position.seek(asked)
    at_most = [epoch for epoch in theirs if epoch <= asked.offset_epoch]
    end = EndOffset(at_most[-1], len(at_most)) if at_most else EndOffset(UNKNOWN, UNKNOWN)
    truncation = position.apply_validation(asked, end, policy)
    assert (len(at_most) < len(mine)) == (truncation is not None)
    if position.state is State.FETCHING:
        assert position.fetch is not None
        assert min(len(mine), len(at_most)) == position.fetch.offset

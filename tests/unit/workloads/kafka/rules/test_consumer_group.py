"""The member of a KIP-848 group: its states, what its heartbeats say, and how it survives being fenced."""

import math
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.consumer_group import (
    AssignedPartition,
    Assignment,
    GroupMember,
    Heartbeat,
    HeartbeatAnswer,
    MemberState,
    Step,
    Verdict,
)
from aftershock.workloads.kafka.rules.values import Backoff

A, B = UUID(int=1), UUID(int=2)
A0, A1, A2, B0 = (AssignedPartition(A, 0), AssignedPartition(A, 1), AssignedPartition(A, 2), AssignedPartition(B, 0))
BOTH = (A, B)


def new_member() -> GroupMember:
    backoff = Backoff(100, 1000, Random(1))  # noqa: S311  # spreads waits, guards nothing
    return GroupMember("m", backoff=backoff, rebalance_timeout_ms=300_000, rack="r", assignor=None)


def member() -> GroupMember:
    joining = new_member()
    joining.subscribe(("a", "b"))
    return joining


def beat(
    told: GroupMember, *assigned: AssignedPartition, epoch: int = 1, error: int = 0, now_ms: float = 0
) -> tuple[Heartbeat, Verdict]:
    """One exchange; no ``assigned`` means that the coordinator says nothing new about the assignment."""
    sent = told.heartbeat(now_ms)
    answer = HeartbeatAnswer(error, epoch, 5000, frozenset(assigned) if assigned else None)
    return sent, told.on_response(answer, now_ms)


def owning(*assigned: AssignedPartition) -> GroupMember:
    """A stable member that owns ``assigned``."""
    stable = member()
    beat(stable, *assigned)
    assert stable.reconcile(BOTH) is not None
    stable.finish_step()
    beat(stable)
    return stable


def test_joining_says_everything_and_owns_nothing() -> None:
    """Rule 2: the broker refuses a join that lacks a field or claims partitions."""
    sent = member().heartbeat(0)
    assert Heartbeat("m", 0, "r", 300_000, ("a", "b"), None, frozenset()) == sent


def test_a_stable_heartbeat_says_nothing_but_who_it_is() -> None:
    """Rule 2: what hasn't changed is left out, so heartbeats stay small."""
    stable = owning(A0)
    sent, verdict = beat(stable, epoch=7)
    assert Heartbeat("m", 1) == sent
    assert (Verdict.CONTINUE, 7) == (verdict, stable.epoch)


def test_an_assignment_is_taken_then_acknowledged_at_once() -> None:
    """Rule 3: the acknowledgement doesn't wait for the interval, and names what is owned."""
    joined = member()
    beat(joined, A0, A1)
    assert MemberState.RECONCILING is joined.state
    assert Step(frozenset(), frozenset({A0, A1})) == joined.reconcile(BOTH)
    joined.finish_step()
    assert 0 == joined.wait_ms(0)
    assert frozenset({A0, A1}) == joined.heartbeat(0).owned
    assert MemberState.STABLE is joined.state


def test_the_interval_is_the_coordinators() -> None:
    """Between changes heartbeats keep the interval of the last answer, counted from sending."""
    stable = owning(A0)
    assert 5000 == stable.wait_ms(0)
    assert 1000 == stable.wait_ms(4000)
    assert 0 == stable.wait_ms(6000)


def test_one_heartbeat_in_flight() -> None:
    """Nothing is due while an answer is awaited, not even when joining."""
    joining = member()
    joining.heartbeat(0)
    assert math.inf == joining.wait_ms(10_000)


def test_what_is_taken_away_is_given_up_in_the_same_step() -> None:
    """Rule 3: one step has both halves, so that the shell gives up before it takes."""
    stable = owning(A0, A1)
    beat(stable, A1, A2, epoch=2)
    assert Step(frozenset({A0}), frozenset({A2})) == stable.reconcile(BOTH)
    stable.finish_step()
    assert frozenset({A1, A2}) == stable.owned == stable.heartbeat(0).owned


def test_a_topic_without_a_name_waits_and_the_rest_does_not() -> None:
    """Rule 3: partitions of a topic that metadata doesn't know yet come in a later step."""
    joined = member()
    beat(joined, A0, B0)
    assert Step(frozenset(), frozenset({A0})) == joined.reconcile({A})
    joined.finish_step()
    beat(joined)
    assert MemberState.RECONCILING is joined.state
    assert frozenset({B}) == joined.unresolved
    assert joined.reconcile({A}) is None
    assert Step(frozenset(), frozenset({B0})) == joined.reconcile({A, B})


def test_a_newer_target_waits_for_the_step_under_way() -> None:
    """Rule 3: steps never overlap; the later target is reconciled after the first was acknowledged."""
    joined = member()
    beat(joined, A0)
    joined.reconcile(BOTH)
    beat(joined, A1, epoch=2)
    assert joined.reconcile(BOTH) is None
    joined.finish_step()
    sent, _ = beat(joined, epoch=2)
    assert frozenset({A0}) == sent.owned
    assert Step(frozenset({A0}), frozenset({A1})) == joined.reconcile(BOTH)


@pytest.mark.parametrize("error", [25, 110])
def test_a_fenced_member_releases_then_joins_again(error: int) -> None:
    """Rule 4: lost partitions are given up first; then epoch 0, the same id, everything said, nothing owned."""
    stable = owning(A0)
    assert Verdict.RELEASE is beat(stable, error=error)[1]
    assert math.inf == stable.wait_ms(0)
    stable.rejoin()
    assert 0 == stable.wait_ms(0)
    assert Heartbeat("m", 0, "r", 300_000, ("a", "b"), None, frozenset()) == stable.heartbeat(0)
    assert 1 == stable.counts["fenced"]


def test_a_step_interrupted_by_fencing_has_no_effect() -> None:
    """Rule 4: partitions of a step that was under way when the member was fenced are not owned afterwards."""
    joined = member()
    beat(joined, A0)
    joined.reconcile(BOTH)
    beat(joined, error=110)
    joined.finish_step()
    joined.rejoin()
    assert frozenset() == joined.owned
    assert MemberState.JOINING is joined.state


@pytest.mark.parametrize("error", [15, 16])
def test_a_lost_coordinator_is_looked_for_without_back_off(error: int) -> None:
    """Rule 5: the heartbeat is due again at once, and says everything: this coordinator may have heard nothing."""
    stable = owning(A0)
    assert Verdict.FIND_COORDINATOR is beat(stable, error=error)[1]
    assert 0 == stable.wait_ms(0)
    assert (1, frozenset({A0}), ("a", "b")) == (
        (again := stable.heartbeat(0)).member_epoch,
        again.owned,
        again.topics,
    )


@pytest.mark.parametrize("error", [14, 29])
def test_a_coordinator_that_is_loading_is_left_alone_for_a_while(error: int) -> None:
    """Rule 5: the wait is the back-off's, 100 ms at first and twice that next."""
    stable = owning(A0)
    assert Verdict.REPORT is beat(stable, error=error)[1]
    assert 80 <= stable.wait_ms(0) <= 120
    beat(stable, error=error)
    assert 160 <= stable.wait_ms(0) <= 240


def test_a_heartbeat_that_got_no_answer_is_said_again_in_full() -> None:
    """Rule 2: after a disconnect nobody knows what was heard."""
    stable = owning(A0)
    stable.heartbeat(5000)
    stable.on_failure(5000)
    assert 80 <= stable.wait_ms(5000) <= 120
    assert frozenset({A0}) == stable.heartbeat(5200).owned


def test_an_answer_resets_the_back_off() -> None:
    """A heartbeat that succeeds makes the next failure the first one again."""
    stable = owning(A0)
    for _ in range(3):
        stable.heartbeat(0)
        stable.on_failure(0)
    beat(stable)
    stable.heartbeat(0)
    stable.on_failure(0)
    assert stable.wait_ms(0) <= 120


@pytest.mark.parametrize("error", [30, 81, 111, 112, 82])
def test_other_errors_end_the_membership(error: int) -> None:
    """Rule 5: not authorized, group full, static id in use, unknown assignor, fenced instance."""
    stable = owning(A0)
    assert Verdict.FAIL is beat(stable, error=error)[1]
    assert math.inf == stable.wait_ms(0)
    assert MemberState.FATAL is stable.state


def test_leaving_sends_epoch_minus_one_once() -> None:
    """Rule 1: one last heartbeat, which says nothing else; an answer afterwards changes nothing."""
    stable = owning(A0)
    assert stable.leave()
    assert 0 == stable.wait_ms(0)
    assert Heartbeat("m", -1) == stable.heartbeat(0)
    assert Verdict.CONTINUE is stable.on_response(HeartbeatAnswer(25), 0)
    assert math.inf == stable.wait_ms(0)


def test_leaving_while_joining_is_said_too() -> None:
    """The join may have worked unheard: without a word the group would wait 45 s for this member."""
    joining = member()
    joining.heartbeat(0)
    assert joining.leave()
    assert -1 == joining.heartbeat(0).member_epoch


def test_who_never_subscribed_has_nothing_to_leave() -> None:
    """No heartbeat goes out for a consumer that only assigns."""
    alone = new_member()
    assert not alone.leave()
    assert math.inf == alone.wait_ms(0)


PARTITIONS = st.frozensets(st.sampled_from([A0, A1, A2, B0]))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), PARTITIONS),
        st.tuples(st.sampled_from(["nothing", "fence", "lost", "fail", "step", "done"]), st.just(frozenset())),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_whatever_happens_the_last_target_is_reached(events: list[tuple[str, Assignment]]) -> None:
    """After any history, a few quiet exchanges bring the member to own exactly what it was told last, and say so.

    The independent model: what is owned in the end, and what the coordinator has heard of it, is the last assignment of
    the last membership.
    """
    told = member()
    target = said = frozenset[AssignedPartition]()
    epoch = 0
    for event, assigned in events:
        if event == "step":
            told.reconcile(BOTH)
        elif event == "done":
            told.finish_step()
        elif event == "fail":
            told.heartbeat(0)
            told.on_failure(0)
        else:
            epoch += 1
            error = {"fence": 110, "lost": 16}.get(event, 0)
            sent = told.heartbeat(0)
            told.on_response(HeartbeatAnswer(error, epoch, 5000, assigned if event == "assign" else None), 0)
            said = heard(said, sent) if error == 0 else frozenset() if event == "fence" else said
            target = assigned if event == "assign" else frozenset() if event == "fence" else target
            told.rejoin()
    for _ in range(6):
        told.reconcile(BOTH)
        told.finish_step()
        said = heard(said, told.heartbeat(0))
        told.on_response(HeartbeatAnswer(0, epoch + 1), 0)
    assert target == told.owned == said
    assert MemberState.STABLE is told.state


def heard(said: Assignment, sent: Heartbeat) -> Assignment:
    """What the coordinator believes this member to own."""
    return said if sent.owned is None else sent.owned

"""The member of a KIP-848 group: its states, its heartbeats, and fencing."""

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
    """Exchange one heartbeat; without ``assigned`` the response has no assignment."""
    sent = told.heartbeat(now_ms)
    answer = HeartbeatAnswer(error, epoch, 5000, frozenset(assigned) if assigned else None)
    return sent, told.on_response(answer, now_ms)


def owning(*assigned: AssignedPartition) -> GroupMember:
    """Return a stable member that owns ``assigned``."""
    stable = member()
    beat(stable, *assigned)
    assert stable.reconcile(BOTH) is not None
    stable.finish_step()
    beat(stable)
    return stable


def test_a_join_has_every_field_and_no_partition() -> None:
    """Rule 2: the broker refuses a join that lacks a field or claims partitions."""
    sent = member().heartbeat(0)
    assert Heartbeat("m", 0, "r", 300_000, ("a", "b"), None, frozenset()) == sent


def test_a_stable_heartbeat_has_ids_only() -> None:
    """Rule 2: unchanged fields are left out, so heartbeats stay small."""
    stable = owning(A0)
    sent, verdict = beat(stable, epoch=7)
    assert Heartbeat("m", 1) == sent
    assert (Verdict.CONTINUE, 7) == (verdict, stable.epoch)


def test_an_assignment_is_taken_then_acknowledged_at_once() -> None:
    """Rule 3: the acknowledgement doesn't wait for the interval, and names the owned partitions."""
    joined = member()
    beat(joined, A0, A1)
    assert MemberState.RECONCILING is joined.state
    assert Step(frozenset(), frozenset({A0, A1})) == joined.reconcile(BOTH)
    joined.finish_step()
    assert 0 == joined.wait_ms(0)
    assert frozenset({A0, A1}) == joined.heartbeat(0).owned
    assert MemberState.STABLE is joined.state


def test_the_interval_is_the_coordinators() -> None:
    """Between changes heartbeats keep the interval of the last response, counted from sending."""
    stable = owning(A0)
    assert 5000 == stable.wait_ms(0)
    assert 1000 == stable.wait_ms(4000)
    assert 0 == stable.wait_ms(6000)


def test_one_heartbeat_in_flight() -> None:
    """No heartbeat is due while a response is awaited, not even when joining."""
    joining = member()
    joining.heartbeat(0)
    assert math.inf == joining.wait_ms(10_000)


def test_one_step_revokes_and_assigns() -> None:
    """Rule 3: the consumer revokes before it assigns."""
    stable = owning(A0, A1)
    beat(stable, A1, A2, epoch=2)
    assert Step(frozenset({A0}), frozenset({A2})) == stable.reconcile(BOTH)
    stable.finish_step()
    assert frozenset({A1, A2}) == stable.owned == stable.heartbeat(0).owned


def test_a_topic_without_name_waits() -> None:
    """Rule 3: partitions of a topic that metadata doesn't know yet come in a later step, the others now."""
    joined = member()
    beat(joined, A0, B0)
    assert Step(frozenset(), frozenset({A0})) == joined.reconcile({A})
    joined.finish_step()
    beat(joined)
    assert MemberState.RECONCILING is joined.state
    assert frozenset({B}) == joined.unresolved
    assert joined.reconcile({A}) is None
    assert Step(frozenset(), frozenset({B0})) == joined.reconcile({A, B})


def test_what_can_be_resolved_is_acknowledged() -> None:
    """Rule 3: a target of which only owned partitions have names is acknowledged at once, and once."""
    joined = member()
    beat(joined, A0, B0)
    joined.reconcile({A})
    joined.finish_step()
    beat(joined, A0, B0)
    beat(joined, A0, B0, AssignedPartition(B, 1), epoch=2)
    assert joined.reconcile({A}) is None
    assert (MemberState.ACKNOWLEDGING, 0) == (joined.state, joined.wait_ms(0))
    sent, _ = beat(joined, epoch=2)
    assert (frozenset({A0}), MemberState.RECONCILING) == (sent.owned, joined.state)
    assert joined.reconcile({A}) is None
    assert 5000 == joined.wait_ms(0)
    assert Step(frozenset(), frozenset({B0, AssignedPartition(B, 1)})) == joined.reconcile(BOTH)


def test_a_target_that_changes_and_changes_back_is_acknowledged() -> None:
    """Rule 3: the coordinator may wait for what the member owns (Kafka's ``localEpoch``)."""
    stable = owning(A0)
    beat(stable, A0, A1, epoch=2)
    beat(stable, A0, epoch=3)
    assert MemberState.RECONCILING is stable.state
    assert stable.reconcile(BOTH) is None
    sent, _ = beat(stable, epoch=3)
    assert (frozenset({A0}), MemberState.STABLE) == (sent.owned, stable.state)


def test_a_newer_target_waits_for_the_current_step() -> None:
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
    """Rule 4: lost partitions are released first; then epoch 0, the same id, every field, no partition."""
    stable = owning(A0)
    assert Verdict.RELEASE is beat(stable, error=error)[1]
    assert math.inf == stable.wait_ms(0)
    stable.rejoin()
    assert 0 == stable.wait_ms(0)
    assert Heartbeat("m", 0, "r", 300_000, ("a", "b"), None, frozenset()) == stable.heartbeat(0)
    assert 1 == stable.counts["fenced"]


def test_a_step_interrupted_by_fencing_has_no_effect() -> None:
    """Rule 4: partitions of the step are not owned afterwards."""
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
    """Rule 5: the heartbeat is due at once with every field: the new coordinator may not know the member."""
    stable = owning(A0)
    assert Verdict.FIND_COORDINATOR is beat(stable, error=error)[1]
    assert 0 == stable.wait_ms(0)
    assert (1, frozenset({A0}), ("a", "b")) == (
        (again := stable.heartbeat(0)).member_epoch,
        again.owned,
        again.topics,
    )


@pytest.mark.parametrize("error", [14, 29])
def test_a_loading_coordinator_backs_off(error: int) -> None:
    """Rule 5: 100 ms at first, then twice that."""
    stable = owning(A0)
    assert Verdict.REPORT is beat(stable, error=error)[1]
    assert 80 <= stable.wait_ms(0) <= 120
    beat(stable, error=error)
    assert 160 <= stable.wait_ms(0) <= 240


@pytest.mark.parametrize("error", [14, 29, None])
def test_a_member_joins_and_acknowledges_without_back_off(error: int | None) -> None:
    """Rule 5: ``shouldHeartbeatNow`` is asked beside the back-off, not after it."""
    joining, acknowledging = member(), owning(A0)
    beat(acknowledging, A0, A1, epoch=2)
    acknowledging.reconcile(BOTH)
    for one in (joining, acknowledging):
        if error is None:
            one.heartbeat(0)
            one.on_failure(0)
        else:
            assert Verdict.REPORT is beat(one, error=error)[1]
    acknowledging.finish_step()
    assert [0, 0] == [joining.wait_ms(0), acknowledging.wait_ms(0)]
    assert frozenset({A0, A1}) == acknowledging.heartbeat(0).owned


def test_an_unanswered_heartbeat_is_repeated_in_full() -> None:
    """Rule 2: after a disconnect it is unknown which fields were received."""
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
    """Rule 1: one last heartbeat with ids only; a later response changes nothing."""
    stable = owning(A0)
    assert stable.leave()
    assert 0 == stable.wait_ms(0)
    assert Heartbeat("m", -1) == stable.heartbeat(0)
    assert Verdict.CONTINUE is stable.on_response(HeartbeatAnswer(25), 0)
    assert math.inf == stable.wait_ms(0)


def test_leaving_while_joining_is_sent_too() -> None:
    """The join may have succeeded unanswered: otherwise the group would wait 45 s for this member."""
    joining = member()
    joining.heartbeat(0)
    assert joining.leave()
    assert -1 == joining.heartbeat(0).member_epoch


def test_without_subscription_there_is_no_heartbeat() -> None:
    """A consumer that only assigns."""
    alone = new_member()
    assert not alone.leave()
    assert math.inf == alone.wait_ms(0)


# ---- static members, regular expressions, and applications that don't poll


def test_a_static_member_leaves_with_epoch_minus_two() -> None:
    """Rule 1: the coordinator keeps its partitions until it comes back, or its session times out."""
    backoff = Backoff(100, 1000, Random(1))  # noqa: S311  # spreads waits, guards nothing
    static = GroupMember("m", backoff=backoff, rebalance_timeout_ms=300_000, rack=None, assignor=None, is_static=True)
    static.subscribe(("a",))
    beat(static, A0)
    assert static.leave()
    assert Heartbeat("m", -2) == static.heartbeat(0)


def test_a_pattern_is_sent_with_an_empty_list_of_topics() -> None:
    """Rule 2: the coordinator evaluates it; it is sent when the member joins, and not repeated."""
    joining = new_member()
    joining.subscribe((), "orders-.*")
    assert Heartbeat("m", 0, "r", 300_000, (), None, frozenset(), "orders-.*") == joining.heartbeat(0)
    joining.on_response(HeartbeatAnswer(0, 1), 0)
    assert Heartbeat("m", 1) == joining.heartbeat(5000)


def test_a_member_whose_application_does_not_poll_leaves() -> None:
    """Rule 6: at ``max.poll.interval.ms``, before the next heartbeat is due; it then sends nothing more."""
    stable = owning(A0)
    stable.polled(1000)
    beat(stable, epoch=7, now_ms=300_000)
    assert 1000 == stable.wait_ms(300_000)
    assert Heartbeat("m", -1) == stable.heartbeat(301_000)
    assert MemberState.STALE is stable.state
    assert Verdict.CONTINUE is stable.on_response(HeartbeatAnswer(0, -1), 301_000)
    assert math.inf == stable.wait_ms(10_000_000)
    assert 1 == stable.counts["poll_timeouts"]


def test_a_stale_member_joins_again_when_its_application_polls() -> None:
    """Rule 6: after the release of the lost partitions, with epoch 0, the same id and every field."""
    stable = owning(A0)
    stable.polled(0)
    stable.heartbeat(300_000)
    stable.on_failure(300_000)  # whether the coordinator received it doesn't matter
    stable.polled(400_000)
    stable.rejoin()
    assert 0 == stable.wait_ms(400_000)
    assert Heartbeat("m", 0, "r", 300_000, ("a", "b"), None, frozenset()) == stable.heartbeat(400_000)


@pytest.mark.parametrize("error", [0, 25])
def test_the_response_to_a_leave_is_none_to_the_join_that_follows(error: int) -> None:
    """Rule 6: the application polls again before the coordinator has answered the heartbeat that leaves."""
    stable = owning(A0)
    stable.polled(0)
    stable.heartbeat(300_000)
    stable.polled(300_001)
    stable.rejoin()
    assert math.inf == stable.wait_ms(300_001)
    assert Verdict.CONTINUE is stable.on_response(HeartbeatAnswer(error, -1), 300_002)
    assert (MemberState.JOINING, 0) == (stable.state, stable.wait_ms(300_002))
    assert 0 == stable.heartbeat(300_002).member_epoch


def test_each_poll_renews_the_poll_interval() -> None:
    stable = owning(A0)
    for now_ms in (0, 299_000, 598_000):
        stable.polled(now_ms)
    assert MemberState.STABLE is stable.state
    beat(stable, now_ms=600_000)
    assert MemberState.STABLE is stable.state


def test_a_leaving_member_ignores_the_poll_interval() -> None:
    """It sends the last heartbeat of a member that leaves, and doesn't join again."""
    stable = owning(A0)
    stable.polled(0)
    stable.leave()
    stable.heartbeat(400_000)
    assert MemberState.UNSUBSCRIBED is stable.state
    stable.rejoin()
    assert math.inf == stable.wait_ms(400_000)


def test_commits_have_no_epoch_without_membership() -> None:
    """Kafka's ``onMemberEpochUpdated``: while joining, and after fencing or leaving."""
    joining = member()
    assert -1 == joining.membership_epoch
    beat(joining, A0, epoch=3)
    assert 3 == joining.membership_epoch
    beat(joining, error=110)
    assert -1 == joining.membership_epoch


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
def test_the_last_target_is_reached_after_any_history(events: list[tuple[str, Assignment]]) -> None:
    """A few exchanges without error bring the member to own exactly the last assignment, and to report it.

    The independent model: the owned partitions, and the coordinator's view of them, are the last assignment of the
    last membership.
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
    """Return the partitions that the coordinator believes this member to own."""
    return said if sent.owned is None else sent.owned

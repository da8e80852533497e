"""The member of a classic group: its states, its requests, and the reset of its generation."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.classic_group import (
    ClassicMember,
    Duty,
    Generation,
    MemberState,
    PendingRequest,
    Request,
)
from aftershock.workloads.kafka.rules.consumer_group import Verdict
from aftershock.workloads.kafka.rules.values import Backoff

POLL_MS, HEARTBEAT_MS, SESSION_MS = 300_000, 3_000, 10_000
FIRST = Generation(1, "m", "range")


def new_member(*, is_static: bool = False) -> ClassicMember:
    backoff = Backoff(100, 1000, Random(1))  # noqa: S311  # spreads waits, guards nothing
    return ClassicMember(
        backoff=backoff,
        poll_interval_ms=POLL_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        is_static=is_static,
    )


def joining(*, is_static: bool = False) -> ClassicMember:
    """Return a member whose first JoinGroup is due."""
    member = new_member(is_static=is_static)
    member.subscribe()
    member.polled(0)
    member.prepared()
    return member


def sent(member: ClassicMember, now_ms: float = 0) -> PendingRequest:
    assert 0 == member.wait_ms(now_ms)
    request = member.request(now_ms)
    assert request is not None
    assert math.inf == member.wait_ms(now_ms)
    return request


def join(member: ClassicMember, generation: Generation = FIRST, now_ms: float = 0, leader: str = "l") -> None:
    assert Request.JOIN is sent(member, now_ms).kind
    assert Verdict.CONTINUE is member.on_join(0, generation, now_ms, leader=leader)


def stable(generation: Generation = FIRST, *, is_static: bool = False) -> ClassicMember:
    """Return a member that has taken over its first assignment."""
    member = joining(is_static=is_static)
    join(member, generation)
    assert Request.SYNC is sent(member).kind
    assert Verdict.CONTINUE is member.on_sync(0, b"assigned", 0)
    member.applied()
    assert (MemberState.STABLE, Duty.NONE) == (member.state, member.duty)
    return member


def beat(member: ClassicMember, error: int, now_ms: float = HEARTBEAT_MS) -> Verdict:
    assert Request.HEARTBEAT is sent(member, now_ms).kind
    return member.on_heartbeat(error, now_ms)


def rejoin(member: ClassicMember, now_ms: float = 0) -> PendingRequest:
    """Prepare, and send JoinGroup."""
    assert Duty.PREPARE is member.duty
    member.prepared()
    request = sent(member, now_ms)
    assert Request.JOIN is request.kind
    return request


# ---- rules 1 to 3: joining


def test_nothing_is_sent_before_the_application_has_prepared() -> None:
    """Rule 3: partitions are revoked before JoinGroup, and only while the application polls."""
    member = new_member()
    assert (Duty.NONE, math.inf) == (member.duty, member.wait_ms(0))
    member.subscribe()
    assert (Duty.PREPARE, math.inf) == (member.duty, member.wait_ms(0))
    member.prepared()
    assert PendingRequest(Request.JOIN, Generation()) == sent(member)
    assert Duty.NONE is member.duty


def test_a_dynamic_member_joins_with_the_id_that_it_was_given() -> None:
    """Rule 2: the second JoinGroup follows at once, without another preparation."""
    member = joining()
    sent(member)
    assert Verdict.CONTINUE is member.on_join(79, Generation(member_id="m"), 0)
    again = sent(member)
    assert (Request.JOIN, Generation(-1, "m")) == (again.kind, again.generation)
    assert "need to re-join with the given member-id: m" == again.reason


def test_join_and_sync_make_a_member() -> None:
    """Rule 1: the assignment waits for the application, and no rejoin precedes it."""
    member = joining()
    join(member, leader="m")
    assert member.is_leader
    assert PendingRequest(Request.SYNC, FIRST) == sent(member)
    member.on_sync(0, b"assigned", 0)
    assert (MemberState.STABLE, Duty.APPLY, b"assigned") == (member.state, member.duty, member.assignment)
    member.request_rejoin("again")
    assert (Duty.APPLY, HEARTBEAT_MS) == (member.duty, member.wait_ms(0))
    member.applied()
    assert Duty.PREPARE is member.duty
    assert {"joins": 1, "assignments_received": 1, "rebalances": 1} == dict(member.counts)


def test_a_follower_is_no_leader() -> None:
    member = joining()
    join(member, leader="another")
    assert not member.is_leader


def test_reasons_are_cut_to_what_the_coordinator_accepts() -> None:
    """KIP-800: 255 characters."""
    member = stable()
    member.request_rejoin("x" * 300)
    assert "x" * 255 == rejoin(member).reason


# ---- rule 4: heartbeats


def test_a_heartbeat_is_sent_each_interval_from_the_join_on() -> None:
    member = stable()
    assert HEARTBEAT_MS == member.wait_ms(0)
    beat(member, 0, now_ms=3_500)
    assert 2_500 == member.wait_ms(4_000)


def test_a_member_that_is_to_join_again_stays_a_member_until_it_has_prepared() -> None:
    """Rule 4: heartbeats continue while partitions are committed and revoked."""
    member = stable()
    assert Verdict.CONTINUE is beat(member, 27)
    assert (MemberState.STABLE, Duty.PREPARE, 0) == (member.state, member.duty, member.commit_refusal)
    assert Verdict.CONTINUE is beat(member, 27, now_ms=2 * HEARTBEAT_MS)
    assert PendingRequest(Request.JOIN, FIRST, "group is already rebalancing") == rejoin(member, 2 * HEARTBEAT_MS)
    assert 27 == member.commit_refusal


def test_a_failed_heartbeat_is_repeated_after_a_back_off_that_doubles() -> None:
    """Rule 7; a response makes the next failure the first again."""
    member = stable()
    now_ms = float(HEARTBEAT_MS)
    for least_ms, most_ms in ((80, 120), (160, 240)):
        assert Request.HEARTBEAT is sent(member, now_ms).kind
        member.on_failure("disconnect", now_ms)
        assert least_ms <= member.wait_ms(now_ms) <= most_ms
        now_ms += member.wait_ms(now_ms)
    beat(member, 0, now_ms)
    now_ms += HEARTBEAT_MS
    sent(member, now_ms)
    member.on_failure("disconnect", now_ms)
    assert member.wait_ms(now_ms) <= 120


@pytest.mark.parametrize(("error", "verdict"), [(15, "FIND_COORDINATOR"), (16, "FIND_COORDINATOR"), (30, "REPORT")])
def test_other_errors_of_heartbeats_are_retried(error: int, verdict: str) -> None:
    """Rules 6 and 7: the member keeps its generation."""
    member = stable()
    assert Verdict[verdict] is beat(member, error)
    assert 80 <= member.wait_ms(HEARTBEAT_MS) <= 120
    assert (MemberState.STABLE, FIRST) == (member.state, member.generation)


def test_the_session_is_counted_from_the_last_heartbeat_that_succeeded() -> None:
    """Rule 7, Kafka's ``Heartbeat.sessionTimer``: from the JoinGroup response, then from each successful heartbeat."""
    member = joining()
    join(member, now_ms=1_000)
    assert SESSION_MS - 500 == member.session_left_ms(1_500)
    sent(member, 1_500)
    member.on_sync(0, b"assigned", 2_000)
    assert SESSION_MS - 3_000 == member.session_left_ms(4_000)
    for error, now_ms in ((0, 4_000), (27, 8_000)):
        beat(member, error, now_ms)
        assert SESSION_MS - 1_000 == member.session_left_ms(now_ms + 1_000)
    assert 0 == member.session_left_ms(20_000)


def test_heartbeats_that_fail_do_not_renew_the_session_before_the_coordinator_is_found_again() -> None:
    """Rule 7: Kafka resets the session timer when it discovers a coordinator."""
    member = stable()
    beat(member, 30, now_ms=HEARTBEAT_MS)
    assert SESSION_MS - HEARTBEAT_MS == member.session_left_ms(HEARTBEAT_MS)
    beat(member, 16, now_ms=4_000)
    assert SESSION_MS == member.session_left_ms(8_000)
    sent(member, 8_000)
    assert SESSION_MS - 500 == member.session_left_ms(8_500)
    member.on_failure("disconnect", 8_500)
    assert SESSION_MS == member.session_left_ms(9_000)


# ---- rule 5: reset generations


@pytest.mark.parametrize(("error", "kept_id"), [(25, ""), (22, "m")])
def test_a_member_that_was_thrown_out_has_lost_its_partitions(error: int, kept_id: str) -> None:
    """Rule 5: it releases them first, and must not commit; then it joins again."""
    member = stable()
    assert Verdict.RELEASE is beat(member, error)
    assert (True, Duty.PREPARE, 25) == (member.has_lost_partitions, member.duty, member.commit_refusal)
    assert math.inf == member.wait_ms(HEARTBEAT_MS)
    assert Generation(-1, kept_id) == rejoin(member).generation
    assert 1 == member.counts["fenced"]


@pytest.mark.parametrize(("error", "kept_id"), [(25, ""), (22, "m")])
@pytest.mark.parametrize("kind", [Request.JOIN, Request.SYNC])
def test_a_member_may_be_thrown_out_during_a_rebalance(kind: Request, error: int, kept_id: str) -> None:
    """Rule 5: a cooperative member still has partitions then, so the application prepares once more."""
    member = stable()
    member.request_rejoin("")
    rejoin(member)
    if kind is Request.SYNC:
        member.on_join(0, Generation(2, "m", "range"), 0)
        sent(member)
        verdict = member.on_sync(error, b"", 0)
    else:
        verdict = member.on_join(error, Generation(), 0)
    assert Verdict.RELEASE is verdict
    assert member.has_lost_partitions
    assert Generation(-1, kept_id) == rejoin(member).generation


def test_an_assignment_of_a_generation_that_was_reset_is_dropped() -> None:
    """Rule 5: the member was thrown out before its application polled."""
    member = joining()
    join(member)
    sent(member)
    member.on_sync(0, b"assigned", 0)
    beat(member, 25)
    assert (None, Duty.PREPARE, True) == (member.assignment, member.duty, member.has_lost_partitions)


def test_an_error_for_an_older_generation_is_ignored() -> None:
    """Rule 5: a commit has already reset the generation when the heartbeat's response arrives."""
    member = stable()
    sent(member, HEARTBEAT_MS)
    member.on_commit_error(25, 1)
    assert Verdict.CONTINUE is member.on_heartbeat(25, HEARTBEAT_MS)
    assert 1 == member.counts["fenced"]


def test_a_new_member_has_lost_nothing_before_it_joins() -> None:
    assert not new_member().has_lost_partitions


# ---- rules 6 and 7: errors of rebalances


@pytest.mark.parametrize("error", [23, 24, 26, 30, 81, 82])
@pytest.mark.parametrize("kind", [Request.JOIN, Request.SYNC])
def test_final_errors_end_the_membership(kind: Request, error: int) -> None:
    """Rule 6: inconsistent protocol, invalid id or timeout, not authorized, group full, fenced instance."""
    member = joining()
    if kind is Request.SYNC:
        join(member)
        sent(member)
        assert Verdict.FAIL is member.on_sync(error, b"", 0)
    else:
        sent(member)
        assert Verdict.FAIL is member.on_join(error, Generation(), 0)
    assert (MemberState.FATAL, Duty.NONE, math.inf) == (member.state, member.duty, member.wait_ms(0))


def test_a_fenced_instance_ends_the_membership() -> None:
    """Rule 6: another member has the same group.instance.id."""
    member = stable(is_static=True)
    assert Verdict.FAIL is beat(member, 82)
    assert MemberState.FATAL is member.state


@pytest.mark.parametrize(
    ("error", "verdict"), [(14, "REPORT"), (15, "FIND_COORDINATOR"), (16, "FIND_COORDINATOR"), (None, "")]
)
@pytest.mark.parametrize("kind", [Request.JOIN, Request.SYNC])
def test_retriable_errors_lead_to_another_join(kind: Request, error: int | None, verdict: str) -> None:
    """Rule 7: after a back-off, with the same member id, and without another preparation."""
    member = joining()
    if kind is Request.SYNC:
        join(member)
    sent(member)
    if error is None:
        member.on_failure("disconnect", 0)
    elif kind is Request.JOIN:
        assert Verdict[verdict] is member.on_join(error, Generation(), 0)
    else:
        assert Verdict[verdict] is member.on_sync(error, b"", 0)
    assert 80 <= member.wait_ms(0) <= 120
    again = sent(member, 200)
    assert Request.JOIN is again.kind
    assert again.reason.startswith("rebalance failed due to ")
    assert (FIRST if kind is Request.SYNC else Generation()) == again.generation


def test_a_rebalance_during_a_rebalance_is_joined_at_once() -> None:
    """Rule 4, for SyncGroup: the group began another rebalance."""
    member = joining()
    join(member)
    sent(member)
    assert Verdict.CONTINUE is member.on_sync(27, b"", 0)
    assert PendingRequest(Request.JOIN, FIRST, "rebalance failed due to REBALANCE_IN_PROGRESS") == sent(member)


def test_a_join_that_succeeds_after_a_reset_is_ignored() -> None:
    """A commit of the old generation was refused meanwhile: partitions are released first."""
    member = stable()
    member.request_rejoin("")
    rejoin(member)
    member.on_commit_error(25, 1)
    assert Verdict.CONTINUE is member.on_join(0, Generation(2, "m", "range"), 0)
    assert (MemberState.UNJOINED, Duty.PREPARE) == (member.state, member.duty)


# ---- rule 8: commits


def test_commits_need_a_stable_generation() -> None:
    """Rule 8: in between they fail without a request; a consumer that only assigns may always commit."""
    assert 0 == new_member().commit_refusal
    member = joining()
    assert 25 == member.commit_refusal
    sent(member)
    assert 27 == member.commit_refusal
    member.on_join(0, FIRST, 0)
    assert 27 == member.commit_refusal
    sent(member)
    member.on_sync(0, b"", 0)
    assert 0 == member.commit_refusal


def test_a_commit_that_meets_a_rebalance_makes_the_member_join_again() -> None:
    member = stable()
    member.on_commit_error(27, 1)
    assert (Duty.PREPARE, False) == (member.duty, member.has_lost_partitions)
    assert "offset commit failed since group is already rebalancing" == rejoin(member).reason


@pytest.mark.parametrize(("error", "kept_id"), [(25, ""), (22, "m")])
def test_a_refused_commit_resets_the_generation(error: int, kept_id: str) -> None:
    member = stable()
    member.on_commit_error(error, 1)
    assert member.has_lost_partitions
    assert Generation(-1, kept_id) == rejoin(member).generation


def test_a_refused_commit_of_an_older_generation_does_not_disturb_a_rebalance() -> None:
    """Rule 5: the member has joined again by then."""
    member = stable(Generation(2, "m", "range"))
    member.request_rejoin("")
    rejoin(member)
    member.on_commit_error(22, 1)
    assert MemberState.PREPARING_REBALANCE is member.state


# ---- rule 9: applications that don't poll, and leaving


def test_a_member_whose_application_does_not_poll_leaves() -> None:
    """Rule 9: at max.poll.interval.ms, with a reason; at the next poll its partitions are lost, and it joins anew."""
    member = stable()
    member.polled(1_000)
    beat(member, 0, now_ms=300_000)
    assert 1_000 == member.wait_ms(300_000)
    assert member.request(301_000) is None
    assert PendingRequest(Request.LEAVE, FIRST, "consumer poll timeout has expired.") == sent(member, 301_000)
    member.on_leave()
    assert (True, Duty.PREPARE, math.inf) == (member.has_lost_partitions, member.duty, member.wait_ms(301_000))
    assert Generation() == rejoin(member, 500_000).generation
    assert 1 == member.counts["poll_timeouts"]


def test_a_member_that_is_closed_while_it_is_to_leave_still_leaves() -> None:
    """Rule 9: LeaveGroup is due when the consumer is closed."""
    member = stable()
    assert member.request(POLL_MS) is None
    assert PendingRequest(Request.LEAVE, FIRST, "consumer poll timeout has expired.") == member.leave("closed")


def test_a_static_member_only_forgets_its_generation() -> None:
    """Rule 9: the coordinator keeps its partitions until its session times out."""
    member = stable(is_static=True)
    assert member.request(POLL_MS) is None
    assert (True, math.inf) == (member.has_lost_partitions, member.wait_ms(POLL_MS))


def test_a_pending_join_does_not_count_as_idle() -> None:
    """Rule 9: the coordinator may let it wait for as long as max.poll.interval.ms."""
    member = stable()
    member.request_rejoin("")
    rejoin(member)
    member.on_join(0, Generation(2, "m", "range"), 2 * POLL_MS)
    assert Request.SYNC is sent(member, 2 * POLL_MS).kind


def test_a_member_that_waits_for_its_assignment_is_bound_to_poll() -> None:
    """Rule 9, in the state COMPLETING_REBALANCE."""
    member = joining()
    join(member)
    assert member.request(POLL_MS) is None
    assert Request.LEAVE is sent(member, POLL_MS).kind


def test_leaving_sends_a_reason() -> None:
    """KIP-800; a later response changes nothing, and no further request is sent."""
    member = stable()
    sent(member, HEARTBEAT_MS)
    request = member.leave("the consumer is being closed")
    assert PendingRequest(Request.LEAVE, FIRST, "the consumer is being closed") == request
    assert Verdict.CONTINUE is member.on_heartbeat(25, HEARTBEAT_MS)
    assert (MemberState.UNSUBSCRIBED, math.inf) == (member.state, member.wait_ms(HEARTBEAT_MS))


def test_only_a_dynamic_member_with_an_id_leaves() -> None:
    """Rule 2: a static member stays until its session times out."""
    assert stable(is_static=True).leave("") is None
    assert joining().leave("") is None
    assert new_member().leave("") is None
    thrown_out = stable()
    beat(thrown_out, 22)
    assert thrown_out.leave("") is None


def test_a_member_that_waits_for_the_others_leaves_too() -> None:
    """Its JoinGroup is pending: otherwise the group would wait for its session to time out."""
    member = stable()
    member.request_rejoin("")
    rejoin(member)
    assert PendingRequest(Request.LEAVE, FIRST, "x") == member.leave("x")


# ---- random histories

ERRORS = st.sampled_from([0, 0, 0, 0, 14, 15, 16, 22, 25, 27, 79, None])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), ERRORS), st.tuples(st.sampled_from(["poll", "pause", "commit", "news"]), ERRORS)
    ),
    max_size=60,
)


class Coordinator:
    """The independent model: members are known by their id and generation, and by nothing else."""

    def __init__(self) -> None:
        self.generation, self.ids = 0, 0

    def answer(self, member: ClassicMember, request: PendingRequest, error: int | None, now_ms: float) -> None:
        if error is None:
            member.on_failure("disconnect", now_ms)
        elif request.kind is Request.JOIN and not error:
            self.generation += 1
            self.ids += not request.generation.member_id
            name = request.generation.member_id or f"m{self.ids}"
            member.on_join(0, Generation(self.generation, name, "range"), now_ms, leader=name)
        elif request.kind is Request.JOIN:
            self.ids += error == 79
            member.on_join(error, Generation(member_id=f"m{self.ids}"), now_ms)
        elif request.kind is Request.SYNC:
            member.on_sync(error if error != 79 else 0, b"%d" % request.generation.number, now_ms)
        elif request.kind is Request.HEARTBEAT:
            member.on_heartbeat(error, now_ms)
        else:
            member.on_leave()


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_a_member_owns_partitions_of_its_own_generation_only(events: list[tuple[str, int | None]]) -> None:
    """After any history, a few exchanges without error make it a stable member with its latest assignment.

    ``owned`` is the generation whose assignment the application has: it may commit only as a member of it.
    """
    member, coordinator, now_ms, owned = joining(), Coordinator(), 0.0, None
    member.polled(0)

    def poll() -> None:
        nonlocal owned
        member.polled(now_ms)
        while member.duty is not Duty.NONE:
            if member.duty is Duty.APPLY:
                assert member.assignment is not None
                owned = int(member.assignment)
                assert owned == member.generation.number
                member.applied()
            else:
                owned = None
                member.prepared()

    def exchange(error: int | None) -> None:
        nonlocal now_ms
        if member.wait_ms(now_ms) != math.inf:
            now_ms += member.wait_ms(now_ms)
            if request := member.request(now_ms):
                coordinator.answer(member, request, error, now_ms)

    for event, error in events:
        if event == "answer":
            exchange(error)
        elif event == "poll":
            poll()
        elif event == "pause":
            now_ms += POLL_MS
        elif event == "commit" and member.commit_refusal == 0:
            assert owned in {None, member.generation.number}
            member.on_commit_error(error or 0, member.generation.number)
        elif event == "news":
            member.request_rejoin("cached metadata has changed")
    for _ in range(12):
        poll()
        exchange(0)
    assert (MemberState.STABLE, member.generation.number) == (member.state, owned)

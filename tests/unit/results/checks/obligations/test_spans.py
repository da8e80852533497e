"""Spans in which progress is due: one test per rule, with a fault that shows the rule. Figures follow from the play's
settings.
"""

from dataclasses import replace

import pytest

from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.slo import Side
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S, lasting

FIND_S = 0.2 + 1.2 + 1  # a first attempt to connect, a retry, and a metadata request
BASE_S = 1 + 1.2 + 1  # the same with the longest back-off, to a broker that was away for long
SESSION_S = 3.5
QUORUM_S = 6
BOOT_S = 10
LAG_S = 7.5
UNTOLD_S = 2
BEAT_S, FETCH_S = 0.5, 1
COORDINATOR_S = 2  # to find it, and until it has loaded the group


def client_lane(play: Play, side: Side = "produce") -> Lane:
    """Return the lane of one side of the play's only client."""
    return next(one for one in lanes(play.evidence()) if one.side == side)


def due_s(play: Play, side: Side = "produce") -> list[tuple[float, float]]:
    """Return the spans in which partition 0 was due progress, in seconds, with adjacent spans joined."""
    joined: list[tuple[float, float]] = []
    lane, end_us = client_lane(play, side), play.end_s * S
    spans = [span for span in lane.of(0) if span.required and span.start_us < end_us]
    for span in spans:
        start = joined.pop()[0] if joined and joined[-1][1] == span.start_us / S else span.start_us / S
        joined.append((start, min(span.end_us, end_us) / S))
    return joined


def test_without_faults_progress_is_due_from_warm_up_to_the_end() -> None:
    assert [(10, 130)] == due_s(Play())


def test_a_rehearsal_is_judged_as_without_faults() -> None:
    """A rehearsal's journal lists faults as injected, but none was injected."""
    evidence = Play([lasting("kill", 40, 70, brokers=(3,))]).evidence()
    rehearsed = lanes(replace(evidence, run={**evidence.run, "rehearse": True}))

    assert [True] == [span.required for span in rehearsed[0].whole]


def test_a_dead_node_gives_grace_for_its_session_and_an_election() -> None:
    """Two of three replicas are left: progress is due after the grace period although the node is still dead."""
    bystander = Play([lasting("kill", 40, 70, brokers=(3,), controller=False)])
    ruler = Play([lasting("kill", 40, 70, brokers=(3,), controller=True)])

    assert [(10, 40), (40 + SESSION_S + FIND_S, 70), (70 + BASE_S, 130)] == due_s(bystander)
    assert 40 + QUORUM_S + SESSION_S + FIND_S == due_s(ruler)[1][0]


def test_a_frozen_node_adds_a_request_timeout_to_the_grace() -> None:
    """The client's requests to a frozen node must time out first, all at once; those that are open at the heal are
    answered.
    """
    frozen = Play([lasting("pause", 40, 70, brokers=(3,), controller=False)])

    assert [40 + SESSION_S + FIND_S + UNTOLD_S, 70 + BASE_S] == [start for start, _ in due_s(frozen)[1:]]


@pytest.mark.parametrize(("client_rack", "lease_s"), [(None, 0), ("c", 0), ("b", 20)])
def test_a_preferred_replica_that_falls_behind_is_kept_until_its_lease_ends(
    client_rack: str | None, lease_s: int
) -> None:
    """The leader prefers it until it leaves the ISR; then the lease begins, after which the leader is asked again."""
    behind = lasting("refuse", 40, 100, links=("replication_b-k1", "replication_b-k3"))
    settings = {"metadata.max.age.ms": 20_000}
    play = Play([behind], client="java", settings=settings, client_rack=client_rack)
    starts = [start for start, _ in due_s(play, "consume")]
    assert starts[1] == (40 + LAG_S + lease_s + FIND_S if lease_s else 40 + QUORUM_S + SESSION_S + LAG_S)
    assert starts[1] > due_s(play)[1][0] or not lease_s


def test_a_replica_that_can_fetch_again_is_no_excuse() -> None:
    """The lease is longer than the fault, after which readers are judged as those of leaders."""
    behind = lasting("refuse", 40, 44, links=("replication_b-k1", "replication_b-k3"))
    last = [due_s(Play([behind], client="java", client_rack=rack), "consume")[-1] for rack in ("b", None)]
    assert last[0] == last[1]


def test_a_dead_controller_that_is_no_broker_costs_an_election_only() -> None:
    """The death of an isolated controller affects no replica."""
    play = Play([lasting("kill", 40, 70, brokers=(11,), controller=True)], isolated=(11, 12, 13))
    play.racks.update({11: "a", 12: "b", 13: "c"})

    grace = QUORUM_S + SESSION_S
    assert [(10, 40), (40 + grace, 70), (70 + BOOT_S + grace + FIND_S, 130)] == due_s(play)


def test_no_progress_is_due_below_min_insync_replicas() -> None:
    """Two of three replicas are dead, and one replica is left where two are required."""
    play = Play([lasting("kill", 40, 70, brokers=(2,)), lasting("kill", 41, 71, brokers=(3,))])

    assert not any(start < 60 < end for start, end in due_s(play))


def test_no_progress_is_due_without_a_majority_of_voters() -> None:
    """One replica would suffice, but no controller can be elected to make it the leader."""
    play = Play([lasting("kill", 40, 70, brokers=(2, 3))], in_sync_min=1)

    whys = {span.why for span in client_lane(play).of(0) if span.start_us <= 60 * S < span.end_us}
    assert {"no majority of the quorum's voters is certain to elect an active controller (kill-40)"} == whys


def test_progress_is_due_after_a_cut_rack_is_fenced() -> None:
    """Rack c is cut off both ways, also from clients: the controller removes its replicas from the ISR with the
    session. After the heal followers and clients connect again.
    """
    play = Play([lasting("cut", 40, 80, links=cut_off("c", 3))])

    fenced, healed = QUORUM_S + SESSION_S + FIND_S + UNTOLD_S, QUORUM_S + BEAT_S + FETCH_S + BASE_S
    assert [(10, 40), (40 + fenced, 80), (80 + healed, 130)] == due_s(play)


def test_no_progress_is_due_while_clients_reach_a_cut_off_node() -> None:
    """A node that is cut off may answer metadata requests with outdated leaders."""
    links = tuple(link for link in cut_off("c", 3) if not link.startswith("client_"))

    assert [(10, 40)] == due_s(Play([lasting("cut", 40, 80, links=links)]))[:1]
    assert not any(start < 79 < end for start, end in due_s(Play([lasting("cut", 40, 80, links=links)])))


def test_no_progress_is_due_during_a_one_way_cut_of_controllers() -> None:
    """Node 3 receives from the other controllers but can't send to them, or the reverse, so the active controller is
    uncertain.
    """
    for links in (("controller_c-k1", "controller_c-k2"), ("controller_a-k3", "controller_b-k3")):
        assert not any(start < 79 < end for start, end in due_s(Play([lasting("cut", 40, 80, links=links)])))


def test_followers_that_cannot_fetch_count_against_the_leader_they_fetch_from() -> None:
    """Nodes 2 and 3 can't fetch from node 1, which may lead: one replica is left, which suffices or doesn't by
    min.insync.replicas.
    """
    deaf = lasting("cut", 40, 80, links=("replication_b-k1", "replication_c-k1"))

    assert not any(start < 79 < end for start, end in due_s(Play([deaf])))
    assert any(start < 79 < end for start, end in due_s(Play([deaf], in_sync_min=1)))


def test_no_progress_is_due_for_a_client_cut_from_a_possible_leader() -> None:
    """Kafka does not move a leader because one client can't reach it. Clients of another rack are not affected."""
    assert [(10, 40), (70 + BASE_S, 130)] == due_s(Play([lasting("refuse", 40, 70, links=("client_a-k2",))]))
    assert [(10, 130)] == due_s(Play([lasting("refuse", 40, 70, links=("client_b-k2",))]))


def test_a_node_without_replicas_and_vote_changes_nothing() -> None:
    """Node 4 has no replica of the partition and does not vote, so progress is due all the time."""
    play = Play([lasting("kill", 40, 70, brokers=(4,))], isolated=(11, 12, 13))
    play.racks.update({4: "a", 11: "a", 12: "b", 13: "c"})

    assert [(10, 130)] == due_s(play)


def test_a_restart_allows_two_grace_periods() -> None:
    """The journal does not record when the node stopped and returned, so two grace periods of silence are permitted
    meanwhile.
    """
    play = Play([Fault("restart", 40, 40, 60, 60, brokers=(3,), lasting=False, controller=False)])

    during = next(span for span in client_lane(play).of(0) if span.start_us == 40 * S)
    assert (True, 60 * S) == (during.required, during.end_us)
    assert 5 * S + 2 * round((SESSION_S + FIND_S) * S) == during.patience_us
    assert [(10, 60), (60 + BASE_S, 130)] == due_s(play)


def test_a_rolling_restart_allows_the_grace_periods_of_one_restart() -> None:
    """A node restarts only after the one before is back in every ISR. If all replicas are required, no progress is due
    while the nodes restart in turn.
    """
    roll = Fault("roll", 40, 40, 90, 90, brokers=(1, 2, 3), lasting=False, controller=False)

    during = next(span for span in client_lane(Play([roll])).of(0) if span.start_us == 40 * S)
    assert 5 * S + round(2 * (SESSION_S + FIND_S) * S) == during.patience_us
    assert not any(start < 60 < end for start, end in due_s(Play([roll], in_sync_min=3)))


def test_short_link_delays_extend_the_permitted_stall() -> None:
    """By ten late round trips. Between nodes a long delay may also move leaders, and nothing is due meanwhile."""
    for links, delay_ms, patience_s in (
        (("client_a-k1",), 1_000, 15),
        (("client_a-k1",), 100, 6),
        (("controller_a-k2",), 400, 9),
    ):
        late = client_lane(Play([lasting("late", 40, 80, links=links, delay_ms=delay_ms)])).of(0)
        assert [patience_s * S] == [span.patience_us for span in late if span.start_us <= 70 * S < span.end_us]
        assert all(span.required for span in late)
    slow_nodes = Play([lasting("late", 40, 80, links=("controller_a-k2",), delay_ms=2_000)])
    assert not any(start < 79 < end for start, end in due_s(slow_nodes))


@pytest.mark.parametrize(
    "touched",
    [{"brokers": (2,)}, {"links": ("client_a-k3",)}, {"topics": ("orders",)}, {"clients": ("w-base-produce",)}, {}],
)
def test_an_unknown_kind_suspends_progress_of_its_targets(touched: dict[str, object]) -> None:
    """No progress is due from targets of a kind that declares no impact, nor from any partition if the kind names no
    target.
    """
    spans = due_s(Play([lasting("mystery", 40, 60, **touched)]))

    assert [(10, 40)] == spans[:1]
    assert 60 + BASE_S <= spans[1][0] <= 60 + QUORUM_S + SESSION_S + LAG_S + BASE_S


def test_an_unknown_kind_on_unrelated_targets_changes_nothing() -> None:
    """The targets are another client, another topic, or another rack's links."""
    for touched in ({"clients": ("w-base-consume",)}, {"topics": ("other",)}, {"links": ("client_b-k3",)}):
        assert [(10, 130)] == due_s(Play([lasting("mystery", 40, 60, **touched)]))


def test_a_fault_without_heal_lasts_to_the_end() -> None:
    """The fault is an unknown action without ``for``, its heal failed, or its injection failed halfway."""
    stays = Fault("mystery", 40, 40, 41, 41, topics=("orders",), lasting=False)
    unhealed = Fault("kill", 40, 40, 60, 90, brokers=(3,), failed=True)

    assert [(10, 40)] == due_s(Play([stays]))
    assert [(10, 40)] == due_s(Play([unhealed]))


def test_moving_leaders_costs_a_metadata_request() -> None:
    """A rotation affects no replica; a rotation that completes at once extends the permitted stall by one grace."""
    play = Play([Fault("rotate", 40, 40, 45, 45, topics=("orders",), lasting=False)])

    assert [(10, 45), (45 + FIND_S, 130)] == due_s(play)


def test_no_progress_is_due_if_a_lost_node_may_have_been_the_only_one_in_sync() -> None:
    """Followers could not fetch from node 1, so node 1 may have been alone in the ISR when it died."""
    deaf = lasting("cut", 20, 40, links=("replication_b-k1", "replication_c-k1"))
    soon = Play([deaf, lasting("kill", 45, 100, brokers=(1,), controller=False)], in_sync_min=1)
    late = Play([deaf, lasting("kill", 70, 100, brokers=(1,), controller=False)], in_sync_min=1)

    assert not any(start < 95 < end for start, end in due_s(soon))
    assert any(start < 95 < end for start, end in due_s(late))


def test_a_group_gets_time_to_rebalance_and_a_killed_member_its_session() -> None:
    """A consumer without a group gets neither extension. The coordinator, too, may be a broker that was cut off."""
    fault = lasting("refuse", 40, 70, links=("client_a-k2",))
    killed = lasting("mystery", 40, 50, clients=("w-base-consume",))
    alone, member = Play([fault]), Play([fault], group="g")

    assert due_s(alone, "consume")[1][0] + COORDINATOR_S == due_s(member, "consume")[1][0]
    assert 50 + 30 == due_s(Play([killed], group="g"), "consume")[1][0]  # of an unknown fault no more than 30 s


def test_no_progress_is_due_in_runs_without_recorded_voters() -> None:
    """Older evidence and runs on attached clusters do not record the voters."""
    evidence = Play().evidence()
    untold = {key: value for key, value in evidence.run.items() if key != "voters"}

    assert [] == lanes(replace(evidence, run=untold))


def cut_off(rack: str, node: int) -> tuple[str, ...]:
    """Return every link into and out of a rack with one of the play's three nodes."""
    others = [other for other in (1, 2, 3) if other != node]
    inner = [f"{channel}_{rack}-k{other}" for channel in ("replication", "controller") for other in others]
    inner += [
        f"{channel}_{home}-k{node}" for channel in ("replication", "controller") for home in "abc" if home != rack
    ]
    outer = [f"client_{home}-k{node}" for home in "abc" if home != rack]
    return (*inner, *outer, *(f"client_{rack}-k{other}" for other in others))


GROUP_S = 3 + 3 + 2
"""A heartbeat, the initial delay of a rebalance, and its rounds."""
MEMBERS_S, EXPELLED_S = 45, 300


@pytest.mark.parametrize(
    ("kind", "noticed_s"),
    [("leave", 0), ("kill_client", MEMBERS_S), ("evict", EXPELLED_S)],
)
def test_the_other_members_owe_progress(kind: str, noticed_s: int) -> None:
    """After the group has noticed that a member is away and has rebalanced, while the member is still away, and when it
    is back.
    """
    away = Play(
        [lasting(kind, 40, 500, clients=("w-base-consume-2",))], group="readers", members=3, start_s=10, end_s=600
    )
    spans = due_s(away, "consume")
    assert [(10, 40), (40 + noticed_s + FIND_S + GROUP_S, 600)] == spans


def test_a_group_without_any_member_owes_nothing() -> None:
    """All members are away, or the only one; their sessions outlast them, so the group first waits for their end."""
    workers = tuple(f"w-base-consume-{number}" for number in (1, 2))
    nobody = Play([lasting("kill_client", 40, 70, clients=workers)], group="readers", members=2)
    alone = Play([lasting("kill_client", 40, 70, clients=("w-base-consume",))], group="readers")
    for play in (nobody, alone):
        assert [(10, 40), (40 + MEMBERS_S + FIND_S + GROUP_S, 130)] == due_s(play, "consume")


def test_a_new_member_stops_the_others_for_a_rebalance() -> None:
    """When it joins and when it leaves; members in reserve do not count as running."""
    more = Play([lasting("join", 40, 70, clients=("w-base-consume-2",))], group="readers", members=1, reserve=1)
    assert [(10, 40), (40 + FIND_S + GROUP_S, 70), (70 + FIND_S + GROUP_S, 130)] == due_s(more, "consume")
    gone = Play([lasting("leave", 40, 70, clients=("w-base-consume-1",))], group="readers", members=1, reserve=1)
    assert [(10, 40), (70 + FIND_S + GROUP_S, 130)] == due_s(gone, "consume")


def test_late_answers_to_all_members_stop_none_of_them() -> None:
    """A protocol fault names the processes whose requests it hits; they run, and owe progress beside a new member."""
    join = lasting("join", 40, 70, clients=("w-base-consume-2",))
    rule = {"do": "delay_response", "api": "Heartbeat", "delay_ms": 100}
    late = lasting("tamper", 35, 80, rule=rule, clients=("w-base-consume-1", "w-base-consume-2"))
    with_both = Play([late, join], group="readers", members=1, reserve=1)
    assert due_s(Play([join], group="readers", members=1, reserve=1), "consume") == due_s(with_both, "consume")


def test_members_that_were_killed_while_they_joined_keep_partitions_for_a_session() -> None:
    """The group may have given partitions to members that no longer exist, although all members are back."""
    workers = tuple(f"w-base-consume-{number}" for number in (1, 2))
    churn = Play([lasting("churn", 40, 70, clients=workers)], group="readers", members=3, start_s=10, end_s=300)
    assert (70 + MEMBERS_S + FIND_S + GROUP_S, 300) == due_s(churn, "consume")[-1]

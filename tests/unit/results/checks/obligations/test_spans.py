"""When progress is owed: each rule by the fault that shows it. The figures are those of the play's settings."""

import pytest

from aftershock.results.checks.obligations.stalls import Lane, lanes
from aftershock.results.slo import Side
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S, lasting

BASE_S = 1 + 1.2 + 1  # reconnect, retry, a metadata request
SESSION_S = 3.5
QUORUM_S = 6
BOOT_S = 10
LAG_S = 7.5
UNTOLD_S = 2 * 2 + 2


def lane(play: Play, side: Side = "produce") -> Lane:
    """What one side of the play's only client was owed."""
    return next(one for one in lanes(play.evidence()) if one.side == side)


def owed_s(play: Play, side: Side = "produce") -> list[tuple[float, float]]:
    """The spans in which partition 0 was owed progress, in seconds, neighbours joined."""
    joined: list[tuple[float, float]] = []
    for span in (span for span in lane(play, side).of(0) if span.owed):
        start = joined.pop()[0] if joined and joined[-1][1] == span.start_us / S else span.start_us / S
        joined.append((start, span.end_us / S))
    return joined


def test_without_faults_progress_is_owed_from_warm_up_to_the_end() -> None:
    """There is nothing to wait for."""
    assert [(10, 130)] == owed_s(Play())


def test_a_rehearsal_owes_as_if_there_were_no_fault() -> None:
    """Its journal says that faults were injected, and they weren't."""
    evidence = Play([lasting("kill", 40, 70, brokers=(3,))]).evidence()
    rehearsed = lanes(evidence.__class__(**{**vars(evidence), "run": {**evidence.run, "rehearse": True}}))

    assert [True] == [span.owed for span in rehearsed[0].whole]


def test_a_dead_node_gives_grace_for_its_session_and_the_quorum_if_it_may_have_ruled() -> None:
    """Two of three replicas are left: after the grace progress is owed although the node is still dead."""
    bystander = Play([lasting("kill", 40, 70, brokers=(3,), controller=False)])
    ruler = Play([lasting("kill", 40, 70, brokers=(3,), controller=True)])

    assert [(10, 40), (40 + SESSION_S + BASE_S, 70), (70 + BASE_S, 130)] == owed_s(bystander)
    assert 40 + QUORUM_S + SESSION_S + BASE_S == owed_s(ruler)[1][0]


def test_a_frozen_node_tells_nobody() -> None:
    """The client's requests must time out first: twice, and a connection."""
    frozen = Play([lasting("pause", 40, 70, brokers=(3,), controller=False)])

    assert 40 + SESSION_S + BASE_S + UNTOLD_S == owed_s(frozen)[1][0]


def test_a_dead_controller_that_is_no_broker_costs_an_election_only() -> None:
    """Isolated controllers: its death takes no replica."""
    play = Play([lasting("kill", 40, 70, brokers=(11,), controller=True)], isolated=(11, 12, 13))
    play.racks.update({11: "a", 12: "b", 13: "c"})

    grace = QUORUM_S + SESSION_S + BASE_S
    assert [(10, 40), (40 + grace, 70), (70 + BOOT_S + grace, 130)] == owed_s(play)


def test_nothing_is_owed_below_min_insync_replicas() -> None:
    """Two of three are dead, and one is left of the two that are needed."""
    play = Play([lasting("kill", 40, 70, brokers=(2,)), lasting("kill", 41, 71, brokers=(3,))])

    assert not any(start < 60 < end for start, end in owed_s(play))


def test_nothing_is_owed_without_a_majority_of_voters() -> None:
    """One replica would do, but no controller can be elected to make it the leader."""
    play = Play([lasting("kill", 40, 70, brokers=(2, 3))], in_sync_min=1)

    whys = {span.why for span in lane(play).of(0) if span.start_us <= 60 * S < span.end_us}
    assert {"no majority of the voters is certain to agree on a controller (kill-40)"} == whys


def test_a_cut_rack_is_fenced_and_the_others_go_on() -> None:
    """Rack c is cut off both ways, from clients too: after quorum, session, lag and the client's own, it is owed."""
    play = Play([lasting("cut", 40, 80, links=cut_off("c", 3))])

    grace = QUORUM_S + SESSION_S + LAG_S + BASE_S
    assert [(10, 40), (40 + grace + UNTOLD_S, 80), (80 + grace, 130)] == owed_s(play)


def test_a_cut_off_node_that_clients_still_reach_owes_nothing() -> None:
    """It may answer metadata requests with the leaders of yesterday."""
    links = tuple(link for link in cut_off("c", 3) if not link.startswith("client_"))

    assert [(10, 40)] == owed_s(Play([lasting("cut", 40, 80, links=links)]))[:1]
    assert not any(start < 79 < end for start, end in owed_s(Play([lasting("cut", 40, 80, links=links)])))


def test_half_a_cut_leaves_open_who_rules() -> None:
    """Node 3 hears the others' controllers, they don't hear it, or the other way round."""
    for links in (("controller_c-k1", "controller_c-k2"), ("controller_a-k3", "controller_b-k3")):
        assert not any(start < 79 < end for start, end in owed_s(Play([lasting("cut", 40, 80, links=links)])))


def test_followers_that_cannot_fetch_count_against_the_leader_they_fetch_from() -> None:
    """Nodes 2 and 3 can't fetch from 1, which may lead: one of the two replicas needed is left, or one is enough."""
    deaf = lasting("cut", 40, 80, links=("replication_b-k1", "replication_c-k1"))

    assert not any(start < 79 < end for start, end in owed_s(Play([deaf])))
    assert any(start < 79 < end for start, end in owed_s(Play([deaf], in_sync_min=1)))


def test_a_client_cut_from_a_possible_leader_is_owed_nothing() -> None:
    """Kafka does not move a leader because one client can't reach it; clients of another rack are not concerned."""
    assert [(10, 40), (70 + BASE_S, 130)] == owed_s(Play([lasting("refuse", 40, 70, links=("client_a-k2",))]))
    assert [(10, 130)] == owed_s(Play([lasting("refuse", 40, 70, links=("client_b-k2",))]))


def test_partitions_elsewhere_are_owed_all_the_time() -> None:
    """Node 4 holds nothing of the partition and does not vote."""
    play = Play([lasting("kill", 40, 70, brokers=(4,))], isolated=(11, 12, 13))
    play.racks.update({4: "a", 11: "a", 12: "b", 13: "c"})

    assert [(10, 130)] == owed_s(play)


def test_a_restart_owes_progress_and_allows_two_graces() -> None:
    """When it went and came back nobody wrote down; two graces of silence are allowed while it lasts."""
    play = Play([Fault("restart", 40, 40, 60, 60, brokers=(3,), lasting=False, controller=False)])

    during = next(span for span in lane(play).of(0) if span.start_us == 40 * S)
    assert (True, 60 * S) == (during.owed, during.end_us)
    assert 5 * S + 2 * (SESSION_S + BASE_S) * S == during.patience_us
    assert [(10, 60), (60 + BASE_S, 130)] == owed_s(play)


def test_a_rolling_restart_allows_two_graces_a_node_and_is_held_to_each_being_away() -> None:
    """With all replicas needed nothing is owed while one after the other is away."""
    roll = Fault("roll", 40, 40, 90, 90, brokers=(1, 2, 3), lasting=False, controller=False)

    during = next(span for span in lane(Play([roll])).of(0) if span.start_us == 40 * S)
    assert 5 * S + round(6 * (SESSION_S + BASE_S + UNTOLD_S) * S) == during.patience_us
    assert not any(start < 60 < end for start, end in owed_s(Play([roll], in_sync_min=3)))


def test_links_that_are_late_by_moments_add_to_the_patience() -> None:
    """Client links only; a heartbeat between nodes that comes late may be too late."""
    late = lane(Play([lasting("late", 40, 80, links=("client_a-k1",))])).of(0)
    slow_nodes = Play([lasting("late", 40, 80, links=("controller_a-k2",))])

    assert 15 * S == next(span for span in late if span.start_us <= 70 * S < span.end_us).patience_us
    assert not any(start < 79 < end for start, end in owed_s(slow_nodes))


@pytest.mark.parametrize(
    "touched",
    [{"brokers": (2,)}, {"links": ("client_a-k3",)}, {"topics": ("orders",)}, {"clients": ("w-base-produce",)}, {}],
)
def test_an_unknown_kind_owes_nothing_of_what_it_touches_until_all_has_settled(touched: dict[str, object]) -> None:
    """A kind that declares nothing gets the benefit of every doubt, also one that has no target at all."""
    spans = owed_s(Play([lasting("mystery", 40, 60, **touched)]))

    assert [(10, 40)] == spans[:1]
    assert 60 + BASE_S + UNTOLD_S <= spans[1][0] <= 60 + QUORUM_S + SESSION_S + LAG_S + BASE_S + UNTOLD_S


def test_an_unknown_kind_elsewhere_changes_nothing() -> None:
    """Another client, another topic, another rack's links."""
    for touched in ({"clients": ("w-base-consume",)}, {"topics": ("other",)}, {"links": ("client_b-k3",)}):
        assert [(10, 130)] == owed_s(Play([lasting("mystery", 40, 60, **touched)]))


def test_what_is_not_undone_lasts_to_the_end() -> None:
    """An unknown action without ``for``, or a fault whose heal failed, or that failed half way."""
    stays = Fault("mystery", 40, 40, 41, 41, topics=("orders",), lasting=False)
    unhealed = Fault("kill", 40, 40, 60, 90, brokers=(3,), failed=True)

    assert [(10, 40)] == owed_s(Play([stays]))
    assert [(10, 40)] == owed_s(Play([unhealed]))


def test_moving_leaders_cost_a_metadata_request() -> None:
    """A rotation is no harm to the replicas; one that was done at once is judged with a grace more of patience."""
    play = Play([Fault("rotate", 40, 40, 45, 45, topics=("orders",), lasting=False)])

    assert [(10, 45), (45 + BASE_S, 130)] == owed_s(play)


def test_a_node_lost_while_the_isr_may_be_narrow_is_unknown() -> None:
    """Followers could not fetch from node 1, so it may have been the only one in sync when it died."""
    deaf = lasting("cut", 20, 40, links=("replication_b-k1", "replication_c-k1"))
    soon = Play([deaf, lasting("kill", 45, 100, brokers=(1,), controller=False)], in_sync_min=1)
    late = Play([deaf, lasting("kill", 70, 100, brokers=(1,), controller=False)], in_sync_min=1)

    assert not any(start < 95 < end for start, end in owed_s(soon))
    assert any(start < 95 < end for start, end in owed_s(late))


def test_a_group_gets_time_to_rebalance_and_a_killed_member_its_session() -> None:
    """A consumer outside any group needs neither."""
    fault = lasting("refuse", 40, 70, links=("client_a-k2",))
    killed = lasting("mystery", 40, 50, clients=("w-base-consume",))
    alone, member = Play([fault]), Play([fault], group="g")

    assert owed_s(alone, "consume")[1][0] + 3 + 3 + 2 == owed_s(member, "consume")[1][0]
    assert owed_s(Play([killed], group="g"), "consume")[1][0] >= 50 + 45


def test_a_run_that_does_not_tell_its_voters_is_owed_nothing() -> None:
    """Evidence from before voters were recorded, or a cluster that was only attached."""
    evidence = Play().evidence()
    untold = {key: value for key, value in evidence.run.items() if key != "voters"}

    assert [] == lanes(evidence.__class__(**{**vars(evidence), "run": untold}))


def cut_off(rack: str, node: int) -> tuple[str, ...]:
    """Every link into and out of a rack that holds one of the play's three nodes."""
    others = [other for other in (1, 2, 3) if other != node]
    inner = [f"{channel}_{rack}-k{other}" for channel in ("replication", "controller") for other in others]
    inner += [
        f"{channel}_{home}-k{node}" for channel in ("replication", "controller") for home in "abc" if home != rack
    ]
    outer = [f"client_{home}-k{node}" for home in "abc" if home != rack]
    return (*inner, *outer, *(f"client_{rack}-k{other}" for other in others))

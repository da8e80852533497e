"""Prediction of quorum and ISR for a dry run: each sentence with the smallest loss that causes it."""

import pytest

from aftershock.faults.kinds.fault import Impact
from aftershock.faults.runtime.record import Targets
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.adhoc.inject import ClusterState, survival

RACKS = {BrokerId(1): "a", BrokerId(2): "b", BrokerId(3): "c"}
FINE = ["a quorum and enough in-sync replicas for acks=all remain"]


def standing(
    isr: tuple[int, ...] = (1, 2, 3), leader: int | None = 1, needed: int = 2, partitions: int = 1
) -> ClusterState:
    """Three combined nodes, ``orders`` on all of them."""
    members, ruler = tuple(map(BrokerId, isr)), None if leader is None else BrokerId(leader)
    states = [PartitionState("orders", number, ruler, 1, tuple(RACKS), members) for number in range(partitions)]
    return ClusterState(RACKS, frozenset(RACKS), states, {"orders": needed})


def test_quorum_and_isr_survive_one_node_of_three() -> None:
    """Two voters and two in-sync replicas remain, and two are needed."""
    assert survival("nodes", Targets(brokers=(1,)), standing()) == FINE


def test_losing_two_nodes_of_three_breaks_quorum_and_isr() -> None:
    """Both failures are reported, the quorum first."""
    told = survival("nodes", Targets(brokers=(1, 2)), standing())

    assert told == [
        "the metadata quorum would have 1 of 3 voters: no controller",
        "orders/0 would have 1 of the 2 in-sync replicas that acks=all needs, so such producers would stop",
    ]


def test_a_replica_out_of_sync_does_not_count() -> None:
    """Node 3 runs but lags: without node 2 the leader is alone in the ISR."""
    told = survival("nodes", Targets(brokers=(2,)), standing(isr=(1, 2)))

    assert told == ["orders/0 would have 1 of the 2 in-sync replicas that acks=all needs, so such producers would stop"]


def test_losing_the_last_in_sync_replica_leaves_no_leader() -> None:
    """Other replicas live, but none is in sync."""
    told = survival("nodes", Targets(brokers=(1,)), standing(isr=(1,), needed=1))

    assert told == ["orders/0 would have no leader: the fault leaves no in-sync replica of the partition"]


def test_a_rolling_fault_is_predicted_node_by_node() -> None:
    """Three nodes in turn are not a loss of three; with three replicas needed, each single loss fails."""
    rolling = Targets(brokers=(1, 2, 3))

    assert survival("one node", rolling, standing()) == FINE
    assert len(survival("one node", rolling, standing(needed=3))) == 1


def test_followers_that_cannot_fetch_leave_the_isr() -> None:
    """The links into the leader on the replication listener; the quorum is not concerned."""
    deaf = Targets(links=("replication_b-k1", "replication_c-k1"))

    told = survival("links", deaf, standing())
    assert told == ["orders/0 would have 1 of the 2 in-sync replicas that acks=all needs, so such producers would stop"]


def test_a_leader_that_is_cut_off_is_fenced() -> None:
    """Rack a loses every link: node 1 is fenced, and nodes 2 and 3 are two of three voters and in sync."""
    others = [f"{channel}_a-k{node}" for channel in ("replication", "controller") for node in (2, 3)]
    others += [f"{channel}_{rack}-k1" for channel in ("replication", "controller") for rack in "bc"]

    assert survival("links", Targets(links=tuple(others)), standing()) == FINE


def test_voters_cut_off_from_each_other_elect_no_controller() -> None:
    every = tuple(f"controller_{rack}-k{node}" for rack in "abc" for node, home in RACKS.items() if rack != home)

    assert survival("links", Targets(links=every), standing())[0].startswith("the metadata quorum would have")


@pytest.mark.parametrize("impact", ["moments", "leaders"])
def test_faults_without_impact_survive(impact: Impact) -> None:
    """Faults without impact on nodes or links survive with any number of targets."""
    (sentence,) = survival(impact, Targets(brokers=(1, 2, 3), topics=("orders",)), standing())
    assert "this fault takes away no node and no link" in sentence


def test_an_unknown_impact_is_predicted_as_the_worst_case() -> None:
    told = survival("unknown", Targets(brokers=(1, 2)), standing(partitions=6))

    assert told[0].startswith("at worst, if the targets of the fault serve no requests: the metadata quorum")
    assert "orders/0, orders/1, orders/2, orders/3 and 2 more would have 1 of the 2" in told[1]

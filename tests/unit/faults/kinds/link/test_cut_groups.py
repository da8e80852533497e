"""Groups of a cut: which node receives from which, drawn rings of any size, and groups that links can't separate."""

from __future__ import annotations

import pytest

from aftershock.errors import FaultError
from aftershock.faults.kinds.link.cut import all_links, minority, of_groups, of_ring, permutation, streams_of

FIVE = dict(zip(range(1, 6), "abcde", strict=True))
ISOLATED = {1: "a", 2: "b", 3: "c", 11: "a", 12: "b", 13: "c"}


@pytest.mark.parametrize("racks", [3, 4, 5])
def test_each_rack_of_a_ring_receives_from_a_different_majority(racks: int) -> None:
    """This is Jepsen's definition of a majorities ring."""
    homes = dict(zip(range(1, racks + 1), "abcde"[:racks], strict=True))
    grudge = of_ring("abcde"[:racks], homes)
    heard = {t: frozenset(s for s in homes if (s, t) not in grudge) for t in homes}
    assert {racks // 2 + 1} == {len(each) for each in heard.values()}
    assert all(node in each for node, each in heard.items())
    assert racks == len({*heard.values()})


def test_an_odd_majority_is_symmetric() -> None:
    """On five racks each rack exchanges data with its two neighbours."""
    grudge = of_ring("abcde", FIVE)
    assert all((t, s) in grudge for s, t in grudge)
    assert {2, 5} == {s for s in FIVE if s != 1 and (s, 1) not in grudge}


def test_groups_one_way() -> None:
    """In: the first group receives nothing; out: it can't send; links between the other groups are not cut."""
    groups = [[1, 2], [3]]
    assert {(3, 1), (3, 2)} == of_groups(groups, "in")
    assert {(1, 3), (2, 3)} == of_groups(groups, "out")
    assert of_groups(groups, "in") | of_groups(groups, "out") == of_groups(groups, "both")


@pytest.mark.parametrize(("order", "few"), [("cab", [3]), ("ecdab", [3, 5])])
def test_a_minority_is_less_than_half(order: str, few: list[int]) -> None:
    """The minority is the first racks of the drawn order."""
    homes = dict(zip(range(1, len(order) + 1), sorted(order), strict=True))
    assert [few, sorted({*homes} - {*few})] == minority(order, homes)


def test_every_permutation_can_be_drawn() -> None:
    """All six permutations of three racks occur, except the one that must be avoided."""
    assert 6 == len({permutation("abc", (n + 0.5) / 6) for n in range(6)})
    assert ("a", "b", "c") not in {permutation("abc", n / 100, unlike=("a", "b", "c")) for n in range(100)}


def test_isolated_controllers_of_whole_racks() -> None:
    """A group of racks includes brokers and controllers: replication and controller links, both streams of each."""
    cut = streams_of(of_groups([[1, 11], [2, 3, 12, 13]], "both"), all_links(ISOLATED, (1, 2, 3)), ISOLATED, (1, 2, 3))
    assert {
        "replication_a-k2", "replication_a-k3", "replication_b-k1", "replication_c-k1",
        "controller_a-k12", "controller_a-k13", "controller_b-k11", "controller_c-k11",
    } <= {stretch.link.proxy for stretch in cut}  # fmt: skip


def test_brokers_alone_keep_their_controllers() -> None:
    """Groups of brokers on a cluster with isolated controllers cut no controller link."""
    cut = streams_of(of_groups([[1], [2, 3]], "both"), all_links(ISOLATED, (1, 2, 3)), ISOLATED, (1, 2, 3))
    assert {"replication"} == {stretch.link.channel for stretch in cut}


def test_a_broker_and_controller_of_one_rack_share_a_link() -> None:
    """Broker 3 and controller 13 reach controller 11 over one link, so neither can be cut off alone."""
    with pytest.raises(FaultError, match="nodes 13 and 3 are both in rack c and use the same link to node 11"):
        streams_of(of_groups([[11], [13]], "both"), all_links(ISOLATED, (1, 2, 3)), ISOLATED, (1, 2, 3))

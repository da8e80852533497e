"""The assignors of the classic protocol: Kafka's examples, and balance and stickiness of random groups."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.assignors import (
    ASSIGNORS,
    GroupAssignment,
    Members,
    RebalanceProtocol,
    Subscription,
    assign_cooperatively,
    assign_ranges,
    assign_round_robin,
    assign_sticky,
    rebalance_protocol,
)
from aftershock.workloads.kafka.rules.values import TopicPartition

T0, T1, T2 = "t0", "t1", "t2"


def place(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def owning(generation: int, *partitions: TopicPartition) -> Subscription:
    return Subscription((T0,), tuple(partitions), generation)


def test_range_gives_the_first_members_one_partition_more_of_each_topic() -> None:
    """The example in the documentation of RangeAssignor."""
    members = {"c0": Subscription((T0, T1)), "c1": Subscription((T0, T1))}
    assert {
        "c0": [*place(T0, 0, 1), *place(T1, 0, 1)],
        "c1": [*place(T0, 2), *place(T1, 2)],
    } == assign_ranges({T0: 3, T1: 3}, members)


def test_range_assigns_a_topic_to_its_subscribers_only() -> None:
    members = {"c0": Subscription((T0,)), "c1": Subscription((T0, T1)), "c2": Subscription(())}
    assert {
        "c0": place(T0, 0),
        "c1": [*place(T0, 1), *place(T1, 0, 1)],
        "c2": [],
    } == assign_ranges({T0: 2, T1: 2}, members)


def test_a_topic_without_metadata_is_left_out() -> None:
    for assign in ASSIGNORS.values():
        assert {"c0": place(T0, 0)} == assign({T0: 1}, {"c0": Subscription((T0, T1))})


def test_round_robin_with_equal_subscriptions() -> None:
    """The first example in the documentation of RoundRobinAssignor."""
    members = {"c0": Subscription((T0, T1)), "c1": Subscription((T0, T1))}
    assert {
        "c0": [*place(T0, 0, 2), *place(T1, 1)],
        "c1": [*place(T0, 1), *place(T1, 0, 2)],
    } == assign_round_robin({T0: 3, T1: 3}, members)


def test_round_robin_skips_members_without_the_topic() -> None:
    """The second example in the documentation of RoundRobinAssignor."""
    members = {"c0": Subscription((T0,)), "c1": Subscription((T0, T1)), "c2": Subscription((T0, T1, T2))}
    assert {
        "c0": place(T0, 0),
        "c1": place(T1, 0),
        "c2": [*place(T1, 1), *place(T2, 0, 1, 2)],
    } == assign_round_robin({T0: 1, T1: 2, T2: 3}, members)


@pytest.mark.parametrize("assign", [assign_ranges, assign_round_robin])
def test_a_static_member_keeps_its_place_under_a_new_member_id(assign: object) -> None:
    """KIP-345: the order is that of the instance ids, and members without one come last."""
    assert callable(assign)
    before = {"a": Subscription((T0,), instance_id="i1"), "b": Subscription((T0,), instance_id="i0")}
    after = {"z": before["b"], "a": before["a"], "0": Subscription((T0,))}
    assert {"b": place(T0, 0), "a": place(T0, 1)} == assign({T0: 2}, before)
    assert {"z": place(T0, 0), "a": place(T0, 1), "0": []} == assign({T0: 2}, after)


def test_sticky_keeps_what_members_own_and_deals_the_rest() -> None:
    """A third member comes: both others give up one partition, and keep the others."""
    members = {"c0": owning(1, *place(T0, 0, 2, 4)), "c1": owning(1, *place(T0, 1, 3, 5)), "c2": Subscription((T0,))}
    assert {"c0": place(T0, 0, 2), "c1": place(T0, 1, 3), "c2": place(T0, 4, 5)} == assign_sticky({T0: 6}, members)


def test_a_member_with_more_than_the_lower_quota_keeps_the_upper_quota() -> None:
    """Five partitions of two members: the owner of three keeps all three, whatever the order of the members."""
    members = {"c0": owning(1, *place(T0, 0)), "c1": owning(1, *place(T0, 1, 2, 3))}
    assert {"c0": place(T0, 0, 4), "c1": place(T0, 1, 2, 3)} == assign_sticky({T0: 5}, members)


def test_sticky_orders_members_by_their_ids() -> None:
    """Unlike range and roundrobin, Kafka's sticky assignors don't know instance ids."""
    members = {"c1": Subscription((T0,), instance_id="i0"), "c0": Subscription((T0,), instance_id="i1")}
    assert {"c0": place(T0, 0), "c1": []} == assign_sticky({T0: 1}, members)


def test_who_kept_its_quota_gets_one_more_before_who_was_filled_up() -> None:
    members = {"c0": Subscription((T0,)), "c1": owning(1, *place(T0, 0))}
    assert {"c0": place(T0, 1), "c1": place(T0, 0, 2)} == assign_sticky({T0: 3}, members)


def test_a_partition_goes_back_to_its_owner_of_an_earlier_generation() -> None:
    """Of the partitions that have to move, where members have different subscriptions."""
    members = {
        "c0": Subscription((T0,), tuple(place(T0, 0, 1, 2, 3)), 2),
        "c1": Subscription((T0, T1)),
        "c2": Subscription((T0,), tuple(place(T0, 0)), 1),
    }
    assert {"c0": place(T0, 2, 3), "c1": place(T0, 1), "c2": place(T0, 0)} == assign_sticky({T0: 4}, members)


def test_the_later_generation_owns_a_partition() -> None:
    """A member that missed a rebalance still claims a partition that another member has by now."""
    members = {"c0": owning(4, *place(T0, 0, 1)), "c1": owning(5, *place(T0, 1, 2))}
    assert {"c0": place(T0, 0), "c1": place(T0, 1, 2)} == assign_sticky({T0: 3}, members)
    assert {"c0": place(T0, 0), "c1": place(T0, 1, 2)} == assign_cooperatively({T0: 3}, members)


def test_two_claims_of_one_generation_are_both_void() -> None:
    """Nobody may have it at once in a cooperative group: whoever claims it must revoke it first."""
    members = {"c0": owning(5, *place(T0, 0)), "c1": owning(5, *place(T0, 0))}
    assert 1 == sum(map(len, assign_sticky({T0: 1}, members).values()))
    assert {"c0": [], "c1": []} == assign_cooperatively({T0: 1}, members)


def test_a_partition_that_is_gone_is_not_assigned() -> None:
    """A topic was created again with fewer partitions."""
    assert {"c0": place(T0, 0)} == assign_sticky({T0: 1}, {"c0": owning(1, *place(T0, 0, 1), *place(T1, 0))})


def test_cooperative_sticky_withholds_partitions_that_change_their_owner() -> None:
    """KIP-429: the new member gets them in the next rebalance, when their owner has revoked them."""
    members = {"c0": owning(1, *place(T0, 0, 1, 2, 3)), "c1": Subscription((T0,))}
    first = assign_cooperatively({T0: 4}, members)
    assert {"c0": place(T0, 0, 1), "c1": []} == first
    assert {"c0": place(T0, 0, 1), "c1": place(T0, 2, 3)} == assign_cooperatively({T0: 4}, follow(members, first, 2))


def test_the_rebalance_protocol_is_the_best_that_all_assignors_support() -> None:
    """Only a member with nothing but cooperative assignors keeps its partitions while it joins."""
    assert RebalanceProtocol.COOPERATIVE is rebalance_protocol(["cooperative-sticky"])
    assert RebalanceProtocol.EAGER is rebalance_protocol(["range", "cooperative-sticky"])
    assert RebalanceProtocol.EAGER is rebalance_protocol(["range", "roundrobin", "sticky"])


# ---- random groups


def follow(members: Members, assignment: GroupAssignment, generation: int) -> dict[str, Subscription]:
    """Return the members with what they own after the assignment."""
    return {
        name: member._replace(owned=tuple(assignment[name]), generation=generation) for name, member in members.items()
    }


TOPICS = st.dictionaries(st.sampled_from([T0, T1, T2]), st.integers(1, 7), min_size=1)
NAMES = st.sets(st.sampled_from("abcdef"), min_size=1)
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from([T0, T1, T2]), min_size=1), min_size=1
)
CLAIMS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([T0, T1, T2]), st.integers(0, 8), st.integers(-1, 2)),
    max_size=20,
)


def group(subscribed: Mapping[str, set[str]], claims: list[tuple[str, str, int, int]]) -> dict[str, Subscription]:
    return {
        name: Subscription(
            tuple(sorted(topics)),
            tuple(dict.fromkeys(TopicPartition(t, number) for owner, t, number, _ in claims if owner == name)),
            max((generation for owner, _, _, generation in claims if owner == name), default=-1),
        )
        for name, topics in subscribed.items()
    }


@settings(max_examples=200, deadline=None)
@given(TOPICS, SUBSCRIPTIONS, CLAIMS, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_is_assigned_once_to_a_subscriber(
    counts: dict[str, int], subscribed: dict[str, set[str]], claims: list[tuple[str, str, int, int]], name: str
) -> None:
    """Every partition of a topic with a subscriber is assigned; cooperative-sticky may withhold some."""
    members = group(subscribed, claims)
    assignment = ASSIGNORS[name](counts, members)
    assert members.keys() == assignment.keys()
    assigned = [tp for partitions in assignment.values() for tp in partitions]
    assert len(set(assigned)) == len(assigned)
    assert all(tp.topic in members[member].topics for member, partitions in assignment.items() for tp in partitions)
    topics = {topic for member in members.values() for topic in member.topics}
    expected = {TopicPartition(t, number) for t, count in counts.items() if t in topics for number in range(count)}
    withheld = expected - set(assigned)
    assert set(assigned) <= expected
    assert not withheld or name == "cooperative-sticky"
    assert withheld <= {tp for member in members.values() for tp in member.owned}


@settings(max_examples=200, deadline=None)
@given(TOPICS, SUBSCRIPTIONS, CLAIMS)
def test_sticky_assignments_are_balanced(
    counts: dict[str, int], subscribed: dict[str, set[str]], claims: list[tuple[str, str, int, int]]
) -> None:
    """No partition could move to another subscriber that has at least two fewer (Kafka's ``isBalanced``)."""
    members = group(subscribed, claims)
    assignment = assign_sticky(counts, members)
    sizes = {name: len(partitions) for name, partitions in assignment.items()}
    for name, partitions in assignment.items():
        for tp in partitions:
            assert all(sizes[name] <= sizes[other] + 1 for other in members if tp.topic in members[other].topics)


@settings(max_examples=200, deadline=None)
@given(TOPICS, NAMES, NAMES)
def test_sticky_moves_no_more_than_balance_demands(counts: dict[str, int], before: set[str], after: set[str]) -> None:
    """Independent oracle for equal subscriptions: a member keeps everything that its quota allows."""
    topics = tuple(sorted(counts))
    first = assign_sticky(counts, {name: Subscription(topics) for name in before})
    members = {name: Subscription(topics, tuple(first.get(name, ())), 1) for name in after}
    second = assign_sticky(counts, members)
    total = sum(counts.values())
    low, larger = divmod(total, len(after))
    owned = sorted((len(members[name].owned) for name in after), reverse=True)
    quotas = [low + 1] * larger + [low] * (len(after) - larger)
    kept = sum(len(set(second[name]) & set(members[name].owned)) for name in after)
    assert sum(map(min, owned, quotas)) == kept


@settings(max_examples=200, deadline=None)
@given(TOPICS, SUBSCRIPTIONS, SUBSCRIPTIONS)
def test_cooperative_members_never_share_a_partition_and_settle(
    counts: dict[str, int], before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    """Nobody gets what another member owns; after two rebalances everything is assigned, and nothing moves."""
    first = assign_sticky(counts, group(before, []))
    members = {
        name: Subscription(tuple(sorted(topics)), tuple(first.get(name, ())), 1) for name, topics in after.items()
    }
    for generation in (2, 3):
        assignment = assign_cooperatively(counts, members)
        for name, partitions in assignment.items():
            others = {tp for other, member in members.items() if other != name for tp in member.owned}
            assert others.isdisjoint(partitions)
        members = follow(members, assignment, generation)
    assert assign_sticky(counts, members) == assign_cooperatively(counts, members)
    topics = {topic for member in members.values() for topic in member.topics}
    assert sum(map(len, assign_sticky(counts, members).values())) == sum(
        count for topic, count in counts.items() if topic in topics
    )

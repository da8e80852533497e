"""The weights of an adaptive draw, KIP-794's example first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.partitioner import LoadTable, TopicView, load_table

VIEW = TopicView(3, {0: 1, 1: 2, 2: 3})


def test_kafkas_example() -> None:
    """Queues 0, 3, 1 have the weights 4, 1, 3 and the table 4, 5, 8; 0…3 fall to the first, 4 to the second."""
    table = load_table(VIEW, {0: 0, 1: 3, 2: 1}, ())
    assert table == LoadTable((0, 1, 2), (4, 5, 8))
    assert [0, 0, 0, 0, 1, 2, 2, 2, 0] == [table.at(number) for number in range(9)]


@pytest.mark.parametrize(
    ("queued", "late"),
    [
        pytest.param({0: 2, 1: 0}, (), id="a partition that never had a batch"),
        pytest.param({0: 1, 1: 1, 2: 1}, (), id="all equally long"),
        pytest.param({0: 1, 1: 1, 2: 1}, (9,), id="all equally long, a stranger late"),
        pytest.param({0: 4, 1: 2, 2: 1}, (1, 2, 3), id="everybody late"),
    ],
)
def test_no_table_means_a_uniform_draw(queued: dict[int, int], late: tuple[int, ...]) -> None:
    """Rule 3, case by case."""
    assert load_table(VIEW, queued, late) is None


def test_a_topic_of_one_partition_has_no_table() -> None:
    assert load_table(TopicView(1, {0: 1}), {0: 5}, ()) is None


def test_a_partition_without_a_leader_has_no_place() -> None:
    """Rule 1; its absence makes a table even if the other queues are equal."""
    view = TopicView(3, {0: 1, 2: 3})
    assert load_table(view, {0: 1, 1: 9, 2: 1}, ()) == LoadTable((0, 2), (1, 2))


def test_a_late_brokers_waiting_partitions_are_left_out() -> None:
    """Rule 2; its empty queues stay: their records need not wait."""
    view = TopicView(3, {0: 1, 1: 1, 2: 2})
    assert load_table(view, {0: 2, 1: 0, 2: 2}, {1}) == LoadTable((1, 2), (3, 4), left_out=1)


def test_an_excluded_partition_makes_a_table_of_equal_weights() -> None:
    """Without a table the excluded partition would be drawn as well."""
    assert load_table(VIEW, {0: 1, 1: 1, 2: 1}, {3}) == LoadTable((0, 1), (1, 2), left_out=1)


def test_the_rack_has_its_own_table() -> None:
    """Rule 4: weights depend on the longest queue in the rack, not the longest of all."""
    view = VIEW._replace(in_rack=(0, 2))
    queued = {0: 0, 1: 3, 2: 1}
    assert load_table(view, queued, (), rack_aware=True) == LoadTable((0, 2), (2, 3), in_rack=True)
    assert load_table(view, queued, ()) == LoadTable((0, 1, 2), (4, 5, 8))


def test_without_partitions_in_the_rack_all_are_used() -> None:
    """Rule 4: the fall-back, also if the rack's partitions were excluded."""
    view = VIEW._replace(in_rack=(2,))
    queued = {0: 0, 1: 3, 2: 1}
    table = load_table(view, queued, {3})
    assert table is not None
    assert table == load_table(view, queued, {3}, rack_aware=True)
    assert not table.in_rack


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8).filter(lambda sizes: len(set(sizes)) > 1))
def test_the_odds_are_the_weights(sizes: list[int]) -> None:
    """Over one cycle of random numbers each partition comes as often as its weight says (compared with an explicit
    list).
    """
    table = load_table(TopicView(len(sizes), dict.fromkeys(range(len(sizes)), 1)), dict(enumerate(sizes)), ())
    assert table is not None
    spelled_out = [number for number, size in enumerate(sizes) for _ in range(max(sizes) + 1 - size)]
    assert spelled_out == [table.at(number) for number in range(table.cumulative[-1])]

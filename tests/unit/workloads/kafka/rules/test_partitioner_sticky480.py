"""KIP-480, the control: it moves with every new batch."""

from collections import Counter
from random import Random

from aftershock.workloads.kafka.rules.partitioner import RunawaySticky, TopicView


def make(*leaders: int, partitions: int = 3) -> RunawaySticky:
    draw = Random(480)  # noqa: S311  # reproducible, not secret
    sticky = RunawaySticky(draw, Counter(), ignore_keys=False)
    sticky.set_view(TopicView(partitions, dict.fromkeys(leaders, 1)))
    return sticky


def test_every_new_batch_in_the_sticky_partition_moves_it_elsewhere() -> None:
    """Rules 1 and 2: never to the same partition, and evenly to the others."""
    sticky = make(0, 1, 2)
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(3000):
        before = sticky.choose(None)
        assert sticky.before_new_batch(before, drawn=True)
        seen[before, sticky.choose(None)] += 1
    assert {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)} == set(seen)
    assert min(seen.values()) > 400


def test_a_keyed_records_new_batch_moves_it_as_well() -> None:
    """Rule 1: the record itself keeps its partition."""
    sticky = make(0, 1, 2)
    before = sticky.choose(None)
    assert not sticky.before_new_batch(before, drawn=False)
    assert before != sticky.choose(None)


def test_a_new_batch_elsewhere_moves_nothing() -> None:
    """Rule 1: only the sticky partition's own batches count."""
    sticky = make(0, 1, 2)
    before = sticky.choose(None)
    assert not sticky.before_new_batch((before + 1) % 3, drawn=False)
    assert before == sticky.choose(None)


def test_bytes_and_load_move_nothing() -> None:
    """KIP-794's criteria have no effect."""
    sticky = make(0, 1, 2)
    before = sticky.choose(None)
    sticky.load({0: 9, 1: 0, 2: 4})
    sticky.appended(1 << 20, enable_switch=True)
    assert before == sticky.choose(None)


def test_the_only_leader_stays_chosen() -> None:
    """Rule 2: a single available partition is chosen again."""
    sticky = make(2)
    for _ in range(20):
        assert 2 == sticky.choose(None)
        sticky.before_new_batch(2, drawn=True)


def test_without_any_leader_all_partitions_are_drawn() -> None:
    """Rule 2."""
    sticky = make()
    drawn = set()
    for _ in range(50):
        drawn.add(sticky.choose(None))
        sticky.before_new_batch(sticky.choose(None), drawn=True)
    assert {0, 1, 2} == drawn

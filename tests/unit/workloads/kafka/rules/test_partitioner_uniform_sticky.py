"""KIP-794: when the sticky partition switches, and to which partition."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.partitioner import DRAWS_COUNTED, TopicView, UniformSticky

LEADERS = {0: 1, 1: 2, 2: 3}
CHI_SQUARE_999 = {2: 13.8, 5: 20.5}
"""What chi square exceeds once in a thousand, by degrees of freedom."""


def make(
    batch_size: int = 1000, *, adaptive: bool = False, late: frozenset[int] = frozenset(), **switches: bool
) -> UniformSticky:
    sticky = UniformSticky(
        Random(794),  # noqa: S311  # reproducible, not secret
        Counter(),
        ignore_keys=switches.get("ignore_keys", False),
        batch_size=batch_size,
        late=(lambda: late) if adaptive else None,
        rack_aware=switches.get("rack_aware", False),
        sharp=switches.get("sharp", False),
    )
    sticky.set_view(TopicView(3, LEADERS))
    sticky.choose(None)
    return sticky


def draws_of(sticky: UniformSticky) -> int:
    return sticky._counts["partition_draws"]


def draw_many(sticky: UniformSticky, count: int) -> Counter[int]:
    drawn: Counter[int] = Counter()
    for _ in range(count):
        sticky.appended(1000, enable_switch=True)
        drawn[sticky.choose(None)] += 1
    return drawn


def chi_square(observed: Counter[int], weights: dict[int, int]) -> float:
    share = observed.total() / sum(weights.values())
    return sum((observed[number] - weight * share) ** 2 / (weight * share) for number, weight in weights.items())


def test_the_partition_stays_for_batch_size_bytes() -> None:
    """Rule 1: not a byte less than S."""
    sticky = make()
    sticky.appended(999, enable_switch=True)
    assert 1 == draws_of(sticky)
    sticky.appended(1, enable_switch=True)
    assert 2 == draws_of(sticky)


def test_a_switch_waits_for_the_batch_to_be_full_and_no_longer_than_two() -> None:
    """Rule 2."""
    sticky = make()
    sticky.appended(1999, enable_switch=False)
    assert 1 == draws_of(sticky)
    sticky.appended(1, enable_switch=False)
    assert 2 == draws_of(sticky)


def test_a_sharp_switch_waits_for_no_full_batch() -> None:
    """KIP-794's text, and Kafka before KAFKA-14156: ``producedBytes >= stickyBatchSize`` is enough."""
    sticky = make(sharp=True)
    sticky.appended(999, enable_switch=True)
    assert 1 == draws_of(sticky)
    sticky.appended(1, enable_switch=False)
    assert 2 == draws_of(sticky)
    assert not sticky.before_new_batch(sticky.choose(None), drawn=True)
    sticky.appended(999, enable_switch=False)
    assert 2 == draws_of(sticky)


def test_draws_are_counted_by_partition() -> None:
    """The first draw too, and no counters of partitions beyond the limit."""
    sticky = make()
    drawn = Counter([sticky.choose(None)]) + draw_many(sticky, 300)
    assert drawn == {number: sticky._counts[f"partition_draws_{number}"] for number in LEADERS}
    sticky.set_view(TopicView(100, {DRAWS_COUNTED: 1}))
    draw_many(sticky, 5)
    assert drawn.total() + 5 == draws_of(sticky)
    assert f"partition_draws_{DRAWS_COUNTED}" not in sticky._counts


def test_a_delayed_switch_happens_before_a_new_batch() -> None:
    """Rule 3: the record that would open the batch is partitioned again, once."""
    sticky = make()
    sticky.appended(1500, enable_switch=False)
    assert sticky.before_new_batch(sticky.choose(None), drawn=True)
    assert 2 == draws_of(sticky)
    assert not sticky.before_new_batch(sticky.choose(None), drawn=True)


def test_no_switch_before_batch_size_bytes() -> None:
    """Rule 3: batches sent early, as with linger 0, don't move the partition, unlike in KIP-480."""
    sticky = make()
    sticky.appended(999, enable_switch=False)
    assert not sticky.before_new_batch(sticky.choose(None), drawn=True)
    assert 1 == draws_of(sticky)


def test_keyed_records_do_not_switch_the_partition() -> None:
    """Rule 3: also when a switch is due."""
    sticky = make()
    sticky.appended(1500, enable_switch=False)
    assert not sticky.before_new_batch(sticky.choose(None), drawn=False)
    assert 1 == draws_of(sticky)


def test_the_byte_count_restarts_with_each_partition() -> None:
    """Rule 4: the excess of one partition is not carried over to the next."""
    sticky = make()
    sticky.appended(1999, enable_switch=True)
    sticky.appended(999, enable_switch=True)
    assert 2 == draws_of(sticky)


def test_the_draw_is_with_replacement() -> None:
    """Rule 4: the same partition may come again, a third of the time among three."""
    sticky = make()
    again = 0
    for _ in range(3000):
        before = sticky.choose(None)
        sticky.appended(1000, enable_switch=True)
        again += before == sticky.choose(None)
    assert again == pytest.approx(1000, abs=100)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=200), st.lists(st.booleans(), min_size=1, max_size=20))
def test_every_switch_falls_between_one_and_two_batches_and_a_record(sizes: list[int], sent: list[bool]) -> None:
    """For any sizes and times: between two switches at least S bytes, and less than 2 S and one record."""
    sticky, limit, filled, produced, spans = make(), 1000, 0, 0, []
    for number, size in enumerate(sizes):
        full = filled >= limit or filled + size > limit
        if (full or not filled) and sticky.before_new_batch(sticky.choose(None), drawn=True):
            spans.append(produced)
            filled, produced = 0, 0
        filled = size if full else filled + size
        produced += size
        draws = draws_of(sticky)
        sticky.appended(size, enable_switch=filled >= limit)
        if draws_of(sticky) > draws:
            spans.append(produced)
            filled, produced = 0, 0
        if sent[number % len(sent)]:
            filled = 0
    assert all(limit <= span < 2 * limit + max(sizes) for span in spans)
    assert draws_of(sticky) == 1 + len(spans)


def test_a_uniform_draw_is_uniform() -> None:
    """Rule 5, by chi square over 6000 draws of a fixed seed."""
    sticky = make()
    sticky.set_view(TopicView(6, dict.fromkeys(range(6), 1)))
    assert CHI_SQUARE_999[5] > chi_square(draw_many(sticky, 6000), dict.fromkeys(range(6), 1))


def test_a_draw_skips_partitions_without_leader() -> None:
    """Rule 5."""
    sticky = make()
    sticky.set_view(TopicView(3, {0: 1, 2: 3}))
    assert {0, 2} == set(draw_many(sticky, 100))


def test_without_any_leader_all_partitions_are_drawn() -> None:
    """Rule 5: the record has to wait in some partition."""
    sticky = make()
    sticky.set_view(TopicView(3, {}))
    assert {0, 1, 2} == set(draw_many(sticky, 100))


def test_an_adaptive_draw_goes_by_its_weights() -> None:
    """Rule 5: queues of 0, 3, 1 draw 4 : 1 : 3, by chi square over 8000 draws of a fixed seed."""
    sticky = make(adaptive=True)
    sticky.load({0: 0, 1: 3, 2: 1})
    drawn = draw_many(sticky, 8000)
    assert CHI_SQUARE_999[2] > chi_square(drawn, {0: 4, 1: 1, 2: 3})
    assert 8000 == sticky._counts["partition_draws_weighted"]


def test_the_longer_the_queue_the_smaller_the_share() -> None:
    """Shares fall with the queue's length, strictly."""
    sticky = make(adaptive=True)
    sticky.set_view(TopicView(5, dict.fromkeys(range(5), 1)))
    sticky.load({0: 0, 1: 5, 2: 10, 3: 15, 4: 20})
    drawn = draw_many(sticky, 10_000)
    assert [0, 1, 2, 3, 4] == [number for number, _ in drawn.most_common()]


def test_a_late_broker_is_not_drawn() -> None:
    """Rule 5 with the availability timeout: no draw while its data waits, and each exclusion is counted."""
    sticky = make(adaptive=True, late=frozenset({3}))
    sticky.load({0: 1, 1: 1, 2: 1})
    assert {0, 1} == set(draw_many(sticky, 100))
    assert 100 == sticky._counts["partitions_left_out"]


def test_the_load_is_that_of_the_latest_pass() -> None:
    """A queue that grows after the pass changes nothing before the next one; a later pass replaces an earlier."""
    sticky = make(adaptive=True)
    queued = {0: 0, 1: 1000, 2: 1000}
    sticky.load(queued)
    queued[0] = 5000
    assert draw_many(sticky, 300)[0] > 290
    sticky.load({0: 1, 1: 1, 2: 1})
    assert draw_many(sticky, 300)[0] < 200


def test_rack_aware_draws_stay_in_the_rack() -> None:
    """Rule 6, both kinds of draw; each is counted."""
    sticky = make(adaptive=True, rack_aware=True)
    sticky.set_view(TopicView(3, LEADERS, in_rack=(1,)))
    assert {1} == set(draw_many(sticky, 50))
    sticky.load({0: 0, 1: 9, 2: 0})
    assert {1} == set(draw_many(sticky, 50))
    assert 100 == sticky._counts["partition_draws_in_rack"]


def test_rack_aware_draws_fall_back_to_all() -> None:
    """Rule 6: if no leader is in the rack."""
    sticky = make(adaptive=True, rack_aware=True)
    assert {0, 1, 2} == set(draw_many(sticky, 100))
    assert 0 == sticky._counts["partition_draws_in_rack"]


def test_keys_are_hashed_over_all_partitions_with_leaders_or_without() -> None:
    """ "abc" (479470107) stays on partition 0 of three when another one loses its leader."""
    sticky = make()
    assert 479470107 % 3 == sticky.choose(b"abc")
    sticky.set_view(TopicView(3, {0: 1, 2: 3}))
    assert 479470107 % 3 == sticky.choose(b"abc")


def test_an_empty_key_is_a_key() -> None:
    """Only null means no key."""
    sticky = make()
    assert not sticky.draws(b"")
    assert sticky.draws(None)
    assert {sticky.choose(b"")} == {sticky.choose(b"") for _ in draw_many(sticky, 50)}


def test_ignored_keys_use_the_sticky_partition() -> None:
    """``partitioner.ignore.keys``."""
    sticky = make(ignore_keys=True)
    assert sticky.draws(b"abc")
    assert {sticky.choose(None)} == {sticky.choose(bytes([number])) for number in range(50)}

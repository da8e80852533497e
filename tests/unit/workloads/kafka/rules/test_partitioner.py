"""The modes, the effect of each switch, the hash of keys, and KIP-480 as a control: it sends a slow broker most
records.
"""

import warnings
from collections import Counter, deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.partitioner import (
    MODES,
    NodeLatency,
    Partitioner,
    StickyPartition,
    TopicView,
    murmur2,
    partition_for_key,
)
from aftershock.workloads.kafka.rules.values import Leader, Node, PartitionMetadata, TopicMetadata

BATCH_SIZE = 16_384
BATCH_OVERHEAD = 61
VIEW = TopicView(3, {0: 1, 1: 2, 2: 3}, in_rack=(1,))


def make(
    mode: str,
    *,
    rack_aware: bool = False,
    ignore_keys: bool = False,
    timeout_ms: float = 0,
    batch_size: int = BATCH_SIZE,
    switch: str = "delayed",
) -> Partitioner:
    return Partitioner(
        mode,
        batch_size=batch_size,
        random=Random(1123),  # noqa: S311  # reproducible, not secret
        ignore_keys=ignore_keys,
        rack_aware=rack_aware,
        availability_timeout_ms=timeout_ms,
        switch=switch,
    )


def draws_while_broker_3_is_late(partitioner: Partitioner, late_ms: float = 6) -> Counter[str]:
    """Run the same hundred switches: queues differ, and broker 3 hasn't accepted data for ``late_ms``."""
    sticky = partitioner.topic("orders")
    sticky.set_view(VIEW)
    sticky.choose(None)
    partitioner.node_ready(3, 100, can_drain=True)
    partitioner.node_ready(3, 100 + late_ms, can_drain=False)
    for _ in range(100):
        sticky.load({0: 0, 1: 2, 2: 1})
        if sticky.before_new_batch(sticky.choose(None), drawn=True):
            sticky.choose(None)
        sticky.appended(BATCH_SIZE, enable_switch=True)
    assert 101 == sum(partitioner.counts.pop(f"partition_draws_{number}", 0) for number in range(3))
    return +partitioner.counts


def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"roundrobin.*sticky, uniform, adaptive, availability"):
        make("roundrobin")


def test_an_unknown_switch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"the setting switch.*blunt.*delayed, sharp"):
        make("uniform", switch="blunt")


def test_every_mode_draws_and_only_its_own_counters_move() -> None:
    """``sticky`` and ``uniform`` only draw, ``adaptive`` also weighs, ``availability`` also excludes partitions."""
    counts = {mode: draws_while_broker_3_is_late(make(mode)) for mode in MODES}
    assert {"partition_draws"} == set(counts["sticky"]) == set(counts["uniform"])
    assert {"partition_draws", "partition_draws_weighted"} == set(counts["adaptive"])
    assert {"partition_draws", "partition_draws_weighted", "partitions_left_out"} == set(counts["availability"])


def test_adaptive_off_changes_weighted_draws_and_nothing_else() -> None:
    """The number of draws is equal."""
    off, on = draws_while_broker_3_is_late(make("uniform")), draws_while_broker_3_is_late(make("adaptive"))
    assert {"partition_draws_weighted": 100} == on - off
    assert not off - on


def test_availability_off_changes_exclusions_and_nothing_else() -> None:
    """The numbers of draws and of weighted draws are equal."""
    off, on = draws_while_broker_3_is_late(make("adaptive")), draws_while_broker_3_is_late(make("availability"))
    assert {"partitions_left_out": 100} == on - off
    assert not off - on


@pytest.mark.parametrize("mode", ["uniform", "adaptive", "availability"])
def test_rack_awareness_off_changes_draws_in_the_rack_and_nothing_else(mode: str) -> None:
    """In every mode with rack awareness."""
    off = draws_while_broker_3_is_late(make(mode))
    on = draws_while_broker_3_is_late(make(mode, rack_aware=True))
    assert {"partition_draws_in_rack"} == set(on - off)
    assert not off - on


def test_the_control_has_no_rack_awareness() -> None:
    """KIP-480 as it was."""
    assert {"partition_draws"} == set(draws_while_broker_3_is_late(make("sticky", rack_aware=True)))


@pytest.mark.parametrize(
    ("mode", "timeout_ms", "late_ms", "left_out"),
    [
        pytest.param("availability", 0, 5, False, id="5 ms if nobody says otherwise: not yet"),
        pytest.param("availability", 0, 5.5, True, id="5 ms if nobody says otherwise: now"),
        pytest.param("availability", 50, 49, False, id="the timeout given"),
        pytest.param("adaptive", 5, 6, True, id="Kafka's own way to have it"),
        pytest.param("uniform", 5, 6, False, id="nothing to a mode that doesn't adapt"),
    ],
)
def test_the_availability_timeout(mode: str, timeout_ms: float, late_ms: float, *, left_out: bool) -> None:
    """When a late broker's partitions are excluded."""
    counts = draws_while_broker_3_is_late(make(mode, timeout_ms=timeout_ms), late_ms)
    assert left_out == ("partitions_left_out" in counts)


def test_a_topic_keeps_its_sticky_partition_and_topics_share_nothing() -> None:
    """Each topic has its own object, whose switches don't affect other topics."""
    partitioner = make("adaptive")
    orders, clicks = partitioner.topic("orders"), partitioner.topic("clicks")
    for sticky in (orders, clicks):
        sticky.set_view(VIEW)
    before = clicks.choose(None)
    for _ in range(20):
        orders.appended(BATCH_SIZE, enable_switch=True)
    assert orders is partitioner.topic("orders")
    assert before == clicks.choose(None)


@pytest.mark.parametrize("mode", MODES)
def test_ignoring_keys_is_for_every_mode(mode: str) -> None:
    """With the setting a key is ignored; without it the hash decides."""
    for ignore_keys in (False, True):
        sticky = make(mode, ignore_keys=ignore_keys).topic("orders")
        sticky.set_view(VIEW)
        assert ignore_keys == sticky.draws(b"key")
        assert (1 if ignore_keys else 3) == len({sticky.choose(b"key%d" % number) for number in range(50)})


RECORD_BYTES = 512
BRIMFUL = BATCH_OVERHEAD + 32 * RECORD_BYTES
"""A batch size that 32 records fill to the byte."""


class SlowBroker:
    """Three brokers with a partition each, linger 0, one request in flight each; the first takes ``slow`` times as
    long.

    Every tick adds two records without a key.
    """

    def __init__(self, mode: str, slow: int, batch_size: int = BATCH_SIZE, switch: str = "delayed") -> None:
        self.batch_size = batch_size
        self.partitioner = make(mode, batch_size=batch_size, switch=switch)
        self.sticky: StickyPartition = self.partitioner.topic("orders")
        self.sticky.set_view(VIEW)
        self.waiting: dict[int, deque[int]] = {number: deque() for number in range(3)}
        self.busy_until = dict.fromkeys(range(3), 0)
        self.ticks_per_request = {0: slow, 1: 1, 2: 1}
        self.records: Counter[int] = Counter()

    def share_of_the_slow_broker(self) -> float:
        """Return the share of records for the first partition."""
        for now in range(10_000):
            self.send(now)
            self.produce()
            self.produce()
        return self.records[0] / self.records.total()

    def send(self, now: int) -> None:
        self.sticky.load({number: len(batches) for number, batches in self.waiting.items()})
        for number, batches in self.waiting.items():
            free = self.busy_until[number] <= now
            if batches:
                self.partitioner.node_ready(number + 1, now, can_drain=free)
            if batches and free:
                batches.popleft()
                self.busy_until[number] = now + self.ticks_per_request[number]

    def produce(self) -> None:
        partition = self.sticky.choose(None)
        if not self.has_room(partition) and self.sticky.before_new_batch(partition, drawn=True):
            partition = self.sticky.choose(None)
        batches, grown = self.waiting[partition], RECORD_BYTES
        if not self.has_room(partition):
            batches.append(0)
            grown += BATCH_OVERHEAD
        batches[-1] += grown
        self.records[partition] += 1
        self.sticky.appended(grown, enable_switch=batches[-1] >= self.batch_size)

    def has_room(self, partition: int) -> bool:
        batches = self.waiting[partition]
        return bool(batches) and batches[-1] + RECORD_BYTES <= self.batch_size


def test_the_control_runs_away_and_its_successors_do_not() -> None:
    """KIP-794's experiment: KIP-480 sends a slow broker nearly all records, each later mode fewer than the one
    before.
    """
    share = {mode: SlowBroker(mode, slow=40).share_of_the_slow_broker() for mode in MODES}
    assert share["sticky"] > 0.9
    assert 0.6 > share["uniform"] > share["adaptive"] > share["availability"]


def test_uniform_is_fair_if_records_fill_batches_exactly() -> None:
    """Then a due switch is made at once, and a slow broker gets its third, within a batch's header."""
    assert SlowBroker("uniform", 40, BRIMFUL).share_of_the_slow_broker() == pytest.approx(1 / 3, abs=0.03)


def test_uniform_as_shipped_gives_a_backlog_twice_its_turn_otherwise() -> None:
    """A last batch that isn't full to the byte delays the switch (KAFKA-14156): two batches a turn, so 2:1:1."""
    assert SlowBroker("uniform", 40, BRIMFUL - 1).share_of_the_slow_broker() == pytest.approx(1 / 2, abs=0.03)


def test_uniform_by_the_text_of_the_kip_gives_a_backlog_its_third() -> None:
    """A sharp switch waits for no full batch, so batches that records don't fill to the byte make no difference."""
    slow_broker = SlowBroker("uniform", 40, BRIMFUL - 1, switch="sharp")
    assert slow_broker.share_of_the_slow_broker() == pytest.approx(1 / 3, abs=0.03)


def test_the_slower_the_broker_the_smaller_its_adaptive_share() -> None:
    """The share falls strictly with the delay, to below a third."""
    shares = [SlowBroker("adaptive", slow, BRIMFUL).share_of_the_slow_broker() for slow in (1, 40, 80, 160)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1 / 3, abs=0.03)
    assert shares[-1] < 0.15


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas with importlib's old functions
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), VECTORS.items())
def test_agrees_with_kafkas_own_vectors(key: bytes, hashed: int) -> None:
    """The vectors of Kafka's UtilsTest, which have Java's sign."""
    assert hashed & 0xFFFFFFFF == murmur2(key)


@given(st.binary(max_size=70))
def test_agrees_with_an_independent_implementation(key: bytes) -> None:
    """Any key, of every length modulo four, has kafka-python's hash."""
    assert kafka_python_murmur2(key) == murmur2(key)


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_key_finds_its_partition_by_the_hash_without_its_sign(key: bytes, count: int) -> None:
    """``toPositive`` clears the sign bit; the absolute value differs for every negative hash."""
    assert (kafka_python_murmur2(key) & 0x7FFFFFFF) % count == partition_for_key(key, count)


def test_a_node_is_late_when_its_data_waits_for_longer_than_the_timeout() -> None:
    """The delay runs from the last time data could be sent; exactly the timeout is not late yet."""
    latency = NodeLatency()
    latency.ready(1, 100, can_drain=True)
    latency.ready(1, 105, can_drain=False)
    assert not latency.later_than(5)
    latency.ready(1, 106, can_drain=False)
    assert {1} == latency.later_than(5)


def test_a_node_that_takes_data_is_in_time_again() -> None:
    """Draining resets the delay."""
    latency = NodeLatency()
    latency.ready(1, 0, can_drain=False)
    latency.ready(1, 50, can_drain=False)
    latency.ready(1, 51, can_drain=True)
    assert not latency.later_than(5)


def test_a_node_without_data_is_not_late() -> None:
    """Time alone makes no node late: the delay is that of the last time with data to send, as in Kafka's stats."""
    latency = NodeLatency()
    latency.ready(1, 0, can_drain=True)
    latency.ready(2, 1000, can_drain=False)
    latency.ready(2, 1010, can_drain=False)
    assert {2} == latency.later_than(5)


def test_the_delay_starts_when_a_node_is_first_seen() -> None:
    """Not at time 0."""
    latency = NodeLatency()
    latency.ready(7, 1_000_000, can_drain=False)
    assert not latency.later_than(5)


NODES = {1: Node(1, "k1", 9092, "a"), 2: Node(2, "k2", 9092, "b"), 3: Node(3, "k3", 9092)}


def topic(*leaders: int) -> TopicMetadata:
    parts = tuple(PartitionMetadata(number, Leader(node_id, 1)) for number, node_id in enumerate(leaders))
    return TopicMetadata("orders", None, parts[::-1])


def test_partitions_without_a_leader_are_counted_and_not_offered() -> None:
    """Keys are hashed over all partitions, draws use those with a leader, in order of their numbers."""
    view = TopicView.of(topic(2, -1, 1), NODES, None)
    assert 3 == view.partitions
    assert [(0, 2), (2, 1)] == list(view.leaders.items())


def test_in_rack_are_the_partitions_led_from_the_clients_rack() -> None:
    """By the leader's rack; a leader without known rack is not in the rack."""
    assert (0, 3) == TopicView.of(topic(1, 2, 3, 1), NODES, "a").in_rack


def test_a_client_without_rack_has_no_partitions_in_its_rack() -> None:
    """Brokers without a rack don't count."""
    assert () == TopicView.of(topic(1, 2, 3), NODES, None).in_rack

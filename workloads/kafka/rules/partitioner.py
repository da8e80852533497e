"""Partitioners of one producer, which place keyed records by hash, other records in a topic's sticky partition.

============  ==============================================  ===============================================
mode          partitioner                                     Kafka's configuration
============  ==============================================  ===============================================
sticky        KIP-480, the control (``RunawaySticky``)        the default up to 3.2; removed in 4.0
uniform       KIP-794, uniform draws (``UniformSticky``)      partitioner.adaptive.partitioning.enable=false
adaptive      plus draws weighted by load (``load_table``)    the default
availability  plus late brokers excluded (``NodeLatency``)    partitioner.availability.timeout.ms=5
============  ==============================================  ===============================================

Counters: ``partition_draws`` (draws of a sticky partition); ``partition_draws_0`` and so on (draws of partition 0, in
all topics, up to ``DRAWS_COUNTED`` partitions); ``partition_draws_weighted`` (draws weighted by load);
``partitions_left_out`` (partitions that weighted draws excluded, because their leaders accept data late);
``partition_draws_in_rack`` (draws limited to leaders in the client's rack).

Rules of the KIP-480 partitioner (``DefaultPartitioner``, or ``UniformStickyPartitioner`` if keys are ignored):

1. Before a batch is opened in the sticky partition, even for a record with a key, another partition becomes the sticky
   partition (``onNewBatch``), which also gets the record if the record has no key.
2. The next sticky partition is drawn uniformly from the partitions with a leader, without the current sticky partition
   if there are others; if no partition has a leader, from all partitions.

The load of the KIP-480 partitioner runs away, because a slow broker's batches stay open longer, so each switch sends
that broker more records, which makes the broker slower still.

Rules of the KIP-794 partitioner (``BuiltInPartitioner``, ``RecordAccumulator.append``):

1. The partitioner counts the bytes appended to the sticky partition, whether or not the batches are delivered.
2. After ``batch.size`` bytes in the sticky partition, the first append that fills a batch (``enable_switch``) switches
   to another sticky partition, so that no partial batch stays behind; after twice as many bytes, any append switches.
3. After ``batch.size`` bytes in the sticky partition, another partition also becomes sticky before a batch is opened.
4. A switch of the sticky partition resets its byte count to 0, even if the same partition is drawn again.
5. An adaptive partitioner draws the next sticky partition with weights (``load_table``), any other partitioner
   uniformly from the partitions that have a leader, or from all partitions if no partition has a leader.
6. A rack-aware partitioner (KIP-1123, Kafka 4.4) draws only partitions whose leader is in the client's rack, if there
   are any.

In KIP-794's text the sticky partition switches at the first append that reaches ``batch.size`` bytes (mode ``sharp`` of
the switch). Kafka 3.3.0 and later wait for a full batch (mode ``delayed``, rules 2 and 3; KAFKA-14156, commit
2b2039f0), so a partition with a backlog gets two batches between switches if records don't fill a batch to the byte.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate
from random import Random
from struct import unpack_from
from typing import NamedTuple, Self

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.values import UNKNOWN, Node, TopicMetadata


class TopicView(NamedTuple):
    """Partitions of a topic from the metadata, as a client in one rack sees them.

    ``partitions`` is the number of partitions of the topic, ``leaders`` has the node id of each partition's leader, in
    ascending order of partitions, and ``in_rack`` has the partitions whose leader is in the client's rack.
    """

    partitions: int
    leaders: Mapping[int, int]
    in_rack: tuple[int, ...] = ()

    @classmethod
    def of(cls, topic: TopicMetadata, nodes: Mapping[int, Node], rack: str | None) -> Self:
        leaders = {part.partition: part.leader.node_id for part in topic.partitions if part.leader.node_id != UNKNOWN}
        near = {node.node_id for node in nodes.values() if rack is not None and node.rack == rack}
        in_rack = tuple(partition for partition, node_id in leaders.items() if node_id in near)
        return cls(len(topic.partitions), dict(sorted(leaders.items())), tuple(sorted(in_rack)))


SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return a key's partition, its hash without sign bit (``Utils.toPositive``) modulo the topic's partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key (``Utils.murmur2``) as an unsigned 32-bit integer."""
    length = len(key)
    hashed = SEED ^ length
    for word in unpack_from(f"<{length >> 2}I", key):
        mixed = (word * MULTIPLIER) & _WORD
        mixed = ((mixed ^ (mixed >> 24)) * MULTIPLIER) & _WORD
        hashed = ((hashed * MULTIPLIER) & _WORD) ^ mixed
    if length & 3:
        hashed = ((hashed ^ int.from_bytes(key[length & ~3 :], "little")) * MULTIPLIER) & _WORD
    hashed = ((hashed ^ (hashed >> 13)) * MULTIPLIER) & _WORD
    return hashed ^ (hashed >> 15)


class NodeLatency:
    """Delays of the brokers of one producer, for KIP-794's availability timeout (``NodeLatencyStats``).

    A broker's delay is the time since the broker could last accept data (connected, room for another request in flight,
    not throttled), measured whenever data for the broker is ready (``RecordAccumulator.updateNodeLatencyStats``).
    """

    def __init__(self) -> None:
        self._drain_ms: dict[int, float] = {}
        self._delay_ms: dict[int, float] = {}

    def ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """Record that data for a broker is ready; ``can_drain`` is True if the broker can accept data now."""
        drained_ms = self._drain_ms.setdefault(node_id, now_ms)
        if can_drain:
            drained_ms = self._drain_ms[node_id] = now_ms
        self._delay_ms[node_id] = now_ms - drained_ms

    def later_than(self, timeout_ms: float) -> frozenset[int]:
        """Return the ids of the brokers for which ready data has waited longer than ``timeout_ms``."""
        return frozenset(node_id for node_id, delay_ms in self._delay_ms.items() if delay_ms > timeout_ms)


QUEUES_MIN = 2


class LoadTable(NamedTuple):
    """Partitions with running sums of weights, for weighted draws, and the number of excluded partitions."""

    partitions: tuple[int, ...]
    cumulative: tuple[int, ...]
    left_out: int = 0
    in_rack: bool = False

    def at(self, number: int) -> int:
        """Return the partition that is drawn by the non-negative random number ``number``."""
        return self.partitions[bisect_right(self.cumulative, number % self.cumulative[-1])]


def load_table(
    view: TopicView, queued: Mapping[int, int], late: Collection[int], *, rack_aware: bool = False
) -> LoadTable | None:
    """Return partitions' weights by load (``BuiltInPartitioner.updatePartitionLoadStats``); None for a uniform draw.

    ``queued`` is the number of waiting batches of each partition that ever had a batch, ``late`` the ids of brokers
    that accept data late. A partition's weight is the length of the longest queue of batches + 1 - the length of its
    own queue, for example 4, 1 and 3 for queues of 0, 3 and 1 batches. The running sums of these weights are 4, 5 and
    8; a random number from 0 to 7 selects the partition of the first running sum that is greater.

    1. A partition without a leader, or with waiting batches for a late broker, is excluded from weighted draws.
    2. Draws of a partition are uniform while some partition never had a batch, with fewer than two partitions, if all
       partitions are excluded, or if all queues are equally long and no partition was excluded.
    3. A rack-aware draw excludes partitions whose leader isn't in the client's rack, if any leader is.
    """
    if len(queued) < max(view.partitions, QUEUES_MIN):
        return None
    led = [partition for partition in view.leaders if partition in queued]
    partitions = [partition for partition in led if not (queued[partition] and view.leaders[partition] in late)]
    all_equal = len(partitions) == len(queued) and len(set(queued.values())) == 1
    if not partitions or all_equal:
        return None
    left_out = len(led) - len(partitions)
    near = [partition for partition in partitions if partition in view.in_rack] if rack_aware else []
    sizes = [queued[partition] for partition in near or partitions]
    weights = accumulate(max(sizes) + 1 - size for size in sizes)
    return LoadTable(tuple(near or partitions), tuple(weights), left_out, in_rack=bool(near))


DRAWS_COUNTED = 12  # a counter for each partition of a large topic would crowd the samples


class StickyPartition(ABC):
    """Sticky partition of one topic; subclasses decide when another partition becomes sticky.

    ``RecordAccumulator.append`` calls ``choose`` for each record, ``before_new_batch`` before it opens a batch, and
    ``appended`` after the append.
    """

    def __init__(self, random: Random, counts: Counter[str], *, ignore_keys: bool) -> None:
        self._random = random
        self._counts = counts
        self._ignore_keys = ignore_keys
        self._view = TopicView(0, {})
        self._partition = UNKNOWN

    def set_view(self, view: TopicView) -> None:
        """Store the changed metadata of the topic."""
        self._view = view

    def draws(self, key: bytes | None) -> bool:
        """Return True if a record with this key, or None, goes to the sticky partition; an empty key is a key."""
        return key is None or self._ignore_keys

    def choose(self, key: bytes | None) -> int:
        """Return the partition for a record's key, or the sticky partition for a record without a key."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, self._view.partitions)
        if self._partition == UNKNOWN:
            self._switch()
        return self._partition

    @abstractmethod
    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        """Prepare to open a batch; return True if the sticky partition changed, so the caller must ``choose`` again."""

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:  # noqa: B027  # KIP-480 does not count bytes
        """Count the bytes by which a record has increased the estimated size of the sticky partition's last batch."""

    def load(self, queued: Mapping[int, int]) -> None:  # noqa: B027  # KIP-480 ignores load
        """Set the number of waiting batches of each partition that ever had a batch; called in every sender pass."""

    @abstractmethod
    def _draw(self) -> int: ...

    def _switch(self) -> None:
        self._partition = self._draw()
        self._counts["partition_draws"] += 1
        if self._partition < DRAWS_COUNTED:
            self._counts[f"partition_draws_{self._partition}"] += 1

    def _draw_uniform(self, partitions: Sequence[int]) -> int:
        return partitions[self._random_number() % len(partitions)]

    def _random_number(self) -> int:
        return self._random.getrandbits(31)


class RunawaySticky(StickyPartition):
    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        if partition != self._partition:
            return False
        self._switch()
        return drawn

    def _draw(self) -> int:
        led = tuple(self._view.leaders)
        candidates = [partition for partition in led if partition != self._partition]
        return self._draw_uniform(candidates or led or range(self._view.partitions))


class UniformSticky(StickyPartition):
    """Sticky partition of one topic by KIP-794.

    The function ``late`` returns the ids of brokers that accept data late; only an adaptive partitioner has this
    function.
    """

    def __init__(
        self,
        random: Random,
        counts: Counter[str],
        *,
        ignore_keys: bool,
        batch_size: int,
        late: Callable[[], Collection[int]] | None,
        rack_aware: bool,
        sharp: bool = False,
    ) -> None:
        super().__init__(random, counts, ignore_keys=ignore_keys)
        self._switch_bytes = max(1, batch_size)
        self._sharp = sharp
        self._produced_bytes = 0
        self._late = late
        self._rack_aware = rack_aware
        self._loads: tuple[TopicView, Mapping[int, int], Collection[int]] | None = None  # of the latest sender pass
        self._table: LoadTable | None = None

    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:  # noqa: ARG002 (a drawn partition is the sticky partition)
        if not drawn or self._produced_bytes < self._switch_bytes:
            return False
        self._switch()
        return True

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        produced = self._produced_bytes = self._produced_bytes + grown_bytes
        due = self._sharp or enable_switch or produced >= 2 * self._switch_bytes
        if produced >= self._switch_bytes and due:
            self._switch()

    def load(self, queued: Mapping[int, int]) -> None:
        if self._late is not None:
            self._loads = self._view, dict(queued), self._late()

    def _switch(self) -> None:
        self._produced_bytes = 0
        super()._switch()

    def _draw(self) -> int:
        """Draw the next sticky partition, weighted by load if the partitioner is adaptive."""
        if self._loads is not None:  # build the table once per pass
            self._table = load_table(*self._loads, rack_aware=self._rack_aware)
            self._loads = None
        table, view = self._table, self._view
        if table is not None:
            self._counts["partition_draws_weighted"] += 1
            if table.left_out:
                self._counts["partitions_left_out"] += table.left_out
            if table.in_rack:
                self._counts["partition_draws_in_rack"] += 1
            return table.at(self._random_number())
        if self._rack_aware and view.in_rack:
            self._counts["partition_draws_in_rack"] += 1
            return self._draw_uniform(view.in_rack)
        return self._draw_uniform(tuple(view.leaders) or range(view.partitions))


MODES = ("sticky", "uniform", "adaptive", "availability")
SWITCHES = ("delayed", "sharp")
AVAILABILITY_TIMEOUT_MS = 5
"""Timeout in mode ``availability`` that KIP-794's authors used in their measurements."""


class Partitioner:
    """Partitioner of one producer, with the sticky partitions of all topics and the delays of brokers.

    ``availability_timeout_ms`` is off by default, except in mode ``availability``; as in Kafka, partitioners that
    aren't adaptive ignore the timeout. The KIP-480 partitioner (mode ``sticky``) ignores ``rack_aware`` and ``switch``.
    """

    def __init__(
        self,
        mode: str,
        *,
        batch_size: int,
        random: Random,
        ignore_keys: bool = False,
        rack_aware: bool = False,
        availability_timeout_ms: float = 0,
        switch: str = "delayed",
    ) -> None:
        for setting, value, values in (("partitioner", mode, MODES), ("switch", switch, SWITCHES)):
            if value not in values:
                raise SettingError(f"the setting {setting} has no mode {value!r}; use one of {', '.join(values)}")
        self.counts: Counter[str] = Counter()
        self._timeout_ms = availability_timeout_ms or (AVAILABILITY_TIMEOUT_MS if mode == "availability" else 0)
        self._latency = NodeLatency()
        self._topics: dict[str, StickyPartition] = {}
        self._new_topic: Callable[[], StickyPartition] = partial(
            UniformSticky,
            random,
            self.counts,
            ignore_keys=ignore_keys,
            batch_size=batch_size,
            late=None if mode == "uniform" else lambda: self._latency.later_than(self._timeout_ms),
            rack_aware=rack_aware,
            sharp=switch == "sharp",
        )
        if mode == "sticky":
            self._new_topic = partial(RunawaySticky, random, self.counts, ignore_keys=ignore_keys)

    def topic(self, name: str) -> StickyPartition:
        """Return the ``StickyPartition`` of a topic."""
        return self._topics.get(name) or self._topics.setdefault(name, self._new_topic())

    def node_ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        if self._timeout_ms:
            self._latency.ready(node_id, now_ms, can_drain=can_drain)

"""What a partitioner sees of a topic: how many partitions, which of them have a leader, and which of those are near.

Made anew when metadata changes: a draw looks at it, a record does not.

Murmur2 as Kafka's producers hash keys: the same key must find the same partition whoever sends it.

The numbers are those of Kafka's ``common.utils.Utils.murmur2``: seed 0x9747b28c, multiplier 0x5bd1e995, shift 24, words
of four bytes, little-endian, 32-bit arithmetic. Java's result is signed, and so is ours.

For how long a broker has had data waiting that it could not be sent: KIP-794's availability timeout.

Kafka: ``RecordAccumulator.updateNodeLatencyStats`` and ``NodeLatencyStats``. Two times a node. Whenever a node has
data that is ready, its *ready* time becomes now; if it can take that data now (it is connected, it has room for another
request in flight, it isn't throttled), its *drain* time as well. The distance between the two is the delay.

The odds of each partition in an adaptive draw: the longer its queue, the smaller (KIP-794).

Kafka: ``BuiltInPartitioner.updatePartitionLoadStats``; the in-rack table is KIP-1123's. An example: queues of 0, 3 and
1 batches have the weights 4, 1 and 3 (the longest queue and one, less the own), whose running sum 4, 5, 8 is the
cumulative frequency table: a random number 0…7 belongs to the first entry that is greater than it.

1. A partition without a leader has no place in the table.
2. Nor has one with waiting batches whose broker is *late* (``node_latency.py``).
3. No table, that is a uniform draw: while some partition never had a batch, with fewer than two queues, with nobody
   left, or when all queues are equally long and nobody was left out.
4. The in-rack table has the partitions of the first one whose leader is in the client's rack, with weights by their
   own longest queue. It holds where it isn't empty.

Where one topic's records go: by key, else to the topic's sticky partition. When that changes is the subclass's.

Order of choice, as ``KafkaProducer.partition`` has it: the caller's explicit partition (then nobody asks here), the
key's hash over all partitions unless keys are ignored, the sticky partition.

For each record the accumulator does this (in one thread, so the races that Kafka's own loop guards against can't be)::

    partition = sticky.choose(key)                     # or the explicit one
    drawn = explicit is None and sticky.draws(key)
    if no open batch of that partition takes the record:
        close the last one if it is open (the record doesn't fit in)
        if sticky.before_new_batch(partition, drawn=drawn):
            choose again, and look at that partition's batches instead; a new one there needs no second question
    append
    if drawn:
        sticky.appended(grown_bytes, enable_switch=the partition's last batch is full or closed)

``grown_bytes`` is the growth of the batch's estimated size, the 61 bytes of its header included with its first record.

KIP-480, the sticky partitioner before KIP-794, as a control: it switches with every new batch, and so runs away.

Kafka up to 3.2 by default: ``DefaultPartitioner`` over ``StickyPartitionCache``; with keys ignored it is
``UniformStickyPartitioner``. Kafka 4.0 removed them.

1. Whenever a batch must be opened in the sticky partition, for whatever record, another partition becomes sticky
   (``onNewBatch``), and a record without a key of its own goes there.
2. The draw is uniform over partitions that have a leader, the present one excepted; the only one if there is but one;
   over all if none has a leader.

Why it is a control: a slow broker keeps its batches open for longer, so more records go there for each switch, which
makes it slower yet. KIP-794's motivation measured five times the bytes.

KIP-794, the strictly uniform sticky partitioner: switch by bytes, draw by load; with KIP-1123's draw in the rack.

Kafka: ``BuiltInPartitioner``, and ``RecordAccumulator.append`` around it. S is ``batch.size`` (at least 1).

1. Bytes produced to the sticky partition are counted, whatever becomes of the batches.
2. From S bytes on it switches at the first append that leaves the partition's last batch full (``enable_switch``), so
   that no fraction of a batch stays behind; from 2 S on, at any append.
3. A switch that was put off by rule 2 is made good before a new batch is opened there.
4. The count starts again at 0, also where the draw, which is with replacement, finds the same partition again.
5. The draw: with a load table (adaptive; ``partition_load.py``) by its weights, otherwise uniform over partitions that
   have a leader, and over all if none has.
6. Rack-aware, both kinds of draw are among partitions whose leader is in the client's rack, if there are any.

KIP and Kafka: the KIP switches at S bytes sharp, Kafka puts it off as in rules 2 and 3 (KAFKA-14156). So where records
don't fill a batch to the byte, a partition with a backlog gets two batches a turn and one without gets one: uniform
is uniform within a factor of two. The KIP speaks of the inverse of a queue's length; Kafka's weights are linear in it.
Rule 6 is Kafka 4.4's.

The partitioner of one producer: one of four modes, made of KIP-794's switches, with the partitioner before it.

============  ====================================================  =======================================
mode          is                                                    Kafka's configuration
============  ====================================================  =======================================
sticky        KIP-480, the control (``sticky480.py``)               the default up to 3.2; gone since 4.0
uniform       KIP-794, uniform draws (``uniform_sticky.py``)        partitioner.adaptive.partitioning.enable=false
adaptive      and draws weighed by load (``partition_load.py``)     the default
availability  and late brokers left out (``node_latency.py``)       partitioner.availability.timeout.ms=5
============  ====================================================  =======================================

Counters: ``partition_draws`` of all modes; ``partition_draws_weighted`` by load; ``partitions_left_out`` of those, for
being late; ``partition_draws_in_rack`` among leaders in the client's rack (KIP-1123).
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from random import Random
from struct import unpack_from
from typing import NamedTuple, Self

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.values import UNKNOWN, Node, TopicMetadata


class TopicView(NamedTuple):
    """One topic at one moment, for a client in one rack.

    ``partitions`` is how many there are (keys are hashed over all); ``leaders`` gives the leader's node id of each one
    that has a leader, in the order of partitions; ``in_rack`` are those whose leader is in the client's own rack.
    """

    partitions: int
    leaders: Mapping[int, int]
    in_rack: tuple[int, ...] = ()

    @classmethod
    def of(cls, topic: TopicMetadata, nodes: Mapping[int, Node], rack: str | None) -> Self:
        """How a client in ``rack`` (None: in none that it knows of) sees a topic. ``nodes`` are by node id."""
        leaders = {part.partition: part.leader.node_id for part in topic.partitions if part.leader.node_id != UNKNOWN}
        near = {node.node_id for node in nodes.values() if rack is not None and node.rack == rack}
        in_rack = tuple(partition for partition, node_id in leaders.items() if node_id in near)
        return cls(len(topic.partitions), dict(sorted(leaders.items())), tuple(sorted(in_rack)))


SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as Java prints it: a signed 32-bit integer."""
    hashed = _unsigned(key)
    return hashed - (1 << 32) if hashed > 0x7FFFFFFF else hashed  # noqa: PLR2004 (the largest int32)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Where a key goes: its hash without the sign bit (``Utils.toPositive``), over *all* partitions of the topic."""
    return (_unsigned(key) & 0x7FFFFFFF) % partition_count


def _unsigned(key: bytes) -> int:
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


_NOBODY: frozenset[int] = frozenset()


class NodeLatency:
    """The delays of all brokers of one producer."""

    def __init__(self) -> None:
        self._drain_ms: dict[int, float] = {}
        self._delay_ms: dict[int, float] = {}

    def ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """A node has data that is ready; ``can_drain``: and it can be sent at once."""
        drained_ms = self._drain_ms.setdefault(node_id, now_ms)
        if can_drain:
            drained_ms = self._drain_ms[node_id] = now_ms
        self._delay_ms[node_id] = now_ms - drained_ms

    def later_than(self, timeout_ms: float) -> frozenset[int]:
        """The nodes whose data has been waiting for longer than ``timeout_ms``."""
        if not self._delay_ms:
            return _NOBODY
        return frozenset(node_id for node_id, delay_ms in self._delay_ms.items() if delay_ms > timeout_ms)


QUEUES_MIN = 2


class LoadTable(NamedTuple):
    """Partitions and their cumulative frequencies; how many a late broker kept out of it; whether all are near."""

    partitions: tuple[int, ...]
    cumulative: tuple[int, ...]
    left_out: int = 0
    in_rack: bool = False

    def at(self, number: int) -> int:
        """The partition that a non-negative random number falls to."""
        return self.partitions[bisect_right(self.cumulative, number % self.cumulative[-1])]


def load_table(view: TopicView, queued: Mapping[int, int], late: Collection[int]) -> LoadTable | None:
    """Rules 1-3; None: draw uniformly. ``queued``: batches waiting where there ever was one; ``late``: node ids."""
    if len(queued) < max(view.partitions, QUEUES_MIN):
        return None
    led = [partition for partition in view.leaders if partition in queued]
    kept = [partition for partition in led if not (queued[partition] and view.leaders[partition] in late)]
    all_equal = len(kept) == len(queued) and len(set(queued.values())) == 1
    if not kept or all_equal:
        return None
    return LoadTable(tuple(kept), weigh(kept, queued), left_out=len(led) - len(kept))


def prefer_rack(table: LoadTable, view: TopicView, queued: Mapping[int, int]) -> LoadTable:
    """Rule 4: what a client draws from that prefers leaders in its own rack."""
    in_rack = frozenset(view.in_rack)
    near = tuple(partition for partition in table.partitions if partition in in_rack)
    return LoadTable(near, weigh(near, queued), table.left_out, in_rack=True) if near else table


def weigh(partitions: Sequence[int], queued: Mapping[int, int]) -> tuple[int, ...]:
    """The weights that the module describes, summed up."""
    sizes = [queued[partition] for partition in partitions]
    most = max(sizes) + 1
    return tuple(accumulate([most - size for size in sizes]))


class StickyPartition(ABC):
    """The sticky partition of one topic. ``sees`` must have been called before anything else."""

    def __init__(self, random: Random, counts: Counter[str], *, ignore_keys: bool) -> None:
        self._random = random
        self._counts = counts
        self._ignore_keys = ignore_keys
        self._view = TopicView(0, {})
        self._partition = UNKNOWN

    def sees(self, view: TopicView) -> None:
        """Metadata changed. The sticky partition stays what it is; the next draw goes by the new view."""
        self._view = view

    def draws(self, key: bytes | None) -> bool:
        """Whether a record with this key goes to the sticky partition. An empty key is a key."""
        return key is None or self._ignore_keys

    def choose(self, key: bytes | None) -> int:
        """The partition of a record that has no explicit one."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, self._view.partitions)
        if self._partition == UNKNOWN:
            self._switch()
        return self._partition

    @abstractmethod
    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        """A batch must be opened in ``partition``. True: the sticky partition changed meanwhile, choose again."""

    @abstractmethod
    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """A drawn record was appended to the sticky partition's last batch."""

    @abstractmethod
    def load(self, queued: Mapping[int, int]) -> None:
        """How many batches wait in each partition that ever had one; said in every pass of the sender."""

    @abstractmethod
    def _draw(self) -> int:
        """A new sticky partition."""

    def _switch(self) -> None:
        self._partition = self._draw()
        self._counts["partition_draws"] += 1

    def _one_of(self, partitions: Sequence[int]) -> int:
        return partitions[self._random_number() % len(partitions)]

    def _random_number(self) -> int:
        return self._random.getrandbits(31)


class RunawaySticky(StickyPartition):
    """KIP-480 for one topic."""

    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        """Rule 1."""
        if partition != self._partition:
            return False
        self._switch()
        return drawn

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """Bytes mean nothing to it."""

    def load(self, queued: Mapping[int, int]) -> None:
        """Nor does load."""

    def _draw(self) -> int:
        """Rule 2."""
        led = tuple(self._view.leaders)
        others = [partition for partition in led if partition != self._partition]
        return self._one_of(others or led or range(self._view.partitions))


Late = Callable[[], Collection[int]]
"""Which nodes are late now; asked in every pass of the sender."""


class Loads(NamedTuple):
    """A topic as the sender's latest pass found it."""

    view: TopicView
    queued: Mapping[int, int]
    late: Collection[int]


class UniformSticky(StickyPartition):
    """KIP-794 for one topic. ``late`` None: not adaptive, draws are uniform."""

    def __init__(
        self,
        random: Random,
        counts: Counter[str],
        *,
        ignore_keys: bool,
        batch_size: int,
        late: Late | None,
        rack_aware: bool,
    ) -> None:
        super().__init__(random, counts, ignore_keys=ignore_keys)
        self._switch_bytes = max(1, batch_size)
        self._produced_bytes = 0
        self._late = late
        self._rack_aware = rack_aware
        self._loads: Loads | None = None
        self._table: LoadTable | None = None

    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:  # noqa: ARG002 (a drawn one is the sticky one)
        """Rule 3. Only records without a key of their own have a say."""
        if not drawn or self._produced_bytes < self._switch_bytes:
            return False
        self._switch()
        return True

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """Rules 1 and 2."""
        produced = self._produced_bytes = self._produced_bytes + grown_bytes
        if produced >= self._switch_bytes and (enable_switch or produced >= 2 * self._switch_bytes):
            self._switch()

    def load(self, queued: Mapping[int, int]) -> None:
        """Keeps what is so now. The table is made when a draw needs it: passes are many, draws are few."""
        if self._late is not None:
            self._loads = Loads(self._view, dict(queued), self._late())

    def _switch(self) -> None:
        self._produced_bytes = 0
        super()._switch()

    def _draw(self) -> int:
        """Rules 5 and 6."""
        table = self._weighed()
        if table is None:
            return self._one_of(self._candidates())
        self._counts["partition_draws_weighted"] += 1
        if table.left_out:
            self._counts["partitions_left_out"] += table.left_out
        if table.in_rack:
            self._counts["partition_draws_in_rack"] += 1
        return table.at(self._random_number())

    def _candidates(self) -> Sequence[int]:
        if self._rack_aware and self._view.in_rack:
            self._counts["partition_draws_in_rack"] += 1
            return self._view.in_rack
        return tuple(self._view.leaders) or range(self._view.partitions)

    def _weighed(self) -> LoadTable | None:
        """The table of the latest pass, made once."""
        if self._loads is not None:
            self._table = self._weigh(self._loads)
            self._loads = None
        return self._table

    def _weigh(self, loads: Loads) -> LoadTable | None:
        table = load_table(loads.view, loads.queued, loads.late)
        if table is None or not self._rack_aware:
            return table
        return prefer_rack(table, loads.view, loads.queued)


MODES = ("sticky", "uniform", "adaptive", "availability")
AVAILABILITY_TIMEOUT_MS = 5
"""Of mode ``availability`` where nobody says otherwise: the value that KIP-794 measured with."""


class Partitioner:
    """The sticky partitions of all topics, and what they know in common of brokers.

    ``batch_size`` in bytes, ``availability_timeout_ms`` 0: off, or 5 ms in mode ``availability``; as in Kafka it means
    nothing to the modes that don't adapt. ``rack_aware`` likewise means nothing to ``sticky``. ``SettingError`` for
    a mode that doesn't exist.
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
    ) -> None:
        if mode not in MODES:
            raise SettingError(f"partitioner: there is no mode {mode!r}, use one of {', '.join(MODES)}")
        self.counts: Counter[str] = Counter()
        self._mode = mode
        self._batch_size = batch_size
        self._random = random
        self._ignore_keys = ignore_keys
        self._rack_aware = rack_aware
        self._timeout_ms = availability_timeout_ms or (AVAILABILITY_TIMEOUT_MS if mode == "availability" else 0)
        self._latency = NodeLatency()
        self._topics: dict[str, StickyPartition] = {}

    def topic(self, name: str) -> StickyPartition:
        """A topic's sticky partition, to be kept (every record needs it) and to be told what it ``sees``."""
        if name not in self._topics:
            self._topics[name] = self._new_topic()
        return self._topics[name]

    def node_ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """In every pass of the sender, of each node with data that is ready: whether it can be sent at once."""
        if self._timeout_ms:
            self._latency.ready(node_id, now_ms, can_drain=can_drain)

    def _new_topic(self) -> StickyPartition:
        if self._mode == "sticky":
            return RunawaySticky(self._random, self.counts, ignore_keys=self._ignore_keys)
        return UniformSticky(
            self._random,
            self.counts,
            ignore_keys=self._ignore_keys,
            batch_size=self._batch_size,
            late=None if self._mode == "uniform" else self._late,
            rack_aware=self._rack_aware,
        )

    def _late(self) -> frozenset[int]:
        return self._latency.later_than(self._timeout_ms)
